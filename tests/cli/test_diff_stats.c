/* tests/cli/test_diff_stats.c -- `verbatim dump --stats`, and `diff` with statistics on one side or on both. The
 * statistics themselves are computed again in tools/python/tests/test_oracle.py. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

static char stats[96]; /* the path of a file of statistics */

#define STATS(...)                                         \
    do {                                                   \
        snprintf(stats, sizeof stats, "%s/s.jsonl", dir);  \
        DUMP(stats, __VA_ARGS__, "--stats");               \
    } while (0)

TEST(statistics_of_the_same_bits_are_identical)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        char model[64];
        snprintf(model, sizeof model, TINY "%s", names[i]);
        STATS(model, "--tokens", TOKENS);
        json_t *j = DIFF(0, stats, model, "--runs", "0"), *last = tap(j, "lm_head.output");
        expect_verdict(names[i], j, "identical");
        assert_int_equal(integer(last, "rows"), 10);
        assert_true(real(last, "top1_agreement") == 1.0 && json_is_true(json_object_get(last, "statistics")));
        assert_int_equal(json_array_size(json_object_get(j, "only_in_b")), 0);
        assert_true(json_is_null(json_object_get(j, "local_a")));
        json_decref(j);
    }
    STATS(TINY "v3", "--tokens", TOKENS);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    EXPECT(0, "identical", a, stats);
    EXPECT(0, "identical", stats, stats, "--bits");
    STATS(TINY "v3", "--tokens", "5,6,7", "-n", "8", "--draft", "mtp-eagle"); /* rejected drafts are left out */
    EXPECT(0, "identical", stats, TINY "v3", "--runs", "0");
    EXPECT(0, "identical", stats, TINY "v3", "--runs", "0", "--steps", "1-2", "--layers", "1");
}

TEST(rounding_is_within_the_bound_of_statistics)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        char model[64];
        snprintf(model, sizeof model, TINY "%s", names[i]);
        STATS(model, "--tokens", TOKENS, "--reference");
        json_t *j = DIFF(0, stats, model);
        expect_rounding(j, names[i]);
        json_decref(j);
        j = DIFF(0, model, stats, "--runs", "0");
        expect_rounding(j, names[i]);
        json_decref(j);
    }
}

static int to_bf16(char name[256], const char **dtype)
{
    *dtype = !strstr(name, ".mlp.gate.") ? "BF16" : *dtype;
    return 1;
}

TEST(a_dump_in_bf16_is_rounding_away_from_statistics_in_f32)
{
    STATS(TINY "v3", "--tokens", TOKENS);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    rewrite(a, to_bf16);
    json_t *j = DIFF(0, a, stats, "--model", TINY "v3", "--arithmetic", "f32", "--runs", "2");
    expect_verdict("bf16", j, "rounding");
    json_decref(j);
}

TEST(a_mistake_is_found_in_statistics)
{
    size_t n;
    STATS(TINY "v3", "--tokens", TOKENS);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    struct edited e = edit(a);
    float *x = floats(&e, "model.layers.1.self_attn.o_proj.output", &n);
    x[4 * (n / 10) + 3] *= -1; /* one number of row 4; the root mean square is the same */
    save(&e);
    for (int side = 0; side < 2; side++) {
        json_t *j = DIFF(3, side ? stats : a, side ? a : stats, "--model", TINY "v3"),
               *first = json_object_get(j, "first_structural");
        assert_string_equal(string(first, "tap"), "model.layers.1.self_attn.o_proj.output");
        assert_int_equal(integer(json_object_get(first, "at"), "index"), 4);
        assert_true(json_is_null(json_object_get(json_object_get(first, "at"), "column")));
        json_decref(j);
    }
    e = edit(a);
    x = floats(&e, "model.layers.0.self_attn.o_proj.output", &n);
    x[2 * (n / 10)] = NAN;
    save(&e);
    json_t *j = DIFF(3, a, stats);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"),
                           "index 2: A has 1 NaN and 0 infinities, B has 0 and 0"));
    json_decref(j);
    struct said s = RUN("diff", stats, a);
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "not finite is NaN in model.layers.0.self_attn.o_proj.output, index 2, column 0"));
    assert_non_null(strstr(s.out, "has statistics of rows: it is not known which numbers of a row differ"));
    forget(&s);
}

TEST(choices_and_best_tokens_are_in_the_statistics)
{
    size_t n;
    STATS(TINY "v3", "--tokens", TOKENS);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    struct edited e = edit(a);
    int32_t *chosen = (int32_t *)golden_data(&e.g, "model.layers.1.mlp.gate.experts", &n);
    size_t k = n / 10;
    chosen[3 * k] = chosen[3 * k + 1];
    save(&e);
    json_t *j = DIFF(3, stats, a);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "index 3: B chose"));
    json_decref(j);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "lm_head.output");
    e = edit(a);
    float *x = floats(&e, "lm_head.output", &n);
    x[7 * (n / 10) + 5] += 100;
    save(&e);
    j = DIFF(3, a, stats);
    assert_int_equal(integer(tap(j, "lm_head.output"), "flips"), 1);
    assert_true(json_is_null(json_object_get(tap(j, "lm_head.output"), "kl_mean")));
    json_decref(j);
    EXPECT(0, "identical", stats, TINY "v3", "--follow-choices", "--runs", "0");
}

