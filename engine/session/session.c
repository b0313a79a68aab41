/* engine/session/session.c -- opening, appending, cutting; one session's part of a pass. */
#include "engine/base/options.h"
#include "engine/pass/lead.h"
#include "engine/pass/offload.h"
#include "engine/session/session.h"
#include "engine/base/seconds.h"
#include "numbers/numbers.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

#include "ops/crew.h"
#include "simd/fpenv.h"
#include "engine/model/numa.h"
#include "engine/model/ranks.h"
#include "engine/session/prefill.h"
#include "engine/session/routes.h"
#include "engine/pass/tap.h"

int session_drafts_lead(const struct vb_session *s)
{
    const vb_sampling *o = &s->options.sampling;
    return o->acceptance &&
           (!strcmp(o->acceptance, "relaxed") || (!strcmp(o->acceptance, "rejection") && o->temperature != 0.0f));
}

/* Trees: what does not go with them is named. */
static int choose_tree(struct vb_session *s, vb_error *err)
{
    const vb_session_options *o = &s->options;
    int most = s->max_draft * o->drafting.tree.topk;
    if (o->drafting.tree.topk < 0 || o->drafting.tree.topk > VB_MAX_TOPK)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, wanted 1 to %d", o->drafting.tree.topk, VB_MAX_TOPK);
    if (o->drafting.tree.topk <= 1)
        return o->drafting.tree.nodes ? vb_fail(err, VB_BAD_ARGUMENT,
                                                "draft nodes is %d, but drafts are a chain: that is of trees, which "
                                                "want a draft topk of 2 or more",
                                                o->drafting.tree.nodes)
                                      : VB_OK;
    if (o->drafting.tree.topk > s->model->config.vocab_size)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, more than the %d tokens there are",
                       o->drafting.tree.topk, s->model->config.vocab_size);
    if (o->drafting.tree.nodes && (o->drafting.tree.nodes < s->max_draft || o->drafting.tree.nodes > VB_MAX_NODES))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "draft nodes is %d, wanted %d (draft tokens: the levels of the tree) to %d",
                       o->drafting.tree.nodes, s->max_draft, VB_MAX_NODES);
    if (!s->type->propose_tree)
        return drafter_without_trees(s->type, o->drafting.tree.topk, err);
    if (o->drafting.automatic)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, and draft tokens auto is of chains",
                       o->drafting.tree.topk);
    if (o->padded)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, and padded passes are of chains",
                       o->drafting.tree.topk);
    if (o->sampling.acceptance && strcmp(o->sampling.acceptance, "strict"))
        return vb_fail(err, VB_BAD_ARGUMENT, "draft topk is %d, and acceptance %s is of chains", o->drafting.tree.topk,
                       o->sampling.acceptance);
    s->max_drafts = o->drafting.tree.nodes ? o->drafting.tree.nodes : min_int(most, VB_MAX_NODES);
    s->tree = vb_alloc(s->model->allocator, 1, sizeof *s->tree);
    int lists = slot_lists_open(&s->node_slots, (size_t)s->max_drafts, s->context + VB_MAX_DRAFT, s->model->allocator);
    return s->tree && lists ? VB_OK
                                    : vb_fail(err, VB_NO_MEMORY, "no memory for trees of %d drafts", s->max_drafts);
}

