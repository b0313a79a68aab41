/* tools/cli/filter.c -- patterns of names, and ranges of numbers. */
#include "tools/cli/filter.h"
#include "tools/cli/cli.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *filter_next(const char **at, size_t *length)
{
    const char *item = *at;
    if (!item || !*item)
        return NULL;
    *length = strcspn(item, ",");
    *at = item + *length + (item[*length] == ',');
    return item;
}

int filter_matches(const char *glob, size_t length, const char *name)
{
    char pattern[512];
    if (length >= sizeof pattern)
        return 0;
    memcpy(pattern, glob, length);
    pattern[length] = '\0';
    return !fnmatch(pattern, name, 0);
}

int filter_name(const char *globs, const char *name)
{
    size_t length;
    int found = !globs;
    for (const char *glob; !found && (glob = filter_next(&globs, &length));)
        found = filter_matches(glob, length, name);
    return found;
}

/* Reads "7" or "0-3" at `item`. Returns the number of characters, or 0 if there is no range. */
static int read_range(const char *item, int *first, int *last)
{
    int n = 0, m = 0;
    if (strspn(item, "0123456789-") > 15 || *item == '-' || sscanf(item, "%7d%n", first, &n) != 1)
        return 0;
    *last = *first;
    if (item[n] == '-' && (item[n + 1] == '-' || sscanf(item + n + 1, "%7d%n", last, &m) != 1))
        return 0;
    return *first <= *last ? n + m + (m > 0) : 0;
}

int filter_has(const char *ranges, long long number)
{
    int first, last;
    size_t length;
    if (!ranges)
        return 1;
    for (const char *item; (item = filter_next(&ranges, &length));)
        if (read_range(item, &first, &last) && number >= first && number <= last)
            return 1;
    return 0;
}

int filter_is_ranges(const char *ranges)
{
    int first, last;
    size_t length, total = strlen(ranges);
    const char *end = ranges + total;
    for (const char *item; (item = filter_next(&ranges, &length));)
        if (!length || (size_t)read_range(item, &first, &last) != length)
            return 0;
    return total > 0 && end[-1] != ',';
}

int cli_wants(const struct cli *c, const char *name, int layer)
{
    return filter_name(c->taps, name) && filter_has(c->layers, layer);
}
