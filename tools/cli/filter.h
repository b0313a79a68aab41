/* tools/cli/filter.h -- lists on the command line that choose values: patterns of names (--taps) and ranges (--layers,
 * --steps). */
#ifndef VB_FILTER_H
#define VB_FILTER_H

#include <stddef.h>

/* Returns the next item of a list with commas, or NULL at its end. *at: the rest of the list. *length: the length of
 * the item. */
const char *filter_next(const char **at, size_t *length);
/* Whether the pattern glob[length] matches the name. */
int filter_matches(const char *glob, size_t length, const char *name);
/* Whether one of the patterns in a list with commas matches the name. NULL: all names match. */
int filter_name(const char *globs, const char *name);
/* Whether the ranges, such as "0-3,7", have the number. NULL: all numbers. */
int filter_has(const char *ranges, long long number);
/* Whether the text consists of ranges of whole numbers from 0. */
int filter_is_ranges(const char *ranges);

#endif
