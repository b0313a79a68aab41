#include "mlp.h"

#include <stdio.h>

#include "linear.h"
#include "mistake.h"

/* A group of rows that go through the same three matrices: all rows of a dense layer, or the rows of one expert. */
struct bundle {
    struct mlp_weights w;
    size_t first, count; /* rows of x, h and y */
};

struct pass {
    const struct op_ctx *cx;
    const struct bundle *bundles;
    size_t tasks_per_bundle, d, intermediate;
    const float *x_packed; /* [rows, packed(d)] */
    float *h, *u;          /* [rows, i] */
    float *h_packed;       /* [rows, packed(i)] */
    float *y;              /* [rows, d] */
};

/* h = silu(gate x) * (up x), for a range of the intermediate rows of one bundle */
static void gate_and_up(void *arg, size_t task, int thread)
{
    struct pass *p = arg;
    const struct bundle *b = &p->bundles[task / p->tasks_per_bundle];
    size_t n0, n1, ld = p->intermediate, ldx = packed_length(p->d);
    const float *x = p->x_packed + b->first * ldx;
    float *h = p->h + b->first * ld, *u = p->u + b->first * ld;
    (void)thread;
    op_row_range(p->cx, ld, task % p->tasks_per_bundle, &n0, &n1);
    p->cx->k->matmul[b->w.gate->type](h, ld, b->w.gate, n0, n1, x, ldx, b->count);
    p->cx->k->matmul[b->w.up->type](u, ld, b->w.up, n0, n1, x, ldx, b->count);
    for (size_t s = 0; s < b->count; s++)
        p->cx->k->silu_mul(h + s * ld + n0, h + s * ld + n0, u + s * ld + n0, n1 - n0);
}

static void down(void *arg, size_t task, int thread)
{
    struct pass *p = arg;
    const struct bundle *b = &p->bundles[task / p->tasks_per_bundle];
    size_t n0, n1, ldx = packed_length(p->intermediate);
    (void)thread;
    op_row_range(p->cx, p->d, task % p->tasks_per_bundle, &n0, &n1);
    p->cx->k->matmul[b->w.down->type](p->y + b->first * p->d, p->d, b->w.down, n0, n1, p->h_packed + b->first * ldx,
                                      ldx, b->count);
}

static size_t bundles_scratch(size_t rows, size_t d, size_t intermediate)
{
    return op_scratch_bytes(rows * packed_length(d)) + 2 * op_scratch_bytes(rows * intermediate) +
           op_scratch_bytes(rows * packed_length(intermediate));
}

/* All bundles, in two parallel regions. x_packed is the caller's; y [rows, d]. */
static void run_bundles(struct op_ctx *cx, float *y, const float *x_packed, const struct bundle *bundles, size_t count,
                        size_t rows, size_t d, size_t intermediate)
{
    size_t mark = op_mark(cx);
    struct pass p = {cx, bundles, 0, d, intermediate, x_packed, NULL, NULL, NULL, y};
    double cost = (double)rows * (double)d * (double)intermediate;
    p.h = op_take(cx, rows * intermediate);
    p.u = op_take(cx, rows * intermediate);
    p.h_packed = op_take(cx, rows * packed_length(intermediate));
    p.tasks_per_bundle = op_row_tasks(cx, intermediate);
    op_parallel(cx, count * p.tasks_per_bundle, 2.0 * cost, gate_and_up, &p);
    op_pack(cx, p.h_packed, p.h, intermediate, rows, intermediate);
    p.tasks_per_bundle = op_row_tasks(cx, d);
    op_parallel(cx, count * p.tasks_per_bundle, cost, down, &p);
    op_give(cx, mark);
}

size_t op_mlp_scratch(size_t S, size_t d, size_t intermediate) { return bundles_scratch(S, d, intermediate); }

