/* engine/session/batch_admit.c -- which waiting request runs next, whose rows it takes over, and who gives up rows for
 * it. */
#include <string.h>

#include "engine/session/batch_internal.h"
#include "engine/session/prefill.h"
#include "engine/session/routes.h"

#define WORTH_WAITING 32 /* tokens of a prompt that another sequence is about to compute */

static const int32_t *timeline(const struct batch_request *r, size_t *count)
{
    *count = r->run.session ? r->run.session->count : r->asked.count;
    return r->run.session ? r->run.session->tokens : r->prompt;
}

/* For how many tokens s begins like r and computes their rows in the same way; 0 where their draft methods cannot
 * share. */
static size_t alike_for(const struct vb_session *s, const struct batch_request *r, const struct drafter_type *type)
{
    size_t count, n = 0;
    const int32_t *tokens = timeline(r, &count);
    if (type && type != s->type && !type->tokens_alone)
        return 0;
    count = min_size(count, s->count);
    while (n < count && s->tokens[n] == tokens[n])
        n++;
    if ((r->session.record_routes && !s->taken) || (r->session.record_kept && !s->taken_kept))
        return 0;
    n = routes_alike(s->model, &s->options.routes, &r->session.routes, n);
    return prefill_alike(s, r->run.session ? r->run.session->prompt : r->asked.count, n);
}

/* The sequence whose rows a request can take over.  */
struct alike {
    const struct vb_session *session; /* NULL: none */
    size_t same;   /* tokens that both begin with */
    size_t rows;   /* of these, computed */
    int computing; /* the others will be, in the next passes */
};

/* Of the sequences that run or are kept, the one that begins most like r. */
static struct alike most_alike(const vb_batch *b, const struct batch_request *r)
{
    const struct drafter_type *type = NULL;
    struct alike best = {NULL, 0, 0, 0};
    if (b->options.keep_apart || r->asked.session || run_tells(&r->run))
        return best;
    if (r->session.drafting.tokens >= 0)
        drafter_find(&type, r->session.drafting.method, NULL); /* an unknown name is refused later */
    for (size_t i = 0; i < b->num_running + b->kept.count; i++) {
        const struct batch_request *other = i < b->num_running ? b->running[i] : NULL;
        const struct vb_session *s = other ? other->run.session : b->kept.sessions[i - b->num_running];
        size_t same = other && other->asked.session ? 0 : alike_for(s, r, type);
        size_t rows = min_size(same, s->cached);
        int computing = other && !other->paused && s->cached < s->given;
        if (same && (computing ? same : rows) > (best.computing ? best.same : best.rows))
            best = (struct alike){s, same, rows, computing};
    }
    return best;
}

void batch_share_length(vb_batch *b, struct vb_session *s)
{
    struct batch_length *l = b->lengths;
    if (!s->length)
        return;
    while (l && (l->type != s->type || l->most != s->max_draft))
        l = l->next;
    if (!l) {
        l = vb_alloc(b->model->allocator, 1, sizeof *l);
        if (!l)
            return;
        *l = (struct batch_length){.next = b->lengths, .type = s->type, .most = s->max_draft};
        draft_length_begin(&l->length, l->most, b->model->config.dims.layers);
        b->lengths = l;
    }
    s->length = &l->length;
}

void batch_own_length(struct vb_session *s)
{
    if (s->length)
        s->length = &s->own_length;
}

/* A session of its own, with what was computed for another one. */
static int begin(vb_batch *b, struct batch_request *r, const struct alike *alike, vb_error *err)
{
    struct shared shared = {&b->pass, &b->pool};
    int code, again = r->begun;
    r->begun = 1;
    if (r->asked.session) {
        code = again ? VB_OK : run_open(&r->run, err);
    } else if (r->run.session) {
        code = session_return(r->run.session, err);
    } else {
        vb_session *s;
        code = session_open(&s, b->model, &r->session, &shared, err);
        r->run.session = s;
        if (!code)
            code = vb_append(s, r->prompt, r->asked.count, err);
        if (!code && s->type && s->type->by_history && session_drafts_lead(s))
            code = vb_fail(err, VB_BAD_ARGUMENT,
                           "acceptance %s with %s: in a batch what it drafts depends on the neighbours, and the text "
                           "would too",
                           r->session.sampling.acceptance, s->type->name);
        if (!code)
            code = run_open(&r->run, err);
    }
    if (!code)
        batch_share_length(b, r->run.session);
    if (!code && alike->session) {
        size_t rows = session_begin_as(r->run.session, alike->session, alike->same);
        b->state.shared_tokens += rows;
        r->result.cached_tokens = again ? r->result.cached_tokens : rows;
        kept_use(&b->kept, alike->session);
    }
    return code;
}

