/* engine/session/generate.c -- one session by itself: rounds until its run ends. engine/session/batch.c schedules
 * many. */
#include "simd/fpenv.h"
#include "engine/base/options.h"
#include "engine/model/numa.h"
#include "engine/session/prefill.h"
#include "engine/session/round.h"

static int run_to_its_end(struct run *run, vb_error *err)
{
    struct vb_session *s = run->session;
    int code = VB_OK;
    while (!run->finished && !code) {
        round_choose_lengths(&run, 1, VB_MAX_DRAFT + 1, s->cached < s->given);
        code = round_run(&(struct round){.pass = s->pass, .rows = s->rows, .runs = &run, .count = 1,
                                         .by_library = prefill_rows(s) > 0},
                         err);
        if (code == VB_STOPPED) { /* a pass was given up: no error, but the end, as where a callback stops a run */
            run->result->finish = VB_FINISH_STOPPED;
            return VB_OK;
        }
        if (code || !run->error.code)
            continue;
        code = run->error.code;
        if (err)
            *err = run->error;
    }
    return code;
}

static int generate(vb_session *s, const vb_generate_options *options, vb_result *result, vb_error *err)
{
    struct run run = {.session = s, .options = options, .result = result, .chunk = s->chunk,
                      .finished = options->max_tokens == 0 || s->count == s->context};
    if (!s->count)
        return vb_fail(err, VB_BAD_ARGUMENT, "the prompt is empty");
    struct fpenv env = fpenv_enter();
    struct numa_visit visit = numa_enter(s->model);
    int code = run_open(&run, err);
    if (!code)
        code = run_to_its_end(&run, err);
    run_close(&run, s->model->allocator);
    numa_leave(&visit);
    fpenv_leave(env);
    return code;
}

int vb_generate_sized(vb_session *s, const vb_generate_options *options, vb_result *out, size_t size, vb_error *err)
{
    vb_result result = {.fingerprint = VB_FINGERPRINT_START};
    vb_generate_options o;
    int code = OPTIONS_COPY(&o, vb_generate_options, options, err);
    if (!code)
        code = generate(s, &o, &result, err);
    struct_fill(out, size, &result, sizeof result);
    return code;
}

/* drafts has room for the session's. */
static int draft_after(struct vb_session *s, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err)
{
    vb_result result;
    vb_generate_options one = {.max_tokens = 1, .ignore_eos = 1};
    size_t failed = 0, room, index = 0;
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
        *count = session_propose(s, s->pass, drafts, (int)(room < (size_t)s->max_draft ? room : (size_t)s->max_draft),
                                 &failed);
        numa_leave(&visit);
        fpenv_leave(env);
        if (session_draft_stopped(s)) {
            *count = 0;
            return vb_fail(err, VB_STOPPED, "stopped by the caller");
        }
        code = sampler_mask_failed(s->sampler, &index);
    }
    if (!code)
        return VB_OK;
    *count = 0;
    return vb_fail(err, code, "the mask failed for a draft of token %zu", index);
}

int vb_draft(vb_session *s, int32_t *next, int32_t *drafts, int32_t *count, vb_error *err)
{
    if (s->tree)
        return vb_fail(err, VB_BAD_ARGUMENT, "the session drafts trees: vb_draft_tree tells of them");
    return draft_after(s, next, drafts, count, err);
}

int vb_draft_tree(vb_session *s, int32_t *next, int32_t *drafts, int32_t *parents, double *confidences, int32_t *count,
                  vb_error *err)
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
