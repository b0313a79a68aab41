/* tests/cli/test_schema_hostile.c -- hostile JSON schemas and missing memory end in an error (tools/serve/schema.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/verbatim.h"
#include "tests/support/failing.h"
#include "tests/support/schemas.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))

/* ---- hostile schemas ---- */

/* {"anyOf": [X, X]} around itself: 2^depth ways to read the same text. */
static json_t *doubled(int depth, int objects)
{
    json_t *schema = json_pack("{s:s}", "type", "integer");
    for (int i = 0; i < depth; i++) {
        json_t *copy = json_deep_copy(schema);
        if (objects) {
            schema = json_pack("{s:s, s:{s:o}, s:[s]}", "type", "object", "properties", "a", schema, "required", "a");
            copy = json_pack("{s:s, s:{s:o}, s:[s]}", "type", "object", "properties", "a", copy, "required", "a");
        }
        schema = json_pack("{s:[o, o]}", "anyOf", schema, copy);
    }
    return schema;
}

static void check_too_large(json_t *json, const char *says)
{
    struct schema *s;
    char error[512];
    assert_int_equal(schema_open(&s, json, error), VB_UNSUPPORTED);
    if (!strstr(error, says))
        fail_msg("\"%s\", wanted \"%s\"", error, says);
    json_decref(json);
}

TEST(hostile_schemas_are_bounded)
{
    json_t *json = json_object(), *list;
    for (int i = 0; i < 1000; i++) /* deep nesting */
        json = json_pack("{s:s, s:o}", "type", "array", "items", json);
    struct schema *s = opened_json(json);
    assert_int_equal(accepts(s, "[[[]]]"), 1);
    schema_close(s);
    json = json_pack("{s:s, s:o, s:i}", "type", "array", "items", json, "minItems", 1);
    s = opened_json(json);
    assert_int_equal(accepts(s, "[[[]]]"), 1);
    schema_close(s);
    json_decref(json);

    check_too_large(doubled(14, 0), "more than 16384 subschemas");
    json = doubled(12, 0); /* alternatives of alternatives of one type: as many leaves */
    check_too_large(json, "too many alternatives for one value");
    json = doubled(9, 1);
    s = opened_json(json);
    struct schema_state *state;
    int rc = 1;
    assert_int_equal(schema_begin(&state, s), 0);
    for (int i = 0; i < 9 && rc == 1; i++)
        for (const char *c = "{\"a\":"; *c && rc == 1; c++)
            rc = schema_byte(state, (unsigned char)*c);
    assert_int_equal(rc, VB_UNSUPPORTED); /* 2^9 threads */
    schema_state_close(state);
    schema_close(s);
    json_decref(json);

    list = json_array();
    for (int i = 0; i < 60000; i++)
        json_array_append_new(list, json_sprintf("%d", i));
    json = json_pack("{s:O}", "enum", list);
    s = opened_json(json);
    assert_int_equal(accepts(s, "\"54321\""), 1);
    assert_int_equal(accepts(s, "\"60000\""), 0);
    schema_close(s);
    json_decref(json);
    for (int i = 0; i < 6000; i++)
        json_array_append_new(list, json_sprintf("%d", i + 100000));
    check_too_large(json_pack("{s:o}", "enum", list), "more than 65536 properties");
    list = json_array();
    for (int i = 0; i < 20; i++)
        json_array_append_new(list, json_sprintf("%*d", 300000, i));
    check_too_large(json_pack("{s:o}", "enum", list), "bytes of keys and constants");

    json = json_object(); /* a long chain of $ref */
    list = json_object();
    for (int i = 0; i < 10000; i++) {
        char name[16], ref[32];
        snprintf(name, sizeof name, "%d", i);
        snprintf(ref, sizeof ref, "#/$defs/%d", i + 1);
        json_object_set_new(list, name, json_pack("{s:s}", "$ref", ref));
    }
    json_object_set_new(json, "$ref", json_string("#/$defs/0"));
    json_object_set_new(json, "$defs", list);
    json_object_set_new(list, "10000", json_true());
    check_too_large(json, "too many alternatives of alternatives");
}

/* ---- missing memory ---- */

TEST(missing_memory_is_an_error_and_nothing_leaks)
{
    static const char text[] = "{\"a\":[1,\"\\u00e9x\",{\"k\":null}],\"c\":true,\"z\":null}";
    json_t *json = parsed("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\"}, \"b\": {\"enum\": [1, "
                          "[2], \"x\", 1.25]},"
                          " \"c\": {\"oneOf\": [{\"type\": \"null\"}, {\"type\": \"boolean\"}]}},"
                          " \"required\": [\"a\", \"z\"], \"additionalProperties\": {\"$ref\": \"#/$defs/q\"}, "
                          "\"$defs\": {\"q\": {\"anyOf\": [true,"
                          " {\"const\": {\"k\": 1}}]}}}");
    struct schema_state *state = NULL, *copy = NULL;
    struct schema *s = NULL;
    char error[512];
    int rc = VB_NO_MEMORY;
    long n = 0;
    for (; rc; n++) {
        failing = n;
        rc = schema_open(&s, json, error);
        int all_done = failing >= 0;
        failing = -1;
        if (rc != (all_done ? 0 : VB_NO_MEMORY) && !(rc == VB_OK && all_done))
            fail_msg("allocation %ld: %d, %s", n, rc, error);
    }
    assert_true(n > 20);
    for (rc = VB_NO_MEMORY, n = 0; rc != 1; n++) {
        failing = n;
        rc = schema_begin(&state, s);
        if (!rc)
            rc = schema_begin(&copy, s);
        rc = rc ? rc : 1;
        for (const char *c = text; *c && rc == 1; c++)
            rc = schema_byte(state, (unsigned char)*c);
        if (rc == 1)
            rc = schema_state_copy(copy, state) ? VB_NO_MEMORY : 1;
        failing = -1;
        assert_true(rc == 1 || rc == VB_NO_MEMORY);
        if (rc == 1)
            assert_true(schema_state_equal(copy, state));
        schema_state_close(state);
        schema_state_close(copy);
        state = copy = NULL;
    }
    assert_true(n > 4);
    schema_close(s);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_schemas_are_bounded),
        cmocka_unit_test(missing_memory_is_an_error_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
