/* tests/cli/test_diff_foreign.c -- `verbatim diff` on dumps and checkpoints as other programs write them: without MTP
 * weights, without choices, with names of modules, with choices that no router makes. Runs the program itself (argv[1],
 * or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

static const char *note(const json_t *j, const char *with) /* the note that contains `with`, or NULL */
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(j, "notes"), i, one)
        if (strstr(json_string_value(one), with))
            return json_string_value(one);
    return NULL;
}

TEST(a_choice_that_names_an_expert_or_a_group_twice_is_no_tie)
{
    static const char *const taps[] = {"model.layers.1.mlp.gate.experts", "model.layers.1.mlp.gate.groups"};
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    for (size_t i = 0; i < COUNT(taps); i++) {
        copy_dump(a, b, 1);
        struct edited e = edit(b);
        int32_t *chosen = (int32_t *)golden_data(&e.g, taps[i], &n) + 3 * width_of(&e, taps[i]);
        chosen[0] = chosen[1];
        save(&e);
        json_t *j = DIFF(3, a, b);
        assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "index 3: B chose"));
        expect_structural_at(j, taps[i]);
        expect_structural_at(DIFF(3, b, TINY "v3", "--runs", "2"), taps[i]);
    }
}

TEST(a_checkpoint_saved_without_its_mtp_layer_has_no_mtp_layer)
{
    copy_files(TINY "moonlight", dir); /* transformers keeps the number in config.json and does not save the layer */
    replace_in(dir, "config.json", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    EXPECT(0, "rounding", dir, dir, "--reference", "--tokens", TOKENS, "--runs", "2");
    DUMP(b, dir, "--tokens", TOKENS, "--reference");
    EXPECT(0, "identical", b, TINY "moonlight", "--reference", "--runs", "0");
}

static int logits_and_experts(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, ".mlp.gate.") || strstr(name, ".mlp.gate.output");
}

static int experts_alone(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, ".mlp.gate.");
}

TEST(rows_of_experts_belong_to_the_tokens_that_the_routers_logits_choose)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    rewrite(b, logits_and_experts);
    forget_manifest(b);
    json_t *j = DIFF(0, b, TINY "v3", "--tokens", TOKENS, "--runs", "0"), *t;
    size_t i, experts = 0;
    expect_verdict("choices from logits", j, "rounding"); /* of the scores, which diff computes in double */
    json_array_foreach(json_object_get(j, "taps"), i, t)
        if (strstr(string(t, "name"), ".mlp.experts.")) {
            assert_string_equal(string(t, "verdict"), "identical");
            experts += (size_t)integer(t, "rows");
        }
    assert_int_equal(experts, 3 * 10 * 3 - 3); /* layers 1 and 2, and the module's layer 3, which has a row less */
    json_decref(j);
    rewrite(b, experts_alone);
    j = DIFF(0, b, TINY "v3", "--tokens", TOKENS, "--runs", "0");
    expect_verdict("no choices", j, "identical");
    assert_non_null(note(j, "no choices say which tokens they are"));
    json_decref(j);
}

static int without_output(char name[256], const char **dtype)
{
    char *end = strstr(name, ".output");
    (void)dtype;
    if (end)
        *end = '\0';
    return 1;
}

TEST(the_name_of_a_module_is_the_name_of_its_output)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 0);
    rewrite(b, without_output);
    json_t *j = DIFF(0, b, a);
    expect_verdict("modules", j, "identical");
    assert_int_equal(json_array_size(json_object_get(j, "only_in_a")) +
                         json_array_size(json_object_get(j, "only_in_b")),
                     0);
    json_decref(j);
    DUMP(a, TINY "v3", "--tokens", TOKENS, "--names", "vllm");
    copy_dump(a, b, 0);
    rewrite(b, without_output);
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    j = DIFF(0, b, a, "--names", "vllm");
    assert_true(json_array_size(json_object_get(j, "taps")) > 90);
    json_decref(j);
}

