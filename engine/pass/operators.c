/* engine/pass/operators.c -- calls the operators of a pass one at a time. engine/pass/forward.c calls them with the
 * same weights. */
#include "engine/pass/operators.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/pass/forward_internal.h"
#include "engine/pass/indexing.h"
#include "ops/add.h"
#include "ops/cache_rows.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"

struct alone {
    struct workspace *w;
    const struct operator_call *k;
    const struct vb_model *m;
    const struct layer *l;           /* NULL outside of the layers */
    const struct mtp_module *module; /* NULL in the target */
    const struct dims *dims;
    struct row *rows;                /* [S] */
    struct kvcache cache;            /* one layer, S rows */
};

/* --- norms, linear layers, copies --- */

static void norm(const struct alone *o, const float *weight, size_t D, double eps)
{
    op_rmsnorm(&o->w->cx, o->k->out, D, o->k->in[0], D, weight, o->k->S, D, (float)eps);
}

static void input_norm(struct alone *o) { norm(o, o->l->input_layernorm, o->dims->d, o->m->config.rms_norm_eps); }
static void attention_norm(struct alone *o)
{
    norm(o, o->l->post_attention_layernorm, o->dims->d, o->m->config.rms_norm_eps);
}
static void query_norm(struct alone *o) { norm(o, o->l->self_attn.q_a_layernorm, o->dims->q, o->m->config.latent_eps); }
static void enorm(struct alone *o) { norm(o, o->module->enorm, o->dims->d, o->m->config.rms_norm_eps); }
static void hnorm(struct alone *o) { norm(o, o->module->hnorm, o->dims->d, o->m->config.rms_norm_eps); }
static void head_norm(struct alone *o) { norm(o, o->module->shared_head_norm, o->dims->d, o->m->config.rms_norm_eps); }
static void final_norm(struct alone *o) { norm(o, o->m->norm, o->dims->d, o->m->config.rms_norm_eps); }

static void linear(const struct alone *o, const struct weight_view *w)
{
    op_linear(&o->w->cx, o->k->out, o->k->in[0], w, o->k->S);
}

static void q_a(struct alone *o) { linear(o, &o->l->self_attn.q_a_proj); }
static void q_b(struct alone *o) { linear(o, &o->l->self_attn.q_b_proj); }
static void q_alone(struct alone *o) { linear(o, &o->l->self_attn.q_proj); }
static void kv_a(struct alone *o) { linear(o, &o->l->self_attn.kv_a_proj_with_mqa); }
static void o_proj(struct alone *o) { linear(o, &o->l->self_attn.o_proj); }
static void eh_proj(struct alone *o) { linear(o, &o->module->eh_proj); }

static void head(struct alone *o)
{
    forward_head(o->w, o->module ? &o->module->head : &o->m->lm_head, o->k->out, o->k->in[0], o->k->S);
}

static void copy(struct alone *o) { memcpy(o->k->out, o->k->in[0], o->k->S * o->dims->d * sizeof *o->k->out); }

static void embedding(struct alone *o)
{
    if (o->module)
        forward_module_embedding(o->w, o->module, o->rows, o->k->S);
    else
        op_embed(&o->w->cx, o->w->x, o->dims->d, &o->m->embed_tokens, o->w->ids, o->k->S);
    memcpy(o->k->out, o->w->x, o->k->S * o->dims->d * sizeof *o->k->out);
}

static void concat(struct alone *o)
{
    size_t d = o->dims->d, bytes = d * sizeof(float), hidden_first = o->m->config.conventions.value[CONCAT];
    for (size_t s = 0; s < o->k->S; s++) {
        memcpy(o->k->out + 2 * s * d, o->k->in[hidden_first] + s * d, bytes);
        memcpy(o->k->out + 2 * s * d + d, o->k->in[!hidden_first] + s * d, bytes);
    }
}