static int choose_drafter(struct vb_session *s, vb_error *err)
{
    const vb_session_options *o = &s->options;
    const struct drafter_type *type;
    int code = drafter_find(&type, o->drafting.method, err);
    if (!(o->drafting.p_min >= 0.0f && o->drafting.p_min <= 1.0f))
        return vb_fail(err, VB_BAD_ARGUMENT, "draft p-min is %g, wanted a number from 0 to 1",
                       (double)o->drafting.p_min);
    if (o->drafting.tokens > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft tokens is %d, at most %d", o->drafting.tokens, VB_MAX_DRAFT);
    if (code || !type)
        return code;
    code = drafter_check(type, s->model, o, err);
    if (code)
        return code;
    if ((code = drafter_tokens(&s->max_draft, type, s->model, &o->drafting, err)))
        return code;
    s->type = s->max_draft > 0 ? type : NULL; /* K = 0: no module runs, none is prefilled */
    s->max_draft = s->type ? s->max_draft : 0;
    s->max_drafts = s->max_draft;
    if (s->type && (o->drafting.tree.topk || o->drafting.tree.nodes))
        code = choose_tree(s, err);
    if (code)
        return code;
    if (s->type && o->drafting.automatic && session_drafts_lead(s))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "acceptance %s wants a number of draft tokens: with auto what is said would depend on how fast "
                       "it is said",
                       o->sampling.acceptance);
    if (s->type && o->drafting.automatic) {
        draft_length_begin(&s->own_length, s->max_draft, s->model->config.dims.layers);
        s->length = &s->own_length;
    }
    return VB_OK;
}

int session_kernels(const struct kernels **k, const char *isa, vb_error *err)
{
    int known;
    *k = kernels_select(isa, &known);
    if (!known)
        return vb_fail(err, VB_BAD_ARGUMENT, "unknown instruction set %s; known are best, " INSTRUCTION_SETS, isa);
    if (!*k && !kernels_select("best", NULL))
        return vb_fail(err, VB_UNSUPPORTED, "this CPU lacks fused multiply-add (FMA), which every computation needs");
    return *k ? VB_OK : vb_fail(err, VB_BAD_ARGUMENT, "this CPU lacks %s", isa);
}

const char *vb_isa(size_t number)
{
    const char *before = NULL; /* variants of a set have its name, and follow each other */
    for (const struct kernels *const *k = kernel_tables; *k; k++) {
        if (!kernels_runs_here(*k) || (before && !strcmp((*k)->name, before)))
            continue;
        before = (*k)->name;
        if (number-- == 0)
            return before;
    }
    return NULL;
}

int session_limits(const struct vb_model *m, const vb_session_options *o, size_t *context, vb_error *err)
{
    int32_t most = m->config.max_position_embeddings;
    if (o->context < 0 || o->context > most)
        return vb_fail(err, VB_BAD_ARGUMENT, "context is %d, wanted 1 to max_position_embeddings, which is %d",
                       o->context, most);
    if (o->prefill_chunk < 0 || o->threads < 0 || o->threads > 4096)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "prefill chunk is %d and threads %d, wanted 1 or more (at most 4096 threads)", o->prefill_chunk,
                       o->threads);
    *context = (size_t)(o->context ? o->context : most);
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

int session_open_pass(struct pass *pass, const vb_model *model, const vb_session_options *o, size_t max_rows,
                           size_t max_logit_rows, size_t context, vb_error *err)
{
    const struct kernels *k;
    int code = session_kernels(&k, o->isa, err), threads = o->threads ? o->threads
                                                           : model->ranks ? model->ranks->threads
                                                           : 0;
    if (!code)
        code = pass_open(pass, model, k, threads ? threads : vb_processors(), max_rows, max_logit_rows, context,
                              prefill_expands(o), err);
    if (!code)
        code = pass_gather_crew(pass, numa_placement(model), o->exact_threads, err);
    if (!code)
        code = lead_pass(pass, o->exact_threads, err);
    if (pass->offload)
        pass->offload->cpu_layers = o->cpu_layers;
    pass->stop = o->stop;
    pass->stop_context = o->stop_context;
    return code;
}

/* Rows of a round, and of a pass. */
static size_t round_rows(const struct vb_session *s) { return 1 + (size_t)max_int(s->max_drafts, VB_MAX_DRAFT); }
static size_t most_rows(const struct vb_session *s) { return s->chunk > round_rows(s) ? s->chunk : round_rows(s); }

