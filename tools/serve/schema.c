/* tools/serve/schema.c -- builds a schema. Subschemas wait in a queue, so that neither nesting nor a circle of $ref
 * makes the reader recursive; a subschema that several places refer to is read once. */
#include "tools/serve/schema_builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_SIZE 512
#define POINTER_SIZE 240
#define MEMO_SIZE (4 * SCHEMA_NODES) /* a power of two */
#define MOST_COMPARISONS (4u << 20)  /* of alternatives, for one oneOf */

/* ---- errors ---- */

static void put_before(char *text, size_t *at, const char *step, int escape)
{
    for (size_t n = strlen(step); n-- && *at > 8;) {
        const char *code = escape && step[n] == '~' ? "~0" : escape && step[n] == '/' ? "~1" : NULL;
        if (code)
            text[--*at] = code[1];
        text[--*at] = code ? code[0] : step[n];
    }
}

/* The JSON pointer of an item; a long one loses its beginning. */
static const char *pointer_of(const struct builder *b, uint32_t number, char text[POINTER_SIZE])
{
    size_t at = POINTER_SIZE - 1;
    const char *base = "#";
    text[at] = '\0';
    while (number != NO_NODE && at > 8) {
        const struct schema_item *i = &b->item[number];
        char index[24];
        snprintf(index, sizeof index, "%ld", i->index);
        if (i->name || i->index >= 0) {
            put_before(text, &at, i->name ? i->name : index, i->name != NULL);
            put_before(text, &at, "/", 0);
        }
        if (i->parent == NO_NODE && i->keyword) {
            base = i->keyword;
        } else if (i->keyword) {
            put_before(text, &at, i->keyword, 0);
            put_before(text, &at, "/", 0);
        }
        number = i->parent;
    }
    put_before(text, &at, base, 0);
    while (at <= 8 && ((unsigned char)text[at] & 0xc0) == 0x80) /* not inside a character */
        at++;
    return at > 8 ? text + at : memcpy(text + at - 3, "...", 3);
}

