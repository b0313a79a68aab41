/* tests/cli/test_allowed.c -- masks of allowed tokens (tools/serve/allowed.h): a token is allowed exactly when the
 * automaton accepts its bytes one by one, end tokens exactly when the value may end; walks of tokens end in values that
 * satisfy the schema; masks follow drafts back and forth. Runs in the repository's root.
 *
 *     test_allowed --bench DIR   times masks for the tokenizer of DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "tests/support/failing.h"
#include "tests/support/schemas.h"
#include "tools/serve/allowed.h"
#include "tools/serve/schema_calls.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* All bytes, what JSON has, parts of characters, repeated pieces, a piece that ends one, ids without a piece. */
static const char *const words[] = {"{\"", "\":", "\": ", "\", \"", "\"}", "},", "}]", "[]", "{}", "[[", "]]",
                                    "\"a\":", "{\"a\": ", "\"b\":", ", ", "  ", "\n  ", "true", "false", "null", "tru",
                                    "12", "123", "-1", "1.5", "0.", "e1", "1,", "\xc3\xa9", "\xf0\x9f", "\x98\x80",
                                    "\x80", "abc", "ab", "ab", "a\xc3", "a\"", "\\n", "\\u00", "\\\"", "\\", "d83d",
                                    "\\ude00", "<end>", "hello world", "\xc3\xa9\xc3\xa9\xc3\xa9", "</think>", "</",
                                    "think", ">\n", ">{", ">x", "a</think>{\"", "</think>\n\n\n", "ink>",
                                    ">{\"</think>{\"",
                                    "a string that goes on for sixty characters and then it ends here\"\n}"};
#define SMALL (256 + (int32_t)COUNT(words) + 4)
#define END_TOKEN (SMALL - 1) /* with bytes of its own, which do not count */

static struct vocabulary_piece small_pieces[SMALL];

static struct vocabulary *small_vocabulary(void)
{
    static char bytes[256];
    struct vocabulary *v;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        small_pieces[i] = (struct vocabulary_piece){.bytes = &bytes[i], .size = 1};
    }
    for (size_t i = 0; i < COUNT(words); i++)
        small_pieces[256 + i] = (struct vocabulary_piece){.bytes = words[i], .size = strlen(words[i])};
    small_pieces[SMALL - 4] = (struct vocabulary_piece){.bytes = ""};
    small_pieces[END_TOKEN] = (struct vocabulary_piece){.bytes = "a", .size = 1};
    assert_int_equal(vocabulary_of_pieces(&v, small_pieces, SMALL, (const int32_t[]){END_TOKEN, SMALL + 5}, 2), 0);
    return v;
}

/* The mask, token by token and byte by byte. */
static void check_mask(const struct schema_state *state, struct schema_state *scratch,
                       const struct vocabulary_piece *piece, int32_t size, int32_t end, const unsigned char *mask)
{
    for (int32_t t = 0; t < size; t++) {
        int wanted = piece[t].bytes && piece[t].size;
        if (wanted)
            assert_int_equal(schema_state_copy(scratch, state), 0);
        for (size_t i = 0; i < piece[t].size && wanted && t != end; i++)
            wanted = schema_byte(scratch, (unsigned char)piece[t].bytes[i]) == 1;
        wanted = t == end ? schema_may_end(state) : wanted;
        if (mask[t] != wanted)
            fail_msg("token %d, \"%.*s\": mask %d, wanted %d", t, (int)piece[t].size,
                     piece[t].bytes ? piece[t].bytes : "", mask[t], wanted);
    }
}

static int32_t choose(const unsigned char *mask, int32_t size)
{
    int32_t n = 0;
    for (int32_t t = 0; t < size; t++)
        n += mask[t];
    if (!n)
        return -1;
    for (int32_t t = 0, k = (int32_t)chance((uint32_t)n); t < size; t++)
        if (mask[t] && !k--)
            return t;
    return -1;
}

