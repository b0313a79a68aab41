/* simd/neon_dotprod.c -- quantised matrices with the dot products of bytes that armv8.2-a has as an option. */
#include "simd/neon.h"

ALWAYS_INLINE int32x4_t add_four(int32x4_t s, int8x16_t codes, int8x16_t x) { return vdotq_s32(s, codes, x); }

#include "simd/neon_quantised.h"
#include "simd/neon_open.h"

void neon_dotprod_matmul_quantised(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                   const struct quantised_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantised_loops loops = {.most_sums = 12, .tile = tile_any, .open = open_panel, .few = few_rows};
    tiled_matmul_quantised(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
