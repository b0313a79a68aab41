/* engine/draft/eagle.c -- EAGLE-1 and EAGLE-3: as mtp-eagle, with a published head in the place of module 0. EAGLE-3 takes the
 * target's features through the head's fc as they come; what is kept of them are rows of the head's own width. */
#include "engine/draft/mtp.h"

#include <assert.h>

struct eagle_drafter { /* handed around as its first part */
    struct drafter d;
    float *fused; /* [most_observed, d], EAGLE-3 */
};

static struct eagle_drafter *of(struct drafter *d) { return (struct eagle_drafter *)d; }

static void close_eagle(struct drafter *d)
{
    const vb_allocator *a = d->state.model->allocator;
    vb_free(a, of(d)->fused);
    mtp_state_close(&d->state);
    vb_free(a, d);
}

static int open_version(struct drafter **out, const struct model *m, const struct drafter_options *o, int version, vb_error *err)
{
    struct eagle_head *head = NULL;
    struct eagle_drafter *d = vb_alloc(m->allocator, 1, sizeof *d);
    *out = NULL;
    if (!d)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the drafter");
    d->d.state.model = m;
    int code = eagle_head_open(&head, o->asked->draft_head, version, m, err);
    if (!code)
        code = eagle_open(&d->d.state.eagle, head, o, err);
    if (!code)
        code = mtp_state_open(&d->d.state, m, o, 1, err);
    if (!code && version == 3) {
        d->fused = vb_alloc(m->allocator, o->most_observed * eagle_width(&d->d.state.eagle), sizeof *d->fused);
        code = d->fused ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for features of %zu rows", o->most_observed);
    }
    if (code)
        close_eagle(&d->d);
    else
        *out = &d->d;
    return code;
}

static int open_eagle(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    return open_version(out, m, o, 1, err);
}

static int open_eagle3(struct drafter **out, const struct model *m, const struct drafter_options *o, vb_error *err)
{
    return open_version(out, m, o, 3, err);
}

static void observe_eagle3(struct drafter *d, struct workspace *w, size_t pos, const int32_t *tokens, const float *features, size_t n)
{
    size_t none = pos == 0, width = eagle_width(&d->state.eagle); /* there is no row of index -1 */
    assert(n <= d->state.options.most_observed);
    if (n > none)
        eagle_features(&d->state.eagle, w, of(d)->fused + none * width, features + none * d->state.eagle.head->fc.cols, n - none);
    mtp_observe(&d->state, w, pos, tokens, of(d)->fused, n);
}

const struct drafter_type draft_eagle = {
    .name = "eagle", .needs = NEEDS_HEAD, .takes = TAKES_HIDDEN, .open = open_eagle, .observe = mtp_drafter_observe,
    .propose = mtp_drafter_propose_chain, .propose_tree = mtp_propose_tree, .rewind = drafter_no_rewind, .bytes = mtp_drafter_bytes,
    .begin_as = mtp_drafter_begin_as, .close = close_eagle,
    .save = mtp_drafter_save, .load = mtp_drafter_load,
};

const struct drafter_type draft_eagle3 = {
    .name = "eagle3", .needs = NEEDS_HEAD, .takes = TAKES_THREE, .open = open_eagle3, .observe = observe_eagle3,
    .propose = mtp_drafter_propose_chain, .propose_tree = mtp_propose_tree, .rewind = drafter_no_rewind, .bytes = mtp_drafter_bytes,
    .begin_as = mtp_drafter_begin_as, .close = close_eagle,
    .save = mtp_drafter_save, .load = mtp_drafter_load,
};
