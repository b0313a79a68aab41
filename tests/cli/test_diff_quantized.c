/* tests/cli/test_diff_quantized.c -- `verbatim diff` and `dump` where weights are quantized, in the file or by the
 * precision: the engine is within the bound of the reference, and a side that rounds otherwise is not. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include "tests/support/engine_support.h"

#include <math.h>

#include "tests/support/gguf.h"
#include "tests/support/quantized.h"

#include "tests/support/dumps.h"

/* What model rounds is what its reference rounds; A is a dump of it, and the same on another instruction set. */
static void check_against_reference(const char *model, const char *precision)
{
    char what[160];
    snprintf(what, sizeof what, "%s, %s", model, precision);
    json_t *j = DIFF(0, model, model, "--reference", "--precision", precision, "--tokens", TOKENS);
    expect_rounding(j, what);
    json_decref(j);
    DUMP(a, model, "--precision", precision, "--tokens", TOKENS, "--taps", "*,*scores*");
    EXPECT(0, "identical", a, model, "--precision", precision, "--isa", "scalar", "--threads", "2", "--bits", "--runs",
           "1");
    EXPECT(0, "identical", a, model, "--precision", precision, "--repack", "off", "--bits", "--runs", "1");
    EXPECT(0, "rounding", a, model, "--precision", precision, "--reference");
}

TEST(in_q8_and_q4_the_engine_is_within_the_bound_of_the_reference)
{
    static const char *const models[] = {"v3", "glm", "v2-lite"}, *const precisions[] = {"q8", "q4"};
    char model[64];
    for (size_t i = 0; i < COUNT(models); i++)
        for (size_t k = 0; k < COUNT(precisions); k++) {
            if (!has_turn(2 * i + k, 3))
                continue;
            snprintf(model, sizeof model, TINY "%s", models[i]);
            check_against_reference(model, precisions[k]);
            EXPECT(3, "structural", a, model, "--reference"); /* which is f32's */
            EXPECT(3, "structural", a, model, "--precision", precisions[!k], "--reference");
            DUMP(b, model, "--tokens", TOKENS);
            EXPECT(3, "structural", b, model, "--precision", precisions[k], "--reference");
            EXPECT(3, "structural", b, model, "--precision", precisions[k], "--reference", "--runs", "0");
        }
}

TEST(of_quantized_files_the_engine_is_within_the_bound_of_the_reference)
{
    static const struct quantized_model models[] = {
        {.name = "Q8_0", .types = {"Q8_0"}, .k_b = "Q8_0", .v_b = "Q8_0"},
        {.name = "mixed", .types = {"Q4_0", "Q5_1", "Q5_0"}, .embedding = "Q5_1", .gate = "Q8_0"},
        {.name = "K", .types = {"Q4_K", "Q6_K", "Q5_K"}, .k_b = "Q6_K", .v_b = "Q4_K", .embedding = "Q6_K", .tied = 1,
         .large = 1},
    };
    char model[96], file[32];
    for (size_t i = 0; i < COUNT(models); i++) {
        snprintf(file, sizeof file, "%s.gguf", models[i].name);
        snprintf(model, sizeof model, "%s/%s", dir, file);
        write_quantized(dir, file, models[i]);
        if (has_turn(i, 2))
            check_against_reference(model, "f32");
        if (has_turn(i + 1, 2))
            check_against_reference(model, "bf16");
    }
}

TEST(with_each_cache_type_the_engine_is_within_the_bound_of_the_reference)
{
    static const char *const types[] = {"bf16", "q8"}, *const precisions[] = {"f32", "q8"};
    const char *model = TINY "v3-mtp3";
    for (size_t k = 0; k < COUNT(types); k++) {
        for (size_t i = 0; i < COUNT(precisions); i++) {
            DUMP(a, model, "--cache-type", types[k], "--precision", precisions[i], "--tokens", TOKENS, "--taps",
                 "*,*scores*");
            EXPECT(0, "rounding", a, model, "--cache-type", types[k], "--precision", precisions[i], "--reference");
        }
        DUMP(b, model, "--cache-type", types[k], "--tokens", TOKENS);
        EXPECT(3, "structural", b, model, "--cache-type", types[!k], "--reference");
        EXPECT(3, "structural", b, model, "--reference"); /* whose cache is f32 */
    }
}

/* One number wrong in a file is found where it is. */
TEST(another_scale_is_structural)
{
    struct quantized_model q = {.name = "Q6_K", .types = {"Q6_K"}, .k_b = "Q6_K", .v_b = "Q6_K", .large = 1};
    char model[96], other[96];
    char *bytes;
    size_t size;
    vb_error err;
    snprintf(model, sizeof model, "%s/a.gguf", dir);
    snprintf(other, sizeof other, "%s/b.gguf", dir);
    write_quantized(dir, "a.gguf", q);
    if (vb_read_file(NULL, model, &bytes, &size, &err))
        fail_msg("%s", err.message);
    vb_model *m = open_model(model);
    const struct tensor *t = checkpoint_find(m->checkpoint, "model.layers.0.self_attn.o_proj.weight");
    const char *found = memmem(bytes, size, t->data, t->bytes);
    assert_non_null(found);
    bytes[found - bytes + 192] = (char)(bytes[found - bytes + 192] ^ 64); /* of sixteen weights */
    write_file(dir, "b.gguf", bytes, size);
    vb_model_close(m);
    vb_free(NULL, bytes);
    DUMP(a, model, "--tokens", TOKENS);
    json_t *j = DIFF(3, a, other);
    expect_verdict("another scale", j, "structural");
    assert_string_equal(string(json_object_get(j, "first_structural"), "tap"),
                        "model.layers.0.self_attn.o_proj.output");
    json_decref(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(in_q8_and_q4_the_engine_is_within_the_bound_of_the_reference),
        IN_DIR(of_quantized_files_the_engine_is_within_the_bound_of_the_reference),
        IN_DIR(with_each_cache_type_the_engine_is_within_the_bound_of_the_reference),
        IN_DIR(another_scale_is_structural),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
