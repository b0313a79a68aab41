#include "ops/backward/rmsnorm.h"

#include <math.h>

#define TASK_ROWS 16

struct norm_back {
    const struct op_ctx *cx;
    float *dx, *dw, *r, *g; /* r [S], g [threads, D] */
    const float *dy, *x, *w;
    size_t ldy, ldx, S, D, pitch; /* pitch: floats from one thread's g to the next */
    float eps;
};

static void rows_of_dx(void *arg, size_t task, int thread)
{
    const struct norm_back *p = arg;
    size_t D = p->D, end = (task + 1) * TASK_ROWS < p->S ? (task + 1) * TASK_ROWS : p->S;
    float *g = p->g + (size_t)thread * p->pitch;
    for (size_t s = task * TASK_ROWS; s < end; s++) {
        const float *x = p->x + s * p->ldx, *dy = p->dy + s * p->ldy;
        float *dx = p->dx + s * p->ldx;
        float r = 1.0f / sqrtf(p->cx->k->dot(x, x, D) / (float)D + p->eps);
        for (size_t d = 0; d < D; d++)
            g[d] = dy[d] * p->w[d];
        float t = p->cx->k->dot(g, x, D) * r / (float)D;
        for (size_t d = 0; d < D; d++)
            dx[d] = fmaf(r, g[d] - x[d] * r * t, dx[d]);
        p->r[s] = r;
    }
}

static void columns_of_dw(void *arg, size_t task, int thread)
{
    const struct norm_back *p = arg;
    size_t d0, d1;
    (void)thread;
    op_row_range(p->cx, p->D, 0, task, &d0, &d1);
    for (size_t s = 0; s < p->S; s++)
        for (size_t d = d0; d < d1; d++)
            p->dw[d] = fmaf(p->dy[s * p->ldy + d], p->x[s * p->ldx + d] * p->r[s], p->dw[d]);
}

static size_t pitch_of(size_t D) { return (D + 15) / 16 * 16; }

size_t op_back_rmsnorm_scratch(size_t S, size_t D, int threads)
{
    return op_scratch_bytes(S) + op_scratch_bytes((size_t)threads * pitch_of(D));
}

void op_back_rmsnorm(struct op_ctx *cx, float *dx, float *dw, const float *dy, size_t ldy, const float *x, size_t ldx,
                     const float *w, size_t S, size_t D, float eps)
{
    size_t mark = op_mark(cx), pitch = pitch_of(D);
    struct norm_back p = {cx, dx, dw, op_take(cx, S), op_take(cx, (size_t)cx->threads * pitch), dy, x, w, ldy, ldx, S,
                          D, pitch, eps};
    double cost = 4.0 * (double)S * (double)D;
    op_parallel(cx, (S + TASK_ROWS - 1) / TASK_ROWS, cost, rows_of_dx, &p);
    if (dw)
        op_parallel(cx, op_row_tasks(cx, D, 0), cost, columns_of_dw, &p);
    op_give(cx, mark);
}
