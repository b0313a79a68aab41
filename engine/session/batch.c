/* engine/session/batch.c -- continuous batching: requests wait, are admitted, share passes, and leave when they are done.
 *
 * A step is a round (engine/session/round.h). Its pass takes the rows of every sequence that is decoding, oldest first, then as much of
 * the prompts as there is room for. Rows of all caches are in one pool. When it is full the youngest sequence gives its rows
 * back and waits again, in front; what it had is computed anew, in chunks, later: the same bits (the contract), and no token is
 * chosen twice. The oldest is never made to wait, so every request ends. A request may also bring a session that is open already: its
 * rows stay in its own cache, which no neighbour shares and nobody takes away. */
#include <string.h>

#include "simd/fpenv.h"
#include "engine/model/numa.h"
#include "engine/session/prefill.h"
#include "engine/session/round.h"

#define MOST_SEQUENCES 64
#define WORTH_WAITING 32 /* tokens of a prompt that another sequence is about to compute */

struct batch_request {
    struct batch_request *next;
    int64_t id;               /* ascending: who is older */
    vb_session_options session;
    vb_request asked;
    int32_t *prompt;          /* [asked.count] */
    struct run run;           /* run.session is NULL before it is admitted for the first time; asked.session from the start */
    vb_result result;
};

struct vb_batch {
    const struct model *model;
    vb_batch_options options;
    struct workspace work;
    struct kvpool pool;
    struct row *rows;         /* [work.max_rows] */
    struct batch_request *waiting;  /* by id */
    struct batch_request *running[MOST_SEQUENCES]; /* by id */
    size_t num_running, most_running, context;
    size_t decoding_rows;     /* of a pass: the rest is for prompts */
    size_t round_rows;        /* of a sequence, at most */
    int64_t next_id;
    vb_batch_state state;
};

static size_t less(size_t a, size_t b) { return a < b ? a : b; }

/* ---- opening ------------------------------------------------------------------------------------------------------- */

static int check_options(vb_batch *b, vb_error *err)
{
    const vb_session_options *o = &b->options.session;
    int32_t most = b->options.max_sequences ? b->options.max_sequences : 8;
    if (o->prefill && strcmp(o->prefill, "contract"))
        return vb_fail(err, VB_BAD_ARGUMENT, "prefill is %s; a batch has contract alone: with others bits would depend on which rows of a "
                       "prompt are computed together", o->prefill);
    if (o->tap || o->trace)
        return vb_fail(err, VB_BAD_ARGUMENT, "a batch has no taps and traces");
    if (most < 1 || most > MOST_SEQUENCES)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d sequences at once, wanted 1 to %d", most, MOST_SEQUENCES);
    int code = session_limits(b->model, o, &b->context, err);
    if (code)
        return code;
    b->round_rows = 1 + (o->drafting.tree.topk > 1 ? VB_MAX_NODES : VB_MAX_DRAFT);
    b->most_running = (size_t)most;
    if (!b->options.cache_tokens)
        b->options.cache_tokens = (int64_t)(b->context + b->round_rows) * most;
    if (b->options.cache_tokens <= (int64_t)b->round_rows || b->options.cache_tokens > INT32_MAX)
        return vb_fail(err, VB_BAD_ARGUMENT, "the cache is of %lld tokens, wanted %zu to %d", (long long)b->options.cache_tokens,
                       b->round_rows + 1, INT32_MAX);
    return VB_OK;
}

