/* tests/engine/test_tokenizer.c -- text to ids and back. Truth: golden/tokenizer (what Hugging Face's library makes of
 * a small tokenizer and some thirty changes of it, and of three with DeepSeek's cuts and added tokens in
 * golden/published) and, where they are, DeepSeek's own tokenizers with their vectors in ../shared/assets. Runs in the
 * repository's root. */
#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"
#include "numbers/numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ASSETS "../shared/assets"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static json_t *read_json(const char *path)
{
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why);
    if (!root)
        fail_msg("%s: %s", path, why.text);
    return root;
}

static struct vb_tokenizer *open_dir(const char *dir)
{
    vb_error err;
    struct vb_tokenizer *t;
    if (tokenizer_open(&t, dir, NULL, &err))
        fail_msg("%s", err.message);
    return t;
}

/* The tokenizer that this JSON describes. */
static int parse_json(struct vb_tokenizer **t, const json_t *root, const vb_allocator *a, vb_error *err)
{
    char *text = json_dumps(root, 0);
    int rc = tokenizer_parse(t, text, strlen(text), NULL, 0, "tokenizer.json", a, err);
    free(text);
    return rc;
}

static void print_ids(const char *name, const int32_t *ids, size_t n)
{
    print_error("%s:", name);
    for (size_t i = 0; i < n; i++)
        print_error(" %d", ids[i]);
    print_error("\n");
}

static void check_ids(const struct vb_tokenizer *t, const char *text, size_t size, int special, const int32_t *want,
                      size_t n_want, const char *what)
{
    int32_t *ids;
    size_t n;
    vb_error err;
    if (tokenizer_encode(t, text, size, special, &ids, &n, &err))
        fail_msg("%s: %s", what, err.message);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids)) {
        print_error("%s, special tokens %s: \"%.*s\"\n", what, special ? "recognised" : "as text",
                    (int)(size < 200 ? size : 200), text);
        print_ids("wanted", want, n_want < 100 ? n_want : 100);
        print_ids("   got", ids, n < 100 ? n : 100);
        fail();
    }
    vb_free(NULL, ids);
}

static void check_json_ids(const struct vb_tokenizer *t, const char *text, int special, const json_t *ids,
                           const char *what)
{
    size_t n = json_array_size(ids);
    int32_t *want = calloc(n + 1, sizeof *want);
    for (size_t i = 0; i < n; i++)
        want[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    check_ids(t, text, strlen(text), special, want, n, what);
    free(want);
}

/* Members of `change` replace those of the file, "model.x" those of its model. */
static json_t *changed(const json_t *base, json_t *change)
{
    json_t *root = json_deep_copy(base), *value;
    const char *key;
    json_object_foreach(change, key, value)
    {
        if (!strncmp(key, "model.", 6))
            json_object_set(json_object_get(root, "model"), key + 6, value);
        else
            json_object_set(root, key, value);
    }
    return root;
}

/* ---- against outside truth --------------------------------------------------------------------------------------- */

TEST(ids_are_those_of_hugging_face_for_every_pre_tokenizer)
{
    json_t *base = read_json("golden/tokenizer/tokenizer.json"), *vectors = read_json("golden/tokenizer/vectors.json");
    const json_t *variants = json_object_get(vectors, "variants");
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v), *cases = json_object_get(variant, "cases");
        const char *name = json_string_value(json_object_get(variant, "name"));
        json_t *root = changed(base, json_object_get(variant, "change"));
        struct vb_tokenizer *t;
        vb_error err;
        if (parse_json(&t, root, NULL, &err))
            fail_msg("%s: %s", name, err.message);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *c = json_array_get(cases, i), *plain = json_array_get(c, 2);
            const char *text = json_string_value(json_array_get(c, 0));
            check_json_ids(t, text, 1, json_array_get(c, 1), name);
            check_json_ids(t, text, 0, json_is_null(plain) ? json_array_get(c, 1) : plain, name);
        }
        tokenizer_close(t);
        json_decref(root);
    }
    assert_true(json_array_size(variants) > 20);
    json_decref(base);
    json_decref(vectors);
}

