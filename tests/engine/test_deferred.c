/* tests/engine/test_deferred.c -- while automatic lengths are 0, drafters compute nothing ahead. Their rows come later,
 * all of them or the newest; no bit of the output depends on it, and where all come, no draft does. Here the test
 * chooses the lengths. Runs in the repository's root. */
#include <limits.h>
#include <math.h>

#include "engine/draft/mtp.h"
#include "tests/support/batch.h"

#define MOST_ROWS 900
#define FOREVER INT_MAX

static const char *const methods[] = {"mtp-eagle", "mtp-vanilla", "eagle", "eagle3", "parallel-heads"};

/* The next rounds use K drafts. With `trial`, K = 0 remains the chosen K, so drafters go on to compute nothing
 * ahead. */
static void use_length(struct draft_length *l, int K, int trial)
{
    l->wanted = K > l->most ? l->most : K;
    l->home = trial ? 0 : l->wanted;
    l->left = FOREVER;
    l->sequences = NAN; /* no change of their number lets K be chosen again */
    if (l->wanted == 1 && trial)
        l->wanted = 0; /* the measured times would end it */
}

static vb_drafting drafting_of(const char *method, int tokens, int automatic)
{
    return (vb_drafting){.method = method, .tokens = tokens, .automatic = automatic, .head = head_of(method)};
}

static struct mtp_state *state_of(const vb_session *s) { return &mtp_of(s->drafter)->state; }

static vb_session *open_with(const vb_model *m, const char *method, int automatic, int context, const int32_t *prompt,
                             size_t count)
{
    vb_session_options o = {.context = context, .threads = 1, .prefill_chunk = context > 300 ? 64 : 0,
                            .drafting = drafting_of(method, 3, automatic), .poison_cut_rows = 1};
    return open_session(m, &o, prompt, count);
}

static void check_same_draft(const char *what, vb_session *a, vb_session *b)
{
    int32_t next[2], draft[2][VB_MAX_DRAFT], n[2];
    OK(vb_draft(a, &next[0], draft[0], &n[0], &err));
    OK(vb_draft(b, &next[1], draft[1], &n[1], &err));
    assert_int_equal(next[0], next[1]);
    if (n[0] != n[1] || memcmp(draft[0], draft[1], (size_t)n[0] * sizeof(int32_t)))
        fail_msg("%s: %d and %d drafts, which differ", what, n[0], n[1]);
}

TEST(rows_that_are_computed_late_have_the_drafts_of_rows_in_time)
{
    static struct record r, right;
    int32_t prompt[60];
    vb_model *m = open_tiny("v3");
    for (size_t i = 0; i < COUNT(methods); i++)
        for (size_t count = 1; count < COUNT(prompt); count += 14)
            for (size_t n = 1; n < 150; n += 40) {
                if (!has_turn(i + count / 14 + n / 40, 2))
                    continue;
                random_tokens(m, count + n, prompt, count);
                vb_session *late = open_with(m, methods[i], 1, 240, prompt, count),
                           *soon = open_with(m, methods[i], 0, 240, prompt, count);
                late->length->layers = MOST_ROWS; /* all rows are caught up, as with a model of many layers */
                use_length(late->length, 0, 0);
                generate(late, n, &r);
                generate(soon, n, &right);
                check_same_prefix(methods[i], &right, &r, n);
                assert_int_equal(r.result.drafted, 0);
                assert_int_equal(mtp_row_count(state_of(late), 0), 0); /* nothing was computed */
                check_same_draft(methods[i], late, soon);
                assert_int_equal(state_of(late)->base, 0);
                use_length(late->length, 3, n % 2);
                generate(late, 20, &r);
                generate(soon, 20, &right);
                check_same_prefix(methods[i], &right, &r, 20);
                assert_true(r.result.drafted > 0);
                check_same_draft(methods[i], late, soon);
                vb_session_close(late);
                vb_session_close(soon);
            }
    vb_model_close(m);
}

