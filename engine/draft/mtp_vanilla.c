/* engine/draft/mtp_vanilla.c -- MTP-Vanilla: depth k drafts token k+1 with module k and a cache of its own. A
 * checkpoint with fewer modules than K uses module k mod D, still with a cache per depth.
 *
 * With convention module-hidden=target, depth k reads the target's hidden states, not those of the depth before. */
#include "engine/draft/mtp.h"

static int open_vanilla(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    struct net_method method = {.depths = o->max_draft, .order = DEPTH_AFTER_DEPTH};
    int target = m->config.conventions.value[MODULE_HIDDEN];
    for (int k = 0; k < method.depths; k++)
        method.depth[k] = (struct depth_facts){.ahead = (size_t)k + 1,
                                               .source = k == 0 || target ? FROM_TARGET : FROM_DEPTH_BEFORE};
    return mtp_drafter_open_modules(out, m, o, &method, err);
}

const struct drafter_type draft_mtp_vanilla = {
    .name = "mtp-vanilla",
    .about = "one MTP module after the other, each with a cache of its own",
    .needs_modules = 1,
    .cache_per_draft = 1,
    .open = open_vanilla,
    .after_prompt = mtp_drafter_after_prompt,
    NET_DRAFTS,
    NET_STATE,
};
