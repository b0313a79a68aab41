/* tests/engine/test_small_stack.c -- a thread that has the stack which engine/verbatim.h promises to be enough, 64 KB,
 * gets the usual bits. Below the stack lies a megabyte that nobody may touch. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK ((size_t)64 << 10)
#define FORBIDDEN ((size_t)1 << 20)
#define PROMPT 40 /* more rows than a pass of few rows has */
#define TOKENS 12

struct job {
    vb_session *session;
    vb_generate_options options;
    vb_result result;
    vb_error err;
    int code;
};

static void *compute(void *arg)
{
    struct job *job = arg;
    job->code = vb_generate(job->session, &job->options, &job->result, &job->err);
    return NULL;
}

/* The same on a small stack. Returns 0 when the thread cannot be had. */
static int compute_on_small_stack(struct job *job)
{
    pthread_attr_t attributes;
    pthread_t thread;
    char *memory = mmap(NULL, FORBIDDEN + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int there = memory != MAP_FAILED && !mprotect(memory + FORBIDDEN, STACK, PROT_READ | PROT_WRITE) &&
                !pthread_attr_init(&attributes) && !pthread_attr_setstack(&attributes, memory + FORBIDDEN, STACK) &&
                !pthread_create(&thread, &attributes, compute, job);
    if (there)
        pthread_join(thread, NULL);
    return there;
}

/* The fingerprint of a run, with exit status 1 for whatever went wrong: this is a process of its own. */
static uint64_t run_on(const vb_model *m, const vb_session_options *o, int small)
{
    int32_t prompt[PROMPT];
    struct job job = {.options = {.max_tokens = TOKENS, .ignore_eos = 1, .fingerprint = 1}};
    random_tokens(m, 7, prompt, PROMPT);
    if (vb_session_open(&job.session, m, o, &job.err) || vb_append(job.session, prompt, PROMPT, &job.err))
        job.code = -1;
    else if (!small)
        compute(&job);
    else if (!compute_on_small_stack(&job))
        snprintf(job.err.message, sizeof job.err.message, "no thread with a stack of %zu bytes", STACK), job.code = -1;
    if (job.code) {
        printf("%s\n", job.err.message);
        exit(1);
    }
    vb_session_close(job.session);
    return job.result.fingerprint;
}

static void same_bits(const char *dir, const char *precision, const char *isa, const char *draft, int threads)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        vb_model *m = NULL;
        vb_model_options model_options = {.precision = precision};
        vb_session_options o = {.context = 64, .isa = isa, .drafting = {.method = draft, .tokens = draft ? 3 : 0},
                                .threads = threads, .exact_threads = 1};
        if (vb_model_open(&m, dir, &model_options, NULL))
            _exit(1);
        uint64_t usual = run_on(m, &(vb_session_options){.context = 64, .isa = isa, .threads = 1}, 0),
                 small = run_on(m, &o, 1);
        _exit(usual == small ? 0 : 2);
    }
    assert_true(waitpid(child, &status, 0) == child);
    if (status)
        fail_msg("%s, %s, %s, draft %s, %d threads, on a stack of %zu bytes: %s", dir, precision, isa,
                 draft ? draft : "none", threads, STACK,
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                 : WEXITSTATUS(status) == 2 ? "other bits"
                 : "an error");
}

static void all_settings(const char *dir, const char *const *precisions)
{
    for (const char *const *p = precisions; *p; p++)
        for (const char *const *isa = isas_here(); *isa; isa++) {
            same_bits(dir, *p, *isa, NULL, 1);
            same_bits(dir, *p, *isa, "mtp-vanilla", 1);
            same_bits(dir, *p, *isa, "mtp-eagle", 2);
        }
}

TEST(a_small_stack_is_enough_for_weights_as_stored)
{
    all_settings("golden/tiny/v3-mtp3", (const char *[]){"f32", "bf16", NULL});
}

/* Rows of the bundled model are whole groups of 32. */
TEST(a_small_stack_is_enough_for_quantized_weights)
{
    if (have_tale())
        all_settings("golden/tale", (const char *[]){"bf16", "q8", "q4", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_stack_is_enough_for_weights_as_stored),
        cmocka_unit_test(a_small_stack_is_enough_for_quantized_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