TEST(streamed_bytes_come_out_as_python_decodes_them_whatever_the_chunks)
{
    json_t *vectors = read_json("golden/tokenizer/vectors.json");
    const json_t *streams = json_object_get(vectors, "streams");
    assert_true(json_array_size(streams) > 50);
    for (size_t i = 0; i < json_array_size(streams); i++) {
        const json_t *chunks = json_array_get(json_array_get(streams, i), 0);
        const char *want = json_string_value(json_array_get(json_array_get(streams, i), 1));
        struct utf8_stream s = {{0}, 0};
        char out[512] = "";
        size_t n = 0;
        for (size_t k = 0; k < json_array_size(chunks); k++) {
            const char *hex = json_string_value(json_array_get(chunks, k));
            char bytes[16];
            size_t size = strlen(hex) / 2;
            for (size_t b = 0; b < size; b++)
                bytes[b] = (char)strtol((char[]){hex[2 * b], hex[2 * b + 1], 0}, NULL, 16);
            size_t wrote = utf8_stream_push(&s, bytes, size, out + n);
            assert_true(wrote <= 3 * (size + 4));
            assert_int_equal(utf8_valid(out + n, wrote), wrote); /* whole characters only */
            n += wrote;
        }
        n += utf8_stream_finish(&s, out + n);
        if (n != strlen(want) || memcmp(out, want, n))
            fail_msg("stream %zu is \"%.*s\", wanted \"%s\"", i, (int)n, out, want);
    }
    json_decref(vectors);
}

