/* simd/neon_tiles.c -- the tile of four rows by up to six tokens, and the decoders.
 *
 * There are 32 registers. For one token, a tile keeps all four quads of its sums in registers, and for two tokens two
 * quads. For three to six tokens, it keeps one quad, and reads the block four times (from L1), once for each quad.
 * Lanes never meet before the fold, so the order of the quads is free. Each number of x is loaded once for four rows.
 * Each word of BF16 weights is loaded once for its odd and its even weight; only for six tokens, whose sums need 24
 * registers, it is loaded twice. tests/kernels/stack_access.py checks that compilers keep no sum on the stack. The
 * results are checked under an emulator; the speed has not been measured on hardware. */
#include "simd/neon.h"

#ifdef __clang__
#define TOKENS 4 /* clang 14 keeps the sums of more tokens on the stack */
#else
#define TOKENS TILE_TOKENS
#endif

/* Loads operands where this is written. Without it, compilers would load them earlier, more than there are
 * registers. */
#define in_register(v) __asm__ volatile("" : "+w"(v))
/* Hides how a pointer is related to others: compilers would make more pointers of them than there are registers. */
#define opaque(p) __asm__ volatile("" : "+r"(p))

/* a + w * x. With the intrinsic, compilers copy sums from register to register. */
ALWAYS_INLINE float32x4_t fused(float32x4_t a, float32x4_t w, float32x4_t x)
{
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(a) : "w"(w), "w"(x));
    return a;
}

struct quad_weights {
    float32x4_t odd, even;
};

/* Returns the weights of one quad. w points to a chunk. */
ALWAYS_INLINE struct quad_weights weights_of(enum tile_source source, const char *w, int quad)
{
    if (source == FROM_PACKED)
        return (struct quad_weights){load_f32(w + 16 * quad), load_f32(w + 64 + 16 * quad)};
    if (source == FROM_F32) {
        float32x4_t low = load_f32(w + 32 * quad), high = load_f32(w + 32 * quad + 16);
        return (struct quad_weights){vuzp2q_f32(low, high), vuzp1q_f32(low, high)};
    }
    uint16x8_t words = load_words(w + 16 * quad);
    in_register(words);
    return (struct quad_weights){odd_bf16(words), even_bf16(words)};
}

ALWAYS_INLINE void prefetch_chunk(enum tile_source source, const char *w)
{
    __builtin_prefetch(w);
    if (source != FROM_BF16)
        __builtin_prefetch(w + 64);
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

/* One quad of a chunk of four rows: a[row][token * quads + quad]. x[t] points to the chunk of token t. */
ALWAYS_INLINE void quad_of_chunk(enum tile_source source, int T, int quads, int quad,
                                 float32x4_t a[TILE_ROWS][TILE_TOKENS], const char *w[TILE_ROWS],
                                 const char *const x[TILE_TOKENS])
{
    struct quad_weights h[TILE_ROWS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++)
        h[r] = weights_of(source, w[r], quad);
    UNROLL
    for (int t = 0; t < T; t++) {
        float32x4_t u = load_f32(x[t] + 16 * quad);
        in_register(u);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            a[r][t * quads + quad] = fused(a[r][t * quads + quad], h[r].odd, u);
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS && T == TILE_TOKENS; r++) {
        opaque(w[r]);
        h[r] = weights_of(source, w[r], quad);
    }
    UNROLL
    for (int t = 0; t < T; t++) {
        float32x4_t u = load_f32(x[t] + 64 + 16 * quad);
        in_register(u);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            a[r][t * quads + quad] = fused(a[r][t * quads + quad], h[r].even, u);
    }
}

/* Computes `quads` quads of the sums of T tokens, from quad `first` on: sums[quad][row][token]. The weights are `at`
 * bytes behind those of the first tile. If `quads` is 1, each of the four passes prefetches another row; else a pass
 * prefetches all rows. */
ALWAYS_INLINE void pass(enum tile_source source, int T, int quads, float32x4_t (*sums)[TILE_TOKENS][TILE_ROWS],
                        const struct tile *p, size_t at, size_t first)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, from = first * (source == FROM_F32 ? 32 : 16),
                 prefetch = p->prefetch;
    const char *w[TILE_ROWS], *x[TILE_TOKENS], *ahead = (const char *)p->w[first] + at + p->prefetch;
    float32x4_t a[TILE_ROWS][TILE_TOKENS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        w[r] = (const char *)p->w[r] + at + from;
        UNROLL
        for (int i = 0; i < T * quads; i++)
            a[r][i] = vdupq_n_f32(0.0f);
    }
    UNROLL
    for (int t = 0; t < T; t++)
        x[t] = (const char *)(p->x + (size_t)t * p->ldx + 4 * first);
    for (size_t chunk = p->chunks; chunk; chunk--) {
        UNROLL
        for (int i = 0; i < quads; i++)
            quad_of_chunk(source, T, quads, i, a, w, x);
        if (quads == 1) {
            prefetch_chunk(source, ahead);
            ahead += size;
        }
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            if (quads > 1)
                prefetch_chunk(source, w[r] + prefetch);
            w[r] += size;
            opaque(w[r]);
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            x[t] += sizeof(float) * DOT_CHUNK;
            opaque(x[t]);
        }
    }
    UNROLL
    for (int i = 0; i < quads; i++)
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            UNROLL
            for (int t = 0; t < T; t++)
                sums[i][t][r] = a[r][t * quads + i];
}