/* Rows beyond those that are caught up are forgotten. Cuts go back to before them, and beyond. */
TEST(of_many_rows_only_the_newest_are_computed)
{
    static struct record r;
    static int32_t prompt[MOST_ROWS], right[MOST_ROWS];
    vb_model *m = open_tiny("v3");
    uint64_t seed = 5;
    size_t forgotten = 0, accepted = 0;
    random_tokens(m, 3, prompt, MOST_ROWS);
    for (size_t i = 0; i < COUNT(methods); i++) {
        vb_session *s = open_with(m, methods[i], 1, MOST_ROWS, prompt, 650),
                   *plain = open_with(m, "none", 0, MOST_ROWS, prompt, 650);
        generate(plain, 200, &r);
        memcpy(right, r.token, 200 * sizeof *right);
        use_length(s->length, 0, 0);
        for (int step = 0; step < 30; step++) {
            size_t there, n = 1 + random_below(&seed, 25);
            vb_tokens(s, &there);
            use_length(s->length, step ? (int)random_below(&seed, 4) : 0, (int)random_below(&seed, 2));
            n = there + n > 850 ? 850 - there : n;
            generate(s, n, &r);
            assert_memory_equal(r.token, right + there - 650, n * sizeof *right);
            assert_int_equal(r.result.draft_failures, 0);
            accepted += r.result.accepted;
            forgotten += state_of(s)->base > 0;
            there += n;
            if (there > 800 || !random_below(&seed, 6))
                OK(vb_truncate(s, 650 + (there > 650 ? random_below(&seed, there - 650) : 0), &err));
        }
        OK(vb_truncate(s, 30, &err)); /* before every row that is left */
        assert_true(state_of(s)->base > 30);
        OK(vb_append(s, prompt + 30, 620, &err));
        use_length(s->length, 2, 0);
        generate(s, 60, &r);
        assert_memory_equal(r.token, right, 60 * sizeof *right);
        assert_int_equal(r.result.draft_failures, 0);
        vb_session_close(s);
        vb_session_close(plain);
    }
    assert_true(forgotten > 20 && accepted > 0);
    vb_model_close(m);
}

TEST(a_saved_session_has_the_rows_that_were_late)
{
    static struct record r, right;
    static int32_t prompt[MOST_ROWS];
    char dir[64], path[96];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 8, prompt, MOST_ROWS);
    make_dir(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    for (size_t i = 0; i < COUNT(methods); i++)
        for (size_t count = 20; count <= 620; count += 300) {
            vb_session *late = open_with(m, methods[i], 1, MOST_ROWS, prompt, count),
                       *soon = open_with(m, methods[i], 0, MOST_ROWS, prompt, count);
            vb_session_options o = {.context = MOST_ROWS, .threads = 1, .drafting = drafting_of(methods[i], 3, 0),
                                    .poison_cut_rows = 1};
            vb_session *loaded;
            use_length(late->length, 0, 0);
            generate(late, 30, &r);
            generate(soon, 30, &right);
            if (count > 300) { /* forgets the oldest */
                use_length(late->length, 2, 1);
                generate(late, 3, &r);
                generate(soon, 3, &right);
            }
            assert_true(!state_of(late)->base == (count < 300));
            OK(vb_session_save(late, path, &(vb_file_options){.replace = 1}, &err));
            OK(vb_session_load(&loaded, m, &o, path, NULL, &err));
            if (count < 300)
                check_same_draft(methods[i], loaded, soon);
            else
                generate(soon, 1, &right), generate(loaded, 1, &r);
            generate(soon, 30, &right);
            generate(loaded, 30, &r);
            check_same_prefix(methods[i], &right, &r, 30);
            vb_session_close(loaded);
            OK(vb_session_load(&loaded, m,
                               &(vb_session_options){.context = MOST_ROWS, .threads = 1,
                                                     .drafting = drafting_of(methods[i], 3, 1)},
                               path, NULL, &err));
            generate(loaded, 31, &r);
            assert_memory_equal(r.token + 1, right.token, 30 * sizeof *r.token);
            vb_session_close(loaded);
            vb_session_close(late);
            vb_session_close(soon);
        }
    remove_dir(dir);
    vb_model_close(m);
}

static int stop_now(void *context)
{
    (void)context;
    return 1;
}

