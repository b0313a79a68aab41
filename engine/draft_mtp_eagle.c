/* engine/draft_mtp_eagle.c -- MTP-Eagle: module 0 again and again, one cache. Draft j+1 takes (its own hidden row of
 * draft j, d_j) as row N-1+j; accepted rows are computed anew from the target's hidden rows in the next round. */
#include "mtp.h"

#include <string.h>

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

static int propose(struct drafter *drafter, struct workspace *w, int32_t *draft, int max, size_t *failed)
{
    struct mtp_state *s = &drafter->state;
    struct mtp_depth *depth = &s->depths[0];
    size_t d = (size_t)s->model->config.hidden_size, first = depth->cache.length;
    int drafts = mtp_round(s, w, draft, max < 1 ? max : 1, failed);
    size_t N = depth->cache.length;
    if (drafts == 0)
        return 0;
    first = first == N ? N - 1 : first; /* as mtp_round does when it has nothing new */
    const float *g = s->g + (N - 1 - first) * d;
    while (drafts < max) {
        memcpy(s->h, g, d * sizeof *g);
        mtp_rows(s, w, 0, 1, draft);
        g = s->g;
        int32_t chosen = mtp_choose(s, w, 0, g);
        if (chosen < 0) {
            ++*failed;
            break;
        }
        draft[drafts++] = chosen;
    }
    kvcache_truncate(&depth->cache, N);
    return drafts;
}

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
    .rewind = rewind_rows, .close = close_eagle,
};
