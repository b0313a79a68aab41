/* engine/template/value.c -- the values of the template interpreter. Operators give the same results as in Python. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/template/template_internal.h"
#include "numbers/numbers.h"

struct value value_string(struct template_text s) { return (struct value){V_STRING, {.s = s}}; }
struct value value_bool(int yes) { return (struct value){V_BOOL, {.i = yes != 0}}; }
struct value value_int(int64_t i) { return (struct value){V_INT, {.i = i}}; }

/* ---- lists and dicts --------------------------------------------------------------------------------------------- */

/* Makes room for one more item after n items. If the items move, the old memory stays in the arena until the arena is
 * freed. */
static int grow(struct rendering *r, void **items, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return VB_OK;
    size_t more = *room ? 2 * *room : 8;
    void *now = arena_get(&r->arena, more, size);
    if (!now)
        return run_no_memory(r);
    if (n)
        memcpy(now, *items, n * size);
    *items = now;
    *room = more;
    return VB_OK;
}

int value_list(struct rendering *r, size_t room, struct value *out)
{
    struct template_list *l = arena_get(&r->arena, 1, sizeof *l);
    if (!l || (room && !(l->items = arena_get(&r->arena, room, sizeof *l->items))))
        return run_no_memory(r);
    l->room = room;
    *out = (struct value){V_LIST, {.list = l}};
    return VB_OK;
}

int value_dict(struct rendering *r, enum value_type type, struct value *out)
{
    struct dict *d = arena_get(&r->arena, 1, sizeof *d);
    if (!d)
        return run_no_memory(r);
    *out = (struct value){type, {.dict = d}};
    return VB_OK;
}

int list_append(struct rendering *r, struct template_list *l, struct value v)
{
    void *items = l->items;
    int rc = run_steps(r, sizeof v);
    if (rc || (rc = grow(r, &items, l->n, &l->room, sizeof v)))
        return rc;
    l->items = items;
    l->items[l->n++] = v;
    return VB_OK;
}

struct value *dict_find(struct rendering *r, const struct dict *d, struct template_text key)
{
    r->steps += d->n / 4; /* the next call of run_steps reports an error if these are too many */
    for (size_t i = 0; i < d->n && r->steps <= MAX_STEPS; i++)
        if (d->entries[i].key.n == key.n) {
            r->steps += key.n / 16;
            if (!memcmp(d->entries[i].key.s, key.s, key.n))
                return &d->entries[i].value;
        }
    return NULL;
}

int dict_set(struct rendering *r, struct dict *d, struct template_text key, struct value v)
{
    struct value *old = dict_find(r, d, key);
    void *entries = d->entries;
    int rc = run_steps(r, sizeof v);
    if (old)
        *old = v;
    if (rc || old || (rc = grow(r, &entries, d->n, &d->room, sizeof *d->entries)))
        return rc;
    d->entries = entries;
    d->entries[d->n++] = (struct template_entry){key, v};
    return VB_OK;
}

int value_to_list(struct rendering *r, struct value v, struct value *out)
{
    size_t size;
    int rc;
    if (v.type == V_LIST)
        return *out = v, VB_OK;
    if (v.type != V_UNDEFINED && v.type != V_DICT && v.type != V_STRING)
        return run_fail(r, "%s cannot be gone through", value_kind(v));
    if ((rc = value_list(r, 0, out)) || v.type == V_UNDEFINED)
        return rc;
    if (v.type == V_DICT)
        for (size_t i = 0; i < v.dict->n && !rc; i++)
            rc = list_append(r, out->list, value_string(v.dict->entries[i].key));
    else
        for (size_t i = 0; i < v.s.n && !rc; i += size) {
            text_character(v.s.s + i, &size);
            rc = list_append(r, out->list, value_string((struct template_text){v.s.s + i, size}));
        }
    return rc;
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

int value_true(struct value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE: return 0;
    case V_BOOL:
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0.0;
    case V_STRING: return v.s.n != 0;
    case V_LIST: return v.list->n != 0;
    case V_DICT: return v.dict->n != 0;
    default: return 1;
    }
}

