/* engine/template/expression.c -- expressions to nodes, in Jinja2's order, the loosest first:
 *
 *   x if y else z;  or;  and;  not;  == != < <= > >= in, not in;  + -;  ~;  * / // %;  - + in front;  .a [b] (c);  |
 *                   is */
#include "engine/template/template_internal.h"

static int parse_unary(struct parser *p, int with_filter, struct node **out);
static int parse_sum(struct parser *p, struct node **out);

static int make(struct parser *p, enum node_kind kind, struct node *a, struct node **out)
{
    int rc;
    *out = parse_node(p, kind, &rc);
    if (*out)
        (*out)->a = a;
    return rc;
}

static int make_constant(struct parser *p, struct value v, struct node **out)
{
    int rc = make(p, E_CONST, NULL, out);
    if (!rc)
        (*out)->value = v;
    return rc;
}

/* ---- names, literals --------------------------------------------------------------------------------------------- */

static int parse_name(struct parser *p, struct node **out)
{
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {{"true", {V_BOOL, {.i = 1}}}, {"True", {V_BOOL, {.i = 1}}}, {"false", {V_BOOL, {.i = 0}}},
                     {"False", {V_BOOL, {.i = 0}}}, {"none", {.type = V_NONE}}, {"None", {.type = V_NONE}}};
    struct template_text name = p->token.text;
    int rc;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (text_is(name, constants[i].name))
            return (rc = make_constant(p, constants[i].value, out)) ? rc : parse_advance(p);
    if ((rc = make(p, E_NAME, NULL, out)))
        return rc;
    (*out)->name = name;
    return parse_advance(p);
}

/* 'a' 'b' is 'ab' */
static int parse_strings(struct parser *p, struct node **out)
{
    struct template_text all = p->token.text;
    int rc = parse_advance(p);
    while (!rc && parse_at(p, T_STRING, NULL)) {
        char *both = arena_get(p->lexer.arena, all.n + p->token.text.n + 1, 1);
        if (!both)
            return template_fail(p->lexer.err, VB_NO_MEMORY, p->lexer.name, p->token.line,
                                 "no memory for the template");
        for (size_t i = 0; i < all.n + p->token.text.n; i++)
            both[i] = i < all.n ? all.s[i] : p->token.text.s[i - all.n];
        all = (struct template_text){both, all.n + p->token.text.n};
        rc = parse_advance(p);
    }
    return rc ? rc : make_constant(p, value_string(all), out);
}

/* Parses the expressions after "(" or "[" up to the closing bracket. *commas becomes the number of commas. */
static int parse_items(struct parser *p, const char *close, struct node **out, int *commas)
{
    int rc = VB_OK;
    for (*commas = 0; !parse_at(p, T_OPERATOR, close); (*commas)++) {
        if ((rc = parse_expression(p, out)))
            return rc;
        out = &(*out)->next;
        if (!parse_skip(p, T_OPERATOR, ",", &rc))
            break;
        if (rc)
            return rc;
    }
    return parse_expect(p, T_OPERATOR, close);
}

/* Parses a list or a tuple to E_LIST, whose elements are the list a; or an expression in brackets. */
static int parse_brackets(struct parser *p, const char *close, struct node **out)
{
    struct node *items = NULL;
    int commas, rc = parse_advance(p);
    if (rc || (rc = parse_items(p, close, &items, &commas)))
        return rc;
    if (close[0] == ')' && !commas && items) {
        *out = items;
        return VB_OK;
    }
    return make(p, E_LIST, items, out);
}

/* {"a": 1}: the entries are the list a. Member a of an entry is the key, and member b is the value. */
static int parse_dict(struct parser *p, struct node **out)
{
    int rc = parse_advance(p);
    if (rc || (rc = make(p, E_DICT, NULL, out)))
        return rc;
    struct node **tail = &(*out)->a;
    while (!parse_at(p, T_OPERATOR, "}")) {
        if ((rc = make(p, E_LIST, NULL, tail)) || (rc = parse_expression(p, &(*tail)->a)) ||
            (rc = parse_expect(p, T_OPERATOR, ":")) || (rc = parse_expression(p, &(*tail)->b)))
            return rc;
        tail = &(*tail)->next;
        if (!parse_skip(p, T_OPERATOR, ",", &rc))
            break;
        if (rc)
            return rc;
    }
    return parse_expect(p, T_OPERATOR, "}");
}

