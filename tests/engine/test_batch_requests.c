/* tests/engine/test_batch_requests.c -- what a server asks of a batch: the logits of prompts, requests that pause,
 * tokens that stop a run, masks that fail, passes that are given up. Runs in the repository's root. */
#include "tests/support/batch.h"
#include "tests/support/methods.h"

#define JOBS 8

static struct job jobs[JOBS], alone[JOBS];

/* ---- the rows of prompts ----------------------------------------------------------------------------------------- */

static int evaluated_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct job *j = context;
    assert_true(depth == -1 && index == j->told);
    j->rows[j->told++] = hash_row(j->V, j->d, logits, hidden);
    return 0;
}

static void evaluate(const vb_model *m, struct job *j, const char *prefill)
{
    vb_session_options o = {.context = (int32_t)j->count, .threads = 1, .prefill = prefill};
    vb_session *s = open_session(m, &o, j->prompt, j->count);
    j->V = (size_t)vb_vocab_size(m);
    j->d = (size_t)vb_hidden_size(m);
    j->told = 0;
    OK(vb_evaluate(s, 0, evaluated_row, j, &err));
    vb_session_close(s);
}

static void check_rows(const char *what, const struct job *got, const struct job *wanted)
{
    if (got->told != (got->tells ? got->count - 1 : 0))
        fail_msg("%s: %zu rows of a prompt of %zu", what, got->told, got->count);
    for (size_t i = 0; i < got->told; i++)
        if (got->rows[i] != wanted->rows[i])
            fail_msg("%s: row %zu of a prompt of %zu is not that of vb_evaluate", what, i, got->count);
}

/* Now and then a request pauses, and another one goes on. What waited for it at the end, too. */
static void run_with_pauses(vb_batch *b, uint64_t *seed)
{
    size_t left = 1;
    for (int steps = 0; left || look(b).paused; steps++) {
        if (random_below(seed, 3) == 0)
            vb_batch_pause(b, (int64_t)random_below(seed, JOBS));
        if (!left || random_below(seed, 4) == 0)
            vb_batch_resume(b, (int64_t)random_below(seed, JOBS));
        OK(vb_batch_step(b, &left, &err));
        assert_true(steps < 20000);
    }
}

TEST(rows_of_prompts_are_those_of_vb_evaluate_each_told_once)
{
    static const char *const names[] = {"v3", "glm", "v2-lite"};
    static const size_t counts[JOBS] = {1, 2, 17, 40, 64, 40, 30, 1}, tokens[JOBS] = {0, 1, 20, 0, 9, 24, 1, 5};
    static const int chunks[] = {1, 3, 7, 64};
    uint64_t seed = 17;
    size_t preemptions = 0;
    for (size_t i = 0; i < COUNT(names) * COUNT(chunks) * 2; i++) {
        vb_model *m = open_tiny(names[i % COUNT(names)]);
        vb_session_options session = {.context = 64, .threads = 1,
                                      .prefill_chunk = chunks[i / COUNT(names) % COUNT(chunks)], .poison_cut_rows = 1,
                                      .prefill = i % 2 ? "expanded" : NULL};
        vb_batch_options o = {.session = &session, .max_sequences = 1 + (int)random_below(&seed, 6),
                              .cache_tokens = 80 + (int)random_below(&seed, 60), .keep_finished = (int)i % 3};
        int32_t text[64];
        vb_batch *b = open_batch_of(m, &o);
        random_tokens(m, i, text, 64);
        for (size_t k = 0; k < JOBS; k++) {
            jobs[k] = (struct job){.options = {.max_tokens = tokens[k], .ignore_eos = 1}, .tells = k != 5};
            jobs[k].drafting = (vb_drafting){.method = vb_mtp_modules(m) ? mtp_method(k) : "ngram",
                                             .tokens = (int)k % 4};
            job_prompt(&jobs[k], text, counts[k]);
            if (k == 6) /* another one's beginning, and then another text */
                jobs[k].prompt[20] = (jobs[k].prompt[20] + 1) % vb_vocab_size(m);
            alone[k] = jobs[k];
            run_job_alone(m, &alone[k], o.session);
            evaluate(m, &alone[k], o.session->prefill);
            add_job(b, m, &jobs[k]);
        }
        run_with_pauses(b, &seed);
        for (size_t k = 0; k < JOBS; k++) {
            char what[96];
            snprintf(what, sizeof what, "%s, chunks of %d, request %zu", names[i % COUNT(names)],
                     o.session->prefill_chunk, k);
            check_job(what, &jobs[k], &alone[k]);
            check_rows(what, &jobs[k], &alone[k]);
            assert_true(!jobs[k].tells || !jobs[k].result.cached_tokens || jobs[k].result.preemptions);
        }
        preemptions += look(b).preemptions;
        vb_batch_close(b);
        vb_model_close(m);
    }
    assert_true(preemptions > 20);
}

