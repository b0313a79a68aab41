/* engine/train/train_layer.c -- the backward pass of a decoder layer, for all rows of a micro-batch. The forward pass
 * is in engine/pass/layer.c. reference/backward_layers.c has the backward pass in double. */
#include "engine/train/train_internal.h"

#include <string.h>

#include "engine/pass/attend.h"
#include "ops/backward/attention.h"
#include "ops/backward/linear.h"
#include "ops/backward/moe.h"
#include "ops/backward/rmsnorm.h"
#include "ops/backward/rope.h"
#include "ops/backward/router.h"
#include "ops/cache_rows.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"

static void clear(float *x, size_t n) { memset(x, 0, n * sizeof *x); }

static void norm(struct vb_trainer *t, float *y, const float *x, const struct train_part *w, size_t S, float eps)
{
    op_rmsnorm(&t->cx, y, w->w.cols, x, w->w.cols, train_vector(w), S, w->w.cols, eps);
}

void train_back_norm(struct vb_trainer *t, float *dx, const float *dy, size_t ldy, const float *x, size_t ldx,
                     const struct train_part *w, size_t S, double eps)
{
    op_back_rmsnorm(&t->cx, dx, w->g, dy, ldy, x, ldx, train_vector(w), S, w->w.cols, (float)eps);
}

void train_back_linear(struct vb_trainer *t, float *dx, const float *dy, const float *x, const struct train_part *w,
                       size_t S)
{
    op_back_linear_x(&t->cx, dx, dy, &w->w, S);
    if (w->g)
        op_back_linear_w(&t->cx, w->g, dy, x, S, w->w.rows, w->w.cols);
}

/* ---- attention ---- */

struct cached {
    const struct vb_trainer *t;
    const struct row *rows;
    size_t layer;   /* in their cache */
    float *k_rope;  /* [S, r] */
};

static void read_rows(void *arg, size_t first, size_t count)
{
    const struct cached *p = arg;
    size_t c = p->t->c->dims.c, r = p->t->c->dims.r;
    for (size_t s = first; s < first + count; s++) {
        const struct kvcache *cache = p->rows[s].cache;
        float *row = p->t->pass.w.kv_a + s * (c + r);
        kv_row_read(&cache->pool->layout, row, kvcache_row(cache, p->layer, p->rows[s].slot));
        memcpy(p->t->shared.latent + s * c, row, c * sizeof *row);
        memcpy(p->k_rope + s * r, row + c, r * sizeof *row);
    }
}

/* t->shared.latent and e->k_rope from the cache */
static void read_cache(struct vb_trainer *t, const struct train_rows *rows, const struct kept_values *k,
                       struct expanded_rows *e)
{
    struct cached cached = {t, rows->list, k->cache_layer, e->k_rope};
    op_each_row(&t->cx, rows->S, (double)t->c->dims.row, read_rows, &cached);
}

void train_layer_expand(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                        const struct kept_values *k, struct expanded_rows *e)
{
    const struct dims *s = &t->c->dims;
    read_cache(t, rows, k, e);
    op_linear(&t->cx, e->kv, t->shared.latent, &l->kv_b.w, rows->S);
    clear(e->dkv, rows->S * s->H * (s->n + s->v));
    clear(e->dk_rope, rows->S * s->r);
}

/* The rows of e from row `at` on. */
static struct back_chain rows_from(const struct dims *s, const struct expanded_rows *e, size_t at)
{
    size_t kv = s->H * (s->n + s->v);
    return (struct back_chain){e->kv + at * kv, e->k_rope + at * s->r, e->dkv + at * kv, e->dk_rope + at * s->r};
}

/* From dheads to dq, dkv and dk_rope. Aligned depths have other rows of a sequence than depth 0, and so other places:
 * they are computed sequence by sequence. */
