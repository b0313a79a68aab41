/* engine/template/parse.c -- opens a template: parses its tags to nodes. expression.c parses expressions. */
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/template/template_internal.h"

/* ---- what expressions need too ----------------------------------------------------------------------------------- */

struct node *parse_node(struct parser *p, enum node_kind kind, int *rc)
{
    struct node *n = arena_get(p->lexer.arena, 1, sizeof *n);
    if (!n)
        *rc = template_fail(p->lexer.err, VB_NO_MEMORY, p->lexer.name, p->token.line, "no memory for the template");
    else
        n->kind = kind, n->line = p->token.line, *rc = VB_OK;
    return n;
}

int parse_advance(struct parser *p)
{
    p->token = p->after;
    return lex_next(&p->lexer, &p->after);
}

int parse_at(const struct parser *p, enum template_token_kind kind, const char *word)
{
    return p->token.kind == kind && (!word || text_is(p->token.text, word));
}

int parse_skip(struct parser *p, enum template_token_kind kind, const char *word, int *rc)
{
    if (!parse_at(p, kind, word))
        return 0;
    *rc = parse_advance(p);
    return 1;
}

int parse_wanted(struct parser *p, const char *what)
{
    const struct token *t = &p->token;
    static const char *const kinds[] = {"the template's end", "text", "{{", "}}", "{%", "%}"};
    struct text_shown shown = text_show(t->text);
    return template_fail(p->lexer.err, VB_BAD_CHECKPOINT, p->lexer.name, t->line, "wanted %s, found %s", what,
                         t->kind == T_STRING ? "a string" : t->kind <= T_TAG_END ? kinds[t->kind] : shown.s);
}

int parse_expect(struct parser *p, enum template_token_kind kind, const char *word)
{
    int rc = VB_OK;
    if (parse_skip(p, kind, word, &rc))
        return rc;
    return parse_wanted(p, word ? word
                           : kind == T_NAME ? "a name"
                           : kind == T_TAG_END ? "%}"
                           : kind == T_PRINT_END ? "}}"
                           : "=");
}

int parse_refuse(struct parser *p, const char *what, struct template_text name)
{
    return template_fail(p->lexer.err, VB_UNSUPPORTED, p->lexer.name, p->token.line, "%s %s is not implemented", what,
                         text_show(name).s);
}

int parse_deeper(struct parser *p)
{
    if (p->depth++ < MAX_NESTING)
        return VB_OK;
    return template_fail(p->lexer.err, VB_UNSUPPORTED, p->lexer.name, p->token.line,
                         "more than %d tags and brackets inside each other", MAX_NESTING);
}

/* ---- tags -------------------------------------------------------------------------------------------------------- */

static int parse_body(struct parser *p, const char *const *ends, struct node **out);

/* Parses a body up to the tag that ends it. Afterwards, the name of this tag is the current token. */
static int parse_inner(struct parser *p, const char *const *ends, struct node **out)
{
    int rc = parse_expect(p, T_TAG_END, NULL);
    return rc ? rc : parse_body(p, ends, out);
}

/* {% endNAME %} */
static int parse_end(struct parser *p, const char *name)
{
    int rc = parse_expect(p, T_NAME, name);
    return rc ? rc : parse_expect(p, T_TAG_END, NULL);
}

/* a: condition, b: body, c: the else part; an elif is an else part that consists of one N_IF. The function uses a loop,
 * not recursion, because a template may have many elifs. */
static int parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (int rc;;) {
        if ((rc = parse_advance(p)) || (rc = parse_condition(p, &n->a)) || (rc = parse_inner(p, ends, &n->b)))
            return rc;
        if (!parse_at(p, T_NAME, "elif"))
            break;
        if (!(n->c = parse_node(p, N_IF, &rc)))
            return rc;
        n = n->c;
    }
    int rc = VB_OK;
    if (parse_skip(p, T_NAME, "else", &rc) && !rc)
        rc = parse_inner(p, ends + 2, &n->c);
    return rc ? rc : parse_end(p, "endif");
}

/* a: loop variables, b: the value over which the loop runs, c: body, d: the else part. The loop's condition is member d
 * of the first variable. */
