/* tests/cli/test_diff_report.c -- what `verbatim diff` writes besides its table: --require, --junit, --html, and the
 * order of its lines. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define TAPS "--taps", "*.mlp.output,model.layers.1.output,lm_head.output"

/* Two dumps of v3. In B, one number of the last layer's feed-forward part is wrong. */
static void make_pair(void)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", "5,6,7", TAPS);
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    floats(&e, "model.layers.2.mlp.output", &n)[3] += 1;
    save(&e);
}

static char *in_dir(const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", dir, name);
    return path;
}

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++)
        n++;
    return n;
}

TEST(required_names_must_be_compared)
{
    make_pair();
    EXPECT(0, "identical", a, a, "--runs", "0", "--require", "lm_head.output,*.mlp.output");
    json_t *j = DIFF(3, a, a, "--runs", "0", "--require", "lm_head.output,model.norm.output,*.gate.*");
    expect_verdict("identical, but", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "required_missing")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "required_missing"), 1)), "*.gate.*");
    json_decref(j);
    struct said s = RUN("diff", a, a, "--runs", "0", "--require", "*.gate.*");
    expect_code(&s, 3);
    assert_memory_equal(s.out, "required, and not compared: *.gate.*\nidentical\n", 47);
    forget(&s);
}

/* Without manifest and choices, nothing says which tokens the rows of an expert belong to. */
TEST(what_both_sides_have_and_nobody_compared_does_not_count)
{
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "--taps", "*.mlp.experts.*,lm_head.output");
    copy_dump(a, b, 0);
    EXPECT(0, "identical", a, b, "--runs", "0", "--require", "lm_head.output");
    EXPECT(3, "identical", a, b, "--runs", "0", "--require", "*.mlp.experts.*");
    EXPECT(0, "identical", a, a, "--runs", "0", "--require", "*.mlp.experts.*");
}

/* A batch of two texts, of which text 1 has the tokens of `a`, as its manifest says. */
TEST(a_text_of_a_batch_is_chosen)
{
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "--taps", "lm_head.output,model.layers.0.output");
    copy_dump(a, b, 1);
    for (int i = 0; i < 2; i++)
        replace_in(dir, "b.jsonl", "\"sequence\":[0,0,0]", "\"sequence\":[1,1,1]");
    EXPECT(0, "identical", b, b, "--runs", "0");
    expect_failure(RUN("diff", a, b, "--runs", "0"), 1, "no rows in common");
    expect_failure(RUN("diff", b, TINY "v3", "--runs", "0"), 2, "--tokens IDS is missing");
    EXPECT(0, "identical", b, TINY "v3", "--runs", "0", "--sequence", "1");
    EXPECT(0, "identical", b, b, "--runs", "0", "--sequence", "1");
    expect_failure(RUN("diff", b, TINY "v3", "--runs", "0", "--sequence", "2"), 2, "--tokens IDS is missing");
}

TEST(the_first_number_that_is_not_finite_is_named)
{
    size_t n;
    make_pair();
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    floats(&e, "model.layers.2.mlp.output", &n)[70] = NAN;
    floats(&e, "model.layers.1.output", &n)[3] = INFINITY;
    floats(&e, "lm_head.output", &n)[0] = -INFINITY;
    save(&e);
    struct said s = RUN("diff", a, b, "--runs", "0");
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "b.safetensors: the first number that is not finite is infinity in "
                                  "model.layers.1.output, index 0, column 3; 3 taps have such numbers\n"));
    assert_int_equal(count_of(s.out, "first number that is not finite"), 1);
    forget(&s);
    DUMP(a, TINY "v3", "--tokens", "5,6,7", "--taps", "*.gate.choice"); /* where an engine may write masks as
                                                                           -infinity */
    e = edit(a);
    floats(&e, "model.layers.1.mlp.gate.choice", &n)[1] = -INFINITY;
    save(&e);
    s = RUN("diff", a, a, "--runs", "0");
    expect_code(&s, 0);
    assert_null(strstr(s.out, "not finite"));
    forget(&s);
}

