/* simd/neon_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/neon.h"

/* sixteen columns at a time */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, const struct strip *s)
{
    enum { VECTORS = 4 };
    const size_t size = source == FROM_BF16 ? 2 : 4, ldx = s->ldx, ldy = s->ldy,
                 ahead_step = s->ahead_step * 4 * VECTORS / s->columns;
    const char *ahead = s->ahead;
    for (size_t c = 0; c < s->columns; c += 4 * VECTORS) {
        float32x4_t a[TILE_TOKENS][VECTORS];
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                a[t][i] = s->first ? vdupq_n_f32(0.0f) : vld1q_f32(s->y + (size_t)t * ldy + c + i * 4);
        const char *row = (const char *)s->w + c * size;
        const float *x = s->x;
        for (size_t n = 0; n < s->rows; n++, row += s->pitch, x += s->step, ahead += ahead_step) {
            float32x4_t h[VECTORS];
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                h[i] = source == FROM_BF16 ? widen_bf16(vreinterpret_u16_u8(vld1_u8((const void *)(row + i * 8))))
                                           : load_f32(row + i * 16);
            if (s->prefetch)
                __builtin_prefetch(row + s->prefetch);
            __builtin_prefetch(ahead, 0, 2);
            UNROLL
            for (int t = 0; t < T; t++) {
                float32x4_t u = vdupq_n_f32(x[(size_t)t * ldx]);
                UNROLL
                for (int i = 0; i < VECTORS; i++)
                    a[t][i] = vfmaq_f32(a[t][i], u, h[i]);
            }
        }
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                vst1q_f32(s->y + (size_t)t * ldy + c + i * 4, a[t][i]);
    }
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

void neon_strip(size_t T, const struct strip *s)
{
    if (s->source == FROM_BF16)
        strip_from(FROM_BF16, T, s);
    else
        strip_from(FROM_F32, T, s);
}
