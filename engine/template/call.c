/* engine/template/call.c -- the filters, tests, methods and functions that templates may name. A line in a table is all that
 * the parser needs to know of one. */
#include <string.h>

#include "engine/base/json.h"
#include "engine/template/template_internal.h"

#define MOST_PARAMETERS 3
#define BYTES_OF_JSON 512 /* bytes that are counted for each value of a JSON text before the text is parsed */

/* arg[i] is the argument for parameter i, or NULL if it is missing. `on` is the value to which a filter or a method is applied. */
typedef int call(struct rendering *r, struct value on, const struct value *const *arg, struct value *out);

struct callable {
    const char *name;
    const char *parameters[MOST_PARAMETERS];
    int required;
    call *call;
    enum value_type of; /* the type, for a method that only one type has; else V_UNDEFINED */
};

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

static int parameter_of(const struct callable *c, const struct argument *a, int position)
{
    for (int i = 0; i < MOST_PARAMETERS && c->parameters[i]; i++)
        if (a->keyword.n ? text_is(a->keyword, c->parameters[i]) : i == position)
            return i;
    return -1;
}

static int call_with(struct rendering *r, const struct callable *c, struct value on, const struct arguments *args, struct value *out)
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

static int wrong_argument(struct rendering *r, const char *of, struct value v, const char *wanted)
{
    return run_fail(r, "%s takes %s, not %s", of, wanted, value_kind(v));
}

/* Reads an argument that must be an integer. The result is `otherwise` if the argument is missing or none. */
static int integer(struct rendering *r, const char *of, const struct value *v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!v || v->type == V_NONE)
        return VB_OK;
    if (v->type != V_INT && v->type != V_BOOL)
        return wrong_argument(r, of, *v, "an integer");
    *out = v->i;
    return VB_OK;
}

/* ---- what filters and methods share -------------------------------------------------------------------------------- */

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
static int strip_set(struct rendering *r, struct template_text t, int left, int right, struct template_text set, struct value *out)
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

static int strip(struct rendering *r, const char *name, struct value on, const struct value *set, int left, int right, struct value *out)
{
    int rc;
    if (set && set->type != V_NONE && set->type != V_STRING)
        return wrong_argument(r, name, *set, "a string");
    if (set && set->type == V_STRING)
        return strip_set(r, on.s, left, right, set->s, out);
    if (!(rc = run_steps(r, on.s.n)))
        *out = value_string(text_strip(on.s, left, right));
    return rc;
}

