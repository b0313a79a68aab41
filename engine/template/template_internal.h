/* engine/template/template_internal.h -- what the files of the template interpreter share; nobody else includes it.
 *
 *   text -> tokens (lex.c) -> nodes (parse.c) -> output (render.c)
 *
 * value.c knows values, json.c how they become JSON and come from it, call.c the filters, tests,
 * methods and functions, text.c characters. Nodes live in the template's arena, values in one of the rendering's:
 * nothing is freed alone. */
#ifndef VB_TEMPLATE_INTERNAL_H
#define VB_TEMPLATE_INTERNAL_H

#include "engine/template/template.h"

#define MAX_SOURCE (256 * 1024)     /* bytes of a template; the longest in use has 30 KB */
#define MAX_NESTING 100             /* tags and brackets inside each other */
#define MAX_DEPTH 400               /* of one computation: operators, values inside values, macros that call macros */
#define MAX_STEPS 20000000          /* of a rendering: about a second */
#define MAX_MEMORY (256u << 20)     /* of a rendering */
#define MAX_PARSED (64u << 20)      /* of the nodes */
#define MAX_ARGUMENTS 16

struct template_text {
    const char *s;
    size_t n;
};
#define TEXT(literal) ((struct template_text){literal, sizeof(literal) - 1})
int text_is(struct template_text t, const char *word);

/* ---- memory -------------------------------------------------------------------------------------------------------- */

struct arena {
    const vb_allocator *allocator;
    struct arena_block *blocks;
    size_t total, limit;
    int full; /* more than the limit was asked for */
};
void *arena_get(struct arena *a, size_t count, size_t size); /* zeroed; NULL: no memory, or too much */
void arena_free(struct arena *a);

/* ---- values -------------------------------------------------------------------------------------------------------- */

enum value_type { V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STRING, V_LIST, V_DICT, V_NAMESPACE, V_LOOP, V_MACRO };