/* Lengths are no longer 0, but the pass that would have caught up was given up. */
TEST(a_session_saved_before_its_rows_were_caught_up_fits_into_smaller_passes)
{
    static struct record r;
    int32_t prompt[40];
    char dir[64], path[96];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 9, prompt, COUNT(prompt));
    make_dir(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    for (size_t i = 0; i < COUNT(methods); i++) {
        vb_session *late = open_with(m, methods[i], 1, 240, prompt, COUNT(prompt)), *loaded = NULL;
        use_length(late->length, 0, 0);
        generate(late, 30, &r);
        use_length(late->length, 2, 0);
        late->pass->stop = stop_now;
        vb_generate_options one = recording(&r, late, 1);
        OK(vb_generate(late, &one, &r.result, &err));
        assert_int_equal(r.result.finish, VB_FINISH_STOPPED);
        late->pass->stop = NULL;
        OK(vb_session_save(late, path, &(vb_file_options){.replace = 1}, &err));
        vb_session_options o = {.context = 240, .threads = 1, .prefill_chunk = 1,
                                .drafting = drafting_of(methods[i], 3, 0)};
        OK(vb_session_load(&loaded, m, &o, path, NULL, &err));
        check_same_draft(methods[i], late, loaded);
        vb_session_close(loaded);
        vb_session_close(late);
    }
    remove_dir(dir);
    vb_model_close(m);
}

/* ---- in batches -------------------------------------------------------------------------------------------------- */

#define JOBS 24

static void count_end(void *context, const vb_request_end *end)
{
    assert_int_equal(end->code, VB_OK);
    ++*(int *)context;
}

/* A session that is brought to the batch, with automatic lengths of at most `tokens` drafts. Through it the test
 * reaches the lengths that all such sequences of the batch share. */
static vb_session *bring(vb_batch *b, const vb_model *m, const char *method, int tokens, struct record *r, int *ended,
                         const int32_t *text)
{
    vb_session_options o = {.context = 240, .threads = 1, .prefill_chunk = 48,
                            .drafting = drafting_of(method, tokens, 1), .poison_cut_rows = 1};
    vb_session *s = open_session(m, &o, text, 20);
    vb_generate_options options = recording(r, s, 200);
    vb_request q = {.session = s, .options = &options, .done = count_end, .context = ended};
    OK(vb_batch_add(b, &q, NULL, &err));
    return s;
}

/* Requests that begin alike, in a small cache, with lengths that change from step to step; some are cancelled. */
static void check_batch(const vb_model *m, uint64_t *seed, const int32_t *text)
{
    static struct job jobs[JOBS], alone[JOBS];
    vb_session_options like = {.context = 240, .threads = 1, .prefill_chunk = 48, .poison_cut_rows = 1};
    vb_batch_options o = {.session = &like, .max_sequences = 3 + (int)random_below(seed, 5),
                          .keep_finished = (int)random_below(seed, 4)};
    o.cache_tokens = random_below(seed, 2) ? 330 : 0;
    const char *method = methods[random_below(seed, 4)];
    like.drafting = drafting_of(method, 0, 1);
    vb_batch *b = open_batch_of(m, &o);
    static struct record brought[2], right;
    int ended = 0;
    vb_session *s[2] = {bring(b, m, method, 0, &brought[0], &ended, text),
                        bring(b, m, method, 2, &brought[1], &ended, text)};
    struct draft_length *lengths[2] = {NULL, NULL};
    size_t left = 1, drafted = 0;
    for (size_t i = 0; i < JOBS; i++) {
        struct job *j = &jobs[i];
        *j = (struct job){.options = {.max_tokens = 1 + random_below(seed, 60), .ignore_eos = 1},
                          .drafting = drafting_of(method, random_below(seed, 3) ? 0 : 2, random_below(seed, 5) != 0)};
        if (random_below(seed, 2))
            j->sampling = (vb_sampling){.temperature = 0.8f, .seed = next_random(seed)};
        job_prompt(j, text, 1 + random_below(seed, 170));
        j->prompt[j->count - 1] = (int32_t)random_below(seed, 50);
        alone[i] = *j;
        alone[i].drafting = (vb_drafting){0};
        run_job_alone(m, &alone[i], &like);
        add_job(b, m, j);
    }
    for (int steps = 0; left; steps++) {
        for (int i = 0; i < 2 && steps; i++)
            if (steps == 1 || !random_below(seed, 12))
                use_length(lengths[i], random_below(seed, 2) ? 0 : (int)random_below(seed, 5),
                           (int)random_below(seed, 3));
        OK(vb_batch_step(b, &left, &err));
        for (int i = 0; i < 2 && !steps; i++) {
            lengths[i] = s[i]->length;
            assert_ptr_not_equal(lengths[i], &s[i]->own_length);
        }
        if (!random_below(seed, 60))
            vb_batch_cancel(b, 2 + (int64_t)random_below(seed, JOBS));
        assert_true(steps < 20000);
    }
    for (size_t i = 0; i < JOBS; i++) {
        drafted += jobs[i].result.drafted;
        assert_int_equal(jobs[i].result.draft_failures, 0);
        if (jobs[i].result.finish != VB_FINISH_STOPPED)
            check_job(method, &jobs[i], &alone[i]);
    }
    assert_true(drafted > 0 && ended == 2);
    run_plain(m, NULL, text, 20, 200, &right);
    for (int i = 0; i < 2; i++) {
        check_same_prefix(method, &right, &brought[i], 200);
        assert_ptr_equal(s[i]->length, &s[i]->own_length);
        vb_session_close(s[i]);
    }
    vb_batch_close(b);
}