typedef void pass_function(float32x4_t (*sums)[TILE_TOKENS][TILE_ROWS], const struct tile *p, size_t at, size_t first);

ALWAYS_INLINE void tiles_of(pass_function *pass_of, int T, int quads, const struct tile *p)
{
    for (size_t i = 0; i < p->count; i++) {
        float32x4_t all[4][TILE_TOKENS][TILE_ROWS];
        float sums[TILE_TOKENS][TILE_ROWS];
        for (size_t quad = 0; quad < 4; quad += (size_t)quads)
            pass_of(all + quad, p, i * p->w_next, quad);
        UNROLL
        for (int t = 0; t < T; t++) {
            float32x4_t b[TILE_ROWS];
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                b[r] = vaddq_f32(vaddq_f32(all[0][t][r], all[2][t][r]), vaddq_f32(all[1][t][r], all[3][t][r]));
            vst1q_f32(sums[t], fold_rows(b[0], b[1], b[2], b[3]));
        }
        put_tile(p, i, T, sums);
    }
}

/* A pass is a function of its own, because in a larger function compilers keep sums on the stack. */
#define TILE_OF(name, source, T, quads) \
    static __attribute__((noinline)) void name##_pass_##T(float32x4_t(*sums)[TILE_TOKENS][TILE_ROWS], \
                                                          const struct tile *p, size_t at, size_t first) \
    { \
        pass(source, T, quads, sums, p, at, first); \
    } \
    static void name##_##T(const struct tile *p) { tiles_of(name##_pass_##T, T, quads, p); }
#define TILES_OF(name, source) \
    TILE_OF(name, source, 1, 4) \
    TILE_OF(name, source, 2, 2) \
    TILE_OF(name, source, 3, 1) \
    TILE_OF(name, source, 4, 1) \
    TILE_OF(name, source, 5, 1) \
    TILE_OF(name, source, 6, 1) \
    static void (*const name[])(const struct tile *) = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6};
TILES_OF(from_bf16, FROM_BF16)
TILES_OF(from_f32, FROM_F32)
TILES_OF(from_packed, FROM_PACKED)

static void tile(size_t T, const struct tile *p)
{
    static void (*const *const tiles[])(const struct tile *) = {from_bf16, from_f32, from_packed};
    tiles[p->source][T - 1](p);
}

