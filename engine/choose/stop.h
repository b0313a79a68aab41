/* engine/choose/stop.h -- finds stop strings in the generated text.
 *
 * Each stop string has a Knuth-Morris-Pratt automaton, which reads the text byte by byte. So the result does not depend
 * on where the text is split into tokens. The first byte that completes a stop string ends the text. If this byte
 * completes several stop strings, the longest of them is the one that was found. */
#ifndef VB_STOP_H
#define VB_STOP_H

#include "engine/base/support.h"

struct stop;

/* Copies the strings. Returns VB_BAD_ARGUMENT if a string is empty or is not UTF-8, and VB_NO_MEMORY if there is no
 * memory. If count is 0, *out is NULL. The caller closes *out with stop_close. */
int stop_open(struct stop **out, const char *const *strings, size_t count, const vb_allocator *a, vb_error *err);
void stop_close(struct stop *s, const vb_allocator *a);

/* Reads the next bytes of the text. If a byte completes a stop string, the function reads no further bytes and returns
 * the string's number, counted from 1; stop_push must not be called again after that. Otherwise it returns 0. */
int stop_push(struct stop *s, const char *bytes, size_t size);

/* Returns how many bytes of the text are certain to be output. If a stop string was found, the bytes before it are
 * output. Otherwise, the last bytes of the text may be the beginning of a stop string, and only the bytes before these
 * are certain. */
size_t stop_safe(const struct stop *s);

#endif
