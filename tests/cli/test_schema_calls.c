/* tests/cli/test_schema_calls.c -- the automaton of forced tool calls (tools/serve/schema_calls.h). What it accepts is
 * read back by the parser of answers (tools/serve/meaning.h), and the arguments satisfy the parameters of their
 * tool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/failing.h"
#include "tests/support/meanings.h"
#include "tests/support/schemas.h"
#include "tools/serve/allowed.h"
#include "tools/serve/schema_calls.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define FIRST_BYTE 0xf8 /* of those that stand for markers */

static const enum meaning_calls formats[] = {MEANING_DEEPSEEK_V3, MEANING_DEEPSEEK_V31, MEANING_KIMI_K2, MEANING_GLM,
                                             MEANING_DEEPSEEK_V32};

/* Bytes for the markers of a format that are tokens, and none for those that are text. */
static void choose_bytes(enum meaning_calls calls, int are_tokens, unsigned char byte[MEANING_MARKS])
{
    unsigned char next = FIRST_BYTE;
    memset(byte, 0, MEANING_MARKS);
    for (int i = MARK_CALLS; i < MEANING_MARKS; i++)
        if (are_tokens && meaning_mark(calls, (enum meaning_mark)i))
            byte[i] = next++;
}

/* ---- reading calls back ---- */

struct read_calls {
    const json_t *tools;
    struct serve_writer arguments, content;
    char name[MEANING_NAME + 1];
    int calls, bad;
};

/* Judges the last call. */
static void judge_call(struct read_calls *r)
{
    json_t *value = r->calls ? json_loadb(r->arguments.text, r->arguments.size, JSON_ALLOW_NUL, NULL) : NULL;
    int found = 0;
    for (size_t i = 0; r->calls && i < json_array_size(r->tools); i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function"),
                     *parameters = json_object_get(function, "parameters");
        if (!strcmp(json_string_value(json_object_get(function, "name")), r->name))
            found |= json_is_object(value) &&
                     (parameters ? judge(parameters, parameters, value) : !json_object_size(value));
    }
    r->bad |= r->calls && !found;
    r->arguments.size = 0;
    json_decref(value);
}

static int read_content(void *context, const char *text, size_t size)
{
    struct read_calls *r = context;
    writer_bytes(&r->content, text, size);
    return VB_OK;
}

static int read_call(void *context, int number, const char *id, const char *name, size_t size)
{
    struct read_calls *r = context;
    (void)id;
    judge_call(r);
    r->calls = number + 1;
    memcpy(r->name, name, size);
    r->name[size] = '\0';
    return VB_OK;
}

static int read_arguments(void *context, int number, const char *text, size_t size)
{
    struct read_calls *r = context;
    (void)number;
    writer_bytes(&r->arguments, text, size);
    return VB_OK;
}

/* Writes markers for the bytes that stand for them. */
static void with_marks(struct serve_writer *w, enum meaning_calls calls, const unsigned char byte[MEANING_MARKS],
                       const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        int mark = 0;
        for (int k = MARK_CALLS; k < MEANING_MARKS; k++)
            mark = byte[k] && (unsigned char)text[i] == byte[k] ? k : mark;
        if (mark)
            writer_put(w, meaning_mark(calls, (enum meaning_mark)mark));
        else
            writer_bytes(w, text + i, 1);
    }
}

/* How many calls a text contains; -1: there is more in it, or arguments that violate their tool's parameters. */
static int calls_of(const struct schema_calls *c, const char *text, size_t size)
{
    const struct meaning_sink sink = {read_content, read_content, read_call, read_arguments};
    struct meaning_options o = {.kind = {c->calls, 0}, .start = MEANING_ANSWERS, .parse_calls = 1, .tools = c->tools,
                                .valid = 1};
    struct serve_writer all = {0};
    with_marks(&all, c->calls, c->mark_byte, text, size);
    for (o.valid = 0;; o.valid++) {
        struct read_calls r = {.tools = c->tools};
        struct meaning_parser *m;
        assert_int_equal(meaning_open(&m, &o, &sink), 0);
        for (size_t i = 0; i < all.size; i += 7)
            assert_int_equal(meaning_push(m, &r, all.text + i, all.size - i < 7 ? all.size - i : 7), 0);
        assert_int_equal(meaning_end(m, &r), 0);
        judge_call(&r);
        int calls = r.bad || r.content.size ? -1 : r.calls;
        meaning_close(m);
        writer_close(&r.arguments);
        writer_close(&r.content);
        if (calls < 0 || o.valid) {
            writer_close(&all);
            return calls;
        }
    }
}