static int parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    int rc = parse_advance(p);
    if (rc || (rc = parse_targets(p, &n->a)) || (rc = parse_expect(p, T_NAME, "in")) ||
        (rc = parse_condition(p, &n->b)))
        return rc;
    if (parse_skip(p, T_NAME, "if", &rc) && (rc || (rc = parse_expression(p, &n->a->d))))
        return rc;
    if (rc || parse_at(p, T_NAME, "recursive"))
        return rc ? rc : parse_refuse(p, "for ...", p->token.text);
    p->loops++;
    rc = parse_inner(p, ends, &n->c);
    p->loops--;
    if (!rc && parse_skip(p, T_NAME, "else", &rc) && !rc)
        rc = parse_inner(p, ends + 1, &n->d);
    return rc ? rc : parse_end(p, "endfor");
}

/* name: the variable; keyword: the attribute, if the variable is a namespace; a: the value. {% set x %}...{% endset %}
 * has a body instead, c, whose output is the value. */
static int parse_set(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endset", NULL};
    int rc = parse_advance(p);
    n->name = p->token.text;
    if (rc || (rc = parse_expect(p, T_NAME, NULL)))
        return rc;
    if (parse_skip(p, T_OPERATOR, ".", &rc)) {
        n->keyword = p->token.text;
        if (rc || (rc = parse_expect(p, T_NAME, NULL)))
            return rc;
    }
    if (parse_at(p, T_OPERATOR, ",") || parse_at(p, T_OPERATOR, "|"))
        return parse_refuse(p, "set", TEXT("of several names or with a filter"));
    if (parse_at(p, T_TAG_END, NULL)) {
        int loops = p->loops;
        p->loops = 0; /* no break inside the block: the output so far would be lost */
        rc = parse_inner(p, ends, &n->c);
        p->loops = loops;
        return rc ? rc : parse_end(p, "endset");
    }
    if ((rc = parse_expect(p, T_OPERATOR, "=")) || (rc = parse_expression(p, &n->a)))
        return rc;
    return parse_expect(p, T_TAG_END, NULL);
}

static int parse_parameter(struct parser *p, struct node **out)
{
    int rc;
    struct node *n = parse_node(p, E_NAME, &rc);
    if (!n)
        return rc;
    n->name = p->token.text;
    *out = n;
    if ((rc = parse_expect(p, T_NAME, NULL)))
        return rc;
    if (parse_skip(p, T_OPERATOR, "=", &rc) && !rc)
        rc = parse_expression(p, &n->a);
    return rc;
}

/* name: the macro's name; a: the parameters, E_NAME nodes whose member a is the default; c: body */
static int parse_macro(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct node **tail = &n->a;
    int rc = parse_advance(p), loops = p->loops;
    n->name = p->token.text;
    if (rc || (rc = parse_expect(p, T_NAME, NULL)) || (rc = parse_expect(p, T_OPERATOR, "(")))
        return rc;
    for (int k = 0; !parse_at(p, T_OPERATOR, ")"); k++) {
        if (k == MAX_ARGUMENTS)
            return parse_refuse(p, "a macro of more than 16 parameters,", n->name);
        if ((k && (rc = parse_expect(p, T_OPERATOR, ","))) || (rc = parse_parameter(p, tail)))
            return rc;
        tail = &(*tail)->next;
    }
    if ((rc = parse_expect(p, T_OPERATOR, ")")))
        return rc;
    p->loops = 0; /* a break inside the macro cannot end a loop outside it */
    rc = parse_inner(p, ends, &n->c);
    p->loops = loops;
    return rc ? rc : parse_end(p, "endmacro");
}

/* The tag with which transformers marks the assistant's text. It does not change the output. c: body */
static int parse_generation(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    int rc = parse_advance(p);
    if (!rc)
        rc = parse_inner(p, ends, &n->c);
    return rc ? rc : parse_end(p, "endgeneration");
}

static int parse_jump(struct parser *p, struct node *n)
{
    struct template_text name = p->token.text;
    int rc = parse_advance(p);
    (void)n;
    if (!rc && !p->loops)
        rc = template_fail(p->lexer.err, VB_BAD_CHECKPOINT, p->lexer.name, p->token.line, "%s outside a loop",
                           text_show(name).s);
    return rc ? rc : parse_expect(p, T_TAG_END, NULL);
}

