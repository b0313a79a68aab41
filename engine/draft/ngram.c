/* engine/draft/ngram.c -- prompt lookup: what followed when the last few tokens stood here before. No model runs.
 *
 * Of all n from ngram-max down to ngram-min the first is taken whose last n tokens occur earlier in the timeline, and
 * of its occurrences the latest (vLLM takes the first one; what was said last is nearer to what is being said). They
 * may overlap with the end, and the copy then goes on with what it has just copied: "ab ab ab" proposes as many as are
 * asked for. */
#include "engine/draft/drafter.h"

#include <string.h>

#define MOST_NGRAM 64

struct ngram_drafter { /* handed around as a struct drafter */
    const vb_allocator *allocator;
    size_t min, max;
    int32_t *tokens; /* committed [context] */
    size_t count;
};

static struct ngram_drafter *of(const struct drafter *d) { return (struct ngram_drafter *)(uintptr_t)d; }

static int open_ngram(struct drafter **out, const struct vb_model *m, const struct drafter_options *o, vb_error *err)
{
    const char *settings = o->asked->drafting.settings;
    int min, max;
    *out = NULL;
    if (drafter_setting(settings, "ngram-min", 1, MOST_NGRAM, 0, &min, err) ||
        drafter_setting(settings, "ngram-max", 1, MOST_NGRAM, 0, &max, err))
        return VB_BAD_ARGUMENT;
    max = max ? max : min > 4 ? min : 4;
    min = min ? min : max < 2 ? max : 2;
    if (min > max)
        return vb_fail(err, VB_BAD_ARGUMENT, "ngram-min is %d, more than ngram-max, which is %d", min, max);
    struct ngram_drafter *d = vb_alloc(m->allocator, 1, sizeof *d);
    if (d)
        *d = (struct ngram_drafter){.allocator = m->allocator, .min = (size_t)min, .max = (size_t)max,
                              .tokens = vb_alloc(m->allocator, o->context, sizeof *d->tokens)};
    if (d && d->tokens) {
        *out = (struct drafter *)d;
        return VB_OK;
    }
    vb_free(m->allocator, d);
    return vb_fail(err, VB_NO_MEMORY, "no memory to look up %zu tokens", o->context);
}

static void observe(struct drafter *drafter, struct pass *pass, size_t pos, const int32_t *tokens,
                    const float *hidden, size_t n)
{
    struct ngram_drafter *d = of(drafter);
    (void)pass, (void)hidden;
    memcpy(d->tokens + pos, tokens, n * sizeof *tokens);
    d->count = pos + n;
}

/* How many of the tokens before `end` are the last ones of all, at most max. */
static size_t common(const struct ngram_drafter *d, size_t end)
{
    size_t n = 0;
    while (n < d->max && n < end && d->tokens[end - 1 - n] == d->tokens[d->count - 1 - n])
        n++;
    return n;
}

/* The index behind the occurrence that is taken; 0: there is none. */
static size_t look_up(const struct ngram_drafter *d)
{
    size_t longest = d->min - 1, found = 0;
    for (size_t end = d->count - 1; end >= d->min && longest < d->max; end--) {
        size_t n = common(d, end);
        if (n > longest) {
            longest = n;
            found = end;
        }
    }
    return found;
}

static int propose(struct drafter *drafter, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct ngram_drafter *d = of(drafter);
    (void)pass, (void)failed;
    size_t from = d->count > d->min ? look_up(d) : 0;
    for (int i = 0; from && i < max; i++, from++)
        draft[i] = from < d->count ? d->tokens[from] : draft[from - d->count];
    return from ? max : 0;
}

static void close_ngram(struct drafter *drafter)
{
    struct ngram_drafter *d = of(drafter);
    vb_free(d->allocator, d->tokens);
    vb_free(d->allocator, d);
}

const struct drafter_type draft_ngram = {
    .name = "ngram",
    .about = "what followed when the last few tokens stood in the text before",
    .settings = "ngram-min=2,ngram-max=4",
    .open = open_ngram,
    .observe = observe,
    .propose = propose,
    .rewind = drafter_no_rewind,
    .tokens_alone = 1,
    .close = close_ngram,
};