/* ---- random walks ---- */

static int may_follow(const struct schema_state *state, struct schema_state *scratch, const char *text, size_t size)
{
    int rc = schema_state_copy(scratch, state) ? 0 : 1;
    for (size_t i = 0; i < size && rc == 1; i++)
        rc = schema_byte(scratch, (unsigned char)text[i]);
    return rc == 1;
}

/* What a walk appends: any byte that is accepted, and towards the end something that leads there, where there is such a
 * thing. */
static size_t next_bytes(const struct schema_calls *c, const struct schema_state *state, struct schema_state *scratch,
                         int ending, char next[64])
{
    static const enum meaning_mark ends[] = {MARK_END_CALLS, MARK_END_CALL, MARK_END_VALUE, MARK_END_KEY};
    char key[16], pair[64] = "\n```", allowed[256];
    int is_dsml = c->calls == MEANING_DEEPSEEK_V32, has_pairs = is_dsml || c->calls == MEANING_GLM;
    static const char *const keys[] = {"a", "aa", "ab", "b", "c\\\"\\\\", "d", "e\xc3\xa9", "f", "z"};
    const char *const texts[] = {pair, "}", "]", key, "0", "1", "5", ":", "\"", "q", ","};
    const char *const kinds[] = {"false\">", "true\">"}, *kind = kinds[chance(2)];
    uint32_t n = 0;
    int in_string = may_follow(state, scratch, "!q", 2);
    const char *one = keys[chance(COUNT(keys))], first[2] = {(char)c->mark_byte[MARK_KEY]},
               last[2] = {(char)c->mark_byte[MARK_END_KEY]};
    snprintf(key, sizeof key, "\"%s\":", one);
    if (c->calls == MEANING_GLM)
        snprintf(pair, sizeof pair, "%s%s%s", *first ? first : "<arg_key>", *one == 'c' ? "c\"\\" : one,
                 *last ? last : "</arg_key>");
    if (is_dsml)
        snprintf(pair, sizeof pair, "%s%s\" string=\"", *first ? first : meaning_mark(c->calls, MARK_KEY),
                 *one == 'c' ? "c\"\\" : one);
    for (size_t i = 0; ending && (!in_string || has_pairs) && i < COUNT(ends); i++) {
        char byte = (char)c->mark_byte[ends[i]];
        const char *mark = meaning_mark(c->calls, ends[i]), *text = byte ? &byte : mark;
        size_t size = byte ? 1 : mark ? strlen(mark) : 0;
        if (size && may_follow(state, scratch, text, size))
            return memcpy(next, text, size) ? size : 0;
    }
    kind = in_string ? "\" string=\"" : kind;
    if (is_dsml && ending && may_follow(state, scratch, kind, strlen(kind)))
        return (size_t)snprintf(next, 64, "%s", kind);
    for (size_t i = in_string ? COUNT(texts) - 3 : 0; ending && i < COUNT(texts); i++)
        if (may_follow(state, scratch, texts[i], strlen(texts[i])))
            return (size_t)snprintf(next, 64, "%s", texts[i]);
    for (int k = 0; k < 256; k++)
        if (may_follow(state, scratch, &(char){(char)k}, 1))
            allowed[n++] = (char)k;
    next[0] = n ? allowed[chance(n)] : 0;
    return n > 0;
}

