/* engine/draft/mtp_eagle.c -- MTP-Eagle: module 0 again and again, one cache. Draft j+1 takes (its own hidden state of
 * draft j, d_j) as row N-1+j; accepted rows are computed anew from the target's hidden states in the next round. */
#include "engine/draft/mtp.h"

static int open_eagle(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    return mtp_drafter_open_modules(out, m, o, 1, err);
}

const struct drafter_type draft_mtp_eagle = {
    .name = "mtp-eagle", .about = "the first MTP module again and again", .needs_modules = 1, .open = open_eagle, .observe = mtp_drafter_observe,
    .propose_together = mtp_drafter_propose_chains, .propose_tree = mtp_propose_tree,
    .after_prompt = mtp_drafter_after_prompt, .rewind = drafter_no_rewind, .bytes = mtp_drafter_bytes,
    .begin_as = mtp_drafter_begin_as, .defer = mtp_drafter_defer, .close = mtp_drafter_close,
    .save = mtp_drafter_save, .load = mtp_drafter_load,
};
