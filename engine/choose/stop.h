/* engine/choose/stop.h -- finds stop strings in the generated text.
 *
 * Each stop string has a Knuth-Morris-Pratt automaton, which reads the text byte by byte. So the result does not depend
 * on where the text is split into tokens. The first byte that completes a stop string ends the text. If it completes
 * several, the longest one counts. */
#ifndef VB_STOP_H
#define VB_STOP_H

#include "engine/base/support.h"

struct stop;

/* Copies the strings. Returns VB_BAD_ARGUMENT if one is empty or is not UTF-8. If count is 0, *out is NULL. The caller
 * closes *out with stop_close. */
int stop_open(struct stop **out, const char *const *strings, size_t count, const vb_allocator *a, vb_error *err);
void stop_close(struct stop *s, const vb_allocator *a);

/* Reads the next bytes of the text. If they complete a stop string, it stops there and returns the string's number,
 * counted from 1; it must not be called again. Otherwise it returns 0. */
int stop_push(struct stop *s, const char *bytes, size_t size);

/* Returns how many bytes of the text are certain to be output. If a stop string was found, these are the bytes before
 * it. Otherwise, the last bytes of the text may be the beginning of a stop string, and the bytes before them are
 * certain. */
size_t stop_safe(const struct stop *s);

#endif
