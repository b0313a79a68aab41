/* engine/session/batch.c -- continuous batching: requests wait, are admitted, share passes, and leave when they are
 * done.
 *
 * A step is a round (engine/session/round.h). Its pass takes the rows of every sequence that is decoding, oldest first,
 * then as much of the prompts as there is room for. Rows of all caches are in one pool. When it is full the youngest
 * sequence gives its rows back and waits again, in front; what it had is computed anew, in chunks, later: the same bits
 * (the contract), and no token is chosen twice. The oldest is never made to wait, so every request ends. A request may
 * also bring a session that is open already: its rows stay in its own cache, which no neighbour shares and nobody takes
 * away. */
#include <string.h>

#include "simd/fpenv.h"
#include "engine/base/options.h"
#include "engine/model/numa.h"
#include "engine/pass/lead.h"
#include "engine/pass/offload.h"
#include "engine/session/batch_internal.h"
#include "engine/session/prefill.h"
#include "engine/session/round.h"
#include "engine/session/routes.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int check_options(vb_batch *b, vb_error *err)
{
    const vb_session_options *o = &b->session;
    int32_t most = b->options.max_sequences ? b->options.max_sequences : 8;
    if (o->prefill && strcmp(o->prefill, "contract") && !prefill_expands(o))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "prefill is %s; a batch has contract and expanded alone: with others bits would depend on "
                       "which rows of a prompt are computed together",
                       o->prefill);
    if (o->tap)
        return vb_fail(err, VB_BAD_ARGUMENT, "a batch has no taps");
    if (prefill_check_tensor_cores(b->model, o, err))
        return VB_BAD_ARGUMENT;
    if (most < 1 || most > MOST_SEQUENCES)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d sequences at once, wanted 1 to %d", most, MOST_SEQUENCES);
    if (b->options.keep_finished < 0 || b->options.keep_finished > MOST_KEPT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d finished sequences to keep, wanted 0 to %d", b->options.keep_finished,
                       MOST_KEPT);
    b->kept.most = (size_t)b->options.keep_finished;
    int code = session_limits(b->model, o, &b->context, err);
    vb_routes routes = {0};
    if (!code)
        code = routes_copy(&routes, b->model, &o->routes, err);
    routes_free(b->model, &routes);
    if (code)
        return code;
    b->round_rows = 1 + (o->drafting.tree.topk > 1 ? VB_MAX_NODES : VB_MAX_DRAFT);
    b->most_running = (size_t)most;
    if (!b->options.cache_tokens)
        b->options.cache_tokens = (int64_t)(b->context + b->round_rows) * most;
    if (b->options.cache_tokens <= (int64_t)b->round_rows || b->options.cache_tokens > INT32_MAX)
        return vb_fail(err, VB_BAD_ARGUMENT, "the cache is of %lld tokens, wanted %zu to %d",
                       (long long)b->options.cache_tokens, b->round_rows + 1, INT32_MAX);
    return VB_OK;
}

static int open_parts(vb_batch *b, vb_error *err)
{
    const struct config *c = &b->model->config;
    const vb_session_options *o = &b->session;
    size_t round = b->round_rows,
           chunk = min_size(o->prefill_chunk ? (size_t)o->prefill_chunk : PREFILL_CHUNK, b->context * b->most_running);
    /* what is more waits for the next pass */
    size_t decoding = b->most_running * (o->drafting.tokens > 0 ? 1 + (size_t)o->drafting.tokens : 4);
    b->decoding_rows = decoding > round ? decoding : round;
    size_t rows = chunk + b->decoding_rows;
    int code = session_open_pass(&b->pass, b->model, o, rows, b->decoding_rows, b->context, err);
    if (!code)
        code = kvpool_open(&b->pool, c->dims.layers, (size_t)b->options.cache_tokens,
                           model_cache_layout(c), b->model->allocator, err);
    if (!code)
        code = lead_pool(&b->pool, b->model->ranks, err);
    if (!code)
        code = offload_reserve(&b->pass, &b->pool, err);
    b->rows = vb_alloc(b->model->allocator, rows, sizeof *b->rows);
    if (!code && !b->rows)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows", rows);
    b->state = (vb_batch_state){.cache_tokens = b->pool.capacity, .cache_bytes = kvpool_bytes(&b->pool),
                                .pass_bytes = b->pass.w.bytes};
    return code;
}

