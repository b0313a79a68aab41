/* tools/serve/schema_calls.c -- builds the schema of tool calls: see schema_calls.h. */
#include "tools/serve/schema_calls.h"
#include "tools/serve/schema_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct calls_builder {
    struct schema *s;
    const struct schema_calls *o;
    char *error;
    int code; /* of the first failure */
};

/* ---- nodes; each returns 0 after a failure ---- */

static void fail_memory(struct calls_builder *b)
{
    if (!b->code)
        snprintf(b->error, 512, "no memory for the tools");
    b->code = b->code ? b->code : VB_NO_MEMORY;
}

static uint32_t add_node_of(struct calls_builder *b, enum schema_kind kind, uint32_t first, uint32_t count)
{
    struct schema *s = b->s;
    if (b->code || schema_grow(&s->node, s->nodes, &s->node_room, sizeof *s->node)) {
        fail_memory(b);
        return 0;
    }
    s->node[s->nodes] = (struct schema_node){.kind = kind, .first = first, .count = count, .rest = NO_NODE, .most = NO_LIMIT};
    return s->nodes++;
}

/* A sequence or a union of nodes. */
static uint32_t add_group(struct calls_builder *b, enum schema_kind kind, const uint32_t *node, uint32_t count)
{
    struct schema *s = b->s;
    uint32_t first = s->children;
    for (uint32_t i = 0; i < count && !b->code; i++)
        if (schema_grow(&s->child, s->children, &s->child_room, sizeof *s->child))
            fail_memory(b);
        else
            s->child[s->children++] = node[i];
    return add_node_of(b, kind, first, count);
}

static void add_bytes(struct calls_builder *b, const char *bytes, size_t size)
{
    struct schema *s = b->s;
    for (size_t i = 0; i < size && !b->code; i++)
        if (schema_grow(&s->text, s->text_size, &s->text_room, 1))
            fail_memory(b);
        else
            s->text[s->text_size++] = bytes[i];
}

static void add_mark(struct calls_builder *b, enum meaning_mark mark)
{
    const char *text = meaning_mark(b->o->calls, mark);
    char byte = (char)b->o->mark_byte[mark];
    add_bytes(b, byte ? &byte : text, byte ? 1 : strlen(text));
}

/* The text from offset `from` on is one more literal. */
static void end_literal(struct calls_builder *b, uint32_t from)
{
    struct schema *s = b->s;
    if (b->code || schema_grow(&s->literal, s->literals, &s->literal_room, sizeof *s->literal))
        fail_memory(b);
    else
        s->literal[s->literals++] = (struct literal){from, s->text_size - from};
}

static uint32_t end_text(struct calls_builder *b, uint32_t from)
{
    end_literal(b, from);
    return add_node_of(b, NODE_LITERAL, b->s->literals - 1, 1);
}

/* ---- parameters ---- */

static int append(struct calls_builder *b, void *array, uint32_t *count, uint32_t *room, const void *from, uint32_t more, size_t size)
{
    while (!b->code && *room < *count + more)
        if (schema_grow(array, *room, room, size))
            fail_memory(b);
    if (b->code)
        return 0;
    char *to;
    memcpy(&to, array, sizeof to);
    if (more)
        memcpy(to + *count * size, from, more * size);
    *count += more;
    return 1;
}

/* Adds all of another schema, with its numbers moved. */
static void add_schema(struct calls_builder *b, const struct schema *t)
{
    struct schema *s = b->s;
    uint32_t nodes = s->nodes, literals = s->literals, properties = s->properties, children = s->children, text = s->text_size;
    if (!append(b, &s->node, &s->nodes, &s->node_room, t->node, t->nodes, sizeof *t->node) ||
        !append(b, &s->literal, &s->literals, &s->literal_room, t->literal, t->literals, sizeof *t->literal) ||
        !append(b, &s->property, &s->properties, &s->property_room, t->property, t->properties, sizeof *t->property) ||
        !append(b, &s->child, &s->children, &s->child_room, t->child, t->children, sizeof *t->child) ||
        !append(b, &s->text, &s->text_size, &s->text_room, t->text, t->text_size, 1))
        return;
    for (uint32_t i = nodes; i < s->nodes; i++) {
        struct schema_node *n = &s->node[i];
        n->first += n->kind == NODE_LITERAL ? literals : n->kind == NODE_OBJECT ? properties : children;
        n->rest += n->rest == NO_NODE ? 0 : nodes;
    }
    for (uint32_t i = literals; i < s->literals; i++)
        s->literal[i].text += text;
    for (uint32_t i = properties; i < s->properties; i++) {
        s->property[i].name += text;
        s->property[i].key += text;
        s->property[i].child += nodes;
    }
    for (uint32_t i = children; i < s->children; i++)
        s->child[i] += nodes;
}

/* Adds the objects among the values of a schema. Returns their node; NO_NODE: no object satisfies the schema. */
static uint32_t add_objects(struct calls_builder *b, const struct schema *t)
{
    const struct schema_node *root = &t->node[t->root];
    uint32_t object[SCHEMA_ALTERNATIVES], count = 0, moved = b->s->nodes;
    for (uint32_t i = 0; i < (root->kind == NODE_UNION ? root->count : 1); i++) {
        uint32_t node = root->kind == NODE_UNION ? t->child[root->first + i] : t->root;
        if (t->node[node].kind == NODE_OBJECT && t->node[node].height <= SCHEMA_DEPTH)
            object[count++] = node + moved;
    }
    if (!count)
        return NO_NODE;
    add_schema(b, t);
    return add_group(b, NODE_UNION, object, count);
}