/* Walks with a vocabulary; checks every mask, and what the walk made where it ended. */
static size_t walk(const struct vocabulary *v, const struct vocabulary_piece *piece, int32_t size, int32_t end,
                   int documents, int most)
{
    unsigned char *mask = malloc((size_t)size);
    size_t ended = 0;
    for (int i = 0; i < documents; i++) {
        chance_state = 5 + ((uint64_t)i << 20);
        json_t *root = i ? random_document() : NULL;
        struct schema *s;
        struct schema_state *state, *scratch;
        char error[512], text[8192];
        size_t n = 0;
        if (schema_open(&s, root, error)) {
            json_decref(root);
            continue;
        }
        assert_int_equal(schema_begin(&state, s), 0);
        assert_int_equal(schema_begin(&scratch, s), 0);
        for (int k = 0; k < most; k++) {
            assert_int_equal(allowed_mask(v, state, mask), 0);
            check_mask(state, scratch, piece, size, end, mask);
            int32_t token = mask[end] && chance(2) ? end : choose(mask, size);
            assert_true(token >= 0);
            if (token == end || n + piece[token].size > sizeof text) {
                json_t *value = json_loadb(text, n, JSON_DECODE_ANY, NULL);
                if (token == end && (!value || !(root ? judge(root, root, value) : json_is_object(value))))
                    fail_msg("schema %d is %s\nthe walk made %.*s", i, json_dumps(root, JSON_ENCODE_ANY), (int)n, text);
                ended += token == end;
                json_decref(value);
                break;
            }
            for (size_t b = 0; b < piece[token].size; b++) {
                text[n++] = piece[token].bytes[b];
                assert_int_equal(schema_byte(state, (unsigned char)text[n - 1]), 1);
            }
        }
        schema_state_close(state);
        schema_state_close(scratch);
        schema_close(s);
        json_decref(root);
    }
    free(mask);
    return ended;
}

TEST(masks_are_what_the_automaton_accepts)
{
    struct vocabulary *v = small_vocabulary();
    size_t ended = walk(v, small_pieces, SMALL, END_TOKEN, 500, 60);
    print_message("%zu walks ended\n", ended);
    assert_true(ended > 200);
    vocabulary_close(v);
}

/* Objects that begin alike. The caller frees the text. */
static char *ambiguous(int count, int limited)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *string = json_pack("{s:s}", "type", "string");
        if (limited && i)
            json_object_set_new(string, "maxLength", json_integer(limited == 1 ? 30 + i : 5));
        json_array_append_new(list, i % 2
                                        ? json_pack("{s:s, s:{s:o}, s:[s]}", "type", "object", "properties", "a",
                                                    string, "required", "a")
                                        : json_pack("{s:s, s:{s:o, s:{s:i}}, s:[s, s]}", "type", "object", "properties",
                                                    "a", string, "b", "const", i, "required", "a", "b"));
    }
    json_t *schema = json_pack("{s:o}", "anyOf", list);
    char *text = json_dumps(schema, JSON_COMPACT);
    json_decref(schema);
    return text;
}

/* Strings that differ in what follows them, and in how long they may be. */
TEST(masks_of_ambiguous_strings)
{
    struct vocabulary *v = small_vocabulary();
    for (int limited = 0; limited < 3; limited++) {
        static const char text[] = "{\"a\":\"ab\\u00e9\",";
        char *all = ambiguous(30, limited), error[512];
        json_t *json = parsed(all);
        struct schema *s;
        struct schema_state *state, *scratch;
        unsigned char mask[SMALL];
        assert_int_equal(schema_open(&s, json, error), 0);
        assert_int_equal(schema_begin(&state, s), 0);
        assert_int_equal(schema_begin(&scratch, s), 0);
        for (const char *c = text; *c; c++) {
            assert_int_equal(schema_byte(state, (unsigned char)*c), 1);
            assert_int_equal(allowed_mask(v, state, mask), 0);
            check_mask(state, scratch, small_pieces, SMALL, END_TOKEN, mask);
        }
        schema_state_close(state);
        schema_state_close(scratch);
        schema_close(s);
        json_decref(json);
        free(all);
    }
    vocabulary_close(v);
}

