/* tools/diff/scales.c -- decides whether rounding explains why the two sides have different scales for the codes of an
 * indexer's query.
 *
 * The scale is 2^ceil(log2(a / 448)), where a is the largest number of the query after the Hadamard transform
 * (docs/ARITHMETIC.md, rule 9). If a / 448 is near a power of two, rounding decides between two scales. The weight of
 * the head contains the scale, so it is then twice or half as large on one side; the codes are half or twice as large,
 * and the scores stay what they are within the rounding of codes.
 *
 * The range of possible scales of a side follows from its query, self_attn.indexer.q. The transform makes log2(D) sums
 * and a product, and the query itself may have been rounded when it was stored. Each of these roundings changes a
 * number of the result by at most u D^-1/2 sum |q|. If a side has no query, the query of the other side is used, whose
 * numbers may differ by the bound of that tap; the transform does not change the length of a vector. */
#include "tools/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 1e-4 /* if a is smaller, this is used instead */
#define MOST_CODE 448.0

struct scale_range {
    int least, most; /* exponents of two */
};

static int exponent_of(double a) { return (int)ceil(log2(fmax(a, LEAST) / MOST_CODE)); }

static void hadamard(double *x, size_t D)
{
    for (size_t n = 1; n < D; n *= 2)
        for (size_t i = 0; i < D; i++)
            if (!(i & n)) {
                double a = x[i], b = x[i + n];
                x[i] = a + b;
                x[i + n] = a - b;
            }
    for (size_t i = 0; i < D; i++)
        x[i] /= sqrt((double)D);
}

/* q [D]: one head of a query; the function overwrites it. moved: how much its numbers may differ from those of the
 * side. */
static struct scale_range range_of(double *q, size_t D, int transforms, double unit, double moved)
{
    double sum = 0, most = 0;
    for (size_t i = 0; i < D; i++)
        sum += fabs(q[i]);
    if (transforms)
        hadamard(q, D);
    for (size_t i = 0; i < D; i++)
        most = fmax(most, fabs(q[i]));
    moved += transforms ? (log2((double)D) + 2) * unit * sum / sqrt((double)D) : unit * most;
    return (struct scale_range){exponent_of(most - moved), exponent_of(most + moved)};
}

static const struct diff_series *query_of(const struct diff_side *side, const struct diff_series *weights,
                                          const struct diff_row *row, const struct diff_row **found)
{
    char name[NAMING_ROOM];
    size_t hint = 0, stem = (size_t)(strrchr(weights->name, '.') - weights->name);
    snprintf(name, sizeof name, "%.*s.q", (int)stem, weights->name);
    const struct diff_series *q = diff_find(side, name, weights->depth);
    int fits = q && !q->is_stats && q->width && q->width % weights->width == 0;
    *found = fits ? diff_partner(q, row, &hint) : NULL;
    return *found ? q : NULL;
}

/* x and y are the weight of a head on side 0 and 1. Returns k if rounding explains that the scale of side 0 is 2^k
 * times that of side 1, else 0. */
static int scale_flip(const struct diff_side *const sides[2], const struct bounds *b, const struct diff_series *weights,
                      const struct diff_row *row, size_t head, double x, double y)
{
    const struct diff_series *q[2];
    const struct diff_row *rows[2];
    struct scale_range range[2];
    int codes = sides[0]->index_codes | sides[1]->index_codes;
    double unit = diff_unit(b ? b->arithmetic : DIFF_F32), ratio = x / y;
    if (codes & INDEX_WITHOUT_CODES || !(ratio > 0) || !isfinite(ratio) || fabs(log2(ratio)) < 0.5)
        return 0;
    for (int i = 0; i < 2; i++)
        q[i] = query_of(sides[i], weights, row, &rows[i]);
    for (int i = 0; i < 2; i++) {
        int from = q[i] ? i : !i;
        double moved = 0, *numbers;
        if (!q[from] || (!q[i] && !b))
            return 0;
        size_t width = q[from]->width, D = width / weights->width;
        numbers = cli_must(calloc(width, sizeof *numbers));
        diff_numbers(q[from], rows[from], numbers);
        for (size_t k = 0; k < width && from != i; k++)
            moved = fmax(moved, fabs(numbers[k]));
        moved *= from != i ? bounds_of(b, q[from], q[from]->dtype) : 0;
        range[i] = range_of(numbers + head * D, D, !(codes & INDEX_WITHOUT_HADAMARD), unit, moved);
        free(numbers);
    }
    int k = (int)lrint(log2(ratio));
    return k >= range[0].least - range[1].most && k <= range[0].most - range[1].least ? k : 0;
}

void diff_scale_flips(struct tap *t, const struct diff_side *a, const struct diff_side *b, const struct bounds *bounds,
                      const struct diff_row *row, double *x, const double *y, size_t n)
{
    for (size_t head = 0; head < n; head++) {
        int k = scale_flip((const struct diff_side *const[]){a, b}, bounds, t->a, row, head, x[head], y[head]);
        if (!k)
            continue;
        if (t->verdict < TIE_FLIP) {
            snprintf(t->why, sizeof t->why,
                     "index %d, head %zu: the scale of the query's codes is 2^%d times as large in A, and its largest "
                     "number is "
                     "as near to a power of two as rounding explains",
                     row->index, head, k);
            t->verdict = TIE_FLIP;
        }
        t->flips++;
        x[head] = ldexp(x[head], -k);
    }
}
