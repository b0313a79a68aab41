/* engine/template/call.c -- the tests, methods and functions that templates may name; filters.c has the filters. A line
 * in a table is all that the parser needs to know of one. */
#include <string.h>

#include "engine/template/call_internal.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static int parameter_of(const struct callable *c, const struct argument *a, int position)
{
    for (int i = 0; i < MOST_PARAMETERS && c->parameters[i]; i++)
        if (a->keyword.n ? text_is(a->keyword, c->parameters[i]) : i == position)
            return i;
    return -1;
}

int call_with(struct rendering *r, const struct callable *c, struct value on, const struct arguments *args,
              struct value *out)
{
    const struct value *arg[MOST_PARAMETERS] = {NULL};
    for (size_t i = 0; i < args->n; i++) {
        int k = parameter_of(c, &args->all[i], (int)i);
        if (k < 0 && args->all[i].keyword.n)
            return run_fail(r, "%s has no argument %s here", c->name, text_show(args->all[i].keyword).s);
        if (k < 0 || arg[k])
            return run_fail(r, "%s has too many arguments", c->name);
        arg[k] = &args->all[i].value;
    }
    for (int i = 0; i < c->required; i++)
        if (!arg[i])
            return run_fail(r, "%s lacks its argument %s", c->name, c->parameters[i]);
    return c->call(r, on, arg, out);
}

int call_wrong(struct rendering *r, const char *of, struct value v, const char *wanted)
{
    return run_fail(r, "%s takes %s, not %s", of, wanted, value_kind(v));
}

int call_integer(struct rendering *r, const char *of, const struct value *v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!v || v->type == V_NONE)
        return VB_OK;
    if (v->type != V_INT && v->type != V_BOOL)
        return call_wrong(r, of, *v, "an integer");
    *out = v->i;
    return VB_OK;
}

/* ---- what filters and methods share ------------------------------------------------------------------------------ */

static int in_set(struct template_text character, struct template_text set)
{
    for (size_t i = 0, size; i < set.n; i += size) {
        text_character(set.s + i, &size);
        if (size == character.n && !memcmp(set.s + i, character.s, size))
            return 1;
    }
    return 0;
}

/* Counts steps for the worst case: each character is compared with the whole set. */
static int strip_set(struct rendering *r, struct template_text t, int left, int right, struct template_text set,
                     struct value *out)
{
    int rc = VB_OK;
    while (left && t.n && !(rc = run_steps(r, set.n)) && in_set(text_first(t), set)) {
        size_t size = text_first(t).n;
        t = (struct template_text){t.s + size, t.n - size};
    }
    while (!rc && right && t.n && !(rc = run_steps(r, set.n)) && in_set(text_last(t), set))
        t.n -= text_last(t).n;
    *out = value_string(t);
    return rc;
}

int call_strip(struct rendering *r, const char *name, struct value on, const struct value *set, int left, int right,
               struct value *out)
{
    int rc;
    if (set && set->type != V_NONE && set->type != V_STRING)
        return call_wrong(r, name, *set, "a string");
    if (set && set->type == V_STRING)
        return strip_set(r, on.s, left, right, set->s, out);
    if (!(rc = run_steps(r, on.s.n)))
        *out = value_string(text_strip(on.s, left, right));
    return rc;
}

int call_replace(struct rendering *r, struct value on, const struct value *const *arg, struct value *out)
{
    struct template_text rest = on.s;
    size_t from = r->out.n;
    int64_t most;
    int rc = call_integer(r, "replace", arg[2], -1, &most);
    if (rc || on.type != V_STRING || arg[0]->type != V_STRING || arg[1]->type != V_STRING || !arg[0]->s.n)
        return rc ? rc : run_fail(r, "replace takes strings, the first of them not empty");
    for (const char *at; !rc && most-- && (at = text_find(rest, arg[0]->s));) {
        if (!(rc = run_put(r, rest.s, (size_t)(at - rest.s))))
            rc = run_put(r, arg[1]->s.s, arg[1]->s.n);
        rest.n -= (size_t)(at - rest.s) + arg[0]->s.n;
        rest.s = at + arg[0]->s.n;
    }
    if (!rc)
        rc = run_put(r, rest.s, rest.n);
    return rc ? rc : run_take(r, from, out);
}

int call_join(struct rendering *r, struct value list, struct template_text between, struct value *out)
{
    size_t from = r->out.n;
    int rc = value_to_list(r, list, &list);
    for (size_t i = 0; !rc && i < list.list->n; i++)
        if (!i || !(rc = run_put(r, between.s, between.n)))
            rc = value_print(r, list.list->items[i]);
    return rc ? rc : run_take(r, from, out);
}

