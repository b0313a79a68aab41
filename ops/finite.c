#include "ops/finite.h"

/* A sum of x could overflow although all x are finite. Therefore the terms of the sum are x * 0. */
static int is_finite(const float *x, size_t n)
{
    float zero[16] = {0}, all = 0.0f; /* 16 independent sums; in a single sum, each addition would wait for the one
                                         before */
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t l = 0; l < 16; l++)
            zero[l] += x[i + l] * 0.0f;
    for (; i < n; i++)
        all += x[i] * 0.0f;
    for (size_t l = 0; l < 16; l++)
        all += zero[l];
    return all == 0.0f; /* 0 * inf and 0 * NaN are NaN, which differs from 0 */
}

void op_first_not_finite(const struct op_ctx *cx, int32_t *first, const float *x, int32_t layer, size_t S, size_t D)
{
    (void)cx;
    for (size_t s = 0; s < S; s++)
        if (first[s] < 0 && !is_finite(x + s * D, D))
            first[s] = layer;
}
