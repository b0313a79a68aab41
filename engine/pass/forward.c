/* engine/pass/forward.c -- the transformer, layer by layer, as the DeepSeek-V3 report writes it (2.1). */
#include "engine/pass/forward_internal.h"

#include <math.h>
#include <string.h>

#include "ops/add.h"
#include "ops/argmax.h"
#include "ops/cache_rows.h"
#include "ops/embed.h"
#include "ops/expanded.h"
#include "ops/finite.h"
#include "ops/linear.h"
#include "ops/ranks.h"
#include "ops/rmsnorm.h"
#include "ops/round.h"
#include "ops/weights.h"
#include "engine/model/prefetch.h"
#include "engine/pass/indexing.h"
#include "engine/pass/lead.h"
#include "engine/pass/offload.h"
#include "engine/pass/tap.h"
#include "engine/pass/vocab.h"

/* The attention heads that this process computes. */
static struct op_share own_heads(const struct workspace *w)
{
    const struct dims *dims = &w->model->config.dims;
    return op_own(&w->cx, dims->H, attention_head_unit(dims->v));
}

/* The attention heads that this process rotates: all of them if a tap may want them. */
static struct op_share rotated_heads(const struct workspace *w)
{
    return w->cx.ranks && w->cx.ranks->wide ? (struct op_share){0, w->model->config.dims.H} : own_heads(w);
}

/* Gives each rank all heads of rows y [S, H * width] if a tap may want them. */
static void share_heads(const struct workspace *w, float *y, size_t width, size_t S)
{
    const struct dims *dims = &w->model->config.dims;
    if (w->cx.ranks && w->cx.ranks->wide)
        op_gather_floats(&w->cx, y, S, dims->H * width, attention_head_unit(dims->v) * width);
}

struct attention forward_attention(const struct workspace *w, const struct mla *a)
{
    const struct config *c = &w->model->config;
    struct op_share heads = own_heads(w);
    int chooses = offload_chooses(w, a); /* without a device, what follows from it is not used */
    return (struct attention){.heads = heads.end - heads.begin, .row_heads = c->dims.H, .nope = c->dims.n,
                              .rope = c->dims.r, .value = c->dims.v,
                              .latent = c->dims.c, .w_uk = a->w_uk, .w_uv = a->w_uv,
                              .uk_stride = a->uk_stride, .uv_stride = a->uv_stride, .uk_transposed = a->uk_transposed,
                              .scale = w->scale, .cache = model_cache_layout(c).type,
                              .device_rows = chooses ? w->offload.kept_rows : w->offload.rows,
                              .longest = chooses ? w->kept_most : w->offload.longest};
}

struct router forward_router(const struct config *c, const struct moe *moe)
{
    const unsigned char *convention = c->conventions.value;
    int mistral = c->topk_method == TOPK_GROUP_LIMITED_TOP2;
    return (struct router){.experts = c->dims.E, .chosen = c->dims.chosen,
                           .groups = c->dims.groups, .chosen_groups = c->dims.chosen_groups,
                           .sigmoid = c->scoring_func == SCORING_SIGMOID,
                           .group_sum_of_two = c->topk_method == TOPK_NOAUX_TC || mistral,
                           .grouped = c->topk_method != TOPK_GREEDY,
                           .norm_topk_prob = c->norm_topk_prob, .scale_softmax = mistral,
                           .routed_scaling_factor = (float)c->routed_scaling_factor,
                           .bias = moe->e_score_correction_bias, .mask_with_zero = convention[GROUP_MASK] || mistral,
                           .normaliser = convention[NORMALISER_EPS], .bf16 = convention[GATE]};
}

/* Reports the inputs of attention for these rows: the queries after RoPE, and the latents and keys that have just been
 * written to the cache. */
static void tap_rope_and_cache_rows(struct workspace *w, size_t S)
{
    const struct config *c = &w->model->config;
    size_t H = c->dims.H, r = c->dims.r, latent = c->dims.c;
    size_t n = c->dims.n;
    tapper_tell_matrix(w->tapper, "self_attn.q_rope", 0, S, w->q + n, H, r, H * (n + r), n + r);
    for (size_t s = 0; s < S; s++) {
        const float *row = w->kv_a + s * (latent + r);
        tapper_tell(w->tapper, "self_attn.kv_a_layernorm.output", s, 1, row, 0, latent, latent);
        tapper_tell(w->tapper, "self_attn.k_rope", s, 1, row + latent, 0, r, r);
    }
}