/* All bytes, and pieces that the texts of GLM and DeepSeek-V3.2 treat in different ways. */
static const char *const words[] = {"<", "</", "arg_value>", "tool_call>", "</arg_value>", "<arg_key>", " a", "tru",
                                    "true ", "12", "1 ", ".5", "[", " {", "abc", "a b", "\",", "\xc3\xa9", "a\xc3", "-",
                                    "e1", "<b>", ">", "null", "x1", "  ", "1x", "\n<", "\xf8", "\xf9", "ee", "}]",
                                    "<｜DSML｜", "</｜DSML｜", "parameter>", "\" string=\"", "true\">", "false\">1",
                                    "\""};
#define PIECES (256 + (int32_t)COUNT(words) + 1)
static struct vocabulary_piece piece[PIECES];
static struct vocabulary *vocabulary;

static int make_vocabulary(void **unused)
{
    static char bytes[256];
    (void)unused;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        piece[i] = (struct vocabulary_piece){.bytes = &bytes[i], .size = 1};
    }
    for (size_t i = 0; i < COUNT(words); i++)
        piece[256 + i] = (struct vocabulary_piece){.bytes = words[i], .size = strlen(words[i])};
    return vocabulary_of_pieces(&vocabulary, piece, PIECES, (const int32_t[]){PIECES - 1}, 1);
}

static int drop_vocabulary(void **unused)
{
    (void)unused;
    vocabulary_close(vocabulary);
    return 0;
}

/* A mask has the tokens whose bytes the automaton accepts one by one. */
static void check_mask(const struct schema_state *state, struct schema_state *scratch)
{
    unsigned char mask[PIECES];
    assert_int_equal(allowed_mask(vocabulary, state, mask), 0);
    for (int32_t t = 0; t + 1 < PIECES; t++)
        if (mask[t] != may_follow(state, scratch, piece[t].bytes, piece[t].size))
            fail_msg("token %d, \"%.*s\": mask %d", t, (int)piece[t].size, piece[t].bytes, mask[t]);
    assert_int_equal(mask[PIECES - 1], schema_may_end(state));
}

/* Walks to the end of the calls. Returns the number of bytes; 0: the walk became too long. */
static size_t walk(const struct schema_calls *c, const struct schema *s, char *text, size_t room)
{
    struct schema_state *state, *scratch;
    size_t n = 0, before_end = 100 + chance(300);
    assert_int_equal(schema_begin(&state, s), 0);
    assert_int_equal(schema_begin(&scratch, s), 0);
    while (!schema_may_end(state) && n + 64 < room) {
        if (!chance(6))
            check_mask(state, scratch);
        size_t more = next_bytes(c, state, scratch, n > before_end, text + n);
        if (!more)
            fail_msg("%.*s goes nowhere", (int)n, text);
        while (more--)
            assert_int_equal(schema_byte(state, (unsigned char)text[n++]), 1);
    }
    n = schema_may_end(state) ? n : 0;
    schema_state_close(state);
    schema_state_close(scratch);
    return n;
}

static json_t *random_tools(void)
{
    static const char *const names[] = {"find", "find_all", "x.y-2"};
    json_t *tools = json_array();
    for (uint32_t i = 0, n = 1 + chance(3); i < n; i++) {
        json_t *parameters = chance(8) ? chance(4) ? random_object_schema(2) : random_document() : NULL, *defs = NULL;
        if (json_is_object(parameters) && !json_object_get(parameters, "$defs")) {
            defs = json_pack("{s:o}", "one", random_schema(1));
            json_object_set_new(parameters, "$defs", defs);
            json_object_set_new(parameters, "definitions", json_pack("{s:o}", "two", random_schema(1)));
        }
        json_array_append_new(tools, json_pack("{s:s, s:{s:s, s:o*}}", "type", "function", "function", "name", names[i],
                                               "parameters", parameters));
    }
    return tools;
}