static void residual(struct alone *o)
{
    size_t n = o->k->S * o->dims->d;
    memcpy(o->k->out, o->k->in[0], n * sizeof *o->k->out);
    op_add(&o->w->cx, o->k->out, o->k->in[1], n);
}

/* --- attention --- */

/* Rotates and normalises queries q and latents kv_a, as a pass does; NULL counts as zeros. Leaves them in w->q and in
 * the cache. */
static void rotate(struct alone *o, const float *q, const float *kv_a)
{
    size_t queries = o->k->S * o->dims->H * (o->dims->n + o->dims->r), latents = o->k->S * o->dims->row;
    for (size_t i = 0; i < queries; i++)
        o->w->q[i] = q ? q[i] : 0.0f;
    for (size_t i = 0; i < latents; i++)
        o->w->kv_a[i] = kv_a ? kv_a[i] : 0.0f;
    forward_cache_rows(o->w, &o->l->self_attn, 0, o->rows, o->k->S);
}

static void rope_of_queries(struct alone *o)
{
    size_t n = o->dims->n, r = o->dims->r;
    rotate(o, o->k->in[0], NULL);
    for (size_t i = 0; i < o->k->S * o->dims->H; i++)
        memcpy(o->k->out + i * r, o->w->q + i * (n + r) + n, r * sizeof *o->k->out);
}

/* Copies numbers [from, from + count) of each cache row to the result. */
static void cached(struct alone *o, size_t from, size_t count)
{
    rotate(o, NULL, o->k->in[0]);
    for (size_t s = 0; s < o->k->S; s++) {
        kv_row_read(&o->cache.pool->layout, o->w->kv_a, kvcache_row(&o->cache, 0, o->rows[s].slot));
        memcpy(o->k->out + s * count, o->w->kv_a + from, count * sizeof *o->k->out);
    }
}

static void latents(struct alone *o) { cached(o, 0, o->dims->c); }
static void rope_of_keys(struct alone *o) { cached(o, o->dims->c, o->dims->r); }

/* The tokens to which row s attends. */
static struct timeline tokens_of(const struct alone *o, size_t s)
{
    size_t topk = o->dims->index_topk, n = 0;
    int32_t *kept = o->w->kept + s * o->w->kept_most;
    for (size_t i = 0; o->k->in[4] && s >= topk && i < o->k->width[4] && n < topk; i++)
        if (o->k->in[4][s * o->k->width[4] + i] >= 0)
            kept[n++] = o->cache.slots[(size_t)o->k->in[4][s * o->k->width[4] + i]];
    return n ? (struct timeline){kvcache_layer(&o->cache, 0), kept, n}
             : (struct timeline){kvcache_layer(&o->cache, 0), o->cache.slots, s + 1};
}

/* Computes w->heads from the queries and the rows of the cache. */
static void attend(struct alone *o)
{
    size_t S = o->k->S, H = o->dims->H, n = o->dims->n, r = o->dims->r, c = o->dims->c;
    struct attention a = forward_attention(o->w, &o->l->self_attn);
    memcpy(o->w->q, o->k->in[0], S * H * (n + r) * sizeof *o->w->q);
    for (size_t s = 0; s < S; s++)
        op_scale_query(o->w->q + s * H * (n + r), H * (n + r), forward_query_scale(o->w, &o->rows[s]));
    for (size_t i = 0; i < S * H; i++)
        memcpy(o->w->q + i * (n + r) + n, o->k->in[1] + i * r, r * sizeof *o->w->q);
    for (size_t s = 0; s < S; s++) {
        memcpy(o->w->kv_a, o->k->in[2] + s * c, c * sizeof *o->w->kv_a);
        memcpy(o->w->kv_a + c, o->k->in[3] + s * r, r * sizeof *o->w->kv_a);
        kv_row_write(o->w->cx.k, &o->cache.pool->layout, kvcache_row(&o->cache, 0, o->rows[s].slot), o->w->kv_a);
        o->w->seen[s] = tokens_of(o, s);
    }
    forward_attend(o->w, &a, o->rows, S);
}

