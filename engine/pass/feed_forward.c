#include "engine/pass/feed_forward.h"

#include "engine/pass/step.h"
#include "ops/operators.h"

#include <string.h>

struct mlp_weights mlp_weights_of(const struct mlp *m)
{
    return (struct mlp_weights){.gate = &m->gate_proj, .up = &m->up_proj, .down = &m->down_proj};
}

/* The MLP that every row goes through, and where its gate and up are kept. */
static struct mlp_weights mlp_of_all(const struct pass *p, const struct mlp *m)
{
    struct mlp_weights w = mlp_weights_of(m);
    w.kept_gate = step_kept(p, MLP_GATE);
    w.kept_up = step_kept(p, MLP_UP);
    return w;
}

void dense_mlp(struct pass *p)
{
    struct mlp_weights dense = mlp_of_all(p, &p->l->mlp);
    if (!step_begins(p, MLP_OUTPUT))
        return;
    p->cx.op->mlp(&p->cx, p->w.delta, p->w.normed, &dense, p->S);
    step_ends(p, MLP_OUTPUT);
}

/* ---- experts ---- */

void router_logits(struct pass *p)
{
    size_t n = p->S * p->model->config.dims.d;
    const struct weight_view *gate = &p->l->moe.gate;
    float *y = p->w.scores, *rounded = p->w.delta; /* `delta` is free until the experts write it */
    if (!step_begins(p, ROUTER_LOGITS))
        return;
    if (p->model->config.conventions.value[GATE]) {
        p->cx.op->round(&p->cx, rounded, p->w.normed, n);
        p->cx.op->linear_exact(&p->cx, y, rounded, gate, p->S);
        p->cx.op->round(&p->cx, y, y, p->S * p->model->config.dims.E);
    } else {
        p->cx.op->linear_exact(&p->cx, y, p->w.normed, gate, p->S);
    }
    step_ends(p, ROUTER_LOGITS);
}

const int32_t *const *forced_numbers(struct pass *p, size_t at, size_t S)
{
    int any = 0;
    for (size_t s = 0; s < S; s++) {
        const int32_t *of_row = p->w.forced[s];
        p->w.forced[s] = of_row && of_row[at] >= 0 ? of_row + at : NULL;
        any |= p->w.forced[s] != NULL;
    }
    return any ? p->w.forced : NULL;
}

static const int32_t *const *forced_experts(struct pass *p)
{
    for (size_t s = 0; s < p->S; s++)
        p->w.forced[s] = p->rows[s].forced;
    return forced_numbers(p, p->cache_layer * p->model->config.dims.chosen, p->S);
}

static void keep_taken_experts(const struct pass *p)
{
    size_t chosen = p->model->config.dims.chosen;
    for (size_t s = 0; s < p->S; s++)
        if (p->rows[s].taken)
            memcpy(p->rows[s].taken + p->cache_layer * chosen, p->w.experts + s * chosen,
                   chosen * sizeof *p->w.experts);
}

void route(struct pass *p)
{
    struct router router = model_router(&p->model->config, &p->l->moe);
    if (p->only != NO_VALUE)
        return;
    router.forced = forced_experts(p);
    p->cx.op->router(&p->cx, p->w.experts, p->w.weights, p->w.scores, &router, p->S);
    keep_taken_experts(p);
    pass_watch(p, EXPERTS_CHOSEN);
}

static struct mlp_weights expert_weights(const void *moe, size_t e)
{
    return mlp_weights_of(&((const struct moe *)moe)->experts[e]);
}

void routed_experts(struct pass *p)
{
    const struct config *c = &p->model->config;
    struct mlp_weights shared = mlp_of_all(p, &p->l->moe.shared_experts);
    struct moe_weights weights = {c->dims.E, c->dims.chosen, c->dims.expert, expert_weights, &p->l->moe,
                                  c->n_shared_experts ? &shared : NULL};
    if (!step_is_computed(p, MLP_OUTPUT))
        return;
    op_enter(&p->cx, PART_EXPERTS); /* the part in the table is that of a dense layer */
    p->cx.op->moe(&p->cx, p->w.delta, p->w.normed, p->w.experts, p->w.weights, &weights, p->S);
    step_ends(p, MLP_OUTPUT);
}
