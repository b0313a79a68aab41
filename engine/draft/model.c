/* engine/draft/model.c -- a smaller checkpoint with the same tokenizer drafts, token after token, as it would decode.
 *
 * Its cache keeps the rows of drafts too: a row's bits depend on the tokens up to it alone (the contract), so rows of
 * those that stood are not computed again. A round is as many passes of the small model as there are drafts, the first
 * of one or two rows:
 *
 *     tok[..N] d_1 d_2 d_3    the cache holds rows up to d_2's, since d_3 was only proposed
 *     tok[..N] d_1 | t        d_1 stood, t is the target's: the cache is cut to d_1's row, the next round begins with
 *                             t's
 *
 * Memory: a cache of as many layers as the small model has, and its passes (vb_draft_memory). The timeline that it
 * reads ends at its max_position_embeddings; beyond, nothing is drafted. */
#include "engine/draft/drafter.h"
#include "numbers/numbers.h"
#include "engine/pass/forward.h"
#include "engine/pass/lead.h"
#include "engine/pass/offload.h"

#include <string.h>

#define ROWS_WORTH_A_PASS (VB_MAX_DRAFT + 1) /* more missing rows than a round leaves: a prompt */

struct model_drafter { /* handed around as a struct drafter */
    const struct vb_model *model; /* that drafts */
    const vb_allocator *allocator;
    struct drafter_options options;
    size_t context;    /* the most tokens that it reads */
    size_t vocab_size; /* of both models: ids that only one of them has are not drafted */
    struct pass pass;
    struct kvcache cache;
    int32_t *in_cache; /* the tokens whose rows it holds [context] */
    int32_t *tokens;   /* committed [options.context] */
    size_t count;
    struct row *rows;  /* of a pass [pass.w.max_rows] */
};

static struct model_drafter *of(const struct drafter *d) { return (struct model_drafter *)(uintptr_t)d; }

static void close_model(struct drafter *drafter)
{
    struct model_drafter *d = of(drafter);
    pass_close(&d->pass);
    kvcache_close(&d->cache, d->allocator);
    vb_free(d->allocator, d->in_cache);
    vb_free(d->allocator, d->tokens);
    vb_free(d->allocator, d->rows);
    vb_free(d->allocator, d);
}

static int open_parts(struct model_drafter *d, vb_error *err)
{
    const struct drafter_options *o = &d->options;
    const struct config *c = &d->model->config;
    size_t chunk = max_size(o->most_observed, ROWS_WORTH_A_PASS);
    int code = pass_open(&d->pass, d->model, o->kernels, o->threads, chunk, 1, d->context, 0, err);
    if (!code)
        code = lead_pass(&d->pass, 0, err);
    if (!code)
        code = kvcache_open(&d->cache, c->dims.layers, d->context, model_cache_layout(c), d->allocator, err);
    if (!code)
        code = lead_pool(&d->cache.own, d->model->ranks, err);
    if (code)
        return code;
    d->cache.poison = o->poison;
    d->in_cache = vb_alloc(d->allocator, d->context, sizeof *d->in_cache);
    d->tokens = vb_alloc(d->allocator, o->context, sizeof *d->tokens);
    d->rows = vb_alloc(d->allocator, chunk, sizeof *d->rows);
    return d->in_cache && d->tokens && d->rows
               ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for a draft model that reads %zu tokens", d->context);
}

static int open_model(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    const struct config *large = &m->config, *small = &o->asked->drafting.model->config;
    size_t most = small->dims.positions;
    struct model_drafter *d = vb_alloc(m->allocator, 1, sizeof *d);
    *out = NULL;
    if (!d)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the drafter");
    *d = (struct model_drafter){.model = o->asked->drafting.model, .allocator = m->allocator, .options = *o,
                          .context = min_size(o->context, most),
                          .vocab_size = min_size(small->dims.V, large->dims.V)};
    if (d->vocab_size < large->dims.V)
        d->options.choose = NULL; /* which takes a row of the target's vocabulary */
    int code = open_parts(d, err);
    if (code)
        close_model((struct drafter *)d);
    else
        *out = (struct drafter *)d;
    return code;
}

