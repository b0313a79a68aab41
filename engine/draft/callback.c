/* engine/draft/callback.c -- drafts that the session's user makes. What is nonsense is left out here, so that the rest
 * of the engine meets ids of the vocabulary and lengths it has room for, as from any other method. */
#include "engine/draft/drafter.h"

#include <string.h>

struct callback_drafter { /* handed around as a struct drafter */
    const struct vb_model *model;
    vb_draft_callback callback;
    void *context;
    int32_t *tokens; /* committed [context] */
    size_t count;
};

static struct callback_drafter *of(const struct drafter *d) { return (struct callback_drafter *)(uintptr_t)d; }

static int open_callback(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    struct callback_drafter *d = vb_alloc(m->allocator, 1, sizeof *d);
    *out = NULL;
    if (d)
        *d = (struct callback_drafter){.model = m, .callback = o->asked->drafting.callback,
                                       .context = o->asked->drafting.context,
                                       .tokens = vb_alloc(m->allocator, o->context, sizeof *d->tokens)};
    if (d && d->tokens) {
        *out = (struct drafter *)d;
        return VB_OK;
    }
    vb_free(m->allocator, d);
    return vb_fail(err, VB_NO_MEMORY, "no memory for drafts after %zu tokens", o->context);
}

static void observe(struct drafter *drafter, struct pass *pass, size_t pos, const int32_t *tokens,
                    const float *hidden, size_t n)
{
    struct callback_drafter *d = of(drafter);
    (void)pass, (void)hidden;
    memcpy(d->tokens + pos, tokens, n * sizeof *tokens);
    d->count = pos + n;
}

static int propose(struct drafter *drafter, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct callback_drafter *d = of(drafter);
    int32_t said[VB_MAX_DRAFT] = {0}; /* a place of its own: who writes more than `max` spoils no neighbour's rows */
    int wanted = d->callback(d->context, d->tokens, d->count, said, max), n = 0;
    (void)pass;
    while (n < wanted && n < max && said[n] >= 0 && said[n] < d->model->config.vocab_size)
        n++;
    *failed += n != wanted;
    memcpy(draft, said, (size_t)n * sizeof *draft);
    return n;
}

static void close_callback(struct drafter *drafter)
{
    struct callback_drafter *d = of(drafter);
    vb_free(d->model->allocator, d->tokens);
    vb_free(d->model->allocator, d);
}

const struct drafter_type draft_callback = {
    .name = "callback", .about = "a function of the caller's",
    .needs_callback = 1, .open = open_callback,
    .observe = observe, .propose = propose,
    .rewind = drafter_no_rewind, .tokens_alone = 1,
    .close = close_callback,
};
