/* simd/avx2_tiles.c -- the tile of four rows by up to three tokens, the strip of 64 columns, and the decoders.
 *
 * Sixteen registers hold eight to twelve accumulators with what feeds them: one token with both halves of its sums, or
 * two or three tokens with one half, and then the block again (from L1) for the other half. Lanes never meet before the
 * fold, so the order of the halves is free. */
#include "simd/avx2.h"

#define TOKENS 3
#define in_register(v) __asm__("" : "+x"(v))

/* the odd or even weights of one half of a chunk */
ALWAYS_INLINE __m256 odd_weights(enum tile_source source, const char *w, size_t half)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return odd_bf16(_mm256_loadu_si256((const void *)(w + 32 * half)));
    return source == FROM_F32 ? odd_f32(f + 16 * half) : _mm256_loadu_ps(f + 8 * half);
}

ALWAYS_INLINE __m256 even_weights(enum tile_source source, const char *w, size_t half)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return even_bf16(_mm256_loadu_si256((const void *)(w + 32 * half)));
    return source == FROM_F32 ? even_f32(f + 16 * half) : _mm256_loadu_ps(f + 16 + 8 * half);
}

/* four rows' sums (lanes l and l+8 added already) to four numbers */
ALWAYS_INLINE __m128 fold_rows(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    s = _mm256_add_ps(_mm256_shuffle_ps(s, s, 0x88), _mm256_shuffle_ps(s, s, 0xdd)); /* a c a c, b d b d */
    return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* a[r][t * halves + i] += the odd or the even weights of half `half + i` of a chunk; two rows at a time */
ALWAYS_INLINE void add_products(__m256 a[TILE_ROWS][TOKENS], enum tile_source source, int T, int halves, int i,
                                const char *const w[TILE_ROWS], size_t half, int odd, const float *x, size_t ldx)
{
    UNROLL
    for (int r = 0; r < TILE_ROWS; r += 2) {
        __m256 h0 = odd ? odd_weights(source, w[r], half) : even_weights(source, w[r], half);
        __m256 h1 = odd ? odd_weights(source, w[r + 1], half) : even_weights(source, w[r + 1], half);
        UNROLL
        for (int t = 0; t < T; t++) {
            __m256 u = _mm256_loadu_ps(x + (size_t)t * ldx);
            in_register(u);
            a[r][t * halves + i] = _mm256_fmadd_ps(h0, u, a[r][t * halves + i]);
            a[r + 1][t * halves + i] = _mm256_fmadd_ps(h1, u, a[r + 1][t * halves + i]);
        }
    }
}

/* T tokens, `halves` halves at once: a[r][t * halves + half] */
ALWAYS_INLINE void tile_of(enum tile_source source, int T, int halves, float (*sums)[TILE_ROWS], const struct tile *p)
{
    __m256 low[TILE_ROWS][TOKENS], a[TILE_ROWS][TOKENS];
    size_t ldx = p->ldx, step = p->step, prefetch = p->prefetch;

    for (size_t half = 0; half < 2; half += (size_t)halves) {
        const char *w[TILE_ROWS] = {p->w[0], p->w[1], p->w[2], p->w[3]};
        const float *x = p->x + 8 * half;
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            UNROLL
            for (int i = 0; i < T * halves; i++)
                a[r][i] = _mm256_setzero_ps();
        for (size_t chunk = p->chunks; chunk; chunk--, x += step) {
            UNROLL
            for (int i = 0; i < halves; i++) {
                add_products(a, source, T, halves, i, w, half + (size_t)i, 1, x + 8 * i, ldx);
                add_products(a, source, T, halves, i, w, half + (size_t)i, 0, x + 16 + 8 * i, ldx);
            }
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) {
                _mm_prefetch(w[r] + prefetch, _MM_HINT_T0);
                if (source != FROM_BF16)
                    _mm_prefetch(w[r] + prefetch + 64, _MM_HINT_T0);
                w[r] += source == FROM_BF16 ? 64 : 128;
            }
        }
        if (halves == 1 && half == 0)
            UNROLL
            for (int t = 0; t < T; t++)
                UNROLL
                for (int r = 0; r < TILE_ROWS; r++)
                    low[r][t] = a[r][t];
    }

    UNROLL
    for (int t = 0; t < T; t++) {
        __m256 b[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            b[r] = halves == 2 ? _mm256_add_ps(a[r][0], a[r][1]) : _mm256_add_ps(low[r][t], a[r][t]);
        _mm_storeu_ps(sums[t], fold_rows(b[0], b[1], b[2], b[3]));
    }
}

ALWAYS_INLINE void tile_from(enum tile_source source, float sums[][TILE_ROWS], size_t T, const struct tile *p)
{
    switch (T) {
    case 1: tile_of(source, 1, 2, sums, p); break;
    case 2: tile_of(source, 2, 1, sums, p); break;
    default: tile_of(source, 3, 1, sums, p);
    }
}

static void tile(float sums[][TILE_ROWS], size_t T, const struct tile *p)
{
    switch (p->source) {
    case FROM_BF16: tile_from(FROM_BF16, sums, T, p); break;
    case FROM_F32: tile_from(FROM_F32, sums, T, p); break;
    default: tile_from(FROM_PACKED, sums, T, p);
    }
}

/* STRIP columns, eight or twelve registers of sums at a time */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, float *y, size_t ldy, const char *w, size_t pitch,
                            size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    enum { VECTORS = STRIP / 8 };
    const int vectors = T == 1 ? VECTORS : VECTORS / 2, size = source == FROM_BF16 ? 2 : 4;
    for (int c = 0; c < STRIP; c += 8 * vectors) {
        __m256 a[TOKENS][VECTORS];
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < vectors; i++)
                a[t][i] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (size_t)t * ldy + c + i * 8);
        const char *row = w + c * size;
        for (size_t n = 0; n < rows; n++, row += pitch) {
            __m256 u[TOKENS];
            UNROLL
            for (int t = 0; t < T; t++)
                u[t] = _mm256_set1_ps(x[(size_t)t * ldx + n]);
            UNROLL
            for (int i = 0; i < vectors; i++) {
                const void *at = row + i * 8 * size;
                __m256 h = source == FROM_BF16 ? widen_bf16(_mm_loadu_si128(at)) : _mm256_loadu_ps(at);
                if (prefetch && i * 8 * size % 64 == 0)
                    _mm_prefetch(row + prefetch + i * 8 * size, _MM_HINT_T0);
                UNROLL
                for (int t = 0; t < T; t++)
                    a[t][i] = _mm256_fmadd_ps(u[t], h, a[t][i]);
            }
        }
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < vectors; i++)
                _mm256_storeu_ps(y + (size_t)t * ldy + c + i * 8, a[t][i]);
    }
}