/* One line of valid UTF-8. */
static void make_clean(char *text)
{
    size_t size = strlen(text);
    for (size_t valid; (valid = vb_utf8_valid(text, size)) < size;)
        text[valid] = '?';
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

void refuse(struct builder *b, int code, const char *format, ...)
{
    char what[200], pointer[POINTER_SIZE];
    va_list list;
    if (b->code)
        return;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    make_clean(what);
    b->code = code;
    snprintf(b->error, ERROR_SIZE, "the schema at %s: %s", pointer_of(b, b->next, pointer), what);
    make_clean(b->error);
}

void no_memory(struct builder *b)
{
    if (!b->code)
        snprintf(b->error, ERROR_SIZE, "no memory for the schema");
    b->code = VB_NO_MEMORY;
}

static int too_large(struct builder *b, const char *what, int most)
{
    refuse(b, VB_UNSUPPORTED, "more than %d %s are not supported", most, what);
    return 0;
}

/* ---- adding to the schema; each returns 0 after an error ---- */

int room_for_member(struct builder *b)
{
    struct schema *s = b->s;
    if (s->children + s->literals + s->properties >= SCHEMA_MEMBERS)
        return too_large(b, "properties, alternatives and constants together", SCHEMA_MEMBERS);
    if (schema_grow(&s->child, s->children, &s->child_room, sizeof *s->child) ||
        schema_grow(&s->literal, s->literals, &s->literal_room, sizeof *s->literal) ||
        schema_grow(&s->property, s->properties, &s->property_room, sizeof *s->property))
        no_memory(b);
    return !b->code;
}

void add_child(struct builder *b, uint32_t node)
{
    if (room_for_member(b))
        b->s->child[b->s->children++] = node;
}

uint32_t add_node(struct builder *b, enum schema_kind kind)
{
    struct schema *s = b->s;
    if (s->nodes >= SCHEMA_NODES)
        too_large(b, "subschemas, types and constant values", SCHEMA_NODES);
    else if (schema_grow(&s->node, s->nodes, &s->node_room, sizeof *s->node))
        no_memory(b);
    if (b->code)
        return NODE_NEVER;
    s->node[s->nodes] = (struct schema_node){.kind = kind, .rest = NO_NODE, .most = NO_LIMIT};
    return s->nodes++;
}

uint32_t add_text(struct builder *b, const char *text, size_t size)
{
    struct schema *s = b->s;
    if (size > SCHEMA_TEXT || s->text_size + size > SCHEMA_TEXT) {
        too_large(b, "bytes of keys and constants", SCHEMA_TEXT);
        return 0;
    }
    while (!b->code && s->text_room < s->text_size + size)
        if (schema_grow(&s->text, s->text_room, &s->text_room, 1))
            no_memory(b);
    if (b->code)
        return 0;
    memcpy(s->text + s->text_size, text, size);
    s->text_size += (uint32_t)size;
    return s->text_size - (uint32_t)size;
}

uint32_t add_string(struct builder *b, const char *text, size_t size)
{
    static const char plain[] = "\"\\\b\f\n\r\t", escape[] = "\"\\bfnrt";
    uint32_t at = add_text(b, "\"", 1);
    for (size_t i = 0; i < size && !b->code; i++) {
        const char *found = text[i] ? strchr(plain, text[i]) : NULL;
        char code[8] = {text[i]};
        size_t n = 1;
        if (found)
            n = (size_t)snprintf(code, sizeof code, "\\%c", escape[found - plain]);
        else if ((unsigned char)text[i] < 0x20)
            n = (size_t)snprintf(code, sizeof code, "\\u%04x", (unsigned)text[i]);
        add_text(b, code, n);
    }
    add_text(b, "\"", 1);
    return at;
}

/* The number with the fewest digits. */
static void add_number(struct builder *b, const json_t *value)
{
    double x = json_number_value(value);
    char text[64];
    int is_whole = json_is_real(value) && x > -1e15 && x < 1e15 && x == (double)(long long)x;
    add_text(b, text,
             is_whole ? (size_t)snprintf(text, sizeof text, "%lld", (long long)x) : meaning_shortest(value, text));
}

void add_literal(struct builder *b, const json_t *value)
{
    struct schema *s = b->s;
    if (!room_for_member(b))
        return;
    uint32_t at = s->text_size;
    if (json_is_string(value))
        add_string(b, json_string_value(value), json_string_length(value));
    else if (json_is_number(value))
        add_number(b, value);
    else if (json_is_null(value))
        add_text(b, "null", 4);
    else
        add_text(b, json_is_true(value) ? "true" : "false", json_is_true(value) ? 4 : 5);
    s->literal[s->literals++] = (struct literal){at, s->text_size - at};
}

uint32_t node_of(struct builder *b, const json_t *json, int constant, const char *keyword, const char *name, long index)
{
    size_t slot = ((uintptr_t)json >> 4) * 0x9e3779b97f4a7c15u >> 40;
    for (;; slot++) {
        struct memo *m = &b->memo[slot & (MEMO_SIZE - 1)];
        if (m->json == json && m->constant == constant)
            return m->node;
        if (m->json)
            continue;
        uint32_t node = add_node(b, NODE_UNION);
        if (schema_grow(&b->item, b->items, &b->item_room, sizeof *b->item))
            no_memory(b);
        if (b->code)
            return NODE_NEVER;
        uint32_t parent = keyword && *keyword == '#' ? NO_NODE : b->next;
        b->item[b->items++] = (struct schema_item){json, node, parent, constant, keyword, name, index};
        *m = (struct memo){json, constant, node};
        return node;
    }
}

/* ---- the whole schema ---- */

/* Any value: see the enum in schema_internal.h. */
static void add_fixed(struct builder *b)
{
    static const enum schema_kind kinds[NODES_FIXED] = {NODE_UNION, NODE_STRING, NODE_NUMBER, NODE_LITERAL, NODE_OBJECT,
                                                        NODE_ARRAY, NODE_NONE};
    struct schema *s = b->s;
    for (int i = 0; i < NODES_FIXED && !b->code; i++)
        add_node(b, kinds[i]);
    for (uint32_t i = NODE_ANY_STRING; i <= NODE_ANY_ARRAY && !b->code; i++)
        add_child(b, i);
    add_literal(b, json_false());
    add_literal(b, json_null());
    add_literal(b, json_true());
    if (b->code)
        return;
    s->node[NODE_ANY].count = NODE_ANY_ARRAY - NODE_ANY;
    s->node[NODE_ANY_LITERAL].count = 3;
    s->node[NODE_ANY_OBJECT].rest = s->node[NODE_ANY_ARRAY].rest = NODE_ANY;
}

static void read_items(struct builder *b)
{
    for (b->next = 0; b->next < b->items && !b->code; b->next++) {
        struct schema_item i = b->item[b->next];
        b->s->node[i.node].first = b->s->children;
        if (i.constant)
            read_constant(b, i.json);
        else
            read_schema(b, i.json);
        b->s->node[i.node].count = b->s->children - b->s->node[i.node].first;
    }
}

static void check_one_of(struct builder *b, const struct one_of *one)
{
    uint32_t budget = MOST_COMPARISONS;
    b->next = one->item;
    for (uint32_t i = 0; i < one->count && !b->code; i++)
        for (uint32_t k = 0; k < i && !b->code; k++)
            if (!schema_disjoint(b->s, b->s->child[one->first + k], b->s->child[one->first + i], &budget))
                refuse(b, VB_UNSUPPORTED,
                       "oneOf is supported where its branches exclude each other, and branches %u and %u may not", k,
                       i);
}

static void build(struct builder *b)
{
    const char *what;
    add_fixed(b);
    b->s->root = b->root && !b->code ? node_of(b, b->root, 0, "#", NULL, -1) : NODE_ANY_OBJECT;
    read_items(b);
    if (b->code)
        return;
    b->next = 0;
    int rc = schema_flatten(b->s, &what);
    if (rc == VB_NO_MEMORY)
        no_memory(b);
    else if (rc)
        refuse(b, rc, "%s", what);
    if (b->code)
        return;
    schema_heights(b->s);
    for (uint32_t i = 0; i < b->one_ofs && !b->code; i++)
        check_one_of(b, &b->one_of[i]);
    b->next = 0;
    if (!b->code && b->s->node[b->s->root].height > SCHEMA_DEPTH)
        refuse(b, VB_BAD_ARGUMENT, "no value that nests at most %d deep satisfies it", SCHEMA_DEPTH);
}

int schema_open(struct schema **out, const json_t *schema, char error[512])
{
    struct builder b = {.s = calloc(1, sizeof *b.s), .root = schema, .memo = calloc(MEMO_SIZE, sizeof *b.memo),
                        .error = error};
    *out = NULL;
    *error = '\0';
    if (!b.s || !b.memo)
        no_memory(&b);
    else
        build(&b);
    free(b.item);
    free(b.memo);
    free(b.one_of);
    if (b.code)
        schema_close(b.s);
    else
        *out = b.s;
    return b.code;
}

void schema_close(struct schema *s)
{
    if (!s)
        return;
    void *blocks[] = {s->node, s->literal, s->property, s->child, s->text, s};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}
