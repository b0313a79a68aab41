/* ops/cuda/rmsnorm.cu -- RMSNorm (rule 3), and the residual sum. */
#include "ops/cuda/dot.h"

/* The blocks of the dot product are computed by different half warps, and added in ascending order by each thread. */
KERNEL(rmsnorm)
{
    const size_t SUMS = 64, HALVES = THREADS_rmsnorm / 16;
    SHARED(float, sums, SUMS);
    const float *x = a.x + blockIdx.x * a.ldx;
    float *y = a.y + blockIdx.x * a.ldy;
    size_t blocks = (a.D + DOT_BLOCK - 1) / DOT_BLOCK;
    float ss = 0.0f;
    for (size_t first = 0; first < blocks; first += SUMS) {
        size_t some = blocks - first < SUMS ? blocks - first : SUMS;
        for (size_t b = threadIdx.x / 32 * 2; b < some; b += HALVES) { /* the two halves of a warp stay together */
            size_t mine = b + threadIdx.x / 16 % 2, k0 = (first + mine) * DOT_BLOCK,
                   k1 = k0 + DOT_BLOCK < a.D ? k0 + DOT_BLOCK : a.D;
            float sum = dot_block(x, x, k0 < a.D ? k0 : a.D, k0 < a.D ? k1 : a.D);
            if (mine < some && lane_of_sum() == 0)
                sums[mine] = sum;
        }
        __syncthreads();
        for (size_t b = 0; b < some; b++)
            ss = first + b ? ss + sums[b] : sums[b];
        __syncthreads();
    }
    float r = 1.0f / sqrtf(ss / (float)a.D + a.eps);
    for (size_t i = threadIdx.x; i < a.D; i += THREADS_rmsnorm)
        y[i] = x[i] * r * a.w[i];
}

KERNEL(add)
{
    size_t i = (size_t)blockIdx.x * THREADS_add + threadIdx.x;
    if (i < a.n)
        a.y[i] = a.y[i] + a.x[i];
}
