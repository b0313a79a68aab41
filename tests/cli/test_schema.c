/* tests/cli/test_schema.c -- the automaton of a JSON schema (tools/serve/schema.h): it accepts what satisfies the
 * schema, within the limits of the header, and nothing else; every accepted prefix can be completed; what is not
 * supported is refused by name.
 *
 *     test_schema --judge        reads lines {"schema": S, "texts": [...]}, prints for each the verdicts, 1 or 0, or
 *                                why S is refused; tests/cli/against_jsonschema.py compares them with the Python
 *                                package */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/verbatim.h"
#include "tests/support/schemas.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- helpers ---- */

static struct schema *opened(const char *text)
{
    json_t *json = text ? parsed(text) : NULL;
    struct schema *s = opened_json(json);
    json_decref(json);
    return s;
}

/* texts: those that are accepted, NULL, and those that are not, NULL. */
static void check_texts(const char *schema, const char *const *texts)
{
    struct schema *s = opened(schema);
    for (int wanted = 1; wanted >= 0; wanted--, texts++)
        for (; *texts; texts++)
            if (accepts(s, *texts) != wanted)
                fail_msg("%s %s %s", schema ? schema : "any object", wanted ? "refuses" : "accepts", *texts);
    schema_close(s);
}
#define CHECK(schema, ...) check_texts(schema, (const char *const[]){__VA_ARGS__, NULL})

static void check_refused(const char *schema, int code, const char *says)
{
    struct schema *s = NULL;
    char error[512];
    json_t *json = parsed(schema);
    int rc = schema_open(&s, json, error);
    json_decref(json);
    if (rc != code || !strstr(error, says) || s)
        fail_msg("%s: code %d, \"%s\"; wanted %d, \"%s\"", schema, rc, error, code, says);
}

/* ---- what is accepted ---- */

TEST(scalars_have_their_types)
{
    CHECK("{\"type\": \"integer\"}", "0", "-0", "7", " 12", "\n\n-123456789012345678", NULL, "", "-", "01", "1.0",
          "1e3", "+1", "\"1\"", "1234567890123456789", "1 ", "null");
    CHECK("{\"type\": \"number\"}", "0", "-0.5", "1e5", "1E-05", "1.5e+10", "0.12345678901234567890", NULL, "1.", ".5",
          "1e", "1e100", "0.123456789012345678901", "00", "0x1", "NaN");
    CHECK("{\"type\": \"boolean\"}", "true", "false", NULL, "tru", "True", "0", "truefalse");
    CHECK("{\"type\": \"null\"}", "null", "  null", NULL, "   null", "nul", "null ");
    CHECK("{\"type\": [\"null\", \"integer\"]}", "null", "5", NULL, "\"\"", "5.5", "[]");
    CHECK("{}", "null", "5", "\"\"", "[1, {\"a\": []}]", "{\"a\": 1, \"a\": 2}", NULL, "", "[1,]", "{,}", "{\"a\"}",
          "[", "nulll");
    CHECK("true", "1", NULL, "");
    CHECK(NULL, "{}", "{\"a\": {\"b\": [1, 2.5e3, \"x\", null, true]}}", NULL, "[]", "1", "null", "{} ", "{\"a\": 1,}");
}

TEST(strings_are_valid_and_count_characters)
{
    CHECK("{\"type\": \"string\"}", "\"\"", "\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\u0041\\ud83d\\uDE00\"",
          "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\"\x7f\\u0001\\u1000\"", NULL, "\"", "a", "\"\n\"", "\"\\x\"",
          "\"\\u00g0\"", "\"\\u0000\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83dx\"", "\"\\ud83d\\n\"",
          "\"\\ud83d\\ud83d\"", "\"\xff\"", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"a\"b");
    CHECK("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"ab\"",
          "\"\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac\"", "\"\\ud83d\\ude00\\n\\u00e9\"", NULL, "\"a\"", "\"\xc3\xa9\"",
          "\"abcd\"", "\"\\ud83d\\ude00\"", "\"\\n\\n\\n\\n\"", "\"abc\xc3\xa9\"");
    CHECK("{\"type\": \"string\", \"maxLength\": 0}", "\"\"", NULL, "\"a\"", "\"\\n\"");
}

