/* tests/test_tiktoken.c -- tiktoken.model: text to ids and back. Truth: what the tiktoken library makes of golden/tiktoken with the
 * pattern of Kimi-K2's and Moonlight's tokenizer. Runs in the repository's root. */
#include "../engine/tokenizer.h"

#include <setjmp.h>
#include <sha256.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define GOLDEN "golden/tiktoken"
#define CONFIG "{\"tokenizer_class\":\"TikTokenTokenizer\",\"bos_token\":\"<|reserved_token_3|>\"}"

static struct tokenizer *open_golden(void)
{
    vb_error err;
    struct tokenizer *t;
    if (tokenizer_open(&t, GOLDEN, NULL, &err))
        fail_msg("%s", err.message);
    return t;
}

static size_t put_character(uint32_t c, char *to)
{
    if (c < 0x80)
        return (size_t)sprintf(to, "%c", (int)c);
    if (c < 0x800)
        return (size_t)sprintf(to, "%c%c", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 63)));
    if (c < 0x10000)
        return (size_t)sprintf(to, "%c%c%c", (int)(0xe0 | c >> 12), (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
    return (size_t)sprintf(to, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 63)), (int)(0x80 | (c >> 6 & 63)),
                           (int)(0x80 | (c & 63)));
}

/* For each code point c the lines acA, cAa and U+6C49 c. */
static char *code_points(const json_t *range, size_t *size)
{
    uint32_t first = (uint32_t)json_integer_value(json_array_get(range, 0)), last = (uint32_t)json_integer_value(json_array_get(range, 1));
    char *text = malloc(23 * (size_t)(last - first + 1) + 1), *to = text, c[5];
    assert_non_null(text);
    for (uint32_t point = first; point <= last; point++) {
        c[put_character(point, c)] = '\0';
        if (point < 0xd800 || point >= 0xe000)
            to += sprintf(to, "a%sA\n%sAa\n\xe6\xb1\x89%s\n", c, c, c);
    }
    *size = (size_t)(to - text);
    return text;
}

static char *repeat(const json_t *line, size_t *size)
{
    if (json_object_get(line, "points"))
        return code_points(json_object_get(line, "points"), size);
    size_t n = json_string_length(json_object_get(line, "text")), times = (size_t)json_integer_value(json_object_get(line, "times"));
    char *text = malloc(n * times + 1);
    assert_non_null(text);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * n, json_string_value(json_object_get(line, "text")), n);
    *size = n * times;
    return text;
}

static void check_ids(const int32_t *ids, size_t n, const json_t *wanted, const char *text, int special)
{
    int same = n == json_array_size(wanted);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(wanted, i));
    if (same)
        return;
    for (size_t i = 0; i < n; i++)
        print_error(i ? ",%d" : "got %d", ids[i]);
    fail_msg("\"%s\", special tokens %s: wanted %s", text, special ? "recognised" : "as text", json_dumps(wanted, JSON_COMPACT));
}

static void check_digest(const int32_t *ids, size_t n, const char *wanted, const char *text)
{
    char number[16], digest[SHA256_DIGEST_STRING_LENGTH];
    SHA2_CTX sha;
    SHA256Init(&sha);
    for (size_t i = 0; i < n; i++)
        SHA256Update(&sha, (const uint8_t *)number, (size_t)sprintf(number, i ? ",%d" : "%d", ids[i]));
    SHA256End(&sha, digest);
    if (strcmp(digest, wanted))
        fail_msg("\"%.40s...\": %zu ids of another digest", text, n);
}

/* Pieces put together are the text again. */
static void check_pieces(const struct tokenizer *t, const int32_t *ids, size_t n, const char *text, size_t size)
{
    size_t at = 0, length;
    for (size_t i = 0; i < n; i++, at += length) {
        const char *piece = tokenizer_piece(t, ids[i], &length);
        if (!piece || length > size - at || memcmp(piece, text + at, length))
            fail_msg("id %zu of \"%.60s\" is %d, another text", i, text, ids[i]);
    }
    assert_int_equal(at, size);
}

static void check_line(const struct tokenizer *t, const json_t *line)
{
    const json_t *ids = json_object_get(line, "ids"), *plain = json_object_get(line, "plain");
    const char *digest = json_string_value(json_object_get(line, "sha256"));
    size_t size, n;
    char *text = repeat(line, &size);
    for (int special = 1; special >= 0; special--) {
        int32_t *got;
        vb_error err;
        if (tokenizer_encode(t, text, size, special, &got, &n, &err))
            fail_msg("\"%.60s\": %s", text, err.message);
        if (digest)
            check_digest(got, n, digest, text);
        else
            check_ids(got, n, special || !json_is_array(plain) ? ids : plain, text, special);
        check_pieces(t, got, n, text, size);
        vb_free(NULL, got);
    }
    free(text);
}

