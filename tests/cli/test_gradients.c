/* tests/cli/test_gradients.c -- `verbatim dump --gradients` and `diff` of such files, from outside. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define V3 TINY "v3"

/* Returns what diff reports about the gradient of this name. */
static json_t *gradient(const json_t *j, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(j, "gradients"), i, one)
        if (!strcmp(json_string_value(json_object_get(one, "name")), name))
            return one;
    fail_msg("there is no gradient of %s", name);
    return NULL;
}

static void expect_first(json_t *j, const char *name)
{
    expect_verdict(name, j, "structural");
    assert_string_equal(json_string_value(json_object_get(j, "first_structural")), name);
    json_decref(j);
}

TEST(gradients_of_the_engine_are_those_of_the_reference_but_for_rounding)
{
    static const char *const some[] = {"v3-mtp3", "v2-lite"};
    for (size_t i = 0; i < COUNT(some); i++) {
        char model[64];
        double most = 0;
        size_t k;
        json_t *one;
        snprintf(model, sizeof model, TINY "%s", some[i]);
        DUMP(a, model, "--tokens", TOKENS, "--gradients");
        json_t *j = DIFF(0, a, model);
        expect_verdict(model, j, "rounding");
        json_array_foreach(json_object_get(j, "gradients"), k, one)
            most = fmax(most, json_number_value(json_object_get(one, "of_bound")));
        print_message("%s: %.2g of the bound\n", model, most);
        assert_true(most > 0.01 && json_array_size(json_object_get(j, "gradients")) > 30);
        assert_int_equal(json_array_size(json_object_get(j, "only_in_a")) +
                             json_array_size(json_object_get(j, "only_in_b")),
                         0);
        json_decref(j);
    }
}

TEST(files_are_compared_with_each_other_and_the_reference_is_identical_to_itself)
{
    DUMP(a, V3, "--tokens", TOKENS, "--gradients", "--reference", "--mtp-num-layers", "2", "--mtp-loss-scaling-factor",
         "0.3");
    json_t *j = DIFF(0, a, V3, "--bits", "--runs", "1");
    expect_verdict("reference", j, "identical");
    json_decref(j);
    DUMP(b, V3, "--tokens", TOKENS, "--gradients", "--mtp-num-layers", "2", "--mtp-loss-scaling-factor", "0.3", "--isa",
         "scalar");
    EXPECT(0, "rounding", b, a, "--model", V3);
    EXPECT(3, "rounding", b, a, "--model", V3, "--bits", "--runs", "8");
    EXPECT(0, "identical", b, b, "--model", V3, "--runs", "1");
}

TEST(gradients_of_another_loss_or_with_another_convention_are_structural)
{
    DUMP(a, V3, "--tokens", TOKENS, "--gradients");
    json_t *j = DIFF(3, a, V3, "--mtp-num-layers", "2", "--runs", "2");
    expect_first(j, "model.layers.3.shared_head.head.weight");
    j = DIFF(3, a, V3, "--convention", "concat=hidden-embedding", "--runs", "2");
    expect_verdict("concat", j, "structural");
    json_decref(j);
}

static int half(char name[256], const char **dtype)
{
    *dtype = "BF16";
    return !strstr(name, "experts");
}

TEST(files_of_other_programs_need_no_line_beside_them)
{
    DUMP(a, V3, "--tokens", TOKENS, "--gradients");
    copy_dump(a, b, 0);
    rewrite(b, half);
    json_t *j = DIFF(0, b, V3, "--gradients", "--tokens", TOKENS, "--runs", "2");
    expect_verdict("bf16", j, "rounding");
    assert_true(json_array_size(json_object_get(j, "only_in_b")) > 100); /* of experts */
    json_decref(j);
    struct said said = RUN("diff", b, V3, "--gradients");
    expect_failure(said, 2, "no file beside the gradients says which tokens they belong to: --tokens IDS is missing");
}

TEST(a_wrong_number_is_found_at_its_tensor_and_row)
{
    static const char name[] = "model.layers.1.self_attn.kv_b_proj.weight";
    size_t count;
    DUMP(a, V3, "--tokens", TOKENS, "--gradients");
    struct edited e = edit(a);
    float *g = floats(&e, name, &count), largest = 0;
    size_t width = width_of(&e, name);
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(g[i]));
    g[5 * width + 2] += largest * 1e-4f;
    save(&e);
    json_t *j = DIFF(3, a, V3, "--runs", "4");
    assert_int_equal(json_integer_value(json_object_get(gradient(j, name), "row")), 5);
    expect_first(j, name);

    DUMP(a, V3, "--tokens", TOKENS, "--gradients");
    e = edit(a);
    g = floats(&e, name, &count);
    for (size_t i = 0; i < count; i++)
        g[i] *= 10; /* as if the loss were a sum over the ten tokens */
    g = floats(&e, "model.embed_tokens.weight", &count);
    assert_true(g[count - 1] == 0);
    g[count - 1] = 1e-30f; /* no token has this row */
    save(&e);
    j = DIFF(3, a, V3, "--runs", "2");
    assert_true(fabs(json_number_value(json_object_get(gradient(j, name), "slope")) - 10) < 1e-4);
    assert_string_equal(json_string_value(json_object_get(gradient(j, "model.embed_tokens.weight"), "verdict")),
                        "structural");
    expect_first(j, name);
}

TEST(what_does_not_go_together_is_refused)
{
    struct said said = RUN("dump", V3, "--tokens", TOKENS, "--gradients", "-n", "4", "-o", a);
    expect_failure(said, 2,
                   "--gradients are those of one text; -n, --draft, --stats, --steps and --names do not go with it");
    said = RUN("dump", V3, "--tokens", TOKENS, "--gradients", "-o", "nowhere");
    expect_failure(said, 2,
                   "--gradients writes a file of tensors, and -o is nowhere: wanted a name that ends in .safetensors");
    said = RUN("dump", TINY "v2", "--tokens", TOKENS, "--gradients", "--mtp-num-layers", "1", "-o", a);
    expect_failure(said, 2, "golden/tiny/v2 has no MTP modules, wanted a number of new ones");
    said = RUN("dump", V3, "--tokens", "5", "--gradients", "-o", a);
    expect_failure(said, 2, "no sequence of the 1 has a token to predict, wanted at least 2 tokens in one");
    DUMP(a, V3, "--tokens", TOKENS, "--gradients", "--taps", "model.norm.weight");
    said = RUN("diff", a, a);
    expect_failure(said, 2, "A and B are files of gradients, and the bound wants their model: --model DIR is missing");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(gradients_of_the_engine_are_those_of_the_reference_but_for_rounding),
        IN_DIR(files_are_compared_with_each_other_and_the_reference_is_identical_to_itself),
        IN_DIR(gradients_of_another_loss_or_with_another_convention_are_structural),
        IN_DIR(files_of_other_programs_need_no_line_beside_them),
        IN_DIR(a_wrong_number_is_found_at_its_tensor_and_row),
        IN_DIR(what_does_not_go_together_is_refused),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