float forward_query_scale(const struct workspace *w, const struct row *row)
{
    const struct config *c = &w->model->config;
    return c->query_beta > 0 ? config_query_scale(c, (int)row->position) : 1.0f;
}

void forward_cache_rows(struct workspace *w, const struct mla *a, size_t layer, const struct row *rows, size_t S)
{
    const struct config *c = &w->model->config;
    size_t H = c->dims.H, n = c->dims.n, r = c->dims.r, latent = c->dims.c;
    struct op_share heads = rotated_heads(w);
    struct cache_rows cache = {.heads = heads.end - heads.begin, .ldq = H * (n + r), .nope = n, .rope = &w->rope,
                               .layout = rows->cache->pool->layout, .layer = layer,
                               .round_latent = c->index_topk && c->conventions.value[LATENT_CACHE],
                               .read_back = w->tapper != NULL};
    op_rmsnorm(&w->cx, w->kv_a, latent + r, w->kv_a, latent + r, a->kv_a_layernorm, S, latent, (float)c->latent_eps);
    op_cache_rows(&w->cx, w->q + heads.begin * (n + r), w->kv_a, w->cos_sin,
                  offload_is_on(w) ? w->offload.rows : w->places, &cache, S);
    for (size_t s = 0; s < S; s++)
        w->seen[s] = (struct timeline){kvcache_layer(rows[s].cache, layer), w->places[s].slots, w->places[s].length};
}

/* Returns whether a row has attention in the expanded form. A row for which tokens were chosen has the absorbed
 * form. */
static int is_expanded(const struct workspace *w, const struct row *rows, size_t s)
{
    return rows[s].expanded && w->seen[s].length == (size_t)rows[s].index + 1;
}

/* Neighbouring rows with the same form of attention are computed together. */
void forward_attend(struct workspace *w, const struct attention *a, const struct row *rows, size_t S)
{
    size_t ldq = a->row_heads * (a->nope + a->rope), ldy = a->row_heads * a->value, first = own_heads(w).begin;
    const float *q = w->q + first * (a->nope + a->rope);
    float *y = w->heads + first * a->value;
    if (!a->heads && !w->cx.ranks->scores) /* this rank has no heads */
        return;
    for (size_t s = 0, count; s < S; s += count) {
        for (count = 1; s + count < S && is_expanded(w, rows, s + count) == is_expanded(w, rows, s);)
            count++;
        (is_expanded(w, rows, s) ? op_expanded : op_attention)(&w->cx, y + s * ldy, q + s * ldq, w->seen + s, a, count,
                                                               w->context);
    }
}

/* Computes out = self_attn(x). The latents of all rows are written to the cache first, because a row also attends to
 * earlier rows of the same pass. */
