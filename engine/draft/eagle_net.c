/* engine/draft/eagle_net.c -- one pass of rows through an EAGLE head. */
#include "engine/draft/eagle_net.h"
#include "engine/pass/lead.h"
#include "engine/base/numbers.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/rmsnorm.h"

static void *take(struct eagle *e, size_t count, size_t size)
{
    void *p = vb_alloc(e->head->allocator, count, size);
    e->blocks[e->block_count++] = p;
    e->net.bytes += count * size;
    return p;
}

static size_t scratch_bytes(const struct eagle *e)
{
    const struct config *c = &e->head->config;
    size_t d = c->dims.d, S = e->max_rows, widest = max_size(e->head->fc.cols, e->head->o_proj.cols);
    size_t bytes = max_size(op_linear_scratch(S, max_size(widest, 2 * d)), op_gqa_scratch(&e->gqa, e->cx.threads));
    return max_size(bytes, op_mlp_scratch(S, d, c->dims.dense)) + 4096;
}

static const struct draft_net_type eagle1_net, eagle3_net;

int eagle_open(struct eagle *e, struct eagle_head *head, const struct drafter_options *o, vb_error *err)
{
    const struct config *c = &head->config;
    size_t d = c->dims.d, H = c->dims.H, D = head->dim, S = o->most_observed;
    struct rope_yarn yarn = {c->rope_factor, c->rope_beta_fast, c->rope_beta_slow, c->rope_mscale,
                             c->rope_mscale_all_dim, (double)c->rope_original_max_position_embeddings};
    *e = (struct eagle){.head = head, .max_rows = S,
                        .net = {.type = head->version == 3 ? &eagle3_net : &eagle1_net, .width = d,
                                .vocab_size = head->vocab_size,
                                .cache = {.type = KV_F32, .latent = 2 * head->groups * D},
                                .other_tokens = head->d2t != NULL},
                        .gqa = {.heads = H, .groups = head->groups, .dim = D,
                                .row = packed_length(2 * head->groups * D), .scale = (float)(1.0 / sqrt((double)D))}};
    e->cx.k = o->kernels;
    e->cx.threads = e->cx.most_threads = o->threads;
    rope_init(&e->rope, D, 0, c->rope_theta, c->rope_yarn ? &yarn : NULL);
    e->cx.scratch_size = scratch_bytes(e);
    if (head->feature_norms[0])
        e->features = take(e, S * head->fc.cols, sizeof(float));
    e->input = take(e, S * 2 * d, sizeof(float));
    e->x = take(e, S * d, sizeof(float));
    e->normed = take(e, S * d, sizeof(float));
    e->delta = take(e, S * d, sizeof(float));
    e->q = take(e, S * H * D, sizeof(float));
    e->k = take(e, S * head->groups * D, sizeof(float));
    e->v = take(e, S * head->groups * D, sizeof(float));
    e->attended = take(e, S * H * D, sizeof(float));
    e->cos_sin = take(e, S * D, sizeof(float));
    e->ids = take(e, S, sizeof(int32_t));
    e->seen = take(e, S, sizeof(struct timeline));
    e->cx.scratch = take(e, e->cx.scratch_size, 1);
    e->cx.kernel_scratch = take(e, (size_t)o->threads, KERNEL_SCRATCH);
    for (size_t i = 0; i < e->block_count; i++)
        if (!e->blocks[i])
            return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows through an EAGLE head", S);
    return VB_OK;
}

void eagle_close(struct eagle *e)
{
    if (!e->head)
        return;
    for (size_t i = 0; i < e->block_count; i++)
        vb_free(e->head->allocator, e->blocks[i]);
    eagle_head_close(e->head);
    *e = (struct eagle){0};
}

