/* engine/draft/mtp_vanilla.c -- MTP-Vanilla: depth k drafts token k+1 with module k and a cache of its own. A
 * checkpoint with fewer modules than K uses module k mod D, still with a cache per depth. */
#include "engine/draft/mtp.h"

static int open_vanilla(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    return mtp_drafter_open_modules(out, m, o, o->max_draft, err);
}

/* Row i of the deepest module holds tok[i + depths]: that many tokens before the cut its rows are still good. */
static size_t rewind_rows(const struct drafter *d) { return (size_t)mtp_of(d)->state.num_depths - 1; }

const struct drafter_type draft_mtp_vanilla = {
    .name = "mtp-vanilla",
    .about = "one MTP module after the other, each with a cache of its own",
    .needs_modules = 1,
    .cache_per_draft = 1,
    .open = open_vanilla,
    .observe = mtp_drafter_observe,
    .propose_together = mtp_drafter_propose_levels,
    .after_prompt = mtp_drafter_after_prompt,
    .rewind = rewind_rows,
    .bytes = mtp_drafter_bytes,
    .begin_as = mtp_drafter_begin_as,
    .defer = mtp_drafter_defer,
    .close = mtp_drafter_close,
    .save = mtp_drafter_save,
    .load = mtp_drafter_load,
};