/* a quarter of a chunk: 8 weights to out[0..7], or packed to 4 of the odd and 4 of the even ones */
ALWAYS_INLINE void decode_quarter(float *out, enum weight_type type, const uint8_t *codes, float32x4_t scale,
                                  int packed)
{
    float32x4_t low, high;
    if (type == WEIGHT_F16) {
        float16x8_t halves = vreinterpretq_f16_u16(load_words(codes));
        float32x4_t a = vcvt_f32_f16(vget_low_f16(halves)), b = vcvt_f32_f16(vget_high_f16(halves));
        low = packed ? vuzp2q_f32(a, b) : a;
        high = packed ? vuzp1q_f32(a, b) : b;
    } else if (type == WEIGHT_I8) {
        int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(codes)));
        float32x4_t a = vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), b = vcvtq_f32_s32(vmovl_high_s16(words));
        low = packed ? vuzp2q_f32(a, b) : a;
        high = packed ? vuzp1q_f32(a, b) : b;
    } else {
        uint16x8_t words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(vld1_u8(codes)) : load_words(codes);
        low = packed ? odd_bf16(words) : widen_bf16(vget_low_u16(words));
        high = packed ? even_bf16(words) : widen_bf16(vget_high_u16(words));
    }
    vst1q_f32(out, weight_is_byte(type) ? vmulq_f32(low, scale) : low);
    vst1q_f32(out + (packed ? 16 : 4), weight_is_byte(type) ? vmulq_f32(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const uint8_t *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = weight_size(type);
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
    case WEIGHT_I8: decode_all(out, WEIGHT_I8, codes, chunks, scale, packed); break;
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

/* Stores a chunk. The compiler vectorises the loops. */
ALWAYS_INLINE void put_pairs(float *restrict out, float odd[16], float even[16], int rounded, int packed)
{
    for (size_t l = 0; rounded && l < 16; l++) {
        odd[l] = round_to_bf16(odd[l]);
        even[l] = round_to_bf16(even[l]);
    }
    for (size_t l = 0; l < 16; l++) {
        out[packed ? l : 2 * l + 1] = odd[l];
        out[packed ? 16 + l : 2 * l] = even[l];
    }
}

/* The low halves of the bytes are the even elements, the high halves the odd ones. The compiler vectorises the
 * loops. */
static void decode_i4(float *restrict out, const unsigned char *restrict codes, const unsigned char *restrict scales,
                      size_t groups, int rounded, int packed)
{
    for (size_t g = 0; g < groups; g++, out += DOT_CHUNK, codes += DOT_CHUNK / 2) {
        float odd[16], even[16], d = bf16_to_f32((uint16_t)(scales[2 * g] | scales[2 * g + 1] << 8));
        __builtin_prefetch(codes + DOT_BLOCK / 2); /* this row in the next block */
        for (size_t l = 0; l < 16; l++) {
            odd[l] = (float)((codes[l] >> 4) - 8) * d;
            even[l] = (float)((codes[l] & 15) - 8) * d;
        }
        put_pairs(out, odd, even, rounded, packed);
    }
}

/* Returns lanes 4i..4i+3 of the E2M1 numbers of 16 codes: the upper halves of f32 numbers, whose bytes two tables
 * hold. */
ALWAYS_INLINE float32x4_t four_of_e2m1(uint8x16_t codes, int i)
{
    static const uint8_t high[16] = {0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0,
                                     0xc0, 0xc0};
    static const uint8_t low[16] = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
    uint8x16_t h = vqtbl1q_u8(vld1q_u8(high), codes), l = vqtbl1q_u8(vld1q_u8(low), codes);
    uint16x8_t words = vreinterpretq_u16_u8(i < 2 ? vzip1q_u8(l, h) : vzip2q_u8(l, h));
    return widen_bf16(i % 2 ? vget_high_u16(words) : vget_low_u16(words));
}

static void decode_f4_chunks(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed)
{
    const size_t each = f4_scales_of_a_chunk(w);
    const float factor = f4_factor(w);
    const uint8_t *codes = (const uint8_t *)w->data + at / 2;
    for (size_t some; chunks; chunks -= some, at += some * DOT_CHUNK) {
        float scales[2 * F4_CHUNKS];
        some = min_size(chunks, F4_CHUNKS);
        f4_scales(scales, w, at, some);
        for (size_t n = 0; n < some; n++, out += DOT_CHUNK, codes += DOT_CHUNK / 2) {
            float odd[16], even[16];
            uint8x16_t pairs = vld1q_u8(codes);
            __builtin_prefetch(codes + DOT_BLOCK / 2); /* this row in the next block */
            UNROLL
            for (int i = 0; i < 4; i++) {
                float scale = scales[n * each + (i < 2 ? 0 : each - 1)];
                vst1q_f32(even + 4 * i,
                          vmulq_n_f32(vmulq_n_f32(four_of_e2m1(vandq_u8(pairs, vdupq_n_u8(15)), i), scale), factor));
                vst1q_f32(odd + 4 * i, vmulq_n_f32(vmulq_n_f32(four_of_e2m1(vshrq_n_u8(pairs, 4), i), scale), factor));
            }
            put_pairs(out, odd, even, w->rounded, packed);
        }
    }
}

static void decode_cache_q8(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows,
                            size_t groups)
{
    decode_groups(out, ld, blocks, pitch, rows, groups);
}

const struct vector_loops loops_neon = {.tokens = TOKENS, .parts_from = 3, .tile = tile, .strip_tokens = 6,
                                        .strip = neon_strip, .decode = decode, .decode_i4 = decode_i4,
                                        .decode_f4 = decode_f4_chunks, .decode_cache_q8 = decode_cache_q8,
                                        .pack = pack};
