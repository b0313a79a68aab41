/* tools/serve/meaning_internal.h -- the parser of meaning.h: its state, and how one call is read. */
#ifndef VB_MEANING_INTERNAL_H
#define VB_MEANING_INTERNAL_H

#include "engine/verbatim.h"
#include "tools/serve/meaning.h"
#include "tools/serve/writer.h"

static inline int meaning_is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* How far one JSON value was read (tools/serve/meaning_json.c). At first all members are 0. Objects and arrays may nest
 * 255 deep. */
struct json_scan {
    int place, depth, is_key, literal;
    unsigned char is_object[32]; /* a bit for each depth: an object or an array */
};

void json_scan_byte(struct json_scan *s, char c);
int json_scan_is_bad(uint32_t place); /* no bytes lead from there to a value */
int json_scan_in_string(const struct json_scan *s);
int json_scan_is_whole(const struct json_scan *s); /* what was read is one JSON value, with whitespace around it or
                                                      without */

/* Writes a number with the fewest digits that give the same number. Returns the size of the text. */
size_t meaning_shortest(const json_t *number, char text[64]);

/* One tool call whose bytes are held back. */
struct meaning_call {
    struct serve_writer text;      /* the bytes from the marker that begins this tool call. A marker may begin a section
                                      of several tool calls; the first of them then includes that marker */
    size_t head, head_end, body;   /* offsets: the text before MARK_SEP, and the text behind it; GLM: the name */
    size_t key, key_end, value;    /* offsets of GLM's last key and value; DeepSeek-V3.2: key alone */
    struct serve_writer arguments; /* GLM, DeepSeek-V3.2: JSON without its last bracket */
    struct json_scan scan;         /* of the arguments */
    int is_begun;                  /* the arguments have begun, at their { */
    size_t json, json_end;         /* offsets in `text`: where they begin and end, as far as they were read */
};

/* Finds the name in the call's text. Returns 0 if there is none. *number: the number that Kimi-K2 has put behind it;
 * -1: none. */
int meaning_name(enum meaning_calls calls, const struct meaning_call *call, const char **name, size_t *size,
                 long *number);
/* Finds the arguments in the text of a whole call. 1: found; 0: the call is malformed; VB_NO_MEMORY. */
int meaning_arguments(enum meaning_calls calls, struct meaning_call *call, const char **json, size_t *size);
/* Formats that write the arguments one by one. */
static inline int meaning_has_pairs(enum meaning_calls calls)
{
    return calls == MEANING_GLM || calls == MEANING_DEEPSEEK_V32;
}
/* Whether a tool's schema says that a parameter is a string and nothing else. `key` is 0-terminated. */
int meaning_wants_string(const json_t *tools, const char *name, size_t size, const char *key);
/* Whether a text is one JSON value, with whitespace around it or without. */
int meaning_is_json(const char *text, size_t size);
/* GLM: appends the last key and value to the arguments. Returns 0 if memory is missing. */
int meaning_add_value(const json_t *tools, struct meaning_call *call);
/* DeepSeek-V3.2: appends the last parameter to the arguments. 1; 0: it is malformed; VB_NO_MEMORY. */
int meaning_add_parameter(struct meaning_call *call);
#endif
