/* engine/draft/parallel_heads.c -- the n - 1 further heads of a model that predicts n tokens at once (Gloeckle et al.
 * 2024, arXiv 2404.19737). Head k drafts token k+1 of the round. No head reads what another one drafted, so the heads
 * run one after the other, and then one pass of the output head makes all drafts. Every row of a head depends on
 * committed tokens alone, and stays.
 *
 * In a tree, all nodes of a level have the same candidates: the best tokens of the level's head. */
#include "engine/draft/heads_net.h"
#include "engine/draft/mtp.h"
#include "engine/base/numbers.h"

static int longest(int *most, const vb_drafting *drafting, const vb_allocator *a, vb_error *err)
{
    struct config config;
    struct heads_config heads;
    vb_error why;
    int code = drafting->head ? config_read_heads(&config, &heads, drafting->head, a, &why) : VB_IO;
    *most = code ? VB_MAX_DRAFT : heads.count;
    return code == VB_NO_MEMORY ? vb_fail(err, code, "%s", why.message) : VB_OK;
}

static int check(const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    return drafter_check_head(o->drafting.head, VB_PARALLEL_HEADS, "parallel-heads", m->allocator, err);
}

static int open_heads(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    struct draft_net *net;
    int count, code = heads_net_open(&net, &count, o->asked->drafting.head, m, o, err);
    int depths = code ? 0 : min_int(count, o->max_draft);
    *out = NULL;
    if (!code)
        code = mtp_drafter_open(out, net, m, o, depths, err);
    if (code)
        return code;
    struct mtp_state *s = &mtp_of(*out)->state;
    s->parallel = 1;
    s->proposers = vb_alloc(m->allocator, (size_t)depths * net->width, sizeof *s->proposers);
    if (s->proposers)
        return VB_OK;
    mtp_drafter_close(*out);
    *out = NULL;
    return vb_fail(err, VB_NO_MEMORY, "no memory for the drafts of %d heads", depths);
}

/* Level k+1 of the tree: the best tokens of head k, after each node of the frontier. Returns whether there are any. */
static int grow(struct mtp_state *s, const float *logits, int k, size_t *failed)
{
    struct tree_builder *b = &s->tree.builder;
    int32_t tokens[VB_MAX_TOPK];
    double p[VB_MAX_TOPK];
    int n = k && !tree_advance(b) ? 0
                                  : drafter_best(&s->options, logits, s->net->vocab_size, b->topk, tokens, p, failed);
    for (int i = 0; i < (k ? b->frontier_count : 1); i++)
        tree_grow(b, k ? b->frontier[i] : -1, tokens, p, n);
    return n > 0;
}

static void propose_tree(struct drafter *d, struct pass *pass, struct draft_tree *tree, int depth, size_t *failed)
{
    struct mtp_state *s = &mtp_of(d)->state;
    size_t V = s->net->vocab_size;
    mtp_catch_up(s);
    int levels = (int)mtp_proposers(s, pass, depth), k = 0;
    tree->count = 0;
    if (!levels)
        return;
    s->net->type->logits(s->net, pass, 0, pass->w.logits, s->proposers, 0, (size_t)levels);
    tree_begin(&s->tree.builder);
    while (k < levels && grow(s, pass->w.logits + (size_t)k * V, k, failed))
        k++;
    tree_prune(&s->tree.builder, tree);
    for (int i = 0; i < tree->count; i++)
        trace_choose(s->options.tracer, tree->depth[i] - 1, s->head_row, tree->token[i], i + 1);
}

const struct drafter_type draft_parallel_heads = {
    .name = "parallel-heads",
    .about = "heads that predict further tokens in parallel (Meta)",
    .needs_head = 1,
    .takes = ROWS_TRUNK,
    .longest = longest,
    .check = check,
    .open = open_heads,
    .observe = mtp_drafter_observe,
    .propose_together = mtp_drafter_propose_at_once,
    .propose_tree = propose_tree,
    .rewind = drafter_no_rewind,
    .bytes = mtp_drafter_bytes,
    .weight_bytes = mtp_drafter_weight_bytes,
    .begin_as = mtp_drafter_begin_as,
    .defer = mtp_drafter_defer,
    .close = mtp_drafter_close,
    .save = mtp_drafter_save,
    .load = mtp_drafter_load,
};
