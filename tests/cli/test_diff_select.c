/* tests/cli/test_diff_select.c -- `verbatim dump` and `diff` with --taps, --layers and --steps. Runs the program itself
 * (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

/* Whether each line of the manifest of dump `a` has a layer and a step in these ranges; returns the number of lines. */
static size_t lines_within(long long first_layer, long long last_layer, long long first_step, long long last_step)
{
    char path[96], *text, *rest;
    size_t size, lines = 0;
    snprintf(path, sizeof path, "%s/a.jsonl", dir);
    text = bytes_of(path, &size);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_in_range(integer(j, "layer"), first_layer, last_layer);
        assert_in_range(integer(j, "step"), first_step, last_step);
        assert_true(json_is_integer(json_object_get(j, "layer")));
        json_decref(j);
    }
    free(text);
    return lines;
}

TEST(a_dump_of_some_layers_and_steps_has_no_others)
{
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "-n", "6", "--draft", "mtp-eagle", "--layers", "1,3-4", "--steps", "1-2");
    size_t all = lines_within(1, 3, 1, 2);
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "-n", "6", "--draft", "mtp-eagle", "--layers", "1", "--steps", "2",
         "--taps", "*.o_proj.*", "--taps", "*_layernorm.output");
    size_t some = lines_within(1, 1, 2, 2);
    assert_int_equal(some, 6); /* o_proj 2, norms 4 */
    assert_true(all > 4 * some);
}

TEST(only_what_is_selected_is_compared)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    floats(&e, "model.layers.1.self_attn.o_proj.output", &n)[0] += 1;
    save(&e);
    expect_structural_at(DIFF(3, b, TINY "v3"), "model.layers.1.self_attn.o_proj.output");
    EXPECT(0, "identical", b, a, "--layers", "0,2-9");
    EXPECT(3, "structural", b, a, "--layers", "1");
    EXPECT(3, "structural", b, a, "--taps", "*.o_proj.output");
    json_t *j = DIFF(0, b, TINY "v3", "--layers", "2", "--taps", "*.o_proj.*", "--runs", "1");
    assert_int_equal(json_array_size(json_object_get(j, "taps")), 2);
    assert_int_equal(json_array_size(json_object_get(json_object_get(j, "local_a"), "operators")), 2);
    assert_int_equal(json_array_size(json_object_get(j, "only_in_b")), 0);
    json_decref(j);
}

TEST(steps_select_rows)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "-n", "6");
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    floats(&e, "lm_head.output@2", &n)[0] += 1; /* step 2 */
    save(&e);
    EXPECT(3, "structural", b, a);
    EXPECT(0, "identical", b, a, "--steps", "0-1,3-9");
    json_t *j = DIFF(3, b, a, "--steps", "2");
    assert_int_equal(integer(tap(j, "lm_head.output"), "rows"), 1);
    json_decref(j);
    EXPECT(0, "identical", b, TINY "v3", "--steps", "1", "--runs", "0"); /* the steps are those of the dump */
    EXPECT(3, "structural", TINY "v3", b, "--steps", "2", "--runs", "0");
}

TEST(a_selection_of_nothing_is_refused)
{
    static const char *const wrong[] = {"", "x", "1-", "-1", "3-1", "1,,2", "1,", "0x1", "1--2", "99999999", "1 ",
                                        "1-2-3"};
    for (size_t i = 0; i < COUNT(wrong); i++)
        expect_failure(RUN("diff", a, b, "--layers", wrong[i]), 2, "wanted ranges of numbers, such as 0-3,7");
    DUMP(a, TINY "v3", "--tokens", "5,6,7");
    expect_failure(RUN("dump", TINY "v3", "--tokens", "5,6", "-o", b, "--steps", "5"), 2,
                   "--layers, --steps and --taps leave no value to write");
    expect_failure(RUN("dump", TINY "v3", "--tokens", "5,6", "-o", b, "--steps", "a"), 2,
                   "--steps is a, wanted ranges");
    expect_failure(RUN("diff", a, TINY "v3", "--layers", "9", "--runs", "0"), 2,
                   "--taps, --layers and --steps leave nothing to compare");
    expect_failure(RUN("diff", a, TINY "v3", "--steps", "9", "--runs", "0"), 2, "leave nothing to compare");
    forget_manifest(a);
    expect_failure(RUN("diff", a, TINY "v3", "--tokens", "5,6,7", "--steps", "0"), 2,
                   "--steps wants a dump with a manifest");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_dump_of_some_layers_and_steps_has_no_others),
        IN_DIR(only_what_is_selected_is_compared),
        IN_DIR(steps_select_rows),
        IN_DIR(a_selection_of_nothing_is_refused),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
