/* engine/draft_mtp_vanilla.c -- MTP-Vanilla: depth k drafts token k+1 with module k and a cache of its own. A checkpoint
 * with fewer modules than K uses module k mod D, still with a cache per depth. */
#include "mtp.h"

struct drafter {
    struct mtp_state state;
};

static int open_vanilla(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    *out = vb_alloc(m->allocator, 1, sizeof **out);
    if (!*out)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the drafter");
    int code = mtp_state_open(&(*out)->state, m, o, o->max_draft, err);
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
    int drafts = mtp_round(&d->state, w, draft, max, failed);
    mtp_round_ends(&d->state);
    return drafts;
}

static void after_prompt(struct drafter *d, struct workspace *w) { mtp_after_prompt(&d->state, w); }

/* Row i of the deepest module holds tok[i + depths]: that many tokens before the cut its rows are still good. */
static size_t rewind_rows(const struct drafter *d) { return (size_t)d->state.num_depths - 1; }

static void close_vanilla(struct drafter *d)
{
    const vb_allocator *a = d->state.model->allocator;
    mtp_state_close(&d->state);
    vb_free(a, d);
}

const struct drafter_type draft_mtp_vanilla = {
    .name = "mtp-vanilla", .needs_mtp = 1, .open = open_vanilla, .observe = observe, .propose = propose,
    .after_prompt = after_prompt, .rewind = rewind_rows, .close = close_vanilla,
};
