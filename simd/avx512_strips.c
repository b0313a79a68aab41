/* simd/avx512_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/avx512.h"

/* 16 * V columns */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, int V, const struct strip *s)
{
    const char *w = s->w, *ahead = s->ahead;
    const size_t pitch = s->pitch, prefetch = s->prefetch, ahead_step = s->ahead_step, ldx = s->ldx, step = s->step;
    const float *x = s->x, *x3 = x + 3 * ldx; /* so that few registers hold addresses */
    __m512 a[TILE_TOKENS][STRIP / 16];
    UNROLL
    for (int t = 0; t < T; t++)
        UNROLL
        for (int i = 0; i < V; i++)
            a[t][i] = s->first ? _mm512_setzero_ps() : _mm512_loadu_ps(s->y + (size_t)t * s->ldy + i * 16);
    opaque(x3);
    for (size_t n = s->rows; n; n--, w += pitch, x += step, x3 += step, ahead += ahead_step) {
        __m512 h[STRIP / 16];
        UNROLL
        for (int i = 0; i < V; i++) {
            h[i] = source == FROM_BF16 ? widen_bf16(_mm256_loadu_si256((const void *)(w + i * 32)))
                                       : _mm512_loadu_ps((const float *)(const void *)(w + i * 64));
            if (prefetch && (source != FROM_BF16 || i % 2 == 0))
                _mm_prefetch(w + prefetch + i * (source == FROM_BF16 ? 32 : 64), _MM_HINT_T0);
        }
        _mm_prefetch(ahead, _MM_HINT_T1);
        UNROLL
        for (int t = 0; t < T; t++) {
            __m512 u = _mm512_set1_ps(t < 3 ? x[(size_t)t * ldx] : x3[(size_t)(t - 3) * ldx]);
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
            _mm512_storeu_ps(s->y + (size_t)t * s->ldy + i * 16, a[t][i]);
}

ALWAYS_INLINE void strip_from(enum tile_source source, int V, size_t T, const struct strip *s)
{
    switch (T) {
    case 1: strip_of(source, 1, V, s); break;
    case 2: strip_of(source, 2, V, s); break;
    case 3: strip_of(source, 3, V, s); break;
    case 4: strip_of(source, 4, V, s); break;
    case 5: strip_of(source, 5, V, s); break;
    default: strip_of(source, 6, V, s);
    }
}

ALWAYS_INLINE void strip_of_columns(enum tile_source source, size_t T, const struct strip *s)
{
    switch (s->columns / 16) {
    case 1: strip_from(source, 1, T, s); break;
    case 2: strip_from(source, 2, T, s); break;
    case 3: strip_from(source, 3, T, s); break;
    default: strip_from(source, 4, T, s);
    }
}

void avx512_strip(size_t T, const struct strip *s)
{
    if (s->source == FROM_BF16)
        strip_of_columns(FROM_BF16, T, s);
    else
        strip_of_columns(FROM_F32, T, s);
}
