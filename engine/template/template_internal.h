/* engine/template/template_internal.h -- types and functions that the template interpreter's own files share.
 *
 * A template passes through three stages:
 *
 *   text -> tokens (lex.c) -> nodes of a syntax tree (parse.c, expression.c) -> output (render.c)
 *
 * value.c implements values and their operators, json.c converts values from and to JSON, filters.c has the filters,
 * call.c the tests, methods and functions, and text.c handles characters. Nodes are allocated in an arena of the
 * template, and values in an arena of the rendering. An arena is freed only as a whole. */
#ifndef VB_TEMPLATE_INTERNAL_H
#define VB_TEMPLATE_INTERNAL_H

#include "engine/template/template.h"

#define MAX_SOURCE (256 * 1024)     /* size of a template in bytes; the largest one in use has 30 KB */
#define MAX_NESTING 100             /* nested tags and brackets in a template */
#define MAX_DEPTH 400               /* nesting while rendering: operators, values inside values, macros that call
                                       macros */
#define MAX_STEPS 20000000          /* steps of one rendering, which take about a second */
#define MAX_MEMORY (256u << 20)     /* bytes that one rendering may allocate */
#define MAX_PARSED (64u << 20)      /* bytes that the nodes of one template may need */
#define MAX_ARGUMENTS 16

struct template_text {
    const char *s;
    size_t n;
};
#define TEXT(literal) ((struct template_text){literal, sizeof(literal) - 1})
int text_is(struct template_text t, const char *word);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

struct arena {
    const vb_allocator *allocator;
    struct arena_block *blocks;
    size_t total, limit;
    int full; /* 1: an allocation failed because it would have exceeded the limit */
};
void *arena_get(struct arena *a, size_t count, size_t size); /* returns zeroed memory; NULL: no memory, or limit
                                                                exceeded */
void arena_free(struct arena *a);

/* ---- values ------------------------------------------------------------------------------------------------------ */

enum value_type { V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STRING, V_LIST, V_DICT, V_NAMESPACE, V_LOOP, V_MACRO };

struct value {
    enum value_type type;
    union {
        int64_t i;            /* V_BOOL, V_INT */
        double f;
        struct template_text s;        /* V_STRING: the string in UTF-8; V_UNDEFINED: the name that was not found */
        struct template_list *list;
        struct dict *dict;    /* V_DICT, V_NAMESPACE */
        struct loop *loop;
        struct macro *macro;
    };
};
struct template_list {
    struct value *items;
    size_t n, room;
};
struct template_entry {
    struct template_text key;
    struct value value;
};
struct dict {
    struct template_entry *entries; /* in the order in which they were inserted */
    size_t n, room;
};
struct loop {
    const struct template_list *over;
    size_t at;
};

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

enum node_kind {
    N_TEXT, N_PRINT, N_IF, N_FOR, N_SET, N_MACRO, N_BREAK, N_CONTINUE, N_GENERATION,                  /* statements */
    E_CONST, E_NAME, E_LIST, E_DICT, E_ATTRIBUTE, E_ITEM, E_SLICE, E_CALL, E_FILTER, E_TEST,      /* expressions */
    E_NOT, E_NEGATE, E_PLUS, E_AND, E_OR, E_BINARY, E_CONDITIONAL
};

/* A node of the syntax tree. All kinds of nodes use this struct. Comments in parse.c and expression.c, where nodes are
 * made, say what the fields mean for each kind. */
struct node {
    enum node_kind kind;
    int line;
    int op;             /* E_BINARY: the operator; E_FILTER, E_TEST, E_CALL: an index into a table of call.c */
    struct value value; /* E_CONST and N_TEXT: the constant or the text */
    struct template_text name;
    struct template_text keyword; /* name of a keyword argument; N_SET: the attribute of a namespace */
    struct node *a, *b, *c, *d;   /* children */
    struct node *next;            /* the next node of a list, such as the statements of a body */
};