static void self_attention(struct workspace *w, const struct mla *a, size_t layer, const struct row *rows,
                           const float *x, float *out, size_t S)
{
    const struct config *c = &w->model->config;
    struct attention attention = forward_attention(w, a);
    attention.layer = layer;
    size_t head = attention.nope + attention.rope, q_width = c->dims.H * head,
           kv_a_width = attention.latent + attention.rope;
    size_t rank = c->dims.q;
    struct linear q = {w->q + own_heads(w).begin * head, rank ? &a->q_b_proj : &a->q_proj, q_width};
    struct linear first[] = {rank ? (struct linear){w->q_a, &a->q_a_proj, 0} : q, {w->kv_a, &a->kv_a_proj_with_mqa, 0},
                             {w->index_k, &a->indexer.wk, 0}};

    op_enter(&w->cx, PART_Q_A);
    op_linears(&w->cx, first, a->has_indexer ? 3 : 2, x, S);
    op_enter(&w->cx, PART_SMALL);
    if (rank) {
        tap(w, "self_attn.q_a_proj.output", w->q_a, rank);
        op_rmsnorm(&w->cx, w->q_a, rank, w->q_a, rank, a->q_a_layernorm, S, rank, (float)c->latent_eps);
        tap(w, "self_attn.q_a_layernorm.output", w->q_a, rank);
        op_enter(&w->cx, PART_Q_B);
        op_linears(&w->cx, &q, 1, w->q_a, S);
        op_enter(&w->cx, PART_SMALL);
    }
    share_heads(w, w->q, head, S);
    tap(w, rank ? "self_attn.q_b_proj.output" : "self_attn.q_proj.output", w->q, q_width);
    tap(w, "self_attn.kv_a_proj_with_mqa.output", w->kv_a, kv_a_width);
    forward_cache_rows(w, a, layer, rows, S);
    if (w->tapper)
        tap_rope_and_cache_rows(w, S);
    if (w->kept_most && !a->sees_all)
        index_tokens(w, a, layer, rows, x, S);
    tap_operator(w, "self_attn.");
    op_enter(&w->cx, PART_ATTENTION);
    forward_attend(w, &attention, rows, S);
    op_enter(&w->cx, PART_O);
    share_heads(w, w->heads, attention.value, S);
    tap(w, "self_attn.o_proj.input", w->heads, c->dims.H * attention.value);
    op_linear_divided(&w->cx, out, c->dims.d, w->heads, attention_head_unit(attention.value) * attention.value,
                      &a->o_proj, S);
    op_enter(&w->cx, PART_SMALL);
    tap(w, "self_attn.o_proj.output", out, c->dims.d);
}

struct mlp_weights forward_mlp_weights(const struct mlp *m)
{
    return (struct mlp_weights){&m->gate_proj, &m->up_proj, &m->down_proj};
}

static struct mlp_weights expert_weights(const void *moe, size_t e)
{
    return forward_mlp_weights(&((const struct moe *)moe)->experts[e]);
}

const int32_t *const *forward_forced(struct workspace *w, size_t at, size_t S)
{
    int any = 0;
    for (size_t s = 0; s < S; s++) {
        const int32_t *of_row = w->forced[s];
        w->forced[s] = of_row && of_row[at] >= 0 ? of_row + at : NULL;
        any |= w->forced[s] != NULL;
    }
    return any ? w->forced : NULL;
}

static const int32_t *const *forced_experts(struct workspace *w, size_t layer, const struct row *rows, size_t S)
{
    for (size_t s = 0; s < S; s++)
        w->forced[s] = rows[s].forced;
    return forward_forced(w, layer * w->model->config.dims.chosen, S);
}

static void keep_taken_experts(const struct workspace *w, size_t layer, const struct row *rows, size_t S)
{
    size_t chosen = w->model->config.dims.chosen;
    for (size_t s = 0; s < S; s++)
        if (rows[s].taken)
            memcpy(rows[s].taken + layer * chosen, w->experts + s * chosen, chosen * sizeof *w->experts);
}

void forward_gate(struct workspace *w, const struct router *router, const struct moe *moe, const float *x,
                  float *scratch, size_t S)
{
    if (router->bf16) {
        op_round(&w->cx, scratch, x, S * w->model->config.dims.d);
        op_linear_exact(&w->cx, w->scores, scratch, &moe->gate, S);
        op_round(&w->cx, w->scores, w->scores, S * router->experts);
    } else {
        op_linear_exact(&w->cx, w->scores, x, &moe->gate, S);
    }
}

static void feed_forward(struct workspace *w, const struct layer *l, size_t layer, const struct row *rows,
                         const float *x, float *out, size_t S)
{
    const struct config *c = &w->model->config;
    if (!l->is_moe) {
        struct mlp_weights dense = forward_mlp_weights(&l->mlp);
        op_enter(&w->cx, PART_DENSE);
        op_mlp(&w->cx, out, x, &dense, S);
        op_enter(&w->cx, PART_SMALL);
        return;
    }
    struct router router = forward_router(c, &l->moe);
    router.forced = forced_experts(w, layer, rows, S);
    struct mlp_weights shared = forward_mlp_weights(&l->moe.shared_experts);
    struct moe_weights weights = {router.experts, router.chosen, c->dims.expert, expert_weights,
                                  &l->moe, c->n_shared_experts ? &shared : NULL};
    op_enter(&w->cx, PART_ROUTER);
    forward_gate(w, &router, &l->moe, x, out, S); /* `out` is scratch until op_moe writes it */
    tap(w, "mlp.gate.output", w->scores, router.experts);
    tap_operator(w, "mlp.gate.");
    op_router(&w->cx, w->experts, w->weights, w->scores, &router, S);
    keep_taken_experts(w, layer, rows, S);
    tap_operator(w, "mlp.");
    model_prefetch_experts(w->model, l, w->experts, S * router.chosen);
    op_enter(&w->cx, PART_EXPERTS);
    op_moe(&w->cx, out, x, w->experts, w->weights, &weights, S);
    op_enter(&w->cx, PART_SMALL);
}