static void attention(struct alone *o)
{
    attend(o);
    memcpy(o->k->out, o->w->heads, o->k->S * o->dims->H * o->dims->v * sizeof *o->k->out);
}

struct score_probe {
    struct op_probe probe; /* the first member, so it has the same address */
    const struct operator_call *k;
    char name[32];         /* of the head's scores */
};

/* Receives rows of scores. In sparse attention, a row has the scores of the positions that in[4] lists. */
static void see_scores(struct op_probe *probe, const char *name, size_t first, size_t count, const void *data,
                       int integers, size_t width)
{
    const struct score_probe *p = (const struct score_probe *)(const void *)probe;
    const struct operator_call *k = p->k;
    const float *x = data;
    (void)integers;
    for (size_t s = first; s < first + count && !strcmp(name, p->name); s++, x += width) {
        float *row = k->out + s * k->S;
        if (width == s + 1)
            memcpy(row, x, width * sizeof *row);
        for (size_t i = 0, n = 0; width != s + 1 && i < k->width[4] && n < width; i++)
            if (k->in[4][s * k->width[4] + i] >= 0)
                row[(size_t)k->in[4][s * k->width[4] + i]] = x[n++];
    }
}

/* The scores of one head [S, S]; a row has -infinity for rows to which it does not attend. */
static void attention_scores(struct alone *o)
{
    struct score_probe p = {.probe = {see_scores, 1}, .k = o->k};
    snprintf(p.name, sizeof p.name, "scores.%d", o->k->expert);
    for (size_t i = 0; i < o->k->S * o->k->S; i++)
        o->k->out[i] = -INFINITY;
    o->w->cx.probe = &p.probe;
    attend(o);
    o->w->cx.probe = NULL;
}

/* --- the indexer --- */

static void index_wk(struct alone *o) { linear(o, &o->l->self_attn.indexer.wk); }
static void index_wq_b(struct alone *o) { linear(o, &o->l->self_attn.indexer.wq_b); }
static void index_weights_proj(struct alone *o)
{
    index_head_weights(o->w, &o->l->self_attn, o->k->out, o->k->in[0], o->k->S);
}

static void index_norm(struct alone *o)
{
    const struct mla *a = &o->l->self_attn;
    size_t D = o->dims->index_dim;
    memcpy(o->k->out, o->k->in[0], o->k->S * D * sizeof *o->k->out);
    for (size_t s = 0; s < o->k->S; s++)
        op_index_norm(o->w->cx.k, o->k->out + s * D, a->indexer.k_norm, a->indexer.k_norm_bias, D);
}

static void index_rope(struct alone *o, size_t vectors)
{
    size_t D = o->dims->index_dim, width = vectors * D;
    memcpy(o->k->out, o->k->in[0], o->k->S * width * sizeof *o->k->out);
    for (size_t s = 0; s < o->k->S; s++)
        op_rope(o->k->out + s * width, vectors, D, o->w->cos_sin + s * o->w->rope.dim, &o->w->index_rope);
}

static void index_rope_k(struct alone *o) { index_rope(o, 1); }
static void index_rope_q(struct alone *o) { index_rope(o, o->dims->index_heads); }

/* Copies the queries of input i to w->index_q, and rounds them to FP8 as rule 9 says. w [S, H] has the output of
 * weights_proj, and receives the weight of each head, which includes the scale of its query. */
static void index_codes(struct alone *o, int i, float *w)
{
    struct indexer ix = index_of(o->w);
    memcpy(o->w->index_q, o->k->in[i], o->k->S * ix.heads * ix.dim * sizeof *o->w->index_q);
    op_index_queries(&o->w->cx, o->w->index_q, w, &ix, o->k->S);
}

static void index_weights(struct alone *o)
{
    memcpy(o->k->out, o->k->in[0], o->k->S * o->dims->index_heads * sizeof *o->k->out);
    index_codes(o, 1, o->k->out);
}

struct index_probe {
    struct op_probe probe; /* the first member, so it has the same address */
    const struct operator_call *k;
};

