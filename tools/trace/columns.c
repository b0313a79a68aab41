/* tools/trace/columns.c -- a small table of texts with aligned columns. */
#include "tools/trace/columns.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

void columns_row(struct columns *t)
{
    if (t->rows == t->room) {
        t->room = 2 * t->room + 16;
        t->cells = cli_must(realloc(t->cells, t->room * t->count * sizeof *t->cells));
    }
    for (size_t k = 0; k < t->count; k++)
        t->cells[t->rows * t->count + k] = cli_must(strdup(""));
    t->rows++;
}

void columns_set(struct columns *t, size_t column, const char *format, ...)
{
    char **cell = &t->cells[(t->rows - 1) * t->count + column];
    va_list args;
    free(*cell);
    *cell = NULL;
    va_start(args, format);
    if (vasprintf(cell, format, args) < 0)
        *cell = NULL;
    va_end(args);
    cli_must(*cell);
}

/* Prints a row without blanks at its end. */
static void put_row(const struct columns *t, FILE *to, const char *const *cells, const size_t *width)
{
    size_t last = t->count;
    while (last > 1 && !*cells[last - 1])
        last--;
    for (size_t k = 0; k + 1 < last; k++)
        if (!k || k != t->hidden)
            fprintf(to, "%-*s  ", (int)width[k], cells[k]);
    fprintf(to, "%s\n", cells[last - 1]);
}

void columns_print(struct columns *t, FILE *to)
{
    size_t *width = cli_must(calloc(t->count, sizeof *width));
    for (size_t k = 0; k < t->count; k++)
        width[k] = strlen(t->titles[k]);
    for (size_t i = 0; i < t->rows * t->count; i++)
        if (strlen(t->cells[i]) > width[i % t->count])
            width[i % t->count] = strlen(t->cells[i]);
    put_row(t, to, t->titles, width);
    for (size_t i = 0; i < t->rows; i++)
        put_row(t, to, (const char *const *)t->cells + i * t->count, width);
    for (size_t i = 0; i < t->rows * t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    free(width);
}