TEST(masks_of_a_models_tokenizer_leave_special_tokens_out)
{
    vb_tokenizer *t;
    vb_error err;
    struct vocabulary *v;
    assert_int_equal(vb_tokenizer_open(&t, "golden/tale", NULL, &err), 0);
    int32_t size = vb_tokenizer_size(t), end = size + 1, ids[32], first, specials = 0;
    size_t n;
    struct vocabulary_piece *piece = calloc((size_t)size + 2, sizeof *piece);
    unsigned char *special;
    assert_int_equal(vocabulary_special(&special, t, size + 2), 0);
    assert_int_equal(vocabulary_open(&v, t, size + 2, special, &end, 1, NULL, 0), 0);
    free(special);
    for (int32_t i = 0; i < size; i++) { /* special: text to vb_encode_plain and one token to vb_encode */
        piece[i].bytes = vb_piece(t, i, &piece[i].size);
        if (!piece[i].bytes || vb_utf8_valid(piece[i].bytes, piece[i].size) < piece[i].size)
            continue;
        assert_int_equal(vb_encode(t, piece[i].bytes, piece[i].size, ids, 32, &n, &err), 0);
        first = ids[0];
        assert_int_equal(vb_encode_plain(t, piece[i].bytes, piece[i].size, ids, 32, &n, &err), 0);
        if (first == i && (n != 1 || ids[0] != i)) {
            piece[i] = (struct vocabulary_piece){.bytes = NULL};
            specials++;
        }
    }
    print_message("%d special tokens\n", specials);
    assert_true(specials > 0);
    assert_true(walk(v, piece, size + 2, end, 60, 20) > 10);
    free(piece);
    vocabulary_close(v);
    vb_tokenizer_close(t);
}

static int32_t word(const char *text)
{
    for (int32_t t = 256; t < 256 + (int32_t)COUNT(words); t++)
        if (!strcmp(words[t - 256], text))
            return t;
    fail_msg("%s is no token", text);
    return -1;
}

/* Appends the ids of these words, where each is a token. */
static size_t ids_of(const char *const *list, int32_t *ids)
{
    size_t n = 0;
    for (; *list; list++)
        ids[n++] = word(*list);
    return n;
}

static void check_next(struct allowed *a, const struct vocabulary *v, const struct schema *s, const int32_t *ids,
                       size_t from, size_t n)
{
    unsigned char mask[SMALL], wanted[SMALL];
    struct schema_state *state;
    assert_int_equal(schema_begin(&state, s), 0);
    for (size_t i = from; i < n; i++)
        for (size_t b = 0; b < small_pieces[ids[i]].size; b++)
            assert_int_equal(schema_byte(state, (unsigned char)small_pieces[ids[i]].bytes[b]), 1);
    assert_int_equal(allowed_mask(v, state, wanted), 0);
    assert_int_equal(allowed_next(a, ids, n, mask), 0);
    assert_memory_equal(mask, wanted, SMALL);
    schema_state_close(state);
}

TEST(masks_follow_drafts_back_and_forth)
{
    static const char *const long_way[] = {"null", "{\"", "abc", "\": ", "[[", "12", "]]", ", ", "\"b\":", "true", "},",
                                           NULL};
    struct vocabulary *v = small_vocabulary();
    struct schema *s;
    struct allowed *a;
    char error[512];
    int32_t ids[400], n = (int32_t)ids_of(long_way, ids) - 1; /* the first is the prompt, the last is not allowed */
    assert_int_equal(n, 10);
    assert_int_equal(schema_open(&s, NULL, error), 0);
    assert_int_equal(allowed_open(&a, v, s, 1, 0), 0);
    for (int i = 0; i < 300; i++)
        check_next(a, v, s, ids, 1, 1 + chance((uint32_t)n));
    for (size_t i = 3; i < COUNT(ids); i++) /* a long string, and far back */
        ids[i] = 256 + 32;
    assert_string_equal(words[32], "abc");
    check_next(a, v, s, ids, 1, COUNT(ids));
    check_next(a, v, s, ids, 1, COUNT(ids) - 70);
    check_next(a, v, s, ids, 1, COUNT(ids) - 200);
    check_next(a, v, s, ids, 1, COUNT(ids));
    ids[200] = 256 + 33;
    check_next(a, v, s, ids, 1, 250);
    allowed_close(a);
    schema_close(s);
    vocabulary_close(v);
}

