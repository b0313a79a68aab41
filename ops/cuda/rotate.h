/* ops/cuda/rotate.h -- for kernels: RoPE of one pair (ops/rope.h). */
#ifndef VB_CUDA_ROTATE_H
#define VB_CUDA_ROTATE_H

#include "ops/cuda/lanes.h"

/* Rotates pair i of a vector, and multiplies both numbers by `scale` unless it is 1. */
DEVICE void rotate_pair(float *x, size_t i, size_t half, int interleave, const float *cos_sin, float scale)
{
    float c = cos_sin[i], s = cos_sin[half + i];
    float *first = x + (interleave ? 2 * i : i), *second = first + (interleave ? 1 : half), a = *first, b = *second;
    float y0 = a * c - b * s, y1 = a * s + b * c;
    *first = scale == 1.0f ? y0 : y0 * scale;
    *second = scale == 1.0f ? y1 : y1 * scale;
}

#endif