/* What a session has that is in no batch. */
static int open_own_parts(struct vb_session *s, vb_error *err)
{
    const struct config *c = &s->model->config;
    const vb_allocator *a = s->model->allocator;
    size_t two = 2 * (VB_MAX_DRAFT + 1);
    int code = session_open_pass(s->pass, s->model, &s->options, most_rows(s),
                                      round_rows(s) > two ? round_rows(s) : two, s->context, err);
    if (!code)
        code = prefill_open(s, err);
    if (!code)
        code = kvcache_open(&s->cache, c->dims.layers, s->context + round_rows(s),
                            model_cache_layout(c), a, err);
    if (!code)
        code = lead_pool(&s->cache.own, s->model->ranks, err);
    if (!code)
        code = offload_reserve(s->pass, &s->cache.own, err);
    if (!code && s->options.tap && s->options.tap_scores && s->model->ranks && prefill_expands(&s->options))
        code = vb_fail(err, VB_BAD_ARGUMENT, "on several ranks, there are no taps of scores with prefill expanded");
    if (!code && s->options.tap) {
        s->pass->tapper = tapper_open(s->options.tap, s->options.tap_context, s->options.tap_scores, most_rows(s), a);
        s->pass->cx.probe = s->pass->tapper ? &s->pass->tapper->probe : NULL;
        if (!s->pass->tapper)
            code = vb_fail(err, VB_NO_MEMORY, "no memory for taps of %zu rows", most_rows(s));
    }
    s->rows = vb_alloc(a, most_rows(s), sizeof *s->rows);
    return code || s->rows ? code : vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows", most_rows(s));
}

/* While the chosen length is 0, a drafter that can defer computes nothing before it is asked for drafts. */
static void defer(const struct vb_session *s)
{
    if (s->length && s->type->defer)
        s->type->defer(s->drafter, draft_length_deferred(s->length));
}

static int open_drafter(struct vb_session *s, vb_error *err)
{
    struct drafter_options o = {.asked = &s->options, .kernels = s->pass->cx.k, .threads = s->pass->cx.most_threads,
                                .context = s->context, .most_observed = most_rows(s) + 1, .max_draft = s->max_draft,
                                .takes = s->type ? s->type->takes : ROWS_FEATURES,
                                .topk = s->tree ? s->options.drafting.tree.topk : 1, .nodes = s->max_drafts,
                                .poison = s->options.poison_cut_rows, .padded = s->options.padded,
                                .sequence = s->options.sequence, .tracer = s->tracer,
                                .choose = acceptance_draws(s->acceptance) ? draw_draft : NULL, .choose_context = s};
    int code = s->type ? s->type->open(&s->drafter, s->model, &o, err) : VB_OK;
    if (!code && s->type)
        defer(s);
    return code;
}

/* Whether attention has the expanded form for the row of the token at this index. */
static int expands(const struct vb_session *s, size_t index)
{
    return index < s->prompt && prefill_expands(&s->options);
}

int session_fits(const struct vb_session *s, struct pass *pass, vb_error *err)
{
    if (1 + (size_t)s->max_drafts > pass->w.max_rows || 1 + (size_t)s->max_drafts > pass->w.max_logit_rows)
        return vb_fail(err, VB_BAD_ARGUMENT, "draft nodes is %d, for which the batch has no room", s->max_drafts);
    if (expands(s, s->cached) && !pass->w.expands)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "rows of the session's prompt are due by prefill expanded, which the batch does not have");
    return s->type ? pass_keep_rows(pass, s->type->takes, err) : VB_OK; /* too few layers are refused by who opens the
                                                                             drafter */
}

