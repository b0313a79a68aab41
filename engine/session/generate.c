/* engine/session/generate.c -- sessions run to their end: rounds of passes that they share. */
#include "simd/fpenv.h"
#include "engine/model/numa.h"
#include "engine/session/prefill.h"
#include "engine/session/round.h"

#define MOST_IN_A_PASS (2 * (VB_MAX_DRAFT + 1)) /* sequences, and so rows that choose at K = 0 */

/* A pass was given up: no error, but the end, as where a callback stops a run. */
static int end_all(struct run *runs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!runs[i].finished)
            runs[i].result->finish = VB_FINISH_STOPPED;
    return VB_OK;
}

static int run_all(struct run *runs, size_t count, vb_error *err)
{
    struct vb_session *first = runs[0].session;
    struct workspace *w = first->work;
    int code = VB_OK;
    for (size_t i = 0; i < count; i++)
        runs[i].chunk = first->chunk;
    for (size_t active = 1; active && !code;) {
        active = 0;
        for (size_t i = 0; i < count && !code;) {
            struct run *group[MOST_IN_A_PASS];
            size_t n = 0, rows = 0, logit_rows = 0, prefill = 0;
            for (; i < count && n < MOST_IN_A_PASS && !prefill; i++) {
                if (runs[i].finished)
                    continue;
                size_t most = session_most_rows(runs[i].session, first->chunk);
                size_t choosing = 1 + (size_t)runs[i].session->max_drafts;
                prefill = prefill_rows(runs[i].session);
                if (n && (prefill || rows + most > w->max_rows || logit_rows + choosing > w->max_logit_rows))
                    break;
                rows += most;
                logit_rows += choosing;
                group[n++] = &runs[i];
            }
            if (n)
                code = round_run(&(struct round){.w = w, .rows = first->rows, .runs = group, .count = n,
                                                  .by_onednn = prefill_rows(group[0]->session) > 0}, err);
            if (code == VB_STOPPED)
                return end_all(runs, count);
            for (size_t j = 0; j < n; j++) {
                active |= !group[j]->finished;
                if (!code && group[j]->error.code) {
                    code = group[j]->error.code;
                    if (err)
                        *err = group[j]->error;
                }
            }
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
        else if (!code && !s->work->onednn != !sessions[0]->work->onednn)
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu has another prefill than the first", i);
        else if (!code && (1 + (size_t)s->max_drafts > sessions[0]->work->max_logit_rows || 1 + (size_t)s->max_drafts > sessions[0]->work->max_rows))
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu drafts trees of %d, for which the first has no room", i, s->max_drafts);
        else if (!code && s->type && s->type->takes == TAKES_THREE && !sessions[0]->work->three)
            code = vb_fail(err, VB_BAD_ARGUMENT, "sequence %zu drafts by %s, which the first must do too", i, s->type->name);
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

/* drafts has room for the session's. */
static int draft_after(struct vb_session *s, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err)
{
    vb_result result;
    vb_generate_options one = {.max_tokens = 1, .ignore_eos = 1};
    size_t failed = 0, room;
    int code = vb_generate(s, &one, &result, err);
    *count = 0;
    if (!code && result.finish == VB_FINISH_STOPPED)
        return vb_fail(err, VB_STOPPED, "stopped by the caller");
    if (code || result.tokens == 0)
        return code ? code : vb_fail(err, VB_BAD_ARGUMENT, "the context of %zu tokens is full", s->context);
    *next = s->tokens[s->count - 1];
    room = s->context - s->count;
    if (s->type && room) {
        acceptance_round(s->acceptance);
        struct fpenv env = fpenv_enter();
        struct numa_visit visit = numa_enter(s->model);
        *count = session_propose(s, drafts, (int)(room < (size_t)s->max_draft ? room : (size_t)s->max_draft), &failed);
        numa_leave(&visit);
        fpenv_leave(env);
    }
    return VB_OK;
}

int vb_draft(vb_session *s, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err)
{
    if (s->tree)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session drafts trees: vb_draft_tree tells of them");
    return draft_after(s, next, drafts, count, err);
}

int vb_draft_tree(vb_session *s, int32_t *next, int32_t *drafts, int32_t *parents, double *confidences, int32_t *count, vb_error *err)
{
    int32_t all[VB_MAX_NODES];
    int code = draft_after(s, next, all, count, err);
    for (int32_t i = 0; i < *count; i++) {
        drafts[i] = all[i];
        parents[i] = s->tree ? s->tree->parent[i] + 1 : i;
        confidences[i] = s->tree ? s->tree->confidence[i] : 0.0;
    }
    return code;
}
