/* tools/serve/schema_calls.c -- builds the schema of tool calls: see schema_calls.h. */
#include "tools/serve/schema_calls_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- nodes ---- */

void calls_no_memory(struct calls_builder *b)
{
    if (!b->code)
        snprintf(b->error, 512, "no memory for the tools");
    b->code = b->code ? b->code : VB_NO_MEMORY;
}

uint32_t calls_add_node(struct calls_builder *b, enum schema_kind kind, uint32_t first, uint32_t count)
{
    struct schema *s = b->s;
    if (b->code || schema_grow(&s->node, s->nodes, &s->node_room, sizeof *s->node)) {
        calls_no_memory(b);
        return 0;
    }
    s->node[s->nodes] = (struct schema_node){.kind = kind, .first = first, .count = count, .rest = NO_NODE,
                                             .most = NO_LIMIT};
    return s->nodes++;
}

uint32_t calls_add_group(struct calls_builder *b, enum schema_kind kind, const uint32_t *node, uint32_t count)
{
    struct schema *s = b->s;
    uint32_t first = s->children;
    for (uint32_t i = 0; i < count && !b->code; i++)
        if (schema_grow(&s->child, s->children, &s->child_room, sizeof *s->child))
            calls_no_memory(b);
        else
            s->child[s->children++] = node[i];
    return calls_add_node(b, kind, first, count);
}

void calls_add_bytes(struct calls_builder *b, const char *bytes, size_t size)
{
    struct schema *s = b->s;
    for (size_t i = 0; i < size && !b->code; i++)
        if (schema_grow(&s->text, s->text_size, &s->text_room, 1))
            calls_no_memory(b);
        else
            s->text[s->text_size++] = bytes[i];
}

void calls_add_mark(struct calls_builder *b, enum meaning_mark mark)
{
    const char *text = meaning_mark(b->o->calls, mark);
    char byte = (char)b->o->mark_byte[mark];
    calls_add_bytes(b, byte ? &byte : text, byte ? 1 : strlen(text));
}

void calls_end_literal(struct calls_builder *b, uint32_t from)
{
    struct schema *s = b->s;
    if (b->code || schema_grow(&s->literal, s->literals, &s->literal_room, sizeof *s->literal))
        calls_no_memory(b);
    else
        s->literal[s->literals++] = (struct literal){from, s->text_size - from};
}

uint32_t calls_add_literals(struct calls_builder *b, uint32_t count)
{
    uint32_t node = calls_add_node(b, NODE_LITERAL, b->s->literals - count, count);
    if (!b->code)
        literals_sort(b->s, &b->s->node[node]);
    return node;
}

uint32_t calls_end_text(struct calls_builder *b, uint32_t from)
{
    calls_end_literal(b, from);
    return calls_add_literals(b, 1);
}

uint32_t calls_add_line(struct calls_builder *b, enum meaning_mark mark)
{
    for (int breaks = 0; breaks < 2; breaks++) {
        uint32_t from = b->s->text_size;
        calls_add_bytes(b, "\n", (size_t)breaks);
        calls_add_mark(b, mark);
        calls_end_literal(b, from);
    }
    return calls_add_literals(b, 2);
}

/* ---- parameters ---- */

static int append(struct calls_builder *b, void *array, uint32_t *count, uint32_t *room, const void *from,
                  uint32_t more, size_t size)
{
    if (b->code || schema_reserve(array, room, *count + more, size)) {
        calls_no_memory(b);
        return 0;
    }
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
    uint32_t nodes = s->nodes, literals = s->literals, properties = s->properties, children = s->children,
             text = s->text_size;
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

/* Adds the objects among the values of a schema, as arguments of the tool `name`. Returns their node; NO_NODE: no
 * object satisfies the schema. */
static uint32_t add_objects(struct calls_builder *b, const struct schema *t, const char *name)
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
    int has_pairs = meaning_has_pairs(b->o->calls);
    for (uint32_t i = 0; has_pairs && i < count && !b->code; i++)
        object[i] = calls_add_pairs(b, object[i], name);
    uint32_t node = calls_add_group(b, NODE_UNION, object, count);
    if (!b->code)
        b->s->node[node].spreads = (uint8_t)has_pairs;
    return node;
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
        calls_no_memory(b);
    else if (!rc && !b->code && (root = add_objects(b, t, name)) == NO_NODE)
        rc = VB_BAD_ARGUMENT, snprintf(error, sizeof error, "no object satisfies them");
    else if (!rc && t->text_size && calls_has_mark(b, t->text, t->text_size))
        rc = VB_UNSUPPORTED,
        snprintf(error, sizeof error, "a name or a constant contains a marker of this model's calls, such as %s",
                 meaning_mark(b->o->calls, MARK_KEY));
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
    for (int i = 0; i < 100; i++) {
        char digits[4];
        uint32_t from = b->s->text_size;
        calls_add_bytes(b, digits, (size_t)snprintf(digits, sizeof digits, "%d", i));
        calls_end_literal(b, from);
    }
    return calls_add_literals(b, 100);
}

