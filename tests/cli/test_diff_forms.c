/* tests/cli/test_diff_forms.c -- `verbatim diff` on values as engines store them: a batch with left padding, decode
 * steps with speculative rows, a paged cache. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/dumps.h"

#define PAD 3
#define NORM "model.layers.1.input_layernorm.output"
#define LATENT "model.layers.1.self_attn.kv_a_layernorm.output"
#define K_ROPE "model.layers.1.self_attn.k_rope"

/* Writes dump b with one F32 tensor and its manifest, which is `line` after the names. */
static void write_b(const char *name, const char *shape, const float *x, size_t count, const char *line)
{
    char header[256], text[2048], *bytes;
    size_t total;
    snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,%zu]}}", shape,
             count * 4);
    bytes = safetensors_bytes(header, x, count * 4, &total);
    write_to(b, bytes, total);
    snprintf(text, sizeof text, "{\"tensor\":\"x\",\"name\":\"%s\",%s}\n", name, line);
    write_text(dir, "b.jsonl", text);
    free(bytes);
}

#define EVERY "\"sequence\":[0,0,0,0,0],\"index\":[0,1,2,3,4],\"token\":[5,6,7,70,9]"

TEST(a_batch_with_left_padding_has_the_rows_of_its_texts)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", "5,6,7,70,9");
    struct edited e = edit(a);
    const float *from = floats(&e, NORM, &n);
    size_t width = n / 5;
    char shape[64];
    float *x = calloc(2 * 8 * width, 4); /* [2, 8, width]: the first text has 8 tokens, which are not compared; the
                                            second 5 */
    assert_non_null(x);
    memcpy(x + (8 + PAD) * width, from, n * 4);
    snprintf(shape, sizeof shape, "[2,8,%zu]", width);
    write_b(NORM, shape, x, 16 * width, "\"row_dims\":2,\"rows\":[11,12,13,14,15]," EVERY);
    EXPECT(0, "identical", b, TINY "v3", "--runs", "0");
    write_b(NORM, shape, x, 16 * width, "\"row_dims\":2,\"rows\":[10,11,12,13,14]," EVERY); /* shifted by one */
    EXPECT(3, "structural", b, TINY "v3", "--runs", "0");
    write_b(NORM, shape, x, 16 * width,
            "\"row_dims\":2,\"rows\":[0,7,11,12,13,14,15],\"sequence\":[0,0,1,1,1,1,1],\"index\":[0,7,0,1,2,3,4],"
            "\"token\":[5,6,5,6,7,70,9]");
    EXPECT(0, "identical", b, TINY "v3", "--runs", "0", "--sequence", "1");
    golden_close(&e.g);
    free(x);
}

TEST(speculative_rows_count_if_they_were_accepted)
{
    size_t n;
    DUMP(a, TINY "v3", "--tokens", "5,6,7,70,9");
    struct edited e = edit(a);
    const float *from = floats(&e, NORM, &n);
    size_t width = n / 5;
    char shape[64];
    float *x = calloc(8 * width, 4); /* 3 rows of the prompt, 2 accepted drafts, a rejected one, 2 rows of padding */
    assert_non_null(x);
    memcpy(x, from, n * 4);
    snprintf(shape, sizeof shape, "[8,%zu]", width);
    write_b(NORM, shape, x, 8 * width,
            "\"sequence\":[0,0,0,0,0,0,0,0],\"index\":[0,1,2,3,4,4,4,5],\"token\":[5,6,7,70,9,8,0,0],\"draft\":[0,0,0,"
            "1,2,2,-1,-1],\"accepted\":[null,null,null,true,true,false,null,null],\"step\":1");
    EXPECT(0, "identical", b, TINY "v3", "--runs", "0");
    golden_close(&e.g);
    free(x);
}

TEST(a_paged_cache_is_read_through_its_slot_table)
{
    static const size_t slot[] = {9, 8, 2, 3, 11}; /* blocks 2, 0 and 3 of 4 slots each */
    size_t n, m;
    DUMP(a, TINY "v3", "--tokens", "5,6,7,70,9");
    struct edited e = edit(a);
    const float *latent = floats(&e, LATENT, &n), *rope = floats(&e, K_ROPE, &m);
    size_t c = n / 5, r = m / 5, width = c + r;
    char shape[64];
    float *x = calloc(16 * width, 4);
    assert_non_null(x);
    for (size_t i = 0; i < 16 * width; i++)
        x[i] = 1e30f; /* what other requests have left in the cache */
    for (size_t i = 0; i < 5; i++) {
        memcpy(x + slot[i] * width, latent + i * c, c * 4);
        memcpy(x + slot[i] * width + c, rope + i * r, r * 4);
    }
    snprintf(shape, sizeof shape, "[4,4,1,%zu]", width);
    write_b(LATENT "+" K_ROPE, shape, x, 16 * width, "\"row_dims\":2,\"rows\":[9,8,2,3,11]," EVERY);
    json_t *j = DIFF(0, b, TINY "v3", "--runs", "0");
    expect_verdict("a paged cache", j, "identical");
    assert_int_equal(integer(tap(j, K_ROPE), "rows"), 5);
    json_decref(j);
    write_b(LATENT "+" K_ROPE, shape, x, 16 * width, "\"row_dims\":2,\"rows\":[9,8,3,2,11]," EVERY);
    expect_structural_at(DIFF(3, b, TINY "v3", "--runs", "0"), K_ROPE);
    golden_close(&e.g);
    free(x);
}

TEST(rows_that_the_tensor_lacks_are_refused)
{
    static const struct { const char *line, *fault; } wrong[] = {
        {"\"rows\":[0,1,2,3,8]," EVERY, "line 1: rows has a number that is no row of the tensor"},
        {"\"rows\":[0,1,2,3,-1]," EVERY, "line 1: rows has a number that is no row of the tensor"},
        {"\"rows\":[0,1,2,3,\"4\"]," EVERY, "line 1: rows has a number that is no row of the tensor"},
        {"\"rows\":[0,1,2,3]," EVERY, "line 1: sequence, token or index has another number of rows"},
        {"\"rows\":7," EVERY, "line 1: sequence, token or index has another number of rows"},
        {"\"row_dims\":0,\"rows\":[0,1,2,3,4]," EVERY, "line 1: row_dims is not from 1"},
        {"\"row_dims\":3,\"rows\":[0,1,2,3,4]," EVERY, "line 1: row_dims is not from 1"},
        {"\"row_dims\":\"1\",\"rows\":[0,1,2,3,4]," EVERY, "line 1: row_dims is not from 1"},
    };
    float x[16] = {0};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        write_b(NORM, "[8,2]", x, 16, wrong[i].line);
        expect_failure(RUN("diff", b, b), 1, wrong[i].fault);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_batch_with_left_padding_has_the_rows_of_its_texts),
        IN_DIR(speculative_rows_count_if_they_were_accepted),
        IN_DIR(a_paged_cache_is_read_through_its_slot_table),
        IN_DIR(rows_that_the_tensor_lacks_are_refused),
    };
    find_verbatim(argc, argv);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]); /* one test of them */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
