/* engine/draft_mtp_eagle.c -- MTP-Eagle: module 0 again and again, one cache. Draft j+1 takes (its own hidden row of
 * draft j, d_j) as row N-1+j; accepted rows are computed anew from the target's hidden rows in the next round. */
#include "mtp.h"

static int open_eagle(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    return mtp_drafter_open(out, m, o, 1, err);
}

static int propose(struct drafter *d, struct workspace *w, int32_t *draft, int max, size_t *failed)
{
    struct mtp_state *s = &d->state;
    size_t before = mtp_row_count(s, 0);
    int drafts = mtp_round(s, w, draft, 1, failed);
    size_t N = mtp_row_count(s, 0), first = before < N ? before : N - 1; /* of the rows that mtp_round computed */
    drafts = mtp_chain(s, w, draft, drafts, max, N - 1 - first, failed);
    mtp_cut(s, 0, N);
    mtp_round_ends(s);
    return drafts;
}

const struct drafter_type draft_mtp_eagle = {
    .name = "mtp-eagle", .needs = NEEDS_MTP, .open = open_eagle, .observe = mtp_drafter_observe, .propose = propose,
    .propose_tree = mtp_propose_tree,
    .after_prompt = mtp_drafter_after_prompt, .rewind = mtp_drafter_no_rewind, .bytes = mtp_drafter_bytes,
    .begin_as = mtp_drafter_begin_as, .close = mtp_drafter_close,
    .save = mtp_drafter_save, .load = mtp_drafter_load,
};
