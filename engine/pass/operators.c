/* engine/pass/operators.c -- computes one value of a pass alone.
 *
 * Most values are a step of a pass. Then their inputs are put where a pass would leave them, and half a layer runs, in
 * which only this step is computed (pass.only). Values inside an operator have a function here, which calls that part
 * of the operator. */
#include "engine/pass/operators.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/pass/attend.h"
#include "engine/pass/feed_forward.h"
#include "engine/pass/forward.h"
#include "engine/pass/indexing.h"
#include "engine/pass/layer.h"
#include "engine/pass/runner.h"
#include "engine/pass/step.h"
#include "ops/cache_rows.h"

struct alone {
    struct pass *p;
    const struct operator_call *k;
    const struct dims *dims;
    enum pass_value value;
    struct row *rows;     /* [S] */
    struct kvcache cache; /* one layer, S rows */
};

/* ---- where a pass leaves values ---- */

/* Copies rows of values between an array of the pass and contiguous memory. */
static void copy_rows(const struct pass *p, enum pass_value v, float *contiguous, int to_array)
{
    struct value_shape shape = value_shape(v, &p->model->config);
    for (size_t s = 0; s < p->S; s++)
        for (size_t a = 0; a < shape.outer; a++, contiguous += shape.inner) {
            float *numbers = step_array(p, v) + s * shape.pitch + a * shape.outer_pitch;
            memcpy(to_array ? numbers : contiguous, to_array ? contiguous : numbers, shape.inner * sizeof *numbers);
        }
}

static void give_inputs(struct alone *o)
{
    const struct config *c = &o->p->model->config;
    memset(o->p->w.q, 0, o->k->S * o->dims->H * (o->dims->n + o->dims->r) * sizeof(float)); /* cache_rows reads both */
    memset(o->p->w.kv_a, 0, o->k->S * o->dims->row * sizeof(float));
    for (size_t i = 0; i < value_table[o->value].count; i++) {
        enum pass_value from = value_input(o->value, i, c, o->k->layer);
        if (from < VALUES && value_table[from].array == ARRAY_TAKEN)
            o->p->taken = o->k->in[i];
        else if (from < VALUES && value_table[from].array && o->k->in[i])
            copy_rows(o->p, from, (float *)(uintptr_t)o->k->in[i], 1);
    }
}

/* ---- steps ---- */

static void run(struct alone *o)
{
    struct pass *p = o->p;
    const struct value_row *v = &value_table[o->value];
    p->only = o->value;
    if (v->place == OF_PASS) {
        o->value == EMBEDDING ? runner_embedding(p) : runner_norm(p);
    } else if (v->place == OF_MODULE) {
        module_input(p);
        module_projection(p);
        module_output(p);
    } else {
        layer_attention(p);
        layer_feed_forward(p);
    }
    p->only = NO_VALUE;
}

static void step(struct alone *o)
{
    const struct value_row *v = &value_table[o->value];
    if (v->is_copy && v->count == 1) { /* nothing computes it */
        memcpy(o->k->out, o->k->in[0], o->k->S * v->width(&o->p->model->config) * sizeof *o->k->out);
        return;
    }
    give_inputs(o);
    if (v->array == ARRAY_GIVEN)
        o->p->given = o->k->out;
    run(o);
    if (v->array != ARRAY_GIVEN)
        copy_rows(o->p, o->value, o->k->out, 0);
}

static void head(struct alone *o)
{
    const struct mtp_module *module = o->p->module;
    forward_head(o->p, module ? &module->head : &o->p->model->lm_head, o->k->out, o->k->in[0], o->k->S);
}

/* ---- attention ---- */

/* The tokens to which row s attends. */
static struct timeline tokens_of(const struct alone *o, size_t s)
{
    size_t topk = o->dims->index_topk, n = 0;
    int32_t *kept = o->p->w.kept + s * o->p->w.kept_most;
    for (size_t i = 0; o->k->in[4] && s >= topk && i < o->k->width[4] && n < topk; i++)
        if (o->k->in[4][s * o->k->width[4] + i] >= 0)
            kept[n++] = o->cache.slots[(size_t)o->k->in[4][s * o->k->width[4] + i]];
    const void *rows = kvcache_layer(&o->cache, 0);
    return n ? (struct timeline){rows, kept, n} : (struct timeline){rows, o->cache.slots, s + 1};
}

