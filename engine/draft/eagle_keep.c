/* engine/draft/eagle_keep.c -- mtp-eagle whose rows stay as they were drafted: after m drafts are accepted, the rows
 * that took d_1..d_m and the module's own hidden states are not computed anew from the target's. The cheapest way, and
 * its drafts depend on the rounds before. */
#include "engine/draft/mtp.h"

#include <string.h>

static int open_keep(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    return mtp_drafter_open_modules(out, m, o, &net_method_one_depth, err);
}

/* The rows stay whose drafts are now committed. */
static void observe(struct drafter *drafter, struct pass *pass, size_t pos, const int32_t *tokens,
                    const float *hidden, size_t n)
{
    struct mtp_drafter *d = mtp_of(drafter);
    int accepted = 0;
    if (pos == d->state.count)
        while (accepted < d->count && (size_t)accepted < n && tokens[accepted] == d->drafted[accepted])
            accepted++;
    if (d->count)
        mtp_cut(&d->state, 0, d->N + (size_t)accepted);
    d->count = 0;
    mtp_observe(&d->state, pass, pos, tokens, hidden, n);
}

static int propose(struct drafter *drafter, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct mtp_drafter *d = mtp_of(drafter);
    struct mtp_state *s = &d->state;
    if (d->count) /* asked twice: nothing was observed in between */
        mtp_cut(s, 0, d->N);
    size_t before = mtp_row_count(s, 0);
    int drafts = mtp_round(s, pass, draft, 1, failed);
    size_t N = mtp_row_count(s, 0), first = before < N ? before : N - 1;
    drafts = mtp_chain(s, pass, draft, drafts, max, N - 1 - first, failed);
    if (drafts)
        mtp_cut(s, 0, N + (size_t)drafts - 1); /* a row that was not finite does not stay */
    mtp_round_ends(s);
    d->N = N;
    d->count = s->lost.now ? 0 : drafts; /* rows that stand on a row of zeros do not stay */
    memcpy(d->drafted, draft, (size_t)drafts * sizeof *draft);
    return drafts;
}

const struct drafter_type draft_eagle_keep = {
    .name = "eagle-keep",
    .about = "the first MTP module, whose rows stay as they were drafted",
    .needs_modules = 1,
    .open = open_keep,
    .observe = observe,
    .propose = propose,
    .after_prompt = mtp_drafter_after_prompt,
    .by_history = 1,
    NET_STATE,
};