TEST(a_row_of_a_prompt_that_is_not_finite_fails_its_request_alone)
{
    char dir[64];
    copy_checkpoint(dir, "golden/tiny/v3");
    vb_model *whole = open_tiny("v3");
    break_tensor(dir, "model.embed_tokens.weight", 99 * (size_t)vb_hidden_size(whole), 1, 0);
    vb_model *m = open_model(dir);
    vb_session_options session = {.context = 64, .threads = 1, .prefill_chunk = 5};
    vb_batch_options o = {.session = &session, .keep_finished = 4};
    vb_batch *b = open_batch_of(m, &o);
    for (int32_t i = 0; i < 4; i++) { /* the second one has the broken token, the third one stops itself */
        jobs[i] = (struct job){.options = {.max_tokens = 6, .ignore_eos = 1}, .tells = 1, .stop_at = i == 2 ? 4 : 0};
        job_prompt(&jobs[i], (int32_t[]){5 + i, 6, 7, 8, 9, 10, i == 1 ? 99 : 11, 12, 13}, 9);
        add_job(b, m, &jobs[i]);
        alone[i] = jobs[i];
        run_job_alone(whole, &alone[i], o.session);
        evaluate(whole, &alone[i], NULL);
    }
    OK(vb_batch_run(b, &err));
    assert_int_equal(jobs[1].code, VB_NOT_FINITE);
    assert_non_null(strstr(jobs[1].error.message, "the logits after token 6 of the prompt are not finite"));
    assert_int_equal(jobs[1].told, 6);
    assert_int_equal(jobs[1].total, 9);
    assert_int_equal(jobs[2].code, VB_OK);
    assert_int_equal(jobs[2].result.finish, VB_FINISH_STOPPED);
    assert_int_equal(jobs[2].told, 4);
    assert_int_equal(jobs[2].result.tokens, 0);
    for (int i = 0; i < 4; i += 3) {
        check_job("beside a broken prompt", &jobs[i], &alone[i]);
        check_rows("beside a broken prompt", &jobs[i], &alone[i]);
    }
    vb_session *s = open_session(m, o.session, jobs[0].prompt, 9);
    REFUSED(vb_batch_add(b, &(vb_request){.session = s, .prompt_row = job_row}, NULL, &err), VB_BAD_ARGUMENT,
            "and none of its own");
    vb_session_close(s);
    vb_batch_close(b);
    vb_model_close(m);
    vb_model_close(whole);
    remove_dir(dir);
}

/* ---- pauses ------------------------------------------------------------------------------------------------------ */

