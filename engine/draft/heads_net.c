/* engine/draft/heads_net.c -- passes of rows through parallel heads. Heads may be wider or narrower inside than the
 * target's layers, so they have a workspace of their own. */
#include "engine/draft/heads_net.h"
#include "engine/pass/forward.h"

#include <string.h>

#include "numbers/numbers.h"
#include "engine/pass/reads.h"

struct heads_net { /* handed around as its first part */
    struct draft_net net;
    const struct vb_model *target;
    struct vb_model *heads;   /* head k is heads->mtp[k] */
    struct pass pass;
    size_t after_last;     /* 1: the heads read the residual stream after the target's last layer; 0: before it */
};

static struct heads_net *of(const struct draft_net *net) { return (struct heads_net *)(uintptr_t)net; }

static struct row row(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, size_t ahead,
                      int32_t token)
{
    (void)net, (void)ahead;
    return (struct row){.cache = cache, .token = token, .index = (int32_t)i, .position = (int32_t)i,
                        .slot = kvcache_append(cache), .hidden_of = (int32_t)i, .hidden_depth = depth - 1};
}

static size_t most_rows(const struct draft_net *net, const struct pass *pass)
{
    return min_size(of(net)->pass.w.max_rows, pass->w.max_rows);
}

static void take(struct draft_net *net, struct pass *pass, float *h, const float *of_target, size_t n)
{
    size_t d = net->width;
    (void)pass;
    for (size_t i = 0; i < n; i++)
        memcpy(h + i * d, of_target + (2 * i + of(net)->after_last) * d, d * sizeof *h);
}

/* The target's threads help, and its tap callback sees the values. */
static void pass(struct draft_net *net, struct pass *pass, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S)
{
    struct heads_net *n = of(net);
    n->pass.cx.placement = pass->cx.placement;
    n->pass.cx.crew = pass->cx.crew;
    n->pass.cx.probe = pass->cx.probe;
    n->pass.tapper = pass->tapper;
    forward_mtp(&n->pass, &n->heads->mtp[depth], depth, rows, h, g, next, S);
}

static void logits(struct draft_net *net, struct pass *pass, int depth, float *out, const float *g, size_t first,
                   size_t S)
{
    (void)depth, (void)first;
    forward_head(pass, &of(net)->target->lm_head, out, g, S);
}

static int is_same(const struct draft_net *a, const struct draft_net *b)
{
    return !strcmp(checkpoint_dir(of(a)->heads->checkpoint), checkpoint_dir(of(b)->heads->checkpoint));
}

static uint64_t fingerprint(const struct draft_net *net) { return checkpoint_fingerprint(of(net)->heads->checkpoint); }

struct bytes_read {
    double bytes;
    size_t chosen; /* experts per token */
};

static void add_bytes(void *context, const struct read *r)
{
    struct bytes_read *sum = context;
    sum->bytes += read_bytes(&r->w, r->w.rows) * (double)(r->routed ? sum->chosen : 1);
}

/* One pass of all heads and one of the output head make as many drafts: a draft reads its share of them. */
static size_t bytes_of_weights(const struct draft_net *net)
{
    const struct vb_model *m = of(net)->heads;
    struct bytes_read sum = {.chosen = m->config.dims.chosen};
    for (int k = 0; k < m->num_mtp; k++)
        reads_of_layer(&m->config, &m->mtp[k].layer, add_bytes, &sum);
    return (size_t)((sum.bytes + (double)weight_bytes(&of(net)->target->lm_head)) / m->num_mtp);
}

static void close_net(struct draft_net *net)
{
    struct heads_net *n = of(net);
    n->pass.cx.crew = NULL; /* the target's */
    pass_close(&n->pass);
    model_close(n->heads);
    vb_free(n->target->allocator, n);
}

static const struct draft_net_type heads_net = {.row = row, .most_rows = most_rows, .take = take, .pass = pass,
                                                .logits = logits, .is_same = is_same, .fingerprint = fingerprint,
                                                .weight_bytes = bytes_of_weights, .close = close_net};

int heads_net_open(struct draft_net **out, int *count, const char *dir, const struct vb_model *target,
                   const struct drafter_options *o, vb_error *err)
{
    struct heads_net *n = vb_alloc(target->allocator, 1, sizeof *n);
    int trunk_layers;
    *out = NULL;
    if (!n)
        return vb_fail(err, VB_NO_MEMORY, "no memory for parallel heads");
    n->target = target;
    int code = model_open_heads(&n->heads, &trunk_layers, dir, target, err);
    if (!code)
        code = pass_open(&n->pass, n->heads, o->kernels, o->threads, o->most_observed, 0, o->context, 0, err);
    if (code) {
        model_close(n->heads);
        vb_free(target->allocator, n);
        return code;
    }
    n->after_last = trunk_layers == target->config.num_hidden_layers;
    n->net = (struct draft_net){.type = &heads_net, .width = target->config.dims.d, .vocab_size = target->config.dims.V,
                                .cache = model_mtp_cache_layout(&n->heads->config), .bytes = n->pass.w.bytes};
    *count = n->heads->num_mtp;
    *out = &n->net;
    return VB_OK;
}
