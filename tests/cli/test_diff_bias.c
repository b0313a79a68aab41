/* tests/cli/test_diff_bias.c -- `verbatim diff` on differences that are too regular for rounding, and the mistakes that
 * it names. Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define MODEL TINY "moonlight"
#define LAYER "model.layers.1."

static int without_group_scores(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, ".group_scores");
}

TEST(margins_of_experts_need_group_scores_on_one_side_only)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    rewrite(b, without_group_scores);
    for (int i = 0; i < 2; i++) {
        json_t *j = i ? DIFF(0, a, b) : DIFF(0, b, a);
        const json_t *experts = tap(j, "model.layers.2.mlp.gate.experts");
        assert_true(json_real_value(json_object_get(experts, "smallest_margin_a")) > 0);
        assert_true(json_real_value(json_object_get(experts, "smallest_margin_b")) > 0);
        json_decref(j);
    }
}

static int in_bf16(char name[256], const char **dtype)
{
    *dtype = !strcmp(*dtype, "F32") && !strstr(name, ".mlp.gate.") ? "BF16" : *dtype;
    return 1;
}

/* Multiplies the rows of a tap by 1 + more, in every second row with the other sign if `apart`, and rounds the dump to
 * BF16. The values were not computed from the rounded ones, so the operators alone are wrong, and only the verdict of
 * the values counts here. */
static json_t *scaled(const char *name, double more, int apart)
{
    size_t n;
    copy_dump(a, b, 0);
    struct edited e = edit(b);
    float *x = floats(&e, name, &n);
    for (size_t i = 0; i < n; i++)
        x[i] *= (float)(1 + (apart && i / width_of(&e, name) % 2 ? -more : more));
    save(&e);
    rewrite(b, in_bf16);
    return DIFF(3, b, MODEL, "--tokens", TOKENS, "--runs", "8");
}

TEST(a_factor_that_no_bound_sees_is_a_bias)
{
    static const char *const name = "model.layers.0.input_layernorm.output";
    DUMP(a, MODEL, "--tokens", TOKENS);
    json_t *j = scaled(name, 0, 0);
    assert_string_equal(string(j, "verdict_of_values"), "identical");
    json_decref(j);
    j = scaled(name, 0.01, 0);
    assert_string_equal(string(j, "verdict_of_values"), "biased");
    assert_string_equal(string(json_object_get(j, "first_biased"), "tap"), name);
    assert_non_null(strstr(string(json_object_get(j, "first_biased"), "where"), "row"));
    assert_string_equal(string(tap(j, name), "verdict"), "biased");
    assert_true(fabs(json_real_value(json_object_get(tap(j, name), "slope")) - 1.01) < 0.001);
    assert_true(fabs(json_real_value(json_object_get(tap(j, name), "norm_ratio")) - 1.01) < 0.001);
    assert_string_equal(string(tap(j, LAYER "input_layernorm.output"), "verdict"), "identical");
    json_decref(j);
    j = scaled(name, 0.025, 1); /* the factors of the rows cancel in the slope of the tap */
    assert_string_equal(string(j, "verdict_of_values"), "biased");
    assert_non_null(strstr(string(tap(j, name), "why"), "each row of A has a factor of its own"));
    json_decref(j);
    struct said s = RUN("diff", b, MODEL, "--tokens", TOKENS);
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "first biased: model.layers.0.input_layernorm.output: each row"));
    assert_non_null(strstr(s.out, "  deviates in all 10 rows"));
    forget(&s);
}

/* --- mistakes --- */

static void expect_mistake(json_t *j, const char *name, const char *where, const char *mistake)
{
    const json_t *first = json_object_get(j, "first_structural");
    assert_string_equal(string(first, "tap"), name);
    if (!strstr(string(first, "where"), where))
        fail_msg("%s: where: %s", name, string(first, "where"));
    if (!json_is_string(json_object_get(first, "looks_like")) || !strstr(string(first, "looks_like"), mistake))
        fail_msg("%s: looks like: %s, expected %s", name, json_string_value(json_object_get(first, "looks_like")),
                 mistake);
    json_decref(j);
}