/* One decoder layer: x += attention(norm(x)); x += feed_forward(norm(x)). */
static void decoder_layer(struct workspace *w, const struct layer *l, size_t cache_layer, const struct row *rows,
                          size_t S)
{
    size_t d = w->model->config.dims.d;
    float eps = (float)w->model->config.rms_norm_eps;
    model_prefetch_layer(w->model, l);
    offload_place(w, l->attention_on_device && w->offload.attention && cache_layer >= w->offload.from, S);
    tap(w, "input_layernorm.input", w->x, d);
    op_rmsnorm(&w->cx, w->normed, d, w->x, d, l->input_layernorm, S, d, eps);
    tap(w, "input_layernorm.output", w->normed, d);
    self_attention(w, &l->self_attn, cache_layer, rows, w->normed, w->delta, S);
    op_add(&w->cx, w->x, w->delta, S * d);
    offload_place(w, l->mlp_on_device && cache_layer >= w->offload.from, S);
    tap(w, "post_attention_layernorm.input", w->x, d);
    op_rmsnorm(&w->cx, w->normed, d, w->x, d, l->post_attention_layernorm, S, d, eps);
    tap(w, "post_attention_layernorm.output", w->normed, d);
    feed_forward(w, l, cache_layer, rows, w->normed, w->delta, S);
    tap(w, "mlp.output", w->delta, d);
    op_add(&w->cx, w->x, w->delta, S * d);
    tap(w, "output", w->x, d);
}

static struct device_row place_of(const struct workspace *w, const struct row *row)
{
    const struct kvcache *cache = row->cache;
    return (struct device_row){.rows = kvcache_layer(cache, 0),
                               .layer_bytes = cache->pool->capacity * cache->pool->row * 4,
                               .slots = row->slots ? row->slots : cache->slots,
                               .length = (uint32_t)(row->index + 1 - row->skipped), .slot = row->slot,
                               .query_scale = forward_query_scale(w, row)};
}

void forward_rows(struct workspace *w, const struct row *rows, size_t S)
{
    for (size_t s = 0; s < S; s++) {
        w->ids[s] = rows[s].token;
        op_rope_angles(w->cos_sin + s * w->rope.dim, &w->rope, rows[s].position);
        w->places[s] = place_of(w, &rows[s]);
    }
}

/* `depth` is the MTP depth, or -1 for the target. */
static void begin_pass(struct workspace *w, const struct row *rows, size_t S, int depth)
{
    op_enter(&w->cx, PART_SMALL);
    if (w->tapper)
        tapper_pass(w->tapper, rows, S, depth);
    forward_rows(w, rows, S);
}

/* Copies x to the columns [part d, (part + 1) d) of w->two. */
static void keep_of_two(struct workspace *w, size_t part, size_t S)
{
    size_t d = w->model->config.dims.d;
    for (size_t s = 0; s < S; s++)
        memcpy(w->two + (2 * s + part) * d, w->x + s * d, d * sizeof *w->x);
}

static void keep_features(struct workspace *w, int layer, size_t S)
{
    size_t d = w->model->config.dims.d;
    if (w->two && layer == w->model->config.num_hidden_layers - 1) {
        offload_show_x(w, S);
        keep_of_two(w, 0, S);
    }
    if (w->three && (layer == w->three_before[0] || layer == w->three_before[1] || layer == w->three_before[2]))
        offload_show_x(w, S);
    for (size_t i = 0; w->three && i < 3; i++)
        for (size_t s = 0; w->three_before[i] == layer && s < S; s++)
            memcpy(w->three + (3 * s + i) * d, w->x + s * d, d * sizeof *w->x);
}