static int without_layer_1(char name[256], const char **dtype)
{
    (void)dtype;
    return strncmp(name, "model.layers.1.", 15) != 0;
}

TEST(a_layer_of_which_one_side_has_nothing_is_named)
{
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 0);
    rewrite(b, without_layer_1);
    json_t *j = DIFF(0, b, a);
    assert_non_null(note(j, "none of layer 1: did the engine compute it?"));
    json_decref(j);
    j = DIFF(0, a, b);
    assert_non_null(note(j, "none of layer 1: did the engine compute it?"));
    json_decref(j);
}

/* A dump without manifest, of the logits and of the tokens that they were computed from. */
static void write_logits(const char *path, const float *logits, size_t V, const int32_t *tokens, size_t count)
{
    char header[256], *bytes;
    size_t total, size = count * 4 + count * V * 4;
    char *data = malloc(size);
    assert_non_null(data);
    memcpy(data, tokens, count * 4);
    memcpy(data + count * 4, logits, count * V * 4);
    snprintf(header, sizeof header, "{\"tokens\":{\"dtype\":\"I32\",\"shape\":[%zu],\"data_offsets\":[0,%zu]},"
             "\"logits\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}}",
             count, count * 4, count, V, count * 4, size);
    bytes = safetensors_bytes(header, data, size, &total);
    write_to(path, bytes, total);
    free(bytes);
    free(data);
}

TEST(dumps_of_other_tokens_are_not_compared_silently)
{
    static const int32_t tokens[] = {5, 6, 7, 70, 9}, other[] = {5, 6, 8, 70, 9};
    size_t n;
    DUMP(a, TINY "v3", "--tokens", "5,6,7,70,9", "--taps", "lm_head.output");
    struct edited e = edit(a);
    float *x = floats(&e, "lm_head.output", &n);
    write_logits(b, x, n / 5, other, 5);
    forget_manifest(a);
    write_logits(a, x, n / 5, tokens, 5);
    golden_close(&e.g);
    json_t *j = DIFF(3, a, b);
    assert_non_null(strstr(string(json_object_get(j, "first_structural"), "why"), "from index 2 on"));
    expect_structural_at(j, "lm_head.output");
    expect_structural_at(DIFF(3, b, TINY "v3", "--tokens", "5,6,7,70,9"), "lm_head.output");
    write_logits(b, floats(&(struct edited){golden_read(a), a}, "logits", &n), n / 5, tokens, 5);
    EXPECT(0, "identical", a, b);
}

TEST(logits_that_are_not_numbers_have_no_divergence)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    copy_dump(a, b, 1);
    struct edited e = edit(b);
    float *x = floats(&e, "lm_head.output", &n);
    x[2 * (n / 10) + 5] = NAN;
    save(&e);
    json_t *j = DIFF(3, a, b), *t = tap(j, "lm_head.output");
    assert_int_equal(integer(t, "rows_without_probabilities"), 1);
    assert_true(real(t, "top1_agreement") == 1.0);
    assert_true(real(t, "kl_max") == 0.0);
    json_decref(j);
    e = edit(b);
    x = floats(&e, "lm_head.output", &n);
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
    save(&e);
    j = DIFF(3, a, b);
    t = tap(j, "lm_head.output");
    assert_true(json_is_null(json_object_get(t, "kl_mean")) && json_is_null(json_object_get(t, "top1_agreement")));
    assert_true(json_is_null(json_object_get(t, "smallest_margin_a")));
    json_decref(j);
    struct said s = RUN("diff", a, b);
    expect_code(&s, 3);
    assert_non_null(strstr(s.out, "lm_head.output: 10 of 10 rows have no probabilities"));
    assert_null(strstr(s.out, "lm_head.output: KL"));
    forget(&s);
}

static int layer_0_to_f16(char name[256], const char **dtype)
{
    *dtype = strstr(name, ".layers.0.mlp.output") ? "F16" : *dtype;
    return 1;
}

