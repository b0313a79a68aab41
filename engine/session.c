/* engine/session.c -- opening, appending, cutting; one session's part of a pass. */
#include "session.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

#include "../simd/fpenv.h"
#include "numa.h"
#include "prefill.h"
#include "tap.h"

/* Whether what is said depends on the drafts. */
static int drafts_lead(const vb_sampling *o)
{
    return o->acceptance && (!strcmp(o->acceptance, "relaxed") || (!strcmp(o->acceptance, "rejection") && o->temperature != 0.0f));
}

static int choose_drafter(struct vb_session *s, vb_error *err)
{
    const vb_session_options *o = &s->options;
    const struct drafter_type *type;
    int code = drafter_find(&type, o->draft, err);
    if (!(o->draft_p_min >= 0.0f && o->draft_p_min <= 1.0f))
        return vb_fail(err, VB_BAD_ARGUMENT, "draft p-min is %g, wanted a number from 0 to 1", (double)o->draft_p_min);
    if (o->draft_tokens > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft tokens is %d, at most %d", o->draft_tokens, VB_MAX_DRAFT);
    if (code || !type)
        return code;
    code = drafter_check(type, s->model, o, err);
    if (code)
        return code;
    s->max_draft = o->draft_tokens ? o->draft_tokens : drafter_default_tokens(type, s->model);
    s->type = s->max_draft > 0 ? type : NULL; /* K = 0: no module runs, none is prefilled */
    s->max_draft = s->type ? s->max_draft : 0;
    if (s->type && o->draft_auto && drafts_lead(&o->sampling))
        return vb_fail(err, VB_BAD_ARGUMENT, "acceptance %s wants a number of draft tokens: with auto what is said would depend on how fast "
                       "it is said", o->sampling.acceptance);
    if (s->type && o->draft_auto) {
        int first = drafter_default_tokens(type, s->model);
        s->max_draft = o->draft_tokens ? o->draft_tokens : drafter_longest(type, s->model);
        draft_length_begin(&s->length, first < s->max_draft ? first : s->max_draft, s->max_draft);
    }
    return VB_OK;
}

static int choose_kernels(const struct vb_session *s, const struct kernels **k, vb_error *err)
{
    int known;
    *k = kernels_select(s->options.isa, &known);
    if (!known)
        return vb_fail(err, VB_BAD_ARGUMENT, "unknown instruction set %s; known are best, scalar, avx2, avx512, neon",
                       s->options.isa);
    if (!*k)
        return vb_fail(err, VB_BAD_ARGUMENT, "this CPU lacks %s", s->options.isa ? s->options.isa : "fused multiply-add");
    return VB_OK;
}

static int check_options(struct vb_session *s, vb_error *err)
{
    const vb_session_options *o = &s->options;
    int32_t most = s->model->config.max_position_embeddings;
    if (o->context < 0 || o->context > most)
        return vb_fail(err, VB_BAD_ARGUMENT, "context is %d, wanted 1 to max_position_embeddings, which is %d", o->context,
                       most);
    if (o->prefill_chunk < 0 || o->threads < 0 || o->threads > 4096)
        return vb_fail(err, VB_BAD_ARGUMENT, "prefill chunk is %d and threads %d, wanted 1 or more (at most 4096 threads)",
                       o->prefill_chunk, o->threads);
    s->context = (size_t)(o->context ? o->context : most);
    s->chunk = (size_t)(o->prefill_chunk ? o->prefill_chunk : 512);
    s->chunk = s->chunk < s->context ? s->chunk : s->context;
    return VB_OK;
}

/* The drafts of a round stand behind the timeline until the round decides. */
static int32_t draw_draft(void *context, const float *logits, int number)
{
    struct vb_session *s = context;
    size_t index = s->count + (size_t)number - 1;
    int32_t token = acceptance_draw(s->acceptance, logits, s->tokens, s->count, number);
    if (index < s->context) /* else it is one that a convention discards */
        s->tokens[index] = token;
    return token;
}

static int open_parts(struct vb_session *s, const struct kernels *k, vb_error *err)
{
    const struct config *c = &s->model->config;
    const vb_allocator *a = s->model->allocator;
    size_t round = VB_MAX_DRAFT + 1, max_rows = s->chunk > round ? s->chunk : round;
    size_t width = (size_t)(c->kv_lora_rank + c->qk_rope_head_dim);
    int threads = s->options.threads ? s->options.threads : vb_processors();
    int code = workspace_open(&s->work, s->model, k, threads, max_rows, 2 * round, s->context, err);
    if (!code)
        code = prefill_open(s, err);
    if (!code)
        code = kvcache_open(&s->cache, (size_t)c->num_hidden_layers, s->context + round, width, a, err);
    s->work.cx.placement = numa_placement(s->model);
    s->cache.poison = s->options.poison_cut_rows;
    s->cache.sequence = s->options.sequence;
    if (!code && s->options.trace) {
        s->tracer = tracer_open(s->options.trace, s->options.trace_context, s->options.sequence, max_rows, a);
        if (!s->tracer)
            code = vb_fail(err, VB_NO_MEMORY, "no memory for a trace of %zu rows", max_rows);
    }
    s->cache.tracer = s->tracer;
    if (!code)
        code = sampler_open(&s->sampler, &s->options.sampling, (size_t)c->vocab_size, a, err);
    if (!code)
        code = acceptance_open(&s->acceptance, &s->options.sampling, s->sampler, (size_t)c->vocab_size, s->max_draft, a, err);
    if (!code && s->type) {
        struct drafter_options o = {.asked = &s->options, .kernels = k, .threads = threads, .context = s->context,
                                    .most_observed = max_rows + 1, .max_draft = s->max_draft,
                                    .poison = s->options.poison_cut_rows, .padded = s->options.padded,
                                    .sequence = s->options.sequence, .tracer = s->tracer,
                                    .choose = acceptance_draws(s->acceptance) ? draw_draft : NULL, .choose_context = s};
        code = s->type->open(&s->drafter, s->model, &o, err);
    }
    if (!code && s->options.tap) {
        s->work.tapper = tapper_open(s->options.tap, s->options.tap_context, s->options.tap_scores, max_rows, a);
        s->work.cx.probe = s->work.tapper ? &s->work.tapper->probe : NULL;
        if (!s->work.tapper)
            code = vb_fail(err, VB_NO_MEMORY, "no memory for taps of %zu rows", max_rows);
    }
    s->tokens = vb_alloc(a, s->context, sizeof *s->tokens);
    s->rows = vb_alloc(a, max_rows, sizeof *s->rows);
    if (!code && (!s->tokens || !s->rows))
        code = vb_fail(err, VB_NO_MEMORY, "no memory for a timeline of %zu tokens", s->context);
    return code;
}

int vb_session_open(vb_session **out, const vb_model *model, const vb_session_options *options, vb_error *err)
{
    struct fpenv env = fpenv_enter();
    const struct kernels *k;
    vb_session *s = vb_alloc(model->allocator, 1, sizeof *s);
    int code = VB_OK;
    *out = NULL;
    if (!s) {
        code = vb_fail(err, VB_NO_MEMORY, "no memory for a session");
        goto done;
    }
    s->model = model;
    if (options)
        s->options = *options;
    code = check_options(s, err);
    if (!code)
        code = choose_drafter(s, err);
    if (!code)
        code = choose_kernels(s, &k, err);
    if (!code)
        code = open_parts(s, k, err);
    if (code)
        vb_session_close(s);
    else
        *out = s;
done:
    fpenv_leave(env);
    return code;
}

void vb_session_close(vb_session *s)
{
    if (!s)
        return;
    const vb_allocator *a = s->model->allocator;
    if (s->drafter)
        s->type->close(s->drafter);
    tapper_close(s->work.tapper, a);
    acceptance_close(s->acceptance, a);
    sampler_close(s->sampler, a);
    tracer_close(s->tracer, a);
    kvcache_close(&s->cache, a);
    prefill_close(s);
    workspace_close(&s->work);
    vb_free(a, s->tokens);
    vb_free(a, s->rows);
    vb_free(a, s);
}

int vb_append(vb_session *s, const int32_t *tokens, size_t count, vb_error *err)
{
    if (count > s->context - s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "%zu tokens after %zu do not fit into a context of %zu", count, s->count,
                       s->context);
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= s->model->config.vocab_size)
            return vb_fail(err, VB_BAD_ARGUMENT, "token %zu is %d, outside the vocabulary of %d", i, tokens[i],
                           s->model->config.vocab_size);
    if (count)
        memcpy(s->tokens + s->count, tokens, count * sizeof *tokens);
    for (size_t i = 0; i < count; i++)
        sampler_saw_prompt(s->sampler, tokens[i]);
    if (s->prompt == s->count) /* nothing was generated yet */
        s->prompt += count;
    s->count += count;
    s->given = count ? s->count : s->given;
    return VB_OK;
}

