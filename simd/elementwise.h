/* simd/elementwise.h -- loops without a sum: every vector width gives the same bits, so the compiler makes the vectors.
 * Included by each table's file, which is compiled for its instruction set. */
#ifndef VB_ELEMENTWISE_H
#define VB_ELEMENTWISE_H

#include <math.h>
#include <stddef.h>

static void axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
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

#endif