TEST(every_sequence_of_bytes_is_judged_as_utf8)
{
    struct schema *s = opened("{\"type\": \"string\"}");
    for (unsigned first = 0x80; first < 0x100; first++)
        for (unsigned second = 0x7e; second < 0xc2; second++)
            for (int n = 1; n <= 4; n++) {
                char text[8] = {'"', (char)first, (char)second, (char)0xbf, (char)0x80};
                text[n + 1] = '"';
                int wanted = vb_utf8_valid(text, (size_t)n + 2) == (size_t)n + 2;
                if (accepts_bytes(s, text, (size_t)n + 2) != wanted)
                    fail_msg("%02x %02x, %d bytes: wanted %d", first, second, n, wanted);
            }
    schema_close(s);
}

TEST(objects_have_the_properties_of_the_schema_in_its_order)
{
    CHECK("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"ab\": {}, \"b\": {\"type\": "
          "\"null\"}}, \"required\": [\"ab\"]}",
          "{\"ab\":1}", "{ \"a\" : 1 , \"ab\" : {} , \"b\" : null }", "{\"a\":1,\"ab\":2}", "{\"ab\":2,\"b\":null}",
          NULL, "{}", "{\"a\":1}", "{\"a\":1,\"b\":null}", "{\"ab\":1,\"a\":1}", "{\"ab\":1,\"ab\":1}",
          "{\"ab\":1,\"c\":1}", "{\"b\":null,\"ab\":1}", "{\"ab\":1,}", "{\"ab\" 1}", "{\"\\u0061b\":1}");
    CHECK("{\"type\": \"object\", \"properties\": {\"b\": {\"type\": \"integer\"}, \"d\": {\"type\": \"integer\"}}, "
          "\"required\": [\"d\"],"
          " \"additionalProperties\": {\"type\": \"null\"}}",
          "{\"d\":1}", "{\"x\":null,\"d\":1,\"x\":null,\"bb\":null}", "{\"\\u0062\":1,\"d\":2}", "{\"\":null,\"d\":2}",
          NULL, "{\"x\":null}", "{\"x\":1,\"d\":1}", "{\"d\":null}", "{\"d\":1,\"b\":null}",
          "{\"d\":1,\"\\u0062\":null}", "{\"d\":1,\"b\":2}", "{\"d\":1,\"d\":1}");
    CHECK("{\"type\": \"object\", \"properties\": {\"\xc3\xa9\": {}, \"\xf0\x9f\x98\x80\": {}}, "
          "\"additionalProperties\": true}",
          "{\"\\u00e9\":1,\"\\ud83d\\ude00\":1}", "{\"\\ud83d\\ude01\":1,\"\xf0\x9f\x98\x80\":1}", NULL,
          "{\"\\ud83d\\ude00\":1,\"\\u00e9\":1}");
    CHECK("{\"type\": \"object\"}", "{}", "{ }", NULL, "{\"a\":1}");
    CHECK("{\"type\": \"object\", \"additionalProperties\": true, \"required\": [\"q\"]}", "{\"q\":1}",
          "{\"a\":2,\"q\":1}", NULL, "{}", "{\"a\":1}");
    CHECK("{\"properties\": {\"q\\\"\\n\": {}}}", "{\"q\\\"\\n\": 1}", "{}", NULL, "1", "{\"q\": 1}");
}

TEST(arrays_have_items_within_their_counts)
{
    CHECK("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", "[]", "[1]", "[ 1 , 2 ]",
          "[1,2,3,4,5,6,7,8,9,10]", NULL, "[1,]", "[,1]", "[\"\"]", "[1 2]", "[1");
    CHECK("{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 3}", "[1,null]", "[[],{},\"\"]", NULL, "[]", "[1]",
          "[1,2,3,4]");
    CHECK("{\"type\": \"array\", \"prefixItems\": [{\"type\": \"null\"}, {\"type\": \"boolean\"}], \"items\": "
          "{\"type\": \"integer\"}, \"minItems\": 1}",
          "[null]", "[null,true]", "[null,true,1,2,3]", NULL, "[]", "[true]", "[null,1]", "[null,true,null]");
    CHECK("{\"type\": \"array\", \"prefixItems\": [{\"type\": \"null\"}], \"items\": false}", "[]", "[null]", NULL,
          "[null,null]", "[1]");
    CHECK("{\"type\": \"array\", \"maxItems\": 0}", "[]", "[ ]", NULL, "[1]");
    CHECK("{\"type\": \"array\", \"items\": false}", "[]", NULL, "[1]");
}