/* The rows that the next round needs again: the last token's, and those whose hidden rows the drafter has let go. */
int vb_truncate(vb_session *s, size_t count, vb_error *err)
{
    if (count > s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "cannot cut to %zu tokens, there are %zu", count, s->count);
    size_t rewind = s->type ? s->type->rewind(s->drafter) : 0;
    size_t rows = count > 1 + rewind ? count - 1 - rewind : 0;
    if (s->cached >= count) {
        rows = prefill_rewind(s, rows);
        s->cached = rows;
        kvcache_truncate(&s->cache, rows);
        s->observed = rows ? rows + 1 : 0;
        s->given = count; /* the drafter still holds what was cut, until it observes again */
    }
    s->given = s->given < count ? s->given : count;
    s->prompt = s->prompt < count ? s->prompt : count;
    s->count = count;
    sampler_restart(s->sampler); /* what is left counts as the prompt */
    for (size_t i = 0; i < count; i++)
        sampler_saw_prompt(s->sampler, s->tokens[i]);
    return VB_OK;
}

const int32_t *vb_tokens(const vb_session *s, size_t *count)
{
    *count = s->count;
    return s->tokens;
}

size_t session_most_rows(const struct vb_session *s, size_t chunk)
{
    size_t left = s->count - s->cached, prefill = prefill_rows(s);
    chunk = s->chunk < chunk ? s->chunk : chunk;
    if (prefill)
        return prefill;
    if (left == 1)
        return 1 + (size_t)s->max_draft;
    return left < chunk ? left : chunk;
}

