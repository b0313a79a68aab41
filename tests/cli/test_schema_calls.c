/* tests/cli/test_schema_calls.c -- the automaton of forced tool calls (tools/serve/schema_calls.h). What it accepts is read back by the
 * parser of answers (tools/serve/meaning.h), and the arguments satisfy the parameters of their tool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/failing.h"
#include "tests/support/meanings.h"
#include "tests/support/schemas.h"
#include "tools/serve/schema_calls.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define FIRST_BYTE 0xf8 /* of those that stand for markers */

static const enum meaning_calls formats[] = {MEANING_DEEPSEEK_V3, MEANING_DEEPSEEK_V31, MEANING_KIMI_K2};

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
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function"), *parameters = json_object_get(function, "parameters");
        if (!strcmp(json_string_value(json_object_get(function, "name")), r->name))
            found |= json_is_object(value) && (parameters ? judge(parameters, parameters, value) : !json_object_size(value));
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
static void with_marks(struct serve_writer *w, enum meaning_calls calls, const unsigned char byte[MEANING_MARKS], const char *text, size_t size)
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
    struct meaning_options o = {.kind = {c->calls, 0}, .start = MEANING_ANSWERS, .parse_calls = 1, .tools = c->tools, .valid = 1};
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

/* What a walk appends: any byte that is accepted, and towards the end something that leads there, where there is such a thing. */
static size_t next_bytes(const struct schema_calls *c, const struct schema_state *state, struct schema_state *scratch, int ending, char next[64])
{
    static const enum meaning_mark ends[] = {MARK_END_CALLS, MARK_END_CALL, MARK_END_VALUE, MARK_END_KEY};
    char key[16], allowed[256];
    static const char *const keys[] = {"a", "aa", "ab", "b", "c\\\"\\\\", "d", "e\xc3\xa9", "f", "z"};
    const char *const texts[] = {"\n```", "}", "]", key, "0", "1", "5", ":", "\"", "q", ","};
    uint32_t n = 0;
    int in_string = may_follow(state, scratch, "!q", 2);
    snprintf(key, sizeof key, "\"%s\":", keys[chance(COUNT(keys))]);
    for (size_t i = 0; ending && (!in_string || c->calls == MEANING_GLM) && i < COUNT(ends); i++) {
        char byte = (char)c->mark_byte[ends[i]];
        const char *mark = meaning_mark(c->calls, ends[i]), *text = byte ? &byte : mark;
        size_t size = byte ? 1 : mark ? strlen(mark) : 0;
        if (size && may_follow(state, scratch, text, size))
            return memcpy(next, text, size) ? size : 0;
    }
    for (size_t i = in_string ? COUNT(texts) - 3 : 0; ending && i < COUNT(texts); i++)
        if (may_follow(state, scratch, texts[i], strlen(texts[i])))
            return (size_t)snprintf(next, 64, "%s", texts[i]);
    for (int k = 0; k < 256; k++)
        if (may_follow(state, scratch, &(char){(char)k}, 1))
            allowed[n++] = (char)k;
    next[0] = n ? allowed[chance(n)] : 0;
    return n > 0;
}

/* Walks to the end of the calls. Returns the number of bytes; 0: the walk became too long. */
static size_t walk(const struct schema_calls *c, const struct schema *s, char *text, size_t room)
{
    struct schema_state *state, *scratch;
    size_t n = 0, before_end = 100 + chance(300);
    assert_int_equal(schema_begin(&state, s), 0);
    assert_int_equal(schema_begin(&scratch, s), 0);
    while (!schema_may_end(state) && n + 64 < room) {
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
        json_array_append_new(tools, json_pack("{s:s, s:{s:s, s:o*}}", "type", "function", "function", "name", names[i], "parameters", parameters));
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
        struct schema_calls c = {.calls = formats[(size_t)i % COUNT(formats)], .mark_byte = byte, .tools = tools, .most = i % 7 ? 1 : 3};
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
    json_t *tools = json_pack("[{s:{s:s, s:o*}}]", "function", "name", "f", "parameters", parameters ? parsed(parameters) : NULL);
    struct schema *s;
    char error[512];
    if (schema_of_calls(&s, &(struct schema_calls){.calls = calls, .mark_byte = none, .tools = tools, .most = 1}, error))
        fail_msg("%s: %s", parameters, error);
    json_decref(tools);
    return s;
}

static void check_arguments(const char *parameters, const char *arguments, int wanted)
{
    char text[300];
    struct schema *s = forced(MEANING_DEEPSEEK_V31, parameters);
    snprintf(text, sizeof text, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>%s<｜tool▁call▁end｜><｜tool▁calls▁end｜>", arguments);
    if (accepts(s, text) != wanted)
        fail_msg("%s for %s is %s", arguments, parameters, wanted ? "refused" : "accepted");
    schema_close(s);
}

TEST(arguments_are_objects)
{
    static const char *const any[] = {"{}", "true", "{\"type\": [\"object\", \"null\"], \"additionalProperties\": true}",
                                      "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"object\", \"additionalProperties\": true}]}"};
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
    check_arguments("{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}}]}", "{\"a\": {\"a\": null}}", 1);
    static const char *const none[] = {"{\"type\": \"array\"}", "false", "{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}",
                                       "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}, {\"type\": \"null\"}]}"};
    for (size_t i = 0; i < COUNT(none); i++) {
        unsigned char byte[MEANING_MARKS] = {0};
        json_t *tools = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", parsed(none[i]));
        struct schema *s;
        char error[512];
        assert_int_equal(schema_of_calls(&s, &(struct schema_calls){.calls = MEANING_KIMI_K2, .mark_byte = byte, .tools = tools, .most = 1}, error),
                         VB_BAD_ARGUMENT);
        assert_non_null(strstr(error, "f: "));
        json_decref(tools);
    }
}

TEST(missing_memory_is_an_error_and_nothing_leaks)
{
    static const char parameters[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"enum\": [1, [2], \"x\"]},"
                                     " \"c\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}}, \"additionalProperties\": {}}";
    json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s, s:o}}]", "function", "name", "g", "function", "name", "f", "parameters", parsed(parameters));
    for (size_t i = 0; i < COUNT(formats); i++) {
        unsigned char byte[MEANING_MARKS];
        choose_bytes(formats[i], 1, byte);
        int rc = VB_NO_MEMORY;
        long n = 0;
        for (; rc; n++) {
            struct schema *s;
            char error[512];
            failing = n;
            rc = schema_of_calls(&s, &(struct schema_calls){.calls = formats[i], .mark_byte = byte, .tools = tools, .most = 2}, error);
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
        cmocka_unit_test(missing_memory_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