/* Computes the output of each head from the queries, and from latents and keys, which go to the cache first. */
static void attend_alone(struct alone *o)
{
    struct pass *p = o->p;
    size_t S = o->k->S, c = o->dims->c, r = o->dims->r, queries = o->dims->H * (o->dims->n + r);
    copy_rows(p, value_input(ATTENTION_HEADS, 0, &p->model->config, o->k->layer), (float *)(uintptr_t)o->k->in[0], 1);
    for (size_t s = 0; s < S; s++)
        op_scale_query(p->w.q + s * queries, queries, query_scale(p, &o->rows[s]));
    copy_rows(p, Q_ROPE, (float *)(uintptr_t)o->k->in[1], 1);
    for (size_t s = 0; s < S; s++) {
        memcpy(p->w.kv_a, o->k->in[2] + s * c, c * sizeof *p->w.kv_a);
        memcpy(p->w.kv_a + c, o->k->in[3] + s * r, r * sizeof *p->w.kv_a);
        kv_row_write(p->cx.k, &o->cache.pool->layout, kvcache_row(&o->cache, 0, o->rows[s].slot), p->w.kv_a);
        p->w.seen[s] = tokens_of(o, s);
    }
    attend(p);
}

static void heads(struct alone *o)
{
    attend_alone(o);
    copy_rows(o->p, ATTENTION_HEADS, o->k->out, 0);
}

struct score_probe {
    struct op_probe probe; /* the first member, so it has the same address */
    const struct operator_call *k;
};

/* Receives rows of scores. In sparse attention, a row has the scores of the positions that in[4] lists. */
static void see_scores(struct op_probe *probe, enum probed_value value, int head, size_t first, size_t count,
                       const void *data, size_t width)
{
    const struct score_probe *p = (const struct score_probe *)(const void *)probe;
    const struct operator_call *k = p->k;
    const float *x = data;
    int wanted = value == PROBE_ATTENTION_SCORES && head == k->expert;
    for (size_t s = first; s < first + count && wanted; s++, x += width) {
        float *row = k->out + s * k->S;
        if (width == s + 1)
            memcpy(row, x, width * sizeof *row);
        for (size_t i = 0, n = 0; width != s + 1 && i < k->width[4] && n < width; i++)
            if (k->in[4][s * k->width[4] + i] >= 0)
                row[(size_t)k->in[4][s * k->width[4] + i]] = x[n++];
    }
}

static void forget_scores(struct alone *o)
{
    for (size_t i = 0; i < o->k->S * o->k->S; i++)
        o->k->out[i] = -INFINITY;
}

/* The scores of one head [S, S]; a row has -infinity for rows to which it does not attend. */
static void attention_scores(struct alone *o)
{
    struct score_probe probe = {.probe = {see_scores, 1}, .k = o->k};
    forget_scores(o);
    o->p->cx.probe = &probe.probe;
    attend_alone(o);
    o->p->cx.probe = NULL;
}

/* ---- the indexer ---- */

/* Queries become codes, and the weight of each head then includes the scale of its query. */
static void index_weights(struct alone *o)
{
    struct indexer ix = index_of(o->p);
    size_t n = o->k->S * ix.heads;
    memcpy(o->k->out, o->k->in[0], n * sizeof *o->k->out);
    memcpy(o->p->w.index_q, o->k->in[1], n * ix.dim * sizeof *o->p->w.index_q);
    op_index_queries(&o->p->cx, o->p->w.index_q, o->k->out, &ix, o->k->S);
}

struct index_probe {
    struct op_probe probe; /* the first member, so it has the same address */
    const struct operator_call *k;
};

static void see_index_scores(struct op_probe *probe, enum probed_value value, int index, size_t first, size_t count,
                             const void *data, size_t width)
{
    const struct operator_call *k = ((const struct index_probe *)(const void *)probe)->k;
    (void)index;
    for (size_t s = 0; s < count && value == PROBE_INDEX_SCORES; s++)
        memcpy(k->out + (first + s) * k->S, (const float *)data + s * width, width * sizeof(float));
}

/* [S, S]; a row has -infinity for later rows. */
static void index_scores(struct alone *o)
{
    struct workspace *w = &o->p->w;
    struct indexer ix = index_of(o->p);
    struct index_probe probe = {.probe = {see_index_scores, 1}, .k = o->k};
    size_t S = o->k->S;
    memcpy(w->index_q, o->k->in[0], S * ix.heads * ix.dim * sizeof *w->index_q);
    op_index_queries(&o->p->cx, w->index_q, w->index_w, &ix, S); /* the codes; these weights are not used */
    memcpy(w->index_w, o->k->in[1], S * ix.heads * sizeof *w->index_w);
    forget_scores(o);
    for (size_t s = 0; s < S; s++) {
        memcpy(w->index_k, o->k->in[2] + s * ix.dim, ix.dim * sizeof *w->index_k);
        op_index_key(&ix, kvcache_index_row(&o->cache, 0, o->rows[s].slot), w->index_k);
        w->index_seen[s] = (struct timeline){kvcache_index_layer(&o->cache, 0), o->cache.slots, s + 1};
    }
    o->p->cx.probe = &probe.probe;
    op_index_choose(&o->p->cx, w->kept, w->index_q, w->index_w, w->index_seen, &ix, S, w->context);
    o->p->cx.probe = NULL;
}