static int parse_primary(struct parser *p, struct node **out)
{
    struct value number = {V_INT, {.i = p->token.i}};
    int rc;
    switch (p->token.kind) {
    case T_NAME:
        return parse_name(p, out);
    case T_STRING:
        return parse_strings(p, out);
    case T_FLOAT:
        number = (struct value){V_FLOAT, {.f = p->token.f}};
        return (rc = make_constant(p, number, out)) ? rc : parse_advance(p);
    case T_INT:
        return (rc = make_constant(p, number, out)) ? rc : parse_advance(p);
    default:
        break;
    }
    if (parse_at(p, T_OPERATOR, "("))
        return parse_brackets(p, ")", out);
    if (parse_at(p, T_OPERATOR, "["))
        return parse_brackets(p, "]", out);
    return parse_at(p, T_OPERATOR, "{") ? parse_dict(p, out) : parse_wanted(p, "a value");
}

/* ---- what stands behind a value ---------------------------------------------------------------------------------- */

/* (a, b=c): a list of expressions; `keyword` of an expression is the name before "=" */
static int parse_arguments(struct parser *p, struct node **out)
{
    int rc = parse_expect(p, T_OPERATOR, "("), named = 0;
    for (int k = 0; !rc && !parse_at(p, T_OPERATOR, ")"); k++) {
        struct template_text keyword = {0};
        if (k && ((rc = parse_expect(p, T_OPERATOR, ",")) || parse_at(p, T_OPERATOR, ")")))
            break;
        if (k == MAX_ARGUMENTS)
            return parse_refuse(p, "a call with more than", TEXT("16 arguments"));
        if (parse_at(p, T_OPERATOR, "*") || parse_at(p, T_OPERATOR, "**"))
            return parse_refuse(p, "in a call,", p->token.text);
        if (parse_at(p, T_NAME, NULL) && p->after.kind == T_OPERATOR && text_is(p->after.text, "=")) {
            keyword = p->token.text;
            if ((rc = parse_advance(p)) || (rc = parse_advance(p)))
                return rc;
            named = 1;
        } else if (named) {
            return parse_wanted(p, "NAME=");
        }
        if ((rc = parse_expression(p, out)))
            return rc;
        (*out)->keyword = keyword;
        out = &(*out)->next;
    }
    return rc ? rc : parse_expect(p, T_OPERATOR, ")");
}

/* [i] or [from:to:step]; E_ITEM: a[b], E_SLICE: a[b:c:d] */
static int parse_item(struct parser *p, struct node **n)
{
    struct node *on = *n;
    int rc = parse_expect(p, T_OPERATOR, "["), colons = 0;
    if (rc || (rc = make(p, E_ITEM, on, n)))
        return rc;
    struct node **part[] = {&(*n)->b, &(*n)->c, &(*n)->d};
    while (!parse_at(p, T_OPERATOR, "]")) {
        if (parse_at(p, T_OPERATOR, ":") && colons < 2) {
            colons++;
            rc = parse_advance(p);
        } else if (!*part[colons]) {
            rc = parse_expression(p, part[colons]);
        } else {
            return parse_wanted(p, "]");
        }
        if (rc)
            return rc;
    }
    (*n)->kind = colons ? E_SLICE : E_ITEM;
    return !colons && !(*n)->b ? parse_wanted(p, "a value") : parse_advance(p);
}

/* A call calls a macro, a function or a method of a. b is the list of arguments. op is -1 if no function has this name;
 * then there must be a macro with this name. */
static int parse_call(struct parser *p, struct node **n)
{
    struct node *on = *n;
    int rc = make(p, E_CALL, NULL, n);
    if (rc)
        return rc;
    (*n)->name = on->name;
    if (on->kind == E_ATTRIBUTE) {
        (*n)->a = on->a;
        (*n)->op = method_find(on->name);
        if ((*n)->op < 0)
            return parse_refuse(p, "the method", on->name);
    } else if (on->kind == E_NAME) {
        (*n)->op = function_find(on->name);
    } else {
        return parse_refuse(p, "a call of", TEXT("what is neither a name nor a method"));
    }
    return parse_arguments(p, &(*n)->b);
}

static int parse_attribute(struct parser *p, struct node **n)
{
    struct node *on = *n;
    int rc = parse_advance(p);
    if (!rc && p->token.kind == T_INT) /* list.0 is list[0] */
        return (rc = make(p, E_ITEM, on, n)) ? rc : parse_primary(p, &(*n)->b);
    if (rc || (rc = make(p, E_ATTRIBUTE, on, n)))
        return rc;
    (*n)->name = p->token.text;
    return parse_expect(p, T_NAME, NULL);
}