enum { FACTOR, SHIFT, SWAPPED_HEADS, HALVES, ZERO };

/* Makes a mistake in the numbers x [rows, width], which are equal to `old`. */
static void make(int mistake, float *x, const float *old, size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++) {
            size_t half = width / 2, pair = i % 8;
            const float *row = old + r * width;
            float *to = &x[r * width + i];
            if (mistake == FACTOR && r >= 4)
                *to *= 1.5f;
            else if (mistake == SHIFT && r > 0)
                *to = row[i - width];
            else if (mistake == SWAPPED_HEADS)
                *to = row[(i + half) % width];
            else if (mistake == HALVES)
                *to = row[i - pair + (pair < 4 ? 2 * pair : 2 * pair - 7)];
            else if (mistake == ZERO && i >= half)
                *to = 0;
        }
}

TEST(common_mistakes_in_the_numbers_are_named)
{
    static const struct { int mistake; const char *name, *where, *told; } cases[] = {
        {FACTOR, LAYER "self_attn.o_proj.output", "rows 4-9 of 10", "A is B times 1.5"},
        {SHIFT, LAYER "input_layernorm.output", "rows 1-9 of 10", "row i of A is row i-1 of B"},
        {SWAPPED_HEADS, LAYER "self_attn.q_proj.output", "all 2 heads",
         "head 0 of A is head 1 of B, head 1 of A is head 0 of B"},
        {HALVES, LAYER "self_attn.q_rope", "all 2 heads", "A stores the RoPE dimensions as two halves"},
        {ZERO, LAYER "self_attn.o_proj.input", "head 1 of 2", "A is zero there"},
    };
    DUMP(a, MODEL, "--tokens", TOKENS);
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t n;
        copy_dump(a, b, 1);
        struct edited e = edit(b);
        float *x = floats(&e, cases[i].name, &n), *old = malloc(n * sizeof *old);
        memcpy(old, x, n * sizeof *old);
        make(cases[i].mistake, x, old, n / width_of(&e, cases[i].name), width_of(&e, cases[i].name));
        free(old);
        save(&e);
        expect_mistake(DIFF(3, b, a), cases[i].name, cases[i].where, cases[i].told);
    }
}

TEST(wrong_turns_of_rope_are_named)
{
    static const struct { const char *told; int what;
    } cases[] = {
                 {"it is the vector before RoPE", 0}, {"A turns row i by the angle of row i+1", 1},
                 {"A turns halves (columns p and p + 4)", 2}};
    static const char *const name = LAYER "self_attn.k_rope", *const from = LAYER "self_attn.kv_a_proj_with_mqa.output";
    DUMP(a, MODEL, "--tokens", TOKENS);
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t n, m;
        copy_dump(a, b, 1);
        struct edited e = edit(b);
        float *k = floats(&e, name, &n), *kv = floats(&e, from, &m);
        for (size_t row = 0; row < n / 8; row++)
            for (size_t p = 0; p < 4; p++) {
                const float *x = kv + (row + 1) * width_of(&e, from) - 8;
                double angle = (double)(row + (cases[i].what == 1)) * pow(50000, -(double)p / 4), c = cos(angle),
                       s = sin(angle);
                size_t first = cases[i].what == 2 ? p : 2 * p, second = cases[i].what == 2 ? p + 4 : 2 * p + 1;
                double u = (double)x[first], v = (double)x[second];
                k[row * 8 + first] = cases[i].what ? (float)(c * u - s * v) : x[first];
                k[row * 8 + second] = cases[i].what ? (float)(s * u + c * v) : x[second];
            }
        save(&e);
        expect_mistake(DIFF(3, b, a), name, "8 of 8 columns", cases[i].told);
    }
}

/* --- wrong weights --- */