int vb_batch_open(vb_batch **out, const vb_model *model, const vb_batch_options *options, vb_error *err)
{
    struct fpenv env = fpenv_enter();
    vb_batch *b = vb_alloc(model->allocator, 1, sizeof *b);
    int code = b ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory for a batch");
    *out = NULL;
    if (b) {
        b->model = model;
        code = OPTIONS_COPY(&b->options, vb_batch_options, options, err);
        if (!code)
            code = session_options(&b->session, b->options.session, err);
        if (!code)
            code = check_options(b, err);
        if (!code)
            code = open_parts(b, err);
        if (code)
            vb_batch_close(b);
        else
            *out = b;
    }
    fpenv_leave(env);
    return code;
}

static void forget(vb_batch *b, struct batch_request *r)
{
    run_close(&r->run, b->model->allocator);
    if (!r->asked.session)
        vb_session_close(r->run.session);
    vb_free(b->model->allocator, r->prompt);
    routes_free(b->model, &r->session.routes);
    vb_free(b->model->allocator, r);
}

void vb_batch_close(vb_batch *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->num_running; i++) {
        batch_own_length(b->running[i]->run.session);
        forget(b, b->running[i]);
    }
    while (b->waiting) {
        struct batch_request *r = b->waiting;
        b->waiting = r->next;
        if (r->run.session)
            batch_own_length(r->run.session);
        forget(b, r);
    }
    while (kept_drop(&b->kept, NULL))
        ;
    const vb_allocator *a = b->model->allocator;
    while (b->lengths) {
        struct batch_length *l = b->lengths;
        b->lengths = l->next;
        vb_free(a, l);
    }
    vb_free(a, b->rows);
    kvpool_close(&b->pool, a);
    pass_close(&b->pass);
    vb_free(a, b);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void batch_wait(vb_batch *b, struct batch_request *r)
{
    struct batch_request **at = &b->waiting;
    while (*at && (*at)->id < r->id)
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    b->state.waiting++;
}

static int check_request(const vb_batch *b, const vb_request *q, vb_error *err)
{
    size_t room = (size_t)b->options.cache_tokens - b->round_rows;
    size_t most = q->options->max_tokens < b->context ? q->count + q->options->max_tokens : SIZE_MAX;
    if (!q->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    if (b->model->config.tensor_cores && q->routes && q->routes->tokens)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "precision tensor computes on a GPU, but the CPU computes passes with forced routes");
    if (q->count > b->context)
        return vb_fail(err, VB_BAD_ARGUMENT, "a prompt of %zu tokens does not fit into a context of %zu", q->count,
                       b->context);
    if (min_size(most, b->context) > room)
        return vb_fail(err, VB_BAD_ARGUMENT, "a prompt of %zu tokens and %zu new ones do not fit into a cache of %zu",
                       q->count, min_size(q->options->max_tokens, b->context - q->count), room);
    for (size_t i = 0; i < q->count; i++)
        if (q->tokens[i] < 0 || q->tokens[i] >= b->model->config.vocab_size)
            return vb_fail(err, VB_BAD_ARGUMENT, "token %zu is %d, outside the vocabulary of %d", i, q->tokens[i],
                           b->model->config.vocab_size);
    return VB_OK;
}

static int has_session(const vb_batch *b, const vb_session *s)
{
    for (size_t i = 0; i < b->num_running; i++)
        if (b->running[i]->asked.session == s)
            return 1;
    for (const struct batch_request *r = b->waiting; r; r = r->next)
        if (r->asked.session == s)
            return 1;
    return 0;
}

/* Whether the batch's passes can compute the rows of a session that was opened by itself. */
static int check_session(vb_batch *b, const vb_request *q, vb_error *err)
{
    const vb_session *s = q->session;
    if (q->tokens || q->count || q->sampling || q->drafting || q->prompt_row || q->routes)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "a request with a session has that one's tokens and options, and none of its own");
    if (s->model != b->model)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session belongs to another model");
    if (has_session(b, s))
        return vb_fail(err, VB_BAD_ARGUMENT, "the session is in the batch already");
    if (!s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    if (s->context > b->context)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session has a context of %zu, more than the %zu of the batch",
                       s->context, b->context);
    if (s->context < b->context && s->model->config.conventions.value[YARN])
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "the session has a context of %zu, the batch %zu; convention yarn=max-len wants equal ones",
                       s->context, b->context);
    if (prefill_rows(s))
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "rows of the session's prompt are due by prefill %s, which a batch does not have",
                       prefill_kind(s));
    if (s->options.tap)
        return vb_fail(err, VB_BAD_ARGUMENT, "a batch has no taps, which the session has");
    return session_fits(s, &b->pass, err);
}

