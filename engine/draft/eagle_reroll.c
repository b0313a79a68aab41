/* engine/draft/eagle_reroll.c -- mtp-eagle as MindIE runs it: every step takes the round's rows again, its tokens
 * rolled left by one and the newest draft appended, each row with what the module gave for the row before it in the
 * step before.
 *
 *     step 1   rows first..N-1       tokens tok[first+1..N]          hidden states: the target's h_first..h_{N-1}
 *     step 2   rows first+1..N       tok[first+2..N], d_1            the module's of step 1
 *     step j   rows first+j-1..N+j-2 .., d_{j-1}                     the module's of step j-1
 *
 * The last row of a step proposes. Rows that later steps wrote over earlier ones stay in the cache, so drafts depend on
 * the rounds before. The prompt's rows are taken once, when it is done. */
#include "engine/draft/mtp.h"

#include <string.h>

static int open_reroll(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    return mtp_drafter_open_modules(out, m, o, &net_method_one_depth, err);
}

static int propose(struct drafter *drafter, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct mtp_state *s = &mtp_of(drafter)->state;
    size_t d = s->net->width, before = mtp_row_count(s, 0);
    int drafts = mtp_round(s, pass, draft, 1, failed);
    size_t N = mtp_row_count(s, 0), first = before < N ? before : N - 1, rows = N - first, pad = mtp_padding(s, rows);
    while (drafts && drafts < max) {
        memcpy(s->h, s->next, (rows + pad) * d * sizeof *s->h);
        mtp_cut(s, 0, first + (size_t)drafts);
        mtp_rows(s, pass, 0, rows, pad, ALL_FROM_ITSELF, draft);
        int32_t chosen = mtp_choose(s, pass, 0, s->g + (rows - 1) * d, drafts + 1, failed);
        if (chosen < 0)
            break;
        draft[drafts++] = chosen;
    }
    mtp_cut(s, 0, N);
    mtp_round_ends(s);
    return drafts;
}

static void after_prompt(struct drafter *d, struct pass *pass)
{
    size_t failed;
    struct mtp_state *s = &mtp_of(d)->state;
    mtp_after_prompt(s, pass);
    if (!s->lost.now) /* else they are there already */
        mtp_round(s, pass, NULL, 0, &failed);
    mtp_round_ends(s);
}

const struct drafter_type draft_eagle_reroll = {
    .name = "eagle-reroll",
    .about = "the first MTP module, each step with the round's rows again, as MindIE does",
    .needs_modules = 1,
    .open = open_reroll,
    .observe = mtp_drafter_observe,
    .propose = propose,
    .after_prompt = after_prompt,
    .by_history = 1,
    NET_STATE,
};
