/* engine/draft_mtp_eagle.c -- MTP-Eagle: module 0 again and again, one cache. Draft j+1 takes (its own hidden row of
 * draft j, d_j) as row N-1+j; accepted rows are computed anew from the target's hidden rows in the next round. */
#include "mtp.h"

struct drafter {
    struct mtp_state state;
};

static int open_eagle(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
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

static void after_prompt(struct drafter *d, struct workspace *w) { mtp_after_prompt(&d->state, w); }

/* All rows before the cut are final: row i holds tok[i+1]. */
static size_t rewind_rows(const struct drafter *d)
{
    (void)d;
    return 0;
}

static void close_eagle(struct drafter *d)
{
    const vb_allocator *a = d->state.model->allocator;
    mtp_state_close(&d->state);
    vb_free(a, d);
}

const struct drafter_type draft_mtp_eagle = {
    .name = "mtp-eagle", .needs_mtp = 1, .open = open_eagle, .observe = observe, .propose = propose,
    .after_prompt = after_prompt, .rewind = rewind_rows, .close = close_eagle,
};