TEST(accepted_calls_are_read_back_and_satisfy_the_parameters)
{
    size_t opened = 0, ended = 0, bytes = 0;
    for (int i = 0; i < 600; i++) {
        chance_state = 31 + ((uint64_t)i << 20);
        json_t *tools = random_tools();
        unsigned char byte[MEANING_MARKS];
        struct schema_calls c = {.calls = formats[(size_t)i % COUNT(formats)], .mark_byte = byte, .tools = tools,
                                 .most = i % 7 ? 1 : 3};
        struct schema *s;
        char error[512], text[8192];
        choose_bytes(c.calls, i / 4 % 2, byte);
        if (schema_of_calls(&s, &c, error)) {
            assert_true(strlen(error) > 10);
            json_decref(tools);
            continue;
        }
        size_t n = walk(&c, s, text, sizeof text);
        int calls = n ? calls_of(&c, text, n) : 0;
        if (n && (calls < 1 || calls > c.most))
            fail_msg("number %d: %d calls in\n%.*s\nof %s", i, calls, (int)n, text, json_dumps(tools, 0));
        opened++;
        ended += n > 0;
        bytes += n;
        schema_close(s);
        json_decref(tools);
    }
    print_message("%zu of %zu walks ended, %zu bytes\n", ended, opened, bytes);
    assert_true(opened > 300 && ended > opened - 20);
}

/* ---- single cases ---- */

static struct schema *forced(enum meaning_calls calls, const char *parameters)
{
    unsigned char none[MEANING_MARKS] = {0};
    json_t *tools = json_pack("[{s:{s:s, s:o*}}]", "function", "name", "f", "parameters",
                              parameters ? parsed(parameters) : NULL);
    struct schema *s;
    char error[512];
    if (schema_of_calls(&s, &(struct schema_calls){.calls = calls, .mark_byte = none, .tools = tools, .most = 1},
                        error))
        fail_msg("%s: %s", parameters, error);
    json_decref(tools);
    return s;
}

/* Forced calls of f cannot have these parameters. */
static void check_refused(enum meaning_calls calls, const char *parameters, int code)
{
    unsigned char none[MEANING_MARKS] = {0};
    json_t *tools = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", parsed(parameters));
    struct schema *s;
    char error[512];
    assert_int_equal(schema_of_calls(&s,
                                     &(struct schema_calls){.calls = calls, .mark_byte = none, .tools = tools,
                                                            .most = 1},
                                     error),
                     code);
    assert_non_null(strstr(error, "of f: "));
    json_decref(tools);
}

/* `wanted`: whether a forced call of f may have these arguments, which stand between the other two texts. */
static void check_call(enum meaning_calls calls, const char *parameters, const char *before, const char *arguments,
                       const char *after, int wanted)
{
    char text[400];
    struct schema *s = forced(calls, parameters);
    snprintf(text, sizeof text, "%s%s%s", before, arguments, after);
    if (accepts(s, text) != wanted)
        fail_msg("%s for %s is %s", arguments, parameters, wanted ? "refused" : "accepted");
    schema_close(s);
}