enum operator{
    OP_ADD = 1,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR,
    OP_MODULO,
    OP_JOIN,
    OP_EQUAL,
    OP_DIFFERENT,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_MORE,
    OP_MORE_EQUAL,
    OP_IN,
    OP_NOT_IN
};

struct vb_template {
    struct arena arena;
    vb_allocator allocator;
    struct template_text name;
    struct template_text source; /* followed by a 0 byte */
    struct node *body;
};

/* ---- text.c ----------------------------------------------------------------------------------------------- */
uint32_t text_character(const char *s, size_t *size); /* returns the code point at s (valid UTF-8) and its size in
                                                         bytes */
size_t text_length(struct template_text t);                    /* length in characters */
int text_space(uint32_t c);                           /* 1 for the characters that Python's str.strip() removes */
struct template_text text_strip(struct template_text t, int left, int right); /* removes white space at the chosen
                                                                                 ends */
/* Return the first and the last character of a text that is not empty. */
struct template_text text_first(struct template_text t);
struct template_text text_last(struct template_text t);
const char *text_find(struct template_text in, struct template_text what); /* returns NULL if `what` does not occur */
size_t text_put(uint32_t c, char *out);               /* writes c in UTF-8 and returns the number of bytes, at most 4 */
struct template_text text_from(struct template_text t, size_t skip);    /* removes the first `skip` characters */
/* Returns a text cleaned for an error message: one line, valid UTF-8, shortened. */
struct text_shown {
    char s[64];
};
struct text_shown text_show(struct template_text t);

/* ---- lex.c ------------------------------------------------------------------------------------------------ */

enum template_token_kind {
    T_END,
    T_TEXT,
    T_PRINT,
    T_PRINT_END,
    T_TAG,
    T_TAG_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OPERATOR
};
struct token {
    enum template_token_kind kind;
    int line;
    struct template_text text; /* the token as written, but T_STRING: without quotes, escapes decoded; T_TEXT:
                                  trimmed */
    int64_t i;
    double f;
};
struct lexer {
    struct arena *arena;
    struct template_text name; /* name of the template, for messages */
    vb_error *err;
    const char *at, *end;
    int line;
    int inside;        /* 0 in plain text; inside a tag, the kind of the token that began it: T_PRINT or T_TAG */
    int brackets;      /* number of brackets open in the current tag; inside them "}}" does not end the tag */
    int after_newline; /* 1: the text continues at the start of a line */
};
/* Starts reading `source`. Copies it to the arena, replaces "\r\n" and "\r" by "\n", and removes one newline at the
 * end. */
