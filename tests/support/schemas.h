/* tests/support/schemas.h -- random JSON schemas and values, and a second implementation of the rules by which a value
 * satisfies a schema (judge). It was written from the specification and shares no code with tools/serve. The properties
 * of a random schema and the keys in the text of a value are in ascending order. Include this header after cmocka.h. */
#ifndef VB_TEST_SCHEMAS_H
#define VB_TEST_SCHEMAS_H

#include "tools/serve/schema.h"
#include "numbers/numbers.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ---- */

static uint64_t chance_state;

static inline uint32_t chance(uint32_t n) /* splitmix64 */
{
    uint64_t z = splitmix64_next(&chance_state);
    return n ? (uint32_t)(z % n) : 0;
}

/* ---- the judge ---- */

static inline size_t judge_length(const json_t *string)
{
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)json_string_value(string),
                             *end = c + json_string_length(string);
         c < end; c++)
        n += *c < 0x80 || *c >= 0xc0;
    return n;
}

static inline int judge_equal(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    size_t i;
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b))
        return 0;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return 0;
        json_array_foreach(a, i, value)
            if (!judge_equal(value, json_array_get(b, i)))
                return 0;
        return 1;
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return 0;
    json_object_foreach((json_t *)(uintptr_t)a, name, value)
        if (!json_object_get(b, name) || !judge_equal(value, json_object_get(b, name)))
            return 0;
    return 1;
}

static inline int judge_type(const char *type, const json_t *value)
{
    /* 1.0 is not written */
    return (!strcmp(type, "string") && json_is_string(value)) || (!strcmp(type, "integer") && json_is_integer(value)) ||
           (!strcmp(type, "number") && json_is_number(value)) || (!strcmp(type, "boolean") && json_is_boolean(value)) ||
           (!strcmp(type, "null") && json_is_null(value)) || (!strcmp(type, "object") && json_is_object(value)) ||
           (!strcmp(type, "array") && json_is_array(value));
}

static inline int judge(const json_t *root, const json_t *schema, const json_t *value);

/* Finds the schema that `ref` names. `ref` is #, #/$defs/NAME or #/definitions/NAME, and NAME has no escape
 * sequences. */
static inline const json_t *judge_reference(const json_t *root, const char *ref)
{
    const char *slash = strrchr(ref, '/');
    const json_t *defs = json_object_get(root, !strncmp(ref, "#/$defs/", 8) ? "$defs" : "definitions");
    return slash ? json_object_get(defs, slash + 1) : root;
}

static inline int judge_object(const json_t *root, const json_t *schema, const json_t *value)
{
    json_t *properties = json_object_get(schema, "properties"), *more = json_object_get(schema, "additionalProperties"),
           *member, *name;
    const char *key;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)value, key, member) {
        const json_t *named = json_object_get(properties, key);
        if (named ? !judge(root, named, member) : !more || !judge(root, more, member))
            return 0;
    }
    json_array_foreach(json_object_get(schema, "required"), i, name)
        if (!json_object_get(value, json_string_value(name)))
            return 0;
    return 1;
}

static inline int judge_array(const json_t *root, const json_t *schema, const json_t *value)
{
    json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items"),
           *least = json_object_get(schema, "minItems"), *most = json_object_get(schema, "maxItems"), *item;
    size_t i, n = json_array_size(value);
    if ((least && (double)n < json_number_value(least)) || (most && (double)n > json_number_value(most)))
        return 0;
    json_array_foreach(value, i, item) {
        const json_t *its = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (its && !judge(root, its, item))
            return 0;
    }
    return 1;
}

static inline int judge_one_of(const json_t *root, const json_t *schema, const json_t *value)
{
    json_t *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "oneOf"), *branch;
    size_t i, n = 0, m = 0;
    json_array_foreach(any, i, branch)
        n += judge(root, branch, value) != 0;
    json_array_foreach(one, i, branch)
        m += judge(root, branch, value) != 0;
    return (!any || n) && (!one || m == 1);
}