static void see_index_scores(struct op_probe *probe, const char *name, size_t first, size_t count, const void *data,
                             int integers, size_t width)
{
    const struct operator_call *k = ((const struct index_probe *)(const void *)probe)->k;
    (void)integers;
    for (size_t s = 0; s < count && !strcmp(name, "scores"); s++)
        memcpy(k->out + (first + s) * k->S, (const float *)data + s * width, width * sizeof(float));
}

/* [S, S]; a row has -infinity for later rows. */
static void index_scores(struct alone *o)
{
    struct indexer ix = index_of(o->w);
    struct index_probe p = {.probe = {see_index_scores, 1}, .k = o->k};
    index_codes(o, 0, o->w->index_w);
    memcpy(o->w->index_w, o->k->in[1], o->k->S * ix.heads * sizeof *o->w->index_w);
    for (size_t i = 0; i < o->k->S * o->k->S; i++)
        o->k->out[i] = -INFINITY;
    for (size_t s = 0; s < o->k->S; s++) {
        memcpy(o->w->index_k, o->k->in[2] + s * ix.dim, ix.dim * sizeof *o->w->index_k);
        op_index_key(&ix, kvcache_index_row(&o->cache, 0, o->rows[s].slot), o->w->index_k);
        o->w->index_seen[s] = (struct timeline){kvcache_index_layer(&o->cache, 0), o->cache.slots, s + 1};
    }
    o->w->cx.probe = &p.probe;
    op_index_choose(&o->w->cx, o->w->kept, o->w->index_q, o->w->index_w, o->w->index_seen, &ix, o->k->S, o->w->context);
    o->w->cx.probe = NULL;
}

static void index_kept(struct alone *o)
{
    struct indexer ix = index_of(o->w);
    struct op_ctx *cx = &o->w->cx;
    size_t most = o->dims->index_topk, mark = op_mark(cx);
    uint32_t *ranks = (uint32_t *)(void *)op_take(cx, o->k->S);
    for (size_t s = 0; s < o->k->S; s++) {
        if (s >= ix.kept)
            op_index_keep(cx->k, o->w->kept, ranks, o->k->in[0] + s * o->k->width[0], s + 1, &ix);
        for (size_t i = 0; i < most; i++)
            o->k->out[s * most + i] = i > s || i >= ix.kept ? -1.0f : s < ix.kept ? (float)i : (float)o->w->kept[i];
    }
    op_give(cx, mark);
}

/* --- the feed-forward part --- */

static void feed_forward(struct alone *o, const struct mlp *m)
{
    struct mlp_weights w = forward_mlp_weights(m);
    op_mlp(&o->w->cx, o->k->out, o->k->in[0], &w, o->k->S);
}

static void expert(struct alone *o) { feed_forward(o, &o->l->moe.experts[o->k->expert]); }
static void shared_expert(struct alone *o) { feed_forward(o, &o->l->moe.shared_experts); }

/* The chosen experts, one row at a time. */
static void chosen_experts(struct alone *o)
{
    size_t d = o->dims->d, chosen = o->dims->chosen;
    for (size_t i = 0; i < o->k->S * chosen; i++) {
        struct mlp_weights w = forward_mlp_weights(&o->l->moe.experts[(size_t)o->k->in[1][i]]);
        op_mlp(&o->w->cx, o->k->out + i * d, o->k->in[0] + i / chosen * d, &w, 1);
    }
}

static void mlp(struct alone *o)
{
    if (o->l->is_moe)
        op_moe_sum(&o->w->cx, o->k->out, o->k->in[0], o->k->in[1], o->k->in[2], o->dims->chosen, o->k->S, o->dims->d);
    else
        feed_forward(o, &o->l->mlp);
}

/* --- the router --- */

static struct router router_of(const struct alone *o) { return forward_router(&o->m->config, &o->l->moe); }

