/* tools/serve/schema_read.c -- the keywords of one schema, and constants. */
#include "tools/serve/schema_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRING = 1, INTEGER = 2, NUMBER = 4, BOOLEAN = 8, NOTHING = 16, OBJECT = 32, ARRAY = 64, ALL_TYPES = 127 };

/* ---- keywords ---- */

enum {
    NOTE = 1,
    DEFINITIONS = 2,
    TYPE = 4,
    LISTED = 8,
    REFERENCE = 16,
    UNION = 32,
    OF_STRING = 64,
    OF_OBJECT = 128,
    OF_ARRAY = 256
};

static unsigned group_of(const char *keyword)
{
    static const struct {
        const char *name;
        unsigned group;
    } keywords[] = {{"title", NOTE}, {"description", NOTE}, {"default", NOTE}, {"examples", NOTE}, {"$schema", NOTE},
                    {"$comment", NOTE}, {"$defs", DEFINITIONS}, {"definitions", DEFINITIONS}, {"type", TYPE},
                    {"enum", LISTED}, {"const", LISTED}, {"$ref", REFERENCE}, {"anyOf", UNION}, {"oneOf", UNION},
                    {"minLength", OF_STRING}, {"maxLength", OF_STRING}, {"properties", OF_OBJECT},
                    {"required", OF_OBJECT}, {"additionalProperties", OF_OBJECT}, {"items", OF_ARRAY},
                    {"prefixItems", OF_ARRAY}, {"minItems", OF_ARRAY}, {"maxItems", OF_ARRAY}};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (!strcmp(keyword, keywords[i].name))
            return keywords[i].group;
    return 0;
}

static unsigned groups_of(struct builder *b, const json_t *schema)
{
    unsigned groups = 0;
    const char *keyword;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, keyword, value) {
        unsigned group = group_of(keyword);
        if (!group)
            refuse(b, VB_UNSUPPORTED, "the keyword %.120s is not supported", keyword);
        groups |= group;
    }
    return groups;
}

/* $ref, anyOf and oneOf stand alone. */
static void stands_alone(struct builder *b, const json_t *schema, const char *alone)
{
    const char *keyword;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, keyword, value)
        if (strcmp(keyword, alone) && !(group_of(keyword) & (NOTE | DEFINITIONS)))
            refuse(b, VB_UNSUPPORTED, "%s beside %s is not supported", keyword, alone);
}

static unsigned type_named(const char *name)
{
    static const char *const names[] = {"string", "integer", "number", "boolean", "null", "object", "array"};
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return 1u << i;
    return 0;
}

static unsigned types_of(struct builder *b, const json_t *type)
{
    unsigned types = type_named(json_string_value(type));
    const json_t *one;
    size_t i;
    if (json_is_array(type))
        json_array_foreach(type, i, one) {
            unsigned t = type_named(json_string_value(one));
            types = t && (types || !i) ? types | t : 0;
        }
    if (!types)
        refuse(b, VB_BAD_ARGUMENT,
               "type must be string, integer, number, boolean, null, object or array, or a list of these");
    return types;
}

static unsigned type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return OBJECT;
    case JSON_ARRAY: return ARRAY;
    case JSON_STRING: return STRING;
    case JSON_INTEGER: return INTEGER | NUMBER;
    case JSON_REAL:
        return json_real_value(value) > -1e15 && json_real_value(value) < 1e15 &&
                       json_real_value(value) == (double)(long long)json_real_value(value)
                   ? INTEGER | NUMBER
                   : NUMBER;
    case JSON_NULL: return NOTHING;
    default: return BOOLEAN;
    }
}

static uint32_t count_of(struct builder *b, const json_t *schema, const char *keyword, uint32_t otherwise)
{
    const json_t *value = json_object_get(schema, keyword);
    double x = json_number_value(value);
    if (!value)
        return otherwise;
    if (!json_is_number(value) || !(x >= 0) || (x < 1e15 && x != (double)(long long)x))
        refuse(b, VB_BAD_ARGUMENT, "%s must be an integer that is not negative", keyword);
    else if (x > SCHEMA_COUNT)
        refuse(b, VB_UNSUPPORTED, "%s above %d is not supported", keyword, SCHEMA_COUNT);
    return b->code ? otherwise : (uint32_t)x;
}

static uint32_t with_counts(struct builder *b, const json_t *schema, enum schema_kind kind, const char *least,
                            const char *most)
{
    uint32_t node = add_node(b, kind), from = count_of(b, schema, least, 0), to = count_of(b, schema, most, NO_LIMIT);
    if (b->code)
        return NODE_NEVER;
    b->s->node[node].least = from;
    b->s->node[node].most = to;
    return from <= to ? node : NODE_NEVER;
}

