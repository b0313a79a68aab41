/* tools/diff/local_bias.h -- finds an operator whose result is off by a factor, although the error of each number is as
 * small as a rounding.
 *
 * x are the numbers of the dump, y those that the reference computes in double precision from the dump's own inputs,
 * and e = x - y. Slope, norm ratio and deviation are those of bias.h. Errors of earlier operators are in both x and y,
 * so sigma, the standard deviation of the slope under rounding, has only the parts that follow. Their squares are
 * added.
 *
 *   Rounding of the result. A number is rounded to the nearest one, so its error is between -h and h, where h is half
 *   an ulp, and its variance is h^2 / 3. The variance of the slope is sum(h^2 y^2 / 3) / (sum y^2)^2. An engine that
 *   rounds more often shows larger errors. So this part is estimated from the dump too: sum(r^2 y^2) / (sum y^2)^2,
 *   where r is e without the deviation b, e - b y. The larger one counts.
 *   Errors of columns. If the weights are rounded, all rows have the same error in a column. The sum over columns of
 *   (sum of r y over the rows)^2, divided by (sum y^2)^2, includes this, and counts if it is larger than the part
 *   above. For vectors after RoPE, the numbers at the same place of all heads, or of all heads and rows, take the place
 *   of a column: they share a cosine and a sine. Roundings inside of the operator are measured: each of the runs of
 *   local.h has a slope. As in bias.h, there are two estimates, and the larger one counts.
 *   Weights that the arithmetic cannot represent are rounded, or not. The slope of the operator with rounded weights is
 *   known, and its square is a part of the variance. (FP8 weights with a common scale have only 8 mantissas. So their
 *   roundings do not average out.) Errors of rows. A norm may have read the residual stream before it was rounded: see
 *   shared_error in local.c. The root mean square, and the sum of a softmax, are computed in F32 from K terms: sqrt(K)
 *   / 4 times 2^-24. A weight of an expert may be rounded: unit^2 / 3. Functions of F32 such as rsqrt and exp may err
 *   in the same direction everywhere: 2^-24. With --arithmetic f16 for TF32, products may be cut off instead of
 *   rounded; then this part is 2^-11 where the inputs of linear layers matter.
 *
 * An operator is `biased` if its slope deviates by more than LOCAL_BIAS_SIGMAS sigma, or if those of single rows (of
 * heads, where a row has heads) deviate, in the root mean square, by more than LOCAL_BIAS_ROWS of their own sigmas.
 * Columns are judged like rows. In 350 clean dumps of the backend of tests/foreign (BF16, F16, F32, products of TF32,
 * FP8 weights; 32,000 operators), the largest deviation was 3.6 sigma. The largest of 32,000 normal numbers is 4.2. The
 * largest root mean square of rows was 2.3 for operators with one row, and 1.9 for those with two or more. That of
 * columns was 1.8.
 *
 * Attention scores and probabilities are not judged. If inputs of linear layers are quantized in groups, nothing is
 * judged. */
#ifndef VB_DIFF_LOCAL_BIAS_H
#define VB_DIFF_LOCAL_BIAS_H

#include "tools/diff/bias.h"
#include "tools/diff/explain.h"

#define LOCAL_BIAS_SIGMAS 6.0
#define LOCAL_BIAS_FEW 8 /* with fewer rows, columns are not judged; with fewer numbers in a row, single rows are not:
                            the few errors that were measured for such a row say too little about its sigma */
#define LOCAL_BIAS_ROWS(rows) (2 + 5 / (double)(rows))

struct local_bias_shape {
    size_t rows, width, parts; /* parts: number of heads in a row; 1: no heads */
    int runs;
    int turns;                 /* whether numbers at the same place of each head have roundings in common */
    double of_row, of_all;     /* the variance of an error that all numbers of a row share, or all numbers; relative */
};

struct local_bias { /* of one operator */
    struct local_bias_shape shape;
    struct bias bias;            /* its rows are the heads of rows */
    double column_sigmas;        /* like bias.row_sigmas, of columns */
    double *along;               /* [runs + 1, rows, parts]: sum((noisy - exact) exact) in a run with roundings at
                                    random; in the last, with rounded weights */
    double *together;            /* [runs + 1]: the same, of all rows that are judged */
    struct bias_sum *columns;   /* [width] */
    double turned[3];
    int32_t sequence, index;     /* of the row that deviates most, in sigmas */
};

struct local_bias *local_bias_open(const struct local_bias_shape *shape);
void local_bias_close(struct local_bias *b);
/* Forgets the runs of the sequence before, whose rows have been added. */
void local_bias_sequence(struct local_bias *b);
/* Remembers run number `run` of a sequence, or number `runs`, in which weights are rounded. noisy, exact [rows,
 * width] */
void local_bias_noise(struct local_bias *b, int run, const double *noisy, const double *exact);
/* Adds a row: x of the dump, y expected; `last` and `inner` [width] are the variances of the rounding of the result,
 * and of those inside of the operator. shared: that of an error that all numbers of the row share, relative. */
void local_bias_row(struct local_bias *b, int32_t sequence, size_t row, const double *x, const double *y,
                    const double *last, const double *inner, double shared);
/* Sets bias and column_sigmas, after all rows were added. Returns whether the operator is biased, and then says how in
 * `why` [room]. */
int local_bias_judge(struct local_bias *b, char *why, size_t room);
/* Says which rows, and which heads or columns, are off. part_name: what is a column, or a head */
void local_bias_where(struct local_bias *b, const char *part_name, char text[EXPLAIN_ROOM]);

#endif