static void gate(struct alone *o)
{
    struct router r = router_of(o);
    forward_gate(o->w, &r, &o->l->moe, o->k->in[0], o->w->delta, o->k->S);
    memcpy(o->k->out, o->w->scores, o->k->S * r.experts * sizeof *o->k->out);
}

static void scores(struct alone *o)
{
    struct router r = router_of(o);
    size_t mark = op_mark(&o->w->cx);
    float *scratch = op_take(&o->w->cx, r.experts); /* it needs fewer */
    for (size_t s = 0; s < o->k->S; s++)
        op_router_scores(&o->w->cx, o->k->out + s * r.experts, o->k->in[0] + s * r.experts, &r, scratch);
    op_give(&o->w->cx, mark);
}

static void choice(struct alone *o)
{
    struct router r = router_of(o);
    for (size_t s = 0; s < o->k->S; s++)
        op_router_choice(o->k->out + s * r.experts, o->k->in[0] + s * r.experts, &r);
}

static void group_scores(struct alone *o)
{
    struct router r = router_of(o);
    for (size_t s = 0; s < o->k->S; s++)
        op_router_group_scores(o->k->out + s * r.groups, o->k->in[0] + s * r.experts, &r);
}

static void groups(struct alone *o)
{
    struct router r = router_of(o);
    size_t mark = op_mark(&o->w->cx);
    int32_t *kept = (int32_t *)(void *)op_take(&o->w->cx, r.groups);
    float *out = o->k->out;
    for (size_t s = 0; s < o->k->S; s++) {
        op_router_groups(kept, o->k->in[0] + s * r.groups, &r);
        for (size_t g = 0; g < r.groups; g++)
            if (kept[g])
                *out++ = (float)g;
    }
    op_give(&o->w->cx, mark);
}

static void experts(struct alone *o)
{
    struct router r = router_of(o);
    size_t mark = op_mark(&o->w->cx);
    int32_t *kept = (int32_t *)(void *)op_take(&o->w->cx, r.groups),
            *state = (int32_t *)(void *)op_take(&o->w->cx, r.experts);
    for (size_t s = 0; s < o->k->S; s++) {
        memset(kept, 0, r.groups * sizeof *kept);
        for (size_t i = 0; o->k->in[1] && i < r.chosen_groups; i++)
            kept[(size_t)o->k->in[1][s * r.chosen_groups + i]] = 1;
        op_router_experts(o->w->experts, o->k->in[0] + s * r.experts, o->k->in[1] ? kept : NULL, &r, state);
        for (size_t i = 0; i < r.chosen; i++)
            o->k->out[s * r.chosen + i] = (float)o->w->experts[i];
    }
    op_give(&o->w->cx, mark);
}

static void weights(struct alone *o)
{
    struct router r = router_of(o);
    for (size_t s = 0; s < o->k->S; s++) {
        for (size_t i = 0; i < r.chosen; i++)
            o->w->experts[i] = (int32_t)o->k->in[1][s * r.chosen + i];
        op_router_weights(o->k->out + s * r.chosen, o->w->experts, o->k->in[0] + s * r.experts, &r);
    }
}

/* --- calls --- */

