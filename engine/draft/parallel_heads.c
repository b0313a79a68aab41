/* engine/draft/parallel_heads.c -- the n - 1 further heads of a model that predicts n tokens at once (Gloeckle et al.
 * 2024, arXiv 2404.19737). Head k drafts token k+1 of the round. No head reads what another one drafted, so the heads
 * run one after the other, and then one pass of the output head makes all drafts. Every row of a head depends on
 * committed tokens alone, and stays.
 *
 * In a tree, all nodes of a level have the same candidates: the best tokens of the level's head. */
#include "engine/draft/heads_net.h"
#include "engine/draft/mtp.h"
#include "numbers/numbers.h"

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
    struct net_method method = {.order = ALL_AT_ONCE};
    int count, code = heads_net_open(&net, &count, o->asked->drafting.head, m, o, err);
    *out = NULL;
    if (code)
        return code;
    method.depths = min_int(count, o->max_draft);
    for (int k = 0; k < method.depths; k++)
        method.depth[k] = (struct depth_facts){.ahead = 0, .source = FROM_TARGET};
    return mtp_drafter_open(out, net, m, o, &method, err);
}

const struct drafter_type draft_parallel_heads = {
    .name = "parallel-heads",
    .about = "heads that predict further tokens in parallel (Meta)",
    .needs_head = 1,
    .takes = ROWS_TRUNK,
    .longest = longest,
    .check = check,
    .open = open_heads,
    .propose_tree = mtp_propose_tree,
    .weight_bytes = mtp_drafter_weight_bytes,
    NET_DRAFTS,
    NET_STATE,
};