TEST(constants_are_written_in_one_way)
{
    CHECK("{\"enum\": [1, 12, 123.5, -0.1, \"a\", \"ab\", \"\\u0001\\n\\\"\xc3\xa9\", null, 2.0, 1e300]}",
          "1", "12", "123.5", "-0.1", "\"a\"", "\"ab\"", "\"\\u0001\\n\\\"\xc3\xa9\"", "null", "2", "1e300", NULL,
          "123", "2.0", "-0.10", "\"abc\"", "\"\"", "13", "true", "\"\\u0061\"", "1e0");
    CHECK("{\"const\": {\"a\": [1, {}], \"b\": \"x\"}}", "{\"a\":[1,{}],\"b\":\"x\"}",
          "{ \"a\": [1, { }], \"b\": \"x\"}", NULL, "{\"b\":\"x\",\"a\":[1,{}]}", "{\"a\":[1]}",
          "{\"a\":[1,{}],\"b\":\"x\",\"c\":1}", "{\"a\":[1,{}]}", "{\"a\":[1,{},1],\"b\":\"x\"}");
    CHECK("{\"enum\": [[], [1], {}, 7]}", "[]", "[1]", "{}", "7", NULL, "[1,1]", "[2]", "8");
    CHECK("{\"type\": \"string\", \"enum\": [\"a\", 1, \"abc\", null], \"minLength\": 2}", "\"abc\"", NULL, "\"a\"",
          "1", "null");
    CHECK("{\"type\": \"integer\", \"enum\": [1.5, 2.0, 3]}", "2", "3", NULL, "1.5");
    CHECK("{\"type\": \"array\", \"items\": {\"anyOf\": [{\"enum\": [1]}, {\"type\": \"integer\"}, {\"type\": "
          "\"number\"}]}}",
          "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[12.5]", NULL, "[1.]");
}

TEST(alternatives_and_references_are_followed)
{
    CHECK("{\"anyOf\": [{\"type\": \"string\", \"maxLength\": 1}, {\"const\": \"long\"}, {\"type\": \"integer\"}]}",
          "\"x\"", "\"long\"", "5", NULL, "\"lo\"", "null");
    CHECK("{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"a\"}, \"v\": {\"type\": "
          "\"integer\"}}, \"required\": [\"k\", \"v\"]},"
          " {\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"b\"}, \"v\": {\"type\": \"null\"}}, "
          "\"required\": [\"k\", \"v\"]}]}",
          "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":null}", NULL, "{\"k\":\"a\",\"v\":null}",
          "{\"k\":\"b\",\"v\":1}", "{\"k\":\"a\"}");
    CHECK("{\"$ref\": \"#/$defs/list\", \"$defs\": {\"list\": {\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\","
          " \"properties\": {\"next\": {\"$ref\": \"#/$defs/list\"}}, \"required\": [\"next\"]}]}}}",
          "null", "{\"next\":{\"next\":null}}", NULL, "{}", "{\"next\":{}}");
    CHECK("{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", "[]", "[[],[[]]]", NULL, "[1]");
    CHECK("{\"$ref\": \"#/$defs/a~1b%20~0c~01/enum\", \"$defs\": {\"a/b ~c~1\": {\"enum\": {\"type\": \"null\"}}}}",
          "null", NULL, "1");
    CHECK("{\"type\": \"array\", \"prefixItems\": [{\"type\": \"null\"}, {\"$ref\": \"#/prefixItems/0\"}], \"items\": "
          "false}",
          "[null,null]", NULL, "[null,1]");
    CHECK("{\"oneOf\": [{\"type\": \"string\"}, {\"type\": [\"integer\", \"null\"]}, {\"const\": true}]}", "\"\"", "1",
          "null", "true", NULL, "false", "1.5");
    CHECK("{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"enum\": [\"a\", \"c\"]}}, \"required\": "
          "[\"k\"]}, {\"type\": \"object\","
          " \"properties\": {\"k\": {\"const\": \"b\"}}, \"required\": [\"k\"]},"
          " {\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}]}",
          "{\"k\":\"a\"}", "{\"k\":\"b\"}", "{}", NULL, "{\"k\":\"d\"}");
}