static int open_parts(struct vb_session *s, const struct shared *shared, vb_error *err)
{
    size_t V = s->model->config.dims.V;
    const vb_allocator *a = s->model->allocator;
    int code = shared ? kvcache_open_in(&s->cache, shared->pool, s->context + round_rows(s), a, err)
                      : open_own_parts(s, err);
    s->cache.poison = s->options.poison_cut_rows;
    s->cache.sequence = s->options.sequence;
    if (!code && s->options.trace) {
        /* in a batch, a module's pass may also have rows that two rounds have left */
        size_t rows = most_rows(s) + 3 * (VB_MAX_DRAFT + 1);
        s->tracer = tracer_open(s->options.trace, s->options.trace_context, s->options.sequence, rows, a);
        if (!s->tracer)
            code = vb_fail(err, VB_NO_MEMORY, "no memory for a trace of %zu rows", rows);
    }
    s->cache.tracer = s->tracer;
    if (!code)
        code = sampler_open(&s->sampler, &s->options.sampling, V, a, err);
    if (!code)
        code = acceptance_open(&s->acceptance, &s->options.sampling, s->sampler, V, s->max_draft, a, err);
    if (!code)
        code = session_fits(s, s->pass, err);
    if (!code)
        code = open_drafter(s, err);
    s->tokens = vb_alloc(a, s->context, sizeof *s->tokens);
    if (!code && !s->tokens)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for a timeline of %zu tokens", s->context);
    return code ? code : routes_open(s, s->context + round_rows(s), err);
}

int session_open(vb_session **out, const vb_model *model, const vb_session_options *options,
                 const struct shared *shared, vb_error *err)
{
    vb_session *s = vb_alloc(model->allocator, 1, sizeof *s);
    *out = NULL;
    if (!s)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a session");
    s->model = model;
    s->pass = shared ? shared->pass : &s->own;
    s->cache.pool = &s->cache.own; /* nothing yet */
    if (options)
        s->options = *options;
    int code = session_limits(model, &s->options, &s->context, err);
    s->chunk = s->options.prefill_chunk ? (size_t)s->options.prefill_chunk
             : prefill_expands(&s->options) && !shared ? EXPANDED_CHUNK : PREFILL_CHUNK;
    s->chunk = min_size(s->chunk, s->context);
    if (!code)
        code = choose_drafter(s, err);
    if (!code)
        code = open_parts(s, shared, err);
    if (code)
        vb_session_close(s);
    else
        *out = s;
    return code;
}

int session_options(vb_session_options *to, const vb_session_options *options, vb_error *err)
{
    int code = OPTIONS_COPY(to, vb_session_options, options, err);
    if (!code)
        code = OPTIONS_RESERVED(vb_sampling, &to->sampling, err);
    if (!code)
        code = OPTIONS_RESERVED(vb_drafting, &to->drafting, err);
    return code ? code : OPTIONS_RESERVED(vb_routes, &to->routes, err);
}