static void check_pieces_make_the_text(const struct vb_tokenizer *t, const char *text, size_t size)
{
    int32_t *ids;
    size_t n, at = 0, piece_size = 0;
    vb_error err;
    if (tokenizer_encode(t, text, size, 0, &ids, &n, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < n; i++, at += piece_size) {
        const char *piece = tokenizer_piece(t, ids[i], &piece_size);
        if (!piece || at + piece_size > size || memcmp(text + at, piece, piece_size))
            fail_msg("token %zu of %zu (id %d) is not what stands at byte %zu of the text", i, n, ids[i], at);
    }
    assert_int_equal(at, size);
    vb_free(NULL, ids);
}

/* golden/published: DeepSeek's cuts, added tokens and decoder with a small vocabulary whose merges cross every cut. */
static void check_stand_in(const char *model, int add_bos)
{
    char path[256];
    size_t size, special = 0;
    snprintf(path, sizeof path, "golden/published/%s", model);
    struct vb_tokenizer *t = open_dir(path);
    const char *bos = tokenizer_piece(t, tokenizer_bos(t), &size);
    assert_int_equal(tokenizer_add_bos(t), add_bos);
    assert_memory_equal(bos, "<\xef\xbd\x9c" "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>", size);
    assert_int_equal(tokenizer_eos(t), tokenizer_bos(t) + 1);
    snprintf(path, sizeof path, "golden/published/%s/vectors.json", model);
    json_t *cases = read_json(path), *one;
    size_t i;
    json_array_foreach(cases, i, one) {
        const json_t *ids = json_array_get(one, 1), *plain = json_array_get(one, 2);
        const char *text = json_string_value(json_array_get(one, 0));
        special += !json_is_null(plain);
        check_json_ids(t, text, 1, ids, model);
        check_json_ids(t, text, 0, json_is_null(plain) ? ids : plain, model);
        check_pieces_make_the_text(t, text, strlen(text));
    }
    assert_true(i > 80 && (special > 0) == tokenizer_is_special(t, tokenizer_bos(t)));
    json_decref(cases);
    tokenizer_close(t);
}

/* DeepSeek's own files, NULL where they are not. */
static struct vb_tokenizer *open_asset(const char *model)
{
    char dir[256];
    snprintf(dir, sizeof dir, ASSETS "/tokenizers/%s", model);
    return vb_file_exists(dir) ? open_dir(dir) : NULL;
}

static char *read_vectors(const char *name, size_t *size)
{
    char path[256], *data;
    vb_error err;
    snprintf(path, sizeof path, ASSETS "/tokenizer-vectors/%s", name);
    if (vb_read_file(NULL, path, &data, size, &err))
        fail_msg("%s", err.message);
    return data;
}

/* Ids up to the end of the line, at most `most`; *line moves to the next one. */
static size_t read_ids(char **line, int32_t *ids, size_t most)
{
    size_t n = 0;
    for (; **line && **line != '\n' && n < most; *line += strspn(*line, " "))
        ids[n++] = (int32_t)strtol(*line, line, 10);
    *line += **line == '\n';
    return n;
}

static int32_t ids_read[70000];

/* Texts between marker lines, and a line of ids for each. */
static void check_lines(const struct vb_tokenizer *t, const char *inp, const char *out)
{
    static const char marker[] = "\n__ggml_vocab_test__\n";
    size_t size, out_size, n = 0;
    char *texts = read_vectors(inp, &size), *lines = read_vectors(out, &out_size), *line = lines;
    for (char *text = texts, *next; text; text = next, n++) {
        char *end = strstr(text, marker);
        next = end ? end + strlen(marker) : NULL;
        size_t n_ids = read_ids(&line, ids_read, COUNT(ids_read));
        check_ids(t, text, end ? (size_t)(end - text) : strlen(text), 1, ids_read, n_ids, out);
    }
    assert_int_equal(n, 47);
    assert_int_equal(*line, 0);
    vb_free(NULL, texts);
    vb_free(NULL, lines);
}

static void check_long_text(const struct vb_tokenizer *t, const char *ids)
{
    size_t size, ids_size;
    char *text = read_vectors("derived-text-a.txt", &size), *lines = read_vectors(ids, &ids_size), *line = lines;
    assert_int_equal(size, 65536);
    size_t n = read_ids(&line, ids_read, COUNT(ids_read));
    assert_true(n > 15000);
    check_ids(t, text, size, 1, ids_read, n, ids);
    vb_free(NULL, text);
    vb_free(NULL, lines);
}

TEST(deepseek_v2_gives_the_published_ids)
{
    check_stand_in("DeepSeek-V2", 1);
    struct vb_tokenizer *t = open_asset("DeepSeek-V2");
    if (!t)
        return;
    check_lines(t, "ggml-vocab-deepseek-llm.gguf.inp", "ggml-vocab-deepseek-llm.gguf.out");
    check_long_text(t, "derived-v2-text-a.ids");
    tokenizer_close(t);
}

static void check_v3_vectors(const char *model)
{
    struct vb_tokenizer *t = open_asset(model);
    if (!t)
        return;
    check_lines(t, "derived-deepseek-v3-r1.inp", "derived-deepseek-v3-r1.out");
    check_long_text(t, "derived-v3-r1-text-a.ids");
    tokenizer_close(t);
}

TEST(deepseek_v3_gives_the_ids_of_an_independent_encoder)
{
    check_stand_in("DeepSeek-V3", 0);
    check_v3_vectors("DeepSeek-V3");
}

TEST(deepseek_r1_gives_the_ids_of_an_independent_encoder)
{
    check_stand_in("DeepSeek-R1", 1);
    check_v3_vectors("DeepSeek-R1");
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = lcg_next(*state);
    return (uint32_t)((*state >> 33) % n);
}

static size_t put_character(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

static size_t random_text(uint64_t *state, char *out, size_t characters)
{
    static const uint32_t below[] = {0x80, 0x80, 0x80, 0x800, 0x10000, 0x110000};
    size_t n = 0;
    while (characters--) {
        uint32_t c = random_below(state, below[random_below(state, COUNT(below))]);
        n += put_character(out + n, c >= 0xd800 && c < 0xe000 ? ' ' : c);
    }
    return n;
}

TEST(the_pieces_of_any_text_are_the_text)
{
    json_t *root = read_json("golden/tokenizer/tokenizer.json");
    struct vb_tokenizer *t;
    vb_error err;
    json_object_set_new(root, "added_tokens", json_array());
    if (parse_json(&t, root, NULL, &err))
        fail_msg("%s", err.message);
    static char text[4 * 500];
    uint64_t state = 1;
    for (int i = 0; i < 2000; i++)
        check_pieces_make_the_text(t, text, random_text(&state, text, random_below(&state, 500)));
    tokenizer_close(t);
    json_decref(root);
}

/* Joining in quadratic time would take minutes here, and matching by recursion the stack. */
TEST(words_of_a_quarter_of_a_megabyte_are_encoded)
{
    static char text[1 << 18];
    struct vb_tokenizer *t = open_dir("golden/tokenizer");
    static const char *const units[] = {"a", "th", " ", "\n", "1", "!", "\xe5\xad\x90", " \n", "a1"};
    for (size_t k = 0; k < COUNT(units); k++) {
        size_t n = strlen(units[k]), whole = sizeof text / n * n;
        for (size_t i = 0; i < whole; i++)
            text[i] = units[k][i % n];
        check_pieces_make_the_text(t, text, whole);
    }
    tokenizer_close(t);
}

TEST(invalid_utf8_is_refused_at_its_byte)
{
    static const struct {
        const char *text;
        size_t at;
    } cases[] = {{"ab\x80", 2}, {"a\xc0\x80", 1}, {"\xed\xa0\x80", 0}, {"abcdefghij\xf4\x90\x80\x80", 10},
                 {"\xe2\x82", 0}, {"\xf0\x9f\x91\x8d\xf0", 4}, {"\xe0\x9f\xbf", 0}, {"12345678\xff", 8},
                 {"\xc3\xa9\xc3(", 2}, {"\xf0\x8f\xbf\xbf", 0}, {"\xf5\x80\x80\x80", 0}};
    struct vb_tokenizer *t = open_dir("golden/tokenizer");
    for (size_t i = 0; i < COUNT(cases); i++) {
        int32_t *ids;
        size_t n;
        vb_error err;
        char want[80];
        snprintf(want, sizeof want, "the text is not valid UTF-8 at byte %zu", cases[i].at);
        assert_int_equal(utf8_valid(cases[i].text, strlen(cases[i].text)), cases[i].at);
        assert_int_equal(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), 1, &ids, &n, &err), VB_BAD_ARGUMENT);
        assert_string_equal(err.message, want);
        assert_null(ids);
    }
    assert_int_equal(utf8_valid("\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\xe0\xa0\x80\xc2\x80", 15), 15);
    tokenizer_close(t);
}