const char *value_kind(struct value v)
{
    static const char *const kinds[] = {"what is undefined", "none", "a boolean", "an integer", "a float", "a string",
                                        "a list", "a dict", "a namespace", "a loop", "a macro"};
    return kinds[v.type];
}

static int is_integer(struct value v) { return v.type == V_INT || v.type == V_BOOL; } /* as in Python */
static int is_number(struct value v) { return is_integer(v) || v.type == V_FLOAT; }
static double as_float(struct value v) { return v.type == V_FLOAT ? v.f : (double)v.i; }

static int lists_equal(struct rendering *r, const struct template_list *a, const struct template_list *b, int *equal)
{
    int rc = VB_OK;
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && !rc && i < a->n && i < b->n; i++)
        rc = value_equal(r, a->items[i], b->items[i], equal);
    return rc;
}

static int dicts_equal(struct rendering *r, const struct dict *a, const struct dict *b, int *equal)
{
    int rc = VB_OK;
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && !rc && i < a->n; i++) {
        const struct value *other = dict_find(r, b, a->entries[i].key);
        *equal = other != NULL;
        if (other)
            rc = value_equal(r, a->entries[i].value, *other, equal);
    }
    return rc;
}

int value_equal(struct rendering *r, struct value a, struct value b, int *equal)
{
    int rc = run_deeper(r);
    if (rc)
        return rc;
    if (is_number(a) && is_number(b))
        *equal = is_integer(a) && is_integer(b) ? a.i == b.i : as_float(a) == as_float(b);
    else if (a.type != b.type)
        *equal = 0;
    else if (a.type == V_UNDEFINED || a.type == V_NONE)
        *equal = 1;
    else if (a.type == V_STRING)
        *equal = a.s.n == b.s.n && !(rc = run_steps(r, a.s.n)) && !memcmp(a.s.s, b.s.s, a.s.n);
    else if (a.type == V_LIST)
        rc = a.list == b.list ? (*equal = 1, VB_OK) : lists_equal(r, a.list, b.list, equal);
    else if (a.type == V_DICT)
        rc = a.dict == b.dict ? (*equal = 1, VB_OK) : dicts_equal(r, a.dict, b.dict, equal);
    else
        *equal = a.dict == b.dict;
    r->depth--;
    return rc;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static int arithmetic_of_floats(struct rendering *r, int op, double a, double b, struct value *out)
{
    double f = 0.0;
    if (b == 0.0 && (op == OP_DIVIDE || op == OP_FLOOR || op == OP_MODULO))
        return run_fail(r, "a division by zero");
    switch (op) {
    case OP_ADD: f = a + b; break;
    case OP_SUBTRACT: f = a - b; break;
    case OP_MULTIPLY: f = a * b; break;
    case OP_DIVIDE: f = a / b; break;
    case OP_FLOOR: f = floor(a / b); break;
    default:
        f = fmod(a, b);
        f += f != 0.0 && (f < 0.0) != (b < 0.0) ? b : 0.0;
    }
    *out = (struct value){V_FLOAT, {.f = f}};
    return VB_OK;
}

static int arithmetic(struct rendering *r, int op, struct value a, struct value b, struct value *out)
{
    int64_t i = 0;
    int over = 0;
    if (!is_integer(a) || !is_integer(b) || op == OP_DIVIDE)
        return arithmetic_of_floats(r, op, as_float(a), as_float(b), out);
    if (!b.i && (op == OP_FLOOR || op == OP_MODULO))
        return run_fail(r, "a division by zero");
    if (op == OP_ADD)
        over = __builtin_add_overflow(a.i, b.i, &i);
    else if (op == OP_SUBTRACT)
        over = __builtin_sub_overflow(a.i, b.i, &i);
    else if (op == OP_MULTIPLY)
        over = __builtin_mul_overflow(a.i, b.i, &i);
    else if (b.i == -1) /* INT64_MIN / -1 does not fit an int64_t */
        over = op == OP_FLOOR && __builtin_sub_overflow((int64_t)0, a.i, &i);
    else if (op == OP_FLOOR)
        i = a.i / b.i - (a.i % b.i && (a.i < 0) != (b.i < 0));
    else
        i = a.i % b.i + (a.i % b.i && (a.i < 0) != (b.i < 0) ? b.i : 0);
    *out = value_int(i);
    return over ? run_fail(r, "an integer out of range") : VB_OK;
}

static int join_texts(struct rendering *r, struct template_text a, struct template_text b, struct value *out)
{
    int rc = run_steps(r, a.n + b.n);
    char *s = rc ? NULL : arena_get(&r->arena, a.n + b.n + 1, 1);
    if (!s)
        return rc ? rc : run_no_memory(r);
    memcpy(s, a.s, a.n);
    memcpy(s + a.n, b.s, b.n);
    *out = value_string((struct template_text){s, a.n + b.n});
    return VB_OK;
}

static int join_lists(struct rendering *r, const struct template_list *a, const struct template_list *b,
                      struct value *out)
{
    int rc = value_list(r, a->n + b->n, out);
    for (size_t i = 0; !rc && i < a->n + b->n; i++)
        rc = list_append(r, out->list, i < a->n ? a->items[i] : b->items[i - a->n]);
    return rc;
}

/* a ~ b: joins both values as text */
static int join_printed(struct rendering *r, struct value a, struct value b, struct value *out)
{
    size_t from = r->out.n;
    int rc = value_print(r, a);
    if (!rc)
        rc = value_print(r, b);
    return rc ? rc : run_take(r, from, out);
}

static int contains(struct rendering *r, struct value in, struct value what, int *yes)
{
    struct value list;
    int rc = VB_OK;
    *yes = 0;
    if (in.type == V_STRING && what.type == V_STRING) {
        if (!(rc = run_steps(r, in.s.n)))
            *yes = text_find(in.s, what.s) != NULL;
        return rc;
    }
    if (in.type == V_STRING)
        return run_fail(r, "%s cannot be in a string", value_kind(what));
    if (in.type == V_DICT) {
        *yes = what.type == V_STRING && dict_find(r, in.dict, what.s);
        return VB_OK;
    }
    rc = value_to_list(r, in, &list);
    for (size_t i = 0; !rc && !*yes && i < list.list->n; i++)
        if (!(rc = run_steps(r, 0)))
            rc = value_equal(r, list.list->items[i], what, yes);
    return rc;
}

static int compare(struct rendering *r, int op, struct value a, struct value b, struct value *out)
{
    int order = 0, known = 1, rc;
    if (is_integer(a) && is_integer(b)) {
        order = a.i < b.i ? -1 : a.i > b.i;
    } else if (is_number(a) && is_number(b)) {
        known = !isnan(as_float(a)) && !isnan(as_float(b));
        order = as_float(a) < as_float(b) ? -1 : as_float(a) > as_float(b);
    } else if (a.type == V_STRING && b.type == V_STRING) { /* the order of UTF-8 bytes is the order of the characters */
        size_t both = min_size(a.s.n, b.s.n);
        if ((rc = run_steps(r, both)))
            return rc;
        order = memcmp(a.s.s, b.s.s, both);
        order = order ? order : a.s.n < b.s.n ? -1 : a.s.n > b.s.n;
    } else {
        return run_fail(r, "%s and %s have no order", value_kind(a), value_kind(b));
    }
    *out = value_bool(known && (op == OP_LESS ? order < 0
                                : op == OP_LESS_EQUAL ? order <= 0
                                : op == OP_MORE ? order > 0
                                : order >= 0));
    return VB_OK;
}

/* The most common mistake is to add an undefined value to a string. The message then names the undefined value. */
static int no_operator(struct rendering *r, int op, struct value a, struct value b)
{
    static const char *const names[] = {"", "+", "-", "*", "/", "//", "%"};
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        return run_fail(r, "%s is undefined", text_show(a.type == V_UNDEFINED ? a.s : b.s).s);
    return run_fail(r, "%s %s %s is not possible", value_kind(a), names[op], value_kind(b));
}

int value_binary(struct rendering *r, int op, struct value a, struct value b, struct value *out)
{
    int yes, rc;
    if (op == OP_JOIN)
        return join_printed(r, a, b, out);
    if (op >= OP_LESS && op <= OP_MORE_EQUAL)
        return compare(r, op, a, b, out);
    if (op >= OP_EQUAL) {
        rc = op == OP_EQUAL || op == OP_DIFFERENT ? value_equal(r, a, b, &yes) : contains(r, b, a, &yes);
        *out = value_bool(!rc && (op == OP_DIFFERENT || op == OP_NOT_IN ? !yes : yes));
        return rc;
    }
    if (is_number(a) && is_number(b))
        return arithmetic(r, op, a, b, out);
    if (op == OP_ADD && a.type == V_STRING && b.type == V_STRING)
        return join_texts(r, a.s, b.s, out);
    if (op == OP_ADD && a.type == V_LIST && b.type == V_LIST)
        return join_lists(r, a.list, b.list, out);
    return no_operator(r, op, a, b);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static int put_word(struct rendering *r, const char *s) { return run_put(r, s, strlen(s)); }

/* Writes a string as Python's repr() does: in single quotes, or in double quotes if the string contains ' and no ". Of
 * the characters that Python calls not printable, only ASCII characters are written as escapes. */
static int put_quoted(struct rendering *r, struct template_text t)
{
    char quote = memchr(t.s, '\'', t.n) && !memchr(t.s, '"', t.n) ? '"' : '\'', number[8];
    int rc = run_put(r, &quote, 1);
    for (size_t i = 0; i < t.n && !rc; i++) {
        unsigned char c = (unsigned char)t.s[i];
        if (c == '\\' || c == (unsigned char)quote)
            rc = run_put(r, "\\", 1);
        if (c == '\n' || c == '\r' || c == '\t')
            rc = put_word(r, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (c < 0x20 || c == 0x7f)
            rc = run_put(r, number, (size_t)snprintf(number, sizeof number, "\\x%02x", c));
        else if (!rc)
            rc = run_put(r, t.s + i, 1);
    }
    return rc ? rc : run_put(r, &quote, 1);
}

static int put_inside(struct rendering *r, struct value v)
{
    if (v.type == V_UNDEFINED)
        return put_word(r, "Undefined");
    return v.type == V_STRING ? put_quoted(r, v.s) : value_print(r, v);
}

static int put_list(struct rendering *r, const struct template_list *l)
{
    int rc = put_word(r, "[");
    for (size_t i = 0; i < l->n && !rc; i++)
        if (!i || !(rc = put_word(r, ", ")))
            rc = put_inside(r, l->items[i]);
    return rc ? rc : put_word(r, "]");
}

static int put_dict(struct rendering *r, const struct dict *d)
{
    int rc = put_word(r, "{");
    for (size_t i = 0; i < d->n && !rc; i++)
        if ((!i || !(rc = put_word(r, ", "))) && !(rc = put_quoted(r, d->entries[i].key)) && !(rc = put_word(r, ": ")))
            rc = put_inside(r, d->entries[i].value);
    return rc ? rc : put_word(r, "}");
}

int value_print(struct rendering *r, struct value v)
{
    char number[32];
    int rc = run_deeper(r);
    if (!rc)
        switch (v.type) {
        case V_UNDEFINED: break;
        case V_NONE: rc = put_word(r, "None"); break;
        case V_BOOL: rc = put_word(r, v.i ? "True" : "False"); break;
        case V_INT: rc = run_put(r, number, (size_t)snprintf(number, sizeof number, "%lld", (long long)v.i)); break;
        case V_FLOAT: rc = value_put_float(r, v.f); break;
        case V_STRING: rc = run_put(r, v.s.s, v.s.n); break;
        case V_LIST: rc = put_list(r, v.list); break;
        case V_DICT: rc = put_dict(r, v.dict); break;
        default: rc = run_fail(r, "%s is printed", value_kind(v));
        }
    r->depth--;
    return rc;
}
