/* simd/neon_tiles.c -- the tile of four rows by up to six tokens, and the decoders.
 *
 * 32 registers hold 16 to 24 accumulators: all four quads of one token's sums, two quads of two or three tokens, one
 * quad of four to six; then the block again (from L1) for the other quads. Lanes never meet before the fold, so the
 * order of the quads is free. Checked under an emulator; its speed has not been measured on hardware. */
#include "simd/neon.h"

ALWAYS_INLINE float32x4_t odd_weights(enum tile_source source, const char *w, size_t quad)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return odd_bf16(load_words(w + 16 * quad));
    return source == FROM_F32 ? odd_f32(f + 8 * quad) : vld1q_f32(f + 4 * quad);
}

ALWAYS_INLINE float32x4_t even_weights(enum tile_source source, const char *w, size_t quad)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return even_bf16(load_words(w + 16 * quad));
    return source == FROM_F32 ? even_f32(f + 8 * quad) : vld1q_f32(f + 16 + 4 * quad);
}

/* four rows' quads (lanes l, l+8, l+4, l+12 added already) to four numbers */
ALWAYS_INLINE float32x4_t fold_rows(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    float32x4_t ab = vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                               vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    float32x4_t cd = vaddq_f32(vcombine_f32(vget_low_f32(c), vget_low_f32(d)),
                               vcombine_f32(vget_high_f32(c), vget_high_f32(d)));
    return vpaddq_f32(ab, cd);
}

/* T tokens, `quads` quads at once: a[r][t * quads + quad]; weights `at` bytes behind those of the first tile */
ALWAYS_INLINE void tile_of(enum tile_source source, int T, int quads, float (*sums)[TILE_ROWS], const struct tile *p, size_t at)
{
    float32x4_t all[4][TILE_ROWS][TILE_TOKENS], a[TILE_ROWS][TILE_TOKENS];
    size_t ldx = p->ldx, step = p->step, prefetch = p->prefetch;

    for (size_t quad = 0; quad < 4; quad += (size_t)quads) {
        const char *w[TILE_ROWS];
        const float *x = p->x + 4 * quad;
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            w[r] = (const char *)p->w[r] + at;
            UNROLL
            for (int i = 0; i < T * quads; i++)
                a[r][i] = vdupq_n_f32(0.0f);
        }
        for (size_t chunk = p->chunks; chunk; chunk--, x += step) {
            UNROLL
            for (int i = 0; i < quads; i++) {
                float32x4_t h[TILE_ROWS];
                UNROLL
                for (int r = 0; r < TILE_ROWS; r++)
                    h[r] = odd_weights(source, w[r], quad + (size_t)i);
                UNROLL
                for (int t = 0; t < T; t++) {
                    float32x4_t u = vld1q_f32(x + (size_t)t * ldx + 4 * i);
                    UNROLL
                    for (int r = 0; r < TILE_ROWS; r++)
                        a[r][t * quads + i] = vfmaq_f32(a[r][t * quads + i], h[r], u);
                }
                UNROLL
                for (int r = 0; r < TILE_ROWS; r++)
                    h[r] = even_weights(source, w[r], quad + (size_t)i);
                UNROLL
                for (int t = 0; t < T; t++) {
                    float32x4_t u = vld1q_f32(x + (size_t)t * ldx + 16 + 4 * i);
                    UNROLL
                    for (int r = 0; r < TILE_ROWS; r++)
                        a[r][t * quads + i] = vfmaq_f32(a[r][t * quads + i], h[r], u);
                }
            }
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) {
                __builtin_prefetch(w[r] + prefetch);
                if (source != FROM_BF16)
                    __builtin_prefetch(w[r] + prefetch + 64);
                w[r] += source == FROM_BF16 ? 64 : 128;
            }
        }
        UNROLL
        for (int i = 0; i < quads; i++)
            UNROLL
            for (int t = 0; t < T; t++)
                UNROLL
                for (int r = 0; r < TILE_ROWS; r++)
                    all[quad + (size_t)i][r][t] = a[r][t * quads + i];
    }

    UNROLL
    for (int t = 0; t < T; t++) {
        float32x4_t b[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            b[r] = vaddq_f32(vaddq_f32(all[0][r][t], all[2][r][t]), vaddq_f32(all[1][r][t], all[3][r][t]));
        vst1q_f32(sums[t], fold_rows(b[0], b[1], b[2], b[3]));
    }
}

