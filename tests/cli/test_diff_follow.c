/* tests/cli/test_diff_follow.c -- `diff --follow-choices`: a model takes the experts of a dump, so that all values
 * behind a tie are judged. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's
 * root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define HF "golden/truth/glm.hf-dump-bfloat16.safetensors"
/* With these tokens, some bf16 runs choose other experts than f32 runs. */
#define MANY "8,5,83,95,78,47,11,27,88,85,48,33,39,76,98,14,2,6,43,61,30,91,28,70"

/* Here v3 also chooses other groups. */
#define GROUPS \
    "21,53,88,53,81,36,61,27,60,65,23,64,67,30,0,1,47,74,54,8,18,96,29,29,88,5,55,94,98,52,78,56,4,42,69,63,88,14,83," \
    "47"
/* Here moonlight has a tie-flip. */
#define TIE "7,11,10,46,21,94,85,39,32,77,27,77,4,74,87,20,55,81,50,92,65,47,69,56"

/* These dumps in bf16 come from checkpoints in F32, whose weights precision bf16 rounds too. The check of each operator
 * alone knows nothing of that and may call an operator wrong. So these tests look at the verdict on the values. */
static json_t *values_of(const char *model, const char *more)
{
    struct said s = more ? RUN("diff", a, model, "--arithmetic", "bf16", "--runs", "3", "--json", "--follow-choices",
                               more)
                         : RUN("diff", a, model, "--arithmetic", "bf16", "--runs", "3", "--json");
    if (s.exit_code != 0 && s.exit_code != 3)
        fail_msg("%s: %s", s.command, s.err);
    json_t *j = parsed(&s);
    forget(&s);
    return j;
}

static void expect_values(const char *what, const json_t *j, const char *verdict)
{
    if (strcmp(string(j, "verdict_of_values"), verdict))
        fail_msg("%s: the values are %s, wanted %s", what, string(j, "verdict_of_values"), verdict);
}

static void expect_values_structural_at(json_t *j, const char *name)
{
    expect_values(name, j, "structural");
    assert_string_equal(string(json_object_get(j, "first_structural"), "tap"), name);
    json_decref(j);
}

/* Whether all rows of all taps were compared. */
static void expect_all_judged(const char *what, const json_t *j)
{
    size_t i;
    const json_t *t;
    json_array_foreach(json_object_get(j, "taps"), i, t) {
        if (integer(t, "rows_after_a_tie_flip"))
            fail_msg("%s: %s has rows that are not judged", what, string(t, "name"));
    }
}

/* A clean run in bf16 ends in rounding, whatever its ties. */
TEST(clean_runs_in_bf16_are_rounding)
{
    char model[64];
    size_t flips = 0;
    for (size_t i = 0; i < TINY_COUNT; i++)
        for (int reference = 0; reference < 2; reference++) {
            snprintf(model, sizeof model, TINY "%s", names[i]);
            DUMP(a, model, "--tokens", MANY, "--precision", "bf16");
            json_t *j = values_of(model, reference ? "--reference" : "--isa=scalar"), *t;
            size_t k;
            expect_values(model, j, "rounding");
            expect_all_judged(model, j);
            json_array_foreach(json_object_get(j, "taps"), k, t) {
                flips += strstr(string(t, "name"), ".experts") ? (size_t)integer(t, "flips") : 0;
            }
            json_decref(j);
        }
    if (flips < 4)
        fail_msg("%zu choices differ: these runs show nothing", flips);
}

TEST(a_dump_of_transformers_is_followed_on_either_side)
{
    json_t *j = DIFF(0, HF, TINY "glm", "--follow-choices");
    expect_verdict("transformers, bfloat16", j, "rounding");
    expect_all_judged("transformers", j);
    assert_string_equal(string(tap(j, "model.layers.2.mlp.gate.experts"), "verdict"), "tie-flip");
    assert_int_equal(integer(tap(j, "model.layers.2.mlp.gate.experts"), "flips"), 1);
    json_decref(j);
    EXPECT(0, "rounding", TINY "glm", HF, "--follow-choices");
    char junit[96];
    size_t size;
    snprintf(junit, sizeof junit, "%s/junit.xml", dir);
    EXPECT(0, "rounding", HF, TINY "glm", "--follow-choices", "--junit", junit);
    char *xml = bytes_of(junit, &size);
    assert_non_null(strstr(xml, "failures=\"0\""));
    free(xml);
    EXPECT(0, "rounding", HF, TINY "glm", "--follow-choices", "--ties", "report");
    j = DIFF(0, HF, TINY "glm", "--follow-choices", "--ties", "ok");
    assert_string_equal(string(tap(j, "model.layers.2.mlp.gate.experts"), "verdict"), "rounding");
    json_decref(j);
    EXPECT(3, "tie-flip", HF, TINY "glm", "--follow-choices", "--ties", "fail");
    EXPECT(0, "rounding", HF, TINY "glm", "--ties", "report");
    EXPECT(3, "structural", HF, TINY "glm", "--follow-choices", "--arithmetic", "f32");
    expect_failure(RUN("diff", HF, TINY "glm", "--ties", "maybe"), 2, "--ties is maybe, wanted ok, report or fail");
    expect_failure(RUN("diff", HF, HF, "--follow-choices"), 2, "--follow-choices wants a MODEL");
}