static int open_parts(vb_batch *b, vb_error *err)
{
    const struct config *c = &b->model->config;
    const vb_session_options *o = &b->options.session;
    size_t round = b->round_rows, chunk = less(o->prefill_chunk ? (size_t)o->prefill_chunk : 512, b->context * b->most_running);
    size_t decoding = b->most_running * (o->drafting.tokens > 0 ? 1 + (size_t)o->drafting.tokens : 4); /* what is more waits for the next pass */
    b->decoding_rows = decoding > round ? decoding : round;
    size_t rows = chunk + b->decoding_rows;
    int code = session_open_workspace(&b->work, b->model, o, rows, b->decoding_rows, b->context, err);
    if (!code)
        code = kvpool_open(&b->pool, c->dims.layers, (size_t)b->options.cache_tokens,
                           c->dims.row, b->model->allocator, err);
    b->rows = vb_alloc(b->model->allocator, rows, sizeof *b->rows);
    if (!code && !b->rows)
        code = vb_fail(err, VB_NO_MEMORY, "no memory for passes of %zu rows", rows);
    b->state = (vb_batch_state){.cache_tokens = b->pool.capacity, .cache_bytes = kvpool_bytes(&b->pool), .pass_bytes = b->work.bytes};
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
        if (options)
            b->options = *options;
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
    vb_free(b->model->allocator, r);
}

void vb_batch_close(vb_batch *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->num_running; i++)
        forget(b, b->running[i]);
    while (b->waiting) {
        struct batch_request *r = b->waiting;
        b->waiting = r->next;
        forget(b, r);
    }
    const vb_allocator *a = b->model->allocator;
    vb_free(a, b->rows);
    kvpool_close(&b->pool, a);
    workspace_close(&b->work);
    vb_free(a, b);
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