ALWAYS_INLINE void strip_from(enum tile_source source, float *y, size_t ldy, size_t T, const void *w, size_t pitch,
                              size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    switch (T) {
    case 1: strip_of(source, 1, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    case 2: strip_of(source, 2, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    default: strip_of(source, 3, y, ldy, w, pitch, rows, x, ldx, first, prefetch);
    }
}

static void strip(float *y, size_t ldy, size_t T, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch)
{
    if (source == FROM_BF16)
        strip_from(FROM_BF16, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
    else
        strip_from(FROM_F32, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
}

/* half a chunk: 16 weights to out[0..15], or packed to 8 of the odd and 8 of the even ones */
ALWAYS_INLINE void decode_half(float *out, enum weight_type type, const char *codes, __m256 scale, int packed)
{
    __m256 low, high;
    if (type == WEIGHT_F16) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const void *)codes));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(codes + 16)));
        __m256 a_b_low = _mm256_permute2f128_ps(a, b, 0x20), a_b_high = _mm256_permute2f128_ps(a, b, 0x31);
        low = packed ? _mm256_shuffle_ps(a_b_low, a_b_high, 0xdd) : a; /* a1 a3 a5 a7 b1 b3 b5 b7 */
        high = packed ? _mm256_shuffle_ps(a_b_low, a_b_high, 0x88) : b;
    } else {
        __m256i words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(_mm_loadu_si128((const void *)codes))
                                               : _mm256_loadu_si256((const void *)codes);
        low = packed ? odd_bf16(words) : widen_bf16(_mm256_castsi256_si128(words));
        high = packed ? even_bf16(words) : widen_bf16(_mm256_extracti128_si256(words, 1));
    }
    _mm256_storeu_ps(out, type == WEIGHT_F8_E4M3 ? _mm256_mul_ps(low, scale) : low);
    _mm256_storeu_ps(out + (packed ? 16 : 8), type == WEIGHT_F8_E4M3 ? _mm256_mul_ps(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const char *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = type == WEIGHT_F8_E4M3 ? 1 : 2;
    const __m256 s = _mm256_set1_ps(scale);
    for (; chunks; chunks--, out += DOT_CHUNK, codes += DOT_CHUNK * size) {
        _mm_prefetch(codes + DOT_BLOCK * size, _MM_HINT_T0); /* this row in the next block */
        decode_half(out, type, codes, s, packed);
        decode_half(out + (packed ? 8 : 16), type, codes + 16 * size, s, packed);
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
        for (size_t half = 0; half < 2; half++) {
            _mm256_storeu_ps(packed + 8 * half, odd_f32(chunk + 16 * half));
            _mm256_storeu_ps(packed + 16 + 8 * half, even_f32(chunk + 16 * half));
        }
    }
}

const struct vector_loops loops_avx2 = {.tokens = TOKENS, .tile = tile, .strip = strip, .decode = decode, .pack = pack};