/* -> e->x, the residual stream; and in e->input what attention reads, [S, d] or [S, 2d]. */
static void begin(struct eagle *e, const float *h, size_t S)
{
    const struct eagle_head *head = e->head;
    size_t d = eagle_width(e);
    float eps = (float)head->config.rms_norm_eps;
    op_embed(&e->cx, e->x, d, &head->embed_tokens, e->ids, S);
    if (head->version == 3) {
        op_rmsnorm(&e->cx, e->input, 2 * d, e->x, d, head->input_layernorm, S, d, eps);
        op_rmsnorm(&e->cx, e->input + d, 2 * d, h, d, head->hidden_norm, S, d, eps);
        if (!head->norms.norm_before_residual)
            memcpy(e->x, h, S * d * sizeof *h);
        for (size_t s = 0; s < S && head->norms.norm_before_residual; s++)
            memcpy(e->x + s * d, e->input + s * 2 * d + d, d * sizeof *h);
        return;
    }
    for (size_t s = 0; s < S; s++) {
        memcpy(e->input + s * 2 * d, e->x + s * d, d * sizeof *h);
        memcpy(e->input + s * 2 * d + d, h + s * d, d * sizeof *h);
    }
    op_linear(&e->cx, e->x, e->input, &head->fc, S);
    for (size_t s = 0; s < S && head->fc_bias; s++)
        e->cx.k->axpy(e->x + s * d, 1.0f, head->fc_bias, d);
    memcpy(e->input, e->x, S * d * sizeof *h);
}

/* e->input -> e->delta; the rows' keys and values go to the cache first. */
static void attention(struct eagle *e, const struct row *rows, size_t S)
{
    const struct eagle_head *head = e->head;
    size_t H = e->gqa.heads, G = e->gqa.groups, D = e->gqa.dim;
    struct linear three[] = {{e->q, &head->q_proj, 0}, {e->k, &head->k_proj, 0}, {e->v, &head->v_proj, 0}};
    op_linears(&e->cx, three, 3, e->input, S);
    for (size_t s = 0; s < S; s++) {
        const struct kvcache *cache = rows[s].cache;
        const float *cos_sin = e->cos_sin + s * D;
        float *row = kvcache_row(cache, 0, rows[s].slot);
        op_rope(e->q + s * H * D, H, D, cos_sin, &e->rope);
        op_rope(e->k + s * G * D, G, D, cos_sin, &e->rope);
        memcpy(row, e->k + s * G * D, G * D * sizeof *row);
        memcpy(row + G * D, e->v + s * G * D, G * D * sizeof *row);
        e->seen[s] = (struct timeline){kvcache_layer(cache, 0), rows[s].slots ? rows[s].slots : cache->slots,
                                       (size_t)rows[s].index + 1};
    }
    op_gqa(&e->cx, e->attended, e->q, e->seen, &e->gqa, S);
    op_linear(&e->cx, e->delta, e->attended, &head->o_proj, S);
}

/* The target's threads help. */
static void join(struct eagle *e, const struct pass *target)
{
    e->cx.placement = target->cx.placement;
    e->cx.crew = target->cx.crew;
}

void eagle_pass(struct eagle *e, const struct pass *target, const struct row *rows, const float *h, float *g,
                float *next, size_t S)
{
    const struct eagle_head *head = e->head;
    size_t d = eagle_width(e);
    float eps = (float)head->config.rms_norm_eps;
    struct mlp_weights mlp = {&head->mlp.gate_proj, &head->mlp.up_proj, &head->mlp.down_proj};
    assert(S <= e->max_rows);
    join(e, target);
    struct op_pass pass = op_begin_pass(&e->cx, &e->pace, S);
    for (size_t s = 0; s < S; s++) {
        e->ids[s] = rows[s].token;
        op_rope_angles(e->cos_sin + s * e->rope.dim, &e->rope, rows[s].position);
    }
    begin(e, h, S);
    attention(e, rows, S);
    e->cx.k->axpy(e->x, 1.0f, e->delta, S * d);
    op_rmsnorm(&e->cx, e->normed, d, e->x, d, head->post_attention_layernorm, S, d, eps);
    op_mlp(&e->cx, e->delta, e->normed, &mlp, S);
    e->cx.k->axpy(e->x, 1.0f, e->delta, S * d);
    if (head->version == 3)
        op_rmsnorm(&e->cx, g, d, e->x, d, head->norm, S, d, eps);
    else
        memcpy(g, e->x, S * d * sizeof *e->x);
    memcpy(next, head->norms.norm_output ? g : e->x, S * d * sizeof *e->x);
    op_end_pass(&e->cx, &pass);
}

/* -> the input of fc: the features, or e->features */
static const float *normed_features(struct eagle *e, const float *features, size_t S)
{
    const struct eagle_head *head = e->head;
    size_t three = head->fc.cols, width = head->norms.fc_norm ? three / 3 : three;
    for (size_t i = 0; config_feature_norm(&head->norms, i); i++)
        op_rmsnorm(&e->cx, e->features + i * width, three, features + i * width, three, head->feature_norms[i], S,
                   width, (float)head->config.rms_norm_eps);
    return head->feature_norms[0] ? e->features : features;
}

