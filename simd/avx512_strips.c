/* simd/avx512_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/avx512.h"

/* 16 * V columns */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, int V, float *y, size_t ldy, const char *w, size_t pitch,
                            size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    __m512 a[TILE_TOKENS][STRIP / 16];
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            a[t][i] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(y + (size_t)t * ldy + i * 16);
    for (size_t n = 0; n < rows; n++, w += pitch) {
        __m512 h[STRIP / 16];
        UNROLL
        for (int i = 0; i < V; i++) {
            h[i] = source == FROM_BF16 ? widen_bf16(_mm256_loadu_si256((const void *)(w + i * 32)))
                                       : _mm512_loadu_ps((const float *)(const void *)(w + i * 64));
            if (prefetch && (source != FROM_BF16 || i % 2 == 0))
                _mm_prefetch(w + prefetch + i * (source == FROM_BF16 ? 32 : 64), _MM_HINT_T0);
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m512 u = _mm512_set1_ps(x[(size_t)t * ldx + n]);
            in_register(u);
            UNROLL
            for (int i = 0; i < V; i++)
                a[t][i] = _mm512_fmadd_ps(u, h[i], a[t][i]);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            _mm512_storeu_ps(y + (size_t)t * ldy + i * 16, a[t][i]);
}

ALWAYS_INLINE void strip_from(enum tile_source source, int V, float *y, size_t ldy, size_t T, const void *w, size_t pitch,
                              size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    switch (T) {
    case 1: strip_of(source, 1, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    case 2: strip_of(source, 2, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    case 3: strip_of(source, 3, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    case 4: strip_of(source, 4, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    case 5: strip_of(source, 5, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch); break;
    default: strip_of(source, 6, V, y, ldy, w, pitch, rows, x, ldx, first, prefetch);
    }
}

void avx512_strip(float *y, size_t ldy, size_t T, size_t columns, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch)
{
    if (source == FROM_BF16 && columns == STRIP)
        strip_from(FROM_BF16, STRIP / 16, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
    else if (source == FROM_BF16)
        strip_from(FROM_BF16, HALF_STRIP / 16, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
    else if (columns == STRIP)
        strip_from(FROM_F32, STRIP / 16, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
    else
        strip_from(FROM_F32, HALF_STRIP / 16, y, ldy, T, w, pitch, rows, x, ldx, first, prefetch);
}
