#include "ops/backward/mlp.h"

#include <string.h>

#include "ops/backward/linear.h"

#define CHUNK 256

struct swiglu_back {
    const struct op_ctx *cx;
    float *dg, *du;
    const float *da, *g, *u;
    size_t I;
};

static void some_rows(void *arg, size_t first, size_t count)
{
    const struct swiglu_back *p = arg;
    float e[CHUNK];
    for (size_t i = first * p->I, end = (first + count) * p->I, n; i < end; i += n) {
        const float *da = p->da + i, *g = p->g + i, *u = p->u + i;
        float *dg = p->dg + i, *du = p->du + i;
        n = end - i < CHUNK ? end - i : CHUNK;
        for (size_t l = 0; l < n; l++)
            e[l] = -g[l];
        p->cx->k->exp(e, e, n);
        for (size_t l = 0; l < n; l++) {
            float den = 1.0f + e[l], sigma = 1.0f / den, silu = g[l] / den, gate = g[l], up = u[l];
            du[l] = da[l] * silu;
            dg[l] = da[l] * up * sigma * (1.0f + gate * (1.0f - sigma));
        }
    }
}

void op_back_swiglu(const struct op_ctx *cx, float *dg, float *du, const float *da, const float *g, const float *u,
                    size_t S, size_t I)
{
    struct swiglu_back p = {cx, dg, du, da, g, u, I};
    op_each_row(cx, S, 20.0 * (double)I, some_rows, &p);
}

/* dc, and the products with c */
struct weighting {
    const struct op_ctx *cx;
    float *dweight, *h, *a;
    const float *weight;
    size_t I;
};

static void weigh_rows(void *arg, size_t first, size_t count)
{
    const struct weighting *p = arg;
    for (size_t s = first; s < first + count; s++) {
        float *h = p->h + s * p->I, *a = p->a + s * p->I;
        p->dweight[s] = p->cx->k->dot(h, a, p->I);
        p->cx->k->scale(h, p->weight[s], p->I);
        p->cx->k->scale(a, p->weight[s], p->I);
    }
}

struct activation {
    const struct op_ctx *cx;
    float *a;
    const float *gate, *up;
    size_t I;
};

static void activate_rows(void *arg, size_t first, size_t count)
{
    const struct activation *p = arg;
    p->cx->k->silu_mul(p->a + first * p->I, p->gate + first * p->I, p->up + first * p->I, count * p->I);
}

size_t op_back_mlp_scratch(size_t S, size_t intermediate) { return 2 * op_scratch_bytes(S * intermediate); }

void op_back_mlp(struct op_ctx *cx, float *dx, const struct mlp_gradients *d, float *dweight, const float *dy,
                 const float *x, float *gate, float *up, const float *weight, const struct mlp_weights *w, size_t S)
{
    size_t mark = op_mark(cx), D = w->down->rows, I = w->down->cols;
    float *h = op_take(cx, S * I), *a = op_take(cx, S * I);
    struct activation activation = {cx, a, gate, up, I};
    struct weighting weighting = {cx, dweight, h, a, weight, I};
    memset(h, 0, S * I * sizeof *h);
    op_back_linear_x(cx, h, dy, w->down, S);
    op_each_row(cx, S, 20.0 * (double)I, activate_rows, &activation);
    if (weight)
        op_each_row(cx, S, 3.0 * (double)I, weigh_rows, &weighting);
    if (d)
        op_back_linear_w(cx, d->down, dy, a, S, D, I);
    op_back_swiglu(cx, gate, up, h, gate, up, S, I);
    if (d) {
        op_back_linear_w(cx, d->gate, gate, x, S, I, D);
        op_back_linear_w(cx, d->up, up, x, S, I, D);
    }
    op_back_linear_x(cx, dx, gate, w->gate, S);
    op_back_linear_x(cx, dx, up, w->up, S);
    op_give(cx, mark);
}