static int parse_postfix(struct parser *p, struct node **n)
{
    for (int rc;;) {
        if (parse_at(p, T_OPERATOR, "."))
            rc = parse_attribute(p, n);
        else if (parse_at(p, T_OPERATOR, "["))
            rc = parse_item(p, n);
        else if (parse_at(p, T_OPERATOR, "("))
            rc = parse_call(p, n);
        else
            return VB_OK;
        if (rc)
            return rc;
    }
}

/* E_FILTER: op on a, with arguments b */
static int parse_filter(struct parser *p, struct node **n)
{
    struct node *on = *n;
    int rc = parse_advance(p), filter = filter_find(p->token.text);
    if (rc || !parse_at(p, T_NAME, NULL))
        return rc ? rc : parse_wanted(p, "a filter's name");
    if (filter < 0)
        return parse_refuse(p, "the filter", p->token.text);
    if ((rc = make(p, E_FILTER, on, n)))
        return rc;
    (*n)->op = filter;
    (*n)->name = p->token.text;
    if ((rc = parse_advance(p)) || !parse_at(p, T_OPERATOR, "("))
        return rc;
    return parse_arguments(p, &(*n)->b);
}

/* Returns 1 if Jinja2 reads the current token as the argument of a test. Jinja2 does so even for `if`, `in` and
 * `is`. */
static int is_argument(const struct parser *p)
{
    if (p->token.kind == T_NAME)
        return !parse_at(p, T_NAME, "else") && !parse_at(p, T_NAME, "or") && !parse_at(p, T_NAME, "and");
    return p->token.kind == T_STRING || p->token.kind == T_INT || p->token.kind == T_FLOAT ||
           parse_at(p, T_OPERATOR, "(") || parse_at(p, T_OPERATOR, "[") || parse_at(p, T_OPERATOR, "{");
}

/* E_TEST: op on a, with the argument b or NULL; `is not` is E_NOT around it */
static int parse_test(struct parser *p, struct node **n)
{
    struct node *on = *n, *with = NULL;
    int rc = parse_advance(p), negated = !rc && parse_skip(p, T_NAME, "not", &rc), test = test_find(p->token.text);
    if (rc || !parse_at(p, T_NAME, NULL))
        return rc ? rc : parse_wanted(p, "a test's name");
    if (test < 0)
        return parse_refuse(p, "the test", p->token.text);
    if ((rc = make(p, E_TEST, on, n)))
        return rc;
    (*n)->op = test;
    if ((rc = parse_advance(p)))
        return rc;
    if (is_argument(p) != test_takes(test)) /* no further test may follow */
        return parse_wanted(p, test_takes(test) ? "the argument of the test" : "the end of the test");
    if (test_takes(test) && ((rc = parse_primary(p, &with)) || (rc = parse_postfix(p, &with))))
        return rc;
    (*n)->b = with;
    return negated ? make(p, E_NOT, *n, n) : VB_OK;
}