static void check_arguments(const char *parameters, const char *arguments, int wanted)
{
    check_call(MEANING_DEEPSEEK_V31, parameters, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", arguments,
               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", wanted);
}

TEST(arguments_are_objects)
{
    static const char *const any[] = {"{}", "true",
                                      "{\"type\": [\"object\", \"null\"], \"additionalProperties\": true}",
                                      ("{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"object\", "
                                       "\"additionalProperties\": true}]}")};
    for (size_t i = 0; i < COUNT(any); i++) {
        check_arguments(any[i], "{}", 1);
        check_arguments(any[i], "{\"a\": [1, null]}", 1);
        check_arguments(any[i], "null", 0);
        check_arguments(any[i], "\"\"", 0);
        check_arguments(any[i], "[]", 0);
    }
    check_arguments(NULL, "{}", 1);
    check_arguments(NULL, "{\"a\": 1}", 0);
    check_arguments("{\"type\": \"object\"}", "{\"a\": 1}", 0);
    check_arguments("{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": "
                    "\"#\"}}}]}",
                    "{\"a\": {\"a\": null}}", 1);
    static const char *const none[] = {"{\"type\": \"array\"}", "false",
                                       "{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}",
                                       ("{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"a\": false}, "
                                        "\"required\": [\"a\"]}, {\"type\": \"null\"}]}")};
    for (size_t i = 0; i < COUNT(none); i++) {
        check_refused(MEANING_KIMI_K2, none[i], VB_BAD_ARGUMENT);
    }
}

/* Arguments of f as GLM writes them. */
static void check_pairs(const char *parameters, const char *pairs, int wanted)
{
    check_call(MEANING_GLM, parameters, "<tool_call>f", pairs, "</tool_call>", wanted);
}

#define PAIR(key, value) "<arg_key>" key "</arg_key><arg_value>" value "</arg_value>"

TEST(a_string_is_its_text)
{
    static const char string[] = "{\"type\": \"object\", \"properties\": {\"t\": {\"type\": \"string\", \"maxLength\": "
                                 "40}}, \"required\": [\"t\"]}",
                      some[] = "{\"type\": \"object\", \"properties\": {\"t\": {\"type\": \"string\", \"minLength\": "
                               "2, \"maxLength\": 3}, \"u\": {\"type\": \"string\"}}}";
    check_pairs(string, PAIR("t", "a \"king\"\\\n<b>\xc3\xa9"), 1);
    check_pairs(string, "\n<arg_key>t</arg_key>\n<arg_value>a</arg_value>\n", 1);
    check_pairs(string, "\n\n<arg_key>t</arg_key>\n<arg_value>a</arg_value>", 0);
    check_pairs(string, PAIR("t", ""), 1);
    check_pairs(string, PAIR("t", "12"), 1);
    check_pairs(string, PAIR("t", "</arg_valu</arg_value"), 1);
    check_pairs(string, PAIR("t", "a</tool_call>b"), 0);
    check_pairs(string, PAIR("t", "<tool_call>"), 0);
    check_pairs(string, PAIR("t", "\xc3"), 0);
    check_pairs(string, PAIR("t", "a") PAIR("t", "a"), 0);
    check_pairs(string, PAIR("u", "a"), 0);
    check_pairs(string, "", 0);
    check_pairs(string, "<arg_key>t</arg_key>", 0);
    check_pairs(some, "", 1);
    check_pairs(some, PAIR("t", "a"), 0);
    check_pairs(some, PAIR("t", "a\xc3\xa9<"), 1);
    check_pairs(some, PAIR("t", "abcd"), 0);
    check_pairs(some, PAIR("t", "ab") PAIR("u", ""), 1);
    check_pairs(some, PAIR("u", "ab") PAIR("t", "ab"), 0);
    check_pairs(NULL, "", 1);
    check_pairs(NULL, PAIR("a", "1"), 0);
}

/* A string of a parameter that may have other types is its text, if this is no JSON. */
TEST(other_values_are_json)
{
    static const char
        maybe[] =
            "{\"type\": \"object\", \"properties\": {\"t\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 9}, "
            "{\"type\": \"null\"}]}}}",
        listed[] =
            "{\"type\": \"object\", \"properties\": {\"t\": {\"enum\": [\"king\", 7, \"7\", \"\", null, [1]]}}}",
        list[] =
            "{\"type\": \"object\", \"properties\": {\"t\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}}}}";
    static const struct {
        const char *value;
        int maybe, listed, list;
    } cases[] = {{"New York", 1, 0, 0}, {"null", 1, 1, 0}, {"nul", 1, 0, 0}, {"null ", 0, 0, 0}, {"12", 0, 0, 0},
                 {"\"12\"", 1, 0, 0}, {"12 a", 1, 0, 0}, {"true", 0, 0, 0}, {"-1.5e3", 0, 0, 0}, {"1.5e", 1, 0, 0},
                 {"[1]", 0, 1, 0}, {" [", 0, 0, 0}, {" a", 1, 0, 0}, {"", 1, 1, 0}, {" ", 1, 0, 0}, {"king", 1, 1, 0},
                 {"\"king\"", 1, 0, 0}, {"7", 0, 1, 0}, {"\"7\"", 1, 1, 0}, {"123456789", 0, 0, 0},
                 {"12345678a", 1, 0, 0}, {"[\"<b>\"]", 0, 0, 1}, {"[\"</arg_value>\"]", 0, 0, 0},
                 {"[\"\\u003c/arg_value>\"]", 0, 0, 1}, {"[\"<arg_key\\u003e\"]", 0, 0, 1}, {"[]", 0, 0, 1},
                 {"[1]]", 0, 0, 0}};
    char pairs[200];
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(pairs, sizeof pairs, PAIR("t", "%s"), cases[i].value);
        check_pairs(maybe, pairs, cases[i].maybe);
        check_pairs(listed, pairs, cases[i].listed);
        check_pairs(list, pairs, cases[i].list);
    }
}

