/* tests/cli/test_trace_session.c -- `verbatim trace --session`: a loaded session goes on as the saved one, and the
 * trace shows which rows are computed again and where zeros replace a hidden state. Runs the program itself (argv[1],
 * or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/traces.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MODEL "golden/tiny/v3-mtp3", "--threads", "1", "--draft-tokens", "2"
#define PROMPT "--tokens", "5,6,7,70,9,33"

static char folder[64], path[96];

static int make_folder(void **unused)
{
    (void)unused;
    make_dir(folder);
    snprintf(path, sizeof path, "%s/a.session", folder);
    return 0;
}

static int drop_folder(void **unused)
{
    (void)unused;
    remove_dir(folder);
    return 0;
}

static long long item(const json_t *pass, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(pass, key), i));
}
static int is_zero(const json_t *pass, size_t row)
{
    return json_is_null(json_array_get(json_object_get(pass, "hidden"), row));
}

static void done(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

/* The passes after the load are those after as many tokens in a run that was not interrupted, except for the first
 * `differ` ones. */
static void expect_the_same_end(const json_t *loaded, const json_t *whole, size_t differ)
{
    size_t passes = json_array_size(loaded) - 2 - differ;
    static const char *const keys[] = {"pass", "input_ids", "positions", "slots", "draft", "chosen", "hidden",
                                       "context_length"};
    for (size_t i = 1; i <= passes; i++)
        for (size_t k = 0; k < COUNT(keys); k++) {
            const json_t *ours = json_array_get(loaded, json_array_size(loaded) - 1 - i),
                         *its = json_array_get(whole, json_array_size(whole) - 1 - i);
            if (!json_equal(json_object_get(ours, keys[k]), json_object_get(its, keys[k])))
                fail_msg("%s of round %lld after the load differs from round %lld of the whole run", keys[k],
                         integer(ours, "round"), integer(its, "round"));
        }
}

/* The hidden state of the newest row was not saved: the module's row is computed from zeros in a slot of its own, and
 * the row that was computed before the save stays. */
TEST(the_first_draft_after_a_load_without_hidden_states_has_a_dummy_slot)
{
    done(RUN("generate", MODEL, PROMPT, "-n", "4", "--draft", "mtp-eagle", "--save-session", path, "--without-hidden",
             "--json"));
    json_t *loaded = json_lines(RUN("trace", MODEL, "--session", path, "-n", "8", "--draft", "mtp-eagle", "--json"));
    json_t *whole = json_lines(RUN("trace", MODEL, PROMPT, "-n", "12", "--draft", "mtp-eagle", "--json"));
    const json_t *first = json_array_get(loaded, 1);
    assert_int_equal(integer(json_array_get(loaded, 0), "loaded"), 9);
    assert_int_equal(json_array_size(json_object_get(json_array_get(loaded, 0), "prompt")), 10);
    assert_string_equal(string(first, "pass"), "module");
    assert_int_equal(json_array_size(json_object_get(first, "slots")), 1);
    assert_true(is_zero(first, 0));
    assert_int_equal(item(first, "index", 0), 8);
    assert_int_equal(item(first, "positions", 0), 8);
    assert_int_equal(item(first, "slots", 0), 9);
    expect_the_same_end(loaded, whole, 3);
    json_t *j = JSON("generate", MODEL, "--session", path, "-n", "8", "--draft", "mtp-eagle");
    assert_string_equal(string(last_line(loaded), "fingerprint"), string(j, "fingerprint"));
    json_decref(j);
    json_decref(loaded);
    json_decref(whole);
}

/* The row of the last token of a saved prompt is computed after the load, because it chooses the first token. */
TEST(after_a_saved_prompt_one_row_is_computed)
{
    remove(path);
    done(RUN("session", "save", MODEL, PROMPT, "--draft", "mtp-eagle", "-o", path));
    json_t *loaded = json_lines(RUN("trace", MODEL, "--session", path, "-n", "9", "--draft", "mtp-eagle", "--json"));
    json_t *whole = json_lines(RUN("trace", MODEL, PROMPT, "-n", "9", "--draft", "mtp-eagle", "--json"));
    const json_t *first = json_array_get(loaded, 1);
    assert_string_equal(string(first, "pass"), "target");
    assert_int_equal(json_array_size(json_object_get(first, "slots")), 1);
    assert_int_equal(item(first, "slots", 0), 5);
    assert_int_equal(item(first, "input_ids", 0), 33);
    expect_the_same_end(loaded, whole, 1);
    assert_string_equal(string(last_line(loaded), "fingerprint"), string(last_line(whole), "fingerprint"));
    json_decref(loaded);
    json_decref(whole);
}

/* A file that was saved without drafts has no hidden states. The module's rows of all loaded tokens take zeros. */
TEST(zeros_replace_hidden_states_that_were_not_saved)
{
    remove(path);
    done(RUN("session", "save", MODEL, PROMPT, "--draft", "none", "-o", path));
    json_t *lines = json_lines(RUN("trace", MODEL, "--session", path, "--tokens", "8", "-n", "6", "--draft",
                                   "mtp-eagle", "--json"));
    const json_t *module = json_array_get(lines, 2);
    assert_string_equal(string(module, "pass"), "module");
    assert_int_equal(json_array_size(json_object_get(module, "hidden")), 7);
    for (size_t row = 0; row < 7; row++)
        assert_int_equal(is_zero(module, row), row < 5);
    json_decref(lines);
}

TEST(what_cannot_be_loaded_is_one_sentence)
{
    expect_failure(RUN("trace", MODEL, "--session", "no/such/file"), 1, "no/such/file");
    expect_failure(RUN("trace", MODEL, "--session", path, "--prompts", path), 2,
                   "--prompts and --session do not go together");
    expect_failure(RUN("trace", "golden/tiny/v3", "--draft", "none", "--session", path), 2, "model");
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_draft_after_a_load_without_hidden_states_has_a_dummy_slot),
        cmocka_unit_test(after_a_saved_prompt_one_row_is_computed),
        cmocka_unit_test(zeros_replace_hidden_states_that_were_not_saved),
        cmocka_unit_test(what_cannot_be_loaded_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
