/* tests/engine/test_fingerprint.c -- fingerprints of models and tokenizers: each bit counts, and nothing that changes
 * no result does. Also the text of a checkpoint's chat template. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/base/hash64.h"
#include "engine/text/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"

/* ---- the hash ---------------------------------------------------------------------------------------------------- */

TEST(a_bit_a_byte_more_and_the_seed_change_the_hash_and_the_address_does_not)
{
    unsigned char data[210], moved[217];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    for (size_t size = 0; size <= 200; size++) {
        uint64_t whole = hash64(1, data, size);
        memcpy(moved + size % 8, data, size);
        assert_true(hash64(1, moved + size % 8, size) == whole);
        assert_true(hash64(2, data, size) != whole);
        assert_true(hash64(1, data, size + 1) != whole);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (hash64(1, data, size) == whole)
                fail_msg("bit %zu of %zu bytes does not change the hash", bit, size);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    memset(data, 0, sizeof data); /* zeros behind the end are not the same as zeros */
    assert_true(hash64(0, data, 60) != hash64(0, data, 64) && hash64(0, data, 64) != hash64(0, data, 128));
    assert_true(hash64(7, "Verbatim", 8) == 0x9b586a67460704b2u); /* the same on every machine */
}

/* Flips of the top bits of two words, which a hash without rotations would lose. */
TEST(two_flipped_bits_change_the_hash)
{
    uint64_t words[32] = {0}, whole = hash64(0, words, sizeof words);
    for (size_t a = 0; a < 2048; a += 3)
        for (size_t b = a + 1; b < 2048; b += 5) {
            words[a / 64] ^= 1ull << a % 64;
            words[b / 64] ^= 1ull << b % 64;
            if (hash64(0, words, sizeof words) == whole)
                fail_msg("bits %zu and %zu do not change the hash", a, b);
            words[a / 64] ^= 1ull << a % 64;
            words[b / 64] ^= 1ull << b % 64;
        }
}

static void all_different(const char *what, const uint64_t *seen, size_t count)
{
    for (size_t a = 0; a < count; a++)
        for (size_t b = a + 1; b < count; b++)
            if (seen[a] == seen[b])
                fail_msg("%s %zu and %zu have the same fingerprint", what, a, b);
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */

static uint64_t fingerprint_of(const vb_model *m, int sampled, int32_t threads)
{
    uint64_t out = 0;
    OK(vb_model_fingerprint(m, sampled, threads, &out, &err));
    return out;
}

static uint64_t fingerprint_under(const char *dir, const vb_model_options *o, int sampled)
{
    vb_model *m;
    OK(vb_model_open(&m, dir, o, &err));
    uint64_t out = fingerprint_of(m, sampled, 1);
    vb_model_close(m);
    return out;
}

static int note_place(void *context, const struct safetensors_entry *e, vb_error *err)
{
    size_t **next = context;
    (void)err;
    *(*next)++ = e->begin;
    *(*next)++ = e->end - e->begin;
    return VB_OK;
}

/* Every tensor of a copy of golden/tiny/v3, which has FP8, BF16 and F32 tensors, scales and an MTP module. */
TEST(a_flipped_bit_in_any_tensor_changes_the_fingerprint_of_a_model)
{
    static size_t places[2048];
    char dir[64], *config, *weights;
    size_t config_size, size, *next = places, vectors = 0;
    make_dir(dir);
    OK(vb_read_file(NULL, "golden/tiny/v3/config.json", &config, &config_size, &err));
    OK(vb_read_file(NULL, "golden/tiny/v3/model.safetensors", &weights, &size, &err));
    OK(safetensors_parse(weights, size, size, "f", note_place, &next, NULL, &err));
    write_file(dir, "config.json", config, config_size);
    write_file(dir, "model.safetensors", weights, size);
    uint64_t whole = fingerprint_under("golden/tiny/v3", NULL, 0),
             sample = fingerprint_under("golden/tiny/v3", NULL, 1);
    assert_true(fingerprint_under(dir, NULL, 0) == whole); /* the name of the directory does not matter */
    for (size_t *p = places; p < next; p += 2) {
        char *at = weights + p[0] + p[1] * (size_t)(p - places) / 4096;
        *at ^= 4;
        write_file(dir, "model.safetensors", weights, size);
        if (fingerprint_under(dir, NULL, 0) == whole)
            fail_msg("tensor %zu does not change the fingerprint", (size_t)(p - places) / 2);
        vectors += fingerprint_under(dir, NULL, 1) != sample;
        *at ^= 4;
    }
    assert_true(next - places > 100 && vectors > 10);
    remove_dir(dir);
    vb_free(NULL, config);
    vb_free(NULL, weights);
}

static void replace_once(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

TEST(config_precision_and_conventions_change_the_fingerprint_of_a_model)
{
    static const struct vb_model_options ways[] = {{.precision = "bf16"}, {.precision = "q8"}, {.precision = "q4"},
                                                   {.conventions = "yarn=max-len"},
                                                   {.conventions = "concat=hidden-embedding"}};
    static const char *const keys[][2] = {{"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 2e-06"},
                                          {"\"eos_token_id\": 1", "\"eos_token_id\": 2"}};
    char dir[64], *config, *weights;
    size_t config_size, size;
    uint64_t seen[16];
    size_t count = 0;
    seen[count++] = fingerprint_under("golden/tiny/v3", NULL, 0);
    seen[count++] = fingerprint_under("golden/tiny/v3", NULL, 1);
    for (size_t i = 0; i < COUNT(ways); i++)
        seen[count++] = fingerprint_under("golden/tiny/v3", &ways[i], 0);
    OK(vb_read_file(NULL, "golden/tiny/v3/model.safetensors", &weights, &size, &err));
    for (size_t i = 0; i < COUNT(keys); i++) {
        make_dir(dir);
        OK(vb_read_file(NULL, "golden/tiny/v3/config.json", &config, &config_size, &err));
        replace_once(config, keys[i][0], keys[i][1]);
        write_file(dir, "config.json", config, config_size);
        write_file(dir, "model.safetensors", weights, size);
        seen[count++] = fingerprint_under(dir, NULL, 0);
        vb_free(NULL, config);
        remove_dir(dir);
    }
    vb_free(NULL, weights);
    all_different("models", seen, count);
}

TEST(threads_and_panels_do_not_change_the_fingerprint_of_a_model)
{
    static const vb_model_options panels = {.precision = "q8"}, plain = {.precision = "q8", .repack = "off"};
    uint64_t out;
    assert_true(fingerprint_under("golden/tiny/v3", &panels, 0) == fingerprint_under("golden/tiny/v3", &plain, 0));
    vb_model *m = open_tiny("v3");
    REFUSED(vb_model_fingerprint(m, 0, -1, &out, &err), VB_BAD_ARGUMENT, "threads is -1");
    vb_model_close(m);
    if (!have_tale())
        return;
    m = open_model("golden/tale"); /* its embedding has more than one piece */
    uint64_t one = fingerprint_of(m, 0, 1);
    for (int32_t threads = 0; threads < 8; threads++)
        assert_true(fingerprint_of(m, 0, threads) == one);
    vb_model_close(m);
}

/* ---- a tokenizer ------------------------------------------------------------------------------------------------- */

static uint64_t fingerprint_of_text(const char *json, size_t size, const char *config)
{
    struct vb_tokenizer *t;
    OK(tokenizer_parse(&t, json, size, config, strlen(config), "tokenizer.json", NULL, &err));
    uint64_t out = vb_tokenizer_fingerprint(t);
    tokenizer_close(t);
    return out;
}

TEST(every_part_of_a_tokenizer_changes_its_fingerprint)
{
    static const char *const changes[][2] = {
        {"\"lstrip\":false", "\"lstrip\": true"},
        {"\"special\":true", "\"special\":false"},
        {"\\\\p{N}{1,3}", "\\\\p{N}{1,2}"},
        {"\"invert\":false", "\"invert\": true"},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\""},
        {"\"ignore_merges\":false", "\"ignore_merges\":true"},
        {"[\"h\",\"e\"],[\"\xc4\xa0\",\"a\"]", "[\"\xc4\xa0\",\"a\"],[\"h\",\"e\"]"}, /* two ranks */
    };
    static const char no_bos[] = "{\"add_bos_token\":false}",
                      bos[] = "{\"add_bos_token\":true,\"bos_token\":\"<|begin_of_sentence|>\"}";
    uint64_t seen[COUNT(changes) + 2];
    size_t count = 0;
    if (!have_tale())
        return;
    json_error_t trouble;
    json_t *root = json_load_file("golden/tale/tokenizer.json", 0, &trouble);
    char *text = json_dumps(root, JSON_COMPACT), *changed = malloc(strlen(text) + 64);
    seen[count++] = fingerprint_of_text(text, strlen(text), no_bos);
    assert_true(fingerprint_of_text(text, strlen(text), no_bos) == seen[0]); /* its hash tables have another order */
    seen[count++] = fingerprint_of_text(text, strlen(text), bos);
    for (size_t i = 0; i < COUNT(changes); i++) {
        const char *at = strstr(text, changes[i][0]);
        if (!at)
            fail_msg("no %s in golden/tale/tokenizer.json", changes[i][0]);
        int n = sprintf(changed, "%.*s%s%s", (int)(at - text), text, changes[i][1], at + strlen(changes[i][0]));
        seen[count++] = fingerprint_of_text(changed, (size_t)n, no_bos);
    }
    all_different("tokenizers", seen, count);
    free(text);
    free(changed);
    json_decref(root);
}

/* ---- the text of a chat template --------------------------------------------------------------------------------- */

static void check_source(const char *dir, const char *wanted)
{
    vb_template *t;
    size_t size;
    OK(vb_template_open(&t, dir, NULL, &err));
    assert_string_equal(vb_template_source(t, &size), wanted);
    assert_int_equal(size, strlen(wanted));
    assert_string_equal(vb_template_source(t, NULL), wanted);
    vb_template_close(t);
}

TEST(the_text_of_a_template_is_that_of_the_checkpoint)
{
    char dir[64], path[96];
    make_dir(dir);
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":\"one\\r\\n{{ 1 }}\\n\"}");
    check_source(dir, "one\r\n{{ 1 }}\n");
    write_text(dir, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\",\"template\":"
               "\"two\"}]}");
    check_source(dir, "two");
    write_text(dir, "chat_template.jinja", "");
    check_source(dir, "");
    struct gguf_writer w = {0};
    key_string(&w, "tokenizer.chat_template", "four{# #}");
    gguf_write(&w, dir, "x.gguf");
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    check_source(path, "four{# #}");
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bit_a_byte_more_and_the_seed_change_the_hash_and_the_address_does_not),
        cmocka_unit_test(two_flipped_bits_change_the_hash),
        cmocka_unit_test(a_flipped_bit_in_any_tensor_changes_the_fingerprint_of_a_model),
        cmocka_unit_test(config_precision_and_conventions_change_the_fingerprint_of_a_model),
        cmocka_unit_test(threads_and_panels_do_not_change_the_fingerprint_of_a_model),
        cmocka_unit_test(every_part_of_a_tokenizer_changes_its_fingerprint),
        cmocka_unit_test(the_text_of_a_template_is_that_of_the_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
