/* engine/session/decode.c -- which drafts stand; where a run ends. */
#include "engine/session/decode.h"
#include "engine/pass/forward.h"
#include "engine/pass/offload.h"
#include "numbers/numbers.h"

#include <string.h>

#include "engine/text/tokenizer.h"

uint64_t vb_fingerprint(uint64_t h, const float *logits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        h = fnv1a_word(h, bits);
    }
    return h;
}

static int row_not_finite(const struct run *run, const struct pass *pass, size_t i, size_t row, vb_error *err)
{
    const struct plan *p = &run->plan;
    int32_t layer = pass->w.first_bad_layer[p->first_row + p->committed - 1 + row];
    size_t index = run->session->count + i;
    if (layer < 0)
        return vb_fail(err, VB_NOT_FINITE, "the logits for token %zu are not finite; every layer was, so it is lm_head",
                       index);
    return vb_fail(err, VB_NOT_FINITE, "the logits for token %zu are not finite; the first such layer is %d", index,
                   layer);
}

int run_open(struct run *run, vb_error *err)
{
    const vb_generate_options *o = run->options;
    if (o->stop_count && !o->tokenizer)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "there are stop strings and no tokenizer, whose text they would be looked for in");
    sampler_mask_failed(run->session->sampler, NULL); /* of drafts of an earlier run that were not verified */
    return stop_open(&run->stop, o->stop, o->stop_count, run->session->model->allocator, err);
}

void run_close(struct run *run, const vb_allocator *a) { stop_close(run->stop, a); }

/* Whether a run ends with this token, whatever its text. */
static int ends_run(const struct run *run, int32_t token)
{
    const vb_generate_options *o = run->options;
    for (size_t i = 0; i < o->stop_token_count; i++)
        if (o->stop_tokens[i] == token)
            return 1;
    return !o->ignore_eos && vb_is_end_token(run->session->model, token);
}

/* Whether the run ends with this token, and how. Returns the event's text_bytes. */
static size_t look_for_end(struct run *run, const vb_event *event)
{
    const vb_generate_options *o = run->options;
    vb_result *r = run->result;
    size_t size = 0;
    int end = ends_run(run, event->token);
    const char *piece = o->tokenizer && !end ? tokenizer_piece(o->tokenizer, event->token, &size) : NULL;
    if (piece && run->stop)
        r->stop_string = stop_push(run->stop, piece, size);
    run->text += piece ? size : 0;
    if (end || r->stop_string)
        run->finished = 1, r->finish = VB_FINISH_STOP;
    else if (r->tokens == o->max_tokens || event->index + 1 == run->session->context)
        run->finished = 1, r->finish = VB_FINISH_LENGTH;
    size_t safe = run->stop ? stop_safe(run->stop) : run->text;
    r->text_bytes = r->stop_string ? safe : run->text;
    return run->finished ? r->text_bytes : safe; /* at the end what was held back is text */
}

/* Token i of the round, of row `row` of its choosing ones; beside: drafts stood there. Counts and tells; returns
 * whether the run ends with this token. */
static int emit(struct run *run, const struct verdict *v, size_t i, size_t row, int beside, const float *logits)
{
    const vb_generate_options *o = run->options;
    struct vb_session *s = run->session;
    vb_result *r = run->result;
    size_t index = s->count + i, V = s->model->config.dims.V;
    int32_t token = v->token;
    int depth = v->stands ? (int)i + 1 : 0;
    vb_event event = {.token = token, .index = index, .draft_depth = depth, .logits = logits,
                      .draft = !depth ? 0 : run->plan.tree ? run->plan.path[i] + 1 : depth};

    s->tokens[index] = token; /* the next row's mask looks at it; it is committed later */
    sampler_saw_output(s->sampler, token);
    r->tokens++;
    trace_choose(s->tracer, -1, run->plan.committed - 1 + row, token, depth);
    if (o->fingerprint)
        r->fingerprint = vb_fingerprint(r->fingerprint, logits, V);
    if (depth) {
        r->accepted++;
        r->accepted_by_depth[depth - 1]++;
        r->relaxed += (size_t)v->relaxed;
        r->relaxed_nats += v->nats;
    } else if (beside) {
        r->rejected_by_depth[i]++;
        r->first_reject[v->why]++;
    }
    event.text_bytes = look_for_end(run, &event);
    if (o->callback && o->callback(o->context, &event) && !run->finished)
        run->finished = 1, r->finish = VB_FINISH_STOPPED;
    return run->finished;
}

