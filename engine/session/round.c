/* engine/session/round.c -- plan, forward, choose, commit. A sequence's bits do not depend on its neighbours in the
 * pass, since a row's bits depend on its own timeline alone. */
#include "engine/session/round.h"
#include "engine/pass/forward.h"

#include <string.h>

#include "engine/base/seconds.h"
#include "engine/session/prefill.h"

/* A prompt whose rows are told may be finished before a token is chosen. */
static int chooses(const struct run *run) { return run->plan.chooses && !run->finished; }

/* Logits of every row that chooses: those rows' hidden vectors side by side, one pass over the head. */
static void logits_of(struct pass *pass, struct run **runs, size_t count)
{
    size_t d = pass->model->config.dims.d, V = pass->model->config.dims.V, n = 0;
    for (size_t i = 0; i < count; i++) {
        struct plan *p = &runs[i]->plan;
        size_t rows = chooses(runs[i]) ? 1 + (size_t)p->drafts : 0;
        memcpy(pass->w.normed + n * d, pass->w.hidden + (p->first_row + p->committed - 1) * d,
               rows * d * sizeof *pass->w.hidden);
        p->logits = pass->w.logits + n * V;
        n += rows;
    }
    if (n)
        forward_head(pass, &pass->model->lm_head, pass->w.logits, pass->w.normed, n);
    for (size_t i = 0; i < count; i++) {
        struct plan *p = &runs[i]->plan;
        if (chooses(runs[i]))
            forward_tap_logits(pass, p->logits, pass->model->config.dims.V, p->first_row + p->committed - 1,
                               1 + (size_t)p->drafts);
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
        r->drafted_by_depth[p->tree ? p->tree->depth[k] - 1 : k]++;
}

/* The drafts of runs [MOST_PROPOSALS at most] whose sessions draft by one method. They share its passes, and each has
 * its share of the time. */
static void propose_together(struct run **runs, size_t count, struct pass *pass)
{
    struct proposal proposals[MOST_PROPOSALS];
    double start = monotonic_seconds();
    for (size_t i = 0; i < count; i++)
        proposals[i] = (struct proposal){.drafter = runs[i]->session->drafter, .draft = runs[i]->plan.draft,
                                         .max = runs[i]->plan.wanted, .failed = &runs[i]->result->draft_failures};
    drafter_propose(runs[0]->session->type, proposals, count, pass);
    for (size_t i = 0; i < count; i++) {
        session_take_drafts(runs[i]->session, &runs[i]->plan, proposals[i].drafts);
        runs[i]->drafting = (monotonic_seconds() - start) / (double)count;
    }
}

static void propose_tree(struct run *run, struct pass *pass)
{
    double start = monotonic_seconds();
    struct plan *p = &run->plan;
    session_take_drafts(run->session, p,
                        session_propose(run->session, pass, p->draft, p->wanted, &run->result->draft_failures));
    run->drafting = monotonic_seconds() - start;
}

/* The drafts of all runs, method by method. */
static void propose(struct round *r)
{
    for (size_t first = 0; first < r->count; first++) {
        struct run *together[MOST_PROPOSALS], *run = r->runs[first];
        size_t n = 0;
        if (run->proposed)
            continue;
        if (run->session->tree) {
            propose_tree(run, r->pass);
            continue;
        }
        for (size_t i = first; i < r->count && n < MOST_PROPOSALS; i++)
            if (!r->runs[i]->proposed && r->runs[i]->session->type == run->session->type &&
                !r->runs[i]->session->tree) {
                r->runs[i]->proposed = 1;
                together[n++] = r->runs[i];
            }
        propose_together(together, n, r->pass);
    }
}

/* Drafts, the target's pass, logits. Returns -1 when the pass was given up. */
static int passes_of_round(struct round *r)
{
    size_t S = 0;
    int stopped = 0;
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        run->error.code = VB_OK;
        run->drafting = 0.0;
        session_plan(run->session, &run->plan, run->chunk, run->options->max_tokens - run->result->tokens);
        run->proposed = !run->plan.wanted;
    }
    propose(r);
    stopped = r->pass->draft_stopped;
    r->pass->draft_stopped = 0;
    for (size_t i = 0; i < r->count; i++)
        r->runs[i]->result->draft_seconds += r->runs[i]->drafting;
    if (stopped)
        return -1;
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        run->plan.first_row = S;
        S += session_rows(run->session, &run->plan, r->rows);
    }
    double start = monotonic_seconds();
    if (r->by_library)
        prefill_begin(r->pass);
    stopped = forward_target(r->pass, r->rows, S);
    if (r->by_library)
        prefill_end(r->pass);
    if (stopped)
        return -1;
    for (size_t i = 0; i < r->count; i++)
        if (run_tells(r->runs[i]))
            run_tell_prompt(r->runs[i], r->pass);
    logits_of(r->pass, r->runs, r->count);
    r->seconds = monotonic_seconds() - start;
    r->S = S;
    return 0;
}