/* From a tool's name to the end of its arguments. */
static uint32_t add_tool(struct calls_builder *b, const json_t *function)
{
    uint32_t part[4], parts = 0, from = b->s->text_size;
    const json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
    calls_add_bytes(b, json_string_value(name), json_string_length(name));
    if (b->o->calls == MEANING_DEEPSEEK_V3)
        calls_add_bytes(b, "\n```json\n", 9);
    else if (b->o->calls == MEANING_DEEPSEEK_V31)
        calls_add_mark(b, MARK_SEP);
    else if (b->o->calls == MEANING_KIMI_K2)
        calls_add_bytes(b, ":", 1);
    else if (b->o->calls == MEANING_DEEPSEEK_V32)
        calls_add_bytes(b, "\">", 2);
    part[parts++] = calls_end_text(b, from);
    if (b->o->calls == MEANING_KIMI_K2) {
        part[parts++] = add_numbers(b);
        from = b->s->text_size;
        calls_add_mark(b, MARK_SEP);
        part[parts++] = calls_end_text(b, from);
    }
    part[parts++] = add_parameters(b, json_string_value(name), json_is_null(parameters) ? NULL : parameters);
    return calls_add_group(b, NODE_SEQUENCE, part, parts);
}

static uint32_t add_tools(struct calls_builder *b)
{
    uint32_t tool[SCHEMA_TOOLS], count = 0;
    for (size_t i = 0; i < json_array_size(b->o->tools) && count < SCHEMA_TOOLS && !b->code; i++) {
        const json_t *function = json_object_get(json_array_get(b->o->tools, i), "function");
        if (!b->o->name || !strcmp(b->o->name, json_string_value(json_object_get(function, "name"))))
            tool[count++] = add_tool(b, function);
    }
    return calls_add_group(b, NODE_UNION, tool, count);
}

static uint32_t add_call(struct calls_builder *b)
{
    uint32_t part[3], from = b->s->text_size;
    if (meaning_has_pairs(b->o->calls)) { /* the arguments have the last marker */
        part[0] = calls_add_line(b, MARK_CALL);
        part[1] = add_tools(b);
        return calls_add_group(b, NODE_SEQUENCE, part, 2);
    }
    calls_add_mark(b, MARK_CALL);
    if (b->o->calls == MEANING_DEEPSEEK_V3) {
        calls_add_bytes(b, "function", 8);
        calls_add_mark(b, MARK_SEP);
    } else if (b->o->calls == MEANING_KIMI_K2) {
        calls_add_bytes(b, "functions.", 10);
    }
    part[0] = calls_end_text(b, from);
    part[1] = add_tools(b);
    from = b->s->text_size;
    if (b->o->calls == MEANING_DEEPSEEK_V3)
        calls_add_bytes(b, "\n```", 4);
    calls_add_mark(b, MARK_END_CALL);
    part[2] = calls_end_text(b, from);
    return calls_add_group(b, NODE_SEQUENCE, part, 3);
}

/* GLM's calls come one after the other. */
static uint32_t add_calls(struct calls_builder *b)
{
    uint32_t call = add_call(b), end = calls_add_group(b, NODE_SEQUENCE, NULL, 0), tail = end;
    for (int i = 1; i < b->o->most && !b->code; i++) {
        uint32_t sequence = calls_add_group(b, NODE_SEQUENCE, (uint32_t[]){call, tail}, 2);
        tail = calls_add_group(b, NODE_UNION, (uint32_t[]){end, sequence}, 2);
        if (!b->code)
            b->s->node[tail].spreads = 1;
    }
    return calls_add_group(b, NODE_SEQUENCE, (uint32_t[]){call, tail}, 2);
}

/* The last marker of a section. */
static uint32_t add_end(struct calls_builder *b)
{
    uint32_t from = b->s->text_size;
    if (meaning_has_pairs(b->o->calls))
        return calls_add_line(b, MARK_END_CALLS);
    calls_add_mark(b, MARK_END_CALLS);
    return calls_end_text(b, from);
}

/* The section: its first marker, calls, its last marker. */
static uint32_t add_section(struct calls_builder *b)
{
    uint32_t part[3], from = b->s->text_size, call, blank = 0, end;
    int has_blank = b->o->calls == MEANING_DEEPSEEK_V3;
    calls_add_mark(b, MARK_CALLS);
    part[0] = calls_end_text(b, from);
    call = add_call(b);
    end = add_end(b);
    if (has_blank) {
        from = b->s->text_size;
        calls_add_bytes(b, "\n", 1);
        blank = calls_end_text(b, from);
    }
    uint32_t tail = end; /* what may follow the last call; before it, one more call may come */
    for (int i = 1; i < b->o->most && !b->code; i++) {
        uint32_t more[] = {blank, call, tail},
                 sequence = calls_add_group(b, NODE_SEQUENCE, more + !has_blank, has_blank ? 3 : 2);
        tail = calls_add_group(b, NODE_UNION, (uint32_t[]){end, sequence}, 2);
    }
    part[1] = call;
    part[2] = tail;
    return calls_add_group(b, NODE_SEQUENCE, part, 3);
}

int schema_of_calls(struct schema **out, const struct schema_calls *calls, char error[512])
{
    struct calls_builder b = {.s = calloc(1, sizeof *b.s), .o = calls, .error = error};
    *out = NULL;
    *error = '\0';
    if (!b.s) {
        calls_no_memory(&b);
        return b.code;
    }
    b.s->is_text = 1;
    if (meaning_has_pairs(calls->calls))
        calls_avoid_marks(&b);
    b.s->root = calls->calls == MEANING_GLM ? add_calls(&b) : add_section(&b);
    if (b.code)
        schema_close(b.s);
    else
        *out = b.s;
    return b.code;
}
