/* engine/batch.c -- the loop: rounds of passes that many sequences share. A sequence's bits do not depend on its
 * neighbours, since a row's bits depend on its own timeline alone. */
#include <string.h>
#include <time.h>

#include "../simd/fpenv.h"
#include "decode.h"
#include "numa.h"
#include "prefill.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Logits of every row that chooses: those rows' hidden vectors side by side, one pass over the head. */
static void logits_of(struct workspace *w, struct run **runs, size_t count)
{
    size_t d = (size_t)w->model->config.hidden_size, V = (size_t)w->model->config.vocab_size, n = 0;
    for (size_t i = 0; i < count; i++) {
        struct plan *p = &runs[i]->plan;
        size_t rows = p->chooses ? 1 + (size_t)p->drafts : 0;
        memcpy(w->normed + n * d, w->hidden + (p->first_row + p->committed - 1) * d, rows * d * sizeof *w->hidden);
        p->logits = w->logits + n * V;
        n += rows;
    }
    if (n)
        forward_head(w, &w->model->lm_head, w->logits, w->normed, n);
    for (size_t i = 0; i < count; i++) {
        struct plan *p = &runs[i]->plan;
        if (p->chooses)
            forward_tap_logits(w, p->logits, p->first_row + p->committed - 1, 1 + (size_t)p->drafts);
    }
}

static void count_pass(struct run *run, double elapsed, int is_prompt)
{
    const struct plan *p = &run->plan;
    vb_result *r = run->result;
    if (is_prompt) {
        r->prefill_tokens += p->committed;
        r->prefill_seconds += elapsed;
        return;
    }
    r->forwards++;
    r->decode_seconds += elapsed;
    r->drafted += (size_t)p->drafts;
    for (int k = 0; k < p->drafts; k++)
        r->drafted_by_depth[k]++;
}

#define MOST_IN_A_PASS (2 * (VB_MAX_DRAFT + 1)) /* sequences, and so rows that choose at K = 0 */

/* One pass for runs whose rows fit. */
struct round {
    struct workspace *w;
    struct row *rows;
    struct run **runs;
    size_t count, chunk;
    int by_onednn; /* a chunk of prefill onednn, of the only run */
    size_t S;       /* rows of the target's pass, */
    double seconds; /* and how long it took */
};

/* Drafts, the target's pass, logits: what threads stand by for. */
static void passes_of_round(void *arg)
{
    struct round *r = arg;
    size_t S = 0;
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        size_t most = run->options->max_tokens - run->result->tokens;
        struct op_ctx *own = &run->session->work.cx; /* modules draft in their session's memory */
        if (own != &r->w->cx)
            op_share_crew(own, &r->w->cx);
        double start = seconds();
        session_plan(run->session, &run->plan, r->chunk, most, &run->result->draft_failures);
        run->drafting = seconds() - start;
        run->result->draft_seconds += run->drafting;
        if (own != &r->w->cx)
            own->crew = NULL;
        run->plan.first_row = S;
        S += session_rows(run->session, &run->plan, r->rows);
    }
    double start = seconds();
    if (r->by_onednn)
        prefill_begin(r->w);
    forward_target(r->w, r->rows, S);
    if (r->by_onednn)
        prefill_end(r->w);
    logits_of(r->w, r->runs, r->count);
    r->seconds = seconds() - start;
    r->S = S;
}

/* Plan, forward, choose, commit. */
static int round_of(struct round *r, vb_error *err)
{
    struct workspace *w = r->w;
    size_t d = (size_t)w->model->config.hidden_size;
    double start = seconds();
    op_with_crew(&w->cx, passes_of_round, r);
    int code = prefill_failed(w, err);
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        const struct plan *p = &run->plan;
        int32_t chosen[VB_MAX_DRAFT + 1];
        size_t n = 0;
        int is_prompt = run->plan.is_prompt;
        trace_pass(run->session->tracer, -1, r->rows + p->first_row, p->committed + (size_t)(p->drafts + p->padding));
        if (run->plan.chooses && !code)
            code = decode_choose(run, w, chosen, &n, err);
        double observing = seconds(), share = (double)(p->committed + (size_t)p->drafts) / (double)r->S;
        session_commit(run->session, &run->plan, chosen, n, w->features + run->plan.first_row * d);
        run->drafting += seconds() - observing;
        run->result->draft_seconds += is_prompt ? 0.0 : seconds() - observing;
        session_took(run->session, p, chosen, n, run->drafting + share * r->seconds);
        if (!code) /* the drafter's own passes over a prompt */
            code = prefill_failed(&run->session->work, err);
        trace_round_ends(run->session->tracer);
        count_pass(run, seconds() - start, is_prompt);
        if (is_prompt && run->session->options.progress)
            run->session->options.progress(run->session->options.progress_context,
                                           run->session->cached, run->session->count - n);
    }
    return code;
}