/* ---- $ref ---- */

/* The next step of a pointer, without its % and ~ codes; NULL: it is no pointer. */
static char *step_of(const char **pointer)
{
    size_t size = strcspn(++*pointer, "/"), n = 0;
    char *step = malloc(size + 1);
    for (size_t i = 0; step && i < size; i++) {
        unsigned byte = (unsigned char)(*pointer)[i];
        int used = 0;
        if (byte == '%' && sscanf(*pointer + i, "%%%2x%n", &byte, &used) == 1 && used == 3 && byte)
            i += 2;
        else
            byte = (unsigned char)(*pointer)[i];
        if (n && step[n - 1] == '~' && (byte == '0' || byte == '1'))
            step[n - 1] = byte == '0' ? '\1' : '/'; /* \1: a ~ that begins no further code */
        else
            step[n++] = (char)byte;
    }
    if (step)
        step[n] = '\0';
    for (size_t i = 0; step && i < n; i++)
        if (step[i] == '\1')
            step[i] = '~';
    *pointer += size;
    return step;
}

static const json_t *step_into(const json_t *json, const char *step)
{
    size_t digits = strspn(step, "0123456789");
    if (json_is_object(json))
        return json_object_get(json, step);
    return json_is_array(json) && digits && digits < 10 && !step[digits] ? json_array_get(json, (size_t)atol(step))
                                                                         : NULL;
}

static void read_reference(struct builder *b, const json_t *schema)
{
    const json_t *found = b->root, *value = json_object_get(schema, "$ref");
    const char *ref = json_string_value(value), *rest = ref ? ref + 1 : NULL;
    stands_alone(b, schema, "$ref");
    if (!ref)
        refuse(b, VB_BAD_ARGUMENT, "$ref must be a string");
    else if (*ref != '#' || (*rest && *rest != '/'))
        refuse(b, VB_UNSUPPORTED, "$ref %.120s is not supported: it must be # and a JSON pointer inside the document",
               ref);
    while (!b->code && found && *rest) {
        char *step = step_of(&rest);
        if (!step)
            no_memory(b);
        else
            found = step_into(found, step);
        free(step);
    }
    if (!b->code && !found)
        refuse(b, VB_BAD_ARGUMENT, "$ref %.120s leads to nothing", ref);
    if (!b->code)
        add_child(b, node_of(b, found, 0, ref, NULL, -1));
}

/* ---- the kinds of schemas: each adds the alternatives of the item to `child` ---- */

static void read_union(struct builder *b, const json_t *schema)
{
    const char *keyword = json_object_get(schema, "anyOf") ? "anyOf" : "oneOf";
    const json_t *list = json_object_get(schema, keyword), *branch;
    uint32_t first = b->s->children;
    size_t i;
    stands_alone(b, schema, keyword);
    if (!json_array_size(list))
        refuse(b, VB_BAD_ARGUMENT, "%s must be a list of schemas", keyword);
    json_array_foreach(list, i, branch)
        if (!b->code)
            add_child(b, node_of(b, branch, 0, keyword, NULL, (long)i));
    if (b->code || *keyword != 'o')
        return;
    if (schema_grow(&b->one_of, b->one_ofs, &b->one_of_room, sizeof *b->one_of))
        no_memory(b);
    else
        b->one_of[b->one_ofs++] = (struct one_of){b->next, first, b->s->children - first};
}

