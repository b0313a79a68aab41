/* tools/serve/schema_internal.h -- what a schema is compiled to, and how it is read.
 *
 * A schema is a graph of nodes. A state is a set of threads: one per alternative of anyOf that what was read so far
 * leaves open. A thread has a stack of frames, one per open object or array, which say what follows the value that is
 * being read. Frames never change once they are pushed, so that threads share them. */
#ifndef VB_SCHEMA_INTERNAL_H
#define VB_SCHEMA_INTERNAL_H

#include "engine/verbatim.h"
#include "tools/serve/meaning_internal.h"
#include "tools/serve/schema.h"

#define NO_NODE UINT32_MAX
#define NO_LIMIT UINT32_MAX
#define NO_NAME UINT32_MAX
#define MOST_SEQUENCES 8 /* how deep sequences nest, where the last child of one does not count */

enum schema_kind { NODE_NONE, NODE_STRING, NODE_INTEGER, NODE_NUMBER, NODE_LITERAL, NODE_OBJECT, NODE_ARRAY, NODE_UNION,
                   /* only in the schemas of tool calls (schema_calls.c, schema_pairs.c): */
                   NODE_SEQUENCE, /* its children one after the other, with nothing between them; only as the last child
                                     of another, none */
                   NODE_RAW,      /* least to most characters without quotation marks and escapes, not none */
                   NODE_PAIRS,    /* an object as GLM and DeepSeek-V3.2 write it. The last of its `properties` is what
                                   * follows the pairs; the key of each has all bytes up to the value. `rest`: a pair
                                   * with another key */
                   NODE_NAME      /* such a key; `first`, `count` as those of the pairs */ };

struct schema_node {
    enum schema_kind kind;
    uint32_t height;       /* how deep arrays and objects nest in the flattest value; above SCHEMA_DEPTH: no value
                              fits */
    uint32_t first, count; /* of literals, properties, prefixItems (in `child`) or alternatives (in `child`) */
    uint32_t rest;         /* of further properties or items; NO_NODE: there are none */
    uint32_t least, most;  /* characters or items */
    uint8_t inferred;      /* the type follows from keywords: the schema itself would accept values of other types
                              too */
    uint8_t closed;        /* additionalProperties is false and not merely absent */
    uint8_t unless_json;   /* a raw text that is no JSON value, because it would be read as that value */
    uint8_t spreads;       /* a union whose alternatives become threads before their first byte is read */
};

struct literal {
    uint32_t text, size; /* in `text`; JSON */
};

struct property {
    uint32_t name, name_size; /* in `text` */
    uint32_t key, key_size;   /* as JSON without the first quotation mark */
    uint32_t child;
    uint32_t stop;            /* the first required property from here on; the number of properties: none */
    uint32_t by_name, by_key; /* which property is the i-th in the order of names or keys, where this one is number i */
};

struct schema {
    struct schema_node *node;
    struct literal *literal; /* those of one node ascend */
    struct property *property;
    uint32_t *child;
    char *text;
    uint32_t nodes, literals, properties, children, text_size;
    uint32_t node_room, literal_room, property_room, child_room, text_room;
    uint32_t root;
    int is_text;      /* the whole is no JSON value: no white space comes before it */
    struct schema_node avoid; /* its literals are in no string and no raw text; count 0: there are none */
};

/* The nodes that every schema has: any value, and what it consists of; and the one that no value satisfies. */
enum {
    NODE_ANY,
    NODE_ANY_STRING,
    NODE_ANY_NUMBER,
    NODE_ANY_LITERAL,
    NODE_ANY_OBJECT,
    NODE_ANY_ARRAY,
    NODE_NEVER,
    NODES_FIXED
};

/* Where a thread is. */
enum schema_place {
    AT_END,     /* the whole value was read */
    AT_VALUE,   /* a value of `node` follows */
    AT_STRING,  /* inside it: `sub` says where */
    AT_NUMBER,
    AT_LITERAL, /* the first `len` bytes of literal `lo` were read */
    AT_OBJECT,  /* { was read */
    AT_KEY,     /* , was read */
    AT_CLOSED,  /* inside a key that must be one of `properties`. The keys are sorted; `lo` is the index of the first
                 * key that begins with the bytes read so far; `len` is the number of these bytes */
    AT_OPEN,    /* inside a key that may be any: so far the first `len` bytes of the name `lo` in the order of names, or
                   of none (NO_NAME) */
    AT_COLON,   /* the key of property `lo`, or another one (NO_NAME), was read */
    AT_MEMBER,  /* a member of an object was read */
    AT_ARRAY,   /* [ was read */
    AT_ITEM,    /* an item was read */
    AT_PAIR,    /* before or inside of the key of a pair, as AT_CLOSED; `count` line breaks came before it */
    AT_RAW,     /* inside a raw text; unless_json: `lo`, `len` are place and literal of a struct json_scan */
    AT_NAME     /* inside a NODE_NAME, as AT_OPEN */
};

