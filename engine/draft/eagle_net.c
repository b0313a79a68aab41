/* engine/draft/eagle_net.c -- an EAGLE head as a network that drafts: its passes are those of a module
 * (engine/pass/layer.c). */
#include "engine/draft/eagle_net.h"
#include "engine/pass/forward.h"

#include <assert.h>
#include <string.h>

#include "numbers/numbers.h"
#include "engine/pass/lead.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"

static const struct draft_net_type eagle1_net, eagle3_net;

int eagle_open(struct eagle *e, struct eagle_head *head, const struct drafter_options *o, vb_error *err)
{
    const struct config *c = &head->model.config;
    size_t S = o->most_observed;
    *e = (struct eagle){.head = head};
    int code = pass_open(&e->pass, &head->model, o->kernels, o->threads, S, 0, o->context, 0, err);
    if (code)
        return code;
    if (head->feature_norms[0] && !(e->features = workspace_take(&e->pass.w, S * c->dims.features, sizeof(float))))
        return vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows through an EAGLE head", S);
    e->net = (struct draft_net){.type = head->version == 3 ? &eagle3_net : &eagle1_net, .width = c->dims.d,
                                .vocab_size = head->vocab_size, .cache = model_mtp_cache_layout(c),
                                .bytes = e->pass.w.bytes, .other_tokens = head->d2t != NULL};
    return VB_OK;
}

void eagle_close(struct eagle *e)
{
    if (!e->head)
        return;
    e->pass.cx.crew = NULL; /* the target's */
    pass_close(&e->pass);
    eagle_head_close(e->head);
    *e = (struct eagle){0};
}

/* The target's threads help. */
static void share_threads(struct eagle *e, const struct pass *target)
{
    e->pass.cx.placement = target->cx.placement;
    e->pass.cx.crew = target->cx.crew;
}

void eagle_pass(struct eagle *e, const struct pass *target, const struct row *rows, const float *h, float *g,
                float *next, size_t S)
{
    assert(S <= e->pass.w.max_rows);
    share_threads(e, target);
    forward_mtp(&e->pass, &e->head->module, 0, rows, h, g, next, S);
}

/* -> the input of fc: the features, or e->features */
static const float *normed_features(struct eagle *e, const float *features, size_t S)
{
    const struct eagle_head *head = e->head;
    size_t three = head->fc.cols, width = head->norms.fc_norm ? three / 3 : three;
    for (size_t i = 0; config_feature_norm(&head->norms, i); i++)
        op_rmsnorm(&e->pass.cx, e->features + i * width, three, features + i * width, three, head->feature_norms[i], S,
                   width, (float)head->model.config.rms_norm_eps);
    return head->feature_norms[0] ? e->features : features;
}

void eagle_features(struct eagle *e, const struct pass *target, float *h, const float *features, size_t n)
{
    const struct weight_view *fc = &e->head->fc;
    share_threads(e, target);
    for (size_t i = 0, S; i < n; i += S) {
        S = min_size(n - i, e->pass.w.max_rows);
        op_linear(&e->pass.cx, h + i * fc->rows, normed_features(e, features + i * fc->cols, S), fc, S);
    }
}

void eagle_logits(struct eagle *e, const struct pass *target, float *logits, const float *g, size_t S)
{
    struct op_ctx *cx = &e->pass.cx;
    share_threads(e, target);
    if (e->head->version == 3) {
        op_linear(cx, logits, g, &e->head->module.head, S);
        return;
    }
    /* lm_head belongs to the target, whose ranks may each have a share */
    lead_head(target, &target->model->lm_head, NULL, cx->arithmetic, g, S);
    cx->ranks = target->cx.ranks;
    op_linear_divided(cx, logits, e->head->vocab_size, g, 0, &e->head->module.head, S);
    cx->ranks = NULL;
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
    return of(net)->pass.w.max_rows;
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
    return !strcmp(checkpoint_dir(of(a)->head->model.checkpoint), checkpoint_dir(of(b)->head->model.checkpoint));
}

static uint64_t fingerprint(const struct draft_net *net)
{
    return checkpoint_fingerprint(of(net)->head->model.checkpoint);
}

static size_t bytes_of_weights(const struct draft_net *net) { return eagle_head_bytes(of(net)->head); }

static void close_net(struct draft_net *net)
{
    const vb_allocator *a = of(net)->head->model.allocator;
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
