/* simd/avx2_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/avx2.h"

#define TOKENS 6

/* 8 * V columns for T tokens, at columns c. */
ALWAYS_INLINE void columns_of(enum tile_source source, int T, int V, const struct strip *s, size_t c, const char *ahead,
                              size_t ahead_step)
{
    const size_t size = source == FROM_BF16 ? 2 : 4, pitch = s->pitch, prefetch = s->prefetch, ldy = s->ldy;
    const char *w = (const char *)s->w + c * size;
    const float *x = s->x, *x3 = s->x + 3 * s->ldx;
    float *y = s->y + c;
    __m256 a[TOKENS][STRIP / 8];
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            a[t][i] = s->first ? _mm256_setzero_ps() : _mm256_loadu_ps(y + (size_t)t * ldy + i * 8);
    for (size_t n = s->rows, ldx = s->ldx, step = s->step; n;
         n--, w += pitch, x += step, x3 += step, ahead += ahead_step) {
        __m256 h[STRIP / 8];
        UNROLL
        for (int i = 0; i < V; i++) {
            const void *at = w + (size_t)i * 8 * size;
            h[i] = source == FROM_BF16 ? widen_bf16(_mm_loadu_si128(at)) : _mm256_loadu_ps(at);
            if ((size_t)i * 8 * size % 64 == 0) /* one that is 0 costs less than to ask */
                _mm_prefetch(w + prefetch + (size_t)i * 8 * size, _MM_HINT_T0);
        }
        _mm_prefetch(ahead, _MM_HINT_T1);
        UNROLL
        for (int t = 0; t < T; t++) {
            __m256 u = _mm256_set1_ps(t < 3 ? x[(size_t)t * ldx] : x3[(size_t)(t - 3) * ldx]);
            UNROLL
            for (int i = 0; i < V; i++)
                a[t][i] = _mm256_fmadd_ps(u, h[i], a[t][i]);
        }
    }
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            _mm256_storeu_ps(y + (size_t)t * ldy + i * 8, a[t][i]);
}

/* A strip, eight to twelve registers of sums at a time. Each time, a part of what is ahead is prefetched. */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, const struct strip *s)
{
    const int V = T == 1 ? STRIP / 8 : T <= 3 ? 4 : 2;
    const char *ahead = s->ahead;
    size_t c = 0, step = s->ahead_step * 16 / s->columns; /* of 16 columns */
    for (; s->columns - c >= 8 * (size_t)V; c += 8 * (size_t)V, ahead += step * (size_t)V / 2 * s->rows)
        columns_of(source, T, V, s, c, ahead, step * (size_t)V / 2);
    for (; V > 2 && c < s->columns; c += 16, ahead += step * s->rows)
        columns_of(source, T, 2, s, c, ahead, step);
}

ALWAYS_INLINE void strip_from(enum tile_source source, size_t T, const struct strip *s)
{
    switch (T) {
    case 1: strip_of(source, 1, s); break;
    case 2: strip_of(source, 2, s); break;
    case 3: strip_of(source, 3, s); break;
    case 4: strip_of(source, 4, s); break;
    case 5: strip_of(source, 5, s); break;
    default: strip_of(source, 6, s);
    }
}

void avx2_strip(size_t T, const struct strip *s)
{
    if (s->source == FROM_BF16)
        strip_from(FROM_BF16, T, s);
    else
        strip_from(FROM_F32, T, s);
}