/* Computes the rows that are missing before index `end` of the timeline, which drafts follow. *last: the last row of
 * the last pass. Returns -1 when a pass was given up, which the pass of the target then says; its rows are still
 * missing. If a device fails, the CPU computes all rows anew, and all later ones. */
static int read_up_to(struct model_drafter *d, struct pass *pass, size_t end, const int32_t *draft, size_t *last)
{
    size_t S = 0;
    while (d->cache.length < end) {
        size_t before = d->cache.length;
        for (S = 0; S < d->pass.w.max_rows && d->cache.length < end; S++) {
            size_t index = d->cache.length;
            int32_t token = index < d->count ? d->tokens[index] : draft[index - d->count];
            d->in_cache[index] = token;
            /* one that only the target has */
            d->rows[S] = (struct row){.cache = &d->cache, .index = (int32_t)index, .position = (int32_t)index,
                                      .token = token < d->model->config.vocab_size ? token : 0,
                                      .slot = kvcache_append(&d->cache)};
        }
        int stopped = forward_target(&d->pass, d->rows, S) != 0;
        pass->draft_stopped |= stopped;
        if (offload_failed(&d->pass)) {
            kvcache_truncate(&d->cache, 0);
            offload_give_up(&d->pass, &d->cache.own);
        } else if (stopped) {
            kvcache_truncate(&d->cache, before);
            return -1;
        }
    }
    *last = S - 1;
    return 0;
}

static void use_parts_of(struct model_drafter *d, const struct pass *target)
{
    d->pass.cx.placement = target->cx.placement;
    d->pass.cx.crew = target->cx.crew;
    d->pass.stop = target->stop;
    d->pass.stop_context = target->stop_context;
}

static void observe(struct drafter *drafter, struct pass *pass, size_t pos, const int32_t *tokens,
                    const float *hidden, size_t n)
{
    struct model_drafter *d = of(drafter);
    size_t same = pos, last;
    (void)hidden;
    use_parts_of(d, pass);
    memcpy(d->tokens + pos, tokens, n * sizeof *tokens);
    d->count = pos + n;
    while (same < d->count && same < d->cache.length && d->in_cache[same] == d->tokens[same])
        same++;
    kvcache_truncate(&d->cache, same);
    if (d->count <= d->context && d->cache.length + ROWS_WORTH_A_PASS < d->count)
        read_up_to(d, pass, d->count - 1, NULL, &last); /* the last token's row comes with the next proposal */
}

static int propose(struct drafter *drafter, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct model_drafter *d = of(drafter);
    const struct vb_model *m = d->model;
    int drafts = 0;
    if (d->count >= d->context)
        return 0;
    if ((size_t)max > d->context - d->count)
        max = (int)(d->context - d->count);
    use_parts_of(d, pass);
    kvcache_truncate(&d->cache, d->count - 1); /* its logits are wanted, and may be for a second time */
    while (drafts < max) {
        size_t last;
        if (read_up_to(d, pass, d->count + (size_t)drafts, draft, &last))
            return 0;
        forward_head(&d->pass, &m->lm_head, d->pass.w.logits, d->pass.w.hidden + last * m->config.dims.d, 1);
        int32_t chosen = drafter_choose(&d->options, d->pass.w.logits, d->vocab_size, drafts + 1, failed);
        if (chosen < 0)
            break;
        draft[drafts++] = chosen;
    }
    return drafts;
}

static size_t bytes(const struct drafter *drafter)
{
    const struct model_drafter *d = of(drafter);
    return kvcache_bytes(&d->cache) + d->pass.w.bytes + (d->context + d->options.context) * sizeof *d->tokens;
}

const struct drafter_type draft_model = {
    .name = "draft-model",
    .about = "a smaller model with the same tokens",
    .needs_model = 1,
    .open = open_model,
    .observe = observe,
    .propose = propose,
    .rewind = drafter_no_rewind,
    .tokens_alone = 1,
    .bytes = bytes,
    .close = close_model,
};