TEST(what_statistics_cannot_do_is_refused)
{
    STATS(TINY "v3", "--tokens", "5,6,7");
    expect_failure(RUN("dump", TINY "v3", "--tokens", "5", "--stats", "-o", a), 2, "wanted a name that ends in .jsonl");
    expect_failure(RUN("diff", stats, TINY "v3", "--local"), 2, "--local wants the numbers of a dump");
    expect_failure(RUN("conventions", TINY "v3", "--against", stats), 1, "it has statistics; only diff can use them");
    expect_failure(RUN("replay", TINY "v3", "norm", "--input", stats, "-o", a), 1,
                   "it has statistics; only diff can use them");
    char list[200];
    snprintf(list, sizeof list, "%s,%s", stats, stats);
    expect_failure(RUN("diff", list, TINY "v3"), 1, "it has statistics, which cannot be joined");
}

#define HEAD "{\"format\":\"verbatim-stats\",\"version\":1}\n"
#define LINE "{\"tensor\":\"x\",\"name\":\"lm_head.output\",\"sequence\":[0],\"token\":[5],\"index\":[0],"
#define ROW "\"row_sha256\":[\"0123456789abcdef\"],\"min\":[-1],\"max\":[1],\"mean\":[0],\"rms\":[0.5],"

TEST(statistics_that_are_wrong_are_refused_with_the_line)
{
    static const struct { const char *text, *fault; } wrong[] = {
        {"{\"format\":\"verbatim-stats\",\"version\":2}\n", "line 1: version is not 1"},
        {HEAD "[]\n", "line 2: it is not a JSON object"},
        {HEAD "{\"tensor\":\"x\"}\n", "line 2: not a line of a dump's manifest"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]]}\n", "line 2: dtype is missing"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\"}\n", "line 2: shape is missing"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\",\"shape\":[1,0]}\n",
         "line 2: shape has a number"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\",\"shape\":[1,16777216,16777216]}\n",
         "line 2: the rows are too wide"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\",\"shape\":[2,64]}\n",
         "line 2: sequence, token or index has another number"},
        {HEAD LINE ROW "\"projections\":[[1,2,3]],\"dtype\":\"F32\",\"shape\":[1,64]}\n", "line 2: min, max, mean"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,\"4\"]],\"dtype\":\"F32\",\"shape\":[1,64]}\n",
         "line 2: min, max, mean"},
        {HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"nan\":[65],\"dtype\":\"F32\",\"shape\":[1,64]}\n",
         "line 2: min, max, mean"},
        {HEAD LINE "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\",\"shape\":[1,64]}\n", "line 2: min, max, mean"},
        {HEAD LINE "\"row_sha256\":[\"x\"],\"min\":[-1],\"max\":[1],\"mean\":[0],\"rms\":[0.5],\"projections\":[[1,2,3,"
                   "4]],\"dtype\":\"F32\",\"shape\":[1,64]}\n",
         "line 2: row_sha256"},
        {HEAD LINE "\"values\":[[1,2]],\"dtype\":\"F32\",\"shape\":[1,3]}\n",
         "line 2: values has a row of another length"},
        {HEAD LINE "\"values\":[[1,\"two\"]],\"dtype\":\"F32\",\"shape\":[1,2]}\n",
         "line 2: values has something that is no number"},
        {HEAD LINE "\"values\":[[1.5]],\"dtype\":\"I32\",\"shape\":[1,1]}\n",
         "line 2: values has something that is no number"},
        {HEAD LINE "\"values\":[[4294967296]],\"dtype\":\"I32\",\"shape\":[1,1]}\n",
         "line 2: values has an integer beyond 32 bits"},
        {HEAD LINE ROW, "line 2: it is not a JSON object: is the file cut short?"},
    };
    snprintf(stats, sizeof stats, "%s/s.jsonl", dir);
    DUMP(a, TINY "v3", "--tokens", "5", "--taps", "lm_head.output");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        write_text(dir, "s.jsonl", wrong[i].text);
        expect_failure(RUN("diff", stats, a), 1, wrong[i].fault);
    }
    write_text(dir, "s.jsonl", HEAD LINE ROW "\"projections\":[[1,2,3,4]],\"dtype\":\"F32\",\"shape\":[1,64]}\n");
    expect_structural_at(DIFF(3, stats, a), "lm_head.output"); /* another shape */
    write_text(dir, "s.jsonl", HEAD);
    expect_failure(RUN("diff", stats, a), 1, "it lists no tensor");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(statistics_of_the_same_bits_are_identical),
        IN_DIR(rounding_is_within_the_bound_of_statistics),
        IN_DIR(a_dump_in_bf16_is_rounding_away_from_statistics_in_f32),
        IN_DIR(a_mistake_is_found_in_statistics),
        IN_DIR(choices_and_best_tokens_are_in_the_statistics),
        IN_DIR(what_statistics_cannot_do_is_refused),
        IN_DIR(statistics_that_are_wrong_are_refused_with_the_line),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
