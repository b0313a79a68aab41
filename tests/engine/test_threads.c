/* tests/engine/test_threads.c -- what threads may share, they share here all at once: a model that nobody has used
 * before, and a tokenizer. Every thread's bits are those of a session that is alone. `make tsan` builds this test and
 * the library with ThreadSanitizer, which reports a data race even where it changes no bit.
 *     test_threads ISA    in f32 with this instruction set; in bf16, where only the best one learns about weights, with
 *                         the best */
#include "tests/support/engine_support.h"

#include <pthread.h>

#define THREADS 8
#define REQUESTS 3 /* of the thread that runs a batch */
#define PROMPT 21
#define TOKENS 16
#define ROUNDS 2

struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    const vb_model *model;
    const vb_tokenizer *tokenizer;
    const int32_t *prompt;
    vb_session_options options;
    int batch;
    /* what came of it; asserts are for the main thread alone */
    int code;
    vb_error error;
    size_t results;
    uint64_t fingerprint[REQUESTS];
};

static const vb_generate_options go = {.max_tokens = TOKENS, .ignore_eos = 1, .fingerprint = 1};

static int run_session(struct worker *w)
{
    vb_session *s = NULL;
    vb_result result;
    int code = vb_session_open(&s, w->model, &w->options, &w->error);
    if (code)
        return code;
    code = vb_append(s, w->prompt, PROMPT, &w->error);
    if (!code)
        code = vb_generate(s, &go, &result, &w->error);
    if (!code)
        w->fingerprint[w->results++] = result.fingerprint;
    vb_session_close(s);
    return code;
}

static void keep(void *context, const vb_request_end *end)
{
    struct worker *w = context;
    if (!end->code)
        w->fingerprint[w->results++] = end->result->fingerprint;
}

static int run_batch(struct worker *w)
{
    vb_batch_options options = {.session = &w->options, .max_sequences = 2};
    vb_request request = {.tokens = w->prompt, .count = PROMPT, .options = &go, .done = keep, .context = w};
    vb_batch *b = NULL;
    int code = vb_batch_open(&b, w->model, &options, &w->error);
    for (int i = 0; i < REQUESTS && !code; i++)
        code = vb_batch_add(b, &request, NULL, &w->error);
    if (!code)
        code = vb_batch_run(b, &w->error);
    vb_batch_close(b);
    return code;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    pthread_barrier_wait(w->start);
    w->code = w->batch ? run_batch(w) : run_session(w);
    return NULL;
}

static void start_together(struct worker *workers, void *(*work_of)(void *))
{
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        workers[i].start = &start;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work_of, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    pthread_barrier_destroy(&start);
}

/* In bf16 the first passes also learn, for all sessions, which matrices have tiny weights. */
static void sessions_share(const char *precision, const char *isa)
{
    static const char *const methods[THREADS] = {"none", "mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep",
                                                 "ngram", "mtp-eagle", "mtp-eagle"};
    vb_model_options how = {.precision = precision};
    int32_t prompt[PROMPT];
    uint64_t alone = 0;
    for (int round = 0; round < ROUNDS; round++) {
        vb_model *m = NULL;
        struct worker workers[THREADS] = {0};
        OK(vb_model_open(&m, "golden/tiny/v3-mtp3", &how, &err));
        random_tokens(m, 3, prompt, PROMPT);
        for (int i = 0; i < THREADS; i++) {
            workers[i].model = m;
            workers[i].prompt = prompt;
            workers[i].batch = i == THREADS - 1;
            workers[i].options = (vb_session_options){.context = PROMPT + TOKENS, .prefill_chunk = 8,
                                                      .threads = 1 + i % 2, .exact_threads = 1, .isa = isa,
                                                      .drafting.method = methods[i], .drafting.tokens = 3};
        }
        workers[THREADS - 2].options.drafting.tree.topk = 2; /* a tree */
        start_together(workers, work);
        if (!round) { /* afterwards: a session before would have been the first to use the model */
            struct worker one = {.model = m, .prompt = prompt, .options = {.context = PROMPT + TOKENS, .threads = 1}};
            assert_int_equal(run_session(&one), VB_OK);
            alone = one.fingerprint[0];
        }
        for (int i = 0; i < THREADS; i++) {
            if (workers[i].code)
                fail_msg("thread %d: %s", i, workers[i].error.message);
            assert_int_equal(workers[i].results, workers[i].batch ? REQUESTS : 1);
            for (size_t j = 0; j < workers[i].results; j++)
                if (workers[i].fingerprint[j] != alone)
                    fail_msg("round %d, thread %d, draft %s: its logits are not those of a session alone", round, i,
                             methods[i]);
        }
        vb_model_close(m);
    }
}

static const char *isa_of_f32;

TEST(sessions_in_many_threads_share_a_new_model_and_have_the_bits_of_one_alone) { sessions_share("f32", isa_of_f32); }
TEST(sessions_in_many_threads_learn_about_weights_and_have_the_bits_of_one_alone) { sessions_share("bf16", NULL); }

static const char text[] = "Once upon a time there was a man who did nothing but gamble -- 1,234 times, don't you "
                           "know?\n\n  \xc3\xa4 \xe4\xbd\xa0\xe5\xa5\xbd";

static void *encode(void *arg)
{
    struct worker *w = arg;
    int32_t ids[200];
    pthread_barrier_wait(w->start);
    for (int i = 0; i < 20 && !w->code; i++) {
        w->code = vb_encode(w->tokenizer, text, sizeof text - 1, ids, 200, &w->results, &w->error);
        for (size_t j = 0, size; j < w->results && !w->code; j++)
            w->fingerprint[0] = w->fingerprint[0] * 31 + (uint64_t)vb_piece(w->tokenizer, ids[j], &size)[0];
    }
    return NULL;
}

TEST(threads_share_a_tokenizer)
{
    vb_tokenizer *t = NULL;
    struct worker workers[THREADS] = {0};
    OK(vb_tokenizer_open(&t, "golden/tokenizer", NULL, &err));
    for (int i = 0; i < THREADS; i++)
        workers[i].tokenizer = t;
    start_together(workers, encode);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].code, VB_OK);
        assert_true(workers[i].results > 10 && workers[i].results == workers[0].results);
        assert_true(workers[i].fingerprint[0] == workers[0].fingerprint[0]);
    }
    vb_tokenizer_close(t);
}

int main(int argc, char **argv)
{
    isa_of_f32 = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_in_many_threads_share_a_new_model_and_have_the_bits_of_one_alone),
        cmocka_unit_test(sessions_in_many_threads_learn_about_weights_and_have_the_bits_of_one_alone),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