static void index_kept(struct alone *o)
{
    struct indexer ix = index_of(o->p);
    struct op_ctx *cx = &o->p->cx;
    size_t most = o->dims->index_topk, mark = op_mark(cx);
    uint32_t *ranks = (uint32_t *)(void *)op_take(cx, o->k->S);
    for (size_t s = 0; s < o->k->S; s++) {
        if (s >= ix.kept)
            op_index_keep(cx->k, o->p->w.kept, ranks, o->k->in[0] + s * o->k->width[0], s + 1, &ix);
        for (size_t i = 0; i < most; i++)
            o->k->out[s * most + i] = i > s || i >= ix.kept ? -1.0f : s < ix.kept ? (float)i : (float)o->p->w.kept[i];
    }
    op_give(cx, mark);
}

/* ---- experts ---- */

static void one_mlp(struct alone *o, const struct mlp *m)
{
    struct mlp_weights w = mlp_weights_of(m);
    op_mlp(&o->p->cx, o->k->out, o->k->in[0], &w, o->k->S);
}

static void expert(struct alone *o) { one_mlp(o, &o->p->l->moe.experts[o->k->expert]); }
static void shared_expert(struct alone *o) { one_mlp(o, &o->p->l->moe.shared_experts); }

/* The chosen experts, one row at a time. */
static void chosen_experts(struct alone *o)
{
    size_t d = o->dims->d, chosen = o->dims->chosen;
    for (size_t i = 0; i < o->k->S * chosen; i++) {
        struct mlp_weights w = mlp_weights_of(&o->p->l->moe.experts[(size_t)o->k->in[1][i]]);
        op_mlp(&o->p->cx, o->k->out + i * d, o->k->in[0] + i / chosen * d, &w, 1);
    }
}

static void mlp(struct alone *o)
{
    if (o->p->l->is_moe)
        op_moe_sum(&o->p->cx, o->k->out, o->k->in[0], o->k->in[1], o->k->in[2], o->dims->chosen, o->k->S, o->dims->d);
    else
        step(o);
}

/* ---- the router ---- */

static struct router the_router(const struct alone *o) { return model_router(&o->p->model->config, &o->p->l->moe); }

static void scores(struct alone *o)
{
    struct router r = the_router(o);
    size_t mark = op_mark(&o->p->cx);
    float *scratch = op_take(&o->p->cx, r.experts); /* it needs fewer */
    for (size_t s = 0; s < o->k->S; s++)
        op_router_scores(&o->p->cx, o->k->out + s * r.experts, o->k->in[0] + s * r.experts, &r, scratch);
    op_give(&o->p->cx, mark);
}

static void choice(struct alone *o)
{
    struct router r = the_router(o);
    for (size_t s = 0; s < o->k->S; s++)
        op_router_choice(o->k->out + s * r.experts, o->k->in[0] + s * r.experts, &r);
}

static void group_scores(struct alone *o)
{
    struct router r = the_router(o);
    for (size_t s = 0; s < o->k->S; s++)
        op_router_group_scores(o->k->out + s * r.groups, o->k->in[0] + s * r.experts, &r);
}

static void groups(struct alone *o)
{
    struct router r = the_router(o);
    size_t mark = op_mark(&o->p->cx);
    int32_t *kept = (int32_t *)(void *)op_take(&o->p->cx, r.groups);
    float *out = o->k->out;
    for (size_t s = 0; s < o->k->S; s++) {
        op_router_groups(kept, o->k->in[0] + s * r.groups, &r);
        for (size_t g = 0; g < r.groups; g++)
            if (kept[g])
                *out++ = (float)g;
    }
    op_give(&o->p->cx, mark);
}

static void experts(struct alone *o)
{
    struct router r = the_router(o);
    struct op_ctx *cx = &o->p->cx;
    int32_t *chosen = o->p->w.experts;
    size_t mark = op_mark(cx);
    int32_t *kept = (int32_t *)(void *)op_take(cx, r.groups), *state = (int32_t *)(void *)op_take(cx, r.experts);
    for (size_t s = 0; s < o->k->S; s++) {
        memset(kept, 0, r.groups * sizeof *kept);
        for (size_t i = 0; o->k->in[1] && i < r.chosen_groups; i++)
            kept[(size_t)o->k->in[1][s * r.chosen_groups + i]] = 1;
        op_router_experts(chosen, o->k->in[0] + s * r.experts, o->k->in[1] ? kept : NULL, &r, state);
        for (size_t i = 0; i < r.chosen; i++)
            o->k->out[s * r.chosen + i] = (float)chosen[i];
    }
    op_give(cx, mark);
}