/* The arguments of a tool. */
static uint32_t add_parameters(struct calls_builder *b, const char *name, const json_t *parameters)
{
    char error[512];
    struct schema *t = NULL;
    json_t *none = parameters ? NULL : json_pack("{s:s}", "type", "object");
    int rc = parameters || none ? schema_open(&t, parameters ? parameters : none, error) : VB_NO_MEMORY;
    uint32_t root = 0;
    if (rc == VB_NO_MEMORY)
        fail_memory(b);
    else if (!rc && !b->code && (root = add_objects(b, t)) == NO_NODE)
        rc = VB_BAD_ARGUMENT, snprintf(error, sizeof error, "no object satisfies them");
    if (!b->code && rc) {
        b->code = rc;
        snprintf(b->error, 512, "the parameters of %.64s: %.400s", name, error);
    }
    schema_close(t);
    json_decref(none);
    return root;
}

/* ---- calls ---- */

/* Kimi-K2 numbers the calls of a conversation. */
static uint32_t add_numbers(struct calls_builder *b)
{
    uint32_t first = b->s->literals, count = 0;
    static const char digits[] = "0123456789";
    for (int ten = 0; ten < 10; ten++)
        for (int one = -1; one < 10; one++) { /* in ascending order, "1" before "10" */
            uint32_t from = b->s->text_size;
            if (!ten && one >= 0)
                continue;
            add_bytes(b, digits + ten, 1);
            if (one >= 0)
                add_bytes(b, digits + one, 1);
            end_literal(b, from);
            count++;
        }
    return add_node_of(b, NODE_LITERAL, first, count);
}

/* From a tool's name to the end of its arguments. */
static uint32_t add_tool(struct calls_builder *b, const json_t *function)
{
    uint32_t part[4], parts = 0, from = b->s->text_size;
    const json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
    add_bytes(b, json_string_value(name), json_string_length(name));
    if (b->o->calls == MEANING_DEEPSEEK_V3)
        add_bytes(b, "\n```json\n", 9);
    else if (b->o->calls == MEANING_DEEPSEEK_V31)
        add_mark(b, MARK_SEP);
    else
        add_bytes(b, ":", 1);
    part[parts++] = end_text(b, from);
    if (b->o->calls == MEANING_KIMI_K2) {
        part[parts++] = add_numbers(b);
        from = b->s->text_size;
        add_mark(b, MARK_SEP);
        part[parts++] = end_text(b, from);
    }
    part[parts++] = add_parameters(b, json_string_value(name), json_is_null(parameters) ? NULL : parameters);
    return add_group(b, NODE_SEQUENCE, part, parts);
}

static uint32_t add_tools(struct calls_builder *b)
{
    uint32_t tool[SCHEMA_TOOLS], count = 0;
    for (size_t i = 0; i < json_array_size(b->o->tools) && count < SCHEMA_TOOLS && !b->code; i++) {
        const json_t *function = json_object_get(json_array_get(b->o->tools, i), "function");
        if (!b->o->name || !strcmp(b->o->name, json_string_value(json_object_get(function, "name"))))
            tool[count++] = add_tool(b, function);
    }
    return add_group(b, NODE_UNION, tool, count);
}

static uint32_t add_call(struct calls_builder *b)
{
    uint32_t part[3], from = b->s->text_size;
    add_mark(b, MARK_CALL);
    if (b->o->calls == MEANING_DEEPSEEK_V3) {
        add_bytes(b, "function", 8);
        add_mark(b, MARK_SEP);
    } else if (b->o->calls == MEANING_KIMI_K2) {
        add_bytes(b, "functions.", 10);
    }
    part[0] = end_text(b, from);
    part[1] = add_tools(b);
    from = b->s->text_size;
    if (b->o->calls == MEANING_DEEPSEEK_V3)
        add_bytes(b, "\n```", 4);
    add_mark(b, MARK_END_CALL);
    part[2] = end_text(b, from);
    return add_group(b, NODE_SEQUENCE, part, 3);
}

/* The section: its first marker, calls, its last marker. */
static uint32_t add_section(struct calls_builder *b)
{
    uint32_t part[3], from = b->s->text_size, call, blank = 0, end;
    int has_blank = b->o->calls == MEANING_DEEPSEEK_V3;
    add_mark(b, MARK_CALLS);
    part[0] = end_text(b, from);
    call = add_call(b);
    from = b->s->text_size;
    add_mark(b, MARK_END_CALLS);
    end = end_text(b, from);
    if (has_blank) {
        from = b->s->text_size;
        add_bytes(b, "\n", 1);
        blank = end_text(b, from);
    }
    uint32_t tail = end; /* what may follow the last call; before it, one more call may come */
    for (int i = 1; i < b->o->most && !b->code; i++) {
        uint32_t more[] = {blank, call, tail}, sequence = add_group(b, NODE_SEQUENCE, more + !has_blank, has_blank ? 3 : 2);
        tail = add_group(b, NODE_UNION, (uint32_t[]){end, sequence}, 2);
    }
    part[1] = call;
    part[2] = tail;
    return add_group(b, NODE_SEQUENCE, part, 3);
}

int schema_of_calls(struct schema **out, const struct schema_calls *calls, char error[512])
{
    struct calls_builder b = {.s = calloc(1, sizeof *b.s), .o = calls, .error = error};
    *out = NULL;
    *error = '\0';
    if (!b.s) {
        fail_memory(&b);
        return b.code;
    }
    b.s->is_text = 1;
    b.s->root = add_section(&b);
    if (b.code)
        schema_close(b.s);
    else
        *out = b.s;
    return b.code;
}
