/* tests/engine/test_give_up.c -- vb_session_options.stop: a pass that is given up before any of its layers leaves the
 * session as it was, whatever drafts. Runs in the repository's root. */
#include "tests/support/engine_support.h"
#include "tests/support/methods.h"

#define N 24 /* tokens of a run */

/* Asks to stop when it is asked for the time number `at`, and then not again; or each time with a chance of 1 in
 * `chance`. */
struct stopper {
    long asked, at, gave_up;
    unsigned chance, random;
};

static int stop(void *context)
{
    struct stopper *s = context;
    s->random = s->random * 1664525u + 1013904223u;
    int now = s->chance ? (s->random >> 16) % s->chance == 0 : s->asked == s->at;
    s->asked++;
    s->gave_up += now;
    return now;
}

static const int32_t prompt[] = {5, 6, 7, 70, 9, 33, 17, 2, 88, 41, 5, 6, 7, 70, 14, 99, 3, 61, 27, 86};

static vb_session_options options_of(const char *draft, const vb_model *m, struct stopper *s)
{
    vb_session_options o = {.context = 80, .threads = 1, .prefill_chunk = 7,
                            .drafting = drafting_of(m, draft, 3), .poison_cut_rows = 1,
                            .stop = s ? stop : NULL, .stop_context = s, .sampling = {.temperature = 0.8f, .seed = 3}};
    return o;
}

/* Generates until there are N new tokens, in as many runs as the stopper makes of it. */
static void run_on(vb_session *s, const char *what)
{
    vb_result r;
    size_t count;
    vb_tokens(s, &count);
    for (int runs = 0; count < COUNT(prompt) + N; runs++) {
        vb_generate_options g = {.max_tokens = COUNT(prompt) + N - count, .ignore_eos = 1};
        size_t before = count;
        OK(vb_generate(s, &g, &r, &err));
        vb_tokens(s, &count);
        if (count - before != r.tokens || (r.tokens < g.max_tokens && r.finish != VB_FINISH_STOPPED) || runs > 10000)
            fail_msg("%s: %zu tokens more, told %zu, finish %d", what, count - before, r.tokens, (int)r.finish);
    }
}

static void expect_tokens(const char *what, const vb_session *s, const int32_t *wanted)
{
    size_t count;
    const int32_t *tokens = vb_tokens(s, &count);
    for (size_t i = 0; i < N; i++)
        if (tokens[COUNT(prompt) + i] != wanted[i])
            fail_msg("%s: token %zu is %d, without a stop %d", what, i, tokens[COUNT(prompt) + i], wanted[i]);
}

static void plain(const vb_model *m, int32_t wanted[N])
{
    vb_session_options o = options_of(NULL, m, NULL);
    vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
    size_t count;
    run_on(s, "plain");
    memcpy(wanted, vb_tokens(s, &count) + COUNT(prompt), N * sizeof *wanted);
    vb_session_close(s);
}

TEST(a_run_that_is_given_up_anywhere_goes_on_to_the_same_tokens)
{
    struct methods methods = methods_for(NULL, WITH_NONE | WITHOUT_HEAD);
    vb_model *m = open_model("golden/tiny/v3-mtp3");
    int32_t wanted[N];
    long passes = 0;
    char what[96];
    plain(m, wanted);
    for (size_t k = 0; k < methods.count; k++)
        for (int round = 0; round < 60; round++) {
            struct stopper at = {.at = round, .chance = round < 50 ? 0 : (unsigned)round - 47,
                                 .random = (unsigned)round};
            vb_session_options o = options_of(methods.name[k], m, &at);
            vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
            snprintf(what, sizeof what, "%s, round %d", methods.name[k], round);
            run_on(s, what);
            expect_tokens(what, s, wanted);
            passes += at.gave_up;
            vb_session_close(s);
        }
    print_message("%ld passes were given up\n", passes);
    assert_true(passes > 1000);
    vb_model_close(m);
}

TEST(trees_that_are_given_up_go_on_to_the_same_tokens)
{
    vb_model *m = open_model("golden/tiny/v3");
    int32_t wanted[N];
    plain(m, wanted);
    for (unsigned chance = 2; chance < 12; chance++) {
        struct stopper at = {.chance = chance, .random = chance};
        vb_session_options o = options_of("mtp-eagle", m, &at);
        o.drafting.tree.topk = 3;
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        run_on(s, "a tree");
        expect_tokens("a tree", s, wanted);
        assert_true(at.gave_up > 0);
        vb_session_close(s);
    }
    vb_model_close(m);
}

static int see_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    (void)context, (void)depth, (void)index, (void)logits, (void)hidden;
    return 0;
}