/* ---- limits ---- */

static void nested(char *text, int depth)
{
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = '\0';
}

TEST(depth_and_white_space_are_bounded)
{
    char text[1024];
    struct schema *s = opened("{}");
    nested(text, SCHEMA_DEPTH);
    assert_int_equal(accepts(s, text), 1);
    nested(text, SCHEMA_DEPTH + 1);
    assert_int_equal(accepts(s, text), 0);
    for (int depth = 0; depth < 4; depth++)
        for (int more = 0; more < 2; more++) {
            int blanks = SCHEMA_BLANKS + SCHEMA_INDENT * depth + more;
            snprintf(text, sizeof text, "%.*s%*s1%.*s", depth, "[[[[", blanks, "", depth, "]]]]");
            assert_int_equal(accepts(s, text), !more);
        }
    schema_close(s);
    /* one whose values are of every even depth, and whose deepest ones must still end */
    s = opened("{\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": "
               "1}}");
    memset(text, '[', SCHEMA_DEPTH - 1);
    text[SCHEMA_DEPTH - 1] = '\0';
    assert_true(SCHEMA_DEPTH % 2 == 0);
    struct schema_state *state;
    assert_int_equal(schema_begin(&state, s), 0);
    for (int i = 0; i < SCHEMA_DEPTH - 1; i++)
        assert_int_equal(schema_byte(state, '['), 1);
    assert_int_equal(schema_byte(state, '['), 0); /* would need one more inside */
    assert_int_equal(schema_byte(state, ']'), 1);
    schema_state_close(state);
    schema_close(s);
}

/* ---- refusals ---- */

TEST(keywords_that_are_not_supported_are_refused_by_name)
{
    static const char *const keywords[] = {"pattern", "format", "minimum", "maximum", "exclusiveMinimum",
                                           "exclusiveMaximum", "multipleOf", "uniqueItems", "contains", "minContains",
                                           "maxContains", "minProperties", "maxProperties", "patternProperties",
                                           "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
                                           "unevaluatedItems", "unevaluatedProperties", "additionalItems", "allOf",
                                           "not", "if", "then", "else", "$id", "id", "$anchor", "$dynamicRef",
                                           "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary",
                                           "contentEncoding", "contentMediaType", "contentSchema", "deprecated",
                                           "readOnly", "writeOnly", "nullable", "strict", "Type"};
    for (size_t i = 0; i < COUNT(keywords); i++) {
        char schema[256], says[128];
        snprintf(schema, sizeof schema,
                 "{\"type\": \"object\", \"properties\": {\"a/b\": {\"anyOf\": [{}, {\"type\": \"array\","
                 " \"items\": {\"%s\": 1}}]}}}",
                 keywords[i]);
        snprintf(says, sizeof says, "the schema at #/properties/a~1b/anyOf/1/items: the keyword %s is not supported",
                 keywords[i]);
        check_refused(schema, VB_UNSUPPORTED, says);
        snprintf(schema, sizeof schema, "{\"%s\": 1}", keywords[i]);
        snprintf(says, sizeof says, "the schema at #: the keyword %s is not supported", keywords[i]);
        check_refused(schema, VB_UNSUPPORTED, says);
    }
    CHECK("{\"title\": 1, \"description\": 2, \"default\": 3, \"examples\": 4, \"$schema\": 5, \"$comment\": 6,"
          " \"$defs\": {\"unused\": {\"pattern\": 1}}, \"type\": \"null\"}", "null", NULL, "1");
}