static inline int judge_keywords(const json_t *root, const json_t *schema, const json_t *value)
{
    json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"),
           *constant = json_object_get(schema, "const"), *ref = json_object_get(schema, "$ref"),
           *least = json_object_get(schema, "minLength"), *most = json_object_get(schema, "maxLength"), *one;
    size_t i;
    int found = 0;
    if (ref && !judge(root, judge_reference(root, json_string_value(ref)), value))
        return 0;
    if (json_is_string(type) && !judge_type(json_string_value(type), value))
        return 0;
    if (json_is_array(type)) {
        json_array_foreach(type, i, one)
            found |= judge_type(json_string_value(one), value);
        if (!found)
            return 0;
    }
    found = !list;
    json_array_foreach(list, i, one)
        found |= judge_equal(one, value);
    if (!found || (constant && !judge_equal(constant, value)))
        return 0;
    if (json_is_string(value) && ((least && (double)judge_length(value) < json_number_value(least)) ||
                                  (most && (double)judge_length(value) > json_number_value(most))))
        return 0;
    if (json_is_object(value) &&
        (json_object_get(schema, "properties") || json_object_get(schema, "required") ||
         json_object_get(schema, "additionalProperties") || type) &&
        !judge_object(root, schema, value))
        return 0;
    return (!json_is_array(value) || judge_array(root, schema, value)) && judge_one_of(root, schema, value);
}

/* Returns 1 if the value satisfies the schema, else 0. If $ref or anyOf leads back to the same schema and the same
 * value, the inner call returns 0. */
static inline int judge(const json_t *root, const json_t *schema, const json_t *value)
{
    static struct {
        const json_t *schema, *value;
    } asked[1024];
    static size_t n;
    if (json_is_boolean(schema))
        return json_is_true(schema);
    for (size_t i = 0; i < n; i++)
        if (asked[i].schema == schema && asked[i].value == value)
            return 0;
    assert_true(n < 1024);
    asked[n].schema = schema;
    asked[n++].value = value;
    int says = judge_keywords(root, schema, value);
    n--;
    return says;
}

/* ---- random schemas ---- */

static inline json_t *parsed(const char *text)
{
    json_error_t why;
    json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!json)
        fail_msg("%s: %s", text, why.text);
    return json;
}

static inline json_t *random_constant(int depth)
{
    static const char *const scalars[] = {"null", "true", "false", "0", "1", "-7", "12", "123", "1.5", "-0.25", "1e30",
                                          "\"\"", "\"a\"", "\"ab\"", "\"\\\"q\\\\\"", "\"\\u00e9\\ud83d\\ude00\"",
                                          "\"\\n\"", "\"b\""};
    json_t *value;
    if (!depth || chance(4))
        return parsed(scalars[chance(sizeof scalars / sizeof *scalars)]);
    value = chance(2) ? json_array() : json_object();
    for (uint32_t n = chance(3), i = 0; i < n; i++) {
        char key[2] = {(char)('a' + i)};
        if (json_is_array(value))
            json_array_append_new(value, random_constant(depth - 1));
        else
            json_object_set_new(value, key, random_constant(depth - 1));
    }
    return value;
}

static inline json_t *random_schema(int depth);

static inline json_t *random_list(int depth, uint32_t most)
{
    json_t *list = json_array();
    for (uint32_t n = 1 + chance(most); n--;)
        json_array_append_new(list, random_schema(depth));
    return list;
}

static inline json_t *random_object_schema(int depth)
{
    static const char *const names[] = {"a", "aa", "ab", "b", "c\"\\", "d", "e\xc3\xa9", "f"};
    json_t *schema = parsed("{\"type\": \"object\"}"), *properties = json_object(), *required = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (chance(3) == 0) {
            json_object_set_new(properties, names[i], random_schema(depth));
            if (chance(2))
                json_array_append_new(required, json_string(names[i]));
        }
    uint32_t more = chance(5);
    if (more < 3)
        json_object_set_new(schema, "additionalProperties",
                            more == 0 ? json_false()
                            : more == 1 ? json_true()
                            : random_schema(depth));
    if ((more == 1 || more == 2) && !chance(4))
        json_array_append_new(required, json_string("z"));
    json_object_set_new(schema, "properties", properties);
    if (json_array_size(required) || chance(2))
        json_object_set(schema, "required", required);
    json_decref(required);
    return schema;
}

