/* simd/neon_dotprod.c -- quantized matrices with the dot products of bytes that armv8.2-a has as an option: an
 * instruction adds four products to each lane. The four numbers of x are a lane of a register. */
#define MOST_INTEGERS 12
#define READY_BYTES(T) 0
#include "simd/neon_quantized.h"
#include "simd/neon_lane.h"

ALWAYS_INLINE void multiply_bytes(enum panel_kind kind, integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, const void *ready, int j, int count)
{
    (void)ready;
    bytes_by_lanes(kind, s, R, T, codes, x, j, count);
}

ALWAYS_INLINE void multiply_nibbles(integers s, int R, int T, const unsigned char *codes,
                                    const struct quantized_group *const *x, const void *ready)
{
    (void)ready;
    nibbles_by_lanes(s, R, T, codes, x);
}

#include "simd/neon_open.h"

void neon_dotprod_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                   const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantized_loops loops = {.most_sums = 12, .tile = tile_any, .open = open_panel, .few = few_rows};
    tiled_matmul_quantized(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