TEST(schemas_that_are_none_are_refused)
{
    check_refused("1", VB_BAD_ARGUMENT, "the schema at #: a schema must be an object, true or false");
    check_refused("{\"type\": \"strnig\"}", VB_BAD_ARGUMENT, "type must be");
    check_refused("{\"type\": [\"null\", 1]}", VB_BAD_ARGUMENT, "type must be");
    check_refused("{\"type\": []}", VB_BAD_ARGUMENT, "type must be");
    check_refused("{\"enum\": []}", VB_BAD_ARGUMENT, "enum must be");
    check_refused("{\"enum\": [1], \"const\": 1}", VB_UNSUPPORTED, "enum beside const");
    check_refused("{\"anyOf\": []}", VB_BAD_ARGUMENT, "anyOf must be");
    check_refused("{\"anyOf\": [{}], \"type\": \"null\"}", VB_UNSUPPORTED, "type beside anyOf");
    check_refused("{\"$ref\": \"#\", \"minItems\": 1}", VB_UNSUPPORTED, "minItems beside $ref");
    check_refused("{\"$ref\": \"other.json\"}", VB_UNSUPPORTED, "$ref other.json is not supported");
    check_refused("{\"$ref\": \"#name\"}", VB_UNSUPPORTED, "$ref #name is not supported");
    check_refused("{\"$ref\": \"#/$defs/gone\"}", VB_BAD_ARGUMENT, "$ref #/$defs/gone leads to nothing");
    check_refused("{\"items\": {\"$ref\": \"#/$defs/x\"}, \"$defs\": {\"x\": {\"type\": 1}}}", VB_BAD_ARGUMENT,
                  "the schema at #/$defs/x: type");
    check_refused("{\"type\": \"string\", \"minLength\": -1}", VB_BAD_ARGUMENT, "minLength must be");
    check_refused("{\"type\": \"string\", \"maxLength\": 1.5}", VB_BAD_ARGUMENT, "maxLength must be");
    check_refused("{\"type\": \"array\", \"maxItems\": 1e300}", VB_UNSUPPORTED, "maxItems above");
    check_refused("{\"type\": \"array\", \"items\": [{}]}", VB_UNSUPPORTED, "a list as items");
    check_refused("{\"type\": \"object\", \"required\": [\"x\"]}", VB_BAD_ARGUMENT, "required has the name x");
    check_refused("{\"type\": \"object\", \"required\": 1}", VB_BAD_ARGUMENT, "required must be");
    check_refused("{\"type\": \"object\", \"properties\": []}", VB_BAD_ARGUMENT, "properties must be");
    check_refused("{\"enum\": [[1]], \"items\": {}}", VB_UNSUPPORTED, "enum with objects or arrays");
    check_refused("{\"type\": \"object\", \"properties\": {\"a\\nb\": 1}}", VB_BAD_ARGUMENT,
                  "the schema at #/properties/a?b: a schema must be");
}

TEST(schemas_that_nothing_satisfies_are_refused)
{
    static const char
        *const none[] = {"false", "{\"$ref\": \"#\"}", "{\"anyOf\": [{\"$ref\": \"#\"}]}",
                         "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 1}",
                         "{\"type\": \"array\", \"items\": false, \"minItems\": 1}",
                         "{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 1}",
                         "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}",
                         "{\"type\": \"null\", \"enum\": [1]}"};
    for (size_t i = 0; i < COUNT(none); i++)
        check_refused(none[i], VB_BAD_ARGUMENT, "the schema at #: no value");
    CHECK("{\"type\": \"object\", \"properties\": {\"a\": false, \"b\": {}}}", "{}", "{\"b\":1}", NULL, "{\"a\":1}");
}

TEST(one_of_whose_branches_overlap_is_refused)
{
    static const char *const overlap[] = {"[{\"type\": \"integer\"}, {\"type\": \"number\"}]",
                                          "[{\"type\": \"string\"}, {\"const\": \"a\"}]", "[{}, {\"type\": \"null\"}]",
                                          "[{\"type\": \"string\"}, {\"type\": \"string\", \"minLength\": 2}]",
                                          "[{\"enum\": [1, 2]}, {\"enum\": [2, 3]}]",
                                          "[{\"type\": \"array\"}, {\"type\": \"array\"}]",
                                          ("[{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 1}}}, "
                                           "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 2}},"
                                           " \"required\": [\"k\"]}]"),
                                          "[{\"properties\": {\"k\": {}}}, {\"type\": \"string\"}]"};
    for (size_t i = 0; i < COUNT(overlap); i++) {
        char schema[400];
        snprintf(schema, sizeof schema, "{\"oneOf\": %s}", overlap[i]);
        check_refused(schema, VB_UNSUPPORTED,
                      "the schema at #: oneOf is supported where its branches exclude each other, and branches 0 and 1 "
                      "may not");
    }
}

/* ---- random schemas ---- */

