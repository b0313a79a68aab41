/* ops/cuda/matmul.h -- for kernels: which rows a block of threads multiplies by which matrix (struct matmul_args). */
#ifndef VB_CUDA_MATMUL_H
#define VB_CUDA_MATMUL_H

#include "ops/cuda/lanes.h"

/* Returns the tile of this block, of at most T rows. */
template <int T> DEVICE struct expert_tile this_tile(const struct matmul_args &a)
{
    int32_t first = (int32_t)blockIdx.y * T, left = (int32_t)a.S - first;
    struct expert_tile all = {0, first, left < T ? left : T};
    return a.tiles ? a.tiles[blockIdx.y] : all;
}

DEVICE struct weight_view this_matrix(const struct matmul_args &a, const struct matmul_part &p, int32_t expert)
{
    return a.tiles ? *(const struct weight_view *)(const void *)(p.experts + (size_t)expert * a.expert_step) : p.w;
}

/* Returns the row of x for row t of the tile. Rows that the tile does not have are computed too, but not stored. */
DEVICE size_t row_of_x(const struct matmul_args &a, const struct expert_tile &tile, int32_t t)
{
    int32_t place = tile.first + (t < tile.count ? t : tile.count - 1);
    return (size_t)(a.x_row ? a.x_row[place] : place);
}

#endif
