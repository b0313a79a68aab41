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

/* For kernels whose warps work on TENSOR_ROWS rows of weights: adds the sums of blocks of columns [b0, b0 + some), in
 * ascending order, to those before, and stores them. sums: [groups * some, TENSOR_ROWS, T], of groups of rows from row
 * `first` on. */
template <int T, unsigned THREADS>
DEVICE void add_blocks(float *y, size_t ldy, const struct expert_tile &tile, unsigned rows, const float *sums,
                       unsigned first, unsigned groups, unsigned b0, unsigned some)
{
    constexpr unsigned TILE = TENSOR_ROWS * T;
    ROLL for (unsigned i = threadIdx.x; i < groups * TILE; i += THREADS) {
        unsigned group = i / TILE, n = first + group * TENSOR_ROWS + i % TENSOR_ROWS, t = i / TENSOR_ROWS % T;
        const float *sum = sums + group * some * TILE + i % TENSOR_ROWS * T + t;
        if (n >= rows || t >= (unsigned)tile.count)
            continue;
        float *to = &y[((unsigned)tile.first + t) * ldy + n], total = b0 ? *to + sum[0] : sum[0];
        for (unsigned b = 1; b < some; b++)
            total = total + sum[b * TILE];
        *to = total;
    }
}

#endif
