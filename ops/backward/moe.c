#include "ops/backward/moe.h"

#include <string.h>

#include "ops/linear.h"

/* The rows of one expert, one after another. */
struct expert_rows {
    size_t count, *place;            /* place [count]: s * chosen + j */
    float *x, *dx, *dy, *gate, *up;  /* [count, d] or [count, i] */
    float *weight, *dweight;         /* [count] */
};

size_t op_back_moe_scratch(size_t S, size_t d, size_t intermediate)
{
    size_t linear = op_linear_scratch(S, d), back = op_back_mlp_scratch(S, intermediate);
    return op_scratch_bytes(S * sizeof(size_t) / sizeof(float)) + 3 * op_scratch_bytes(S * d) +
           2 * op_scratch_bytes(S * intermediate) + 2 * op_scratch_bytes(S) + (linear > back ? linear : back);
}

/* Copies the rows of x and dy that chose expert e. */
static void gather(struct expert_rows *r, size_t e, const float *dy, const float *x, const int32_t *expert,
                   const float *weight, size_t chosen, size_t S, size_t d)
{
    r->count = 0;
    for (size_t i = 0; i < S * chosen; i++)
        if (expert[i] == (int32_t)e) {
            memcpy(r->x + r->count * d, x + i / chosen * d, d * sizeof *x);
            memcpy(r->dy + r->count * d, dy + i / chosen * d, d * sizeof *dy);
            r->weight[r->count] = weight[i];
            r->place[r->count++] = i;
        }
}

void op_back_moe(struct op_ctx *cx, float *dx, const struct moe_gradients *gradients, float *dweight, const float *dy,
                 const float *x, const int32_t *expert, const float *weight, const struct moe_weights *w, size_t S)
{
    size_t mark = op_mark(cx), d = w->weights_of(w->arg, 0).down->rows, I = w->intermediate;
    struct expert_rows r = {.place = (size_t *)(void *)op_take(cx, S * sizeof(size_t) / sizeof(float))};
    r.x = op_take(cx, S * d);
    r.dx = op_take(cx, S * d);
    r.dy = op_take(cx, S * d);
    r.gate = op_take(cx, S * I);
    r.up = op_take(cx, S * I);
    r.weight = op_take(cx, S);
    r.dweight = op_take(cx, S);
    for (size_t e = 0; e < w->experts; e++) {
        struct mlp_weights m = w->weights_of(w->arg, e);
        gather(&r, e, dy, x, expert, weight, w->chosen, S, d);
        if (!r.count)
            continue;
        op_linears(cx, (struct linear[]){{r.gate, m.gate, 0}, {r.up, m.up, 0}}, 2, r.x, r.count);
        memset(r.dx, 0, r.count * d * sizeof *r.dx);
        op_back_mlp(cx, r.dx, gradients->of(gradients->arg, e), r.dweight, r.dy, r.x, r.gate, r.up, r.weight, &m,
                    r.count);
        for (size_t i = 0; i < r.count; i++) { /* axpy with factor 1 rounds once, like a plain sum */
            cx->k->axpy(dx + r.place[i] / w->chosen * d, 1.0f, r.dx + i * d, d);
            dweight[r.place[i]] = r.dweight[i];
        }
    }
    op_give(cx, mark);
}
