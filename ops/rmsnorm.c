#include "ops/rmsnorm.h"

#include <math.h>

struct rmsnorm_pass {
    const struct op_ctx *cx;
    float *y;
    const float *x, *w;
    size_t ldy, ldx, D;
    float eps;
};

static void some_rows(void *arg, size_t first, size_t count)
{
    const struct rmsnorm_pass *p = arg;
    const float *x = p->x + first * p->ldx, *w = p->w;
    const size_t D = p->D;
    float *y = p->y + first * p->ldy;
    for (size_t s = 0; s < count; s++, x += p->ldx, y += p->ldy) {
        float r = 1.0f / sqrtf(p->cx->k->dot(x, x, D) / (float)D + p->eps);
        for (size_t d = 0; d < D; d++)
            y[d] = x[d] * r * w[d];
    }
}

void op_rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                size_t D, float eps)
{
    struct rmsnorm_pass p = {cx, y, x, w, ldy, ldx, D, eps};
    op_each_row(cx, S, 4.0 * (double)D, some_rows, &p);
}