/* Four requests of which the first two are paused after some steps, in a batch that has room for two. */
static void check_pause(const vb_model *m, const vb_batch_options *o, int alike, size_t steps, const char *what)
{
    vb_batch *b = open_batch_of(m, o);
    size_t left;
    for (int32_t i = 0; i < 4; i++) {
        int32_t first = alike ? 5 : 5 + i;
        jobs[i] = (struct job){.options = {.max_tokens = 20, .ignore_eos = 1},
                               .drafting = {.method = mtp_method((size_t)i), .tokens = 2}};
        job_prompt(&jobs[i], (int32_t[]){first, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 + i, 16}, 12);
        alone[i] = jobs[i];
        run_job_alone(m, &alone[i], o->session);
        add_job(b, m, &jobs[i]);
    }
    for (size_t i = 0; i < steps; i++)
        OK(vb_batch_step(b, &left, &err));
    size_t had[2] = {jobs[0].chosen, jobs[1].chosen};
    assert_true(vb_batch_pause(b, 0) && vb_batch_pause(b, 1) && vb_batch_pause(b, 1) && !vb_batch_pause(b, 4));
    assert_int_equal(look(b).paused, 2);
    run_batch_to_its_end(b);
    vb_batch_state state = look(b);
    if (state.done != 2 || state.paused != 2 || jobs[0].chosen != had[0] || jobs[1].chosen != had[1])
        fail_msg("%s: %zu are done, %zu paused, which had %zu and %zu tokens and have %zu and %zu", what, state.done,
                 state.paused, had[0], had[1], jobs[0].chosen, jobs[1].chosen);
    size_t passes = state.passes;
    OK(vb_batch_run(b, &err)); /* nothing to do */
    assert_int_equal(look(b).passes, passes);
    assert_true(vb_batch_resume(b, 1) && vb_batch_resume(b, 1) && !vb_batch_resume(b, 3));
    run_batch_to_its_end(b);
    assert_int_equal(look(b).paused, 1);
    assert_true(vb_batch_cancel(b, 0) && !vb_batch_resume(b, 0));
    state = look(b);
    assert_true(state.paused == 0 && state.waiting + state.running == 0 && state.done == 4);
    assert_true(jobs[0].ended == 1 && jobs[0].result.finish == VB_FINISH_STOPPED && jobs[0].total == 12 + had[0]);
    assert_memory_equal(jobs[0].tokens, alone[0].tokens, jobs[0].total * sizeof *jobs[0].tokens);
    for (size_t i = 1; i < 4; i++)
        check_job(what, &jobs[i], &alone[i]);
    vb_batch_close(b);
}

TEST(others_go_on_while_paused_requests_hold_all_places_and_all_rows)
{
    vb_model *m = open_tiny("v3");
    char what[96];
    for (int places = 1; places <= 8; places *= 2)
        for (int32_t cache = 0; cache <= 60; cache += 60)
            for (int alike = 0; alike < 2; alike++)
                for (size_t steps = 0; steps < 8; steps++) {
                    vb_session_options session = {.context = 40, .threads = 1, .prefill_chunk = 4,
                                                  .poison_cut_rows = 1};
                    vb_batch_options o = {.session = &session, .max_sequences = places, .cache_tokens = cache,
                                          .keep_finished = (int)steps % 3};
                    snprintf(what, sizeof what, "%d places, a cache of %d, %s, paused after %zu steps", places, cache,
                             alike ? "prompts that begin alike" : "other prompts", steps);
                    check_pause(m, &o, alike, steps, what);
                }
    vb_model_close(m);
}

/* A session with a cache of its own has no rows to give, but a place. */
TEST(a_paused_session_leaves_its_place_to_others)
{
    vb_model *m = open_tiny("v3");
    vb_batch_options o = {.session = &(vb_session_options){.context = 40, .threads = 1}, .max_sequences = 1};
    for (size_t steps = 0; steps < 4; steps++) {
        vb_batch *b = open_batch_of(m, &o);
        size_t left;
        for (int i = 0; i < 2; i++) {
            jobs[i] = (struct job){.options = {.max_tokens = 20, .ignore_eos = 1},
                                   .drafting = {.method = "mtp-eagle", .tokens = 2}};
            job_prompt(&jobs[i], (int32_t[]){5 + i, 6, 7}, 3);
            alone[i] = jobs[i];
            run_job_alone(m, &alone[i], o.session);
        }
        vb_session_options so = *o.session;
        so.drafting = jobs[0].drafting;
        vb_session *s = open_session(m, &so, jobs[0].prompt, 3);
        vb_generate_options g = {.max_tokens = 20, .ignore_eos = 1, .fingerprint = 1};
        OK(vb_batch_add(b, &(vb_request){.session = s, .options = &g, .done = job_end, .context = &jobs[0]}, NULL,
                        &err));
        add_job(b, m, &jobs[1]);
        for (size_t i = 0; i < steps; i++)
            OK(vb_batch_step(b, &left, &err));
        assert_true(vb_batch_pause(b, 0));
        run_batch_to_its_end(b);
        assert_int_equal(jobs[0].ended, 0);
        check_job("beside a paused session", &jobs[1], &alone[1]);
        assert_true(vb_batch_resume(b, 0));
        run_batch_to_its_end(b);
        check_job("a session that was paused", &jobs[0], &alone[0]);
        vb_batch_close(b);
        vb_session_close(s);
    }
    vb_model_close(m);
}