void eagle_features(struct eagle *e, const struct pass *target, float *h, const float *features, size_t n)
{
    join(e, target);
    for (size_t i = 0; i < n; i += e->max_rows) {
        size_t S = n - i < e->max_rows ? n - i : e->max_rows;
        op_linear(&e->cx, h + i * eagle_width(e), normed_features(e, features + i * e->head->fc.cols, S), &e->head->fc,
                  S);
    }
}

void eagle_logits(struct eagle *e, const struct pass *target, float *logits, const float *g, size_t S)
{
    join(e, target);
    if (e->head->version == 3) {
        op_linear(&e->cx, logits, g, &e->head->lm_head, S);
        return;
    }
    lead_head(target, &target->model->lm_head, NULL, 0, g, S); /* lm_head belongs to the target, whose ranks may each
                                                                  have a share */
    e->cx.ranks = target->cx.ranks;
    op_linear_divided(&e->cx, logits, e->head->vocab_size, g, 0, &e->head->lm_head, S);
    e->cx.ranks = NULL;
}

/* ---- as any network that drafts ---- */

static struct eagle *of(const struct draft_net *net) { return (struct eagle *)(uintptr_t)net; }

static struct row row(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, size_t ahead,
                      int32_t token)
{
    (void)net;
    (void)ahead;
    return (struct row){.cache = cache, .token = token, .index = (int32_t)i, .position = (int32_t)i,
                        .slot = kvcache_append(cache), .hidden_of = (int32_t)i, .hidden_depth = depth - 1};
}

static size_t most_rows(const struct draft_net *net, const struct pass *pass)
{
    (void)pass;
    return of(net)->max_rows;
}

static void pass(struct draft_net *net, struct pass *pass, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S)
{
    (void)depth;
    eagle_pass(of(net), pass, rows, h, g, next, S);
}

static void logits(struct draft_net *net, struct pass *pass, int depth, float *out, const float *g, size_t first,
                   size_t S)
{
    (void)depth, (void)first;
    eagle_logits(of(net), pass, out, g, S);
}

static int32_t token(const struct draft_net *net, int32_t drafted)
{
    const int32_t *d2t = of(net)->head->d2t;
    return d2t && drafted >= 0 ? d2t[drafted] : drafted;
}

static void take_features(struct draft_net *net, struct pass *pass, float *h, const float *of_target, size_t n)
{
    eagle_features(of(net), pass, h, of_target, n);
}

static int is_same(const struct draft_net *a, const struct draft_net *b)
{
    return !strcmp(checkpoint_dir(of(a)->head->checkpoint), checkpoint_dir(of(b)->head->checkpoint));
}

static uint64_t fingerprint(const struct draft_net *net) { return checkpoint_fingerprint(of(net)->head->checkpoint); }

static size_t bytes_of_weights(const struct draft_net *net) { return eagle_head_bytes(of(net)->head); }

static void close_net(struct draft_net *net)
{
    const vb_allocator *a = of(net)->head->allocator;
    eagle_close(of(net));
    vb_free(a, net);
}

static const struct draft_net_type eagle1_net = {.row = row, .most_rows = most_rows, .pass = pass, .logits = logits,
                                                 .token = token, .is_same = is_same, .fingerprint = fingerprint,
                                                 .weight_bytes = bytes_of_weights, .close = close_net};
static const struct draft_net_type eagle3_net = {.row = row, .most_rows = most_rows, .pass = pass, .logits = logits,
                                                 .token = token, .take = take_features, .is_same = is_same,
                                                 .fingerprint = fingerprint, .weight_bytes = bytes_of_weights,
                                                 .close = close_net};

int eagle_net_open(struct draft_net **out, const char *dir, int version, const struct vb_model *target,
                   const struct drafter_options *o, vb_error *err)
{
    struct eagle_head *head = NULL;
    struct eagle *e = vb_alloc(target->allocator, 1, sizeof *e);
    *out = NULL;
    if (!e)
        return vb_fail(err, VB_NO_MEMORY, "no memory for an EAGLE head");
    int code = eagle_head_open(&head, dir, version, target, err);
    if (!code)
        code = eagle_open(e, head, o, err);
    if (!code) {
        *out = &e->net;
        return VB_OK;
    }
    eagle_close(e);
    vb_free(target->allocator, e);
    return code;
}