static int add_session(vb_batch *b, const vb_request *q, int64_t *id, vb_error *err)
{
    int code = check_session(b, q, err);
    struct batch_request *r = code ? NULL : vb_alloc(b->model->allocator, 1, sizeof *r);
    if (code || !r)
        return code ? code : vb_fail(err, VB_NO_MEMORY, "no memory for a request");
    *r = (struct batch_request){.id = b->next_id++, .asked = *q, .generate = *q->options,
                                .result.fingerprint = VB_FINGERPRINT_START};
    r->asked.options = &r->generate;
    r->asked.count = q->session->count;
    r->run = (struct run){.session = q->session, .options = &r->generate, .result = &r->result, .chunk = 1};
    batch_wait(b, r);
    if (id)
        *id = r->id;
    return VB_OK;
}

static int add_prompt(vb_batch *b, const vb_request *q, int64_t *id, vb_error *err)
{
    const vb_allocator *a = b->model->allocator;
    int code = check_request(b, q, err);
    if (code)
        return code;
    struct batch_request *r = vb_alloc(a, 1, sizeof *r);
    int32_t *prompt = vb_alloc(a, q->count, sizeof *prompt);
    if (!r || !prompt) {
        vb_free(a, r);
        vb_free(a, prompt);
        return vb_fail(err, VB_NO_MEMORY, "no memory for a request of %zu tokens", q->count);
    }
    vb_routes forced;
    code = routes_copy(&forced, b->model, q->routes ? q->routes : &b->session.routes, err);
    if (code) {
        vb_free(a, r);
        vb_free(a, prompt);
        return code;
    }
    memcpy(prompt, q->tokens, q->count * sizeof *prompt);
    *r = (struct batch_request){.id = b->next_id++, .session = b->session, .asked = *q,
                                .generate = *q->options, .prompt = prompt,
                                .result.fingerprint = VB_FINGERPRINT_START};
    r->asked.options = &r->generate;
    r->session.sampling = q->sampling ? *q->sampling : b->session.sampling;
    r->session.drafting = q->drafting ? *q->drafting : b->session.drafting;
    r->session.context = (int32_t)(q->options->max_tokens < b->context - q->count ? q->count + q->options->max_tokens
                                                                                 : b->context);
    r->session.sequence = (int32_t)r->id;
    r->session.routes = forced;
    r->run = (struct run){.options = &r->generate, .result = &r->result, .prompt_row = q->prompt_row,
                          .prompt_context = q->context, .prompt = q->count};
    batch_wait(b, r);
    if (id)
        *id = r->id;
    return VB_OK;
}

int vb_batch_add(vb_batch *b, const vb_request *request, int64_t *id, vb_error *err)
{
    vb_request q;
    vb_generate_options options;
    int code = OPTIONS_COPY(&q, vb_request, request, err);
    if (!code)
        code = OPTIONS_COPY(&options, vb_generate_options, q.options, err);
    if (!code)
        code = OPTIONS_RESERVED(vb_sampling, q.sampling, err);
    if (!code)
        code = OPTIONS_RESERVED(vb_drafting, q.drafting, err);
    if (!code)
        code = OPTIONS_RESERVED(vb_routes, q.routes, err);
    if (code)
        return code;
    q.options = &options;
    return q.session ? add_session(b, &q, id, err) : add_prompt(b, &q, id, err);
}

/* Whether the rows of a request that ended may stay: nothing of it points to what the caller may now free, or has
 * freed. */
static int can_keep(const vb_batch *b, const struct batch_request *r)
{
    const struct vb_session *s = r->run.session;
    const vb_drafting *d = &r->session.drafting, *batch = &b->session.drafting;
    if (!b->kept.most || !s || r->asked.session || !s->cached)
        return 0;
    return !s->type || (s->drafter && (!d->vocab || d->vocab == batch->vocab) &&
                        (!s->type->needs_model || d->model == batch->model) &&
                        (!s->type->needs_callback || (d->callback == batch->callback && d->context == batch->context)));
}