static inline json_t *random_array_schema(int depth)
{
    json_t *schema = parsed("{\"type\": \"array\"}");
    uint32_t least = chance(3);
    if (chance(8))
        json_object_set_new(schema, "items", random_schema(depth));
    if (!chance(4))
        json_object_set_new(schema, "prefixItems", random_list(depth, 2));
    if (least)
        json_object_set_new(schema, "minItems", json_integer(least));
    if (chance(2))
        json_object_set_new(schema, "maxItems", json_integer(least + chance(3)));
    return schema;
}

static inline json_t *random_schema(int depth)
{
    static const char *const simple[] = {"{\"type\": \"string\"}", "{\"type\": \"string\", \"maxLength\": 2}",
                                         "{\"type\": \"string\", \"minLength\": 2}",
                                         "{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 3}",
                                         "{\"type\": \"integer\"}", "{\"type\": \"number\"}", "{\"type\": \"boolean\"}",
                                         "{\"type\": \"null\", \"title\": \"nothing\"}",
                                         "{\"type\": [\"string\", \"null\"]}", "{\"type\": [\"integer\", \"boolean\"]}",
                                         "{}", "true", "{\"$ref\": \"#\"}", "{\"$ref\": \"#/$defs/one\"}",
                                         "{\"$ref\": \"#/definitions/two\", \"description\": \"it\"}"};
    json_t *schema;
    switch (depth ? chance(9) : chance(3)) {
    case 0:
        schema = parsed("{\"enum\": []}");
        for (uint32_t n = 1 + chance(4); n--;)
            json_array_append_new(json_object_get(schema, "enum"), random_constant(2));
        return schema;
    case 3: return json_pack("{s:o}", "const", random_constant(2));
    case 4:
    case 5: return random_object_schema(depth - 1);
    case 6: return random_array_schema(depth - 1);
    case 7: return json_pack("{s:o}", "anyOf", random_list(depth - 1, 3));
    default: return parsed(simple[chance(sizeof simple / sizeof *simple)]);
    }
}

/* Returns a random schema with $defs and definitions. */
static inline json_t *random_document(void)
{
    json_t *root = random_schema(3);
    if (json_is_object(root)) {
        json_object_set_new(root, "$defs", json_pack("{s:o}", "one", random_schema(2)));
        json_object_set_new(root, "definitions", json_pack("{s:o}", "two", random_schema(2)));
        if (json_object_get(root, "$ref") && !strcmp(json_string_value(json_object_get(root, "$ref")), "#"))
            json_object_set_new(root, "$ref", json_string("#/$defs/one"));
    }
    return root;
}

/* ---- random values: most of them satisfy the schema ---- */

static inline json_t *random_value(const json_t *root, const json_t *schema, int depth);

static inline json_t *random_member(const json_t *root, const json_t *schema, int depth)
{
    return depth > 0 && chance(12) ? random_value(root, schema, depth - 1) : random_constant(1);
}

static inline json_t *random_string(uint32_t least)
{
    static const char *const parts[] = {"a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80", " ", "\\", "\"", "\n", "z",
                                        "\xe2\x82\xac"};
    char text[128] = "";
    for (uint32_t n = least + chance(3); n-- && strlen(text) < 100;)
        strcat(text, parts[chance(sizeof parts / sizeof *parts)]);
    return json_string(text);
}

static inline json_t *random_object(const json_t *root, const json_t *schema, int depth)
{
    json_t *value = json_object(), *more = json_object_get(schema, "additionalProperties"), *child, *name;
    const char *key;
    size_t i;
    json_object_foreach(json_object_get(schema, "properties"), key, child)
        if (chance(3))
            json_object_set_new(value, key, random_member(root, child, depth));
    json_array_foreach(json_object_get(schema, "required"), i, name)
        if (!json_object_get(value, json_string_value(name)) && chance(20)) {
            child = json_object_get(json_object_get(schema, "properties"), json_string_value(name));
            json_object_set_new(value, json_string_value(name), random_member(root, child ? child : more, depth));
        }
    if ((more && !json_is_false(more) && chance(2)) || !chance(20))
        json_object_set_new(value, chance(2) ? "b0" : "zz", random_member(root, more, depth));
    return value;
}

