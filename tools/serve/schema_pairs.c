/* tools/serve/schema_pairs.c -- arguments as pairs of a key and a value.
 *
 *   GLM            <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...
 *   DeepSeek-V3.2  <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>...
 *
 * GLM: the parser of answers (meaning_call.c) decides what a VALUE is. If the tool says that the parameter's type is
 * "string", it is the text itself. Otherwise it is JSON, or a string if it is no JSON. So a string of such a parameter
 * has two forms: its text, if this is no JSON, and a JSON string.
 *
 * DeepSeek-V3.2: what begins the VALUE says whether it is a string's text ("true") or JSON. Here a string is always a
 * text, unless it contains the character 0. */
#include "tools/serve/schema_calls_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEHIND_KEY "\" string=\"" /* DeepSeek-V3.2 */

static int is_dsml(const struct calls_builder *b) { return b->o->calls == MEANING_DEEPSEEK_V32; }

void calls_avoid_marks(struct calls_builder *b)
{
    uint32_t count = 0, node;
    for (int i = MARK_CALLS; i < MEANING_MARKS; i++) {
        const char *text = meaning_mark(b->o->calls, (enum meaning_mark)i);
        uint32_t from = b->s->text_size;
        if (!text)
            continue;
        calls_add_bytes(b, text, strlen(text));
        calls_end_literal(b, from);
        count++;
    }
    node = calls_add_literals(b, count);
    if (!b->code)
        b->s->avoid = b->s->node[node];
}

int calls_has_mark(const struct calls_builder *b, const char *text, size_t size)
{
    const struct schema *s = b->s;
    for (uint32_t i = 0; i < s->avoid.count; i++) {
        const struct literal *mark = &s->literal[s->avoid.first + i];
        if (memmem(text, size, s->text + mark->text, mark->size))
            return 1;
    }
    return 0;
}

/* ---- values ---- */

/* DeepSeek-V3.2: what is before a value. */
static void add_kind(struct calls_builder *b, int is_text)
{
    const char *kind = !is_dsml(b) ? "" : is_text ? "true\">" : "false\">";
    calls_add_bytes(b, kind, strlen(kind));
}