static void back_heads(struct vb_trainer *t, const struct train_rows *rows, const struct kept_values *k,
                       const struct expanded_rows *e)
{
    const struct dims *s = &t->c->dims;
    const struct train_shared *x = &t->shared;
    size_t query = s->H * (s->n + s->r), heads = s->H * s->v;
    struct back_attention a = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .scale = t->pass.scale,
                               .q = k->q, .kv = e->kv, .k_rope = e->k_rope, .dy = x->dheads, .dq = x->dq, .dkv = e->dkv,
                               .dk_rope = e->dk_rope};
    struct back_chain chain[VB_MAX_DRAFT];
    if (!rows->tail_slots) {
        op_back_attention(&t->cx, &a, rows->first, t->sequences);
        return;
    }
    a.continued = 1;
    a.depth = rows->depth;
    a.chain = chain;
    for (size_t q = 0; q < t->sequences; q++) {
        size_t at = rows->first[q];
        struct back_chain own = rows_from(s, &t->expanded[0], t->depth[0].rows.first[q]);
        for (size_t m = 1; m <= a.depth; m++)
            chain[m - 1] = rows_from(s, &t->expanded[m], t->depth[m].rows.first[q]);
        a.q = k->q + at * query;
        a.dy = x->dheads + at * heads;
        a.dq = x->dq + at * query;
        a.kv = own.kv;
        a.k_rope = own.k_rope;
        a.dkv = own.dkv;
        a.dk_rope = own.dk_rope;
        op_back_attention(&t->cx, &a, (size_t[]){0, rows->first[q + 1] - at}, 1);
    }
}

struct rotation {
    const struct vb_trainer *t;
    const struct row *rows;
    float *k_rope; /* [S, r] */
};

static void rotate_rows_back(void *arg, size_t first, size_t count)
{
    const struct rotation *p = arg;
    const struct vb_trainer *t = p->t;
    const struct dims *d = &t->c->dims;
    size_t query = d->H * (d->n + d->r);
    for (size_t s = first; s < first + count; s++) {
        const float *cos_sin = t->angles + (size_t)p->rows[s].position * d->r;
        float *q = t->shared.dq + s * query;
        op_scale_query(q, query, query_scale(&t->pass, &p->rows[s]));
        op_back_rope(q + d->n, d->H, d->n + d->r, cos_sin, &t->pass.rope);
        op_back_rope(p->k_rope + s * d->r, 1, d->r, cos_sin, &t->pass.rope);
    }
}

/* Adds to dx the gradient of attention's input x; dy is that of its output. */
static void back_attention(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                           const struct kept_values *k, float *dx, const float *dy, const float *x)
{
    const struct dims *s = &t->c->dims;
    struct train_shared *y = &t->shared;
    size_t S = rows->S, row = s->c + s->r;
    struct expanded_rows *e = rows->tail_slots ? &t->expanded[rows->depth] : &y->expanded;
    struct rotation rotation = {t, rows->list, e->dk_rope};
    clear(y->dheads, S * s->H * s->v);
    train_back_linear(t, y->dheads, dy, k->heads, &l->o, S);
    read_cache(t, rows, k, e);
    if (!rows->tail_slots) /* else train_layer_expand has computed it */
        op_linear(&t->cx, e->kv, y->latent, &l->kv_b.w, S);
    back_heads(t, rows, k, e);

    clear(y->dlatent, S * s->c);
    train_back_linear(t, y->dlatent, e->dkv, y->latent, &l->kv_b, S);
    op_each_row(&t->cx, S, 2.0 * (double)(s->H * (s->n + s->r)), rotate_rows_back, &rotation);
    clear(y->dkv_a, S * row);
    train_back_norm(t, y->dkv_a, y->dlatent, s->c, k->kv_a, row, &l->kv_a_norm, S, t->c->latent_eps);
    for (size_t i = 0; i < S; i++)
        memcpy(y->dkv_a + i * row + s->c, e->dk_rope + i * s->r, s->r * sizeof *dx);
    train_back_linear(t, dx, y->dkv_a, x, &l->kv_a, S);
    if (!s->q) {
        train_back_linear(t, dx, y->dq, x, &l->q, S);
        return;
    }
    norm(t, t->pass.w.q_a, k->q_a, &l->q_a_norm, S, (float)t->c->latent_eps);
    clear(y->dq_n, S * s->q);
    train_back_linear(t, y->dq_n, y->dq, t->pass.w.q_a, &l->q_b, S);
    clear(y->dq_a, S * s->q);
    train_back_norm(t, y->dq_a, y->dq_n, s->q, k->q_a, s->q, &l->q_a_norm, S, t->c->latent_eps);
    train_back_linear(t, dx, y->dq_a, x, &l->q_a, S);
}