int call_items(struct rendering *r, const struct dict *d, int which, struct value *out)
{
    int rc = value_list(r, d->n, out);
    for (size_t i = 0; i < d->n && !rc; i++) {
        struct value pair, key = value_string(d->entries[i].key), value = d->entries[i].value;
        if (which >= 0)
            rc = list_append(r, out->list, which ? value : key);
        else if (!(rc = value_list(r, 2, &pair)) && !(rc = list_append(r, pair.list, key)) &&
                 !(rc = list_append(r, pair.list, value)))
            rc = list_append(r, out->list, pair);
    }
    return rc;
}

int call_string(struct rendering *r, struct value on, const struct value *const *arg __attribute__((unused)),
                struct value *out)
{
    size_t from = r->out.n;
    int rc;
    if (on.type == V_STRING)
        return *out = on, VB_OK;
    return (rc = value_print(r, on)) ? rc : run_take(r, from, out);
}

/* The first letter becomes a capital if `first` is 1, and the others if `rest` is 1; else they become small. */
static int in_case(struct rendering *r, const char *name, struct value on, int first, int rest, struct value *out)
{
    char *text = arena_get(&r->arena, on.s.n, 1);
    if (!text)
        return run_no_memory(r);
    for (size_t i = 0; i < on.s.n; i++) {
        char c = on.s.s[i], small = (char)(c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
        if ((unsigned char)c >= 0x80)
            return run_fail(r, "%s takes strings in ASCII only", name);
        text[i] = (char)((i ? rest : first) && small >= 'a' && small <= 'z' ? small - 'a' + 'A' : small);
    }
    *out = value_string((struct template_text){text, on.s.n});
    return run_steps(r, on.s.n);
}

#define UNUSED_ARGUMENTS const struct value *const *arg __attribute__((unused))
int call_lower(struct rendering *r, struct value on, UNUSED_ARGUMENTS, struct value *out)
{
    return in_case(r, "lower", on, 0, 0, out);
}
int call_upper(struct rendering *r, struct value on, UNUSED_ARGUMENTS, struct value *out)
{
    return in_case(r, "upper", on, 1, 1, out);
}
int call_capitalize(struct rendering *r, struct value on, UNUSED_ARGUMENTS, struct value *out)
{
    return in_case(r, "capitalize", on, 1, 0, out);
}

/* ---- methods ----------------------------------------------------------------------------------------------------- */

/* Python's split() without a separator. */
static int split_words(struct rendering *r, struct template_text t, int64_t most, struct value *out)
{
    int rc = VB_OK;
    while (!rc && (t = text_strip(t, 1, 0)).n) {
        size_t n = 0, size;
        while (n < t.n && (!most || !text_space(text_character(t.s + n, &size))))
            n += most ? size : t.n;
        most -= most > 0;
        rc = list_append(r, out->list, value_string((struct template_text){t.s, n}));
        t = (struct template_text){t.s + n, t.n - n};
    }
    return rc;
}

CALL(method_split)
{
    struct template_text rest = on.s;
    int64_t most;
    int rc = call_integer(r, "split", arg[1], -1, &most);
    if (rc || (rc = value_list(r, 0, out)) || (rc = run_steps(r, on.s.n)))
        return rc;
    if (!arg[0] || arg[0]->type == V_NONE)
        return split_words(r, rest, most < 0 ? INT64_MAX : most, out);
    if (arg[0]->type != V_STRING || !arg[0]->s.n)
        return run_fail(r, "split takes a string that is not empty");
    for (const char *at; !rc && most-- && (at = text_find(rest, arg[0]->s));) {
        size_t n = (size_t)(at - rest.s);
        rc = list_append(r, out->list, value_string((struct template_text){rest.s, n}));
        rest = (struct template_text){at + arg[0]->s.n, rest.n - n - arg[0]->s.n};
    }
    return rc ? rc : list_append(r, out->list, value_string(rest));
}

CALL(method_strip) { return call_strip(r, "strip", on, arg[0], 1, 1, out); }
CALL(method_lstrip) { return call_strip(r, "lstrip", on, arg[0], 1, 0, out); }
CALL(method_rstrip) { return call_strip(r, "rstrip", on, arg[0], 0, 1, out); }

static int begins_or_ends(struct rendering *r, const char *name, struct template_text t, struct value with, int end,
                          struct value *out)
{
    if (with.type != V_STRING)
        return call_wrong(r, name, with, "a string");
    int fits = with.s.n <= t.n, rc = run_steps(r, fits ? with.s.n : 0);
    if (!rc)
        *out = value_bool(fits && !memcmp(end ? t.s + t.n - with.s.n : t.s, with.s.s, with.s.n));
    return rc;
}
CALL(method_startswith) { return begins_or_ends(r, "startswith", on.s, *arg[0], 0, out); }
CALL(method_endswith) { return begins_or_ends(r, "endswith", on.s, *arg[0], 1, out); }

CALL(method_join)
{
    struct value list;
    int rc = value_to_list(r, *arg[0], &list);
    for (size_t i = 0; !rc && i < list.list->n; i++)
        if (list.list->items[i].type != V_STRING)
            rc = run_fail(r, "join takes strings, not %s", value_kind(list.list->items[i]));
    return rc ? rc : call_join(r, list, on.s, out);
}

CALL(method_get)
{
    const struct value *v = arg[0]->type == V_STRING ? dict_find(r, on.dict, arg[0]->s) : NULL;
    *out = v ? *v : arg[1] ? *arg[1] : (struct value){.type = V_NONE};
    return VB_OK;
}

CALL(method_items) { return call_items(r, on.dict, -1, out); }
CALL(method_keys) { return call_items(r, on.dict, 0, out); }
CALL(method_values) { return call_items(r, on.dict, 1, out); }

CALL(method_append)
{
    *out = (struct value){.type = V_NONE};
    return list_append(r, on.list, *arg[0]);
}

CALL(method_pop)
{
    struct template_list *l = on.list;
    int64_t at;
    int rc = call_integer(r, "pop", arg[0], -1, &at);
    at += at < 0 ? (int64_t)l->n : 0;
    if (rc || at < 0 || at >= (int64_t)l->n)
        return rc ? rc : run_fail(r, "pop from a list that is too short");
    if ((rc = run_steps(r, l->n * sizeof *l->items)))
        return rc;
    *out = l->items[at];
    memmove(l->items + at, l->items + at + 1, (--l->n - (size_t)at) * sizeof *l->items);
    return VB_OK;
}

static const struct callable methods[] = {
    {"split", {"sep", "maxsplit"}, 0, method_split, V_STRING}, {"strip", {"chars"}, 0, method_strip, V_STRING},
    {"lstrip", {"chars"}, 0, method_lstrip, V_STRING},         {"rstrip", {"chars"}, 0, method_rstrip, V_STRING},
    {"startswith", {"prefix"}, 1, method_startswith, V_STRING}, {"endswith", {"suffix"}, 1, method_endswith, V_STRING},
    {"replace", {"old", "new", "count"}, 2, call_replace, V_STRING}, {"join", {"iterable"}, 1, method_join, V_STRING},
    {"get", {"key", "default"}, 1, method_get, V_DICT},        {"items", {NULL}, 0, method_items, V_DICT},
    {"keys", {NULL}, 0, method_keys, V_DICT},                  {"values", {NULL}, 0, method_values, V_DICT},
    {"lower", {NULL}, 0, call_lower, V_STRING},                {"upper", {NULL}, 0, call_upper, V_STRING},
    {"capitalize", {NULL}, 0, call_capitalize, V_STRING},
    {"append", {"object"}, 1, method_append, V_LIST},          {"pop", {"index"}, 0, method_pop, V_LIST},
};

/* ---- functions --------------------------------------------------------------------------------------------------- */

CALL(function_range)
{
    int64_t from, to, step;
    int rc = call_integer(r, "range", arg[0], 0, &from);
    if (rc || (rc = call_integer(r, "range", arg[1], 0, &to)) || (rc = call_integer(r, "range", arg[2], 1, &step)))
        return rc;
    if (!arg[1])
        to = from, from = 0;
    if (!step || (rc = value_list(r, 0, out)))
        return rc ? rc : run_fail(r, "range takes a step that is not 0");
    for (int64_t i = from; !rc && (step > 0 ? i < to : i > to);) {
        rc = list_append(r, out->list, value_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return rc;
}

CALL(function_raise)
{
    struct value what;
    int rc = call_string(r, *arg[0], arg, &what);
    return rc ? rc : run_fail(r, "the template says: %s", text_show(what.s).s);
}

static const struct callable functions[] = {
    {"range", {"start", "stop", "step"}, 1, function_range, 0},
    {"raise_exception", {"message"}, 1, function_raise, 0},
    {"namespace", {NULL}, 0, NULL, 0}, /* accepts any keyword arguments */
};

static int make_namespace(struct rendering *r, const struct arguments *args, struct value *out)
{
    int rc = value_dict(r, V_NAMESPACE, out);
    for (size_t i = 0; i < args->n && !rc; i++)
        rc = args->all[i].keyword.n ? dict_set(r, out->dict, args->all[i].keyword, args->all[i].value)
                                    : run_fail(r, "namespace takes NAME=VALUE only");
    return rc;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

#define IS(type) (1u << (type))
#define ANYTHING (~0u)
static const struct {
    const char *name;
    unsigned types; /* the test can be true only for values of these types */
    int op;         /* the test has an argument, and compares it with the value */
} tests[] = {
    {"defined", ANYTHING & ~IS(V_UNDEFINED), 0},
    {"undefined", IS(V_UNDEFINED), 0},
    {"none", IS(V_NONE), 0},
    {"string", IS(V_STRING), 0},
    {"mapping", IS(V_DICT), 0},
    {"iterable", IS(V_STRING) | IS(V_LIST) | IS(V_DICT) | IS(V_UNDEFINED), 0},
    {"sequence", IS(V_STRING) | IS(V_LIST) | IS(V_DICT) | IS(V_UNDEFINED), 0},
    {"boolean", IS(V_BOOL), 0},
    {"integer", IS(V_INT), 0},
    {"float", IS(V_FLOAT), 0},
    {"number", IS(V_BOOL) | IS(V_INT) | IS(V_FLOAT), 0},
    {"true", IS(V_BOOL), 0},
    {"false", IS(V_BOOL), 0},
    {"equalto", ANYTHING, OP_EQUAL},
    {"eq", ANYTHING, OP_EQUAL},
    {"==", ANYTHING, OP_EQUAL},
    {"ne", ANYTHING, OP_DIFFERENT},
    {"!=", ANYTHING, OP_DIFFERENT},
    {"in", ANYTHING, OP_IN},
    {"lt", ANYTHING, OP_LESS},
    {"lessthan", ANYTHING, OP_LESS},
    {"<", ANYTHING, OP_LESS},
    {"le", ANYTHING, OP_LESS_EQUAL},
    {"<=", ANYTHING, OP_LESS_EQUAL},
    {"gt", ANYTHING, OP_MORE},
    {"greaterthan", ANYTHING, OP_MORE},
    {">", ANYTHING, OP_MORE},
    {"ge", ANYTHING, OP_MORE_EQUAL},
    {">=", ANYTHING, OP_MORE_EQUAL},
};

int test_takes(int test)
{
    return tests[test].op != 0;
}

int test_call(struct rendering *r, int test, struct value on, const struct value *with, int *yes)
{
    struct value result;
    if (!with != !tests[test].op)
        return run_fail(r, "the test %s has %s argument", tests[test].name, with ? "no" : "one");
    if (with) {
        int rc = value_binary(r, tests[test].op, on, *with, &result);
        *yes = !rc && value_true(result);
        return rc;
    }
    *yes = (tests[test].types & IS(on.type)) != 0;
    if (!strcmp(tests[test].name, "true") || !strcmp(tests[test].name, "false"))
        *yes = *yes && on.i == !strcmp(tests[test].name, "true");
    return VB_OK;
}

/* ---- by name, and by number -------------------------------------------------------------------------------------- */

int test_find(struct template_text name) { FIND(tests, name); }
int method_find(struct template_text name) { FIND(methods, name); }
int function_find(struct template_text name) { FIND(functions, name); }

int method_of_dict(struct template_text name)
{
    static const struct {
        const char *name;
    } all[] = {{"clear"}, {"copy"}, {"fromkeys"}, {"get"}, {"items"}, {"keys"}, {"pop"}, {"popitem"}, {"setdefault"},
               {"update"}, {"values"}};
    FIND(all, name);
}

int method_call(struct rendering *r, int method, struct value on, const struct arguments *args, struct value *out)
{
    if (on.type == V_UNDEFINED)
        return run_fail(r, "%s is undefined", text_show(on.s).s);
    if (on.type != methods[method].of)
        return run_fail(r, "%s has no method %s here", value_kind(on), methods[method].name);
    return call_with(r, &methods[method], on, args, out);
}

int function_call(struct rendering *r, int function, const struct arguments *args, struct value *out)
{
    if (!functions[function].call)
        return make_namespace(r, args, out);
    return call_with(r, &functions[function], (struct value){.type = V_NONE}, args, out);
}
