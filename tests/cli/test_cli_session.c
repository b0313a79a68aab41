/* tests/cli/test_cli_session.c -- `verbatim session`, and generate's --session and --save-session. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define V3 "golden/tiny/v3-mtp3"
#define IDS "14,6,7,90,3,3,21,45,8"

static char dir[64], a[128], b[128];

static int begin(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(a, sizeof a, "%s/a", dir);
    snprintf(b, sizeof b, "%s/b", dir);
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    remove_dir(dir);
    return 0;
}

static int files_in_dir(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* tokens [first, first + n) of one answer are those of another from `at` on */
static void expect_tokens(const json_t *whole, size_t at, const json_t *part, size_t n)
{
    const json_t *w = json_object_get(whole, "tokens"), *p = json_object_get(part, "tokens");
    assert_int_equal(json_array_size(p), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(json_integer_value(json_array_get(w, at + i)), json_integer_value(json_array_get(p, i)));
}

TEST(a_prompt_read_here_is_continued_there)
{
    json_t *whole = JSON("generate", V3, "--tokens", IDS, "-n", "12", "--ignore-eos", "--temperature", "0.8", "--seed",
                         "5");
    json_t *j = JSON("session", "save", V3, "--tokens", IDS, "-o", a, "--draft", "mtp-eagle", "--threads", "2");
    expect_keys(j, "file:s bytes:i tokens:i computed:i");
    assert_int_equal(integer(j, "tokens"), 9);
    assert_int_equal(integer(j, "computed"), 8);
    json_decref(j);
    j = JSON("generate", V3, "--session", a, "-n", "12", "--ignore-eos", "--temperature", "0.8", "--seed", "5", "--isa",
             "scalar", "--draft", "mtp-eagle");
    expect_tokens(whole, 0, j, 12);
    assert_int_equal(integer(j, "prompt_tokens"), 9);
    assert_string_equal(string(j, "fingerprint"), string(whole, "fingerprint"));
    json_decref(j);
    json_decref(whole);
}

TEST(a_text_is_saved_and_goes_on_and_more_may_be_said)
{
    json_t *whole = JSON("generate", V3, "--tokens", IDS, "-n", "12", "--ignore-eos");
    json_t *j = JSON("generate", V3, "--tokens", IDS, "-n", "5", "--ignore-eos", "--save-session", b, "--draft",
                     "mtp-vanilla");
    expect_tokens(whole, 0, j, 5);
    json_decref(j);
    j = JSON("generate", V3, "--session", b, "-n", "7", "--ignore-eos", "--draft", "mtp-vanilla");
    expect_tokens(whole, 5, j, 7);
    json_decref(j);
    json_decref(whole);
    j = JSON("generate", V3, "--session", b, "--tokens", "5,6", "-n", "3", "--ignore-eos", "--without-hidden",
             "--force", "--save-session", b, "--draft", "mtp-vanilla");
    assert_int_equal(integer(j, "prompt_tokens"), 16);
    json_decref(j);
    j = JSON("session", "info", b);
    expect_keys(j, "file:s version:i bytes:i tokens:i computed:i context:i checkpoint:s architecture:s precision:s "
                   "cache_type:s conventions:s "
                   "weights:s prefill:s routes:s draft:s draft_conventions:s with_hidden:b drafter_bytes:i");
    assert_int_equal(integer(j, "tokens"), 19);
    assert_string_equal(string(j, "draft"), "mtp-vanilla");
    assert_false(json_is_true(json_object_get(j, "with_hidden")));
    json_decref(j);
    struct said s = RUN("session", "info", b);
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "a session of version 1"));
    forget(&s);
}

TEST(what_is_wrong_is_said_and_no_file_is_left_behind)
{
    struct said s = RUN("session", "save", V3, "--tokens", IDS, "-o", a, "--force");
    expect_code(&s, 0);
    forget(&s);
    int files = files_in_dir();
    expect_failure(RUN("session"), 2, "wants save or info");
    expect_failure(RUN("session", "load"), 2, "wants save or info, found load");
    expect_failure(RUN("session", "info"), 2, "FILE is missing");
    expect_failure(RUN("session", "save", V3, "--tokens", IDS), 2, "-o is missing");
    expect_failure(RUN("session", "save", V3, "-o", b), 2, "wanted one of --prompt");
    expect_failure(RUN("session", "save", V3, "--tokens", IDS, "-o", b, "-n", "3"), 2, "has no option -n");
    expect_failure(RUN("session", "save", V3, "--tokens", IDS, "-o", a), 1, "it exists, and --force is not given");
    expect_failure(RUN("session", "save", V3, "--tokens", IDS, "-o", dir), 1, "it is a directory");
    expect_failure(RUN("session", "save", V3, "--tokens", IDS, "-o", "/dev/null"), 1, "a link or a device");
    expect_failure(RUN("generate", V3, "--tokens", IDS, "-n", "1", "--save-session", a), 1,
                   "it exists, and --force is not given");
    expect_failure(RUN("generate", V3, "--tokens", IDS, "-n", "1", "--save-session", "/dev/null", "--force"), 1,
                   "a link or a device");
    expect_failure(RUN("generate", V3, "-n", "1"), 2, "wanted one of --prompt");
    expect_failure(RUN("generate", V3, "--session", "/nowhere"), 1, "/nowhere: No such file");
    expect_failure(RUN("generate", V3, "--session", "README.md"), 1, "README.md is no session file of Verbatim");
    expect_failure(RUN("generate", "golden/tiny/v3", "--session", a), 2,
                   "was saved with another model or other options");
    expect_failure(RUN("generate", V3, "--session", a, "--precision", "bf16"), 2,
                   "precision is f32 there and bf16 here");
    expect_failure(RUN("generate", V3, "--session", a, "--context", "5"), 2, "the prompt has 9 tokens, the context 5");
    expect_failure(RUN("session", "info", "README.md"), 1, "README.md is no session file of Verbatim");
    expect_failure(RUN_TO(SMALL_FILES, "session", "save", V3, "--tokens", IDS, "-o", b, "--force", "--draft",
                          "mtp-vanilla"),
                   1, "b: File too large");
    s = RUN_TO(SMALL_FILES, "generate", V3, "--tokens", IDS, "-n", "2", "--save-session", a, "--force", "--json");
    expect_code(&s, 1);
    json_t *j = parsed(&s); /* one object, and it is the error */
    expect_keys(j, "error:s");
    json_decref(j);
    forget(&s);
    assert_int_equal(files_in_dir(), files);
    s = RUN("generate", V3, "--session", a, "-n", "4", "--draft", "mtp-eagle"); /* said, and no error */
    expect_code(&s, 0);
    assert_non_null(strstr(s.err, "holds nothing for drafts by mtp-eagle"));
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_read_here_is_continued_there),
        cmocka_unit_test(a_text_is_saved_and_goes_on_and_more_may_be_said),
        cmocka_unit_test(what_is_wrong_is_said_and_no_file_is_left_behind),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, begin, end);
}