static void put_in_line(vb_batch *b, struct batch_request *r)
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
    size_t most = q->options.max_tokens < b->context ? q->count + q->options.max_tokens : SIZE_MAX;
    if (!q->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    if (q->count > b->context)
        return vb_fail(err, VB_BAD_ARGUMENT, "a prompt of %zu tokens does not fit into a context of %zu", q->count, b->context);
    if (less(most, b->context) > room)
        return vb_fail(err, VB_BAD_ARGUMENT, "a prompt of %zu tokens and %zu new ones do not fit into a cache of %zu", q->count,
                       less(q->options.max_tokens, b->context - q->count), room);
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
    if (q->tokens || q->count || q->sampling || q->drafting)
        return vb_fail(err, VB_BAD_ARGUMENT, "a request with a session has that one's tokens and options, and none of its own");
    if (s->model != b->model)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session belongs to another model");
    if (has_session(b, s))
        return vb_fail(err, VB_BAD_ARGUMENT, "the session is in the batch already");
    if (!s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    if (s->context > b->context)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session has a context of %zu, more than the %zu of the batch", s->context, b->context);
    if (s->context < b->context && s->model->config.conventions.value[YARN])
        return vb_fail(err, VB_BAD_ARGUMENT, "the session has a context of %zu, the batch %zu; convention yarn=max-len wants equal ones",
                       s->context, b->context);
    if (prefill_rows(s))
        return vb_fail(err, VB_BAD_ARGUMENT, "rows of the session's prompt are due by prefill onednn, which a batch does not have");
    if (s->options.tap)
        return vb_fail(err, VB_BAD_ARGUMENT, "a batch has no taps, which the session has");
    return session_fits(s, &b->work, err);
}

static int add_session(vb_batch *b, const vb_request *q, int64_t *id, vb_error *err)
{
    int code = check_session(b, q, err);
    struct batch_request *r = code ? NULL : vb_alloc(b->model->allocator, 1, sizeof *r);
    if (code || !r)
        return code ? code : vb_fail(err, VB_NO_MEMORY, "no memory for a request");
    *r = (struct batch_request){.id = b->next_id++, .asked = *q, .result.fingerprint = VB_FINGERPRINT_START};
    r->asked.count = q->session->count;
    r->run = (struct run){.session = q->session, .options = &r->asked.options, .result = &r->result, .chunk = 1};
    put_in_line(b, r);
    if (id)
        *id = r->id;
    return VB_OK;
}

int vb_batch_add(vb_batch *b, const vb_request *q, int64_t *id, vb_error *err)
{
    const vb_allocator *a = b->model->allocator;
    if (q->session)
        return add_session(b, q, id, err);
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
    memcpy(prompt, q->tokens, q->count * sizeof *prompt);
    *r = (struct batch_request){.id = b->next_id++, .session = b->options.session, .asked = *q, .prompt = prompt,
                          .result.fingerprint = VB_FINGERPRINT_START};
    r->session.sampling = q->sampling ? *q->sampling : b->options.session.sampling;
    r->session.drafting = q->drafting ? *q->drafting : b->options.session.drafting;
    r->session.context = (int32_t)(q->options.max_tokens < b->context - q->count ? q->count + q->options.max_tokens : b->context);
    r->session.sequence = (int32_t)r->id;
    put_in_line(b, r);
    if (id)
        *id = r->id;
    return VB_OK;
}

/* Tells whoever asked, and forgets it. It is neither waiting nor running any more. */
static void end_request(vb_batch *b, struct batch_request *r)
{
    struct vb_session *s = r->run.session;
    int code = r->run.error.code;
    vb_request_end end = {.id = r->id, .code = code, .error = code ? &r->run.error : NULL, .tokens = s ? s->tokens : r->prompt,
                          .prompt = r->asked.count, .count = s ? s->count : r->asked.count, .result = &r->result};
    b->state.done++;
    if (r->asked.done)
        r->asked.done(r->asked.context, &end);
    forget(b, r);
}

static void stop_running(vb_batch *b, size_t i)
{
    memmove(b->running + i, b->running + i + 1, (b->num_running - i - 1) * sizeof *b->running);
    b->state.running = --b->num_running;
}

int vb_batch_cancel(vb_batch *b, int64_t id)
{
    struct batch_request *r = NULL;
    for (size_t i = 0; i < b->num_running && !r; i++)
        if (b->running[i]->id == id) {
            r = b->running[i];
            stop_running(b, i);
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
    end_request(b, r);
    return 1;
}

/* ---- admission ----------------------------------------------------------------------------------------------------- */

static const int32_t *timeline(const struct batch_request *r, size_t *count)
{
    *count = r->run.session ? r->run.session->count : r->asked.count;
    return r->run.session ? r->run.session->tokens : r->prompt;
}

/* Of the sequences that run, the one that begins most like r, for how many tokens. */
static const struct vb_session *most_alike(const vb_batch *b, const struct batch_request *r, size_t *same)
{
    const struct vb_session *best = NULL;
    size_t count;
    const int32_t *tokens = timeline(r, &count);
    *same = 0;
    for (size_t i = 0; i < b->num_running && !b->options.keep_apart && !r->asked.session; i++) {
        const struct vb_session *s = b->running[i]->run.session;
        if (b->running[i]->asked.session)
            continue;
        size_t n = 0, most = less(count, s->count);
        while (n < most && s->tokens[n] == tokens[n])
            n++;
        if (n > *same)
            best = s, *same = n;
    }
    return best;
}

/* A session of its own, with what was computed for another one. */
static int begin(vb_batch *b, struct batch_request *r, const struct vb_session *alike, size_t same, vb_error *err)
{
    struct shared shared = {&b->work, &b->pool};
    int code;
    if (r->asked.session) {
        code = run_open(&r->run, err);
    } else if (r->run.session) {
        code = session_return(r->run.session, err);
    } else {
        vb_session *s;
        code = session_open(&s, b->model, &r->session, &shared, err);
        r->run = (struct run){.session = s, .options = &r->asked.options, .result = &r->result};
        if (!code)
            code = vb_append(s, r->prompt, r->asked.count, err);
        if (!code && s->type && s->type->by_history && session_drafts_lead(s))
            code = vb_fail(err, VB_BAD_ARGUMENT, "acceptance %s with %s: in a batch what it drafts depends on the neighbours, and the text "
                           "would too", r->session.sampling.acceptance, s->type->name);
        if (!code)
            code = run_open(&r->run, err);
    }
    if (!code && alike)
        b->state.shared_tokens += session_begin_as(r->run.session, alike, same);
    return code;
}

/* From the front of the line, as long as there is room for the whole prompt and a round of everybody's. */
static void admit(vb_batch *b)
{
    while (b->waiting && b->num_running < b->most_running) {
        struct batch_request *r = b->waiting;
        size_t count, same;
        const struct vb_session *alike = most_alike(b, r, &same);
        timeline(r, &count);
        if (alike && alike->cached < alike->given && same > alike->cached + WORTH_WAITING)
            return; /* who comes first computes it */
        size_t rows = r->asked.session ? 0 : count - (alike ? less(same, alike->cached) : 0) + (b->num_running + 1) * b->round_rows;
        if (b->num_running && b->pool.num_free < rows)
            return;
        b->waiting = r->next;
        b->state.waiting--;
        vb_error error = {.code = VB_OK};
        if (begin(b, r, alike, same, &error) || r->run.session->count == r->run.session->context || !r->asked.options.max_tokens) {
            r->run.error = error;
            end_request(b, r);
            continue;
        }
        size_t i = b->num_running++;
        for (; i > 0 && b->running[i - 1]->id > r->id; i--)
            b->running[i] = b->running[i - 1];
        b->running[i] = r;
        b->state.running = b->num_running;
    }
}

/* ---- a step -------------------------------------------------------------------------------------------------------- */

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

/* Whether the pool has so many slots beside those that the group takes: the youngest give theirs back until it has, but for those in
 * the group, those older than running[self], and those with a cache of their own. */
static int make_room(vb_batch *b, const struct batch_group *g, size_t self, size_t slots)
{
    if (b->running[self]->asked.session)
        return 1;
    for (size_t i = b->num_running; b->pool.num_free < g->slots + slots;) {
        do {
            if (--i == self)
                return 0;
        } while (b->running[i]->asked.session || is_in(g, &b->running[i]->run));
        struct batch_request *r = b->running[i];
        session_leave(r->run.session);
        stop_running(b, i);
        put_in_line(b, r);
        b->state.preemptions++;
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

/* Who takes part in the next pass: the sequences that decode, then prompts. */
static void compose(vb_batch *b, struct batch_group *g)
{
    size_t chunk = b->work.max_rows - b->decoding_rows;
    *g = (struct batch_group){.count = 0};
    for (size_t i = 0; i < b->num_running; i++) {
        struct vb_session *s = b->running[i]->run.session;
        size_t rows = 1 + (size_t)s->max_drafts;
        if (s->cached >= s->given && g->rows + rows <= b->work.max_rows && g->logit_rows + rows <= b->work.max_logit_rows &&
            make_room(b, g, i, rows))
            join(g, b->running[i], rows, rows);
    }
    for (size_t i = 0; i < b->num_running && chunk; i++) {
        struct run *run = &b->running[i]->run;
        struct vb_session *s = run->session;
        if (s->cached >= s->given || g->rows == b->work.max_rows || g->logit_rows == b->work.max_logit_rows || !make_room(b, g, i, 1))
            continue;
        run->chunk = less(chunk, b->work.max_rows - g->rows);
        if (!b->running[i]->asked.session)
            run->chunk = less(run->chunk, b->pool.num_free - g->slots);
        size_t rows = session_most_rows(s, run->chunk);
        chunk -= rows;
        join(g, b->running[i], rows, 1);
    }
}

static int step(vb_batch *b, vb_error *err)
{
    struct batch_group g;
    admit(b);
    compose(b, &g);
    if (!g.count)
        return VB_OK;
    size_t used = b->pool.capacity - b->pool.num_free + g.slots;
    b->state.most_cache_tokens_used = used > b->state.most_cache_tokens_used ? used : b->state.most_cache_tokens_used;
    int code = round_run(&(struct round){.w = &b->work, .rows = b->rows, .runs = g.runs, .count = g.count}, err);
    b->state.passes++;
    for (size_t i = b->num_running; i-- > 0;) {
        struct batch_request *r = b->running[i];
        if (!r->run.finished)
            continue;
        stop_running(b, i);
        end_request(b, r);
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
    *left = b->num_running + b->state.waiting;
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

void vb_batch_look(const vb_batch *b, vb_batch_state *out)
{
    *out = b->state;
    out->cache_tokens_used = b->pool.capacity - b->pool.num_free;
    out->draft_bytes = 0;
    for (size_t i = 0; i < b->num_running; i++)
        out->draft_bytes += vb_draft_memory(b->running[i]->run.session);
}
