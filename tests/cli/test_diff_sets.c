/* tests/cli/test_diff_sets.c -- `diff` and the tokens that an indexer keeps: a different choice is judged by the
 * scores, and --follow-choices lets the model take it. Runs the program itself (argv[1], or ../verbatim relative to
 * this program) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "tests/support/dumps.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define KEPT "model.layers.0.self_attn.indexer.kept"
#define SCORES "model.layers.0.self_attn.indexer.scores"
#define MANY "8,5,83,95,78,47,11,27,88,85,48,33,39,76,98,14,2,6,43,61,30,91,28,70,3,44,7,90,12,60"

/* Perturbed runs of the reference take most of the time. A single run gives a bound that is wide enough for these
 * dumps. */
#define FEW "--runs", "1"

static const char *const models[] = {TINY "v32", TINY "glm5"};

static void dump(const char *to, const char *model)
{
    DUMP(to, model, "--tokens", MANY, "--taps", "*,*.indexer.scores");
}

/* In row `row` of the dump, replaces the kept token with the lowest score by the token that is `up` places later in the
 * order of scores. Returns the difference of the two scores. The values of this row and of later layers then do not fit
 * the dump's sets, so the tests look only at the choice. */
static float exchange(const char *path, size_t row, int up)
{
    struct edited e = edit(path);
    size_t count, K = width_of(&e, KEPT), T = width_of(&e, SCORES);
    int32_t *kept = (int32_t *)golden_data(&e.g, KEPT, &count) + row * K, in = -1, out = -1;
    const float *scores = floats(&e, SCORES, &count) + row * T;
    for (size_t i = 0; i < K; i++)
        if (out < 0 || scores[kept[i]] < scores[kept[out]])
            out = (int32_t)i;
    for (float below = INFINITY; up > 0; up--, below = scores[in]) {
        in = -1;
        for (int32_t t = 0; t <= (int32_t)row; t++) {
            int is_kept = 0;
            for (size_t i = 0; i < K; i++)
                is_kept |= kept[i] == t;
            if (!is_kept && scores[t] < below && (in < 0 || scores[t] > scores[in]))
                in = t;
        }
        assert_true(in >= 0);
    }
    float gap = scores[kept[out]] - scores[in];
    kept[out] = in;
    save(&e);
    return gap;
}

TEST(a_clean_dump_is_rounding_against_the_reference)
{
    for (int i = 0; i < 2; i++) {
        dump(a, models[i]);
        json_t *j = DIFF(0, a, models[i], "--reference", "--runs", i ? "8" : "2");
        expect_verdict(models[i], j, "rounding");
        assert_string_equal(string(tap(j, KEPT), "verdict"), "identical");
        json_decref(j);
        EXPECT(0, "rounding", a, models[i], FEW, "--reference", "--follow-choices");
    }
}

TEST(another_token_beyond_the_margin_is_structural)
{
    dump(a, models[0]);
    float gap = exchange(a, 25, 6);
    char told[64];
    snprintf(told, sizeof told, "index 25: another choice, by a margin of %.3g", (double)gap);
    json_t *j = DIFF(3, a, models[0], FEW);
    assert_non_null(strstr(string(tap(j, KEPT), "why"), told));
    expect_structural_at(j, KEPT);
    expect_structural_at(DIFF(3, a, models[0], FEW, "--follow-choices"), KEPT);
}

static void change_set(size_t row, size_t place, int32_t to)
{
    struct edited e = edit(a);
    size_t count;
    ((int32_t *)golden_data(&e.g, KEPT, &count))[row * width_of(&e, KEPT) + place] = to;
    save(&e);
}

TEST(a_set_that_no_indexer_can_choose_is_structural)
{
    static const struct {
        int32_t to;
        const char *why;
    } wrong[] = {{29, "index 25: another choice, by a margin of inf"}, {-1, "A keeps 7 tokens, B 8"},
                 {0, "index 25: A chose "}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int32_t to = wrong[i].to;
        size_t count;
        dump(a, models[1]);
        struct edited e = edit(a);
        assert_int_equal(width_of(&e, KEPT), 8);
        if (!to)
            to = ((const int32_t *)golden_data(&e.g, KEPT, &count))[25 * 8 + 4];
        save(&e);
        change_set(25, 3, to);
        for (int follow = 0; follow < (i ? 1 : 2); follow++) {
            json_t *j = follow ? DIFF(3, a, models[1], FEW, "--follow-choices") : DIFF(3, a, models[1], FEW);
            if (!strstr(string(tap(j, KEPT), "why"), wrong[i].why))
                fail_msg("%s", string(tap(j, KEPT), "why"));
            expect_structural_at(j, KEPT);
        }
    }
}

/* If scores are equal, this dump keeps the latest tokens. */
TEST(another_token_with_the_same_score_is_a_tie)
{
    size_t k, flips = 0, after = 0, different = 0;
    const json_t *t;
    DUMP(a, models[0], "--tokens", MANY, "--convention", "indexer-ties=highest");
    json_t *j = DIFF(3, a, models[0], FEW);
    expect_verdict("ties", j, "tie-flip");
    json_array_foreach(json_object_get(j, "taps"), k, t) {
        flips += strstr(string(t, "name"), ".indexer.kept") ? (size_t)integer(t, "flips") : 0;
        after += (size_t)integer(t, "rows_after_a_tie_flip");
        if (strstr(string(t, "why"), "another choice"))
            assert_non_null(strstr(string(t, "why"), "by a margin of 0;"));
    }
    assert_true(flips > 0 && after > 0);
    json_decref(j);
    EXPECT(0, "identical", a, models[0], FEW, "--convention", "indexer-ties=highest", "--follow-choices");
    for (int reference = 0; reference < 2; reference++) {
        j = reference ? DIFF(0, a, models[0], FEW, "--follow-choices", "--reference")
                      : DIFF(0, a, models[0], FEW, "--follow-choices");
        expect_verdict("ties, followed", j, "rounding");
        json_array_foreach(json_object_get(j, "taps"), k, t) {
            assert_int_equal(integer(t, "rows_after_a_tie_flip"), 0);
            if (strstr(string(t, "name"), ".indexer.kept"))
                different += !strcmp(string(t, "verdict"), "tie-flip");
            else if (!reference && strcmp(string(t, "verdict"), "identical"))
                fail_msg("%s is %s with the sets of the dump", string(t, "name"), string(t, "verdict"));
        }
        json_decref(j);
    }
    assert_true(different >= 2);
    EXPECT(3, "tie-flip", a, models[0], FEW, "--follow-choices", "--ties", "fail");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_clean_dump_is_rounding_against_the_reference),
        IN_DIR(another_token_beyond_the_margin_is_structural),
        IN_DIR(a_set_that_no_indexer_can_choose_is_structural),
        IN_DIR(another_token_with_the_same_score_is_a_tie),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