TEST(the_first_number_beyond_the_range_of_a_dtype_is_named)
{
    static const char place[] = "is 70000 in model.layers.0.mlp.output, index 3, column 2; 1 taps have such numbers";
    size_t n;
    DUMP(a, TINY "v3", "--tokens", TOKENS);
    struct edited e = edit(a);
    floats(&e, "model.layers.0.mlp.output", &n)[3 * (n / 10) + 2] = 70000;
    save(&e);
    copy_dump(a, b, 1);
    rewrite(b, layer_0_to_f16);
    json_t *j = DIFF(3, a, b);
    assert_non_null(strstr(note(j, "a.safetensors: the first number that is an overflow of F16 (at least 65504)"),
                           place));
    assert_non_null(note(j, "b.safetensors: the first number that is not finite is infinity in "
                            "model.layers.0.mlp.output"));
    assert_null(note(j, "b.safetensors: the first number that is an overflow"));
    json_decref(j);
    j = DIFF(0, a, a, "--arithmetic", "f16");
    assert_non_null(note(j, place));
    json_decref(j);
    j = DIFF(0, a, a);
    assert_null(note(j, "overflow"));
    json_decref(j);
}

static int without_rope(char name[256], const char **dtype)
{
    (void)dtype;
    return !strstr(name, "_rope");
}

TEST(linear_layers_without_a_manifest_have_the_order_of_the_checkpoint)
{
    copy_files(TINY "v3", dir);
    replace_in(dir, "config.json", "\"q_lora_rank\"", "\"rope_interleave\": false, \"q_lora_rank\"");
    DUMP(a, dir, "--tokens", TOKENS);
    forget_manifest(a);
    EXPECT(0, "identical", a, dir, "--tokens", TOKENS, "--runs", "0");
    rewrite(a, without_rope);
    EXPECT(0, "identical", a, dir, "--tokens", TOKENS, "--runs", "0");
    json_t *j = DIFF(0, a, dir, "--tokens", TOKENS, "--runs", "0", "--layout-a", "halves");
    assert_non_null(note(j, "--layout-a has no effect"));
    json_decref(j);
}

/* Of these tokens, the output of an expert nearly cancels: its rounding errors are larger than those of other rows,
 * relative to it. */
TEST(the_estimated_bound_is_wide_enough_where_a_sum_nearly_cancels)
{
    static const char tokens[] =
        "5,100,19,41,39,71,93,46,81,40,96,70,6,62,47,49,90,98,107,78,19,7,3,35,73,61,90,16,116,90,72,27,4,57,102,106,"
        "57,79,76,91,93,83,86,64,112,119,110,52,63,53,90,112,95,28,118,40,62,109,100,11,41,110,3,91";
    json_t *j = DIFF(0, TINY "moonlight", TINY "moonlight", "--reference", "--tokens", tokens, "--runs", "0");
    expect_rounding(j, "a sum that nearly cancels");
    json_decref(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_choice_that_names_an_expert_or_a_group_twice_is_no_tie),
        IN_DIR(a_checkpoint_saved_without_its_mtp_layer_has_no_mtp_layer),
        IN_DIR(rows_of_experts_belong_to_the_tokens_that_the_routers_logits_choose),
        IN_DIR(the_name_of_a_module_is_the_name_of_its_output),
        IN_DIR(a_layer_of_which_one_side_has_nothing_is_named),
        IN_DIR(dumps_of_other_tokens_are_not_compared_silently),
        IN_DIR(logits_that_are_not_numbers_have_no_divergence),
        IN_DIR(the_first_number_beyond_the_range_of_a_dtype_is_named),
        IN_DIR(linear_layers_without_a_manifest_have_the_order_of_the_checkpoint),
        IN_DIR(the_estimated_bound_is_wide_enough_where_a_sum_nearly_cancels),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
