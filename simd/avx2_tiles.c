/* simd/avx2_tiles.c -- the tile of four rows by up to four tokens, strips, and the decoders.
 *
 * Sixteen registers hold eight sums with what feeds them: four rows by one token with both halves of their sums; four rows by
 * two tokens, or two rows by three or four, with one half, and then the block again (from L1) for the other half. Lanes never
 * meet before the fold, so the order of the halves is free. Each word of BF16 weights is loaded once for its odd and its even
 * element, and x once for two rows: with twelve sums (four rows by three tokens) some of them lived on the stack. */
#include "simd/avx2.h"

#define TOKENS 4

/* x for two rows; volatile: else the compiler keeps it for four, and sums on the stack instead */
#define in_register(v) __asm__ volatile("" : "+x"(v))
/* the odd and the even weights of one half of a chunk; of BF16 both from one load */
struct weights {
    __m256 odd, even;
};

ALWAYS_INLINE struct weights weights_of(enum tile_source source, const char *w, size_t half)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16) {
        __m256i words = _mm256_loadu_si256((const void *)(w + 32 * half));
        return (struct weights){odd_bf16(words), even_bf16(words)};
    }
    if (source == FROM_F32)
        return (struct weights){odd_f32(f + 16 * half), even_f32(f + 16 * half)};
    return (struct weights){_mm256_loadu_ps(f + 8 * half), _mm256_loadu_ps(f + 16 + 8 * half)};
}

ALWAYS_INLINE void prefetch_weights(enum tile_source source, const char *w, size_t ahead)
{
    _mm_prefetch(w + ahead, _MM_HINT_T0);
    if (source != FROM_BF16)
        _mm_prefetch(w + ahead + 64, _MM_HINT_T0);
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

/* the first `count` of four sums to their places */
ALWAYS_INLINE void put_sums(float *y, const size_t place[4], int count, __m128 sums, int first)
{
    float s[4] = {_mm_cvtss_f32(sums), _mm_cvtss_f32(_mm_permute_ps(sums, 1)), _mm_cvtss_f32(_mm_permute_ps(sums, 2)),
                  _mm_cvtss_f32(_mm_permute_ps(sums, 3))};
    if (first) {
        UNROLL
        for (int n = 0; n < count; n++)
            y[place[n]] = s[n];
    } else {
        UNROLL
        for (int n = 0; n < count; n++)
            y[place[n]] = y[place[n]] + s[n];
    }
}

/* Four rows by one token, both halves of their sums. */
ALWAYS_INLINE void one_token(enum tile_source source, const struct tile *p, size_t i)
{
    const size_t size = source == FROM_BF16 ? 64 : 128;
    const char *w[TILE_ROWS];
    const float *x = p->x;
    __m256 a[TILE_ROWS][2], sum[TILE_ROWS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        w[r] = (const char *)p->w[r] + i * p->w_next;
        a[r][0] = a[r][1] = _mm256_setzero_ps();
    }
    for (size_t chunk = p->chunks; chunk; chunk--, x += DOT_CHUNK) {
        UNROLL
        for (size_t half = 0; half < 2; half++) {
            __m256 odd = _mm256_loadu_ps(x + 8 * half), even = _mm256_loadu_ps(x + 16 + 8 * half);
            in_register(odd);
            in_register(even);
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++) {
                struct weights h = weights_of(source, w[r], half);
                a[r][half] = _mm256_fmadd_ps(h.odd, odd, a[r][half]);
                a[r][half] = _mm256_fmadd_ps(h.even, even, a[r][half]);
            }
        }
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            prefetch_weights(source, w[r], p->prefetch);
            w[r] += size;
        }
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++)
        sum[r] = _mm256_add_ps(a[r][0], a[r][1]);
    put_sums(p->y + i * p->y_next, (size_t[]){0, p->y_row, 2 * p->y_row, 3 * p->y_row}, 4,
             fold_rows(sum[0], sum[1], sum[2], sum[3]), p->first);
}

/* a[j][t] = one half of the sums of R rows by T tokens. */
ALWAYS_INLINE void half_of_sums(enum tile_source source, int R, int T, __m256 a[TILE_ROWS][TOKENS], const struct tile *p,
                                size_t i, int r, size_t half)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, ldx = p->ldx, prefetch = p->prefetch;
    const char *w[TILE_ROWS];
    const float *x = p->x + 8 * half;
    UNROLL
    for (int j = 0; j < R; j++) {
        w[j] = (const char *)p->w[r + j] + i * p->w_next;
        UNROLL
        for (int t = 0; t < T; t++)
            a[j][t] = _mm256_setzero_ps();
    }
    for (size_t chunk = p->chunks; chunk; chunk--, x += DOT_CHUNK) {
        UNROLL
        for (int j = 0; j < R; j += 2) {
            struct weights h0 = weights_of(source, w[j], half), h1 = weights_of(source, w[j + 1], half);
            UNROLL
            for (int t = 0; t < T; t++) {
                __m256 u = _mm256_loadu_ps(x + (size_t)t * ldx);
                in_register(u);
                a[j][t] = _mm256_fmadd_ps(h0.odd, u, a[j][t]);
                a[j + 1][t] = _mm256_fmadd_ps(h1.odd, u, a[j + 1][t]);
            }
            UNROLL
            for (int t = 0; t < T; t++) {
                __m256 u = _mm256_loadu_ps(x + (size_t)t * ldx + 16);
                in_register(u);
                a[j][t] = _mm256_fmadd_ps(h0.even, u, a[j][t]);
                a[j + 1][t] = _mm256_fmadd_ps(h1.even, u, a[j + 1][t]);
            }
        }
        UNROLL
        for (int j = 0; j < R; j++) {
            if (half == 0) /* the second time they are there */
                prefetch_weights(source, w[j], prefetch);
            w[j] += size;
        }
    }
}