void session_plan(struct vb_session *s, struct plan *p, size_t chunk, size_t most, size_t *failed)
{
    size_t left = s->count - s->cached, prefill = prefill_rows(s);
    assert(left > 0);
    chunk = s->chunk < chunk ? s->chunk : chunk;
    *p = (struct plan){.committed = prefill ? prefill : left < chunk ? left : chunk, .by_onednn = prefill > 0};
    p->is_prompt = s->cached < s->given;
    p->chooses = p->committed == left;
    if (!s->type || p->is_prompt)
        return;
    p->padding = s->options.padded ? s->max_draft : 0; /* and no drafts yet */
    size_t room = s->context - s->count; /* a round of K drafts chooses up to K + 1 tokens */
    most = most < room ? most : room;
    most = most ? most - 1 : 0;
    size_t longest = s->options.draft_auto ? (size_t)s->length.K : (size_t)s->max_draft;
    p->asked = most >= longest;
    if (most > longest)
        most = longest;
    acceptance_round(s->acceptance);
    if (most)
        p->drafts = s->type->propose(s->drafter, &s->work, p->draft, (int)most, failed);
    p->padding -= p->padding ? p->drafts : 0;
}

size_t session_rows(struct vb_session *s, const struct plan *p, struct row *rows)
{
    size_t n = p->committed + (size_t)p->drafts, all = n + (size_t)p->padding;
    for (size_t i = 0; i < all; i++) {
        size_t index = s->cached + i;
        rows[p->first_row + i] = (struct row){
            .cache = &s->cache, .index = (int32_t)index, .position = (int32_t)index, .hidden_of = -1, .hidden_depth = -1,
            .draft = i < p->committed ? 0 : i < n ? (int32_t)(i - p->committed) + 1 : -1,
            .token = i < p->committed ? s->tokens[index] : i < n ? p->draft[i - p->committed] : 0,
            .slot = kvcache_append(&s->cache)};
    }
    return all;
}

void session_commit(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n, const float *hidden)
{
    size_t first = s->cached;
    if (n) /* with none, chosen may be NULL */
        memcpy(s->tokens + s->count, chosen, n * sizeof *chosen);
    s->count += n;
    /* A part of a prompt leaves all its rows; else the last token chosen has no row yet. */
    s->cached = p->chooses ? (n ? s->count - 1 : first + p->committed - 1) : first + p->committed;
    s->cached = prefill_rewind(s, s->cached);
    kvcache_truncate(&s->cache, s->cached);
    if (!s->type)
        return;
    if (p->by_onednn)
        prefill_begin(&s->work);
    if (s->observed == 0)
        s->type->observe(s->drafter, &s->work, 0, s->tokens, NULL, 1);
    if (s->cached > first)
        s->type->observe(s->drafter, &s->work, first + 1, s->tokens + first + 1, hidden, s->cached - first);
    if (p->by_onednn)
        prefill_end(&s->work);
    s->observed = s->cached + 1;
    if (p->is_prompt && n && s->type->after_prompt)
        s->type->after_prompt(s->drafter, &s->work);
}

void session_took(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n, double seconds)
{
    int stood = 0;
    if (!s->type || !s->options.draft_auto || p->is_prompt || !p->asked || !n)
        return;
    while (stood < p->drafts && (size_t)stood < n && chosen[stood] == p->draft[stood])
        stood++;
    draft_length_saw(&s->length, stood, seconds);
}

size_t vb_draft_memory(const vb_session *s) { return s->type && s->type->bytes ? s->type->bytes(s->drafter) : 0; }