/* ---- automatic lengths ------------------------------------------------------------------------------------------- */

/* Whether run i is the first with its automatic length. */
static int is_first(struct run **runs, size_t i)
{
    const struct draft_length *l = runs[i]->session->length;
    for (size_t j = 0; l && j < i; j++)
        if (runs[j]->session->length == l)
            return 0;
    return l != NULL;
}

void round_choose_lengths(struct run **runs, size_t count, size_t rows, int mixed)
{
    for (size_t i = 0; i < count; i++) {
        int drafting = 0;
        if (!is_first(runs, i))
            continue;
        for (size_t j = i; j < count; j++)
            drafting += runs[j]->session->length == runs[i]->session->length;
        draft_length_next(runs[i]->session->length, drafting, (int)count - drafting,
                          rows > count ? (int)(rows / count) - 1 : 0, mixed);
    }
}

/* What the round has shown of run i's automatic length. */
static void measure(const struct round *r, size_t i)
{
    struct draft_length *l = r->runs[i]->session->length;
    struct draft_round seen = {.rows = r->S, .pass = r->seconds};
    for (size_t j = 0; j < r->count; j++) {
        const struct run *run = r->runs[j];
        int shares = run->session->length == l;
        seen.mixed |= run->plan.is_prompt;
        seen.tokens += run->chose;
        seen.proposing += shares ? run->drafting : 0.0;
        seen.drafting += shares && run->plan.asked;
    }
    if (seen.drafting)
        draft_length_saw(l, &seen);
}

int round_run(struct round *r, vb_error *err)
{
    struct pass *pass = r->pass;
    double start = monotonic_seconds();
    int stopped = passes_of_round(r), code = VB_OK;
    for (size_t i = 0; stopped && i < r->count; i++)
        code = session_give_up(r->runs[i]->session, err);
    if (stopped)
        return code;
    code = pass_failed(pass, err);
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        const struct plan *p = &run->plan;
        int32_t chosen[VB_MAX_DRAFT + 1];
        size_t n = 0;
        int is_prompt = run->plan.is_prompt;
        trace_part_of_pass(run->session->tracer, -1, p->first_row, r->rows + p->first_row,
                           p->committed + (size_t)(p->drafts + p->padding));
        if (chooses(run) && !code && decode_choose(run, pass, chosen, &n, &run->error))
            run->finished = 1;
        double observing = session_finish(run->session, pass, p, chosen, n);
        run->chose = n;
        run->result->draft_seconds += is_prompt ? 0.0 : observing;
        if (!code) /* the drafter's own passes over a prompt */
            code = pass_failed(run->session->pass, err);
        stopped |= session_draft_stopped(run->session) && !run->finished;
        count_pass(run, monotonic_seconds() - start, is_prompt);
        if (is_prompt && run->session->options.progress)
            run->session->options.progress(run->session->options.progress_context,
                                           run->session->cached, run->session->count - n);
    }
    for (size_t i = 0; i < r->count; i++)
        if (is_first(r->runs, i))
            measure(r, i);
    if (stopped && !code)
        code = vb_fail(err, VB_STOPPED, "stopped by the caller");
    return code;
}