/* The first draft behind draft `at` (-1: the last committed token), after `after`; -1: none. */
static int draft_behind(const struct plan *p, int at, int after)
{
    if (p->tree)
        return tree_child(p->tree, at, after);
    return after < 0 && at + 1 < p->drafts ? at + 1 : -1;
}

/* What the row behind draft `at` chooses. *draft: that which stands beside it, or -1; of a tree the one that is what
 * was chosen. */
static struct verdict choose_at(const struct run *run, const float *logits, size_t i, int at, int *draft)
{
    const struct plan *p = &run->plan;
    struct vb_session *s = run->session;
    struct draft_at d = {0};
    *draft = draft_behind(p, at, -1);
    if (*draft >= 0)
        d = (struct draft_at){p->draft[*draft], (int)i + 1,
                              vb_is_end_token(s->model, p->draft[*draft]) || ends_run(run, p->draft[*draft])};
    struct verdict v = acceptance_choose(s->acceptance, logits, s->tokens, s->count + i, &d);
    for (int other = *draft; p->tree && other >= 0 && !v.stands; other = draft_behind(p, at, other))
        if (p->draft[other] == v.token)
            v.stands = 1, *draft = other;
    return v;
}

int decode_choose(struct run *run, const struct pass *pass, int32_t *chosen, size_t *n, vb_error *err)
{
    struct plan *p = &run->plan;
    struct vb_session *s = run->session;
    size_t V = s->model->config.dims.V;
    int at = -1; /* the draft that stood last */
    for (*n = 0; *n <= (size_t)p->drafts;) {
        int draft;
        const float *logits = p->logits + (size_t)(at + 1) * V;
        if (!all_finite(logits, V))
            return row_not_finite(run, pass, *n, (size_t)(at + 1), err);
        struct verdict v = choose_at(run, logits, *n, at, &draft);
        size_t index; /* with rejection it may be that of a later draft of this round */
        int failed = sampler_mask_failed(s->sampler, &index);
        if (failed)
            return vb_fail(err, failed, "the mask failed for token %zu", index);
        if (v.token < 0)
            return vb_fail(err, VB_BAD_ARGUMENT, "no candidate is left for token %zu", s->count + *n);
        size_t i = (*n)++;
        chosen[i] = v.token;
        if (v.stands)
            p->path[i] = draft;
        if (emit(run, &v, i, (size_t)(at + 1), draft >= 0, logits) || draft < 0 || !v.stands)
            break;
        at = draft;
    }
    return VB_OK;
}

/* Row `index` of the prompt, whose logits and hidden state are given. Returns whether the run is finished. */
static int tell_row(struct run *run, size_t index, const float *logits, const float *hidden)
{
    size_t V = run->session->model->config.dims.V;
    if (!all_finite(logits, V)) {
        vb_fail(&run->error, VB_NOT_FINITE, "the logits after token %zu of the prompt are not finite", index);
        return run->finished = 1;
    }
    run->told = index + 1;
    if (run->prompt_row(run->prompt_context, -1, index, logits, hidden))
        run->finished = 1, run->result->finish = VB_FINISH_STOPPED;
    return run->finished;
}

void run_tell_prompt(struct run *run, struct pass *pass)
{
    const struct plan *p = &run->plan;
    const struct vb_session *s = run->session;
    size_t d = pass->model->config.dims.d, V = pass->model->config.dims.V;
    size_t end = s->cached + p->committed < run->prompt ? s->cached + p->committed : run->prompt - 1;
    for (size_t i = run->told > s->cached ? run->told : s->cached, rows; i < end; i += rows) {
        const float *hidden = pass->w.hidden + (p->first_row + i - s->cached) * d;
        rows = end - i < pass->w.max_logit_rows ? end - i : pass->w.max_logit_rows;
        forward_head(pass, &pass->model->lm_head, pass->w.logits, hidden, rows);
        if (offload_failed(pass)) /* then these are no logits; the round ends with an error */
            return;
        for (size_t j = 0; j < rows; j++)
            if (tell_row(run, i + j, pass->w.logits + j * V, hidden + j * d))
                return;
    }
    if (!run_tells(run) && (!run->options->max_tokens || s->count == s->context))
        run->finished = 1;
}