void op_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S)
{
    size_t mark = op_mark(cx), d = w->down->rows;
    struct bundle all = {*w, 0, S};
    float *x_packed = op_take(cx, S * packed_length(d));
    op_pack(cx, x_packed, x, d, S, d);
    run_bundles(cx, y, x_packed, &all, 1, S, d, w->gate->rows);
    op_give(cx, mark);
}

size_t op_moe_scratch(size_t S, size_t d, size_t intermediate, size_t shared_intermediate, size_t experts, size_t chosen)
{
    size_t shared = op_mlp_scratch(S, d, shared_intermediate), routed = bundles_scratch(S * chosen, d, intermediate);
    return op_scratch_bytes(S * d) + op_scratch_bytes(S * chosen * d) + op_scratch_bytes(S * chosen) +
           op_scratch_bytes(experts * sizeof(struct bundle) / sizeof(float) + experts) +
           (shared > routed ? shared : routed);
}

/* The (token, expert) pairs sorted by expert, then token: place[s*chosen + i] is where pair i of token s stands.
 * Returns how many experts have rows; their bundles are filled in. */
static size_t group_by_expert(struct bundle *bundles, int32_t *place, const int32_t *expert, const struct moe_weights *w,
                              size_t S)
{
    size_t count = 0, first = 0;
    for (size_t e = 0; e < w->experts; e++) {
        size_t n = 0;
        for (size_t i = 0; i < S * w->chosen; i++)
            if ((size_t)expert[i] == e)
                place[i] = (int32_t)(first + n++);
        if (n)
            bundles[count++] = (struct bundle){w->weights_of(w->arg, e), first, n};
        first += n;
    }
    return count;
}

static void show(struct op_probe *p, const struct moe_weights *w, size_t pair, int32_t expert, const float *out, size_t d)
{
    char name[32];
    snprintf(name, sizeof name, "experts.%d.output", (int)expert);
    p->see(p, name, pair / w->chosen, 1, out, 0, d);
}

void op_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
            const struct moe_weights *w, size_t S)
{
    size_t mark = op_mark(cx), pairs = S * w->chosen;
    struct bundle *bundles = (struct bundle *)(void *)op_take(cx, w->experts * sizeof(struct bundle) / sizeof(float) + w->experts);
    int32_t *place = (int32_t *)(void *)op_take(cx, pairs);
    size_t count = group_by_expert(bundles, place, expert, w, S), d = bundles[0].w.down->rows;
    float *shared = op_take(cx, S * d), *out = op_take(cx, pairs * d);

    if (w->shared)
        op_mlp(cx, shared, x, w->shared, S);
    size_t inner = op_mark(cx);
    float *x_packed = op_take(cx, pairs * packed_length(d));
    for (size_t i = 0; i < pairs; i++)
        cx->k->pack(x_packed + (size_t)place[i] * packed_length(d), x + i / w->chosen * d, d);
    run_bundles(cx, out, x_packed, bundles, count, pairs, d, w->intermediate);
    op_give(cx, inner);
    for (size_t i = 0; cx->probe && i < pairs; i++) /* one expert's output of one row at a time */
        show(cx->probe, w, i, expert[i], out + (size_t)place[i] * d, d);
    if (cx->probe && w->shared)
        cx->probe->see(cx->probe, "shared_experts.output", 0, S, shared, 0, d);
    for (size_t s = 0; s < S; s++, y += d) {
        int early = MISTAKE(one_row_in_another_order) && S == 1 && w->shared;
        for (size_t j = 0; j < d; j++)
            y[j] = early ? shared[s * d + j] : 0.0f;
        for (size_t i = s * w->chosen; i < (s + 1) * w->chosen; i++) {
            const float *y_e = out + (size_t)place[i] * d;
            for (size_t j = 0; j < d; j++)
                y[j] = __builtin_fmaf(weight[i], y_e[j], y[j]);
        }
        for (size_t j = 0; w->shared && !early && j < d; j++)
            y[j] = y[j] + shared[s * d + j];
    }
    op_give(cx, mark);
}
