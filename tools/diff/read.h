/* tools/diff/read.h -- between read.c, which reads dumps of tensors, and read_stats.c, which reads statistics
 * (tools/dump/stats.h). */
#ifndef VB_DIFF_READ_H
#define VB_DIFF_READ_H

#include "tools/diff/diff.h"

struct diff_entry { /* a tensor in the file */
    const char *name, *dtype_name;
    int ndim, told; /* told: whether the manifest lists it */
    int64_t shape[VB_TENSOR_DIMS];
    const char *data;
    size_t bytes;
    const struct stats_row *stats; /* [rows]; NULL: it is no statistics, and `data` has its numbers */
};

struct diff_reader {
    struct cli *c;
    struct diff_side *side;
    const struct naming *names;
    const char *path;     /* the path of the file */
    struct diff_entry *entries, **by_name; /* by_name: the same entries, sorted by name */
    size_t count;
};

/* Returns the size of a number of this dtype, or 0 if diff cannot read the dtype. */
size_t diff_dtype_of(const char *name, enum diff_dtype *dtype);
/* Returns what is wrong with a line of a manifest for this tensor, or NULL. Without a tensor, checks only what all
 * lines have. */
const char *diff_line_fault(const json_t *line, const struct diff_entry *e);
/* Adds the rows of a tensor to the series of the name in the line. */
int diff_take_line(struct diff_reader *r, const struct diff_entry *e, const json_t *line);

/* Reads a file of statistics, as if it were a manifest with its dump. Reports errors. */
int diff_read_stats(struct diff_reader *r);

#endif
