/* engine/train/train_layer.c -- a decoder layer, forward and backward, for all rows of a micro-batch.
 * reference/backward_layers.c has the same in double. */
#include "engine/train/train_internal.h"

#include <string.h>

#include "ops/add.h"
#include "ops/backward/attention.h"
#include "ops/backward/linear.h"
#include "ops/backward/moe.h"
#include "ops/backward/rmsnorm.h"
#include "ops/backward/rope.h"
#include "ops/backward/router.h"
#include "ops/cache_rows.h"
#include "ops/expanded.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"
#include "ops/weights.h"

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

struct rotation {
    const struct vb_trainer *t;
    const struct train_rows *rows;
    float *q, *k; /* [S, H(n+r)]; forward: [S, c+r], backward: [S, r] */
    struct cache_rows cache;
};

static struct kv_layout layout_of(const struct dims *s)
{
    return (struct kv_layout){.type = KV_F32, .latent = s->c, .rope = s->r};
}

static void rotate_rows(void *arg, size_t first, size_t count)
{
    const struct rotation *p = arg;
    size_t r = p->cache.layout.rope;
    op_cache_rows(&p->t->cx, p->q + first * p->cache.ldq, p->k + first * (p->cache.layout.latent + r),
                  p->rows->cos_sin + first * r, p->rows->places + first, &p->cache, count);
}

static void rotate_rows_back(void *arg, size_t first, size_t count)
{
    const struct rotation *p = arg;
    const struct dims *d = &p->t->c->dims;
    for (size_t s = first; s < first + count; s++) {
        float *q = p->q + s * p->cache.ldq;
        op_scale_query(q, p->cache.ldq, p->rows->places[s].query_scale);
        op_back_rope(q + d->n, d->H, d->n + d->r, p->rows->cos_sin + s * d->r, &p->t->rope);
        op_back_rope(p->k + s * d->r, 1, d->r, p->rows->cos_sin + s * d->r, &p->t->rope);
    }
}

static struct rotation rotation_of(const struct vb_trainer *t, const struct train_rows *rows, float *q, float *k)
{
    const struct dims *s = &t->c->dims;
    return (struct rotation){t, rows, q, k,
                             {.heads = s->H, .ldq = s->H * (s->n + s->r), .nope = s->n, .rope = &t->rope,
                              .layout = layout_of(s)}};
}

/* The latents of all rows are written to the cache first, in the order of the rows, since each row attends to earlier
 * ones. */
static void attention(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                      struct kept_values *k, float *out, const float *x)
{
    const struct dims *s = &t->c->dims;
    size_t S = rows->S;
    struct linear first[] = {{s->q ? k->q_a : k->q, s->q ? &l->q_a.w : &l->q.w, 0}, {k->kv_a, &l->kv_a.w, 0}};
    struct rotation rotation = rotation_of(t, rows, k->q, k->kv_n);
    struct attention a = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .latent = s->c, .w_uk = l->kv_b.w,
                          .w_uv = weight_rows(&l->kv_b.w, s->n, l->kv_b.w.rows - s->n), .uk_stride = s->n + s->v,
                          .uv_stride = s->n + s->v, .scale = t->scale, .cache = KV_F32,
                          .tail = rows->tail_slots ? rows->depth : 0, .tail_slots = rows->tail_slots};
    op_linears(&t->cx, first, 2, x, S);
    if (s->q) {
        norm(t, t->shared.q_n, k->q_a, &l->q_a_norm, S, (float)t->c->latent_eps);
        op_linear(&t->cx, k->q, t->shared.q_n, &l->q_b.w, S);
    }
    memcpy(k->kv_n, k->kv_a, S * (s->c + s->r) * sizeof *k->kv_n);
    op_rmsnorm(&t->cx, k->kv_n, s->c + s->r, k->kv_n, s->c + s->r, train_vector(&l->kv_a_norm), S, s->c,
               (float)t->c->latent_eps);
    op_each_row(&t->cx, S, 2.0 * (double)rotation.cache.ldq, rotate_rows, &rotation);
    op_expanded(&t->cx, k->heads, k->q, rows->seen, &a, S, t->longest + a.tail);
    op_linear(&t->cx, out, k->heads, &l->o.w, S);
}

