#include "ops/backward/smooth_l1.h"

#include <math.h>

struct distance {
    double *row; /* [S] */
    float *dx;
    const float *x, *target;
    const int32_t *tok;
    float weight;
    size_t D;
};

static void some_rows(void *arg, size_t first, size_t count)
{
    const struct distance *p = arg;
    for (size_t s = first; s < first + count; s++) {
        const float *x = p->x + s * p->D, *target = p->target + s * p->D;
        double sum = 0.0;
        if (p->tok[s] < 0)
            continue;
        for (size_t d = 0; d < p->D; d++) {
            float e = x[d] - target[d], low = e < -1.0f ? -1.0f : e, slope = low > 1.0f ? 1.0f : low;
            double size = fabs((double)e);
            sum = sum + (size < 1.0 ? 0.5 * size * size : size - 0.5);
            if (p->dx)
                p->dx[s * p->D + d] = p->dx[s * p->D + d] + slope * p->weight;
        }
        p->row[s] = sum / (double)p->D;
    }
}

size_t op_smooth_l1_scratch(size_t S) { return op_scratch_bytes(2 * S); }

void op_smooth_l1(struct op_ctx *cx, double *loss, float *dx, const float *x, const float *target, const int32_t *tok,
                  float weight, size_t S, size_t D)
{
    size_t mark = op_mark(cx);
    struct distance p = {(double *)(void *)op_take(cx, 2 * S), dx, x, target, tok, weight, D};
    op_each_row(cx, S, 4.0 * (double)D, some_rows, &p);
    for (size_t s = 0; s < S; s++)
        if (tok[s] >= 0)
            *loss = *loss + p.row[s];
    op_give(cx, mark);
}