int vb_session_open(vb_session **out, const vb_model *model, const vb_session_options *options, vb_error *err)
{
    vb_session_options o;
    *out = NULL;
    if (session_options(&o, options, err))
        return VB_BAD_ARGUMENT;
    struct fpenv env = fpenv_enter();
    int code = session_open(out, model, &o, NULL, err);
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
    acceptance_close(s->acceptance, a);
    sampler_close(s->sampler, a);
    tracer_close(s->tracer, a);
    kvcache_close(&s->cache, a);
    if (s->pass == &s->own) {
        tapper_close(s->pass->tapper, a);
        prefill_close(s);
        pass_close(s->pass);
    }
    routes_close(s);
    vb_free(a, s->tree);
    slot_lists_close(&s->node_slots, a);
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

/* The rows that the next round needs again: the last token's, and those whose hidden states the drafter has let go. */
int vb_truncate(vb_session *s, size_t count, vb_error *err)
{
    if (count > s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "cannot cut to %zu tokens, there are %zu", count, s->count);
    size_t rewind = s->type ? s->type->rewind(s->drafter) : 0;
    size_t rows = count > 1 + rewind ? count - 1 - rewind : 0;
    if (s->cached >= count || s->held > count) {
        s->held = max_size(s->held, s->observed);
        rows = min_size(prefill_rewind(s, rows), s->cached);
        s->cached = rows;
        kvcache_truncate(&s->cache, rows);
        s->observed = rows ? rows + 1 : 0;
        s->given = count;
    }
    s->given = min_size(s->given, count);
    s->prompt = min_size(s->prompt, count);
    s->routed = min_size(s->routed, count);
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

/* Rows that a pass can take next: what is left of the tokens given, or the last one. Attention has the same form for
 * all of them. */
static size_t rows_left(const struct vb_session *s)
{
    return (expands(s, s->cached) ? min_size(s->prompt, s->count)
            : s->cached < s->given ? s->given
            : s->count) -
           s->cached;
}

size_t session_most_rows(const struct vb_session *s, size_t chunk)
{
    size_t left = rows_left(s), prefill = prefill_rows(s);
    chunk = min_size(s->chunk, chunk);
    if (prefill)
        return prefill;
    if (s->cached >= s->given)
        return 1 + (size_t)s->max_drafts;
    return min_size(left, chunk);
}

int session_next_drafts(const struct vb_session *s) { return s->length ? s->length->K : s->max_drafts; }

size_t session_next_rows(const struct vb_session *s)
{
    return 1 + (size_t)(s->options.padded ? s->max_drafts : session_next_drafts(s));
}

void session_plan(struct vb_session *s, struct plan *p, size_t chunk, size_t most)
{
    size_t left = rows_left(s), prefill = prefill_rows(s);
    assert(left > 0);
    chunk = min_size(s->chunk, chunk);
    *p = (struct plan){.committed = prefill ? prefill : min_size(left, chunk), .by_library = prefill > 0};
    p->is_prompt = s->cached < s->given;
    p->chooses = s->cached + p->committed == s->count;
    defer(s);
    if (!s->type || p->is_prompt)
        return;
    p->padding = s->options.padded ? s->max_draft : 0; /* and no drafts yet */
    size_t room = s->context - s->count; /* a round of K drafts chooses up to K + 1 tokens */
    most = min_size(most, room);
    most = most ? most - 1 : 0;
    size_t longest = (size_t)(s->length ? session_next_drafts(s) : s->max_draft);
    p->asked = most >= longest;
    if (most > longest)
        most = longest;
    acceptance_round(s->acceptance);
    p->wanted = (int)most;
}

void session_take_drafts(struct vb_session *s, struct plan *p, int drafts)
{
    p->drafts = drafts;
    p->tree = drafts ? s->tree : NULL;
    p->padding -= p->padding ? drafts : 0;
}

int session_propose(struct vb_session *s, struct pass *pass, int32_t *draft, int most, size_t *failed)
{
    if (!s->tree)
        return drafter_propose_one(s->type, s->drafter, pass, draft, most, failed);
    s->type->propose_tree(s->drafter, pass, s->tree, most, failed);
    assert(s->tree->count <= s->max_drafts);
    for (int i = 0; i < s->tree->count; i++)
        assert(s->tree->parent[i] < i &&
               s->tree->depth[i] == (s->tree->parent[i] < 0 ? 1 : s->tree->depth[s->tree->parent[i]] + 1));
    memcpy(draft, s->tree->token, (size_t)s->tree->count * sizeof *draft);
    return s->tree->count;
}

/* A node sees the committed tokens and its ancestors, which stand in the cache behind those in the order of the
 * nodes. */
static void place_nodes(struct vb_session *s, const struct draft_tree *t, struct row *rows)
{
    for (int i = 0; i < t->count; i++) {
        int32_t *slots = slot_list(&s->node_slots, &s->cache, (size_t)i, s->count);
        size_t index = s->count + (size_t)t->depth[i] - 1;
        for (int a = i; a >= 0; a = t->parent[a])
            slots[s->count + (size_t)t->depth[a] - 1] = s->cache.slots[s->count + (size_t)a];
        rows[i].index = (int32_t)index;
        rows[i].position = (int32_t)index;
        rows[i].parent = t->parent[i] + 1;
        rows[i].slots = slots;
    }
}

size_t session_rows(struct vb_session *s, const struct plan *p, struct row *rows)
{
    size_t n = p->committed + (size_t)p->drafts, all = n + (size_t)p->padding;
    for (size_t i = 0; i < all; i++) {
        size_t index = s->cached + i;
        rows[p->first_row + i] = (struct row){
                                              .cache = &s->cache,
                                              .index = (int32_t)index,
                                              .position = (int32_t)index,
                                              .hidden_of = -1,
                                              .hidden_depth = -1,
                                              .draft = i < p->committed ? 0
                                                       : i < n ? (int32_t)(i - p->committed) + 1
                                                       : -1,
                                              .token = i < p->committed ? s->tokens[index]
                                                       : i < n ? p->draft[i - p->committed]
                                                       : 0,
                                              .slot = kvcache_append(&s->cache),
                                              .expanded = expands(s, index)};
        if (i < n)
            routes_record(s, &rows[p->first_row + i], index);
    }
    for (size_t i = 0; !p->tree && i < (size_t)p->drafts; i++)
        rows[p->first_row + p->committed + i].parent = (int32_t)i;
    if (p->tree)
        place_nodes(s, p->tree, rows + p->first_row + p->committed);
    for (size_t i = p->first_row; i < p->first_row + n; i++) {
        rows[i].forced = routes_forced(&s->options.routes, (size_t)rows[i].index);
        rows[i].forced_kept = routes_kept(&s->options.routes, (size_t)rows[i].index);
    }
    return all;
}

int session_give_up(struct vb_session *s, vb_error *err)
{
    kvcache_truncate(&s->cache, s->cached);
    return vb_fail(err, VB_STOPPED, "stopped by the caller");
}

int session_draft_stopped(struct vb_session *s)
{
    int stopped = s->pass->draft_stopped;
    s->pass->draft_stopped = 0;
    return stopped;
}

float *session_features(const struct vb_session *s, const struct pass *pass, size_t first, size_t *width)
{
    return pass_rows(pass, s->type ? s->type->takes : ROWS_FEATURES, first, width);
}

/* Of a tree, when n tokens have been chosen: moves the rows that s's drafter takes, of the accepted drafts, side by
 * side behind those of the committed tokens, where a chain has them. */
static void gather(const struct vb_session *s, struct pass *pass, const struct plan *p, size_t n)
{
    size_t d;
    float *rows = session_features(s, pass, p->first_row + p->committed, &d);
    for (size_t i = 0; p->tree && i + 1 < n; i++)
        if ((size_t)p->path[i] != i)
            memcpy(rows + i * d, rows + (size_t)p->path[i] * d, d * sizeof *rows);
}

static void commit(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n, const float *hidden)
{
    size_t first = s->cached;
    if (p->tree && n)
        kvcache_take_path(&s->cache, s->count, p->path, n - 1);
    for (size_t i = 0; p->tree && i + 1 < n; i++)
        routes_take_row(s, s->count + i, s, s->count + (size_t)p->path[i]);
    if (n) /* with none, chosen may be NULL */
        memcpy(s->tokens + s->count, chosen, n * sizeof *chosen);
    s->count += n;
    /* A part of a prompt leaves all its rows; else the last token chosen has no row yet. */
    s->cached = p->chooses ? (n ? s->count - 1 : first + p->committed - 1) : first + p->committed;
    s->routed = p->chooses && !n ? first + p->committed : s->cached;
    s->cached = prefill_rewind(s, s->cached);
    kvcache_truncate(&s->cache, s->cached);
    if (!s->type)
        return;
    if (p->by_library)
        prefill_begin(s->pass);
    if (s->observed == 0)
        s->type->observe(s->drafter, s->pass, 0, s->tokens, NULL, 1);
    if (s->cached > first)
        s->type->observe(s->drafter, s->pass, first + 1, s->tokens + first + 1, hidden, s->cached - first);
    if (p->by_library)
        prefill_end(s->pass);
    s->observed = s->cached + 1;
    s->held = 0;
    if (p->is_prompt && n && s->type->after_prompt)
        s->type->after_prompt(s->drafter, s->pass);
}

static void count_accepted(struct vb_session *s, const struct plan *p, const int32_t *chosen, size_t n)
{
    int stood = 0;
    if (!s->length || p->is_prompt || !p->asked || !n)
        return;
    while (stood < p->drafts && (size_t)stood < n && chosen[stood] == p->draft[stood])
        stood++;
    draft_length_accepted(s->length, p->drafts, stood);
}

double session_finish(struct vb_session *s, struct pass *pass, const struct plan *p, const int32_t *chosen, size_t n)
{
    double start = monotonic_seconds();
    size_t width;
    gather(s, pass, p, n);
    commit(s, p, chosen, n, session_features(s, pass, p->first_row, &width));
    double observing = monotonic_seconds() - start;
    count_accepted(s, p, chosen, n);
    trace_round_ends(s->tracer);
    return observing;
}

void vb_session_threads_sized(const vb_session *s, vb_thread_use *out, size_t size)
{
    const struct op_ctx *cx = &s->pass->cx;
    const struct crew *c = cx->crew;
    vb_thread_use use = {.most = cx->most_threads, .mean = 1.0};
    if (c)
        use = (vb_thread_use){c->threads, c->passes ? (double)c->pass_threads / (double)c->passes : 0.0, c->passes,
                              c->left_out, c->waited};
    struct_fill(out, size, &use, sizeof use);
}

size_t vb_draft_memory(const vb_session *s) { return s->type && s->type->bytes ? s->type->bytes(s->drafter) : 0; }

void session_leave(struct vb_session *s)
{
    kvcache_truncate(&s->cache, 0);
    if (s->drafter)
        s->type->close(s->drafter);
    s->drafter = NULL;
    s->cached = s->observed = s->held = 0;
    s->given = s->given < s->count ? s->count - 1 : s->given; /* the round that the last token begins is still to come,
                                                                 with its drafts */
}

int session_return(struct vb_session *s, vb_error *err) { return open_drafter(s, err); }

/* The drafter, which is new, comes to know tokens[0..rows]: as the other one does, or by being told. */
static int share_drafter(struct vb_session *s, const struct vb_session *other, size_t rows)
{
    const struct drafter_type *type = s->type;
    size_t step = most_rows(s);
    if (type->begin_as && other->type == type && type->begin_as(s->drafter, other->drafter, rows))
        return 1;
    for (size_t i = 0; type->tokens_alone && i <= rows; i += step)
        type->observe(s->drafter, s->pass, i, s->tokens + i, NULL, rows + 1 - i < step ? rows + 1 - i : step);
    return type->tokens_alone;
}

size_t session_begin_as(struct vb_session *s, const struct vb_session *other, size_t same)
{
    size_t rewind = s->type ? s->type->rewind(s->drafter) : 0, rows = same > 1 + rewind ? same - 1 - rewind : 0;
    rows = prefill_alike(other, s->prompt, min_size(rows, other->cached));
    /* A drafter proposes from the hidden state of the newest row that is given, which must be computed here: other may
     * have dropped it. */
    rows = min_size(rows, s->type && s->given ? s->given - 1 : s->given);
    if (!rows || (s->type && !share_drafter(s, other, rows)))
        return 0;
    kvcache_begin_as(&s->cache, &other->cache, rows);
    for (size_t i = 0; i < rows; i++)
        routes_take_row(s, i, other, i);
    s->cached = s->routed = rows;
    s->observed = rows + 1;
    return rows;
}