static int replace(struct rendering *r, struct value on, const struct value *const *arg, struct value *out)
{
    struct template_text rest = on.s;
    size_t from = r->out.n;
    int64_t most;
    int rc = integer(r, "replace", arg[2], -1, &most);
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

static int join(struct rendering *r, struct value list, struct template_text between, struct value *out)
{
    size_t from = r->out.n;
    int rc = value_to_list(r, list, &list);
    for (size_t i = 0; !rc && i < list.list->n; i++)
        if (!i || !(rc = run_put(r, between.s, between.n)))
            rc = value_print(r, list.list->items[i]);
    return rc ? rc : run_take(r, from, out);
}

/* Returns a list of [key, value] pairs. If `which` is 0 or 1, returns only the keys or only the values. */
static int dict_items(struct rendering *r, const struct dict *d, int which, struct value *out)
{
    int rc = value_list(r, d->n, out);
    for (size_t i = 0; i < d->n && !rc; i++) {
        struct value pair, key = value_string(d->entries[i].key), value = d->entries[i].value;
        if (which >= 0)
            rc = list_append(r, out->list, which ? value : key);
        else if (!(rc = value_list(r, 2, &pair)) && !(rc = list_append(r, pair.list, key)) && !(rc = list_append(r, pair.list, value)))
            rc = list_append(r, out->list, pair);
    }
    return rc;
}

/* ---- filters ------------------------------------------------------------------------------------------------------- */

#define CALL(name)                                                                                                        \
    static int name(struct rendering *r __attribute__((unused)), struct value on __attribute__((unused)),                 \
                    const struct value *const *arg __attribute__((unused)), struct value *out __attribute__((unused)))

/* as in transformers: characters are not escaped for HTML */
CALL(filter_tojson)
{
    struct json_style style = {.ascii = arg[0] && value_true(*arg[0])};
    size_t from = r->out.n;
    int64_t indent;
    int rc = integer(r, "tojson", arg[1], -1, &indent);
    if (!rc && (indent < -1 || indent > 32))
        rc = run_fail(r, "tojson takes an indent from 0 to 32");
    style.indent = (int)indent;
    if (!rc)
        rc = value_to_json(r, on, &style, 0);
    return rc ? rc : run_take(r, from, out);
}

CALL(filter_from_json)
{
    struct json_trouble why;
    int rc;
    if (on.type != V_STRING)
        return run_fail(r, "from_json takes a string, not %s", value_kind(on));
    if ((rc = run_steps(r, on.s.n)) || (rc = run_steps(r, json_values(on.s.s, on.s.n) * BYTES_OF_JSON)))
        return rc;
    json_t *json = json_load(on.s.s, on.s.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (json)
        rc = value_from_json(r, json, out);
    else if (why.no_memory)
        rc = run_no_memory(r);
    else
        rc = run_fail(r, "from_json: line %d, column %d: %s", why.line, why.column, why.what);
    json_decref(json);
    return rc;
}

CALL(filter_string)
{
    size_t from = r->out.n;
    int rc;
    if (on.type == V_STRING)
        return *out = on, VB_OK;
    return (rc = value_print(r, on)) ? rc : run_take(r, from, out);
}

CALL(filter_length)
{
    if (on.type != V_STRING && on.type != V_LIST && on.type != V_DICT && on.type != V_UNDEFINED)
        return run_fail(r, "%s has no length", value_kind(on));
    int rc = on.type == V_STRING ? run_steps(r, on.s.n) : VB_OK;
    if (!rc)
        *out = value_int((int64_t)(on.type == V_STRING ? text_length(on.s) : on.type == V_LIST ? on.list->n
                                   : on.type == V_DICT ? on.dict->n : 0));
    return rc;
}

CALL(filter_map)
{
    struct value list, one;
    int rc = value_to_list(r, on, &list);
    if (rc || arg[0]->type != V_STRING || memchr(arg[0]->s.s, '.', arg[0]->s.n))
        return rc ? rc : run_fail(r, "map takes attribute='NAME' only");
    rc = value_list(r, list.list->n, out);
    for (size_t i = 0; !rc && i < list.list->n; i++)
        if (!(rc = value_attribute(r, list.list->items[i], arg[0]->s, &one)))
            rc = list_append(r, out->list, one);
    return rc;
}

CALL(filter_trim)
{
    int rc = filter_string(r, on, arg, &on);
    return rc ? rc : strip(r, "trim", on, arg[0], 1, 1, out);
}

CALL(filter_join)
{
    if (arg[0] && arg[0]->type != V_STRING)
        return wrong_argument(r, "join", *arg[0], "a string");
    return join(r, on, arg[0] ? arg[0]->s : TEXT(""), out);
}

static int end_of(struct rendering *r, struct value on, int last, struct value *out)
{
    struct value list;
    int rc = value_to_list(r, on, &list);
    if (!rc && list.list->n)
        *out = list.list->items[last ? list.list->n - 1 : 0];
    else
        *out = (struct value){V_UNDEFINED, {.s = TEXT("an element of what is empty")}};
    return rc;
}
CALL(filter_first) { return end_of(r, on, 0, out); }
CALL(filter_last) { return end_of(r, on, 1, out); }

CALL(filter_list)
{
    struct value list;
    int rc = value_to_list(r, on, &list);
    if (!rc)
        rc = value_list(r, list.list->n, out);
    for (size_t i = 0; !rc && i < list.list->n; i++)
        rc = list_append(r, out->list, list.list->items[i]);
    return rc;
}

CALL(filter_default)
{
    int use = on.type == V_UNDEFINED || (arg[1] && value_true(*arg[1]) && !value_true(on));
    *out = !use ? on : arg[0] ? *arg[0] : value_string(TEXT(""));
    return VB_OK;
}

CALL(filter_items)
{
    if (on.type == V_UNDEFINED)
        return value_list(r, 0, out);
    return on.type == V_DICT ? dict_items(r, on.dict, -1, out) : run_fail(r, "items takes a dict, not %s", value_kind(on));
}

/* The key by which Jinja2 sorts a string: in small letters. */
static int in_small_letters(struct rendering *r, struct value *v)
{
    char *small = arena_get(&r->arena, v->s.n, 1);
    if (!small)
        return run_no_memory(r);
    for (size_t i = 0; i < v->s.n; i++) {
        if ((unsigned char)v->s.s[i] >= 0x80)
            return run_fail(r, "sort takes ASCII strings only, unless case_sensitive");
        small[i] = (char)(v->s.s[i] >= 'A' && v->s.s[i] <= 'Z' ? v->s.s[i] + 'a' - 'A' : v->s.s[i]);
    }
    *v = value_string((struct template_text){small, v->s.n});
    return run_steps(r, v->s.n);
}

/* *out: whether a must stand before b. Equal keys need no order. */
static int stands_before(struct rendering *r, struct value a, struct value b, int *out)
{
    struct value less;
    int equal, rc = value_equal(r, a, b, &equal);
    *out = 0;
    if (rc || equal || (rc = value_binary(r, OP_LESS, a, b, &less)))
        return rc;
    *out = value_true(less);
    return VB_OK;
}

/* Sorts by insertion, which keeps the order of equal keys, as Python's sorted does, also in reverse. */
static int sort_by(struct rendering *r, struct template_list *keys, struct template_list *items, int reverse)
{
    for (size_t i = 1; i < items->n; i++)
        for (size_t k = i; k; k--) {
            struct value one = keys->items[k], before = keys->items[k - 1], item = items->items[k];
            int moves, rc = reverse ? stands_before(r, before, one, &moves) : stands_before(r, one, before, &moves);
            if (rc || (rc = run_steps(r, 0)))
                return rc;
            if (!moves)
                break;
            keys->items[k] = before, keys->items[k - 1] = one;
            items->items[k] = items->items[k - 1], items->items[k - 1] = item;
        }
    return VB_OK;
}

CALL(filter_sort)
{
    struct value keys, one;
    int rc = filter_list(r, on, arg, out), attribute = arg[2] && arg[2]->type != V_NONE;
    if (!rc && attribute && (arg[2]->type != V_STRING || memchr(arg[2]->s.s, '.', arg[2]->s.n) || memchr(arg[2]->s.s, ',', arg[2]->s.n)))
        rc = run_fail(r, "sort takes one attribute='NAME' only");
    if (!rc)
        rc = value_list(r, out->list->n, &keys);
    for (size_t i = 0; !rc && i < out->list->n; i++) {
        one = out->list->items[i];
        if (attribute)
            rc = value_attribute(r, one, arg[2]->s, &one);
        if (!rc && one.type == V_STRING && !(arg[1] && value_true(*arg[1])))
            rc = in_small_letters(r, &one);
        if (!rc)
            rc = list_append(r, keys.list, one);
    }
    return rc ? rc : sort_by(r, keys.list, out->list, arg[0] && value_true(*arg[0]));
}

static const struct callable filters[] = {
    {"tojson", {"ensure_ascii", "indent"}, 0, filter_tojson, 0}, {"from_json", {NULL}, 0, filter_from_json, 0},
    {"string", {NULL}, 0, filter_string, 0},      {"length", {NULL}, 0, filter_length, 0},
    {"count", {NULL}, 0, filter_length, 0},       {"map", {"attribute"}, 1, filter_map, 0},
    {"trim", {"chars"}, 0, filter_trim, 0},       {"join", {"d"}, 0, filter_join, 0},
    {"first", {NULL}, 0, filter_first, 0},        {"last", {NULL}, 0, filter_last, 0},
    {"list", {NULL}, 0, filter_list, 0},          {"replace", {"old", "new", "count"}, 2, replace, 0},
    {"default", {"default_value", "boolean"}, 0, filter_default, 0},
    {"d", {"default_value", "boolean"}, 0, filter_default, 0},
    {"items", {NULL}, 0, filter_items, 0},
    {"sort", {"reverse", "case_sensitive", "attribute"}, 0, filter_sort, 0},
    {"safe", {NULL}, 0, filter_string, 0}, /* nothing is escaped for HTML */
};

/* ---- methods ------------------------------------------------------------------------------------------------------- */

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
    int rc = integer(r, "split", arg[1], -1, &most);
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

CALL(method_strip) { return strip(r, "strip", on, arg[0], 1, 1, out); }
CALL(method_lstrip) { return strip(r, "lstrip", on, arg[0], 1, 0, out); }
CALL(method_rstrip) { return strip(r, "rstrip", on, arg[0], 0, 1, out); }

static int begins_or_ends(struct rendering *r, const char *name, struct template_text t, struct value with, int end, struct value *out)
{
    if (with.type != V_STRING)
        return wrong_argument(r, name, with, "a string");
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
    return rc ? rc : join(r, list, on.s, out);
}

CALL(method_get)
{
    const struct value *v = arg[0]->type == V_STRING ? dict_find(r, on.dict, arg[0]->s) : NULL;
    *out = v ? *v : arg[1] ? *arg[1] : (struct value){.type = V_NONE};
    return VB_OK;
}

CALL(method_items) { return dict_items(r, on.dict, -1, out); }
CALL(method_keys) { return dict_items(r, on.dict, 0, out); }
CALL(method_values) { return dict_items(r, on.dict, 1, out); }

CALL(method_append)
{
    *out = (struct value){.type = V_NONE};
    return list_append(r, on.list, *arg[0]);
}

CALL(method_pop)
{
    struct template_list *l = on.list;
    int64_t at;
    int rc = integer(r, "pop", arg[0], -1, &at);
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
    {"replace", {"old", "new", "count"}, 2, replace, V_STRING}, {"join", {"iterable"}, 1, method_join, V_STRING},
    {"get", {"key", "default"}, 1, method_get, V_DICT},        {"items", {NULL}, 0, method_items, V_DICT},
    {"keys", {NULL}, 0, method_keys, V_DICT},                  {"values", {NULL}, 0, method_values, V_DICT},
    {"append", {"object"}, 1, method_append, V_LIST},          {"pop", {"index"}, 0, method_pop, V_LIST},
};

/* ---- functions ----------------------------------------------------------------------------------------------------- */

CALL(function_range)
{
    int64_t from, to, step;
    int rc = integer(r, "range", arg[0], 0, &from);
    if (rc || (rc = integer(r, "range", arg[1], 0, &to)) || (rc = integer(r, "range", arg[2], 1, &step)))
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
    int rc = filter_string(r, *arg[0], arg, &what);
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

/* ---- tests --------------------------------------------------------------------------------------------------------- */

#define IS(type) (1u << (type))
#define ANYTHING (~0u)
static const struct {
    const char *name;
    unsigned types; /* the test can be true only for values of these types */
} tests[] = {
    {"defined", ANYTHING & ~IS(V_UNDEFINED)}, {"undefined", IS(V_UNDEFINED)}, {"none", IS(V_NONE)}, {"string", IS(V_STRING)},
    {"mapping", IS(V_DICT)}, {"iterable", IS(V_STRING) | IS(V_LIST) | IS(V_DICT) | IS(V_UNDEFINED)},
    {"sequence", IS(V_STRING) | IS(V_LIST) | IS(V_DICT) | IS(V_UNDEFINED)}, {"boolean", IS(V_BOOL)}, {"integer", IS(V_INT)},
    {"float", IS(V_FLOAT)}, {"number", IS(V_BOOL) | IS(V_INT) | IS(V_FLOAT)}, {"true", IS(V_BOOL)}, {"false", IS(V_BOOL)},
};

int test_call(struct rendering *r, int test, struct value on, int *yes)
{
    (void)r;
    *yes = (tests[test].types & IS(on.type)) != 0;
    if (!strcmp(tests[test].name, "true") || !strcmp(tests[test].name, "false"))
        *yes = *yes && on.i == !strcmp(tests[test].name, "true");
    return VB_OK;
}

/* ---- by name, and by number ---------------------------------------------------------------------------------------- */

#define FIND(table, wanted)                                            \
    for (size_t i = 0; i < sizeof(table) / sizeof *(table); i++)       \
        if (text_is(wanted, (table)[i].name))                          \
            return (int)i;                                             \
    return -1

int filter_find(struct template_text name) { FIND(filters, name); }
int test_find(struct template_text name) { FIND(tests, name); }
int method_find(struct template_text name) { FIND(methods, name); }
int function_find(struct template_text name) { FIND(functions, name); }

int method_of_dict(struct template_text name)
{
    static const struct {
        const char *name;
    } all[] = {{"clear"}, {"copy"}, {"fromkeys"}, {"get"}, {"items"}, {"keys"}, {"pop"}, {"popitem"}, {"setdefault"}, {"update"}, {"values"}};
    FIND(all, name);
}

int filter_call(struct rendering *r, int filter, struct value on, const struct arguments *args, struct value *out)
{
    return call_with(r, &filters[filter], on, args, out);
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
