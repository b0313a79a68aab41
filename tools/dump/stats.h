/* tools/dump/stats.h -- statistics of the rows of a dump, instead of the numbers: `dump --stats`.
 *
 * The file has JSON Lines. The first line is {"format": "verbatim-stats", "version": 1}. Each other line describes a
 * tensor, with the keys of a manifest, `shape` and `dtype`, and these lists with one item for each row:
 *   row_sha256   the first 16 hexadecimal digits of the SHA-256 of the row's bytes (little-endian, in the dtype)
 *   min, max, mean, rms, projections, nan, inf
 *                the first five describe the row's finite numbers; `nan` and `inf` count the others, and are left out
 *                if all are 0
 *   top          of logits only: [id, value, id, value], the two largest numbers; the smaller id first if they are
 *                equal
 * Integers, and rows of at most STATS_WHOLE numbers, have the key `values` (lists of numbers, or "NaN", "Infinity",
 * "-Infinity") instead of min, max, mean, rms, projections, nan, inf and top.
 *
 * A row of n numbers x has STATS_PROJECTIONS projections, sum(s[i] x[i]) / sqrt(n), where s[i] is +1 or -1. s[i] of
 * projection p is -1 if bit p of output number i of splitmix64 (state 0) is 1:
 *   z = (i + 1) 0x9e3779b97f4a7c15;  z = (z ^ z >> 30) 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) 0x94d049bb133111eb;  z =
 *                                    z ^ z >> 31
 * If the numbers of two rows differ by d, the projections differ by sum(s[i] d[i]) / sqrt(n), whose standard deviation
 * over random signs is the root mean square of d, and which is more than 6 times as large with a probability below 4e-8
 * (Hoeffding). So a projection moves about as far, relative to the rms of the row, as the numbers themselves. Any error
 * that is not orthogonal to all signs shows. */
#ifndef VB_STATS_H
#define VB_STATS_H

#include <jansson.h>
#include <stddef.h>

#define STATS_WHOLE 16
#define STATS_PROJECTIONS 4

struct stats_row {
    double min, max, mean, rms, projection[STATS_PROJECTIONS];
    size_t nans, infinities;
    double top[4]; /* id, value, id, value */
    int has_top;
    char sha256[17];
};

/* Computes everything but sha256. n > 0. */
void stats_of(const double *x, size_t n, struct stats_row *s);
/* The first 16 digits of the SHA-256. */
void stats_hash(const void *row, size_t bytes, char sha256[17]);
/* Adds the keys to a line of a manifest. x [rows, n]: the numbers; `data`: the same in their dtype, whose size is
 * `item` bytes. */
void stats_add(json_t *line, const double *x, const void *data, size_t rows, size_t n, size_t item, int integers,
               int is_logits);

#endif
