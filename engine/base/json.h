/* engine/base/json.h -- JSON that comes from outside: keys unique, and messages that quote values only as escaped JSON, so
 * that a hostile file cannot put a newline or a control character into a sentence of ours. */
#ifndef VB_JSON_H
#define VB_JSON_H

#include "engine/base/support.h"

#include <jansson.h>
#include <string.h>

#define JSON_SHOWN 64 /* characters of a value that a message quotes, the terminating 0 included */

static inline const char *json_trouble(const json_error_t *e)
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

/* jansson says nothing at all when it ran out of memory in the middle. */
static inline int json_no_memory(const json_error_t *e)
{
    return !*e->text || json_error_code(e) == json_error_out_of_memory;
}

/* The value, or NULL. The caller owns it (json_decref). Duplicate keys are refused: which of two would count? */
static inline json_t *json_read(const char *text, size_t size, const char *file, vb_error *err)
{
    json_error_t e;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &e);
    if (!value && json_no_memory(&e))
        vb_fail(err, VB_NO_MEMORY, "%s: no memory to read %zu bytes of JSON", file, size);
    else if (!value)
        vb_fail(err, VB_BAD_CHECKPOINT, "%s: line %d, column %d: %s", file, e.line, e.column, json_trouble(&e));
    return value;
}

struct json_text {
    char *text;
    size_t used;
};

static inline int json_append(const char *piece, size_t n, void *context)
{
    struct json_text *t = context;
    for (size_t i = 0; i < n && t->used < JSON_SHOWN; i++)
        t->text[t->used++] = piece[i] == 0x7f ? '?' : piece[i]; /* the one control character that JSON leaves as it is */
    return 0;
}

/* How a value looks in a message: as JSON in ASCII, a long one cut with dots. */
static inline const char *json_show(const json_t *value, char shown[JSON_SHOWN])
{
    struct json_text t = {shown, 0};
    if (!value)
        return "missing";
    json_dump_callback(value, json_append, &t, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (t.used == JSON_SHOWN)
        memcpy(shown + JSON_SHOWN - 4, "...", 4);
    else
        shown[t.used] = 0;
    return shown;
}

#endif