TEST(ids_are_those_of_tiktoken)
{
    struct tokenizer *t = open_golden();
    FILE *f = fopen(GOLDEN "/vectors.jsonl", "r");
    char *line = NULL;
    size_t room = 0, count = 0;
    assert_non_null(f);
    for (; getline(&line, &room, f) > 0; count++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        check_line(t, j);
        json_decref(j);
    }
    assert_true(count > 300);
    free(line);
    fclose(f);
    tokenizer_close(t);
}

TEST(special_tokens_are_named_or_reserved)
{
    struct tokenizer *t = open_golden();
    size_t size;
    assert_int_equal(tokenizer_size(t), 866 + 258);
    assert_int_equal(tokenizer_bos(t), 866);
    assert_int_equal(tokenizer_eos(t), 867);
    assert_false(tokenizer_add_bos(t));
    assert_memory_equal(tokenizer_piece(t, 866 + 17, &size), "<|im_middle|>", 13);
    assert_memory_equal(tokenizer_piece(t, 871, &size), "<|reserved_token_871|>", 22);
    assert_int_equal(size, 22);
    assert_null(tokenizer_piece(t, 866 + 258, &size));
    tokenizer_close(t);
}

static void expect(int code, const char *message, const char *model, const char *config)
{
    struct tokenizer *t;
    vb_error err = {0};
    int rc = tokenizer_parse_tiktoken(&t, model, strlen(model), config, strlen(config), "t.model", NULL, &err);
    if (rc != code || (code && (t || !strstr(err.message, message))))
        fail_msg("%d \"%s\", wanted %d \"%s\"", rc, err.message, code, message);
    tokenizer_close(t);
}

TEST(files_that_are_wrong_are_told_with_their_line)
{
    expect(0, "", "YQ== 0\nYg== 1\nYWI= 2\n", CONFIG);
    expect(0, "", "YQ== 0\r\n\r\nYg== 1\r\nYWI= 2", CONFIG);
    expect(VB_BAD_CHECKPOINT, "t.model: line 2: not a token in base64 and its rank", "YQ== 0\nYg==\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: not a token in base64 and its rank", "YQ== \n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a token that is not base64", "YQ= 0\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a token that is not base64", "Y?== 0\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a token that is not base64", "=Q== 0\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a token that is not base64", " 0\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a rank that is not an integer below 2^24", "YQ== 0x\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a rank that is not an integer below 2^24", "YQ== -1\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a rank that is not an integer below 2^24", "YQ== 16777216\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 1: a rank that is not an integer below 2^24", "YQ== 99999999999999999999\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "line 2: a token that is there already", "YQ== 0\nYQ== 1\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "which another token has", "YQ== 0\nYg== 0\n", CONFIG);
    expect(VB_BAD_CHECKPOINT, "which another token has", "YQ== 5\n", CONFIG); /* where a special token is */
    expect(VB_BAD_CHECKPOINT, "t.model: there are no tokens", "\n", CONFIG);
    expect(VB_UNSUPPORTED, "tokenizer_class is missing; how words are cut is known for TikTokenTokenizer only", "YQ== 0\n", "{}");
    expect(VB_UNSUPPORTED, "tokenizer_class is GPT2Tokenizer;", "YQ== 0\n", "{\"tokenizer_class\":\"GPT2Tokenizer\"}");
    expect(VB_BAD_CHECKPOINT, "added_tokens_decoder.1 has no content", "YQ== 0\n",
           "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{\"1\":{}}}");
    expect(VB_BAD_CHECKPOINT, "added_tokens_decoder is not an object", "YQ== 0\n",
           "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":[]}");
    expect(VB_BAD_CHECKPOINT, "is there twice", "YQ== 0\n",
           "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{\"1\":{\"content\":\"x\"},\"2\":{\"content\":\"x\"}}}");
    expect(VB_BAD_CHECKPOINT, "bos_token is \"[BOS]\"", "YQ== 0\n", "{\"tokenizer_class\":\"TikTokenTokenizer\",\"bos_token\":\"[BOS]\"}");
    expect(VB_BAD_CHECKPOINT, "tokenizer_config.json", "YQ== 0\n", "{");
}

TEST(tokenizer_json_goes_first_and_the_config_must_be_there)
{
    char dir[64];
    struct tokenizer *t;
    vb_error err;
    make_dir(dir);
    write_file(dir, "tiktoken.model", "YQ== 0\n", 7);
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "/tiktoken.model: no tokenizer_config.json beside it"));
    write_file(dir, "tokenizer_config.json", "{\"tokenizer_class\":\"TikTokenTokenizer\"}", 39);
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_OK);
    assert_int_equal(tokenizer_size(t), 1 + 258);
    tokenizer_close(t);
    write_file(dir, "tokenizer.json", "{}", 2);
    assert_int_equal(tokenizer_open(&t, dir, NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "/tokenizer.json: there is no model"));
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_tiktoken),
        cmocka_unit_test(special_tokens_are_named_or_reserved),
        cmocka_unit_test(files_that_are_wrong_are_told_with_their_line),
        cmocka_unit_test(tokenizer_json_goes_first_and_the_config_must_be_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
