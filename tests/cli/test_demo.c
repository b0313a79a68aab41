/* tests/cli/test_demo.c -- `verbatim demo`: the tables say what was run; the generated checkpoint goes away. Its times
 * are nobody's promise. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pty.h>

#include "tests/support/process.h"
#include "tests/support/turn.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TALE "golden/tale"
#define PROMPT "Once upon a time"
#define UNREAD "The old clockmaker had two sons"

/* Of up to three numbers */
static double median(const json_t *numbers)
{
    double x[3] = {0}, sum = 0;
    size_t n = json_array_size(numbers);
    assert_true(n >= 1 && n <= COUNT(x));
    for (size_t i = 0; i < n; i++)
        sum += x[i] = json_real_value(json_array_get(numbers, i));
    return n < 3 ? sum / (double)n : sum - fmax(x[0], fmax(x[1], x[2])) - fmin(x[0], fmin(x[1], x[2]));
}

/* Four ways, as many rates each as there were rounds, the speed-up of their medians, and the bits of `generate`. */
static void check_runs(const json_t *runs, const char *prompt, size_t rounds)
{
    static const struct {
        const char *method;
        int draft_tokens;
    } ways[] = {{"none", 0}, {"mtp-eagle", 1}, {"mtp-eagle", 3}, {"mtp-vanilla", 3}};
    double plain_rate = 0;
    json_t *plain = JSON("generate", TALE, "--prompt", prompt, "-n", "20");
    assert_int_equal(json_array_size(runs), COUNT(ways));
    for (size_t w = 0; w < COUNT(ways); w++) {
        const json_t *run = json_array_get(runs, w), *rates = json_object_get(run, "tokens_per_second");
        assert_string_equal(string(run, "draft"), ways[w].method);
        assert_int_equal(integer(run, "draft_tokens"), ways[w].draft_tokens);
        assert_string_equal(string(run, "fingerprint"), string(plain, "fingerprint"));
        assert_int_equal(json_array_size(rates), rounds);
        for (size_t r = 0; r < rounds; r++)
            assert_true(json_real_value(json_array_get(rates, r)) > 0);
        double rate = median(rates);
        plain_rate = w ? plain_rate : rate;
        /* three numbers, each printed with 9 digits, of which half a unit of the last is at most 5e-9 of the number */
        assert_true(fabs(json_real_value(json_object_get(run, "speed_up")) - rate / plain_rate) <
                    2e-8 * rate / plain_rate);
    }
    json_decref(plain);
}

TEST(each_prompt_is_measured_as_often_as_asked_and_keeps_its_bits)
{
    json_t *j = JSON("demo", TALE, "--prompt", PROMPT, "--held-out", UNREAD, "-n", "20", "--rounds", "3");
    assert_true(json_is_true(json_object_get(j, "equal")));
    check_runs(json_object_get(j, "runs"), PROMPT, 3);
    check_runs(json_object_get(j, "held_out"), UNREAD, 3);
    json_decref(j);
    struct said s = RUN("demo", TALE, "--prompt", PROMPT, "--held-out", UNREAD, "-n", "20", "--rounds", "2");
    expect_code(&s, 0);
    const char *first = strstr(s.out, "identical"), *second = first ? strstr(first + 1, "identical") : NULL;
    if (s.err_size || !second || strstr(s.out, UNREAD)) /* the second prompt is measured, not shown */
        fail_msg("%s%s", s.out, s.err);
    forget(&s);
}