TEST(what_satisfies_random_schemas_is_accepted_and_nothing_else)
{
    size_t accepted = 0, refused = 0, hopeless = 0;
    for (int i = 0; i < 1500; i++) {
        chance_state = (uint64_t)i << 20;
        json_t *root = random_document();
        struct schema *s;
        char error[512];
        int rc = schema_open(&s, root, error);
        if (rc && !strstr(error, "no value"))
            fail_msg("%s: %s", json_dumps(root, JSON_ENCODE_ANY), error);
        hopeless += rc != 0;
        for (int k = 0; k < 12; k++) {
            json_t *value = random_value(root, root, 6);
            char *text = written(value);
            int wanted = judge(root, root, value), is = rc ? 0 : accepts(s, text);
            if (is != wanted)
                fail_msg("schema %d is %s\nthe value %s: %d, wanted %d", i, json_dumps(root, JSON_ENCODE_ANY), text, is,
                         wanted);
            accepted += wanted;
            refused += !wanted;
            free(text);
            json_decref(value);
        }
        schema_close(s);
        json_decref(root);
    }
    print_message("%zu values accepted, %zu refused; %zu schemas without values\n", accepted, refused, hopeless);
    assert_true(accepted > 3000 && refused > 3000 && hopeless < 400);
}

/* Whether all of a text is accepted after `state`. */
static int may_follow(const struct schema_state *state, struct schema_state *scratch, const char *text, size_t size)
{
    int rc = 1;
    assert_int_equal(schema_state_copy(scratch, state), 0);
    for (size_t i = 0; i < size && rc == 1; i++)
        rc = schema_byte(scratch, (unsigned char)text[i]);
    assert_true(rc == 0 || rc == 1);
    return rc;
}

/* What a walk appends: any byte that is accepted, and towards the end something that leads there, where there is such a
 * thing. */
static size_t next_bytes(const struct schema_state *state, int ending, struct schema_state *scratch, char next[16])
{
    static const char *const keys[] = {"\"a\":", "\"aa\":", "\"ab\":", "\"b\":", "\"c\\\"\\\\\":", "\"d\":",
                                       "\"e\xc3\xa9\":", "\"f\":", "\"z\":"};
    static const char closers[] = "}]\"0123456789:,q";
    char allowed[256];
    uint32_t n = 0, first = chance(COUNT(keys));
    int in_string = may_follow(state, scratch, "!q", 2);
    for (int i = in_string ? 2 : 0; ending && i < 3; i++)
        if (may_follow(state, scratch, &closers[i], 1) && (i < 2 || in_string)) {
            next[0] = closers[i];
            return 1;
        }
    for (uint32_t i = 0; ending && !in_string && i < COUNT(keys); i++) {
        const char *key = keys[(first + i) % COUNT(keys)];
        if (may_follow(state, scratch, key, strlen(key)))
            return (size_t)snprintf(next, 16, "%s", key);
    }
    for (const char *c = closers; ending && *c; c++)
        if (may_follow(state, scratch, c, 1)) {
            next[0] = *c;
            return 1;
        }
    for (int c = 0; c < 256; c++)
        if (may_follow(state, scratch, &(char){(char)c}, 1))
            allowed[n++] = (char)c;
    next[0] = n ? allowed[chance(n)] : 0;
    return n > 0;
}

TEST(random_walks_end_in_values_that_satisfy_the_schema)
{
    size_t ended = 0, begun = 0, bytes = 0;
    for (int i = 0; i < 700; i++) {
        chance_state = 77 + ((uint64_t)i << 20);
        json_t *root = i ? random_document() : NULL;
        struct schema *s;
        char error[512], text[16384];
        size_t n = 0;
        if (schema_open(&s, root, error)) {
            json_decref(root);
            continue;
        }
        struct schema_state *state, *scratch;
        assert_int_equal(schema_begin(&state, s), 0);
        assert_int_equal(schema_begin(&scratch, s), 0);
        while (!(schema_may_end(state) && (n > 60 || !chance(3)))) {
            size_t more = next_bytes(state, n > 60, scratch, text + n);
            if (!more && schema_may_end(state))
                break;
            if (n > sizeof text - 20)
                break; /* recursive schemas can make a walk long */
            if (!more)
                fail_msg("schema %d: ... %.*s goes nowhere", i, n > 100 ? 100 : (int)n, text + (n > 100 ? n - 100 : 0));
            while (more--)
                assert_int_equal(schema_byte(state, (unsigned char)text[n++]), 1);
        }
        int whole = schema_may_end(state);
        json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        text[n] = '\0';
        if (!value != !whole || (value && !(root ? judge(root, root, value) : json_is_object(value))))
            fail_msg("schema %d is %s\nthe walk made %.400s", i, json_dumps(root, JSON_ENCODE_ANY), text);
        ended += whole;
        begun++;
        bytes += n;
        json_decref(value);
        schema_state_close(state);
        schema_state_close(scratch);
        schema_close(s);
        json_decref(root);
    }
    print_message("%zu walks of %zu bytes, %zu of them ended\n", begun, bytes, ended);
    assert_true(ended > 500 && begun - ended < 10);
}