/* Copies the checkpoint to the test's directory, and opens its tensors. */
static struct edited copy_of_model(void)
{
    static char path[128];
    copy_files(MODEL, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return edit(path);
}

static json_t *diff_of_copy(void) { return DIFF(3, dir, MODEL, "--tokens", TOKENS, "--runs", "2"); }

TEST(wrong_matrices_are_named)
{
    static const char *const name = LAYER "self_attn.o_proj.weight", *const tap_name = LAYER "self_attn.o_proj.output";
    static uint16_t old[80 * 56];
    size_t n;
    for (int what = 0; what < 3; what++) {
        struct edited e = copy_of_model();
        uint16_t *w = golden_data(&e.g, name, &n);
        memcpy(old, w, sizeof old);
        for (size_t i = 0; i < 80; i++)
            for (size_t k = 0; k < 56; k++)
                w[i * 56 + k] = what == 0 ? old[k * 80 + i]
                                : what == 1 ? (k < 28 ? old[i * 56 + k] : 0)
                                : old[i * 56 + (k + 28) % 56];
        save(&e);
        expect_mistake(diff_of_copy(), tap_name, "all 10 rows",
                       what == 0 ? "the matrix is transposed: its numbers are read as [56, 80]"
                       : what == 1 ? "shard 1 of 2 is missing: the inputs 28 to 55"
                       : "the two halves of the input are swapped");
    }
}

TEST(the_weights_of_another_expert_are_named)
{
    static const char *const parts[] = {"gate", "up", "down"};
    char from[96], to[96], told[96];
    int expert = 0;
    size_t n;
    DUMP(a, MODEL, "--tokens", TOKENS);
    struct edited dump = edit(a);
    while (snprintf(told, sizeof told, LAYER "mlp.experts.%d.output", expert) && !json_object_get(dump.g.header, told))
        expert++;
    save(&dump);
    struct edited e = copy_of_model();
    for (size_t i = 0; i < COUNT(parts); i++) {
        snprintf(to, sizeof to, LAYER "mlp.experts.%d.%s_proj.weight", expert, parts[i]);
        snprintf(from, sizeof from, LAYER "mlp.experts.9.%s_proj.weight", parts[i]);
        void *w = golden_data(&e.g, to, &n);
        memcpy(w, golden_data(&e.g, from, &n), n * sizeof(uint16_t));
    }
    save(&e);
    snprintf(told, sizeof told, LAYER "mlp.experts.%d.output", expert);
    expect_mistake(diff_of_copy(), told, "row", "A is computed with the weights of expert 9");
}

TEST(conventions_are_found_in_bf16_and_beside_a_mistake)
{
    static const char *const wrong = "model.layers.1.self_attn.o_proj.output", *const model = TINY "v3-mtp3";
    size_t n;
    DUMP(a, model, "--tokens", TOKENS, "--convention", "draft-hidden=pre-norm,concat=hidden-embedding");
    struct edited e = edit(a);
    float *x = floats(&e, wrong, &n);
    for (size_t i = 0; i < n; i++)
        x[i] *= 1.5f;
    save(&e);
    rewrite(a, in_bf16);
    json_t *j = json_of_code(3, (const char *const[]){verbatim, "conventions", model, "--against", a, "--tokens",
                                                      TOKENS, "--threads", "1", "--json", NULL}),
           *row;
    assert_string_equal(string(j, "conventions"), "draft-hidden=pre-norm,concat=hidden-embedding");
    assert_string_equal(string(j, "verdict"), "structural");
    assert_string_equal(string(j, "first"), wrong);
    size_t i;
    json_array_foreach(json_object_get(j, "rows"), i, row)
        if (!strcmp(string(row, "name"), "rope-angle")) /* smaller than rounding */
            assert_true(json_is_false(json_object_get(row, "told")));
    json_decref(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(margins_of_experts_need_group_scores_on_one_side_only), IN_DIR(a_factor_that_no_bound_sees_is_a_bias),
        IN_DIR(common_mistakes_in_the_numbers_are_named),              IN_DIR(wrong_turns_of_rope_are_named),
        IN_DIR(wrong_matrices_are_named),                              IN_DIR(the_weights_of_another_expert_are_named),
        IN_DIR(conventions_are_found_in_bf16_and_beside_a_mistake),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
