/* tests/cli/test_training_hidden.c -- `verbatim train`: hidden states of the frozen model that are kept on disk or come from dumps. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void expect_done(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

/* Two runs must have the same curves and weights. */
static void expect_same_result(const char *a, const char *b)
{
    static const char *const files[] = {"curves.csv", "model/model-trained-00001.safetensors"};
    for (size_t i = 0; i < COUNT(files); i++) {
        char x[400], y[400];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        expect_same_file(x, y);
    }
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int ch = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(ch ^ 64, f);
    fclose(f);
}

/* ---- rows that are kept ------------------------------------------------------------------------------------------------------ */

#define KEPT "hidden_states.safetensors"
#define RUN_OF(data, iterations, ...) \
    RUN("train", MTP3, "--data", data, "--train-iters", iterations, "--lr-decay-iters", "6", "--eval-interval", "3", "--seq-length", "24", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "0", \
        __VA_ARGS__)

TEST(hidden_states_that_are_kept_change_no_bit)
{
    static const char *const losses[] = {"megatron", "eagle"}; /* the rows that learn from the target read one row more */
    write_data("data.jsonl", 6, 7); /* six steps are more than two epochs */
    for (size_t i = 0; i < COUNT(losses); i++) {
        expect_done(RUN_OF(run_file("data.jsonl"), "6", "--loss", losses[i], "-o", run_file("plain")));
        expect_done(RUN_OF(run_file("data.jsonl"), "6", "--loss", losses[i], "-o", run_file("kept"), "--keep-hidden-states", "--threads", "2", "--micro-tokens", "30"));
        expect_same_result(run_file("plain"), run_file("kept"));
        assert_int_equal(access(run_file("plain/" KEPT), F_OK), -1);
        remove_tree(run_file("plain"));
        remove_tree(run_file("kept"));
    }
    expect_failure(RUN_OF(run_file("data.jsonl"), "6", "--part", "model", "-o", run_file("run"), "--keep-hidden-states"), 2, "--keep-hidden-states keeps what a frozen model computes");
}

/* A file that is damaged, too short, or of another run is made anew, also only in part. */
TEST(a_run_that_is_resumed_reads_kept_hidden_states_unless_they_are_damaged)
{
    enum { SAME, DAMAGED, TOO_SHORT, FOREIGN, LOST, CASES };
    size_t size, other_size, foreign_size;
    write_data("data.jsonl", 6, 7);
    write_data("other.jsonl", 6, 8);
    expect_done(RUN_OF(run_file("data.jsonl"), "6", "-o", run_file("whole")));
    expect_done(RUN_OF(run_file("other.jsonl"), "6", "--keep-hidden-states", "-o", run_file("other")));
    char *other = bytes_of(run_file("other/" KEPT), &foreign_size);
    for (int i = SAME; i < CASES; i++) {
        const char *path = run_file("run/" KEPT);
        expect_done(RUN_OF(run_file("data.jsonl"), "3", "--keep-hidden-states", "-o", run_file("run")));
        char *was = bytes_of(path, &size);
        if (i == DAMAGED)
            for (long at = (long)size - 64 * 4 * 40; at < (long)size; at += 64 * 4) /* 40 rows, of those held out and the last to train on */
                flip(path, at + 3);
        else if (i == TOO_SHORT)
            write_file(run_file("run"), KEPT, was, size / 2);
        else if (i == FOREIGN)
            write_file(run_file("run"), KEPT, other, foreign_size);
        else if (i == LOST)
            remove(path);
        expect_done(RUN("train", "--resume", run_file("run"), "--train-iters", "6"));
        expect_same_result(run_file("whole"), run_file("run"));
        char *now = bytes_of(path, &other_size);
        assert_int_equal(size, other_size);
        assert_memory_equal(was, now, 64); /* the header again */
        free(now);
        free(was);
        remove_tree(run_file("run"));
    }
    free(other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(hidden_states_that_are_kept_change_no_bit),
        IN_DIR(a_run_that_is_resumed_reads_kept_hidden_states_unless_they_are_damaged),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
