/* engine/session/round.c -- plan, forward, choose, commit. A sequence's bits do not depend on its neighbours in the pass, since a row's
 * bits depend on its own timeline alone. */
#include "engine/session/round.h"

#include <string.h>

#include "engine/session/prefill.h"

/* Logits of every row that chooses: those rows' hidden vectors side by side, one pass over the head. */
static void logits_of(struct workspace *w, struct run **runs, size_t count)
{
    size_t d = w->model->config.dims.d, V = w->model->config.dims.V, n = 0;
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
        r->drafted_by_depth[p->tree ? p->tree->depth[k] - 1 : k]++;
}

/* Drafts, the target's pass, logits. Returns -1 when the pass was given up. */
static int passes_of_round(struct round *r)
{
    size_t S = 0;
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        size_t most = run->options->max_tokens - run->result->tokens;
        struct op_ctx *own = &run->session->work->cx; /* modules draft in their session's memory, with the round's threads */
        struct crew *crew = own->crew;
        own->crew = r->w->cx.crew;
        double start = session_clock();
        run->error.code = VB_OK;
        session_plan(run->session, &run->plan, run->chunk, most, &run->result->draft_failures);
        run->drafting = session_clock() - start;
        run->result->draft_seconds += run->drafting;
        own->crew = crew;
        run->plan.first_row = S;
        S += session_rows(run->session, &run->plan, r->rows);
    }
    double start = session_clock();
    if (r->by_onednn)
        prefill_begin(r->w);
    int stopped = forward_target(r->w, r->rows, S);
    if (r->by_onednn)
        prefill_end(r->w);
    if (stopped)
        return -1;
    for (size_t i = 0; i < r->count; i++)
        if (run_tells(r->runs[i]))
            run_tell_prompt(r->runs[i], r->w);
    logits_of(r->w, r->runs, r->count);
    r->seconds = session_clock() - start;
    r->S = S;
    return 0;
}

int round_run(struct round *r, vb_error *err)
{
    struct workspace *w = r->w;
    double start = session_clock();
    int stopped = passes_of_round(r), code = VB_OK;
    for (size_t i = 0; stopped && i < r->count; i++)
        code = session_give_up(r->runs[i]->session, err);
    if (stopped)
        return code;
    code = prefill_failed(w, err);
    for (size_t i = 0; i < r->count; i++) {
        struct run *run = r->runs[i];
        const struct plan *p = &run->plan;
        int32_t chosen[VB_MAX_DRAFT + 1];
        size_t n = 0;
        int is_prompt = run->plan.is_prompt;
        trace_pass(run->session->tracer, -1, r->rows + p->first_row, p->committed + (size_t)(p->drafts + p->padding));
        if (run->plan.chooses && !code && !run->finished && decode_choose(run, w, chosen, &n, &run->error))
            run->finished = 1;
        double share = (double)(p->committed + (size_t)p->drafts) / (double)r->S;
        double observing = session_finish(run->session, w, p, chosen, n, run->drafting + share * r->seconds);
        run->result->draft_seconds += is_prompt ? 0.0 : observing;
        if (!code) /* the drafter's own passes over a prompt */
            code = prefill_failed(run->session->work, err);
        count_pass(run, session_clock() - start, is_prompt);
        if (is_prompt && run->session->options.progress)
            run->session->options.progress(run->session->options.progress_context,
                                           run->session->cached, run->session->count - n);
    }
    return code;
}