struct splitting {
    const struct dims *s;
    float *latent, *k_rope; /* [S, c], [S, r] */
    const float *kv;        /* [S, c+r] */
};

static void split_rows(void *arg, size_t first, size_t count)
{
    const struct splitting *p = arg;
    size_t c = p->s->c, r = p->s->r;
    for (size_t s = first; s < first + count; s++) {
        memcpy(p->latent + s * c, p->kv + s * (c + r), c * sizeof *p->kv);
        memcpy(p->k_rope + s * r, p->kv + s * (c + r) + c, r * sizeof *p->kv);
    }
}

/* From kv_n to t->shared.latent and e->k_rope */
static void split(struct vb_trainer *t, const struct kept_values *k, struct expanded_rows *e, size_t S)
{
    struct splitting splitting = {&t->c->dims, t->shared.latent, e->k_rope, k->kv_n};
    op_each_row(&t->cx, S, (double)(t->c->dims.c + t->c->dims.r), split_rows, &splitting);
}

void train_layer_expand(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                        const struct kept_values *k, struct expanded_rows *e)
{
    const struct dims *s = &t->c->dims;
    split(t, k, e, rows->S);
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
    struct back_attention a = {.heads = s->H, .nope = s->n, .rope = s->r, .value = s->v, .scale = t->scale, .q = k->q,
                               .kv = e->kv, .k_rope = e->k_rope, .dy = x->dheads, .dq = x->dq, .dkv = e->dkv,
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

/* Adds to dx the gradient of attention's input x; dy is that of its output. */
static void back_attention(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                           const struct kept_values *k, float *dx, const float *dy, const float *x)
{
    const struct dims *s = &t->c->dims;
    struct train_shared *y = &t->shared;
    size_t S = rows->S, row = s->c + s->r;
    struct expanded_rows *e = rows->tail_slots ? &t->expanded[rows->depth] : &y->expanded;
    struct rotation rotation = rotation_of(t, rows, y->dq, e->dk_rope);
    clear(y->dheads, S * s->H * s->v);
    train_back_linear(t, y->dheads, dy, k->heads, &l->o, S);
    split(t, k, e, S);
    if (!rows->tail_slots) /* else train_layer_expand has computed it */
        op_linear(&t->cx, e->kv, y->latent, &l->kv_b.w, S);
    back_heads(t, rows, k, e);

    clear(y->dlatent, S * s->c);
    train_back_linear(t, y->dlatent, e->dkv, y->latent, &l->kv_b, S);
    op_each_row(&t->cx, S, 2.0 * (double)rotation.cache.ldq, rotate_rows_back, &rotation);
    clear(y->dkv_a, S * row);
    train_back_norm(t, y->dkv_a, y->dlatent, s->c, k->kv_a, row, &l->kv_a_norm, S, t->c->latent_eps);
    for (size_t i = 0; i < S; i++)
        memcpy(y->dkv_a + i * row + s->c, e->dk_rope + i * s->r, s->r * sizeof *dx);
    train_back_linear(t, dx, y->dkv_a, x, &l->kv_a, S);
    if (!s->q) {
        train_back_linear(t, dx, y->dq, x, &l->q, S);
        return;
    }
    norm(t, y->q_n, k->q_a, &l->q_a_norm, S, (float)t->c->latent_eps);
    clear(y->dq_n, S * s->q);
    train_back_linear(t, y->dq_n, y->dq, y->q_n, &l->q_b, S);
    clear(y->dq_a, S * s->q);
    train_back_norm(t, y->dq_a, y->dq_n, s->q, k->q_a, s->q, &l->q_a_norm, S, t->c->latent_eps);
    train_back_linear(t, dx, y->dq_a, x, &l->q_a, S);
}

/* ---- feed-forward ---- */

static struct mlp_weights weights_of_mlp(const struct train_mlp *w)
{
    return (struct mlp_weights){&w->gate.w, &w->up.w, &w->down.w};
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

static void dense(struct vb_trainer *t, const struct train_mlp *w, struct kept_values *k, float *out, const float *x,
                  size_t S)
{
    train_mlp_forward(t, out, k->gate, k->up, t->shared.product, x, w, S);
}

static struct router router_of(const struct vb_trainer *t, const struct train_layer *l)
{
    return model_router(t->c, &(struct moe){.e_score_correction_bias = l->bias});
}

static struct moe_weights experts_of(const struct vb_trainer *t, const struct train_layer *l)
{
    return (struct moe_weights){t->c->dims.E, t->c->dims.chosen, t->c->dims.expert, weights_of_expert, l, NULL};
}

static void experts(struct vb_trainer *t, const struct train_layer *l, struct kept_values *k, float *out,
                    const float *x, size_t S)
{
    struct router router = router_of(t, l);
    struct moe_weights experts = experts_of(t, l);
    op_linear(&t->cx, k->scores, x, &l->router.w, S);
    op_router(&t->cx, k->experts, k->weights, k->scores, &router, S);
    op_moe(&t->cx, out, x, k->experts, k->weights, &experts, S);
    if (t->c->n_shared_experts) { /* op_moe adds it last, too */
        dense(t, &l->shared, k, t->shared.dnormed, x, S);
        op_add(&t->cx, out, t->shared.dnormed, S * t->c->dims.d);
    }
}

static void back_experts(struct vb_trainer *t, const struct train_layer *l, const struct kept_values *k, float *dx,
                         const float *dy, const float *x, size_t S)
{
    struct router router = router_of(t, l);
    struct moe_weights experts = experts_of(t, l);
    struct mlp_weights shared = weights_of_mlp(&l->shared);
    if (t->c->n_shared_experts)
        op_back_mlp(&t->cx, dx, &l->shared.g, NULL, dy, x, k->gate, k->up, NULL, &shared, S);
    op_back_moe(&t->cx, dx, &(struct moe_gradients){gradients_of_expert, l}, t->shared.dweights, dy, x, k->experts,
                k->weights, &experts, S);
    op_back_router(&t->cx, t->shared.dscores, t->shared.dweights, k->scores, k->experts, &router, S);
    train_back_linear(t, dx, t->shared.dscores, x, &l->router, S);
}

/* ---- the layer ---- */

void train_layer_forward(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                         struct kept_values *k, float *y)
{
    size_t S = rows->S, n = S * t->c->dims.d;
    float eps = (float)t->c->rms_norm_eps, *normed = t->shared.normed, *delta = t->shared.delta;
    norm(t, normed, k->x, &l->input_norm, S, eps);
    attention(t, l, rows, k, delta, normed);
    memcpy(k->middle, k->x, n * sizeof *y);
    op_add(&t->cx, k->middle, delta, n);
    norm(t, normed, k->middle, &l->post_norm, S, eps);
    if (l->is_moe)
        experts(t, l, k, delta, normed, S);
    else
        dense(t, &l->mlp, k, delta, normed, S);
    memcpy(y, k->middle, n * sizeof *y);
    op_add(&t->cx, y, delta, n);
}

void train_layer_count(struct train_layer *l, const struct kept_values *k, size_t chosen, size_t S)
{
    for (size_t i = 0; l->is_moe && i < S * chosen; i++)
        l->load[k->experts[i]]++;
}

void train_layer_back(struct vb_trainer *t, const struct train_layer *l, const struct train_rows *rows,
                      const struct kept_values *k, float *dx)
{
    size_t S = rows->S, d = t->c->dims.d;
    float eps = (float)t->c->rms_norm_eps, *normed = t->shared.normed, *dnormed = t->shared.dnormed;
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
