/* engine/template/json.c -- converts JSON to values, and values to JSON in the form that Python's json module
 * writes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/decimal.h"
#include "engine/template/template_internal.h"

#define BYTES_OF_A_FLOAT 1024 /* bytes that are counted for printing a float, because up to 17 digits are tried */

/* ---- from JSON --------------------------------------------------------------------------------------------------- */

static int copy_text(struct rendering *r, const char *s, size_t n, struct template_text *out)
{
    char *to = arena_get(&r->arena, n + 1, 1);
    int rc = run_steps(r, n);
    if (!to || rc)
        return rc ? rc : run_no_memory(r);
    memcpy(to, s, n);
    *out = (struct template_text){to, n};
    return VB_OK;
}

static int from_array(struct rendering *r, const json_t *json, struct value *out)
{
    size_t n = json_array_size(json);
    int rc = value_list(r, n, out);
    for (size_t i = 0; i < n && !rc; i++) {
        struct value v;
        if (!(rc = value_from_json(r, json_array_get(json, i), &v)))
            rc = list_append(r, out->list, v);
    }
    return rc;
}

static int from_object(struct rendering *r, const json_t *json, struct value *out)
{
    json_t *object = (json_t *)(uintptr_t)json; /* jansson's iterators need a pointer that is not const; the object is
                                                   not changed */
    int rc = value_dict(r, V_DICT, out);
    for (void *at = json_object_iter(object); at && !rc; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        struct template_text name;
        struct value v;
        if (!(rc = copy_text(r, key, strlen(key), &name)) && !(rc = value_from_json(r, json_object_iter_value(at), &v)))
            rc = dict_set(r, out->dict, name, v);
    }
    return rc;
}

int value_from_json(struct rendering *r, const json_t *json, struct value *out)
{
    int rc = run_deeper(r);
    *out = (struct value){.type = V_NONE};
    if (!rc)
        switch (json_typeof(json)) {
        case JSON_OBJECT: rc = from_object(r, json, out); break;
        case JSON_ARRAY: rc = from_array(r, json, out); break;
        case JSON_INTEGER: *out = value_int(json_integer_value(json)); break;
        case JSON_REAL: *out = (struct value){V_FLOAT, {.f = json_real_value(json)}}; break;
        case JSON_TRUE:
        case JSON_FALSE: *out = value_bool(json_is_true(json)); break;
        case JSON_NULL: break;
        case JSON_STRING:
            out->type = V_STRING;
            rc = copy_text(r, json_string_value(json), json_string_length(json), &out->s);
        }
    r->depth--;
    return rc;
}

/* ---- to JSON ----------------------------------------------------------------------------------------------------- */

/* Writes a float as Python's repr() does: with the fewest digits that give the same double. Numbers below 1e-4, and
 * numbers from 1e16 on, are written with an exponent. */
int value_put_float(struct rendering *r, double f)
{
    char digits[40], out[64], *e;
    int precision = 0, exponent, n = 0, rc;
    if (isnan(f) || isinf(f))
        return run_put(r, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf", isnan(f) ? 3 : f < 0 ? 4 : 3);
    if ((rc = run_steps(r, BYTES_OF_A_FLOAT)))
        return rc;
    do
        decimal_print(digits, sizeof digits, "%.*e", precision, f);
    while (decimal_parse(digits, NULL) != f && ++precision < 17);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 16) {
        n = decimal_print(out, sizeof out, "%.*f", precision > exponent + 1 ? precision - exponent : 1, f);
    } else {
        *e = '\0';
        n = snprintf(out, sizeof out, "%se%+03d", digits, exponent);
    }
    return run_put(r, out, (size_t)n);
}

static int put_escaped(struct rendering *r, uint32_t c)
{
    char out[16];
    int n = c < 0x10000 ? snprintf(out, sizeof out, "\\u%04x", c)
                        : snprintf(out, sizeof out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                                   0xdc00 + ((c - 0x10000) & 0x3ff));
    return run_put(r, out, (size_t)n);
}

static int put_json_string(struct rendering *r, struct template_text t, int ascii)
{
    static const char plain[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    int rc = run_put(r, "\"", 1);
    size_t size;
    for (size_t i = 0; i < t.n && !rc; i += size) {
        uint32_t c = text_character(t.s + i, &size);
        const char *known = c && c < 0x80 ? strchr(plain, (int)c) : NULL;
        if (known)
            rc = run_put(r, (const char[]){'\\', letters[known - plain]}, 2);
        else
            rc = c < 0x20 || (ascii && c > 0x7e) ? put_escaped(r, c) : run_put(r, t.s + i, size);
    }
    return rc ? rc : run_put(r, "\"", 1);
}

static int put_break(struct rendering *r, const struct json_style *style, int level)
{
    int rc = style->indent < 0 ? VB_OK : run_put(r, "\n", 1);
    for (int i = 0; i < level * style->indent && !rc; i++)
        rc = run_put(r, " ", 1);
    return rc;
}

static int put_members(struct rendering *r, struct value v, const struct json_style *style, int level)
{
    int rc = VB_OK, is_list = v.type == V_LIST;
    for (size_t i = 0; i < (is_list ? v.list->n : v.dict->n) && !rc; i++) {
        if (i)
            rc = run_put(r, ", ", style->indent < 0 ? 2 : 1);
        if (!rc)
            rc = put_break(r, style, level + 1);
        if (!rc && !is_list && !(rc = put_json_string(r, v.dict->entries[i].key, style->ascii)))
            rc = run_put(r, ": ", 2);
        if (!rc)
            rc = value_to_json(r, is_list ? v.list->items[i] : v.dict->entries[i].value, style, level + 1);
    }
    return rc ? rc : put_break(r, style, level);
}

int value_to_json(struct rendering *r, struct value v, const struct json_style *style, int level)
{
    int rc = run_deeper(r), is_list = v.type == V_LIST;
    if (rc) {
        r->depth--;
        return rc;
    }
    if (v.type == V_LIST || v.type == V_DICT) {
        size_t n = is_list ? v.list->n : v.dict->n;
        rc = run_put(r, is_list ? "[" : "{", 1);
        if (!rc && n)
            rc = put_members(r, v, style, level);
        if (!rc)
            rc = run_put(r, is_list ? "]" : "}", 1);
    } else if (v.type == V_STRING) {
        rc = put_json_string(r, v.s, style->ascii);
    } else if (v.type == V_NONE || v.type == V_BOOL) {
        const char *word = v.type == V_NONE ? "null" : v.i ? "true" : "false";
        rc = run_put(r, word, strlen(word));
    } else if (v.type == V_FLOAT && (isnan(v.f) || isinf(v.f))) {
        const char *word = isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity";
        rc = run_put(r, word, strlen(word));
    } else if (v.type == V_INT || v.type == V_FLOAT) {
        rc = value_print(r, v);
    } else {
        rc = run_fail(r, "%s has no JSON", value_kind(v));
    }
    r->depth--;
    return rc;
}