void batch_preempt(vb_batch *b, size_t i)
{
    struct batch_request *r = b->running[i];
    session_leave(r->run.session);
    r->result.preemptions++;
    b->state.preemptions++;
    batch_leave(b, i);
    batch_wait(b, r);
}

/* Whether `slots` are free, when nothing is left of kept and of paused sequences, but for those of `but`, as far as
 * they are in the way. */
int batch_free_idle(vb_batch *b, size_t slots, const struct vb_session *but)
{
    while (b->pool.num_free < slots && kept_drop(&b->kept, but))
        ;
    for (size_t i = b->num_running; i-- > 0 && b->pool.num_free < slots;)
        if (b->running[i]->paused && !b->running[i]->asked.session && b->running[i]->run.session != but)
            batch_preempt(b, i);
    return b->pool.num_free >= slots;
}

/* A place among those that run: a paused sequence gives up its own, and its rows, which a session that was brought
 * keeps. */
static int free_place(vb_batch *b, const struct vb_session *but)
{
    for (size_t i = b->num_running; i-- > 0 && b->num_running == b->most_running;) {
        struct batch_request *r = b->running[i];
        if (!r->paused || r->run.session == but)
            continue;
        if (!r->asked.session) {
            batch_preempt(b, i);
            continue;
        }
        batch_leave(b, i);
        batch_wait(b, r);
    }
    return b->num_running < b->most_running;
}

static int someone_works(const vb_batch *b)
{
    for (size_t i = 0; i < b->num_running; i++)
        if (!b->running[i]->paused)
            return 1;
    return 0;
}

/* Whether there is nothing to compute for a request whose session is open. */
static int has_no_work(const struct batch_request *r)
{
    const struct vb_session *s = r->run.session;
    return (s->count == s->context || !r->generate.max_tokens) && !run_tells(&r->run);
}

/* The first in line that is not paused is admitted if there is room for its whole prompt and a round of everybody's. */
static int admit_one(vb_batch *b)
{
    struct batch_request **at = &b->waiting, *r;
    while (*at && (*at)->paused)
        at = &(*at)->next;
    r = *at;
    if (!r)
        return 0;
    struct alike alike = most_alike(b, r);
    if (alike.computing && alike.same > alike.rows + WORTH_WAITING)
        return 0; /* who comes first computes it */
    size_t count;
    timeline(r, &count);
    if (!free_place(b, alike.session)) {
        alike = (struct alike){NULL, 0, 0, 0}; /* it is paused, and the only one that can go */
        if (!free_place(b, NULL))
            return 0;
    }
    size_t rows = r->asked.session ? 0 : count - alike.rows + (b->num_running + 1) * b->round_rows;
    if (!batch_free_idle(b, rows, alike.session) && someone_works(b))
        return 0;
    at = &b->waiting; /* paused ones may have joined the line */
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    b->state.waiting--;
    vb_error error = {.code = VB_OK};
    if (begin(b, r, &alike, &error) || has_no_work(r)) {
        r->run.error = error;
        batch_end(b, r);
        return 1;
    }
    size_t i = b->num_running++;
    for (; i > 0 && b->running[i - 1]->id > r->id; i--)
        b->running[i] = b->running[i - 1];
    b->running[i] = r;
    b->state.running = b->num_running;
    return 1;
}

void batch_admit(vb_batch *b)
{
    while (admit_one(b))
        ;
}