static size_t characters(const json_t *string)
{
    const char *text = json_string_value(string);
    size_t n = 0;
    for (size_t i = 0; i < json_string_length(string); i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* The values of enum or const that the other keywords leave. Arrays and objects among them become nodes of their
 * own. */
static void read_listed(struct builder *b, const json_t *schema, unsigned types, unsigned groups)
{
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum"), *value;
    const char *keyword = one ? "const" : "enum";
    uint32_t least = count_of(b, schema, "minLength", 0), most = count_of(b, schema, "maxLength", NO_LIMIT),
             node = NODE_NEVER;
    size_t size = one ? 1 : json_array_size(list);
    if (one && list)
        refuse(b, VB_UNSUPPORTED, "enum beside const is not supported");
    else if (!size)
        refuse(b, VB_BAD_ARGUMENT, "enum must be a list of values");
    for (int nested = 0; nested < 2; nested++) /* what is nested comes after: the literals of a node and its
                                                  alternatives lie side by side */
        for (size_t i = 0; i < size && !b->code; i++) {
            value = one ? one : json_array_get(list, i);
            if (!(type_of_value(value) & types) || nested != (json_is_object(value) || json_is_array(value)) ||
                (json_is_string(value) && (characters(value) < least || characters(value) > most)))
                continue;
            if (nested && groups & (OF_OBJECT | OF_ARRAY)) {
                refuse(b, VB_UNSUPPORTED, "%s with objects or arrays beside keywords about these is not supported",
                       keyword);
            } else if (nested) {
                add_child(b, node_of(b, value, 1, keyword, NULL, one ? -1 : (long)i));
            } else {
                uint32_t literal = b->s->literals;
                if (node == NODE_NEVER) {
                    node = add_node(b, NODE_LITERAL);
                    b->s->node[node].first = literal;
                    add_child(b, node);
                }
                add_literal(b, value);
                b->s->node[node].count++;
            }
        }
    if (!b->code && node != NODE_NEVER)
        literals_sort(b->s, &b->s->node[node]);
}

static void add_property(struct builder *b, const char *name, uint32_t child)
{
    struct schema *s = b->s;
    size_t size = strlen(name);
    if (!room_for_member(b))
        return;
    uint32_t key = add_string(b, name, size), key_size = s->text_size - key, at = add_text(b, name, size);
    s->property[s->properties++] = (struct property){.name = at, .name_size = (uint32_t)size, .key = key + 1,
                                                     .key_size = key_size - 1, .child = child};
}

/* The names in `required` as an object's keys, in their order. */
static json_t *required_names(struct builder *b, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "required"), *name;
    json_t *names = json_object();
    size_t i;
    if (!names)
        no_memory(b);
    if (list && !json_is_array(list))
        refuse(b, VB_BAD_ARGUMENT, "required must be a list of names");
    json_array_foreach(list, i, name) {
        if (b->code)
            break;
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            refuse(b, VB_BAD_ARGUMENT, "required must be a list of names");
        else if (json_object_set_new(names, json_string_value(name), json_null()))
            no_memory(b);
    }
    return names;
}

static void read_properties(struct builder *b, const json_t *schema, json_t *required, uint32_t rest)
{
    json_t *properties = json_object_get(schema, "properties"), *value;
    const char *name;
    if (properties && !json_is_object(properties))
        refuse(b, VB_BAD_ARGUMENT, "properties must be an object");
    json_object_foreach(properties, name, value)
        if (!b->code)
            add_property(b, name, node_of(b, value, 0, "properties", name, -1));
    json_object_foreach(required, name, value)
        if (!b->code && !json_object_get(properties, name)) {
            if (rest == NO_NODE)
                refuse(b, VB_BAD_ARGUMENT, "required has the name %.120s, which properties does not have", name);
            else
                add_property(b, name, rest);
        }
}

static uint32_t read_object(struct builder *b, const json_t *schema)
{
    const json_t *more = json_object_get(schema, "additionalProperties");
    uint32_t node = add_node(b, NODE_OBJECT), first = b->s->properties;
    uint32_t rest = more && !json_is_false(more) ? node_of(b, more, 0, "additionalProperties", NULL, -1) : NO_NODE;
    json_t *required = b->code ? NULL : required_names(b, schema);
    if (required && !b->code)
        read_properties(b, schema, required, rest);
    uint32_t count = b->s->properties - first;
    unsigned char *flags = b->code ? NULL : calloc(count + 1, 1);
    if (!b->code && !flags)
        no_memory(b);
    if (!b->code) {
        struct schema_node *n = &b->s->node[node];
        n->first = first;
        n->count = count;
        n->rest = rest;
        n->closed = json_is_false(more);
        uint32_t i = 0;
        const char *name;
        json_t *value, *properties = json_object_get(schema, "properties");
        json_object_foreach(properties, name, value)
            flags[i++] = json_object_get(required, name) != NULL;
        memset(flags + i, 1, count - i);
        if (properties_sort(b->s, n, flags))
            no_memory(b);
    }
    free(flags);
    json_decref(required);
    return node;
}

static uint32_t read_array(struct builder *b, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems"), *item;
    uint32_t node = with_counts(b, schema, NODE_ARRAY, "minItems", "maxItems"), first = b->s->children;
    size_t i;
    if (prefix && !json_is_array(prefix))
        refuse(b, VB_BAD_ARGUMENT, "prefixItems must be a list of schemas");
    if (json_is_array(items))
        refuse(b, VB_UNSUPPORTED, "a list as items is not supported: it is prefixItems now");
    json_array_foreach(prefix, i, item)
        if (!b->code)
            add_child(b, node_of(b, item, 0, "prefixItems", NULL, (long)i));
    uint32_t rest = items && !b->code ? node_of(b, items, 0, "items", NULL, -1) : NODE_ANY;
    if (!b->code && node != NODE_NEVER) {
        b->s->node[node].first = first;
        b->s->node[node].count = b->s->children - first;
        b->s->node[node].rest = rest;
    }
    return node;
}

static uint32_t constants_node(struct builder *b, unsigned types)
{
    uint32_t node = add_node(b, NODE_LITERAL), first = b->s->literals;
    if (types & BOOLEAN) {
        add_literal(b, json_false());
        add_literal(b, json_true());
    }
    if (types & NOTHING)
        add_literal(b, json_null());
    if (!b->code) {
        b->s->node[node].first = first;
        b->s->node[node].count = b->s->literals - first;
        literals_sort(b->s, &b->s->node[node]);
    }
    return node;
}

static void read_types(struct builder *b, const json_t *schema, unsigned types, int inferred)
{
    uint32_t list[5], n = 0;
    if (types & OBJECT)
        list[n++] = read_object(b, schema);
    if (types & ARRAY)
        list[n++] = read_array(b, schema);
    if (types & STRING)
        list[n++] = with_counts(b, schema, NODE_STRING, "minLength", "maxLength");
    if (types & (NUMBER | INTEGER))
        list[n++] = add_node(b, types & NUMBER ? NODE_NUMBER : NODE_INTEGER);
    if (types & (BOOLEAN | NOTHING))
        list[n++] = constants_node(b, types);
    if (b->code)
        return;
    b->s->node[b->item[b->next].node].first = b->s->children;
    for (uint32_t i = 0; i < n && !b->code; i++) {
        b->s->node[list[i]].inferred = (uint8_t)(inferred && list[i] != NODE_NEVER);
        add_child(b, list[i]);
    }
}

void read_schema(struct builder *b, const json_t *schema)
{
    if (json_is_boolean(schema)) {
        add_child(b, json_is_true(schema) ? NODE_ANY : NODE_NEVER);
        return;
    }
    if (!json_is_object(schema)) {
        refuse(b, VB_BAD_ARGUMENT, "a schema must be an object, true or false");
        return;
    }
    unsigned groups = groups_of(b, schema);
    const json_t *type = json_object_get(schema, "type");
    unsigned types = type ? types_of(b, type) : 0;
    unsigned meant = (groups & OF_OBJECT ? OBJECT : 0) | (groups & OF_ARRAY ? ARRAY : 0) |
                     (groups & OF_STRING ? STRING : 0);
    if (b->code)
        return;
    if (groups & REFERENCE)
        read_reference(b, schema);
    else if (groups & UNION)
        read_union(b, schema);
    else if (groups & LISTED)
        read_listed(b, schema, type ? types : ALL_TYPES, groups);
    else if (!type && !meant)
        add_child(b, NODE_ANY);
    else
        read_types(b, schema, type ? types : meant, !type);
}

void read_constant(struct builder *b, const json_t *value)
{
    struct schema *s = b->s;
    uint32_t node = add_node(b, json_is_object(value) ? NODE_OBJECT : json_is_array(value) ? NODE_ARRAY : NODE_LITERAL);
    uint32_t child = s->children, literal = s->literals, property = s->properties;
    size_t i;
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)value, name, member)
        if (!b->code)
            add_property(b, name, node_of(b, member, 1, NULL, name, -1));
    json_array_foreach(value, i, member)
        if (!b->code)
            add_child(b, node_of(b, member, 1, NULL, NULL, (long)i));
    if (!json_is_object(value) && !json_is_array(value))
        add_literal(b, value);
    if (b->code)
        return;
    struct schema_node *n = &s->node[node];
    n->first = json_is_object(value) ? property : json_is_array(value) ? child : literal;
    n->count = json_is_object(value) ? s->properties - property : json_is_array(value) ? s->children - child : 1;
    n->least = n->most = n->count;
    s->node[b->item[b->next].node].first = s->children;
    unsigned char *flags = json_is_object(value) ? malloc(n->count + 1) : NULL;
    if (flags)
        memset(flags, 1, n->count);
    if (json_is_object(value) && (!flags || properties_sort(s, n, flags)))
        no_memory(b);
    free(flags);
    add_child(b, node);
}