/* What is no run says VB_STOPPED, and goes on when it is called again. */
TEST(reading_evaluating_and_drafting_can_be_given_up)
{
    vb_model *m = open_model("golden/tiny/v3-mtp3");
    struct stopper at = {.chance = 6, .random = 1};
    int32_t wanted[N], next, drafts[VB_MAX_DRAFT], count;
    int code, stops = 0;
    vb_error said;
    plain(m, wanted);
    for (int i = 0; i < 6; i++) {
        int what = i % 3;
        vb_session_options o = options_of(i < 3 ? "mtp-eagle" : "draft-model", m, &at);
        vb_session *s = open_session(m, &o, prompt, COUNT(prompt));
        do {
            code = what == 0 ? vb_prefill(s, &said)
                   : what == 1 ? vb_draft(s, &next, drafts, &count, &said)
                   : vb_evaluate(s, 0, see_row, NULL, &said);
            if (code && (code != VB_STOPPED || strcmp(said.message, "stopped by the caller")))
                fail_msg("%d: code %d, %s", what, code, said.message);
            stops += code != 0;
        } while (code);
        if (what < 2) { /* what vb_evaluate computed counts as generated: nothing else */
            run_on(s, "after it");
            expect_tokens("after it", s, wanted);
        }
        vb_session_close(s);
    }
    assert_true(stops > 3);
    vb_model_close(m);
}

/* The model drafts for itself: greedy, so that every draft is accepted if the draft model's cache is right. */
static vb_session *open_with_draft_model(const vb_model *m, struct stopper *at)
{
    vb_session_options o = options_of("draft-model", m, at);
    o.prefill_chunk = (int32_t)COUNT(prompt); /* one pass, which asks once per layer */
    o.sampling.temperature = 0;
    return open_session(m, &o, prompt, COUNT(prompt));
}

/* The draft model reads the prompt in a pass of its own, after the target's. A stop in that pass ends the call; the
 * session then goes on, and the draft model reads the prompt again. */
TEST(the_prompt_pass_of_a_draft_model_can_be_given_up)
{
    vb_model *m = open_model("golden/tiny/v3");
    long layers = m->config.num_hidden_layers;
    vb_result r;
    struct stopper never = {.at = -1};
    vb_session *s = open_with_draft_model(m, &never);
    OK(vb_prefill(s, &err));
    assert_int_equal(never.asked, 2 * layers);
    vb_session_close(s);
    for (long i = 0; i < 2 * layers; i++) {
        struct stopper at = {.at = layers + i / 2};
        vb_generate_options g = {.max_tokens = N, .ignore_eos = 1};
        s = open_with_draft_model(m, &at);
        if (i % 2) {
            REFUSED(vb_prefill(s, &err), VB_STOPPED, "stopped by the caller");
        } else {
            OK(vb_generate(s, &g, &r, &err));
            assert_int_equal(r.finish, VB_FINISH_STOPPED);
            assert_int_equal(r.tokens, 1); /* which the target's pass chose */
        }
        assert_int_equal(at.asked, at.at + 1); /* no layer was computed after it */
        OK(vb_generate(s, &g, &r, &err));
        assert_int_equal(r.tokens, N);
        assert_true(r.drafted > N / 2);
        if (r.accepted != r.drafted)
            fail_msg("stopped at layer %ld: %zu of %zu drafts were accepted, wanted all", i / 2, r.accepted, r.drafted);
        vb_session_close(s);
    }
    vb_model_close(m);
}

struct ends {
    int count;
    int32_t tokens[3][N];
};

static void see_end(void *context, const vb_request_end *e)
{
    struct ends *all = context;
    assert_int_equal(e->code, VB_OK);
    assert_int_equal(e->count - e->prompt, N);
    memcpy(all->tokens[all->count++], e->tokens + e->prompt, N * sizeof *e->tokens);
}

static void give_up_steps_of_a_batch(const vb_model *m, const char *method)
{
    struct stopper at = {.chance = 5, .random = 7};
    struct ends all = {0};
    vb_batch *b;
    int32_t wanted[N];
    size_t left = 1;
    int stops = 0;
    vb_error said;
    plain(m, wanted);
    vb_session_options session = options_of(method, m, &at);
    vb_batch_options o = {.session = &session};
    OK(vb_batch_open(&b, m, &o, &err));
    vb_generate_options options = {.max_tokens = N, .ignore_eos = 1};
    vb_request q = {.tokens = prompt, .count = COUNT(prompt), .options = &options, .done = see_end, .context = &all};
    for (int i = 0; i < 3; i++)
        OK(vb_batch_add(b, &q, NULL, &err));
    while (left) {
        int code = vb_batch_step(b, &left, &said);
        if (code && code != VB_STOPPED)
            fail_msg("code %d: %s", code, said.message);
        stops += code != 0;
    }
    assert_int_equal(all.count, 3);
    assert_true(stops > 3);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(all.tokens[i], wanted, sizeof wanted);
    vb_batch_close(b);
}

TEST(a_step_of_a_batch_can_be_given_up)
{
    vb_model *m = open_model("golden/tiny/v3-mtp3");
    give_up_steps_of_a_batch(m, "mtp-eagle");
    give_up_steps_of_a_batch(m, "draft-model");
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_is_given_up_anywhere_goes_on_to_the_same_tokens),
        cmocka_unit_test(trees_that_are_given_up_go_on_to_the_same_tokens),
        cmocka_unit_test(reading_evaluating_and_drafting_can_be_given_up),
        cmocka_unit_test(the_prompt_pass_of_a_draft_model_can_be_given_up),
        cmocka_unit_test(a_step_of_a_batch_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