/* Tells whoever asked, and forgets it. It is neither waiting nor running any more. */
void batch_end(vb_batch *b, struct batch_request *r)
{
    struct vb_session *s = r->run.session;
    int code = r->run.error.code, kept = can_keep(b, r);
    if (s && !kept && !r->asked.session)
        session_leave(s); /* `done` may close a draft model */
    if (s)
        batch_own_length(s);
    vb_request_end end = {.id = r->id, .code = code, .error = code ? &r->run.error : NULL,
                          .tokens = s ? s->tokens : r->prompt, .prompt = r->asked.count,
                          .count = s ? s->count : r->asked.count, .result = &r->result};
    if (s)
        vb_session_routes(s, &end.routes);
    b->state.done++;
    b->state.paused -= (size_t)r->paused;
    if (r->asked.done)
        r->asked.done(r->asked.context, &end);
    if (kept) {
        kept_add(&b->kept, s);
        r->run.session = NULL;
    }
    forget(b, r);
}

void batch_leave(vb_batch *b, size_t i)
{
    memmove(b->running + i, b->running + i + 1, (b->num_running - i - 1) * sizeof *b->running);
    b->state.running = --b->num_running;
}

static int set_paused(vb_batch *b, int64_t id, int paused)
{
    struct batch_request *r = NULL;
    for (size_t i = 0; i < b->num_running && !r; i++)
        r = b->running[i]->id == id ? b->running[i] : NULL;
    for (struct batch_request *w = b->waiting; w && !r; w = w->next)
        r = w->id == id ? w : NULL;
    if (!r)
        return 0;
    b->state.paused += (size_t)paused - (size_t)r->paused;
    r->paused = paused;
    return 1;
}

int vb_batch_pause(vb_batch *b, int64_t id) { return set_paused(b, id, 1); }
int vb_batch_resume(vb_batch *b, int64_t id) { return set_paused(b, id, 0); }