/* A request is paused by its own callback, at the token that is its last one, or before. */
struct pauser {
    vb_batch *b;
    size_t at, seen;
};

static int pause_itself(void *context, const vb_event *e)
{
    struct pauser *p = context;
    (void)e;
    if (++p->seen == p->at)
        assert_true(vb_batch_pause(p->b, 0));
    return 0;
}

TEST(a_callback_may_pause_its_request_also_at_the_last_token)
{
    vb_model *m = open_tiny("v3");
    for (size_t at = 4; at <= 5; at++) {
        vb_session_options session = {.context = 40, .threads = 1};
        struct pauser p = {.at = at, .b = open_batch_of(m, &(vb_batch_options){.session = &session})};
        vb_generate_options g = {.max_tokens = 5, .ignore_eos = 1, .callback = pause_itself, .context = &p};
        size_t left;
        OK(vb_batch_add(p.b, &(vb_request){.tokens = (int32_t[]){5, 6, 7}, .count = 3, .options = &g}, NULL, &err));
        for (int steps = 0; steps < 9; steps++)
            OK(vb_batch_step(p.b, &left, &err));
        assert_int_equal(left, 0);
        assert_int_equal(p.seen, at);
        assert_int_equal(look(p.b).paused, at == 4);
        assert_int_equal(look(p.b).done, at == 5);
        vb_batch_close(p.b);
    }
    vb_model_close(m);
}

/* ---- tokens that stop a run -------------------------------------------------------------------------------------- */

TEST(stop_tokens_end_runs_wherever_drafts_stand)
{
    vb_model *m = open_tiny("v3-mtp3");
    struct methods methods = methods_for(m, WITH_NONE);
    vb_batch_options o = {.session = &(vb_session_options){.context = 80, .threads = 1}};
    uint64_t seed = 3;
    for (int round = 0; round < 60; round++) {
        vb_batch *b = open_batch_of(m, &o);
        int32_t stops[2];
        for (size_t i = 0; i < JOBS; i++) {
            const char *method = methods.name[(i + (size_t)round) % methods.count];
            jobs[i] = (struct job){.options = {.max_tokens = 40, .ignore_eos = round % 2},
                                   .drafting = drafting_of(m, method, 1 + (int)random_below(&seed, 6))};
            job_prompt(&jobs[i], (int32_t[]){5, 6, 7 + round}, 3);
            alone[i] = jobs[i];
            if (i == 0) { /* where the run would end: at a token that it has said before, or not */
                run_job_alone(m, &alone[0], o.session);
                stops[0] = alone[0].tokens[3 + random_below(&seed, alone[0].total - 3)];
                stops[1] = (int32_t)random_below(&seed, (size_t)vb_vocab_size(m));
            }
            jobs[i].options.stop_tokens = stops;
            jobs[i].options.stop_token_count = 2;
            add_job(b, m, &jobs[i]);
        }
        OK(vb_batch_run(b, &err));
        size_t end = 3;
        while (alone[0].tokens[end] != stops[0] && alone[0].tokens[end] != stops[1])
            end++;
        for (size_t i = 0; i < JOBS; i++) {
            alone[i].options = jobs[i].options;
            run_job_alone(m, &alone[i], o.session);
            check_job(jobs[i].drafting.method, &jobs[i], &alone[i]);
            if (jobs[i].total != end + 1 || jobs[i].result.finish != VB_FINISH_STOP ||
                jobs[i].tokens[end] != alone[0].tokens[end])
                fail_msg("round %d, %s: %zu tokens, finish %d; token %zu stops", round, jobs[i].drafting.method,
                         jobs[i].total, (int)jobs[i].result.finish, end);
        }
        vb_batch_close(b);
    }
    vb_model_close(m);
}

