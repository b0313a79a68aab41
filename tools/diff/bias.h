/* tools/diff/bias.h -- finds differences that are too regular to be rounding, although each of them is as small as a
 * rounding.
 *
 * For a tap with the numbers x in A and y in B, the slope is sum(x y) / sum(y^2), and the norm ratio is |x| / |y|. A
 * wrong factor, for example the wrong eps in a norm, makes both of them larger or smaller than 1. Independent roundings
 * e = x - y make the slope 1 + sum(e y) / |y|^2, where the terms of the sum have random signs. A part of e that is
 * orthogonal to y makes the norm ratio larger, but not the slope. In a norm, which divides by |x|, it makes the slope
 * smaller, but not the norm ratio. So roundings explain a number between the two, and the deviation of a tap is the
 * distance between 1 and the nearer of the two if both are on the same side of 1.
 *
 * sigma is the standard deviation of the slope under rounding. It has three parts, which are added in squares.
 *   The roundings of the tap itself are independent in all numbers. Their part is estimated from the differences
 *   themselves: sum(e^2 y^2) / (sum(y^2))^2.
 *   Errors of the input are inherited by all numbers of the row, so they are not independent. Attention and the next
 *   layer pass them on to other rows. Their part is measured: each perturbed run of the reference (bound.c) has its own
 *   slopes, and these are scaled from half an ulp of F32 to the arithmetic of the dump. There are two estimates, and
 *   the larger one counts. One takes the rows as independent, and has as many samples as rows times runs. The other one
 *   takes the rows of a run together, as they are. Engines compute the factor of a norm or of a softmax in F32, from a
 *   sum of K terms, and all numbers of the row share its error. Terms that are added one after the other make an error
 *   of about sqrt(K) / 4 times 2^-24.
 *
 * A tap is `biased` if its deviation is more than BIAS_SIGMAS sigma, or if the deviations of its rows, which may have
 * different signs, are more than BIAS_ROW_SIGMAS times as large as their sigmas (roots of the sums of squares). With
 * few rows, sigma itself is known less well. On 168 clean dumps of another engine (BF16, F16, F32, products of TF32,
 * weights in FP8; 15,000 taps), the largest deviation was 4.7 sigma, in BF16 alone 3.1, and that of rows 2.8 sigma.
 * Errors that all rows share are not in sigma: if one side rounds the weights and the other does not, very many rows
 * may make a bias of it.
 *
 * Without a model, or if inputs of linear layers are quantized, inherited errors are not measured, and no tap is
 * judged. */
#ifndef VB_DIFF_BIAS_H
#define VB_DIFF_BIAS_H

#include <stddef.h>
#include <stdint.h>

#define BIAS_SIGMAS 7.0
#define BIAS_ROW_SIGMAS(rows) (3 + 10 / (double)(rows))

struct bias_row { /* sums over the numbers of a row, or of a head of it */
    int32_t sequence, index, part; /* part: the head, or 0 */
    double xx, xy, yy;
    double own; /* sum((x - y)^2 y^2) */
    /* only of operators alone (local_bias.c): sum((x - y) y^3); sum(y^4); the variance of sum((x - y) y) that the
     * rounding of the result makes; the same for the roundings inside of the operator */
    double third, fourth, last, inner;
};

struct bias_sum { /* of a row, head or column */
    double along, square;        /* sum((x - y) y); sum(y^2) */
    double own, third, fourth;   /* as in bias_row */
    double known;                /* the least variance of `along` */
};

struct bias { /* of a tap */
    struct bias_row *rows;
    size_t count, room;
    int judged;             /* whether the members below are set */
    double slope, norm;     /* both minus 1 */
    double sigma, sigmas;   /* sigmas: deviation / sigma */
    double row_sigmas;      /* the same for single rows, on average */
};

struct bias_noise; /* the slopes of perturbed runs */
struct comparison;
struct tap;
struct bounds;

/* Adds a row of n numbers: x of A and y of B. Numbers that are not finite are left out. Returns the row, or NULL if it
 * has no slope. */
struct bias_row *bias_add(struct bias *b, int32_t sequence, int32_t index, const double *x, const double *y, size_t n);
/* The distance of a slope and a norm ratio from 1, if both are on the same side of it: that of the nearer one.
 * Arguments minus 1. */
double bias_deviation(double slope, double norm);
/* The variance of `along`: sum((e - b y)^2 y^2), where e = x - y, and b is the slope of e on y; at least `known`. */
double bias_variance(const struct bias_sum *s);
/* Marks the sums that are further from 0 than rounding explains: by more standard deviations than any of n would be by
 * chance. */
void bias_mark(const struct bias_sum *sums, size_t n, unsigned char *off);
/* Frees what bias_add made for these taps. */
void bias_close(struct tap *taps, size_t count);
/* Remembers the slopes of a perturbed run. *noise is NULL before the first one. */
void bias_learn(struct bias_noise **noise, const struct comparison *r, int run);
void bias_forget(struct bias_noise *noise);
/* Sets `bias` of all taps, and gives the verdict BIASED to taps whose difference is within the bound. */
void bias_judge(struct comparison *r, const struct bounds *bounds);

#endif