/* ---- feed-forward ---- */

static struct mlp_weights weights_of_mlp(const struct train_mlp *w)
{
    return (struct mlp_weights){.gate = &w->gate.w, .up = &w->up.w, .down = &w->down.w};
}
static struct mlp_weights weights_of_expert(const void *layer, size_t e)
{
    return weights_of_mlp(&((const struct train_layer *)layer)->experts[e]);
}
static const struct mlp_gradients *gradients_of_expert(const void *layer, size_t e)
{
    return &((const struct train_layer *)layer)->experts[e].g;
}

struct train_activation {
    const struct op_ctx *cx;
    float *y;
    const float *gate, *up;
    size_t i;
};

static void activate_rows(void *arg, size_t first, size_t count)
{
    const struct train_activation *p = arg;
    p->cx->k->silu_mul(p->y + first * p->i, p->gate + first * p->i, p->up + first * p->i, count * p->i);
}

void train_mlp_forward(struct vb_trainer *t, float *out, float *gate, float *up, float *product, const float *x,
                       const struct train_mlp *w, size_t S)
{
    struct train_activation activation = {&t->cx, product, gate, up, w->gate.w.rows};
    op_linears(&t->cx, (struct linear[]){{gate, &w->gate.w, 0}, {up, &w->up.w, 0}}, 2, x, S);
    op_each_row(&t->cx, S, 20.0 * (double)activation.i, activate_rows, &activation);
    op_linear(&t->cx, out, product, &w->down.w, S);
}

static void back_experts(struct vb_trainer *t, const struct train_layer *l, const struct kept_values *k, float *dx,
                         const float *dy, const float *x, size_t S)
{
    struct router router = model_router(t->c, &(struct moe){.e_score_correction_bias = l->bias});
    struct moe_weights experts = {t->c->dims.E, t->c->dims.chosen, t->c->dims.expert, weights_of_expert, l, NULL};
    struct mlp_weights shared = weights_of_mlp(&l->shared);
    int32_t *chosen = t->pass.w.experts;
    float *weights = t->pass.w.weights;
    op_router(&t->cx, chosen, weights, k->scores, &router, S); /* as in the forward pass */
    for (size_t i = 0; i < S * router.chosen; i++)
        l->load[chosen[i]]++;
    if (t->c->n_shared_experts)
        op_back_mlp(&t->cx, dx, &l->shared.g, NULL, dy, x, k->gate, k->up, NULL, &shared, S);
    op_back_moe(&t->cx, dx, &(struct moe_gradients){gradients_of_expert, l}, t->shared.dweights, dy, x, chosen,
                weights, &experts, S);
    op_back_router(&t->cx, t->shared.dscores, t->shared.dweights, k->scores, chosen, &router, S);
    train_back_linear(t, dx, t->shared.dscores, x, &l->router, S);
}

/* ---- the layer ---- */

void train_layer_back(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                      const struct kept_values *k, float *dx)
{
    size_t S = rows->S, d = t->c->dims.d;
    float eps = (float)t->c->rms_norm_eps, *normed = t->pass.w.normed, *dnormed = t->shared.dnormed;
    struct mlp_weights mlp = weights_of_mlp(&l->mlp);
    norm(t, normed, k->middle, &l->post_norm, S, eps);
    clear(dnormed, S * d);
    if (l->is_moe)
        back_experts(t, l, k, dnormed, dx, normed, S);
    else
        op_back_mlp(&t->cx, dnormed, &l->mlp.g, NULL, dx, normed, k->gate, k->up, NULL, &mlp, S);
    train_back_norm(t, dx, dnormed, d, k->middle, d, &l->post_norm, S, t->c->rms_norm_eps);

    norm(t, normed, k->x, &l->input_norm, S, eps);
    clear(dnormed, S * d);
    back_attention(t, l, rows, k, dnormed, dx, normed);
    train_back_norm(t, dx, dnormed, d, k->x, d, &l->input_norm, S, t->c->rms_norm_eps);
}
