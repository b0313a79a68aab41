#include "rmsnorm.h"

#include <math.h>

void op_rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                size_t D, float eps)
{
    for (size_t s = 0; s < S; s++, x += ldx, y += ldy) {
        float r = 1.0f / sqrtf(cx->k->dot(x, x, D) / (float)D + eps);
        for (size_t d = 0; d < D; d++)
            y[d] = x[d] * r * w[d];
    }
}