/* The text before the token is there, with a stop string's beginning that was held back. */
TEST(a_stop_token_is_no_part_of_the_text)
{
    if (!have_tale())
        return;
    vb_model *m = open_model("golden/tale");
    vb_tokenizer *t = NULL;
    static const char *const never[] = {"\x01never\x01"};
    OK(vb_tokenizer_open(&t, "golden/tale", NULL, &err));
    for (int k = 0; k < 8; k++) {
        vb_session_options o = {.context = 80, .threads = 1,
                                .drafting = {.method = mtp_method((size_t)k), .tokens = k}};
        vb_session *s = open_session(m, &o, (int32_t[]){10, 20, 30}, 3);
        vb_generate_options g = {.max_tokens = 30, .ignore_eos = 1, .tokenizer = t, .stop = never, .stop_count = 1};
        vb_result r;
        size_t count, size, bytes = 0, end = 3;
        OK(vb_generate(s, &g, &r, &err));
        int32_t stop = vb_tokens(s, &count)[20];
        for (; vb_tokens(s, &count)[end] != stop; end++) {
            vb_piece(t, vb_tokens(s, &count)[end], &size);
            bytes += size;
        }
        assert_true(bytes > 0);
        OK(vb_truncate(s, 3, &err));
        g.stop_tokens = &stop;
        g.stop_token_count = 1;
        OK(vb_generate(s, &g, &r, &err));
        assert_int_equal(r.finish, VB_FINISH_STOP);
        assert_int_equal(r.stop_string, 0);
        assert_int_equal(r.tokens, end + 1 - 3);
        assert_int_equal(r.text_bytes, bytes);
        vb_session_close(s);
    }
    vb_tokenizer_close(t);
    vb_model_close(m);
}

/* ---- a mask that fails ------------------------------------------------------------------------------------------- */

struct failing {
    size_t at; /* tokens of the timeline with which it fails */
    int code;
};

static int failing_mask(void *context, const int32_t *tokens, size_t count, unsigned char *mask)
{
    const struct failing *f = context;
    (void)tokens, (void)mask;
    return count == f->at ? f->code : VB_OK;
}

TEST(the_code_of_a_mask_is_the_runs_error_and_the_session_goes_on)
{
    static const char *const acceptances[] = {"strict", "rejection"};
    static struct record plain, r;
    vb_model *m = open_tiny("v3-mtp3");
    for (int k = 0; k < 24; k++) {
        struct failing f = {.at = SIZE_MAX, .code = k % 2 ? VB_IO : -77};
        vb_session_options o = {.context = 80, .threads = 1,
                                .drafting = {.method = mtp_method((size_t)k / 2), .tokens = k / 4},
                                .sampling = {.temperature = 0.7f, .seed = 3, .mask = failing_mask, .mask_context = &f,
                                             .acceptance = acceptances[k / 8 % 2]}};
        vb_session *s = open_session(m, &o, (int32_t[]){5, 6, 7}, 3);
        generate(s, 40, &plain);
        OK(vb_truncate(s, 3, &err));
        f.at = 3 + (size_t)k; /* with rejection a draft for that token asks first */
        vb_generate_options g = recording(&r, s, 40);
        char names[64];
        snprintf(names, sizeof names, "the mask failed for token %zu", f.at);
        REFUSED(vb_generate(s, &g, &r.result, &err), f.code, names);
        size_t had = s->count;
        if (had > 3 + (size_t)k || (k / 8 % 2 == 0 && had != 3 + (size_t)k))
            fail_msg("the mask failed for token %zu, and there are %zu", f.at, had);
        assert_memory_equal(s->tokens + 3, plain.token, (had - 3) * sizeof *plain.token);
        f.at = SIZE_MAX;
        generate(s, 43 - had, &r);
        if (k / 8 % 2 == 0 || had == 3) /* with rejection a round that begins elsewhere draws other drafts */
            assert_memory_equal(s->tokens + 3, plain.token, 40 * sizeof *plain.token);
        vb_session_close(s);
    }
    vb_model_close(m);
}