static inline json_t *random_of_type(const json_t *root, const json_t *schema, const char *type, int depth)
{
    static const char *const numbers[] = {"0", "1", "-1", "42", "123456789012345678", "1.5", "-2.25e-7", "1e20"};
    if (!strcmp(type, "object"))
        return random_object(root, schema, depth);
    if (!strcmp(type, "array")) {
        json_t *value = json_array(), *prefix = json_object_get(schema, "prefixItems");
        size_t n = (size_t)json_integer_value(json_object_get(schema, "minItems")) + chance(3) - !chance(10);
        for (size_t i = 0; i < n && i < 8; i++)
            json_array_append_new(value, random_member(root,
                                                       i < json_array_size(prefix) ? json_array_get(prefix, i)
                                                                                   : json_object_get(schema, "items"),
                                                       depth));
        return value;
    }
    if (!strcmp(type, "string"))
        return random_string((uint32_t)json_integer_value(json_object_get(schema, "minLength")));
    if (!strcmp(type, "integer") || !strcmp(type, "number"))
        return parsed(numbers[chance(type[0] == 'i' ? 5 : 8)]);
    return !strcmp(type, "null") ? json_null() : json_boolean(chance(2));
}

static inline json_t *random_value(const json_t *root, const json_t *schema, int depth)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"),
                 *any = json_object_get(schema, "anyOf");
    const json_t *ref = json_object_get(schema, "$ref");
    if (json_is_array(type))
        type = json_array_get(type, chance((uint32_t)json_array_size(type)));
    if (depth < 0 || !chance(30))
        return random_constant(1);
    if (ref)
        return random_value(root, judge_reference(root, json_string_value(ref)), depth - 1);
    if (any)
        return random_value(root, json_array_get(any, chance((uint32_t)json_array_size(any))), depth);
    if (json_object_get(schema, "const"))
        return json_deep_copy(json_object_get(schema, "const"));
    if (list)
        return json_deep_copy(json_array_get(list, chance((uint32_t)json_array_size(list))));
    return type ? random_of_type(root, schema, json_string_value(type), depth) : random_constant(2);
}

/* Returns the value as JSON text. Keys are in ascending order, numbers have as few digits as they need, and the kind of
 * white space is random. */
static inline char *written(const json_t *value)
{
    static const size_t spaces[] = {JSON_COMPACT, 0, JSON_INDENT(2), JSON_INDENT(4)};
    for (int digits = 15; digits < 17; digits++) {
        char *text = json_dumps(value,
                                JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits) | spaces[chance(4)]);
        json_t *again = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        int same = again && json_equal(again, value);
        json_decref(again);
        if (same)
            return text;
        free(text);
    }
    return json_dumps(value, JSON_ENCODE_ANY | JSON_SORT_KEYS);
}

static inline struct schema *opened_json(const json_t *json)
{
    struct schema *s;
    char error[512];
    if (schema_open(&s, json, error))
        fail_msg("refused: %s", error);
    return s;
}

/* Returns 1 if the schema accepts the text, 0 if not, or a negative error code. */
static inline int accepts_bytes(const struct schema *s, const char *text, size_t size)
{
    struct schema_state *state;
    assert_int_equal(schema_begin(&state, s), 0);
    int rc = 1;
    for (size_t i = 0; i < size && rc == 1; i++)
        rc = schema_byte(state, (unsigned char)text[i]);
    rc = rc == 1 ? schema_may_end(state) : rc;
    schema_state_close(state);
    return rc;
}

static inline int accepts(const struct schema *s, const char *text) { return accepts_bytes(s, text, strlen(text)); }

#endif
