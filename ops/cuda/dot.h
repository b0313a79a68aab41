/* ops/cuda/dot.h -- rule 1 of docs/ARITHMETIC.md: sixteen lanes compute one dot product.
 *
 * Lane l of a half warp has the partial sum a[l]. The two halves of a warp compute different sums. */
#ifndef VB_CUDA_DOT_H
#define VB_CUDA_DOT_H

#include "ops/cuda/lanes.h"

/* packed_length and packed_place of simd/kernels.h, for kernels */
DEVICE size_t chunks_length(size_t K) { return (K + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK; }
DEVICE size_t chunk_place(size_t k)
{
    return k / DOT_CHUNK * DOT_CHUNK + (k % 2 ? 0 : DOT_CHUNK / 2) + k % DOT_CHUNK / 2;
}

/* The number of this thread in its half of a warp: the lane of rule 1. */
DEVICE unsigned lane_of_sum(void) { return threadIdx.x % 16; }

/* Adds the sixteen partial sums of each half of a warp. All lanes get the result: a[l] + a[l^h] has the bits of a[l^h]
 * + a[l]. All threads of the warp call this together. */
DEVICE float fold(float a)
{
    for (int h = 8; h; h /= 2)
        a = a + __shfl_xor_sync(ALL_LANES, a, h);
    return a;
}

/* One step of fold_sixteen: a lane keeps H of 2 H products, and gives the others to the lane that keeps them. */
template <int H> DEVICE void fold_products(float *a)
{
    int upper = lane_of_sum() & H;
    UNROLL for (int i = 0; i < H; i++) {
        float mine = upper ? a[i + H] : a[i], given = upper ? a[i] : a[i + H];
        a[i] = mine + __shfl_xor_sync(ALL_LANES, given, H);
    }
}

/* Does what `fold` does for sixteen dot products at once: a[i] is this lane's partial sum of product i. Lane i gets the
 * sum of product i. There are 15 exchanges instead of 64. a is overwritten. */
DEVICE float fold_sixteen(float a[16])
{
    fold_products<8>(a);
    fold_products<4>(a);
    fold_products<2>(a);
    fold_products<1>(a);
    return a[0];
}

/* Returns the sum of one block of rule 1, for two vectors in natural order: elements [k0, k1), where k0 is a multiple
 * of 1024 and k1 is at most k0 + 1024. All lanes of a warp call this together; each half may have other vectors. */
DEVICE float dot_block(const float *x, const float *w, size_t k0, size_t k1)
{
    float a = 0.0f;
    for (size_t k = k0 + 2 * lane_of_sum(), end = k0 + (k1 - k0 + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK; k < end;
         k += DOT_CHUNK) {
        int even = k < k1, odd = k + 1 < k1;
        a = fmaf(odd ? w[k + 1] : 0.0f, odd ? x[k + 1] : 0.0f, a);
        a = fmaf(even ? w[k] : 0.0f, even ? x[k] : 0.0f, a);
    }
    return fold(a);
}

#endif