struct value {
    enum value_type type;
    union {
        int64_t i;            /* V_BOOL, V_INT */
        double f;
        struct template_text s;        /* UTF-8; V_UNDEFINED: what was undefined */
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
    struct template_entry *entries; /* as they were put in */
    size_t n, room;
};
struct loop {
    const struct template_list *over;
    size_t at;
};

/* ---- nodes --------------------------------------------------------------------------------------------------------- */

enum node_kind {
    N_TEXT, N_PRINT, N_IF, N_FOR, N_SET, N_MACRO, N_BREAK, N_CONTINUE, N_GROUP,                    /* statements */
    E_CONST, E_NAME, E_LIST, E_DICT, E_ATTRIBUTE, E_ITEM, E_SLICE, E_CALL, E_FILTER, E_TEST,      /* expressions */
    E_NOT, E_NEGATE, E_PLUS, E_AND, E_OR, E_BINARY, E_CONDITIONAL
};

/* One shape for all kinds; which fields a kind uses stands where parse.c makes it. */
struct node {
    enum node_kind kind;
    int line;
    int op;             /* E_BINARY: its operator; E_FILTER, E_TEST, E_CALL: an index into a table of call.c */
    struct value value; /* E_CONST, N_TEXT */
    struct template_text name;
    struct template_text keyword; /* of an argument, a parameter or a dict's entry */
    struct node *a, *b, *c, *d;
    struct node *next;  /* in a list */
};

enum operator { OP_ADD = 1, OP_SUBTRACT, OP_MULTIPLY, OP_DIVIDE, OP_FLOOR, OP_MODULO, OP_JOIN, OP_EQUAL, OP_DIFFERENT, OP_LESS, OP_LESS_EQUAL,
                OP_MORE, OP_MORE_EQUAL, OP_IN, OP_NOT_IN };

struct chat_template {
    struct arena arena;
    vb_allocator allocator;
    struct template_text name;
    struct node *body;
};

/* ---- text.c ----------------------------------------------------------------------------------------------- */
uint32_t text_character(const char *s, size_t *size); /* at s, valid UTF-8 */
size_t text_length(struct template_text t);                    /* in characters */
int text_space(uint32_t c);                           /* what Python's str.strip() takes */
struct template_text text_strip(struct template_text t, int left, int right); /* without white space at these ends */
struct template_text text_first(struct template_text t);                /* its first and its last character; it is not empty */
struct template_text text_last(struct template_text t);
const char *text_find(struct template_text in, struct template_text what); /* NULL: not there */
size_t text_put(uint32_t c, char *out);               /* UTF-8 of c, at most 4 bytes */
struct template_text text_from(struct template_text t, size_t skip);    /* without its first `skip` characters */
/* Made fit for a message: one line, whole characters, not long. */
struct text_shown {
    char s[64];
};
struct text_shown text_show(struct template_text t);

/* ---- lex.c ------------------------------------------------------------------------------------------------ */

enum template_token_kind { T_END, T_TEXT, T_PRINT, T_PRINT_END, T_TAG, T_TAG_END, T_NAME, T_STRING, T_INT, T_FLOAT, T_OPERATOR };
struct token {
    enum template_token_kind kind;
    int line;
    struct template_text text; /* as written; of T_STRING and T_TEXT what it stands for */
    int64_t i;
    double f;
};
struct lexer {
    struct arena *arena;
    struct template_text name; /* of the template */
    vb_error *err;
    const char *at, *end;
    int line;
    int inside;        /* 0: text; else the token kind that began the tag */
    int brackets;      /* open in the tag: its end is not looked for inside */
    int after_newline; /* the last tag's end took the newline behind it, or nothing was read yet */
};
/* `source` newline-normalised, without one newline at its end, in the arena. */
int lex_begin(struct lexer *x, const char *source, size_t size);
int lex_next(struct lexer *x, struct token *out);
/* "NAME: line N: ..." */
int template_fail(vb_error *err, int code, struct template_text name, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- parse.c ---------------------------------------------------------------------------------------------- */

struct parser {
    struct lexer lexer;
    struct token token, after;
    int depth, loops;
};
int parse_template(struct chat_template *t, const char *source, size_t size, vb_error *err);
int parse_expression(struct parser *p, struct node **out); /* expression.c */
int parse_condition(struct parser *p, struct node **out);  /* an expression that is no x if y else z */
int parse_targets(struct parser *p, struct node **out);    /* a, b: E_NAME nodes */
struct node *parse_node(struct parser *p, enum node_kind kind, int *rc);
int parse_advance(struct parser *p);
int parse_at(const struct parser *p, enum template_token_kind kind, const char *word);
int parse_skip(struct parser *p, enum template_token_kind kind, const char *word, int *rc); /* whether it was there */
int parse_expect(struct parser *p, enum template_token_kind kind, const char *word);
int parse_wanted(struct parser *p, const char *what);      /* "wanted WHAT, found ..." */
int parse_refuse(struct parser *p, const char *what, struct template_text name);
int parse_deeper(struct parser *p);

/* ---- a rendering --------------------------------------------------------------------------------------------------- */

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
    struct template_scope *scope; /* where it was defined */
};
struct output {
    char *s;
    size_t n, room;
};
struct rendering {
    const struct chat_template *t;
    struct arena arena;
    vb_error *err;
    struct output out; /* a macro's is taken off its end again */
    struct template_scope *scope;
    int line, depth;
    size_t steps;
    int jump; /* N_BREAK or N_CONTINUE on the way to its loop; 0: none */
};
struct argument {
    struct template_text keyword; /* n 0: by position */
    struct value value;
};
struct arguments {
    struct argument all[MAX_ARGUMENTS];
    size_t n;
};

int run_fail(struct rendering *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
int run_no_memory(struct rendering *r);
/* Counts work, before it is done: a step, and one more for every 16 bytes. */
int run_steps(struct rendering *r, size_t bytes);
int run_deeper(struct rendering *r); /* the caller leaves with r->depth-- */
int run_put(struct rendering *r, const char *s, size_t n);
/* What was put since `from` becomes a string. */
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
const char *value_kind(struct value v); /* "a string" */
int value_equal(struct rendering *r, struct value a, struct value b, int *equal);
int value_binary(struct rendering *r, int op, struct value a, struct value b, struct value *out);
/* As str() has it; strings inside others as repr() has them. */
int value_print(struct rendering *r, struct value v);
int value_to_list(struct rendering *r, struct value v, struct value *out); /* what a loop over v sees */

/* ---- json.c ----------------------------------------------------------------------------------------------- */
int value_from_json(struct rendering *r, const json_t *json, struct value *out);
struct json_style {
    int ascii, indent; /* indent -1: one line */
};
int value_to_json(struct rendering *r, struct value v, const struct json_style *style, int level);
int value_put_float(struct rendering *r, double f);

/* ---- call.c: tables of names; find gives an index or -1 ---------------------------------------------------- */
int filter_find(struct template_text name);
int test_find(struct template_text name);
int method_find(struct template_text name);
int method_of_dict(struct template_text name); /* a name that Python's dict has: never a key */
int function_find(struct template_text name);
int filter_call(struct rendering *r, int filter, struct value on, const struct arguments *args, struct value *out);
int test_call(struct rendering *r, int test, struct value on, int *yes);
int method_call(struct rendering *r, int method, struct value on, const struct arguments *args, struct value *out);
int function_call(struct rendering *r, int function, const struct arguments *args, struct value *out);
/* An attribute or item of a value; undefined where there is none. render.c */
int value_attribute(struct rendering *r, struct value on, struct template_text name, struct value *out);

#endif