static int parse_tag(struct parser *p, struct node **out)
{
    static const struct {
        const char *name;
        enum node_kind kind;
        int (*parse)(struct parser *p, struct node *n);
    } tags[] = {{"if", N_IF, parse_if}, {"for", N_FOR, parse_for}, {"set", N_SET, parse_set},
                {"macro", N_MACRO, parse_macro}, {"generation", N_GENERATION, parse_generation},
                {"break", N_BREAK, parse_jump}, {"continue", N_CONTINUE, parse_jump}};
    int rc;
    if (p->token.kind != T_NAME)
        return parse_wanted(p, "a tag's name");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (text_is(p->token.text, tags[i].name)) {
            *out = parse_node(p, tags[i].kind, &rc);
            return *out ? tags[i].parse(p, *out) : rc;
        }
    static const char *const never_first[] = {"elif", "else", "endif", "endfor", "endmacro", "endset", "endgeneration"};
    for (size_t i = 0; i < sizeof never_first / sizeof *never_first; i++)
        if (text_is(p->token.text, never_first[i]))
            return parse_wanted(p, "a tag that fits");
    return parse_refuse(p, "the tag", p->token.text);
}

static int parse_print(struct parser *p, struct node **out)
{
    int rc;
    if (!(*out = parse_node(p, N_PRINT, &rc)))
        return rc;
    return (rc = parse_expression(p, &(*out)->a)) ? rc : parse_expect(p, T_PRINT_END, NULL);
}

static int at_end(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (parse_at(p, T_NAME, *ends))
            return 1;
    return 0;
}

/* If `ends` is NULL, the body ends at the end of the template. */
static int parse_body(struct parser *p, const char *const *ends, struct node **out)
{
    struct node **tail = out;
    int rc = parse_deeper(p);
    while (!rc) {
        enum template_token_kind kind = p->token.kind;
        if (kind == T_END && !ends)
            break;
        if (kind == T_TEXT && p->token.text.n) {
            struct node *n = parse_node(p, N_TEXT, &rc);
            if (n)
                n->value = value_string(p->token.text), *tail = n;
        } else if (kind == T_END) {
            rc = parse_wanted(p, ends[0] ? ends[0] : "more"); /* the only tag that would be correct here */
        }
        if (rc || (rc = parse_advance(p)))
            break;
        if (kind == T_TAG && at_end(p, ends))
            break;
        if (kind == T_TAG)
            rc = parse_tag(p, tail);
        else if (kind == T_PRINT)
            rc = parse_print(p, tail);
        if (*tail)
            tail = &(*tail)->next;
    }
    p->depth--;
    return rc;
}

/* ---- a template -------------------------------------------------------------------------------------------------- */

static int parse_template(struct vb_template *t, const char *source, size_t size, vb_error *err)
{
    struct parser p = {.lexer = {.arena = &t->arena, .name = t->name, .err = err}};
    int rc = lex_begin(&p.lexer, source, size);
    if (!rc && !(rc = parse_advance(&p)) && !(rc = parse_advance(&p)))
        rc = parse_body(&p, NULL, &t->body);
    return rc;
}

int template_parse(struct vb_template **out, const char *text, size_t size, const char *name, const vb_allocator *a,
                   vb_error *err)
{
    struct vb_template *t = vb_alloc(a, 1, sizeof *t);
    size_t n = strlen(name);
    int rc = VB_OK;
    *out = NULL;
    if (!t)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for the template", name);
    if (a)
        t->allocator = *a;
    t->arena = (struct arena){.allocator = &t->allocator, .limit = MAX_PARSED};
    char *copy = arena_get(&t->arena, n + 1, 1), *source = size > MAX_SOURCE ? copy : arena_get(&t->arena, size + 1, 1);
    if (!copy || !source)
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for the template", name);
    else if (size > MAX_SOURCE)
        rc = vb_fail(err, VB_UNSUPPORTED, "%s: the template has %zu bytes, at most %d are taken", name, size,
                     MAX_SOURCE);
    else if (utf8_valid(text, size) < size)
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: the template is not UTF-8 at byte %zu", name, utf8_valid(text, size));
    else
        t->name = (struct template_text){memcpy(copy, name, n), n};
    if (!rc) {
        memcpy(source, text, size);
        source[size] = '\0';
        t->source = (struct template_text){source, size};
        rc = parse_template(t, text, size, err);
    }
    if (rc)
        template_close(t);
    else
        *out = t;
    return rc;
}

const char *template_source(const struct vb_template *t, size_t *size)
{
    *size = t->source.n;
    return t->source.s;
}

const vb_allocator *template_allocator(const struct vb_template *t) { return &t->allocator; }

void template_close(struct vb_template *t)
{
    if (!t)
        return;
    vb_allocator a = t->allocator;
    arena_free(&t->arena);
    vb_free(&a, t);
}