static int parse_filters(struct parser *p, struct node **n)
{
    for (int rc;;) {
        if (parse_at(p, T_OPERATOR, "|"))
            rc = parse_filter(p, n);
        else if (parse_at(p, T_NAME, "is"))
            rc = parse_test(p, n);
        else
            return VB_OK;
        if (rc)
            return rc;
    }
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static int parse_signed(struct parser *p, enum node_kind kind, struct node **out)
{
    struct node *a;
    int rc = parse_deeper(p);
    if (!rc && !(rc = parse_advance(p)) && !(rc = parse_unary(p, 0, &a)))
        rc = make(p, kind, a, out);
    p->depth--;
    return rc;
}

static int parse_unary(struct parser *p, int with_filter, struct node **out)
{
    int rc;
    if (parse_at(p, T_OPERATOR, "-"))
        rc = parse_signed(p, E_NEGATE, out);
    else if (parse_at(p, T_OPERATOR, "+"))
        rc = parse_signed(p, E_PLUS, out);
    else
        rc = parse_primary(p, out);
    if (!rc)
        rc = parse_postfix(p, out);
    if (!rc && with_filter)
        rc = parse_filters(p, out);
    if (!rc && parse_at(p, T_OPERATOR, "**"))
        rc = parse_refuse(p, "the operator", p->token.text);
    return rc;
}

struct operator_name {
    const char *name;
    enum operator op;
};

static int operator_at(const struct parser *p, const struct operator_name *names)
{
    for (; names->name; names++)
        if (parse_at(p, T_OPERATOR, names->name))
            return (int)names->op;
    return 0;
}

/* Parses operators of one level, which are left-associative. */
static int parse_level(struct parser *p, int level, struct node **out)
{
    static const struct operator_name levels[][5] = {{{"+", OP_ADD}, {"-", OP_SUBTRACT}, {NULL, 0}},
                                                     {{"~", OP_JOIN}, {NULL, 0}},
                                                     {{"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR},
                                                      {"%", OP_MODULO}, {NULL, 0}}};
    int rc = level == 3 ? parse_unary(p, 1, out) : parse_level(p, level + 1, out), op;
    while (!rc && level < 3 && (op = operator_at(p, levels[level]))) {
        struct node *left = *out;
        if ((rc = make(p, E_BINARY, left, out)) || (rc = parse_advance(p)))
            break;
        (*out)->op = op;
        rc = parse_level(p, level + 1, &(*out)->b);
    }
    return rc;
}

static int parse_sum(struct parser *p, struct node **out) { return parse_level(p, 0, out); }

/* If the current token is a comparison, moves on to the next token and returns the comparison, else returns 0. */
static int comparison(struct parser *p, int *rc)
{
    static const struct operator_name names[] = {{"==", OP_EQUAL}, {"!=", OP_DIFFERENT}, {"<", OP_LESS},
                                                 {"<=", OP_LESS_EQUAL}, {">", OP_MORE}, {">=", OP_MORE_EQUAL},
                                                 {NULL, 0}};
    int op = operator_at(p, names);
    if (!op && parse_at(p, T_NAME, "in"))
        op = OP_IN;
    if (!op && parse_at(p, T_NAME, "not") && p->after.kind == T_NAME && text_is(p->after.text, "in"))
        op = parse_skip(p, T_NAME, "not", rc) ? OP_NOT_IN : 0;
    if (op && !*rc)
        *rc = parse_advance(p);
    return op;
}

/* a < b < c is a < b and b < c */
static int parse_comparison(struct parser *p, struct node **out)
{
    struct node *left, *one;
    int rc = parse_sum(p, &left), op;
    *out = left;
    for (int k = 0; !rc && (op = comparison(p, &rc)) && !rc; k++) {
        if ((rc = make(p, E_BINARY, left, &one)))
            break;
        one->op = op;
        if ((rc = parse_sum(p, &one->b)))
            break;
        left = one->b;
        struct node *before = *out;
        if (!k)
            *out = one;
        else if (!(rc = make(p, E_AND, before, out)))
            (*out)->b = one;
    }
    return rc;
}

static int parse_not(struct parser *p, struct node **out)
{
    struct node *a;
    int rc;
    if (!parse_at(p, T_NAME, "not"))
        return parse_comparison(p, out);
    if (!(rc = parse_deeper(p)) && !(rc = parse_advance(p)) && !(rc = parse_not(p, &a)))
        rc = make(p, E_NOT, a, out);
    p->depth--;
    return rc;
}

static int parse_and(struct parser *p, struct node **out)
{
    int rc = parse_not(p, out);
    while (!rc && parse_skip(p, T_NAME, "and", &rc)) {
        struct node *left = *out;
        if (rc || (rc = make(p, E_AND, left, out)))
            break;
        rc = parse_not(p, &(*out)->b);
    }
    return rc;
}

static int parse_or(struct parser *p, struct node **out)
{
    int rc = parse_and(p, out);
    while (!rc && parse_skip(p, T_NAME, "or", &rc)) {
        struct node *left = *out;
        if (rc || (rc = make(p, E_OR, left, out)))
            break;
        rc = parse_and(p, &(*out)->b);
    }
    return rc;
}

int parse_condition(struct parser *p, struct node **out) { return parse_or(p, out); }

/* E_CONDITIONAL: b if a else c, where c may be missing */
int parse_expression(struct parser *p, struct node **out)
{
    int rc = parse_deeper(p);
    if (!rc)
        rc = parse_or(p, out);
    while (!rc && parse_skip(p, T_NAME, "if", &rc)) {
        struct node *yes = *out;
        if (rc || (rc = make(p, E_CONDITIONAL, NULL, out)) || (rc = parse_or(p, &(*out)->a)))
            break;
        (*out)->b = yes;
        if (parse_skip(p, T_NAME, "else", &rc) && !rc)
            rc = parse_expression(p, &(*out)->c);
    }
    p->depth--;
    return rc;
}

int parse_targets(struct parser *p, struct node **out)
{
    int rc, brackets = parse_skip(p, T_OPERATOR, "(", &rc);
    if (brackets && rc)
        return rc;
    do {
        if ((rc = make(p, E_NAME, NULL, out)))
            return rc;
        (*out)->name = p->token.text;
        if ((rc = parse_expect(p, T_NAME, NULL)))
            return rc;
        out = &(*out)->next;
    } while (parse_skip(p, T_OPERATOR, ",", &rc) && !rc);
    return rc ? rc : brackets ? parse_expect(p, T_OPERATOR, ")") : VB_OK;
}