/* What failed in a proposal that nobody verified is told by who asked for it, and not by the next run. */
TEST(a_mask_that_fails_for_a_draft_fails_what_asked_for_it)
{
    vb_model *m = open_tiny("v3-mtp3");
    struct failing f = {.at = 5, .code = VB_IO};
    vb_session_options o = {.context = 80, .threads = 1, .drafting = {.method = "mtp-eagle", .tokens = 3},
                            .sampling = {.temperature = 0.7f, .seed = 3, .mask = failing_mask, .mask_context = &f,
                                         .acceptance = "rejection"}};
    vb_session *s = open_session(m, &o, (int32_t[]){5, 6, 7}, 3);
    int32_t next, drafts[VB_MAX_DRAFT], count;
    static struct record r;
    REFUSED(vb_draft(s, &next, drafts, &count, &err), VB_IO, "the mask failed for a draft of token 5");
    assert_int_equal(count, 0);
    f.at = SIZE_MAX;
    generate(s, 10, &r);
    vb_session_close(s);
    vb_model_close(m);
}

static int as_told(void *context) { return *(const int *)context; }

/* Nor is it told by the next run when the pass that would have verified the draft was given up. */
TEST(a_mask_that_failed_for_a_pass_that_was_given_up_is_forgotten)
{
    vb_model *m = open_tiny("v3-mtp3");
    struct failing f = {.at = 5, .code = VB_IO};
    int stop = 0;
    vb_session_options o = {.context = 80, .threads = 1, .drafting = {.method = "mtp-eagle", .tokens = 3},
                            .stop = as_told, .stop_context = &stop,
                            .sampling = {.temperature = 0.7f, .seed = 3, .mask = failing_mask, .mask_context = &f,
                                         .acceptance = "rejection"}};
    vb_session *s = open_session(m, &o, (int32_t[]){5, 6, 7}, 3);
    vb_generate_options g = {.max_tokens = 10, .ignore_eos = 1};
    static struct record r;
    generate(s, 1, &r);
    stop = 1;
    OK(vb_generate(s, &g, &r.result, &err));
    assert_true(r.result.finish == VB_FINISH_STOPPED && r.result.tokens == 0);
    stop = 0;
    f.at = SIZE_MAX;
    generate(s, 10, &r);
    vb_session_close(s);
    vb_model_close(m);
}

TEST(a_mask_that_fails_ends_its_request_and_no_other)
{
    vb_model *m = open_tiny("v3");
    struct failing f = {.at = 9, .code = -77};
    vb_batch_options o = {.session = &(vb_session_options){.context = 40, .threads = 1}, .keep_finished = 2};
    vb_batch *b = open_batch_of(m, &o);
    for (int32_t i = 0; i < 4; i++) {
        jobs[i] = (struct job){.options = {.max_tokens = 20, .ignore_eos = 1},
                               .drafting = {.method = mtp_method((size_t)i), .tokens = 2}};
        job_prompt(&jobs[i], (int32_t[]){5, 6, 7, 8 + i % 2}, 4);
        alone[i] = jobs[i];
        run_job_alone(m, &alone[i], o.session);
        if (i == 1)
            jobs[i].sampling = (vb_sampling){.mask = failing_mask, .mask_context = &f};
        add_job(b, m, &jobs[i]);
    }
    OK(vb_batch_run(b, &err));
    assert_int_equal(jobs[1].code, -77);
    assert_non_null(strstr(jobs[1].error.message, "the mask failed for token 9"));
    assert_int_equal(jobs[1].total, 9);
    assert_memory_equal(jobs[1].tokens, alone[1].tokens, 9 * sizeof *jobs[1].tokens);
    for (size_t i = 0; i < 4; i++)
        if (i != 1)
            check_job("beside a mask that failed", &jobs[i], &alone[i]);
    vb_batch_close(b);
    vb_model_close(m);
}