/* Returns whether the callback `stop` ends the pass. If there are several ranks, rank 0 calls it for all of them, and
 * only in long passes. */
static int is_stopped(struct workspace *w)
{
    if (w->cx.ranks && !w->asks)
        return 0;
    unsigned char answer = w->stop && w->stop(w->stop_context);
    op_spread(&w->cx, 0, &answer, 1);
    return answer;
}

/* Returns nonzero if `stop` ended the pass. It was asked before the first layer, and is not asked while a pass is
 * recorded. */
static int decoder_layers(struct workspace *w, const struct row *rows, size_t S)
{
    const struct vb_model *m = w->model;
    for (size_t l = 0; l < m->config.dims.layers; l++) {
        if (l && !w->offload.records && is_stopped(w))
            return 1;
        tap_layer(w, (int32_t)l);
        keep_features(w, (int)l, S);
        decoder_layer(w, &m->layers[l], l, rows, S);
        op_first_not_finite(&w->cx, offload_is_on(w) ? w->offload.first_bad_layer : w->first_bad_layer, w->x,
                            (int32_t)l, S, w->model->config.dims.d);
    }
    return 0;
}

int forward_target(struct workspace *w, const struct row *rows, size_t S)
{
    const struct vb_model *m = w->model;
    size_t d = m->config.dims.d;
    if (lead_target(w, rows, S))
        return -1;
    struct op_pass pass = op_begin_pass(&w->cx, &w->pace, S);
    begin_pass(w, rows, S, -1);
    offload_begin(w, NULL, rows, S);
    for (size_t s = 0; s < S; s++) /* passes of MTP modules don't reset this: it is still needed for other sequences of
                                      the target's pass */
        w->first_bad_layer[s] = -1;
    op_embed(&w->cx, w->x, d, &m->embed_tokens, w->ids, S);
    tap(w, "model.embed_tokens.output", w->x, d);
    int stopped = is_stopped(w), replayed = !stopped && offload_replay(w, NULL, S);
    if (!stopped && !replayed)
        stopped = decoder_layers(w, rows, S);
    offload_recorded(w, NULL, S);
    offload_end(w, S);
    offload_note_bad_layers(w, S);
    if (stopped)
        return -1; /* op_end_pass is not called, so the duration of this pass is not recorded */
    tap_layer(w, -1);
    tap(w, "model.norm.input", w->x, d);
    op_rmsnorm(&w->cx, w->hidden, d, w->x, d, m->norm, S, d, (float)m->config.rms_norm_eps);
    tap(w, "model.norm.output", w->hidden, d);
    if (w->features != w->hidden)
        memcpy(w->features, w->x, S * d * sizeof *w->x);
    if (w->two)
        keep_of_two(w, 1, S);
    op_enter(&w->cx, PART_OUTSIDE);
    op_end_pass(&w->cx, &pass);
    return 0;
}

void forward_module_embedding(struct workspace *w, const struct mtp_module *module, const struct row *rows, size_t S)
{
    size_t d = w->model->config.dims.d;
    op_embed(&w->cx, w->x, d, &module->embed_tokens, w->ids, S);
    for (size_t s = 0; s < S && w->model->config.conventions.value[FIRST_EMBEDDING]; s++)
        if (rows[s].position == 0)
            memset(w->x + s * d, 0, d * sizeof *w->x);
}

/* Computes w->concat, the input of eh_proj. */
static void concatenate(struct workspace *w, const struct mtp_module *module, const struct row *rows, const float *h,
                        size_t S)
{
    size_t d = w->model->config.dims.d;
    const unsigned char *convention = w->model->config.conventions.value;
    int hidden_first = convention[CONCAT];
    float *embedding = w->concat + (hidden_first ? d : 0), *hidden = w->concat + (hidden_first ? 0 : d);
    float eps = (float)w->model->config.rms_norm_eps;
    forward_module_embedding(w, module, rows, S);
    tap(w, "embed_tokens.output", w->x, d);
    tap(w, "hnorm.input", h, d);
    op_rmsnorm(&w->cx, embedding, 2 * d, w->x, d, module->enorm, S, d, eps);
    op_rmsnorm(&w->cx, hidden, 2 * d, h, d, module->hnorm, S, d, eps);
    tap_of(w, "enorm.output", embedding, d, 2 * d);
    tap_of(w, "hnorm.output", hidden, d, 2 * d);
    tap(w, "eh_proj.input", w->concat, 2 * d);
}