/* A constant and the marker behind it as one more literal. */
static void add_constant(struct calls_builder *b, struct literal constant, int is_string)
{
    json_t *value = b->code
                        ? NULL
                        : json_loadb(b->s->text + constant.text, constant.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const char *text = json_string_value(value);
    size_t size = json_string_length(value);
    int is_text = text && !memchr(text, 0, size) && (is_string || is_dsml(b) || !meaning_is_json(text, size));
    uint32_t from = b->s->text_size;
    if (!value)
        calls_no_memory(b);
    add_kind(b, is_text);
    for (size_t i = 0; !is_text && i < constant.size; i++) /* byte by byte: the text moves as it grows */
        calls_add_bytes(b, &(char){b->s->text[constant.text + i]}, 1);
    if (is_text)
        calls_add_bytes(b, text, size);
    calls_add_mark(b, MARK_END_VALUE);
    if (is_text || !is_string || is_dsml(b))
        calls_end_literal(b, from);
    json_decref(value);
}

/* The constants among the alternatives, and the empty string. */
static void add_constants(struct calls_builder *b, const uint32_t *leaf, uint32_t count, int is_string)
{
    for (uint32_t i = 0; i < count && !b->code; i++) {
        const struct schema_node n = b->s->node[leaf[i]];
        uint32_t from = b->s->text_size;
        if (n.kind == NODE_STRING && !n.least) {
            add_kind(b, 1);
            calls_add_mark(b, MARK_END_VALUE);
            calls_end_literal(b, from);
        }
        for (uint32_t k = 0; n.kind == NODE_LITERAL && k < n.count && !b->code; k++)
            add_constant(b, b->s->literal[n.first + k], is_string);
    }
}

/* A string of at least one character as its text. */
static uint32_t add_raw(struct calls_builder *b, const struct schema_node *string, int unless_json)
{
    uint32_t node = calls_add_node(b, NODE_RAW, 0, 0);
    if (b->code)
        return 0;
    b->s->node[node].least = string->least ? string->least : 1;
    b->s->node[node].most = string->most;
    b->s->node[node].unless_json = (uint8_t)unless_json;
    return node;
}

/* A value and the marker behind it. */
static uint32_t add_ended(struct calls_builder *b, uint32_t value, uint32_t end, int is_text)
{
    uint32_t from = b->s->text_size;
    if (!is_dsml(b))
        return calls_add_group(b, NODE_SEQUENCE, (uint32_t[]){value, end}, 2);
    add_kind(b, is_text);
    uint32_t kind = calls_end_text(b, from);
    return calls_add_group(b, NODE_SEQUENCE, (uint32_t[]){kind, value, end}, 3);
}

/* From MARK_VALUE, or from what is behind the key, to MARK_END_VALUE. `is_string`: GLM, the tool says so. */
static uint32_t add_value(struct calls_builder *b, uint32_t child, int is_string)
{
    struct schema *s = b->s;
    const struct schema_node n = s->node[child];
    uint32_t leaf[SCHEMA_ALTERNATIVES], json[SCHEMA_ALTERNATIVES], part[SCHEMA_ALTERNATIVES + 2], jsons = 0, parts = 0;
    uint32_t count = n.kind == NODE_UNION ? n.count : 1, literals = s->literals, from;
    for (uint32_t i = 0; i < count; i++)
        leaf[i] = n.kind == NODE_UNION ? s->child[n.first + i] : child;
    add_constants(b, leaf, count, is_string);
    if (s->literals > literals)
        part[parts++] = calls_add_literals(b, s->literals - literals);
    from = s->text_size;
    calls_add_mark(b, MARK_END_VALUE);
    uint32_t end = calls_end_text(b, from);
    for (uint32_t i = 0; i < count && !b->code; i++) {
        const struct schema_node value = s->node[leaf[i]];
        if (value.kind == NODE_STRING && value.most)
            part[parts++] = add_ended(b, add_raw(b, &value, !is_string && !is_dsml(b)), end, 1);
        if (!is_string && value.kind != NODE_LITERAL && !(is_dsml(b) && value.kind == NODE_STRING))
            json[jsons++] = leaf[i];
    }
    if (jsons)
        part[parts++] = add_ended(b, calls_add_group(b, NODE_UNION, json, jsons), end, 0);
    uint32_t value = calls_add_group(b, NODE_UNION, part, parts);
    if (!b->code)
        s->node[value].spreads = 1;
    uint32_t whole = is_dsml(b)
                         ? value
                         : calls_add_group(b, NODE_SEQUENCE, (uint32_t[]){calls_add_line(b, MARK_VALUE), value}, 2);
    if (!b->code)
        s->node[whole].height = n.height;
    return whole;
}

/* ---- pairs ---- */

/* Whether the parser reads a key as it is written. */
static int is_plain_key(const struct calls_builder *b, const char *key, size_t size)
{
    if (is_dsml(b))
        return !memmem(key, size, BEHIND_KEY, strlen(BEHIND_KEY));
    return !size || !(meaning_is_blank(*key) || meaning_is_blank(key[size - 1]));
}

static void add_behind_key(struct calls_builder *b)
{
    if (is_dsml(b))
        calls_add_bytes(b, BEHIND_KEY, strlen(BEHIND_KEY));
    else
        calls_add_mark(b, MARK_END_KEY);
}

/* Property p with all of its key's bytes and with its value. `name`: of the tool; NULL: what follows the pairs. */
static void add_property(struct calls_builder *b, struct property p, const char *name)
{
    struct schema *s = b->s;
    char *key = b->code ? NULL : strndup(s->text + p.name, p.name_size);
    p.key = s->text_size;
    if (!key) {
        calls_no_memory(b);
    } else if (!name) {
        calls_add_mark(b, MARK_END_CALL);
    } else if (!is_plain_key(b, key, p.name_size)) {
        b->code = VB_UNSUPPORTED;
        snprintf(b->error, 512,
                 "the parameters of %.64s: this model's calls cannot have the name %.120s, because of %s", name, key,
                 is_dsml(b) ? "the text " BEHIND_KEY : "the space around it");
    } else {
        calls_add_mark(b, MARK_KEY);
        calls_add_bytes(b, key, p.name_size);
        add_behind_key(b);
    }
    p.key_size = s->text_size - p.key;
    if (name && key && !b->code)
        p.child = add_value(b, p.child, !is_dsml(b) && meaning_wants_string(b->o->tools, name, strlen(name), key));
    if (b->code || schema_grow(&s->property, s->properties, &s->property_room, sizeof *s->property))
        calls_no_memory(b);
    else
        s->property[s->properties++] = p;
    free(key);
}

/* A pair whose key is none of `count` properties. */
static uint32_t add_other_pair(struct calls_builder *b, uint32_t first, uint32_t count, uint32_t value)
{
    uint32_t part[4], from;
    part[0] = calls_add_line(b, MARK_KEY);
    part[1] = calls_add_node(b, NODE_NAME, first, count);
    from = b->s->text_size;
    add_behind_key(b);
    part[2] = calls_end_text(b, from);
    part[3] = b->code ? 0 : add_value(b, value, 0);
    uint32_t node = calls_add_group(b, NODE_SEQUENCE, part, 4);
    if (!b->code)
        b->s->node[node].height = b->s->node[value].height;
    return node;
}

uint32_t calls_add_pairs(struct calls_builder *b, uint32_t object, const char *name)
{
    struct schema *s = b->s;
    const struct schema_node o = s->node[object];
    uint32_t first = s->properties, count = o.count + 1, empty = calls_add_group(b, NODE_SEQUENCE, NULL, 0), node;
    unsigned char *required = calloc(count, 1);
    if (!required)
        calls_no_memory(b);
    for (uint32_t i = 0; i < o.count && !b->code; i++) {
        required[i] = s->property[o.first + i].stop == i;
        add_property(b, s->property[o.first + i], name);
    }
    add_property(b, (struct property){.child = empty}, NULL);
    node = calls_add_node(b, NODE_PAIRS, first, count);
    uint32_t rest = o.rest == NO_NODE || b->code ? NO_NODE : add_other_pair(b, first, count, o.rest);
    if (!b->code) {
        required[o.count] = 1;
        s->node[node].rest = rest;
        if (properties_sort(s, &s->node[node], required))
            calls_no_memory(b);
    }
    free(required);
    return node;
}
