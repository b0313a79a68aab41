/* simd/avx2_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/avx2.h"

#define TOKENS 4

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

void avx2_strip(float *y, size_t ldy, size_t T, size_t columns, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch)
{
    if (source == FROM_BF16)
        strip_from(FROM_BF16, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
    else
        strip_from(FROM_F32, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
}
