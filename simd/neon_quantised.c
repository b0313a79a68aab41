/* simd/neon_quantised.c -- quantised matrices on any armv8-a: products of bytes in 16 bits, two of which have room there
 * (128 * 127 * 2), then sums in 32. */
#include "simd/neon.h"

ALWAYS_INLINE int32x4_t add_four(int32x4_t s, int8x16_t codes, int8x16_t x)
{
    int16x8_t rows_01 = vmull_s8(vget_low_s8(codes), vget_low_s8(x)), rows_23 = vmull_high_s8(codes, x);
    return vpadalq_s16(s, vpaddq_s16(rows_01, rows_23));
}

#include "simd/neon_quantised.h"
#include "simd/neon_open.h"

void neon_matmul_quantised(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantised_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantised_loops loops = {.most_sums = 12, .tile = tile_any, .open = open_panel, .few = few_rows};
    tiled_matmul_quantised(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