/* Rows r .. r + R of tile i by T tokens, one half of their sums after the other. */
ALWAYS_INLINE void some_tokens(enum tile_source source, int R, int T, const struct tile *p, size_t i, int r)
{
    float *y = p->y + i * p->y_next + (size_t)r * p->y_row;
    size_t ldy = p->ldy, row = p->y_row;
    __m256 a[TILE_ROWS][TOKENS], b[TILE_ROWS][TOKENS];
    half_of_sums(source, R, T, a, p, i, r, 0);
    half_of_sums(source, R, T, b, p, i, r, 1);
    UNROLL
    for (int j = 0; j < R; j++)
        UNROLL
        for (int t = 0; t < T; t++)
            a[j][t] = _mm256_add_ps(a[j][t], b[j][t]);
    if (R == 4) {
        UNROLL
        for (int t = 0; t < T; t++)
            put_sums(y + (size_t)t * ldy, (size_t[]){0, row, 2 * row, 3 * row}, 4, fold_rows(a[0][t], a[1][t], a[2][t], a[3][t]), p->first);
        return;
    }
    UNROLL
    for (int j = 0; j < R; j++)
        put_sums(y + (size_t)j * row, (size_t[]){0, ldy, 2 * ldy, 3 * ldy}, T, fold_rows(a[j][0], a[j][1], a[j][2], a[j][T - 1]), p->first);
}

ALWAYS_INLINE void tiles_of(enum tile_source source, int T, const struct tile *p)
{
    for (size_t i = 0; i < p->count; i++)
        if (T == 1) {
            one_token(source, p, i);
        } else if (T == 2) {
            some_tokens(source, 4, T, p, i, 0);
        } else {
            some_tokens(source, 2, T, p, i, 0);
            some_tokens(source, 2, T, p, i, 2);
        }
}

ALWAYS_INLINE void tile_from(enum tile_source source, size_t T, const struct tile *p)
{
    switch (T) {
    case 1: tiles_of(source, 1, p); break;
    case 2: tiles_of(source, 2, p); break;
    case 3: tiles_of(source, 3, p); break;
    default: tiles_of(source, 4, p);
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


/* 8 * V columns for T tokens */
ALWAYS_INLINE void columns_of(enum tile_source source, int T, int V, float *y, size_t ldy, const char *w, size_t pitch,
                              size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    const int size = source == FROM_BF16 ? 2 : 4;
    __m256 a[TOKENS][STRIP / 8];
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            a[t][i] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (size_t)t * ldy + i * 8);
    for (size_t n = 0; n < rows; n++, w += pitch) {
        __m256 u[TOKENS];
        UNROLL
        for (int t = 0; t < T; t++)
            u[t] = _mm256_set1_ps(x[(size_t)t * ldx + n]);
        UNROLL
        for (int i = 0; i < V; i++) {
            const void *at = w + i * 8 * size;
            __m256 h = source == FROM_BF16 ? widen_bf16(_mm_loadu_si128(at)) : _mm256_loadu_ps(at);
            if (i * 8 * size % 64 == 0) /* one that is 0 costs less than to ask */
                _mm_prefetch(w + prefetch + i * 8 * size, _MM_HINT_T0);
            UNROLL
            for (int t = 0; t < T; t++)
                a[t][i] = _mm256_fmadd_ps(u[t], h, a[t][i]);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            _mm256_storeu_ps(y + (size_t)t * ldy + i * 8, a[t][i]);
}

/* A strip, eight to twelve registers of sums at a time. */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, float *y, size_t ldy, size_t columns, const char *w, size_t pitch,
                            size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    const int V = T == 4 ? 2 : 4, size = source == FROM_BF16 ? 2 : 4;
    if (T == 1 && columns == STRIP) {
        columns_of(source, T, STRIP / 8, y, ldy, w, pitch, rows, x, ldx, first, prefetch);
        return;
    }
    for (size_t c = 0; c < columns; c += 8 * V, y += 8 * V, w += 8 * V * size)
        columns_of(source, T, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch);
}

ALWAYS_INLINE void strip_from(enum tile_source source, float *y, size_t ldy, size_t T, size_t columns, const void *w, size_t pitch,
                              size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    switch (T) {
    case 1: strip_of(source, 1, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 2: strip_of(source, 2, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 3: strip_of(source, 3, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    default: strip_of(source, 4, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch);
    }
}

static void strip(float *y, size_t ldy, size_t T, size_t columns, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch)
{
    if (source == FROM_BF16)
        strip_from(FROM_BF16, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
    else
        strip_from(FROM_F32, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
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