/* Where in a string, */
enum { IN_TEXT, IN_ESCAPE, IN_HEX1, IN_HEX2, IN_HEX3, IN_HEX4, IN_PAIR, IN_PAIR_U, IN_LOW1, IN_LOW2, IN_LOW3, IN_LOW4,
       IN_TAIL1, IN_TAIL2, IN_TAIL3, IN_E0, IN_ED, IN_F0, IN_F4 };
/* and where in a number. */
enum { AFTER_MINUS, AFTER_ZERO, IN_DIGITS, AFTER_POINT, IN_FRACTION, AFTER_E, AFTER_SIGN, IN_EXPONENT };

struct thread { /* no padding: threads are compared and hashed as bytes */
    int32_t top;      /* the frame of what follows the value that is being read, or of what follows the object or array
                         that the thread is in; -1: nothing does */
    uint32_t node;
    uint16_t at, sub;
    uint32_t code;    /* of \u: the digits so far */
    uint32_t next;    /* of an object, the number of the first property that may follow; of an array, items so far */
    uint32_t count;   /* white space, characters or digits so far, no further than it matters */
    uint32_t lo, len;
    uint32_t avoided; /* inside a text, number << 16 | length of what schema.avoid has of its end */
};

struct frame { /* no padding */
    int32_t parent; /* -1: none */
    uint32_t node;  /* an object or array */
    uint32_t next;  /* as thread.next, for the time after the value that is being read */
    uint32_t depth; /* arrays and objects that are open, this one included */
};

struct walk {
    const struct schema *schema;
    struct frame *frame;
    struct thread *thread;
    uint32_t frames, threads, frame_room, thread_room;
};

struct schema_state {
    struct walk w; /* all threads are its set */
};

/* Makes room for one more element; VB_OK or VB_NO_MEMORY. */
int schema_grow(void *array, uint32_t count, uint32_t *room, size_t size);
/* Makes room for `wanted` elements. */
int schema_reserve(void *array, uint32_t *room, uint32_t wanted, size_t size);
/* Puts what follows `byte` in threads [from, to) behind all threads. VB_OK; VB_UNSUPPORTED, VB_NO_MEMORY. */
int walk_step(struct walk *w, uint32_t from, uint32_t to, unsigned char byte);

/* ---- one byte of a text (schema_string.c) ---- */

enum { REFUSED, GOES_ON, CLOSED };

static inline int go(struct thread *t, int accepted, uint16_t sub)
{
    t->sub = sub;
    return accepted ? GOES_ON : REFUSED;
}

/* A string of least to most characters; without `most` they are counted up to `least`. CLOSED: the byte ends it. */
int schema_string_byte(const struct schema *s, struct thread *t, unsigned char c, uint32_t least, uint32_t most);
/* A raw text of the thread's node. CLOSED: it may end behind this byte. */
int schema_raw_byte(const struct schema *s, struct thread *t, unsigned char c);

/* ---- building (schema_build.c) ---- */

/* The first of `count` sorted texts from `lo` on that begins with the first `len` bytes of number lo and then `byte`;
 * NO_NAME: none. */
uint32_t literal_next(const struct schema *s, const struct schema_node *n, uint32_t lo, uint32_t len,
                      unsigned char byte);
/* After all nodes are known: alternatives of alternatives become one list, literals one node; heights. `error` names
 * what is too large. */
int schema_flatten(struct schema *s, const char **error);
void schema_heights(struct schema *s);
/* Whether no value satisfies both. *budget counts down; at 0 the answer is 0. */
int schema_disjoint(const struct schema *s, uint32_t a, uint32_t b, uint32_t *budget);
/* Sorts the literals of a node and leaves out repeated ones. */
void literals_sort(struct schema *s, struct schema_node *n);
/* Fills stop, by_name and by_key of an object's properties; `required` [count]. */
int properties_sort(struct schema *s, const struct schema_node *n, const unsigned char *required);

static inline int is_blank(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

#endif