TEST(other_keys_are_names)
{
    static const char open[] = "{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"integer\"}}, "
                               "\"required\": [\"ab\"], \"additionalProperties\": {\"type\": \"boolean\"}}";
    check_pairs("{}", PAIR("any", "thing") PAIR("x", "{\"y\": 1}"), 1);
    check_pairs("{}", "", 1);
    check_pairs(open, PAIR("ab", "1"), 1);
    check_pairs(open, PAIR("a", "true") PAIR("ab", "1") PAIR("abc", "false"), 1);
    check_pairs(open, PAIR("a", "1") PAIR("ab", "1"), 0);
    check_pairs(open, PAIR("ab", "true"), 0);
    check_pairs(open, PAIR("ab", "1") PAIR("ab", "true"), 0);
    check_pairs(open, PAIR("a", "true"), 0);
    check_pairs(open, PAIR("ab", "1") PAIR(" ab", "true"), 0);
    check_pairs(open, PAIR("ab", "1") PAIR("a<b", "true"), 0);
    check_pairs(open, PAIR("ab", "1") PAIR("", "true"), 0);
}

TEST(what_a_format_cannot_write_is_refused)
{
    static const struct {
        enum meaning_calls calls;
        const char *parameters;
    } refused[] = {{MEANING_GLM, "{\"type\": \"object\", \"properties\": {\" a\": {}}}"},
                   {MEANING_GLM, "{\"type\": \"object\", \"properties\": {\"a</arg_key>\": {}}}"},
                   {MEANING_GLM, "{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [[\"<tool_call>\"]]}}}"},
                   {MEANING_DEEPSEEK_V32,
                    "{\"type\": \"object\", \"properties\": {\"a\\\" string=\\\"true\\\">\": {}}}"},
                   {MEANING_DEEPSEEK_V32,
                    "{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [\"</｜DSML｜parameter>\"]}}}"}};
    for (size_t i = 0; i < COUNT(refused); i++) {
        check_refused(refused[i].calls, refused[i].parameters, VB_UNSUPPORTED);
    }
}

/* Arguments of f as DeepSeek-V3.2 writes them. */
static void check_parameters(const char *parameters, const char *pairs, int wanted)
{
    check_call(MEANING_DEEPSEEK_V32, parameters, "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">", pairs,
               "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", wanted);
    check_call(MEANING_DEEPSEEK_V32, parameters, "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">", pairs,
               "</｜DSML｜invoke></｜DSML｜function_calls>", wanted);
}

#define PARAMETER(key, kind, value) "<｜DSML｜parameter name=\"" key "\" string=\"" kind "\">" value "</｜DSML｜parameter>"
#define TEXT(key, value) PARAMETER(key, "true", value)
#define JSON(key, value) PARAMETER(key, "false", value)