static void weights(struct alone *o)
{
    struct router r = the_router(o);
    int32_t *chosen = o->p->w.experts;
    for (size_t s = 0; s < o->k->S; s++) {
        for (size_t i = 0; i < r.chosen; i++)
            chosen[i] = (int32_t)o->k->in[1][s * r.chosen + i];
        op_router_weights(o->k->out + s * r.chosen, chosen, o->k->in[0] + s * r.experts, &r);
    }
}

/* ---- calls ---- */

/* Values that are no step: parts of operators, and what needs more than its inputs. */
static void (*const parts[VALUES])(struct alone *o) = {
    [INDEX_WEIGHTS] = index_weights, [INDEX_SCORES] = index_scores, [INDEX_KEPT] = index_kept,
    [ATTENTION_SCORES] = attention_scores, [ATTENTION_HEADS] = heads,
    [ROUTER_SCORES] = scores, [ROUTER_CHOICE] = choice, [ROUTER_GROUP_SCORES] = group_scores, [ROUTER_GROUPS] = groups,
    [ROUTER_EXPERTS] = experts, [ROUTER_WEIGHTS] = weights,
    [EXPERT_OUTPUT] = expert, [EXPERT_OUTPUTS] = chosen_experts, [SHARED_EXPERTS] = shared_expert, [MLP_OUTPUT] = mlp,
    [MODULE_LOGITS] = head, [LOGITS] = head,
};

static int is_alone(enum pass_value v) { return v != INDEX_MARGIN && v != ATTENTION_PROBABILITIES; }

static int open_rows(struct alone *o, vb_error *err)
{
    const struct vb_model *m = o->p->model;
    const vb_allocator *a = m->allocator;
    int code = kvcache_open(&o->cache, 1, o->k->S, model_cache_layout(&m->config), a, err);
    o->rows = code ? NULL : vb_alloc(a, o->k->S, sizeof *o->rows);
    if (!code && !o->rows)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for %zu rows", o->k->S);
    for (size_t s = 0; s < o->k->S && !code; s++)
        o->rows[s] = (struct row){.cache = &o->cache, .slot = kvcache_append(&o->cache), .index = (int32_t)s,
                                  .position = o->k->first + (int32_t)s, .expanded = o->k->expanded};
    return code;
}

static void begin_pass(struct alone *o)
{
    const struct vb_model *m = o->p->model;
    struct pass *p = o->p;
    int L = m->config.num_hidden_layers, layer = o->k->layer, is_module = layer >= L;
    for (size_t s = 0; s < o->k->S && value_table[o->value].inputs[0].from[0] == ROW_TOKENS; s++)
        o->rows[s].token = (int32_t)o->k->in[0][s];
    runner_begin(p, o->rows, o->k->S, is_module ? &m->mtp[(layer - L) % m->num_mtp] : NULL, is_module ? layer - L : -1);
    p->layer = layer;
    if (layer >= 0 && !is_module)
        p->l = &m->layers[layer];
}

int operator_compute(struct pass *p, const struct operator_call *k, vb_error *err)
{
    const struct vb_model *m = p->model;
    struct alone o = {.p = p, .k = k, .dims = &m->config.dims, .value = value_named(k->result)};
    int L = m->config.num_hidden_layers,
        sees_all = !m->config.index_topk || (k->layer >= L && m->config.conventions.value[MTP_INDEXER]);
    if (o.value == NO_VALUE || !is_alone(o.value) || (k->layer >= L && !m->num_mtp))
        return vb_fail(err, VB_UNSUPPORTED, "the engine does not compute %s alone; the reference does", k->result);
    if ((o.value == ATTENTION_SCORES || o.value == ATTENTION_HEADS) && !k->in[4] && k->S > m->config.dims.index_topk &&
        !sees_all)
        return vb_fail(err, VB_UNSUPPORTED,
                       "%s of more than index_topk %d tokens needs the positions that an indexer keeps", k->result,
                       m->config.index_topk);
    int code = open_rows(&o, err);
    if (!code) {
        begin_pass(&o);
        (parts[o.value] ? parts[o.value] : step)(&o);
    }
    kvcache_close(&o.cache, m->allocator);
    vb_free(m->allocator, o.rows);
    return code;
}
