/* engine/draft/mtp_eagle.c -- MTP-Eagle: module 0 again and again, one cache. Draft j+1 takes (its own hidden state of
 * draft j, d_j) as row N-1+j; accepted rows are computed anew from the target's hidden states in the next round.
 *
 * With convention chain-module=step, the modules take turns: draft j+1 is made by module j mod D, which has a cache of
 * its own. */
#include "engine/draft/mtp.h"
#include "numbers/numbers.h"

static int check_eagle(const struct vb_model *m, const vb_session_options *o, vb_error *err)
{
    if (o->drafting.tree.topk > 1 && m->config.conventions.value[CHAIN_MODULE] && m->num_mtp > 1)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "convention chain-module=step drafts chains only: draft topk is %d, wanted 1",
                       o->drafting.tree.topk);
    return VB_OK;
}

static int open_eagle(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    int modules = m->config.conventions.value[CHAIN_MODULE] ? m->num_mtp : 1;
    struct net_method method = net_method_one_depth;
    method.depths = min_int(modules, o->max_draft);
    for (int k = 1; k < method.depths; k++)
        method.depth[k] = method.depth[0];
    return mtp_drafter_open_modules(out, m, o, &method, err);
}

const struct drafter_type draft_mtp_eagle = {
    .name = "mtp-eagle",
    .about = "the first MTP module again and again",
    .needs_modules = 1,
    .check = check_eagle,
    .open = open_eagle,
    .propose_tree = mtp_propose_tree,
    .after_prompt = mtp_drafter_after_prompt,
    NET_DRAFTS,
    NET_STATE,
};
