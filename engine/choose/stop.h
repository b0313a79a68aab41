/* engine/choose/stop.h -- stop strings: where in a run's text the first of them is complete.
 *
 * One Knuth-Morris-Pratt automaton per string takes the text byte by byte, so nothing depends on where tokens cut it. The
 * first byte that completes a string ends the text; of several that it completes the longest counts. */
#ifndef VB_STOP_H
#define VB_STOP_H

#include "engine/base/support.h"

struct stop;

/* Copies the strings. An empty one, and one that is not UTF-8, is VB_BAD_ARGUMENT. No strings: *out is NULL. */
int stop_open(struct stop **out, const char *const *strings, size_t count, const vb_allocator *a, vb_error *err);
void stop_close(struct stop *s, const vb_allocator *a);

/* The next bytes of the text, up to the one that completes a string: returns that string's number, from 1, or 0. After one
 * was found nothing may follow. */
int stop_push(struct stop *s, const char *bytes, size_t size);

/* Bytes of the text before the string that was found; while none was, before what may yet become the beginning of one. */
size_t stop_safe(const struct stop *s);

#endif
