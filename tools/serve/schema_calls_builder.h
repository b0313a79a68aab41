/* tools/serve/schema_calls_builder.h -- the schema of tool calls while it is built (schema_calls.c); schema_pairs.c
 * builds arguments as GLM and DeepSeek-V3.2 write them. */
#ifndef VB_SCHEMA_CALLS_BUILDER_H
#define VB_SCHEMA_CALLS_BUILDER_H

#include "tools/serve/schema_calls.h"
#include "tools/serve/schema_internal.h"

struct calls_builder {
    struct schema *s;
    const struct schema_calls *o;
    char *error;
    int code; /* of the first failure; what is below adds nothing after one */
};

void calls_no_memory(struct calls_builder *b);
/* Each returns the new node. */
uint32_t calls_add_node(struct calls_builder *b, enum schema_kind kind, uint32_t first, uint32_t count);
/* A sequence or a union of nodes. */
uint32_t calls_add_group(struct calls_builder *b, enum schema_kind kind, const uint32_t *node, uint32_t count);
/* A node of the last `count` literals. */
uint32_t calls_add_literals(struct calls_builder *b, uint32_t count);

void calls_add_bytes(struct calls_builder *b, const char *bytes, size_t size);
void calls_add_mark(struct calls_builder *b, enum meaning_mark mark);
/* The text from offset `from` on becomes one more literal; or a node of one literal. */
void calls_end_literal(struct calls_builder *b, uint32_t from);
uint32_t calls_end_text(struct calls_builder *b, uint32_t from);
/* A node of a marker before which one line break may come. */
uint32_t calls_add_line(struct calls_builder *b, enum meaning_mark mark);

/* The arguments that an object of the schema allows, as pairs, with the marker that ends the call. `name`: of the
 * tool. */
uint32_t calls_add_pairs(struct calls_builder *b, uint32_t object, const char *name);
/* Where arguments are pairs, no value can contain a marker: sets what the strings of the schema avoid. */
void calls_avoid_marks(struct calls_builder *b);
/* Whether a text contains one of these markers. */
int calls_has_mark(const struct calls_builder *b, const char *text, size_t size);

#endif