TEST(the_verdict_comes_first_and_the_first_difference_last)
{
    make_pair();
    struct said s = RUN("diff", a, b, "--runs", "0");
    expect_code(&s, 3);
    assert_memory_equal(s.out, "structural: 1 of 6 taps, first model.layers.2.mlp.output: index 0, column 3", 75);
    const char *last = strstr(s.out, "\nfirst difference: model.layers.2.mlp.output, index 0, column 3");
    assert_non_null(last);
    assert_int_equal(count_of(last + 1, "\n"), 2); /* and the histogram of its ULPs */
    forget(&s);
    s = RUN("diff", a, a, "--runs", "0");
    expect_code(&s, 0);
    assert_memory_equal(s.out, "identical\n", 10);
    forget(&s);
}

TEST(junit_has_a_case_for_each_value)
{
    char path[128];
    make_pair();
    struct said s = RUN("diff", a, b, "--runs", "0", "--junit", in_dir("r.xml", path), "--require", "*<gate>*");
    expect_code(&s, 3);
    forget(&s);
    size_t size;
    char *xml = bytes_of(path, &size);
    assert_non_null(strstr(xml, "tests=\"7\" failures=\"2\" skipped=\"0\""));
    assert_int_equal(count_of(xml, "<testcase "), 7);
    assert_int_equal(count_of(xml, "</testcase>"), 7);
    assert_int_equal(count_of(xml, "<failure "), 2);
    assert_non_null(strstr(xml, "name=\"model.layers.2.mlp.output\"><failure type=\"structural\" message=\"index 0, "
                                "column 3 is 1 away"));
    assert_non_null(strstr(xml, "name=\"*&#60;gate&#62;*\"><failure type=\"missing\""));
    free(xml);
    expect_failure(RUN("diff", a, b, "--runs", "0", "--junit", path), 1, "r.xml");
    s = RUN("diff", a, TINY "v3", "--reference", "--runs", "2", "--bits", "--junit", path, "--force");
    expect_code(&s, 3);
    forget(&s);
    xml = bytes_of(path, &size);
    assert_int_equal(count_of(xml, "<failure type=\"rounding\""), count_of(xml, "<failure "));
    assert_true(count_of(xml, "<failure ") > 2);
    free(xml);
    s = RUN("diff", b, TINY "v3", "--local", "--junit", path, "--force"); /* operators are cases too */
    expect_code(&s, 3);
    forget(&s);
    xml = bytes_of(path, &size);
    assert_int_equal(count_of(xml, "<testcase classname=\"verbatim.diff.operator-a\""), count_of(xml, "<testcase "));
    assert_non_null(strstr(xml, "tests=\"6\" failures=\"3\""));
    assert_non_null(strstr(xml, "name=\"model.layers.2.mlp.output (sum-of-experts)\"><failure type=\"structural\""));
    free(xml);
}

TEST(the_page_has_the_object_of_json)
{
    char path[128];
    make_pair();
    struct said s = RUN("diff", a, b, "--runs", "0", "--html", in_dir("r.html", path), "--require", "</script>",
                        "--json");
    expect_code(&s, 3);
    size_t size;
    char *page = bytes_of(path, &size), *from = strstr(page, "id=\"diff\">{"), *to;
    assert_non_null(from);
    from = strchr(from, '{');
    to = strchr(from, '<');
    assert_memory_equal(to, "</script>", 9);
    json_t *in_page = json_loadb(from, (size_t)(to - from), 0, NULL), *printed = json_loads(s.out, 0, NULL);
    assert_non_null(in_page);
    char *x = json_dumps(in_page, JSON_SORT_KEYS | JSON_REAL_PRECISION(6)),
         *y = json_dumps(printed, JSON_SORT_KEYS | JSON_REAL_PRECISION(6));
    assert_string_equal(x, y);
    assert_null(strstr(page, "://"));
    free(x);
    free(y);
    json_decref(in_page);
    json_decref(printed);
    free(page);
    forget(&s);
    expect_failure(RUN("diff", a, b, "--runs", "0", "--html", in_dir("no/r.html", path)), 1,
                   "No such file or directory");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(required_names_must_be_compared),
        IN_DIR(what_both_sides_have_and_nobody_compared_does_not_count),
        IN_DIR(a_text_of_a_batch_is_chosen),
        IN_DIR(the_first_number_that_is_not_finite_is_named),
        IN_DIR(the_verdict_comes_first_and_the_first_difference_last),
        IN_DIR(junit_has_a_case_for_each_value),
        IN_DIR(the_page_has_the_object_of_json),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
