/* simd/elementwise.h -- kernels that compute each number by itself, in plain C.
 *
 * No kernel in this file adds up the numbers of a vector in floating point. So the compiler may vectorise the kernels
 * with any width, and the results have the same bits. The file of each instruction set includes this header and is
 * compiled for that instruction set. */
#ifndef VB_ELEMENTWISE_H
#define VB_ELEMENTWISE_H

#include "simd/decode.h"

#include <math.h>
#include <stddef.h>

static void axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static size_t count_from(const uint32_t *x, size_t n, uint32_t least)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += x[i] >= least;
    return count;
}

static void scale(float *y, float a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * a;
}

static void divide(float *y, float a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] / a;
}

/* Kernel `quantize` of the tables that have no vector code for it. Adding 1.5 * 2^23 to a number of at most 127 rounds
 * it to an integer, which the sum then holds in its low mantissa bits. */
static inline void quantize_groups(struct quantized_group *y, const float *packed, size_t K)
{
    for (size_t k = 0; k < K; k += 32, packed += 32, y++) {
        uint32_t bits[32], most = 0;
        int32_t q[32];
        memcpy(bits, packed, sizeof bits);
        for (int l = 0; l < 32; l++) {
            uint32_t magnitude = bits[l] & 0x7fffffff;
            most = magnitude > most ? magnitude : most;
        }
        memset(y, 0, sizeof *y);
        if (most >= 0x7f800000)
            y->d = NAN;
        if (most >= 0x7f800000 || most < (127u - 100) << 23)
            continue;
        float m = bits_to_f32(most), inverse = 127.0f / m;
        y->d = m / 127.0f;
        for (int l = 0; l < 32; l++) {
            float high = packed[l] * inverse + 0x1.8p23f;
            memcpy(&q[l], &high, sizeof high);
            q[l] -= 0x4b400000;
        }
        for (int l = 0; l < 16; l++) { /* the upper byte of pair l is the odd element 2l + 1 */
            uint16_t pair = (uint16_t)((q[l] & 255) << 8 | (q[l + 16] & 255));
            memcpy(y->q + 2 * l, &pair, sizeof pair);
        }
        quantized_group_sums(y);
    }
}

#endif