int lex_begin(struct lexer *x, const char *source, size_t size);
int lex_next(struct lexer *x, struct token *out);
/* Fills *err with the message "NAME: line N: ..." and returns `code`. */
int template_fail(vb_error *err, int code, struct template_text name, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- parse.c ---------------------------------------------------------------------------------------------- */

struct parser {
    struct lexer lexer;
    struct token token, after;
    int depth, loops;
};
int parse_expression(struct parser *p, struct node **out); /* expression.c */
int parse_condition(struct parser *p, struct node **out);  /* parses any expression except `x if y else z` */
int parse_targets(struct parser *p, struct node **out);    /* parses loop variables such as `a, b` into a list of E_NAME
                                                              nodes */
struct node *parse_node(struct parser *p, enum node_kind kind, int *rc);
int parse_advance(struct parser *p);
int parse_at(const struct parser *p, enum template_token_kind kind, const char *word);
/* If the current token has this kind, and `word` is NULL or is the token's text, moves on to the next token and returns
 * 1. */
int parse_skip(struct parser *p, enum template_token_kind kind, const char *word, int *rc);
int parse_expect(struct parser *p, enum template_token_kind kind, const char *word);
int parse_wanted(struct parser *p, const char *what);      /* returns the error "wanted WHAT, found ..." */
int parse_refuse(struct parser *p, const char *what, struct template_text name);
int parse_deeper(struct parser *p);

/* ---- a rendering ------------------------------------------------------------------------------------------------- */

struct variable {
    struct template_text name;
    struct value value;
    struct variable *next;
};
struct template_scope {
    struct variable *first;
    struct template_scope *outer;
};
struct macro {
    const struct node *node;
    struct template_scope *scope; /* the scope in which the macro was defined */
};
struct output {
    char *s;
    size_t n, room;
};
struct rendering {
    const struct vb_template *t;
    struct arena arena;
    vb_error *err;
    struct output out; /* the output so far; run_take turns the output of a macro into a value */
    struct template_scope *scope;
    int line, depth;
    size_t steps;
    int jump; /* N_BREAK or N_CONTINUE while such a statement is carried out, else 0 */
    struct template_marks *marks; /* NULL: not wanted */
};
struct argument {
    struct template_text keyword; /* empty (n is 0) for a positional argument */
    struct value value;
};
struct arguments {
    struct argument all[MAX_ARGUMENTS];
    size_t n;
};

int run_fail(struct rendering *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int run_no_memory(struct rendering *r);
/* Counts one step, and one more for every 16 bytes that are about to be processed. Exceeding MAX_STEPS is an error. */
int run_steps(struct rendering *r, size_t bytes);
int run_deeper(struct rendering *r); /* enters one level of nesting; the caller leaves it by decrementing r->depth */
int run_put(struct rendering *r, const char *s, size_t n);
/* Removes everything after the first `from` bytes from the output and returns it as a string value. */
int run_take(struct rendering *r, size_t from, struct value *out);

/* ---- value.c ---------------------------------------------------------------------------------------------- */
struct value value_string(struct template_text s);
struct value value_bool(int yes);
struct value value_int(int64_t i);
int value_list(struct rendering *r, size_t room, struct value *out);
int value_dict(struct rendering *r, enum value_type type, struct value *out);
int list_append(struct rendering *r, struct template_list *l, struct value v);
struct value *dict_find(struct rendering *r, const struct dict *d, struct template_text key);
int dict_set(struct rendering *r, struct dict *d, struct template_text key, struct value v);
int value_true(struct value v);
const char *value_kind(struct value v); /* the type for an error message, such as "a string" */
int value_equal(struct rendering *r, struct value a, struct value b, int *equal);
int value_binary(struct rendering *r, int op, struct value a, struct value b, struct value *out);
/* Writes a value to the output as Python's str() does. Strings inside a list or dict are written as Python's repr()
 * does. */
int value_print(struct rendering *r, struct value v);
int value_to_list(struct rendering *r, struct value v, struct value *out); /* returns the elements that a loop over v
                                                                              visits */

/* ---- json.c ----------------------------------------------------------------------------------------------- */
int value_from_json(struct rendering *r, const json_t *json, struct value *out);
struct json_style {
    int ascii, indent; /* spaces per level of nesting; indent -1: everything in one line */
};
int value_to_json(struct rendering *r, struct value v, const struct json_style *style, int level);
int value_put_float(struct rendering *r, double f);

/* ---- call.c, filters.c: each _find function returns an index into a table of names, or -1 ------------------------ */
int filter_find(struct template_text name);
int test_find(struct template_text name);
int method_find(struct template_text name);
int method_of_dict(struct template_text name); /* >= 0: Python's dict has such a method, so d.NAME never means a key */
int function_find(struct template_text name);
int filter_call(struct rendering *r, int filter, struct value on, const struct arguments *args, struct value *out);
int test_takes(int test); /* 1: the test has an argument */
/* `with`: its argument, or NULL */
int test_call(struct rendering *r, int test, struct value on, const struct value *with, int *yes);
int method_call(struct rendering *r, int method, struct value on, const struct arguments *args, struct value *out);
int function_call(struct rendering *r, int function, const struct arguments *args, struct value *out);
/* Reads the attribute `name` of a value (defined in render.c). If there is no such attribute, *out becomes Jinja2's
 * value `undefined` (V_UNDEFINED). */
int value_attribute(struct rendering *r, struct value on, struct template_text name, struct value *out);

#endif