ALWAYS_INLINE void tiles_of(enum tile_source source, int T, int quads, const struct tile *p)
{
    for (size_t i = 0; i < p->count; i++) {
        float sums[TILE_TOKENS][TILE_ROWS];
        tile_of(source, T, quads, sums, p, i * p->w_next);
        put_tile(p, i, T, sums);
    }
}

ALWAYS_INLINE void tile_from(enum tile_source source, size_t T, const struct tile *p)
{
    switch (T) {
    case 1: tiles_of(source, 1, 4, p); break;
    case 2: tiles_of(source, 2, 2, p); break;
    case 3: tiles_of(source, 3, 2, p); break;
    case 4: tiles_of(source, 4, 1, p); break;
    case 5: tiles_of(source, 5, 1, p); break;
    default: tiles_of(source, 6, 1, p);
    }
}

static void tile(size_t T, const struct tile *p)
{
    switch (p->source) {
    case FROM_BF16: tile_from(FROM_BF16, T, p); break;
    case FROM_F32: tile_from(FROM_F32, T, p); break;
    default: tile_from(FROM_PACKED, T, p);
    }
}

/* a quarter of a chunk: 8 weights to out[0..7], or packed to 4 of the odd and 4 of the even ones */
ALWAYS_INLINE void decode_quarter(float *out, enum weight_type type, const uint8_t *codes, float32x4_t scale, int packed)
{
    float32x4_t low, high;
    if (type == WEIGHT_F16) {
        float16x8_t halves = vreinterpretq_f16_u16(load_words(codes));
        float32x4_t a = vcvt_f32_f16(vget_low_f16(halves)), b = vcvt_f32_f16(vget_high_f16(halves));
        low = packed ? vuzp2q_f32(a, b) : a;
        high = packed ? vuzp1q_f32(a, b) : b;
    } else {
        uint16x8_t words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(vld1_u8(codes)) : load_words(codes);
        low = packed ? odd_bf16(words) : widen_bf16(vget_low_u16(words));
        high = packed ? even_bf16(words) : widen_bf16(vget_high_u16(words));
    }
    vst1q_f32(out, type == WEIGHT_F8_E4M3 ? vmulq_f32(low, scale) : low);
    vst1q_f32(out + (packed ? 16 : 4), type == WEIGHT_F8_E4M3 ? vmulq_f32(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const uint8_t *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = type == WEIGHT_F8_E4M3 ? 1 : 2;
    const float32x4_t s = vdupq_n_f32(scale);
    for (; chunks; chunks--, out += DOT_CHUNK, codes += DOT_CHUNK * size) {
        __builtin_prefetch(codes + DOT_BLOCK * size); /* this row in the next block */
        UNROLL
        for (size_t quarter = 0; quarter < 4; quarter++)
            decode_quarter(out + (packed ? 4 : 8) * quarter, type, codes + 8 * size * quarter, s, packed);
    }
}

static void decode(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed)
{
    switch (type) {
    case WEIGHT_F16: decode_all(out, WEIGHT_F16, codes, chunks, scale, packed); break;
    case WEIGHT_BF16: decode_all(out, WEIGHT_BF16, codes, chunks, scale, packed); break;
    default: decode_all(out, WEIGHT_F8_E4M3, codes, chunks, scale, packed);
    }
}

static void pack(float *packed, const float *x, size_t K)
{
    for (size_t k = 0; k < K; k += DOT_CHUNK, packed += DOT_CHUNK) {
        float cut[DOT_CHUNK];
        const float *chunk = K - k < DOT_CHUNK ? copy_cut(cut, x + k, K - k) : x + k;
        for (size_t quad = 0; quad < 4; quad++) {
            vst1q_f32(packed + 4 * quad, odd_f32(chunk + 8 * quad));
            vst1q_f32(packed + 16 + 4 * quad, even_f32(chunk + 8 * quad));
        }
    }
}

const struct vector_loops loops_neon = {.tokens = 6, .tile = tile, .strip_tokens = 6, .strip = neon_strip, .decode = decode, .pack = pack};
