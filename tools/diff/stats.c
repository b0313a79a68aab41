/* tools/diff/stats.c -- compares rows of which one side has only statistics (tools/dump/stats.h).
 *
 * The other side's statistics are computed from its numbers, rounded to the dtype of the statistics if that is less
 * precise. Rows with the same hash are identical. Otherwise the root mean square and the projections are compared,
 * relative to the larger root mean square.
 *
 * Their bound is found like the bound of numbers (bound.c). With a model, the largest relative distance of these
 * statistics in perturbed runs is measured, and multiplied as for numbers. Without a model, the same estimate is used:
 * errors with a relative size of sqrt(k) u move a projection by about as much, and 6 times the standard deviation of
 * sqrt(k) u / sqrt(3) is within A_PRIORI_TIMES sqrt(k) u. The other terms of the bound are limits of single numbers: an
 * error of at most u |x| in each number moves a projection by more than 6 times u / sqrt(3) times the root mean square
 * with a probability below 4e-8. So these terms are multiplied by PROJECTED_TIMES = 4. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"
#include "tools/dump/stats.h"

/* Rounds the numbers of a row to a dtype, and computes the hash of the result. */
static void round_row(double *x, size_t n, enum diff_dtype dtype, size_t item, char sha256[17])
{
    char *bytes = cli_must(malloc(n * item + 1)), *to = bytes;
    for (size_t i = 0; i < n; i++, to += item) {
        x[i] = diff_round(dtype, x[i]);
        uint64_t bits = diff_bits(dtype, x[i]);
        memcpy(to, &bits, item);
    }
    stats_hash(bytes, n * item, sha256);
    free(bytes);
}

int diff_stats(const struct diff_series *series, const struct diff_row *row, const struct diff_series *like,
               struct stats_row *s)
{
    char sha256[17] = "";
    struct diff_series plain = *series;
    if (like && series->layout && like->layout && strcmp(series->layout, like->layout))
        return 0;
    if (series->is_stats) {
        *s = *(const struct stats_row *)(const void *)row->data;
        return 1;
    }
    plain.rope = plain.block = 0; /* the numbers in their order in the file */
    double *x = cli_must(malloc((row->width + 1) * sizeof *x));
    diff_numbers(&plain, row, x);
    if (like && like->dtype < series->dtype)
        round_row(x, row->width, like->dtype, like->item, sha256);
    else if (like && like->dtype == series->dtype && like->item == series->item)
        stats_hash(row->data, row->width * series->item, sha256);
    stats_of(x, row->width, s);
    strcpy(s->sha256, sha256);
    free(x);
    return 1;
}

double diff_stats_distance(const struct stats_row *a, const struct stats_row *b, double typical, int *which)
{
    double size = fmax(fmax(a->rms, b->rms), typical), most = fabs(a->rms - b->rms);
    *which = -1;
    for (int p = 0; p < STATS_PROJECTIONS; p++)
        if (fabs(a->projection[p] - b->projection[p]) > most) {
            most = fabs(a->projection[p] - b->projection[p]);
            *which = p;
        }
    return most > 0 ? most / size : 0;
}

double diff_stats_typical(const struct diff_series *s)
{
    double *rms = cli_must(malloc((s->count + 1) * sizeof *rms));
    struct stats_row of_row;
    for (size_t i = 0; i < s->count; i++) {
        diff_stats(s, &s->rows[i], NULL, &of_row);
        rms[i] = of_row.rms;
    }
    qsort(rms, s->count, sizeof *rms, diff_by_number);
    double median = s->count ? rms[s->count / 2] : 0;
    free(rms);
    return median;
}

int diff_stats_row(struct tap *t, const struct diff_row *row, const struct diff_row *other, int judged,
                   struct stats_row *x, struct stats_row *y)
{
    const struct diff_series *like = t->a->is_stats ? t->a : t->b;
    int which = -1;
    if (!diff_stats(t->a, row, like, x) || !diff_stats(t->b, other, like, y)) {
        snprintf(t->why, sizeof t->why, "the RoPE dimensions have another order, and there are only statistics");
        return 0;
    }
    int same = *x->sha256 && !strcmp(x->sha256, y->sha256),
        finite = x->nans == y->nans && x->infinities == y->infinities;
    double distance = same ? 0 : diff_stats_distance(x, y, t->typical, &which);
    t->rows++;
    t->numbers += t->a->width;
    t->equal += same ? t->a->width : 0;
    if (same)
        return 1;
    struct diff_place place = {row->sequence, row->index, row->token, DIFF_NO_COLUMN,
                               which < 0 ? x->rms : x->projection[which], which < 0 ? y->rms : y->projection[which], 0,
                               0, 0};
    t->max_abs = fmax(t->max_abs, fabs(place.a - place.b));
    t->relative = fmax(t->relative, distance);
    t->first = t->differs ? t->first : place;
    t->differs = 1;
    if (!judged || (finite && distance <= t->bound))
        return 1;
    t->worst = t->breaks ? t->worst : place;
    t->breaks = 1;
    if (!finite)
        diff_structural(t, "index %d: A has %zu NaN and %zu infinities, B has %zu and %zu", row->index, x->nans,
                        x->infinities, y->nans, y->infinities);
    else
        diff_structural(t, "index %d: the %s is %.3g times the row's root mean square away, rounding explains %.3g",
                        row->index, which < 0 ? "root mean square" : "projection", distance, t->bound);
    return 1;
}

void diff_stats_move(struct tap *t, const struct diff_row *row, const struct diff_row *other)
{
    struct stats_row x, y;
    int which;
    diff_stats(t->a, row, NULL, &x);
    diff_stats(t->b, other, NULL, &y);
    t->projected = fmax(t->projected, diff_stats_distance(&x, &y, 0, &which));
}
