/* tools/bench/forced.c -- a drafter for measurements: it runs the real drafter, and then replaces the drafts. */
#include <stdlib.h>

#include "tools/bench/bench.h"
#include "numbers/numbers.h"

struct forced { /* passed as a pointer to struct drafter */
    const struct drafter_type *type;
    struct drafter *inner;
    const vb_allocator *allocator;
    const int32_t *plain;
    size_t count, known; /* count: the length of `plain`; known: the number of observed tokens */
    double force;
    int32_t vocab_size;
};

static struct forced *of(const struct drafter *d) { return (struct forced *)(uintptr_t)d; }

static void observe(struct drafter *d, struct pass *pass, size_t pos, const int32_t *tokens, const float *hidden,
                    size_t n)
{
    of(d)->known = pos + n;
    of(d)->type->observe(of(d)->inner, pass, pos, tokens, hidden, n);
}

/* Returns a random number in [0, 1). It depends only on the index of the token, so that the same drafts are correct in
 * every round and for every K. */
static double chance(size_t index)
{
    return (double)(splitmix64_at(0, index) >> 11) * 0x1p-53;
}

static int propose(struct drafter *d, struct pass *pass, int32_t *draft, int max, size_t *failed)
{
    struct forced *f = of(d);
    int n = drafter_propose_one(f->type, f->inner, pass, draft, max, failed);
    for (int i = 0; i < n; i++) {
        size_t index = f->known + (size_t)i;
        int32_t token = index < f->count ? f->plain[index] : 0;
        draft[i] = chance(index) < f->force ? token : (token + 1) % f->vocab_size;
    }
    return n;
}

static void after_prompt(struct drafter *d, struct pass *pass)
{
    if (of(d)->type->after_prompt)
        of(d)->type->after_prompt(of(d)->inner, pass);
}

static size_t rewind_rows(const struct drafter *d) { return of(d)->type->rewind(of(d)->inner); }

static void close_forced(struct drafter *d)
{
    of(d)->type->close(of(d)->inner);
    free(d);
}

static const struct drafter_type forced_type = {.name = "forced", .observe = observe, .propose = propose,
                                                .after_prompt = after_prompt, .rewind = rewind_rows,
                                                .close = close_forced};

void bench_force(vb_session *s, const int32_t *plain, size_t count, double force)
{
    struct forced *f = calloc(1, sizeof *f);
    cli_must(f);
    *f = (struct forced){.type = s->type, .inner = s->drafter, .plain = plain, .count = count, .force = force,
                         .vocab_size = s->model->config.vocab_size};
    s->type = &forced_type;
    s->drafter = (struct drafter *)f;
}
