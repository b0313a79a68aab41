/* engine/base/json.h -- reads JSON from untrusted files, with jansson.
 *
 * A text with too many values is refused before it is parsed, so parsing needs a limited amount of memory. Error
 * messages quote values from a file only as escaped JSON, so a hostile file cannot put a newline or a control character
 * into a message. */
#ifndef VB_JSON_H
#define VB_JSON_H

#include "engine/base/support.h"

#include <jansson.h>

#define JSON_SHOWN 64             /* size of the buffer for a quoted value: 63 characters and the terminating 0 */
#define JSON_MOST_VALUES 4194304  /* limit on values and keys in one text; jansson needs up to 120 bytes for each */

/* The reason why a text could not be read. */
struct json_trouble {
    int line, column;
    int no_memory;
    const char *what; /* a constant sentence such as "it is not JSON" */
};

/* Parses `size` bytes of JSON. If the bytes cannot be parsed, fills *why and returns NULL. The caller owns the returned
 * value and releases it with json_decref. `flags` are the flags of jansson's json_loadb. A number that fits neither a
 * 64-bit integer nor a double is an error. */
json_t *json_load(const char *text, size_t size, size_t flags, struct json_trouble *why);
/* Does what json_load does, but also accepts numbers that fit neither a 64-bit integer nor a double. Some files contain
 * such numbers in fields that Verbatim does not read. An integer that does not fit 64 bits becomes a real number of
 * about the same size. A number that does not fit a double becomes 1e308 or -1e308. Code that expects an integer then
 * finds a real number and can report an error. */
json_t *json_load_any_number(const char *text, size_t size, size_t flags, struct json_trouble *why);

/* Parses the contents of a file with json_load_any_number. A duplicate key is an error, since it is unclear which of
 * the two values counts. Returns NULL on error, with a message in *err that names `file`. */
json_t *json_read(const char *text, size_t size, const char *file, vb_error *err);
/* Does what json_read does, but parses with json_load. It is meant for texts whose numbers are printed again later:
 * json_load reports a number that is too large as an error, while json_load_any_number replaces it with another
 * number. */
json_t *json_read_exact(const char *text, size_t size, const char *file, vb_error *err);
/* Writes the problem that *why describes to *err, for example "FILE: line 1, column 2: it is not JSON". `size` is the
 * length of the text in bytes. Returns the error code. */
int json_fail(const struct json_trouble *why, size_t size, const char *file, vb_error *err);

/* Returns an upper bound on the number of values and keys that jansson would create for this text. */
size_t json_values(const char *text, size_t size);

/* Returns `value` as text for an error message. The text is JSON in ASCII and is written to `shown`. If it is too long,
 * it ends with "...". If `value` is NULL, returns the constant "missing". */
const char *json_show(const json_t *value, char shown[JSON_SHOWN]);

#endif
