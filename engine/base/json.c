/* engine/base/json.c -- reads JSON from untrusted files. */
#include "engine/base/json.h"
#include "engine/base/decimal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) TEXT_OF_IT(x)
#define TEXT_OF_IT(x) #x

#define KEPT_DIGITS 16  /* leading digits that are kept of an integer that does not fit 64 bits */
#define MOST_DIGITS 308 /* every integer with at most this number of digits fits a double */

/* ---- how many values ---- */

/* Returns the index after the end of the string that begins at text[i]. */
static size_t behind_string(const char *text, size_t size, size_t i)
{
    for (i++; i < size && text[i] != '"'; i++)
        i += text[i] == '\\';
    return i < size ? i + 1 : size;
}

/* Every value except the first one follows one of these characters. */
static int begins_value(char c)
{
    return c == ',' || c == ':' || c == '[' || c == '{';
}

size_t json_values(const char *text, size_t size)
{
    size_t n = 1;
    for (size_t i = 0; i < size;)
        if (text[i] == '"')
            i = behind_string(text, size, i);
        else
            n += (size_t)begins_value(text[i++]);
    return n;
}

/* ---- numbers that are too large ---- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int in_number(char c)
{
    return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static void put_short(char *at, size_t room, const char *number)
{
    size_t n = strlen(number);
    memset(at, ' ', room);
    memcpy(at, number, n);
}

/* Replaces a number of n characters if it does not fit. A shorter replacement is padded with blanks. */
static void make_fit(char *at, size_t n)
{
    size_t digits = 0, sign = *at == '-';
    char exponent[8], *end;
    while (sign + digits < n && is_digit(at[sign + digits]))
        digits++;
    if (sign + digits == n && digits <= MOST_DIGITS) {
        errno = 0;
        strtoll(at, NULL, 10);
        if (errno != ERANGE)
            return;
        decimal_print(exponent, sizeof exponent, "e%zu", digits - KEPT_DIGITS);
        put_short(at + sign + KEPT_DIGITS, digits - KEPT_DIGITS, exponent);
    } else if (isinf(decimal_parse(at, &end)) && end == at + n) {
        put_short(at, n, sign ? "-1e308" : "1e308"); /* the replacement has room: every number that is too large is at
                                                        least as long */
    }
}

/* Replaces all numbers in `text` that do not fit. `text` ends with a 0 byte. jansson has parsed it up to the first such
 * number. */
static void make_numbers_fit(char *text, size_t size)
{
    for (size_t i = 0, n; i < size; i += n) {
        for (n = 0; i + n < size && in_number(text[i + n]);)
            n++;
        if (n)
            make_fit(text + i, n);
        else
            n = text[i] == '"' ? behind_string(text, size, i) - i : 1;
    }
}

/* ---- reading ---- */

static const char *describe(const json_error_t *e)
{
    switch (json_error_code(e)) {
    case json_error_duplicate_key: return "a key is there twice";
    case json_error_stack_overflow: return "it is nested too deeply";
    case json_error_numeric_overflow: return "a number is out of range";
    case json_error_invalid_utf8: return "it is not UTF-8";
    case json_error_null_byte_in_key:
    case json_error_null_character: return "a string holds a zero character";
    case json_error_premature_end_of_input: return "it ends too early";
    default: return "it is not JSON";
    }
}

static json_t *load(const char *text, size_t size, size_t flags, int any_number, struct json_trouble *why)
{
    json_error_t e;
    char *copy = NULL;
    *why = (struct json_trouble){.line = 1, .what = "it has more than " TEXT_OF(JSON_MOST_VALUES) " values"};
    if (json_values(text, size) > JSON_MOST_VALUES)
        return NULL;
    json_t *value = json_loadb(text, size, flags, &e);
    if (value)
        return value;
    int again = any_number && json_error_code(&e) == json_error_numeric_overflow;
    if (again && (copy = malloc(size + 1))) {
        memcpy(copy, text, size);
        copy[size] = '\0';
        make_numbers_fit(copy, size);
        value = json_loadb(copy, size, flags, &e);
        free(copy);
    }
    /* jansson sometimes gives no error text if there is no memory */
    int no_memory = (again && !copy) || !*e.text || json_error_code(&e) == json_error_out_of_memory;
    if (!value)
        *why = (struct json_trouble){e.line, e.column, no_memory, describe(&e)};
    return value;
}

json_t *json_load(const char *text, size_t size, size_t flags, struct json_trouble *why)
{
    return load(text, size, flags, 0, why);
}

json_t *json_load_any_number(const char *text, size_t size, size_t flags, struct json_trouble *why)
{
    return load(text, size, flags, 1, why);
}

int json_fail(const struct json_trouble *why, size_t size, const char *file, vb_error *err)
{
    if (why->no_memory)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory to read %zu bytes of JSON", file, size);
    return vb_fail(err, VB_BAD_CHECKPOINT, "%s: line %d, column %d: %s", file, why->line, why->column, why->what);
}

json_t *json_read(const char *text, size_t size, const char *file, vb_error *err)
{
    struct json_trouble why;
    json_t *value = load(text, size, JSON_REJECT_DUPLICATES, 1, &why);
    if (!value)
        json_fail(&why, size, file, err);
    return value;
}

json_t *json_read_exact(const char *text, size_t size, const char *file, vb_error *err)
{
    struct json_trouble why;
    json_t *value = load(text, size, JSON_REJECT_DUPLICATES, 0, &why);
    if (!value)
        json_fail(&why, size, file, err);
    return value;
}

/* ---- showing ---- */

struct json_text {
    char *text;
    size_t used;
};

static int append(const char *piece, size_t n, void *context)
{
    struct json_text *t = context;
    for (size_t i = 0; i < n && t->used < JSON_SHOWN; i++)
        t->text[t->used++] = piece[i] == 0x7f ? '?' : piece[i]; /* DEL is the only control character that JSON does not
                                                                   escape */
    return 0;
}

const char *json_show(const json_t *value, char shown[JSON_SHOWN])
{
    struct json_text t = {shown, 0};
    if (!value)
        return "missing";
    json_dump_callback(value, append, &t, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (t.used == JSON_SHOWN)
        memcpy(shown + JSON_SHOWN - 4, "...", 4);
    else
        shown[t.used] = 0;
    return shown;
}
