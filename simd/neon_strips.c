/* simd/neon_strips.c -- strips: columns of the result of kernel fma_rows, with their sums in registers. */
#include "simd/neon.h"

/* sixteen columns at a time */
ALWAYS_INLINE void strip_of(enum tile_source source, int T, float *y, size_t ldy, size_t columns, const char *w, size_t pitch,
                            size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    enum { VECTORS = 4 };
    const int size = source == FROM_BF16 ? 2 : 4;
    for (size_t c = 0; c < columns; c += 4 * VECTORS) {
        float32x4_t a[TILE_TOKENS][VECTORS];
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                a[t][i] = first ? vdupq_n_f32(0.0f) : vld1q_f32(y + (size_t)t * ldy + c + i * 4);
        const char *row = w + c * (size_t)size;
        for (size_t n = 0; n < rows; n++, row += pitch) {
            float32x4_t h[VECTORS];
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                h[i] = source == FROM_BF16 ? widen_bf16(vreinterpret_u16_u8(vld1_u8((const void *)(row + i * 8))))
                                           : load_f32(row + i * 16);
            if (prefetch)
                __builtin_prefetch(row + prefetch);
            UNROLL
            for (int t = 0; t < T; t++) {
                float32x4_t u = vdupq_n_f32(x[(size_t)t * ldx + n]);
                UNROLL
                for (int i = 0; i < VECTORS; i++)
                    a[t][i] = vfmaq_f32(a[t][i], u, h[i]);
            }
        }
        UNROLL
        for (int t = 0; t < T; t++)
            UNROLL
            for (int i = 0; i < VECTORS; i++)
                vst1q_f32(y + (size_t)t * ldy + c + i * 4, a[t][i]);
    }
}

ALWAYS_INLINE void strip_from(enum tile_source source, float *y, size_t ldy, size_t T, size_t columns, const void *w, size_t pitch,
                              size_t rows, const float *x, size_t ldx, int first, size_t prefetch)
{
    switch (T) {
    case 1: strip_of(source, 1, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 2: strip_of(source, 2, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 3: strip_of(source, 3, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 4: strip_of(source, 4, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    case 5: strip_of(source, 5, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch); break;
    default: strip_of(source, 6, y, ldy, columns, w, pitch, rows, x, ldx, first, prefetch);
    }
}

void neon_strip(float *y, size_t ldy, size_t T, size_t columns, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch)
{
    if (source == FROM_BF16)
        strip_from(FROM_BF16, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
    else
        strip_from(FROM_F32, y, ldy, T, columns, w, pitch, rows, x, ldx, first, prefetch);
}