TEST(masks_begin_after_thinking_and_end_with_the_value)
{
    struct vocabulary *v = small_vocabulary();
    struct schema *s;
    struct allowed *a;
    char error[512];
    unsigned char mask[SMALL];
    int32_t end = word("</think>"), ids[] = {end, 'x', 'y', end, '{', '}', END_TOKEN, 'z'};
    assert_int_equal(schema_open(&s, NULL, error), 0);
    assert_int_equal(allowed_open(&a, v, s, 1, 1), 0);
    for (size_t n = 1; n <= 3; n++) {
        assert_int_equal(allowed_next(a, ids, n, mask), 0);
        for (int t = 0; t < SMALL; t++)
            assert_int_equal(mask[t], t != END_TOKEN && t != word("</think>\n\n\n")); /* a value begins with at most two
                                                                                         blanks */
    }
    check_next(a, v, s, ids, 4, 4);
    check_next(a, v, s, ids, 4, 5);
    check_next(a, v, s, ids, 4, 6);
    assert_int_equal(allowed_next(a, ids, 6, mask), 0);
    for (int t = 0; t < SMALL; t++)
        assert_int_equal(mask[t], t == END_TOKEN);
    for (size_t n = 7; n <= 8; n++) {
        assert_int_equal(allowed_next(a, ids, n, mask), 0);
        assert_int_equal(mask[0], 1);
    }
    ids[4] = '1';
    assert_int_equal(allowed_next(a, ids, 5, mask), VB_BAD_ARGUMENT);
    ids[4] = SMALL + 1;
    assert_int_equal(allowed_next(a, ids, 5, mask), VB_BAD_ARGUMENT);
    ids[4] = '{';
    check_next(a, v, s, ids, 4, 5);
    allowed_close(a);
    schema_close(s);
    vocabulary_close(v);
}

/* </think> in many ways, and how many bytes of the last token belong to the value; -1: the reasoning goes on. */
TEST(thinking_ends_where_its_text_does)
{
    static const struct {
        const char *piece[8];
        int behind;
    } cases[] = {{{"</think>"}, 0},
                 {{"</", "think", ">\n"}, 1},
                 {{"</", "think", ">{"}, 1},
                 {{"<", "/", "t", "h", "ink>"}, 0},
                 {{"abc", "a</think>{\""}, 2},
                 {{"</", "</", "think", ">{"}, 1},
                 {{"ink>", ">{"}, -1},
                 {{"</", "think", ">x"}, -2}, /* which is not allowed */
                 {{"</", "abc", "think", ">x"}, -1},
                 {{"</think>\n\n\n"}, -2},
                 {{"<", "</think>"}, 0}};
    struct vocabulary *v = small_vocabulary();
    struct schema *s;
    char error[512];
    unsigned char mask[SMALL], wanted[SMALL];
    assert_int_equal(schema_open(&s, NULL, error), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct allowed *a;
        struct schema_state *state;
        int32_t ids[10] = {'p'};
        size_t n = 1;
        for (; n < 9 && cases[i].piece[n - 1]; n++)
            ids[n] = cases[i].piece[n - 1][1] ? word(cases[i].piece[n - 1]) : cases[i].piece[n - 1][0];
        const char *last = cases[i].piece[n - 2];
        assert_int_equal(allowed_open(&a, v, s, 1, 1), 0);
        assert_int_equal(allowed_next(a, ids, n - 1, mask), 0);
        assert_int_equal(mask[ids[n - 1]], cases[i].behind != -2);
        assert_int_equal(mask['<'] && mask['>'] && mask['x'] && !mask[END_TOKEN], 1);
        assert_int_equal(schema_begin(&state, s), 0);
        for (const char *c = last + strlen(last) - (cases[i].behind > 0 ? cases[i].behind : 0); *c; c++)
            assert_int_equal(schema_byte(state, (unsigned char)*c), 1);
        assert_int_equal(allowed_mask(v, state, wanted), 0);
        int rc = allowed_next(a, ids, n, mask);
        assert_int_equal(rc, cases[i].behind == -2 ? VB_BAD_ARGUMENT : VB_OK);
        if (cases[i].behind >= 0)
            assert_memory_equal(mask, wanted, SMALL);
        else if (!rc)
            assert_int_equal(mask['x'], 1);
        schema_state_close(state);
        allowed_close(a);
    }
    struct allowed *a; /* one token, of which more bytes or fewer belong to the value */
    struct schema_state *state;
    const int32_t ids[][4] = {{'p', word("</"), word("think"), word(">{\"</think>{\"")},
                              {'p', word("abc"), word("think"), word(">{\"</think>{\"")}};
    static const char *const texts[] = {"{\"</think>{\"", "{\""};
    assert_int_equal(allowed_open(&a, v, s, 1, 1), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(schema_begin(&state, s), 0);
        for (const char *c = texts[i & 1]; *c; c++)
            assert_int_equal(schema_byte(state, (unsigned char)*c), 1);
        assert_int_equal(allowed_mask(v, state, wanted), 0);
        assert_int_equal(allowed_next(a, ids[i & 1], 4, mask), 0);
        assert_memory_equal(mask, wanted, SMALL);
        schema_state_close(state);
    }
    allowed_close(a);
    schema_close(s);
    vocabulary_close(v);
}