static void add(const char *name, size_t row, float what)
{
    size_t count;
    struct edited e = edit(a);
    float *x = floats(&e, name, &count);
    x[row * width_of(&e, name)] += what;
    save(&e);
}

/* Behind a tie, nothing is judged without following; with it, a mistake in the same row is found where it was made. */
TEST(a_mistake_behind_a_tie_is_found)
{
    size_t k, row = 0;
    const json_t *t;
    char name[128] = "";
    DUMP(a, TINY "moonlight", "--tokens", TIE, "--precision", "bf16");
    json_t *j = values_of(TINY "moonlight", NULL);
    expect_values("a tie", j, "tie-flip");
    json_array_foreach(json_object_get(j, "taps"), k, t) {
        if (*name || !strstr(string(t, "name"), ".experts") || !integer(t, "flips"))
            continue;
        assert_int_equal(sscanf(string(t, "why"), "index %zu", &row), 1);
        snprintf(name, sizeof name, "model.layers.%lld.mlp.output", integer(t, "layer"));
    }
    json_decref(j);
    assert_true(*name);
    add(name, row, 100);
    j = values_of(TINY "moonlight", NULL);
    expect_values("a mistake behind a tie", j, "tie-flip");
    json_decref(j);
    expect_values_structural_at(values_of(TINY "moonlight", "--isa=scalar"), name);
    expect_values_structural_at(values_of(TINY "moonlight", "--reference"), name);
}

/* The dump says that it chose other experts, and has the values of those that the model chooses. */
TEST(a_choice_beyond_the_margin_is_structural)
{
    static const char experts[] = "model.layers.2.mlp.gate.experts";
    size_t count;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    struct edited e = edit(a);
    int32_t *s = (int32_t *)golden_data(&e.g, experts, &count) + 4 * width_of(&e, experts);
    int32_t other = 0;
    while (s[0] == other || s[1] == other || s[2] == other)
        other++;
    s[1] = other;
    save(&e);
    json_t *j = DIFF(3, a, TINY "v3", "--follow-choices");
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "margin"));
    expect_structural_at(j, experts);
    e = edit(a);
    s = (int32_t *)golden_data(&e.g, experts, &count) + 4 * width_of(&e, experts);
    s[1] = s[0]; /* no valid choice: it is not followed */
    save(&e);
    j = DIFF(3, a, TINY "v3", "--follow-choices");
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "A chose"));
    expect_structural_at(j, experts);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--taps", "lm_head.output");
    struct said said = RUN("diff", a, TINY "v3", "--follow-choices");
    expect_code(&said, 1);
    assert_non_null(strstr(said.err, "it has no choices of experts or of tokens to follow"));
    forget(&said);
}

/* The choice of groups differs by less than the bound; the experts of the two groups differ by more. */
TEST(another_group_within_the_bound_is_a_tie)
{
    DUMP(a, TINY "v3", "--tokens", GROUPS, "--precision", "bf16");
    json_t *j = values_of(TINY "v3", "--isa=scalar");
    expect_values("groups", j, "rounding");
    expect_all_judged("groups", j);
    assert_int_equal(integer(tap(j, "model.layers.1.mlp.gate.groups"), "flips"), 1);
    assert_string_equal(string(tap(j, "model.layers.1.mlp.gate.groups"), "verdict"), "tie-flip");
    /* they follow from the groups */
    assert_string_equal(string(tap(j, "model.layers.1.mlp.gate.experts"), "verdict"), "identical");
    json_decref(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(clean_runs_in_bf16_are_rounding),
        IN_DIR(a_dump_of_transformers_is_followed_on_either_side),
        IN_DIR(a_mistake_behind_a_tie_is_found),
        IN_DIR(a_choice_beyond_the_margin_is_structural),
        IN_DIR(another_group_within_the_bound_is_a_tie),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
