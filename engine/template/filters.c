/* engine/template/filters.c -- the filters that templates may name. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/template/call_internal.h"

#define BYTES_OF_JSON 512 /* bytes that are counted for each value of a JSON text before the text is parsed */

/* as in transformers: characters are not escaped for HTML */
CALL(filter_tojson)
{
    struct json_style style = {.ascii = arg[0] && value_true(*arg[0])};
    size_t from = r->out.n;
    int64_t indent;
    int rc = call_integer(r, "tojson", arg[1], -1, &indent);
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
    int rc = value_true(on) ? value_to_list(r, on, &list) : value_list(r, 0, &list); /* none has no items here */
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
    int rc = call_string(r, on, arg, &on);
    return rc ? rc : call_strip(r, "trim", on, arg[0], 1, 1, out);
}

CALL(filter_join)
{
    if (arg[0] && arg[0]->type != V_STRING)
        return call_wrong(r, "join", *arg[0], "a string");
    return call_join(r, on, arg[0] ? arg[0]->s : TEXT(""), out);
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
    return on.type == V_DICT ? call_items(r, on.dict, -1, out)
                             : run_fail(r, "items takes a dict, not %s", value_kind(on));
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

/* Adds the key by which Jinja2 compares an item: the item or its attribute, a string in small letters unless its case
 * counts. */
static int add_key(struct rendering *r, const char *of, struct value item, const struct value *case_counts,
                   const struct value *attribute, struct template_list *keys)
{
    int rc = VB_OK;
    if (attribute && attribute->type != V_NONE) {
        if (attribute->type != V_STRING || memchr(attribute->s.s, '.', attribute->s.n) ||
            memchr(attribute->s.s, ',', attribute->s.n))
            return run_fail(r, "%s takes one attribute='NAME' only", of);
        rc = value_attribute(r, item, attribute->s, &item);
    }
    if (!rc && item.type == V_STRING && !(case_counts && value_true(*case_counts))) {
        for (size_t i = 0; i < item.s.n; i++)
            if ((unsigned char)item.s.s[i] >= 0x80)
                return run_fail(r, "%s takes ASCII strings only, unless case_sensitive", of);
        rc = call_lower(r, item, NULL, &item);
    }
    return rc ? rc : list_append(r, keys, item);
}

CALL(filter_sort)
{
    struct value keys;
    int rc = filter_list(r, on, arg, out);
    if (!rc)
        rc = value_list(r, out->list->n, &keys);
    for (size_t i = 0; !rc && i < out->list->n; i++)
        rc = add_key(r, "sort", out->list->items[i], arg[1], arg[2], keys.list);
    return rc ? rc : sort_by(r, keys.list, out->list, arg[0] && value_true(*arg[0]));
}

/* By keys, or by values if `by` is "value". */
CALL(filter_dictsort)
{
    struct value keys;
    int rc, values = arg[1] && arg[1]->type == V_STRING && text_is(arg[1]->s, "value");
    if (on.type != V_DICT)
        return call_wrong(r, "dictsort", on, "a dict");
    if (arg[1] && !values && (arg[1]->type != V_STRING || !text_is(arg[1]->s, "key")))
        return run_fail(r, "dictsort sorts by 'key' or 'value' only");
    if ((rc = call_items(r, on.dict, -1, out)) || (rc = value_list(r, on.dict->n, &keys)))
        return rc;
    for (size_t i = 0; !rc && i < out->list->n; i++)
        rc = add_key(r, "dictsort", out->list->items[i].list->items[values], arg[0], NULL, keys.list);
    return rc ? rc : sort_by(r, keys.list, out->list, arg[2] && value_true(*arg[2]));
}

static int extreme(struct rendering *r, const char *name, int most, struct value on, const struct value *const *arg,
                   struct value *out)
{
    struct value list, keys;
    size_t best = 0;
    int rc = value_to_list(r, on, &list), before;
    *out = (struct value){V_UNDEFINED, {.s = TEXT("an element of what is empty")}};
    if (rc || !list.list->n || (rc = value_list(r, list.list->n, &keys)))
        return rc;
    for (size_t i = 0; !rc && i < list.list->n; i++) {
        rc = add_key(r, name, list.list->items[i], arg[0], arg[1], keys.list);
        const struct value *k = keys.list->items;
        if (!rc && i &&
            !(rc = most ? stands_before(r, k[best], k[i], &before) : stands_before(r, k[i], k[best], &before)) &&
            before)
            best = i;
    }
    if (!rc)
        *out = list.list->items[best];
    return rc;
}
CALL(filter_min) { return extreme(r, "min", 0, on, arg, out); }
CALL(filter_max) { return extreme(r, "max", 1, on, arg, out); }

/* Keeps the items that pass a test, or with `rejects` the others. The test is applied to the item or to its attribute;
 * without a test, what counts is whether the value is true. */
static int select_items(struct rendering *r, const char *name, int rejects, struct value on,
                        const struct value *attribute, const struct value *test, const struct value *with,
                        struct value *out)
{
    struct value list, one;
    int rc = value_list(r, 0, out), which = -1, yes;
    if (rc || !value_true(on) || (rc = value_to_list(r, on, &list))) /* none has no items here */
        return rc;
    if (attribute && (attribute->type != V_STRING || memchr(attribute->s.s, '.', attribute->s.n)))
        return run_fail(r, "%s takes the name of one attribute", name);
    if (test && (test->type != V_STRING || (which = test_find(test->s)) < 0))
        return run_fail(r, "the test %s is not implemented",
                        test->type == V_STRING ? text_show(test->s).s : "of another type");
    for (size_t i = 0; !rc && i < list.list->n; i++) {
        one = list.list->items[i];
        if (attribute)
            rc = value_attribute(r, one, attribute->s, &one);
        yes = value_true(one);
        if (!rc && test)
            rc = test_call(r, which, one, with, &yes);
        if (!rc && yes != rejects)
            rc = list_append(r, out->list, list.list->items[i]);
    }
    return rc;
}
CALL(filter_select) { return select_items(r, "select", 0, on, NULL, arg[0], arg[1], out); }
CALL(filter_reject) { return select_items(r, "reject", 1, on, NULL, arg[0], arg[1], out); }
CALL(filter_selectattr) { return select_items(r, "selectattr", 0, on, arg[0], arg[1], arg[2], out); }
CALL(filter_rejectattr) { return select_items(r, "rejectattr", 1, on, arg[0], arg[1], arg[2], out); }

/* Text without a number becomes the default. Numbers as Python writes them, but without underscores. */
static int number_of(struct template_text t, int64_t otherwise, int64_t *out)
{
    char digits[64], *end;
    t = text_strip(t, 1, 1);
    size_t n = t.n < sizeof digits ? t.n : 0;
    memcpy(digits, t.s, n);
    digits[n] = 0;
    *out = otherwise;
    if (!n || strspn(digits, "+-.0123456789eE") != n)
        return t.n < sizeof digits;
    errno = 0;
    long long i = strtoll(digits, &end, 10);
    if (!*end && end > digits) {
        *out = i;
        return !errno;
    }
    double f = strtod(digits, &end);
    if (*end || end == digits)
        return 1;
    if (!(fabs(f) < 0x1p63))
        return isinf(f) != 0;
    *out = (int64_t)f;
    return 1;
}

CALL(filter_int)
{
    int64_t otherwise, i = on.i;
    int rc = call_integer(r, "int", arg[0], 0, &otherwise);
    if (rc || on.type == V_UNDEFINED)
        return rc ? rc : run_fail(r, "%s is undefined", text_show(on.s).s);
    if (on.type == V_FLOAT && isfinite(on.f) && !(fabs(on.f) < 0x1p63))
        return run_fail(r, "int: the number is too large");
    if (on.type == V_FLOAT)
        i = isfinite(on.f) ? (int64_t)on.f : otherwise;
    else if (on.type == V_STRING && !number_of(on.s, otherwise, &i))
        return run_fail(r, "int: the number is too large");
    else if (on.type != V_INT && on.type != V_BOOL && on.type != V_STRING)
        i = otherwise;
    *out = value_int(i);
    return VB_OK;
}

static int in_letters(struct rendering *r, call *change, struct value on, const struct value *const *arg,
                      struct value *out)
{
    int rc = call_string(r, on, arg, &on);
    return rc ? rc : change(r, on, arg, out);
}
CALL(filter_lower) { return in_letters(r, call_lower, on, arg, out); }
CALL(filter_upper) { return in_letters(r, call_upper, on, arg, out); }
CALL(filter_capitalize) { return in_letters(r, call_capitalize, on, arg, out); }

static const struct callable filters[] = {
    {"tojson", {"ensure_ascii", "indent"}, 0, filter_tojson, 0}, {"from_json", {NULL}, 0, filter_from_json, 0},
    {"string", {NULL}, 0, call_string, 0},      {"length", {NULL}, 0, filter_length, 0},
    {"count", {NULL}, 0, filter_length, 0},       {"map", {"attribute"}, 1, filter_map, 0},
    {"trim", {"chars"}, 0, filter_trim, 0},       {"join", {"d"}, 0, filter_join, 0},
    {"first", {NULL}, 0, filter_first, 0},        {"last", {NULL}, 0, filter_last, 0},
    {"list", {NULL}, 0, filter_list, 0},          {"replace", {"old", "new", "count"}, 2, call_replace, 0},
    {"default", {"default_value", "boolean"}, 0, filter_default, 0},
    {"d", {"default_value", "boolean"}, 0, filter_default, 0},
    {"items", {NULL}, 0, filter_items, 0},
    {"sort", {"reverse", "case_sensitive", "attribute"}, 0, filter_sort, 0},
    {"dictsort", {"case_sensitive", "by", "reverse"}, 0, filter_dictsort, 0},
    {"min", {"case_sensitive", "attribute"}, 0, filter_min, 0},
    {"max", {"case_sensitive", "attribute"}, 0, filter_max, 0},
    {"select", {"test name", "its argument"}, 0, filter_select, 0},
    {"reject", {"test name", "its argument"}, 0, filter_reject, 0},
    {"selectattr", {"attribute name", "test name", "its argument"}, 1, filter_selectattr, 0},
    {"rejectattr", {"attribute name", "test name", "its argument"}, 1, filter_rejectattr, 0},
    {"int", {"default"}, 0, filter_int, 0},       {"lower", {NULL}, 0, filter_lower, 0},
    {"upper", {NULL}, 0, filter_upper, 0},        {"capitalize", {NULL}, 0, filter_capitalize, 0},
    {"safe", {NULL}, 0, call_string, 0}, /* nothing is escaped for HTML */
};

int filter_find(struct template_text name) { FIND(filters, name); }

int filter_call(struct rendering *r, int filter, struct value on, const struct arguments *args, struct value *out)
{
    return call_with(r, &filters[filter], on, args, out);
}