static size_t files_in(const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

#define LARGE "demo", TALE, "--prompt", PROMPT, "-n", "2", "--rounds", "1", "--large"

TEST(drafting_on_a_generated_checkpoint_changes_no_bit_and_leaves_no_file)
{
    char dir[64];
    if (!has_turn(0, 2))
        return; /* it takes a quarter of a minute */
    make_dir(dir);
    setenv("TMPDIR", dir, 1);
    struct said s = RUN(LARGE, "--json");
    unsetenv("TMPDIR");
    assert_int_equal(files_in(dir), 0);
    json_t *j = parsed(&s);
    if (strstr(s.out, " MB free, the generated checkpoint takes ")) {
        print_message("skipped: the table of a large model: %s\n", string(j, "error"));
    } else {
        expect_code(&s, 0);
        const json_t *large = json_object_get(j, "large"), *lines = json_object_get(large, "lines");
        assert_true(json_is_true(json_object_get(large, "equal")) &&
                    json_number_value(json_object_get(large, "checkpoint_bytes")) > 600e6);
        assert_int_equal(json_array_size(lines), 8);
        for (size_t i = 0; i < 8; i++) {
            const json_t *line = json_array_get(lines, i);
            double K = (double)integer(line, "draft_tokens"), forwards = (double)integer(line, "forwards");
            assert_true(i / 4 == !strcmp(string(line, "precision"), "bf16") && K == (double)(i % 4));
            assert_int_equal(integer(line, "tokens"), 32);
            assert_true(K > 0 ? forwards < 32 && forwards >= 32 / (K + 1) : forwards == 32);
            /* more of it than any drafting adds to a pass is read from memory */
            assert_true(json_number_value(json_object_get(line, "bytes")) / forwards > 300e6);
            double limit = json_number_value(json_object_get(line, "limit"));
            assert_true(K > 0 ? limit > 1.5 && limit < K + 1 : limit == 1);
        }
    }
    json_decref(j);
    forget(&s);
    remove_dir(dir);
}

/* The program is held at the first word of its progress, when the files have been made and not been filled. */
TEST(an_interrupted_demo_leaves_no_file)
{
    char dir[64];
    make_dir(dir);
    struct said s = {.command = "demo", .out = calloc(1, 1), .err = calloc(1, 1)};
    int terminal, status, err = holding_terminal(&terminal);
    setenv("TMPDIR", dir, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        become((const char *const[]){verbatim, LARGE, NULL}, PIPE, open("/dev/null", O_WRONLY), terminal);
    unsetenv("TMPDIR");
    WAIT_UNTIL(child, files_in(dir) == 1);
    kill(child, SIGINT);
    let_on(terminal);
    listen_to(child, (int[]){-1, err}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 ||
        !strstr(s.err, "stopped by a signal (Interrupt); the generated checkpoint is removed\n"))
        fail_msg("status %x, %s", (unsigned)status, s.err);
    assert_int_equal(files_in(dir), 0);
    forget(&s);
    remove_dir(dir);
}

TEST(what_is_wrong_is_said_in_a_sentence)
{
    expect_failure(RUN("demo", TALE, "--prompt", PROMPT, "--rounds", "65"), 2, "--rounds is 65, at most 64");
    expect_failure(RUN("demo", "golden/tiny/v2", "--tokens", "5"), 2, "has no MTP modules");
    setenv("TMPDIR", "/proc", 1); /* a file system without room */
    struct said full = RUN(LARGE, "--json");
    setenv("TMPDIR", "/nowhere", 1);
    struct said nowhere = RUN(LARGE);
    unsetenv("TMPDIR");
    expect_code(&full, 1);
    expect_code(&nowhere, 1);
    if (!strstr(full.out, "/proc has 0 MB free, the generated checkpoint takes ") ||
        !strstr(nowhere.err, "/nowhere: No such file"))
        fail_msg("%s\n%s", full.out, nowhere.err);
    forget(&full);
    forget(&nowhere);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_prompt_is_measured_as_often_as_asked_and_keeps_its_bits),
        cmocka_unit_test(drafting_on_a_generated_checkpoint_changes_no_bit_and_leaves_no_file),
        cmocka_unit_test(an_interrupted_demo_leaves_no_file),
        cmocka_unit_test(what_is_wrong_is_said_in_a_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
