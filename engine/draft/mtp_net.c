/* engine/draft/mtp_net.c -- the model's MTP modules as a network that drafts. Their passes run in the target's
 * workspace. */
#include "engine/draft/net.h"
#include "engine/pass/forward.h"
#include "engine/pass/vocab.h"

#include <string.h>

struct mtp_net { /* handed around as its first part */
    struct draft_net net;
    const struct vb_model *model;
    const vb_draft_vocab *vocab; /* NULL: every token may be drafted */
};

static const struct mtp_net *of(const struct draft_net *net) { return (const struct mtp_net *)(const void *)net; }

static const struct vb_model *model_of(const struct draft_net *net) { return of(net)->model; }

static const struct mtp_module *module_of(const struct draft_net *net, int depth)
{
    const struct vb_model *m = model_of(net);
    return &m->mtp[depth % m->num_mtp];
}

static struct row row(const struct draft_net *net, struct kvcache *cache, int depth, size_t i, size_t ahead,
                      int32_t token)
{
    size_t position = model_of(net)->config.conventions.value[DRAFT_POSITION] ? i + ahead : i;
    return (struct row){.cache = cache, .token = token, .index = (int32_t)(i + net->rows_before),
                        .position = (int32_t)position,
                        .slot = kvcache_append(cache), .hidden_of = (int32_t)i, .hidden_depth = depth - 1};
}

/* FIRST_ROW: before row 0 an empty cache gets the pair (zeros, tok[ahead - 1]). */
static void first_row(struct draft_net *net, struct pass *pass, struct kvcache *cache, int depth, size_t ahead,
                      int32_t token)
{
    if (!net->rows_before || cache->length)
        return;
    struct row zeros = {.cache = cache, .token = token,
                        .position = pass->model->config.conventions.value[DRAFT_POSITION] ? (int32_t)ahead - 1 : -1,
                        .slot = kvcache_append(cache), .hidden_of = -1, .hidden_depth = depth - 1};
    memset(pass->w.delta, 0, net->width * sizeof *pass->w.delta);
    forward_mtp(pass, module_of(net, depth), depth, &zeros, pass->w.delta, pass->w.delta, pass->w.delta, 1);
    trace_pass(cache->tracer, depth, &zeros, 1);
}

static size_t most_rows(const struct draft_net *net, const struct pass *pass)
{
    (void)net;
    return pass->w.max_rows;
}

static void pass(struct draft_net *net, struct pass *pass, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S)
{
    forward_mtp(pass, module_of(net, depth), depth, rows, h, g, next, S);
}

static void logits(struct draft_net *net, struct pass *pass, int depth, float *out, const float *g, size_t first,
                   size_t S)
{
    const vb_draft_vocab *vocab = of(net)->vocab;
    if (vocab)
        forward_listed(pass, vocab, depth % model_of(net)->num_mtp, out, g, S);
    else
        forward_head(pass, &module_of(net, depth)->head, out, g, S);
    forward_tap_logits(pass, out, net->vocab_size, first, S);
}

static int best(struct draft_net *net, struct pass *pass, int depth, int32_t *best, const float *g, size_t S)
{
    if (pass->tapper || of(net)->vocab)
        return 0;
    forward_head_best(pass, &module_of(net, depth)->head, best, g, S);
    return 1;
}

static int32_t token(const struct draft_net *net, int32_t drafted)
{
    return of(net)->vocab && drafted >= 0 ? of(net)->vocab->tokens[drafted] : drafted;
}

static int is_same(const struct draft_net *a, const struct draft_net *b) { return of(a)->vocab == of(b)->vocab; }

static void close_net(struct draft_net *net) { vb_free(model_of(net)->allocator, net); }

static const struct draft_net_type modules = {.row = row, .first_row = first_row, .most_rows = most_rows, .pass = pass,
                                              .logits = logits, .best = best, .token = token, .is_same = is_same,
                                              .close = close_net};

int mtp_net_open(struct draft_net **out, const struct vb_model *m, const vb_draft_vocab *vocab, vb_error *err)
{
    const struct config *c = &m->config;
    struct mtp_net *n = vb_alloc(m->allocator, 1, sizeof *n);
    *out = NULL;
    if (!n)
        return vb_fail(err, VB_NO_MEMORY, "no memory for MTP modules");
    n->model = m;
    n->vocab = vocab;
    n->net = (struct draft_net){.type = &modules, .width = c->dims.d, .vocab_size = vocab ? vocab->count : c->dims.V,
                                .cache = model_mtp_cache_layout(c), .ranks = m->ranks,
                                .rows_before = c->conventions.value[FIRST_ROW] ? 1 : 0, .other_tokens = vocab != NULL};
    *out = &n->net;
    return VB_OK;
}