static const struct {
    const char *result;
    void (*compute)(struct alone *o);
} table[] = {
    {"model.embed_tokens.output", embedding},
    {"embed_tokens.output", embedding},
    {"enorm.output", enorm},
    {"hnorm.input", copy},
    {"hnorm.output", hnorm},
    {"eh_proj.input", concat},
    {"eh_proj.output", eh_proj},
    {"input_layernorm.input", copy},
    {"input_layernorm.output", input_norm},
    {"self_attn.q_a_proj.output", q_a},
    {"self_attn.q_a_layernorm.output", query_norm},
    {"self_attn.q_b_proj.output", q_b},
    {"self_attn.q_proj.output", q_alone},
    {"self_attn.kv_a_proj_with_mqa.output", kv_a},
    {"self_attn.kv_a_layernorm.output", latents},
    {"self_attn.q_rope", rope_of_queries},
    {"self_attn.k_rope", rope_of_keys},
    {"self_attn.indexer.wk.output", index_wk},
    {"self_attn.indexer.k_norm.output", index_norm},
    {"self_attn.indexer.k", index_rope_k},
    {"self_attn.indexer.wq_b.output", index_wq_b},
    {"self_attn.indexer.weights_proj.output", index_weights_proj},
    {"self_attn.indexer.q", index_rope_q},
    {"self_attn.indexer.weights", index_weights},
    {"self_attn.indexer.scores", index_scores},
    {"self_attn.indexer.kept", index_kept},
    {"self_attn.scores.H", attention_scores},
    {"self_attn.o_proj.input", attention},
    {"self_attn.o_proj.output", o_proj},
    {"post_attention_layernorm.input", residual},
    {"post_attention_layernorm.output", attention_norm},
    {"mlp.gate.output", gate},
    {"mlp.gate.scores", scores},
    {"mlp.gate.choice", choice},
    {"mlp.gate.group_scores", group_scores},
    {"mlp.gate.groups", groups},
    {"mlp.gate.experts", experts},
    {"mlp.gate.weights", weights},
    {"mlp.experts.E.output", expert},
    {"mlp.experts", chosen_experts},
    {"mlp.shared_experts.output", shared_expert},
    {"mlp.output", mlp},
    {"output", residual},
    {"shared_head.norm.input", copy},
    {"shared_head.norm.output", head_norm},
    {"shared_head.head.output", head},
    {"model.norm.input", copy},
    {"model.norm.output", final_norm},
    {"lm_head.output", head},
};

static int open_rows(struct alone *o, vb_error *err)
{
    const vb_allocator *a = o->m->allocator;
    int code = kvcache_open(&o->cache, 1, o->k->S, model_cache_layout(&o->m->config), a, err);
    o->rows = code ? NULL : vb_alloc(a, o->k->S, sizeof *o->rows);
    if (!code && !o->rows)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for %zu rows", o->k->S);
    for (size_t s = 0; s < o->k->S && !code; s++)
        o->rows[s] = (struct row){.cache = &o->cache, .slot = kvcache_append(&o->cache), .index = (int32_t)s,
                                  .position = o->k->first + (int32_t)s, .expanded = o->k->expanded};
    return code;
}

int operator_compute(struct workspace *w, const struct operator_call *k, vb_error *err)
{
    const struct vb_model *m = w->model;
    struct alone o = {.w = w, .k = k, .m = m, .dims = &m->config.dims};
    int L = m->config.num_hidden_layers, code;
    size_t i = 0, count = sizeof table / sizeof *table;
    while (i < count && strcmp(table[i].result, k->result))
        i++;
    if (i == count || (k->layer >= L && !m->num_mtp))
        return vb_fail(err, VB_UNSUPPORTED, "the engine does not compute %s alone; the reference does", k->result);
    int sees_all = !m->config.index_topk || (k->layer >= L && m->config.conventions.value[MTP_INDEXER]);
    if ((table[i].compute == attention_scores || table[i].compute == attention) && !k->in[4] &&
        k->S > m->config.dims.index_topk && !sees_all)
        return vb_fail(err, VB_UNSUPPORTED,
                       "%s of more than index_topk %d tokens wants the positions that an indexer keeps", k->result,
                       m->config.index_topk);
    o.module = k->layer >= L ? &m->mtp[(k->layer - L) % m->num_mtp] : NULL;
    o.l = o.module ? &o.module->layer : k->layer >= 0 ? &m->layers[k->layer] : NULL;
    code = open_rows(&o, err);
    for (size_t s = 0; s < k->S && !code && table[i].compute == embedding; s++)
        o.rows[s].token = (int32_t)k->in[0][s];
    if (!code) {
        forward_rows(w, o.rows, k->S);
        table[i].compute(&o);
    }
    kvcache_close(&o.cache, m->allocator);
    vb_free(m->allocator, o.rows);
    return code;
}
