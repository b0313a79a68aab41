/* tests/test_bench.c -- `verbatim bench`: what it says is there and adds up; its times are nobody's promise. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../engine/support.h"
#include "support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define MODEL "golden/tiny/v3-mtp3"

static double real(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

TEST(every_line_is_measured_and_forced_drafts_are_right_as_often_as_asked)
{
    char dir[64], svg[96];
    make_dir(dir);
    snprintf(svg, sizeof svg, "%s/b.svg", dir);
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "41", "--threads", "1", "--svg", svg), *row;
    size_t i, passes = 0, drafted = 0, forced = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        const char *kind = string(row, "kind");
        assert_true(real(row, "seconds") > 0);
        if (!strcmp(kind, "pass")) {
            passes++;
            assert_true(real(row, "bytes") > 0 && real(row, "flops") > real(row, "rows") && real(row, "of_ceiling") > 0);
        }
        if (strcmp(kind, "generate"))
            continue;
        double K = real(row, "draft_tokens"), per_forward = real(row, "tokens_per_forward");
        const json_t *force = json_object_get(row, "forced");
        drafted += K > 0;
        assert_true(per_forward >= 1.0 && per_forward <= K + 1.0);
        if (json_is_null(force))
            continue;
        forced++;
        if (json_number_value(force) == 1.0) /* 40 tokens behind the first, K + 1 in a round, the last round cut short */
            assert_true(per_forward > 0.95 * (K + 1.0) - 0.05);
        else /* fewer than all right, more than none */
            assert_true(per_forward > 1.2 && per_forward < K + 1.0);
    }
    assert_true(passes >= 6);
    assert_int_equal(drafted, 6 + 9);
    assert_int_equal(forced, 9);
    json_decref(all);

    char *text;
    size_t size;
    vb_error err;
    assert_int_equal(vb_read_file(NULL, svg, &text, &size, &err), 0);
    assert_true(strstr(text, "<svg xmlns=") == text && strstr(text, "</svg>\n") == text + size - 7);
    size_t dots = 0;
    for (const char *p = text; (p = strstr(p, "<circle ")); p++)
        dots++;
    assert_int_equal(dots, 9);
    vb_free(NULL, text);
    remove_dir(dir);
}

TEST(drafts_forced_wrong_are_all_rejected)
{
    json_t *all = JSON("bench", MODEL, "--rounds", "1", "-n", "20", "--threads", "1", "--force-accept", "0"), *row;
    size_t i, forced = 0;
    json_array_foreach(json_object_get(all, "rows"), i, row)
        if (json_is_real(json_object_get(row, "forced"))) {
            assert_true(real(row, "tokens_per_forward") == 1.0);
            forced++;
        }
    assert_int_equal(forced, 3);
    json_decref(all);
}

TEST(what_is_wrong_is_said_in_a_sentence)
{
    expect_failure(RUN("bench", MODEL, "--force-accept", "1.5"), 2, "--force-accept is 1.5, wanted a number from 0 to 1");
    expect_failure(RUN("bench", MODEL, "--rounds", "65"), 2, "--rounds is 65, at most 64");
    expect_failure(RUN("bench", MODEL, "-n", "100000"), 2, "max_position_embeddings");
    expect_failure(RUN("bench", "golden/tiny/v2", "--rounds", "1", "-n", "4", "--threads", "1", "--svg", "x.svg"), 2, "has no MTP modules");
    expect_failure(RUN("bench", MODEL, "--rounds", "1", "-n", "4", "--threads", "1", "--svg", "/nowhere/x.svg"), 1, "/nowhere/x.svg: No such file");
    expect_failure(RUN("bench", MODEL, "--svg", "/dev/null"), 1, "a device, which a file would replace");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_measured_and_forced_drafts_are_right_as_often_as_asked),
        cmocka_unit_test(drafts_forced_wrong_are_all_rejected),
        cmocka_unit_test(what_is_wrong_is_said_in_a_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