int vb_batch_cancel(vb_batch *b, int64_t id)
{
    struct batch_request *r = NULL;
    for (size_t i = 0; i < b->num_running && !r; i++)
        if (b->running[i]->id == id) {
            r = b->running[i];
            batch_leave(b, i);
        }
    for (struct batch_request **at = &b->waiting; *at && !r; at = &(*at)->next)
        if ((*at)->id == id) {
            r = *at;
            *at = r->next;
            b->state.waiting--;
            break;
        }
    if (!r)
        return 0;
    r->result.finish = VB_FINISH_STOPPED;
    batch_end(b, r);
    return 1;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

struct batch_group {
    struct run *runs[MOST_SEQUENCES];
    size_t count, rows, logit_rows, slots;
};

static int is_in(const struct batch_group *g, const struct run *run)
{
    for (size_t i = 0; i < g->count; i++)
        if (g->runs[i] == run)
            return 1;
    return 0;
}

static size_t place_of(const vb_batch *b, const struct batch_request *r)
{
    size_t i = 0;
    while (b->running[i] != r)
        i++;
    return i;
}

/* Whether the pool has so many slots for r beside those that the group takes: kept and paused sequences give theirs
 * back, then the youngest, until it has, but for those in the group, those older than r, and those with a cache of
 * their own. */
static int make_room(vb_batch *b, const struct batch_group *g, const struct batch_request *r, size_t slots)
{
    if (r->asked.session || batch_free_idle(b, g->slots + slots, NULL))
        return 1;
    for (size_t i = b->num_running, self = place_of(b, r); b->pool.num_free < g->slots + slots;) {
        do {
            if (--i == self)
                return 0;
        } while (b->running[i]->asked.session || is_in(g, &b->running[i]->run));
        batch_preempt(b, i);
    }
    return 1;
}

static void join(struct batch_group *g, struct batch_request *r, size_t rows, size_t logit_rows)
{
    g->runs[g->count++] = &r->run;
    g->rows += rows;
    g->slots += r->asked.session ? 0 : rows;
    g->logit_rows += logit_rows;
}

/* Whether r decodes (or, if not, is still at its prompt) in the next pass. */
static int decodes(const struct batch_request *r) { return r->run.session->cached >= r->run.session->given; }

/* Automatic lengths of the sequences that decode: no longer than that all of them fit into the pass. */
static void choose_lengths(vb_batch *b)
{
    struct run *runs[MOST_SEQUENCES];
    size_t count = 0;
    int mixed = 0;
    for (size_t i = 0; i < b->num_running; i++) {
        struct batch_request *r = b->running[i];
        if (!r->paused && decodes(r))
            runs[count++] = &r->run;
        mixed |= !r->paused && !decodes(r);
    }
    round_choose_lengths(runs, count, min_size(b->pass.w.max_logit_rows, b->pass.w.max_rows), mixed);
}

static void compose_decoding(vb_batch *b, struct batch_group *g)
{
    for (size_t i = 0; i < b->num_running; i++) {
        struct batch_request *r = b->running[i];
        size_t rows = session_next_rows(r->run.session), logit_rows = 1 + (size_t)session_next_drafts(r->run.session);
        if (r->paused || !decodes(r) || g->rows + rows > b->pass.w.max_rows ||
            g->logit_rows + logit_rows > b->pass.w.max_logit_rows)
            continue;
        if (make_room(b, g, r, rows))
            join(g, r, rows, logit_rows);
        i = place_of(b, r);
    }
}

static void compose_prompts(vb_batch *b, struct batch_group *g)
{
    size_t chunk = b->pass.w.max_rows - b->decoding_rows;
    for (size_t i = 0; i < b->num_running && chunk; i++) {
        struct batch_request *r = b->running[i];
        if (r->paused || decodes(r) || g->rows == b->pass.w.max_rows || g->logit_rows == b->pass.w.max_logit_rows)
            continue;
        if (make_room(b, g, r, 1)) {
            r->run.chunk = min_size(chunk, b->pass.w.max_rows - g->rows);
            if (!r->asked.session) {
                batch_free_idle(b, g->slots + session_most_rows(r->run.session, r->run.chunk), NULL);
                r->run.chunk = min_size(r->run.chunk, b->pool.num_free - g->slots);
            }
            size_t rows = session_most_rows(r->run.session, r->run.chunk);
            chunk -= rows;
            join(g, r, rows, 1);
        }
        i = place_of(b, r);
    }
}

static int step(vb_batch *b, vb_error *err)
{
    struct batch_group g = {.count = 0};
    batch_admit(b);
    choose_lengths(b);
    compose_decoding(b, &g);
    compose_prompts(b, &g);
    if (!g.count)
        return VB_OK;
    size_t used = b->pool.capacity - b->pool.num_free + g.slots;
    b->state.most_cache_tokens_used = used > b->state.most_cache_tokens_used ? used : b->state.most_cache_tokens_used;
    int code = round_run(&(struct round){.pass = &b->pass, .rows = b->rows, .runs = g.runs, .count = g.count}, err);
    b->state.passes++;
    for (size_t i = b->num_running; i-- > 0;) {
        struct batch_request *r = b->running[i];
        if (!r->run.finished)
            continue;
        batch_leave(b, i);
        batch_end(b, r);
    }
    return code;
}

int vb_batch_step(vb_batch *b, size_t *left, vb_error *err)
{
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(b->model);
    int code = step(b, err);
    numa_leave(&visit);
    fpenv_leave(env);
    *left = b->num_running + b->state.waiting - b->state.paused;
    return code;
}

int vb_batch_run(vb_batch *b, vb_error *err)
{
    size_t left = 1;
    int code = VB_OK;
    while (left && !code)
        code = vb_batch_step(b, &left, err);
    return code;
}

void vb_batch_look_sized(const vb_batch *b, vb_batch_state *out, size_t size)
{
    vb_batch_state state = b->state;
    state.cache_tokens_used = b->pool.capacity - b->pool.num_free;
    state.draft_bytes = 0;
    for (size_t i = 0; i < b->num_running; i++)
        state.draft_bytes += vb_draft_memory(b->running[i]->run.session);
    for (size_t i = 0; i < b->kept.count; i++)
        state.draft_bytes += vb_draft_memory(b->kept.sessions[i]);
    state.kept = b->kept.count;
    struct_fill(out, size, &state, sizeof state);
}