TEST(missing_memory_is_an_error_and_nothing_leaks)
{
    int32_t ids[] = {256, 'x', '"'};
    struct schema *s;
    char error[512];
    unsigned char mask[SMALL];
    int rc = VB_NO_MEMORY;
    long n = 0;
    vocabulary_close(small_vocabulary());
    assert_int_equal(schema_open(&s, NULL, error), 0);
    for (; rc; n++) {
        struct vocabulary *v = NULL;
        struct allowed *a = NULL;
        failing = n;
        rc = vocabulary_of_pieces(&v, small_pieces, SMALL, (const int32_t[]){END_TOKEN}, 1);
        rc = rc ? rc : allowed_open(&a, v, s, 0, 0);
        rc = rc ? rc : allowed_next(a, ids, 3, mask);
        rc = rc ? rc : allowed_next(a, ids, 1, mask);
        failing = -1;
        assert_true(rc == VB_OK || rc == VB_NO_MEMORY);
        if (rc && a) /* and after it all goes on */
            check_next(a, v, s, ids, 0, 3);
        allowed_close(a);
        vocabulary_close(v);
    }
    assert_true(n > 30);
    schema_close(s);
}

/* ---- how long a mask takes ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* `schema` may be the name of a format of calls; `tool` then is the only tool's parameters. */
static struct schema *bench_schema(const char *schema, const char *tool)
{
    static const unsigned char bytes[MEANING_MARKS] = {0};
    json_t *json = tool || schema ? json_loads(tool ? tool : schema, JSON_DECODE_ANY, NULL) : NULL;
    json_t *tools = tool ? json_pack("[{s:{s:s, s:O}}]", "function", "name", "f", "parameters", json) : NULL;
    enum meaning_calls calls = schema && *schema == 'G' ? MEANING_GLM : MEANING_DEEPSEEK_V31;
    struct schema *s;
    char error[512];
    if (tool ? schema_of_calls(&s, &(struct schema_calls){calls, bytes, tools, NULL, 16}, error)
             : schema_open(&s, json, error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    json_decref(json);
    json_decref(tools);
    return s;
}

static void time_masks(const struct vocabulary *v, int32_t size, const char *schema, const char *tool, const char *text)
{
    struct schema *s = bench_schema(schema, tool);
    struct schema_state *state;
    unsigned char *mask = malloc((size_t)size);
    double took[64];
    size_t allowed = 0;
    if (!mask || schema_begin(&state, s))
        exit(1);
    for (const char *c = text; *c; c++)
        if (schema_byte(state, (unsigned char)*c) != 1)
            exit(1);
    for (size_t i = 0; i < COUNT(took); i++) {
        double start = seconds();
        if (allowed_mask(v, state, mask))
            exit(1);
        took[i] = 1e3 * (seconds() - start);
    }
    qsort(took, COUNT(took), sizeof *took, by_size);
    for (int32_t t = 0; t < size; t++)
        allowed += mask[t];
    printf("%8.3f ms (median), %8.3f ms (slowest)  %7zu tokens  %.60s  after %s\n",
           took[COUNT(took) / 2], took[COUNT(took) - 1], allowed,
        schema ? schema : "any object", text);
    schema_state_close(state);
    schema_close(s);
    free(mask);
}

static int bench(const char *dir)
{
    static const char *const texts[] = {"", "{", "{\"", "{\"abc", "{\"abc\\", "{\"abc\\u0", "{\"a\":", "{\"a\":\"",
                                        "{\"a\":\"\xc3", "{\"a\":12", "{\"a\":[", "{\"a\":[{\"b\":\"c\"}",
                                        "{\"a\":[{\"b\":\"c\"}],"};
    static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},"
                                 "\"age\":{\"type\":\"integer\"}},\"required\":[\"name\"]}";
    static const char tool[] = "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\"},\"u\":{\"anyOf\":[{"
                               "\"type\":\"string\"},{\"type\":\"null\"}]}},"
                               "\"required\":[\"t\"],\"additionalProperties\":true}";
    struct vocabulary *v;
    vb_tokenizer *t;
    vb_error err;
    if (vb_tokenizer_open(&t, dir, NULL, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int32_t size = vb_tokenizer_size(t) > 129280 ? vb_tokenizer_size(t) : 129280, end = 1;
    double start = seconds();
    unsigned char *special;
    if (vocabulary_special(&special, t, size) || vocabulary_open(&v, t, size, special, &end, 1, NULL, 0))
        return 1;
    free(special);
    printf("vocabulary of %d: opened in %.2f s\n", size, seconds() - start);
    for (size_t i = 0; i < COUNT(texts); i++)
        time_masks(v, size, NULL, NULL, texts[i]);
    time_masks(v, size, person, NULL, "{");
    time_masks(v, size, person, NULL, "{\"name\":\"abc");
    time_masks(v, size,
               "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":9},{\"type\":\"string\",\"minLength\":20},{\"const\":"
               "\"abcdefgh\"}]}",
               NULL, "\"abc");
    time_masks(v, size, "{\"type\":\"string\",\"maxLength\":300}", NULL, "\"");
    for (int limited = 0; limited < 3; limited++) { /* 120 objects that begin alike */
        char *all = ambiguous(120, limited);
        time_masks(v, size, all, NULL, "{\"a\":\"");
        time_masks(v, size, all, NULL, "{\"a\":\"abc");
        free(all);
    }
    static const char call[] = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
                      *const v31[] = {"", "{", "{\"t\": \"", "{\"t\": \"abc", "{\"t\": \"abc\", \"u\": "};
    for (size_t i = 0; i < COUNT(v31); i++) {
        char begun[200];
        snprintf(begun, sizeof begun, "%s%s", call, v31[i]);
        time_masks(v, size, "DeepSeek-V3.1", tool, begun);
    }
    static const char
        *const glm[] = {"<tool_call>", "<tool_call>f", "<tool_call>f<arg_key>",
                        "<tool_call>f<arg_key>t</arg_key><arg_value>", "<tool_call>f<arg_key>t</arg_key><arg_value>abc",
                        "<tool_call>f<arg_key>t</arg_key><arg_value>abc</arg_value><arg_key>u</arg_key><arg_value>",
                        "<tool_call>f<arg_key>t</arg_key><arg_value>abc</arg_value><arg_key>u</arg_key><arg_value>12",
                        "<tool_call>f<arg_key>t</arg_key><arg_value>abc</arg_value><arg_key>k"};
    for (size_t i = 0; i < COUNT(glm); i++)
        time_masks(v, size, "GLM", tool, glm[i]);
    vocabulary_close(v);
    vb_tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_what_the_automaton_accepts),
        cmocka_unit_test(masks_of_ambiguous_strings),
        cmocka_unit_test(masks_of_a_models_tokenizer_leave_special_tokens_out),
        cmocka_unit_test(masks_follow_drafts_back_and_forth),
        cmocka_unit_test(masks_begin_after_thinking_and_end_with_the_value),
        cmocka_unit_test(thinking_ends_where_its_text_does),
        cmocka_unit_test(missing_memory_is_an_error_and_nothing_leaks),
    };
    return argc > 2 && !strcmp(argv[1], "--bench") ? bench(argv[2]) : cmocka_run_group_tests(tests, NULL, NULL);
}