TEST(the_config_names_bos_and_eos_and_pieces_are_contents)
{
    struct vb_tokenizer *t = open_dir("golden/tokenizer");
    size_t size;
    assert_int_equal(tokenizer_bos(t), 0);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_int_equal(tokenizer_add_bos(t), 1);
    assert_true(tokenizer_is_special(t, 0));
    assert_false(tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, -1));
    const char *piece = tokenizer_piece(t, 0, &size);
    assert_int_equal(size, 9);
    assert_memory_equal(piece, "<|begin|>", 9);
    assert_null(tokenizer_piece(t, tokenizer_size(t), &size));
    assert_null(tokenizer_piece(t, -1, &size));
    assert_non_null(tokenizer_piece(t, tokenizer_size(t) - 1, &size));
    tokenizer_close(t);
}

/* ---- memory that runs out ---------------------------------------------------------------------------------------- */

struct failing {
    long calls, fail_at, live;
};

static void *failing_alloc(void *context, size_t size)
{
    struct failing *f = context;
    if (++f->calls == f->fail_at)
        return NULL;
    f->live++;
    return malloc(size);
}

static void failing_free(void *context, void *block)
{
    ((struct failing *)context)->live--;
    free(block);
}

TEST(each_allocation_that_fails_is_told_and_nothing_leaks)
{
    struct failing f = {0, 0, 0};
    vb_allocator a = {failing_alloc, failing_free, &f};
    static char text[6000];
    uint64_t state = 5;
    size_t size = random_text(&state, text, 1000);
    struct vb_tokenizer *t;
    vb_error err;
    int rc = VB_NO_MEMORY;
    for (f.fail_at = 1; rc; f.fail_at++) {
        f.calls = 0;
        rc = tokenizer_open(&t, "golden/tokenizer", &a, &err);
        if (rc ? rc != VB_NO_MEMORY || t || f.live : f.calls >= f.fail_at)
            fail_msg("allocation %ld of opening failed: rc %d, %ld blocks left, \"%s\"", f.fail_at, rc, f.live,
                     err.message);
    }
    assert_true(f.fail_at > 20);
    long open_blocks = f.live;
    rc = VB_NO_MEMORY;
    for (f.fail_at = 1; rc; f.fail_at++) {
        int32_t *ids;
        size_t n;
        f.calls = 0;
        rc = tokenizer_encode(t, text, size, 1, &ids, &n, &err);
        if (rc ? rc != VB_NO_MEMORY || ids || f.live != open_blocks : f.calls >= f.fail_at)
            fail_msg("allocation %ld of encoding failed: rc %d, %ld blocks left", f.fail_at, rc, f.live - open_blocks);
        if (!rc)
            vb_free(&a, ids);
    }
    assert_true(f.fail_at > 6);
    tokenizer_close(t);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_hugging_face_for_every_pre_tokenizer),
        cmocka_unit_test(streamed_bytes_come_out_as_python_decodes_them_whatever_the_chunks),
        cmocka_unit_test(deepseek_v2_gives_the_published_ids),
        cmocka_unit_test(deepseek_v3_gives_the_ids_of_an_independent_encoder),
        cmocka_unit_test(deepseek_r1_gives_the_ids_of_an_independent_encoder),
        cmocka_unit_test(the_pieces_of_any_text_are_the_text),
        cmocka_unit_test(words_of_a_quarter_of_a_megabyte_are_encoded),
        cmocka_unit_test(invalid_utf8_is_refused_at_its_byte),
        cmocka_unit_test(the_config_names_bos_and_eos_and_pieces_are_contents),
        cmocka_unit_test(each_allocation_that_fails_is_told_and_nothing_leaks),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