/* ---- passes that are given up ------------------------------------------------------------------------------------ */

static int now_and_then(void *context) { return random_below(context, 7) == 0; }

TEST(a_pass_that_is_given_up_ends_no_request_and_changes_no_bit)
{
    vb_model *m = open_tiny("v3-mtp3");
    struct methods methods = methods_for(m, WITH_NONE), leading = methods_for(m, BY_TOKENS);
    size_t given_up = 0;
    uint64_t seed = 11;
    for (int round = 0; round < 24; round++) {
        vb_session_options session = {.context = 60, .threads = 1, .prefill_chunk = 1 + (int)random_below(&seed, 9),
                                      .stop = now_and_then, .stop_context = &seed, .poison_cut_rows = 1};
        vb_batch_options o = {.session = &session, .max_sequences = 1 + (int)random_below(&seed, 8),
                              .cache_tokens = 76 + (int)random_below(&seed, 200), .keep_finished = round % 3};
        vb_batch *b = open_batch_of(m, &o);
        for (size_t i = 0; i < JOBS; i++) {
            jobs[i] = (struct job){.options = {.max_tokens = 20, .ignore_eos = 1}, .tells = i % 3 == 0,
                                   .drafting = drafting_of(m, methods.name[(i + (size_t)round) % methods.count], 3),
                                   .sampling = {.temperature = 0.8f, .seed = 5 + i}};
            if (i % 2) {
                jobs[i].sampling.acceptance = "rejection";
                jobs[i].drafting.method = leading.name[(i + (size_t)round) / 2 % leading.count];
            }
            job_prompt(&jobs[i], (int32_t[]){5, 6, 7, 8, 9, 10, 11, 12, (int32_t)i, 14}, 10);
            alone[i] = jobs[i];
            run_job_alone(m, &alone[i], o.session);
            evaluate(m, &alone[i], NULL);
            add_job(b, m, &jobs[i]);
        }
        given_up += run_batch_to_its_end(b);
        for (size_t i = 0; i < JOBS; i++) {
            check_job(jobs[i].drafting.method, &jobs[i], &alone[i]);
            check_rows(jobs[i].drafting.method, &jobs[i], &alone[i]);
        }
        vb_batch_close(b);
    }
    print_message("%zu passes were given up\n", given_up);
    assert_true(given_up > 100);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_prompts_are_those_of_vb_evaluate_each_told_once),
        cmocka_unit_test(a_row_of_a_prompt_that_is_not_finite_fails_its_request_alone),
        cmocka_unit_test(others_go_on_while_paused_requests_hold_all_places_and_all_rows),
        cmocka_unit_test(a_paused_session_leaves_its_place_to_others),
        cmocka_unit_test(a_callback_may_pause_its_request_also_at_the_last_token),
        cmocka_unit_test(stop_tokens_end_runs_wherever_drafts_stand),
        cmocka_unit_test(a_stop_token_is_no_part_of_the_text),
        cmocka_unit_test(the_code_of_a_mask_is_the_runs_error_and_the_session_goes_on),
        cmocka_unit_test(a_mask_that_fails_for_a_draft_fails_what_asked_for_it),
        cmocka_unit_test(a_mask_that_failed_for_a_pass_that_was_given_up_is_forgotten),
        cmocka_unit_test(a_mask_that_fails_ends_its_request_and_no_other),
        cmocka_unit_test(a_pass_that_is_given_up_ends_no_request_and_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
