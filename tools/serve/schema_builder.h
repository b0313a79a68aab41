/* tools/serve/schema_builder.h -- a schema while it is read: schema_read.c reads keywords, schema.c has what it adds
 * them with. */
#ifndef VB_SCHEMA_BUILDER_H
#define VB_SCHEMA_BUILDER_H

#include "tools/serve/schema_internal.h"

/* A schema or a constant that becomes a node, and where it was found: `keyword` of the item `parent`, and in it the
 * member `name` or the element `index`. Without a parent, `keyword` is the whole pointer, which begins with #. */
struct schema_item {
    const json_t *json;
    uint32_t node, parent;
    int constant;
    const char *keyword, *name; /* NULL: none */
    long index;                 /* -1: none */
};

struct memo {
    const json_t *json;
    int constant;
    uint32_t node;
};

struct one_of { /* looked at when all nodes are there */
    uint32_t item, first, count;
};

struct builder {
    struct schema *s;
    const json_t *root;
    struct schema_item *item;
    struct memo *memo;
    struct one_of *one_of;
    uint32_t items, item_room, one_ofs, one_of_room;
    uint32_t next; /* the item that is being read */
    char *error;
    int code; /* of the first error; what is below adds nothing after one */
};

/* FORMAT is about the item that is being read, whose pointer is put before it. */
__attribute__((format(printf, 3, 4))) void refuse(struct builder *b, int code, const char *format, ...);
void no_memory(struct builder *b);

int room_for_member(struct builder *b); /* in child, literal and property */
void add_child(struct builder *b, uint32_t node);
uint32_t add_node(struct builder *b, enum schema_kind kind);
uint32_t add_text(struct builder *b, const char *text, size_t size);
uint32_t add_string(struct builder *b, const char *text, size_t size); /* as JSON, with the fewest escapes */
void add_literal(struct builder *b, const json_t *value);
/* The node of a schema or constant, which is read later unless it was before. The rest is as in struct schema_item. */
uint32_t node_of(struct builder *b, const json_t *json, int constant, const char *keyword, const char *name,
                 long index);

/* Reads one item: its alternatives become children [node.first, ...). */
void read_schema(struct builder *b, const json_t *schema);
void read_constant(struct builder *b, const json_t *value);

#endif