TEST(a_value_says_whether_it_is_a_text)
{
    static const char maybe[] = "{\"type\": \"object\", \"properties\": {\"t\": {\"anyOf\": [{\"type\": \"string\", "
                                "\"maxLength\": 5}, {\"type\": \"null\"}]}}}",
                      listed[] = "{\"type\": \"object\", \"properties\": {\" t\": {\"enum\": [\"king\", 7, \"7\", "
                                 "\"\", \"a\\u0000\"]}}, \"required\": [\" t\"]}",
                      open[] = "{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"integer\"}}, "
                               "\"required\": [\"ab\"], \"additionalProperties\": {\"type\": \"array\"}}";
    check_parameters(maybe, "", 1);
    check_parameters(maybe, TEXT("t", ""), 1);
    check_parameters(maybe, "\n" TEXT("t", "null"), 1);
    check_parameters(maybe, "\n\n" TEXT("t", "null"), 0);
    check_parameters(maybe, JSON("t", "null"), 1);
    check_parameters(maybe, JSON("t", "\"a\""), 0);
    check_parameters(maybe, JSON("t", "a"), 0);
    check_parameters(maybe, TEXT("t", "\"<b>\""), 1);
    check_parameters(maybe, TEXT("t", "123456"), 0);
    check_parameters(maybe, TEXT("t", "a") "\n" TEXT("t", "a"), 0);
    check_parameters(listed, TEXT(" t", "king"), 1);
    check_parameters(listed, TEXT(" t", "kin"), 0);
    check_parameters(listed, TEXT(" t", "7"), 1);
    check_parameters(listed, JSON(" t", "7"), 1);
    check_parameters(listed, TEXT(" t", ""), 1);
    check_parameters(listed, JSON(" t", "\"a\\u0000\""), 1);
    check_parameters(listed, JSON(" t", "\"king\""), 0);
    check_parameters(listed, "", 0);
    check_parameters(open, JSON("ab", "-12"), 1);
    check_parameters(open, TEXT("ab", "12"), 0);
    check_parameters(open, JSON("ab", "1") "\n" JSON("x", "[\"<b>\", 1]"), 1);
    check_parameters(open, JSON("x", "[]") JSON("ab", "1"), 1);
    check_parameters(open, JSON("x", "[\"</｜DSML｜parameter>\"]") JSON("ab", "1"), 0);
    check_parameters(open, JSON("x", "{}") JSON("ab", "1"), 0);
    check_parameters(open, JSON("ab", "1") JSON("ab", "[]"), 0);
    check_parameters(NULL, "", 1);
    check_parameters(NULL, JSON("a", "1"), 0);
}

TEST(missing_memory_is_an_error_and_nothing_leaks)
{
    static const char parameters[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"enum\": [1, [2], \"x\"]},"
        " \"c\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}}, "
        "\"additionalProperties\": {}}";
    json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s, s:o}}]", "function", "name", "g", "function", "name", "f",
                              "parameters", parsed(parameters));
    for (size_t i = 0; i < COUNT(formats); i++) {
        unsigned char byte[MEANING_MARKS];
        choose_bytes(formats[i], 1, byte);
        int rc = VB_NO_MEMORY;
        long n = 0;
        for (; rc; n++) {
            struct schema *s;
            char error[512];
            failing = n;
            rc = schema_of_calls(&s,
                                 &(struct schema_calls){.calls = formats[i], .mark_byte = byte, .tools = tools,
                                                        .most = 2},
                                 error);
            failing = -1;
            assert_true(rc == VB_OK || rc == VB_NO_MEMORY);
            schema_close(s);
        }
        assert_true(n > 30);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_calls_are_read_back_and_satisfy_the_parameters),
        cmocka_unit_test(arguments_are_objects),
        cmocka_unit_test(a_string_is_its_text),
        cmocka_unit_test(other_values_are_json),
        cmocka_unit_test(other_keys_are_names),
        cmocka_unit_test(a_value_says_whether_it_is_a_text),
        cmocka_unit_test(what_a_format_cannot_write_is_refused),
        cmocka_unit_test(missing_memory_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, make_vocabulary, drop_vocabulary);
}
