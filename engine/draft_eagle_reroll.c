/* engine/draft_eagle_reroll.c -- mtp-eagle as MindIE runs it: every step takes the round's rows again, its tokens rolled left
 * by one and the newest draft appended, each row with what the module gave for the row before it in the step before.
 *
 *     step 1   rows first..N-1       tokens tok[first+1..N]          hidden rows: the target's h_first..h_{N-1}
 *     step 2   rows first+1..N       tok[first+2..N], d_1            the module's of step 1
 *     step j   rows first+j-1..N+j-2 .., d_{j-1}                     the module's of step j-1
 *
 * The last row of a step proposes. Rows that later steps wrote over earlier ones stay in the cache, so drafts depend on the
 * rounds before. The prompt's rows are taken once, when it is done. */
#include "mtp.h"

#include <string.h>

struct drafter {
    struct mtp_state state;
};

static int open_reroll(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    *out = vb_alloc(m->allocator, 1, sizeof **out);
    if (!*out)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the drafter");
    int code = mtp_state_open(&(*out)->state, m, o, 1, err);
    if (code) {
        vb_free(m->allocator, *out);
        *out = NULL;
    }
    return code;
}

static void observe(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n)
{
    mtp_observe(&d->state, w, pos, tokens, hidden, n);
}

static int propose(struct drafter *drafter, struct workspace *w, int32_t *draft, int max, size_t *failed)
{
    struct mtp_state *s = &drafter->state;
    size_t d = (size_t)s->model->config.hidden_size, before = mtp_row_count(s, 0);
    int drafts = mtp_round(s, w, draft, 1, failed);
    size_t N = mtp_row_count(s, 0), first = before < N ? before : N - 1, rows = N - first, pad = mtp_padding(s, rows);
    while (drafts && drafts < max) {
        memcpy(s->h, s->next, (rows + pad) * d * sizeof *s->h);
        mtp_cut(s, 0, first + (size_t)drafts);
        mtp_rows(s, w, 0, rows, pad, ALL_FROM_ITSELF, draft);
        int32_t chosen = mtp_choose(s, w, 0, s->g + (rows - 1) * d, drafts + 1);
        if (chosen < 0) {
            ++*failed;
            break;
        }
        draft[drafts++] = chosen;
    }
    mtp_cut(s, 0, N);
    mtp_round_ends(s);
    return drafts;
}

static void after_prompt(struct drafter *d, struct workspace *w)
{
    size_t failed;
    mtp_after_prompt(&d->state, w);
    mtp_round(&d->state, w, NULL, 0, &failed);
}

/* All rows before the cut are final: row i holds tok[i+1]. */
static size_t rewind_rows(const struct drafter *d)
{
    (void)d;
    return 0;
}

static void close_reroll(struct drafter *d)
{
    const vb_allocator *a = d->state.model->allocator;
    mtp_state_close(&d->state);
    vb_free(a, d);
}

const struct drafter_type draft_eagle_reroll = {
    .name = "eagle-reroll", .needs_mtp = 1, .open = open_reroll, .observe = observe, .propose = propose,
    .after_prompt = after_prompt, .rewind = rewind_rows, .close = close_reroll,
};
