/* tests/support/batch.h -- for tests of batches: requests (struct job) that record how they ended. Each can also run in
 * a session of its own, so that a test can compare the two results. */
#ifndef VB_TEST_BATCH_H
#define VB_TEST_BATCH_H

#include "tests/support/engine_support.h"

#define LONGEST 260 /* tokens of a request */

struct job {
    vb_sampling sampling;
    vb_drafting drafting;
    vb_generate_options options; /* add_job and try_to_add set `callback` and `context` */
    int32_t prompt[LONGEST];
    size_t count;
    int tells;            /* nonzero: the request has the prompt_row callback job_row */
    size_t stop_at;       /* with `tells`: job_row stops the request when it has been called this many times; 0:
                             never */
    size_t V, d;
    int64_t id;
    int ended, code;
    vb_error error;
    vb_result result;
    int32_t tokens[LONGEST];
    size_t total, chosen, told;
    uint64_t rows[LONGEST]; /* of the prompt */
};

static inline uint64_t hash_row(size_t V, size_t d, const float *logits, const float *hidden)
{
    return vb_fingerprint(vb_fingerprint(VB_FINGERPRINT_START, logits, V), hidden, d);
}

static inline int job_event(void *context, const vb_event *e)
{
    struct job *j = context;
    (void)e;
    if (j->tells && j->told + 1 != j->count)
        fail_msg("a token was chosen after %zu of %zu rows of the prompt", j->told, j->count);
    j->chosen++;
    return 0;
}

static inline int job_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct job *j = context;
    if (depth != -1 || index != j->told || j->chosen || index + 1 >= j->count)
        fail_msg("row %zu of depth %d after %zu rows and %zu tokens, of a prompt of %zu", index, depth, j->told,
                 j->chosen, j->count);
    j->rows[j->told++] = hash_row(j->V, j->d, logits, hidden);
    return j->told == j->stop_at;
}

static inline void job_end(void *context, const vb_request_end *e)
{
    struct job *j = context;
    j->ended++;
    assert_int_equal(e->id, j->id);
    assert_true(!e->code == !e->error && e->count <= LONGEST && e->prompt == j->count);
    j->code = e->code;
    if (e->error)
        j->error = *e->error;
    j->result = *e->result;
    j->total = e->count;
    memcpy(j->tokens, e->tokens, e->count * sizeof *e->tokens);
}

static inline void job_prompt(struct job *j, const int32_t *tokens, size_t count)
{
    assert_true(count <= LONGEST);
    memcpy(j->prompt, tokens, count * sizeof *tokens);
    j->count = count;
}

/* Adds the job to the batch. The job must stay valid until the request ends. The drafting options that the request gets
 * are a copy, which is freed before this function returns: vb_batch_add must have copied them. */
static inline int try_to_add(vb_batch *b, const vb_model *m, struct job *j, vb_error *err)
{
    vb_drafting *drafting = malloc(sizeof *drafting);
    assert_non_null(drafting);
    *drafting = j->drafting;
    j->V = (size_t)vb_vocab_size(m);
    j->d = (size_t)vb_hidden_size(m);
    j->options.fingerprint = 1;
    j->options.callback = job_event;
    j->options.context = j;
    vb_request q = {.tokens = j->prompt, .count = j->count, .sampling = &j->sampling, .drafting = drafting,
                    .options = &j->options, .prompt_row = j->tells ? job_row : NULL, .done = job_end, .context = j};
    int code = vb_batch_add(b, &q, &j->id, err);
    free(drafting);
    return code;
}

static inline void add_job(vb_batch *b, const vb_model *m, struct job *j) { OK(try_to_add(b, m, j, &err)); }

/* Runs the job in a session of its own, with the session options `like`. */
static inline void run_job_alone(const vb_model *m, struct job *j, const vb_session_options *like)
{
    vb_session_options o = *like;
    vb_session *s = NULL;
    vb_generate_options g = j->options;
    size_t total;
    o.sampling = j->sampling;
    o.drafting = j->drafting;
    o.stop = NULL;
    if (j->count + g.max_tokens < (size_t)o.context)
        o.context = (int32_t)(j->count + g.max_tokens);
    g.fingerprint = 1;
    g.callback = NULL;
    OK(vb_session_open(&s, m, &o, &err));
    OK(vb_append(s, j->prompt, j->count, &err));
    OK(vb_generate(s, &g, &j->result, &err));
    const int32_t *tokens = vb_tokens(s, &total);
    memcpy(j->tokens, tokens, total * sizeof *tokens);
    j->total = total;
    j->ended = 1;
    vb_session_close(s);
}

static inline void check_job(const char *what, const struct job *got, const struct job *wanted)
{
    size_t same = 0;
    if (got->ended != 1 || got->code)
        fail_msg("%s: ended %d times, code %d, %s", what, got->ended, got->code, got->error.message);
    while (same < got->total && same < wanted->total && got->tokens[same] == wanted->tokens[same])
        same++;
    if (same != got->total || same != wanted->total)
        fail_msg("%s: %zu tokens, of which %zu are right; wanted %zu", what, got->total, same, wanted->total);
    if (got->result.fingerprint != wanted->result.fingerprint || got->result.finish != wanted->result.finish ||
        got->result.tokens != wanted->result.tokens)
        fail_msg("%s: the tokens are right, finish is %d, wanted %d, and the fingerprints are %sequal", what,
                 (int)got->result.finish, (int)wanted->result.finish,
                 got->result.fingerprint == wanted->result.fingerprint ? "" : "not ");
}

/* At each depth, both runs must have drafted and accepted equally many tokens. Use this only for draft methods whose
 * drafts depend only on the tokens of the sequence. */
static inline void check_drafts(const char *what, const vb_result *got, const vb_result *wanted)
{
    for (int k = 0; k < VB_MAX_DRAFT; k++)
        if (got->drafted_by_depth[k] != wanted->drafted_by_depth[k] ||
            got->accepted_by_depth[k] != wanted->accepted_by_depth[k])
            fail_msg("%s: at depth %d %zu of %zu drafts were accepted, alone %zu of %zu", what, k + 1,
                     got->accepted_by_depth[k], got->drafted_by_depth[k], wanted->accepted_by_depth[k],
                     wanted->drafted_by_depth[k]);
}

static inline vb_batch *open_batch_of(const vb_model *m, const vb_batch_options *o)
{
    vb_batch *b = NULL;
    OK(vb_batch_open(&b, m, o, &err));
    return b;
}

static inline vb_batch_state look(const vb_batch *b)
{
    vb_batch_state state;
    vb_batch_look(b, &state);
    return state;
}

/* Calls vb_batch_step until nothing is left to compute. The test fails after 20,000 steps. If a step returns
 * VB_STOPPED, its pass is computed again; returns how many times this happened. */
static inline size_t run_batch_to_its_end(vb_batch *b)
{
    size_t left = 1, given_up = 0;
    vb_error err;
    for (int steps = 0; left; steps++) {
        int code = vb_batch_step(b, &left, &err);
        given_up += code == VB_STOPPED;
        if ((code && code != VB_STOPPED) || steps > 20000)
            fail_msg("step %d, %zu requests are left: %s", steps, left, code ? err.message : "no end");
    }
    return given_up;
}

#endif