static int run_all(struct run *runs, size_t count, vb_error *err)
{
    struct vb_session *first = runs[0].session;
    struct workspace *w = &first->work;
    int code = VB_OK;
    for (size_t active = 1; active && !code;) {
        active = 0;
        for (size_t i = 0; i < count && !code;) {
            struct run *group[MOST_IN_A_PASS];
            size_t n = 0, rows = 0, logit_rows = 0, prefill = 0;
            for (; i < count && n < MOST_IN_A_PASS && !prefill; i++) {
                if (runs[i].finished)
                    continue;
                size_t most = session_most_rows(runs[i].session, first->chunk);
                size_t choosing = 1 + (size_t)runs[i].session->max_draft;
                prefill = prefill_rows(runs[i].session);
                if (n && (prefill || rows + most > w->max_rows || logit_rows + choosing > w->max_logit_rows))
                    break;
                rows += most;
                logit_rows += choosing;
                group[n++] = &runs[i];
            }
            if (n)
                code = round_of(&(struct round){.w = w, .rows = first->rows, .runs = group, .count = n, .chunk = first->chunk,
                                                 .by_onednn = prefill_rows(group[0]->session) > 0}, err);
            for (size_t j = 0; j < n; j++)
                active |= !group[j]->finished;
        }
    }
    return code;
}

int vb_generate_batch(vb_session *const *sessions, size_t count, const vb_generate_options *options, vb_result *result,
                      vb_error *err)
{
    if (!count)
        return VB_OK;
    const vb_allocator *a = sessions[0]->model->allocator;
    struct run *runs = vb_alloc(a, count, sizeof *runs);
    if (!runs)
        return vb_fail(err, VB_NO_MEMORY, "no memory for %zu sequences", count);
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(sessions[0]->model);
    int code = VB_OK;
    for (size_t i = 0; i < count && !code; i++) {
        struct vb_session *s = sessions[i];
        result[i] = (vb_result){.fingerprint = VB_FINGERPRINT_START};
        runs[i] = (struct run){.session = s, .options = &options[i], .result = &result[i],
                               .finished = options[i].max_tokens == 0 || s->count == s->context};
        for (size_t j = 0; j < i && !code; j++)
            if (sessions[j] == s)
                code = vb_fail(err, VB_BAD_ARGUMENT, "sequences %zu and %zu are the same session", j, i);
        if (!code && s->model != sessions[0]->model)
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu belongs to another model", i);
        else if (!code && s->context > sessions[0]->context) /* passes run in the memory of sessions[0] */
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu has a context of %zu, more than the %zu of the first", i,
                           s->context, sessions[0]->context);
        else if (!code && s->context < sessions[0]->context && s->model->config.conventions.value[YARN])
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu has a context of %zu, the first one of %zu; convention yarn=max-len "
                           "wants equal ones", i, s->context, sessions[0]->context);
        else if (!code && !s->work.onednn != !sessions[0]->work.onednn)
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu has another prefill than the first", i);
        else if (!code && s->count == 0)
            code = vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
        else if (!code)
            code = run_open(&runs[i], err);
    }
    if (!code)
        code = run_all(runs, count, err);
    for (size_t i = 0; i < count && runs[i].session; i++)
        run_close(&runs[i]);
    numa_leave(&visit);
    fpenv_leave(env);
    vb_free(a, runs);
    return code;
}

int vb_generate(vb_session *session, const vb_generate_options *options, vb_result *result, vb_error *err)
{
    return vb_generate_batch(&session, 1, options, result, err);
}

int vb_draft(vb_session *s, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err)
{
    vb_result result;
    vb_generate_options one = {.max_tokens = 1, .ignore_eos = 1};
    size_t failed = 0, room;
    int code = vb_generate(s, &one, &result, err);
    *count = 0;
    if (code || result.tokens == 0)
        return code ? code : vb_fail(err, VB_BAD_ARGUMENT, "the context of %zu tokens is full", s->context);
    *next = s->tokens[s->count - 1];
    room = s->context - s->count;
    if (s->type && room) {
        acceptance_round(s->acceptance);
        struct fpenv env = fpenv_enter();
        struct numa_visit visit = numa_enter(s->model);
        *count = s->type->propose(s->drafter, &s->work, drafts, (int)(room < (size_t)s->max_draft ? room : (size_t)s->max_draft),
                                  &failed);
        numa_leave(&visit);
        fpenv_leave(env);
    }
    return VB_OK;
}
