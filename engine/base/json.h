/* engine/base/json.h -- JSON that comes from outside: its size in memory is bounded, and messages quote values only as escaped
 * JSON, so that a hostile file cannot put a newline or a control character into a sentence of ours. */
#ifndef VB_JSON_H
#define VB_JSON_H

#include "engine/base/support.h"

#include <jansson.h>

#define JSON_SHOWN 64             /* characters of a value that a message quotes, the terminating 0 included */
#define JSON_MOST_VALUES 4194304  /* values and keys of one text: jansson takes up to 120 bytes for each */

/* Why a text could not be read. */
struct json_trouble {
    int line, column;
    int no_memory;
    const char *what; /* "it is not JSON" */
};

/* The value, or NULL. The caller owns it (json_decref). `flags` are those of json_loadb.
 * A number that neither 64 bits nor a double can hold is refused. */
json_t *json_load(const char *text, size_t size, size_t flags, struct json_trouble *why);
/* The same, but a whole number that 64 bits cannot hold becomes a real number of about that size, and a number that no double
 * can hold becomes 1e308 or -1e308: files hold such numbers where nobody reads them. Whoever reads one that has to be an integer
 * finds that it is none. */
json_t *json_load_any_number(const char *text, size_t size, size_t flags, struct json_trouble *why);

/* json_load_any_number for a file: without duplicate keys (which of two would count?), and with a sentence that names the file. */
json_t *json_read(const char *text, size_t size, const char *file, vb_error *err);
/* The same with json_load: for texts whose numbers are going to be shown again. */
json_t *json_read_exact(const char *text, size_t size, const char *file, vb_error *err);
/* "FILE: line 1, column 2: it is not JSON", or that there is no memory. Returns the error's code. */
int json_fail(const struct json_trouble *why, size_t size, const char *file, vb_error *err);

/* At least as many as the values and keys that jansson would make of this text. */
size_t json_values(const char *text, size_t size);

/* How a value looks in a message: as JSON in ASCII, a long one cut with dots. */
const char *json_show(const json_t *value, char shown[JSON_SHOWN]);

#endif