/* w->x = eh_proj concat, or h for a parallel head; then the decoder layer. */
static void module_layer(struct workspace *w, const struct mtp_module *module, const struct row *rows, const float *h,
                         size_t S)
{
    size_t d = w->model->config.dims.d;
    if (!mtp_is_head(module)) {
        op_linear_divided(&w->cx, w->x, d, w->concat, 0, &module->eh_proj, S);
        op_enter(&w->cx, PART_SMALL);
        tap(w, "eh_proj.output", w->x, d);
    } else {
        memcpy(w->x, h, S * d * sizeof *h);
    }
    decoder_layer(w, &module->layer, 0, rows, S);
}

void forward_mtp(struct workspace *w, const struct mtp_module *module, int depth, const struct row *rows,
                 const float *h, float *g, float *next, size_t S)
{
    const unsigned char *convention = w->model->config.conventions.value;
    size_t d = w->model->config.dims.d;
    float eps = (float)w->model->config.rms_norm_eps;
    lead_mtp(w, module, depth, rows, h, S);
    struct op_pass pass = op_begin_pass(&w->cx, &w->module_pace, S);
    begin_pass(w, rows, S, depth);
    offload_begin(w, module, rows, S);
    tap_layer(w, w->model->config.num_hidden_layers + (int32_t)(module - w->model->mtp));
    if (!mtp_is_head(module))
        concatenate(w, module, rows, h, S);
    op_enter(&w->cx, PART_EH);
    offload_concat(w, module->layer.attention_on_device, S);
    if (!offload_replay(w, module, S)) {
        module_layer(w, module, rows, h, S);
        offload_recorded(w, module, S);
    }
    if (!module->layer.self_attn.sees_all)
        offload_keep(w, rows, S);
    op_enter(&w->cx, PART_SMALL);
    offload_end(w, S);
    tap(w, "shared_head.norm.input", w->x, d);
    op_rmsnorm(&w->cx, g, d, w->x, d, module->shared_head_norm, S, d, eps);
    tap(w, "shared_head.norm.output", g, d);
    const float *handed = convention[DRAFT_HIDDEN] ? w->x : g;
    if (next != handed)
        memcpy(next, handed, S * d * sizeof *handed);
    op_enter(&w->cx, PART_OUTSIDE);
    op_end_pass(&w->cx, &pass);
}

void forward_head(struct workspace *w, const struct weight_view *head, float *logits, const float *hidden, size_t S)
{
    lead_head(w, head, NULL, w->cx.bf16, hidden, S);
    op_enter(&w->cx, PART_HEAD);
    if (!offload_head(w, head, logits, hidden, S))
        op_linear_divided(&w->cx, logits, w->model->config.dims.V, hidden, 0, head, S);
    op_enter(&w->cx, PART_OUTSIDE);
}

void forward_head_best(struct workspace *w, const struct weight_view *head, int32_t *best, const float *hidden,
                       size_t S)
{
    if (offload_head_best(w, head, best, hidden, S))
        return;
    forward_head(w, head, w->logits, hidden, S);
    op_argmax(&w->cx, best, w->logits, S, w->model->config.dims.V);
}

void forward_listed(struct workspace *w, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                    size_t S)
{
    lead_head(w, &w->model->mtp[module].head, vocab, w->cx.bf16, hidden, S);
    op_enter(&w->cx, PART_HEAD);
    op_linear_cut(&w->cx, logits, vocab->cuts, hidden, &vocab->heads[module], S);
    op_enter(&w->cx, PART_OUTSIDE);
}

void forward_tap_logits(const struct workspace *w, const float *logits, size_t vocab_size, size_t first, size_t count)
{
    if (w->tapper)
        tapper_tell(w->tapper, w->tapper->depth < 0 ? "lm_head.output" : "shared_head.head.output", first, count,
                    logits, 0, vocab_size, vocab_size);
}