TEST(in_a_batch_no_bit_depends_on_when_rows_are_computed)
{
    int32_t text[LONGEST];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 4, text, COUNT(text));
    for (uint64_t run = 0; run < 12; run++) {
        uint64_t seed = 900 + run;
        if (has_turn(run, 2))
            check_batch(m, &seed, text);
    }
    vb_model_close(m);
}

/* Rejection reads drafts, so the text of a request with fixed lengths would depend on which rows another sequence has
 * forgotten. */
TEST(a_drafter_that_has_forgotten_rows_gives_none_to_fixed_lengths)
{
    static struct job first, second, alone;
    int32_t text[LONGEST];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 6, text, COUNT(text));
    for (size_t i = 0; i < COUNT(methods); i++) {
        vb_session_options like = {.context = 240, .threads = 1, .prefill_chunk = 48, .poison_cut_rows = 1};
        vb_batch *b = open_batch_of(m, &(vb_batch_options){.session = &like, .max_sequences = 2, .keep_finished = 1});
        first = (struct job){.options = {.max_tokens = 1, .ignore_eos = 1}, .drafting = drafting_of(methods[i], 3, 1)};
        second = (struct job){.options = {.max_tokens = 40, .ignore_eos = 1}, .drafting = drafting_of(methods[i], 3, 0),
                              .sampling = {.temperature = 1.0f, .seed = 5 + i, .acceptance = "rejection"}};
        job_prompt(&first, text, 180);
        job_prompt(&second, text, 150);
        alone = second;
        run_job_alone(m, &alone, &like);
        add_job(b, m, &first);
        OK(vb_batch_run(b, &err));
        add_job(b, m, &second);
        OK(vb_batch_run(b, &err));
        check_job(methods[i], &second, &alone);
        assert_int_equal(second.result.drafted, alone.result.drafted);
        assert_int_equal(second.result.accepted, alone.result.accepted);
        vb_batch_close(b);
    }
    vb_model_close(m);
}

TEST(padded_passes_of_automatic_lengths_fit_into_a_batch)
{
    static struct job jobs[8], alone;
    int32_t text[LONGEST];
    vb_model *m = open_tiny("v3");
    random_tokens(m, 7, text, COUNT(text));
    vb_session_options like = {.context = 120, .threads = 1, .prefill_chunk = 4, .padded = 1, .poison_cut_rows = 1};
    for (int small = 0; small < 2; small++) {
        vb_batch *b = open_batch_of(m, &(vb_batch_options){.session = &like, .max_sequences = COUNT(jobs),
                                                           .cache_tokens = small ? 140 : 0});
        for (size_t i = 0; i < COUNT(jobs); i++) {
            jobs[i] = (struct job){.options = {.max_tokens = 30, .ignore_eos = 1},
                                   .drafting = drafting_of("mtp-eagle", 0, 1)};
            job_prompt(&jobs[i], text + 4 * i, 10);
            add_job(b, m, &jobs[i]);
        }
        OK(vb_batch_run(b, &err));
        for (size_t i = 0; i < COUNT(jobs); i++) {
            alone = jobs[i];
            alone.drafting = (vb_drafting){0};
            run_job_alone(m, &alone, &like);
            check_job("padded", &jobs[i], &alone);
        }
        vb_batch_close(b);
    }
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_computed_late_have_the_drafts_of_rows_in_time),
        cmocka_unit_test(of_many_rows_only_the_newest_are_computed),
        cmocka_unit_test(a_saved_session_has_the_rows_that_were_late),
        cmocka_unit_test(a_session_saved_before_its_rows_were_caught_up_fits_into_smaller_passes),
        cmocka_unit_test(in_a_batch_no_bit_depends_on_when_rows_are_computed),
        cmocka_unit_test(a_drafter_that_has_forgotten_rows_gives_none_to_fixed_lengths),
        cmocka_unit_test(padded_passes_of_automatic_lengths_fit_into_a_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
