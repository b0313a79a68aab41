/* tools/trace/columns.h -- a small table of texts with aligned columns. */
#ifndef VB_TOOLS_TRACE_COLUMNS_H
#define VB_TOOLS_TRACE_COLUMNS_H

#include <stdio.h>

struct columns {
    const char *const *titles;
    size_t count;        /* number of columns */
    size_t hidden;       /* this column is not printed; 0: all are */
    char **cells;        /* [rows, count] */
    size_t rows, room;
};

/* Adds an empty row. */
void columns_row(struct columns *t);
/* Sets a cell of the newest row. */
void columns_set(struct columns *t, size_t column, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Prints the table, and frees the cells. */
void columns_print(struct columns *t, FILE *to);

#endif
