/* tests/engine/test_proportion.c -- what an input takes, in memory and time, is in proportion to its size: hash tables
 * that nobody can fill from one place, white space before which an added token repeats, sizes that nothing uses. The
 * alarm is for what would take hours. */
#include "engine/base/names.h"
#include "engine/pass/pass.h"
#include "engine/text/tokenizer.h"
#include "simd/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))

/* ---- names ---- */

#define BITS 12
#define NAMES (1 << BITS)
#define LENGTH (16 * BITS)

/* Name i is one of 2^12 that a hash of multiplications and shifts by 32 takes for the same, whatever number it begins
 * with: the difference in the uppermost bit of a word stays there, and the next word takes it away. */
static void write_name(unsigned char *name, int i)
{
    memset(name, 'a', LENGTH);
    for (int bit = 0; bit < BITS; bit++)
        if (i >> bit & 1) {
            name[16 * bit + 7] ^= 0x80;
            name[16 * bit + 11] ^= 0x80;
            name[16 * bit + 15] ^= 0x80;
        }
}

TEST(names_that_a_weak_hash_takes_for_the_same_are_spread)
{
    struct name_table table, other;
    unsigned char *names = malloc(NAMES * LENGTH), *seen = calloc(1, 1 << 20);
    int places = 0;
    assert_true(names && seen && names_make(&table, NAMES, NULL) && names_make(&other, NAMES, NULL));
    for (int i = 0; i < NAMES; i++) {
        write_name(names + i * LENGTH, i);
        assert_true(names_add(&table, (char *)names + i * LENGTH, LENGTH, i));
        assert_true(names_add(&other, (char *)names + i * LENGTH, LENGTH, i));
        assert_false(names_add(&table, (char *)names + i * LENGTH, LENGTH, 0));
    }
    for (int i = 0; i < NAMES; i++) {
        assert_int_equal(names_find(&table, (char *)names + i * LENGTH, LENGTH), i);
        assert_int_equal(names_find(&other, (char *)names + i * LENGTH, LENGTH), i);
        assert_int_equal(names_find(&table, (char *)names + i * LENGTH, LENGTH - 1), -1);
    }
    for (size_t i = 0; i <= table.mask; i++)
        if (table.entries[i].s) {
            places += !seen[table.entries[i].hash >> 12];
            seen[table.entries[i].hash >> 12] = 1;
        }
    assert_true(places > NAMES - 100); /* of 2^20 places 4096 names meet in about 8 */
    assert_true(table.secret[0] != other.secret[0] && table.secret[1] != other.secret[1] &&
                table.secret[0] != table.secret[1]);
    vb_free(NULL, table.entries);
    vb_free(NULL, other.entries);
    free(names);
    free(seen);
}

TEST(a_table_that_was_not_made_has_no_names)
{
    struct name_table none = {0};
    assert_int_equal(names_find(&none, "a", 1), -1);
}

/* ---- white space ---- */

TEST(white_space_before_which_a_token_repeats_is_looked_through_once)
{
    static const char text[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u0120\":1},\"merges\":[]},"
                               "\"decoder\":{\"type\":\"ByteLevel\"},"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                               "\"added_tokens\":[{\"id\":2,\"content\":\" \",\"rstrip\":true,\"normalized\":false}]}";
    size_t size = 1 << 21, count;
    char *blanks = malloc(size);
    struct vb_tokenizer *t;
    int32_t *ids;
    vb_error err;
    assert_non_null(blanks);
    memset(blanks, ' ', size);
    blanks[0] = blanks[size / 2] = blanks[size - 1] = 'a';
    assert_int_equal(tokenizer_parse(&t, text, sizeof text - 1, NULL, 0, "t.json", NULL, &err), VB_OK);
    alarm(600);
    assert_int_equal(tokenizer_encode(t, blanks, size, 1, &ids, &count, &err), VB_OK);
    alarm(0);
    assert_int_equal(count, size);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids[i], blanks[i] == 'a' ? 0 : 2);
    vb_free(NULL, ids);
    tokenizer_close(t);
    free(blanks);
}

/* ---- sizes ---- */

static size_t bytes_of_a_pass(int dense_layers, int intermediate_size, int routed_experts)
{
    struct vb_model m = {.config = {.vocab_size = 100, .hidden_size = 64, .num_hidden_layers = 3,
                                    .max_position_embeddings = 64, .num_attention_heads = 2, .kv_lora_rank = 32,
                                    .qk_nope_head_dim = 32, .qk_rope_head_dim = 16, .v_head_dim = 32,
                                    .rope_theta = 10000, .rope_factor = 1, .intermediate_size = intermediate_size,
                                    .moe_intermediate_size = 32, .n_routed_experts = routed_experts,
                                    .num_experts_per_tok = 2, .n_group = 1, .topk_group = 1,
                                    .first_k_dense_replace = dense_layers, .moe_layer_freq = 1}};
    struct pass p;
    vb_error err = {0};
    config_set_dims(&m.config);
    if (pass_open(&p, &m, kernel_tables[0], 1, 8, 8, 64, 0, &err))
        fail_msg("%s", err.message);
    size_t bytes = p.w.bytes;
    pass_close(&p);
    return bytes;
}

TEST(a_size_that_no_layer_uses_takes_no_memory)
{
    assert_int_equal(bytes_of_a_pass(0, 1 << 24, 8), bytes_of_a_pass(0, 64, 8));
    assert_true(bytes_of_a_pass(1, 1 << 16, 8) > bytes_of_a_pass(1, 64, 8));
    assert_int_equal(bytes_of_a_pass(3, 64, 65536), bytes_of_a_pass(3, 64, 8));
    assert_true(bytes_of_a_pass(2, 64, 65536) > bytes_of_a_pass(2, 64, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_a_weak_hash_takes_for_the_same_are_spread),
        cmocka_unit_test(a_table_that_was_not_made_has_no_names),
        cmocka_unit_test(white_space_before_which_a_token_repeats_is_looked_through_once),
        cmocka_unit_test(a_size_that_no_layer_uses_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
