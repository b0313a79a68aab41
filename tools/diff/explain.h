/* tools/diff/explain.h -- says which rows and columns of a value differ, and what a common mistake would have made of
 * the right value.
 *
 * Both functions compare two arrays of rows: `a` has the numbers to be explained, `b` the right ones. They know nothing
 * of dumps. A mistake is said to explain the difference if it leaves at most EXPLAIN_LEAVES of its square; the one that
 * leaves least is named. */
#ifndef VB_DIFF_EXPLAIN_H
#define VB_DIFF_EXPLAIN_H

#include <stddef.h>
#include <stdint.h>

#define EXPLAIN_ROOM 400
#define EXPLAIN_NAME 100
#define EXPLAIN_LEAVES 0.03

struct explain_matrix { /* b = W x; W is [width, inputs] */
    size_t inputs;
    const double *x;       /* [rows, inputs] */
    const double *weights; /* [width, inputs] */
};

struct explain_rows {
    const double *a, *b;      /* [rows, width] */
    size_t rows, width;
    const int32_t *index;     /* [rows], ascending: for messages, and to find the row before */
    const double *tolerance;  /* [rows]: how far rounding may move a number of the row */
    size_t block;             /* so many columns make a head or an expert; 0: neither */
    const char *block_name;   /* "head" or "expert" */
    size_t rope;              /* the last columns of each block are RoPE dimensions; 0: none */
    const double *before_a, *before_b; /* NULL, or [rows, width]: the vectors before RoPE, if a and b are vectors after
                                          it */
    const struct explain_matrix *matrix; /* NULL: no linear layer, or its matrix is not known */
    /* NULL, or a function that computes what another mistake would make, [rows, width], and says so in `name`. NULL:
     * there is no candidate i, and none after it. An empty name: this candidate does not count. */
    const double *(*candidate)(void *context, size_t i, char name[EXPLAIN_NAME]);
    void *context;
};

/* Writes which parts of a value differ, for example "rows 3, 5 of 21; heads 2-3 of 6". A row differs if at least one of
 * its numbers is out of tolerance. Returns 0 if no row differs. */
int explain_where(const struct explain_rows *e, char text[EXPLAIN_ROOM]);
/* Writes the same for rows and columns that the caller marks. block: so many columns make a `block_name`, of which one
 * is marked if one of its columns is; 0: neither. index [rows]: the names of the rows. If nothing is marked, the text
 * is empty. */
void explain_parts(char text[EXPLAIN_ROOM], const unsigned char *row, const int32_t *index, size_t rows,
                   unsigned char *column, size_t width, size_t block, const char *block_name);
/* Writes the common mistake that explains the difference. Returns 0 if no known mistake explains it. */
int explain_why(const struct explain_rows *e, char text[EXPLAIN_ROOM]);

#endif