/* ---- states ---- */

TEST(states_are_equal_where_they_accept_the_same)
{
    static const char *const pairs[][2] = {{"{\"a\":1,", "{ \"a\" : 2,"}, {"{\"a\":[1,2,3", "{\"a\":[12345,1,9"},
                                           {"{\"x\":{\"y\":[]", "{\"zz\":{\"q\":[1,{}]"},
                                           {"{\"x\":\"abc", "{\"y\":\""}};
    struct schema
        *s = opened("{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}, \"additionalProperties\": true}");
    struct schema_state *state[2];
    for (size_t i = 0; i < COUNT(pairs); i++) {
        for (int k = 0; k < 2; k++) {
            assert_int_equal(schema_begin(&state[k], s), 0);
            for (const char *c = pairs[i][k]; *c; c++)
                assert_int_equal(schema_byte(state[k], (unsigned char)*c), 1);
        }
        assert_true(schema_state_equal(state[0], state[1]));
        assert_true(schema_state_hash(state[0]) == schema_state_hash(state[1]));
        assert_int_equal(schema_byte(state[0], '\x01'), 0); /* refused: nothing changes */
        assert_true(schema_state_equal(state[0], state[1]));
        assert_int_equal(schema_byte(state[0], i < 2 ? ' ' : i == 2 ? ',' : '"'), i != 1 ? 1 : 1);
        assert_false(schema_state_equal(state[0], state[1]));
        assert_int_equal(schema_state_copy(state[0], state[1]), 0);
        assert_true(schema_state_equal(state[0], state[1]));
        for (int k = 0; k < 2; k++)
            schema_state_close(state[k]);
    }
    schema_close(s);
}

/* ---- for another judge ---- */

static int judge_lines(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        json_t *request = json_loads(line, JSON_ALLOW_NUL, NULL), *text;
        struct schema *s;
        char error[512];
        size_t i;
        int rc = schema_open(&s, json_object_get(request, "schema"), error);
        if (rc)
            printf("%s", error);
        else
            json_array_foreach(json_object_get(request, "texts"), i, text)
                printf("%d", accepts_bytes(s, json_string_value(text), json_string_length(text)));
        printf("\n");
        fflush(stdout);
        schema_close(s);
        json_decref(request);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_have_their_types),
        cmocka_unit_test(strings_are_valid_and_count_characters),
        cmocka_unit_test(every_sequence_of_bytes_is_judged_as_utf8),
        cmocka_unit_test(objects_have_the_properties_of_the_schema_in_its_order),
        cmocka_unit_test(arrays_have_items_within_their_counts),
        cmocka_unit_test(constants_are_written_in_one_way),
        cmocka_unit_test(alternatives_and_references_are_followed),
        cmocka_unit_test(depth_and_white_space_are_bounded),
        cmocka_unit_test(keywords_that_are_not_supported_are_refused_by_name),
        cmocka_unit_test(schemas_that_are_none_are_refused),
        cmocka_unit_test(schemas_that_nothing_satisfies_are_refused),
        cmocka_unit_test(one_of_whose_branches_overlap_is_refused),
        cmocka_unit_test(what_satisfies_random_schemas_is_accepted_and_nothing_else),
        cmocka_unit_test(random_walks_end_in_values_that_satisfy_the_schema),
        cmocka_unit_test(states_are_equal_where_they_accept_the_same),
    };
    return argc > 1 && !strcmp(argv[1], "--judge") ? judge_lines() : cmocka_run_group_tests(tests, NULL, NULL);
}
