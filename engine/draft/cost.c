/* engine/draft/cost.c -- one point for each number of rows up to 16, then four to an octave. */
#include "engine/draft/cost.h"

#include <stddef.h>

#define FADE 0.9
#define ROUNDS_OF_HALF 16.0 /* after so many without a measurement, what was measured before counts half */
#define OUTLIER 2.0 /* times what was expected: a busy neighbour */

static struct cost_point *point_of(struct cost *c, double rows)
{
    int n = rows < 1.0 ? 0 : rows > 16.0 ? 15 : (int)(rows + 0.5) - 1;
    for (double end = 18.0; n >= 15 && n < COST_POINTS - 1 && rows >= end; end *= 1.189207115)
        n++;
    return &c->point[n];
}

/* The measured points around `rows`; beyond the last one, the last two of that side. b is NULL if there are none, a if there is one. */
static void around(const struct cost *c, double rows, const struct cost_point **a, const struct cost_point **b)
{
    *a = *b = NULL;
    for (const struct cost_point *p = c->point; p < c->point + COST_POINTS; p++)
        if (p->weight > 0.0 && (!*a || (*b)->rows < rows)) {
            *a = *b;
            *b = p;
        }
}

double cost_of(const struct cost *c, double rows)
{
    const struct cost_point *a, *b;
    around(c, rows, &a, &b);
    if (!b)
        return 0.0;
    if (!a || b->rows <= a->rows)
        return b->seconds;
    double slope = (b->seconds - a->seconds) / (b->rows - a->rows), least = 0.01 * a->seconds / a->rows;
    double drawn = a->seconds + (slope > least ? slope : least) * (rows - a->rows);
    if (rows >= a->rows && rows <= b->rows)
        drawn = a->seconds + slope * (rows - a->rows);
    return drawn > 0.25 * a->seconds ? drawn : 0.25 * a->seconds;
}

void cost_saw(struct cost *c, unsigned round, double rows, double seconds)
{
    struct cost_point *p = point_of(c, rows);
    const struct cost_point *a, *b;
    around(c, rows, &a, &b);
    double most = OUTLIER * cost_of(c, rows);
    if (b && p->weight == 0.0 && rows > b->rows) /* at most in proportion to its rows */
        most = OUTLIER * b->seconds * rows / b->rows;
    seconds = most > 0.0 && seconds > most ? most : seconds;
    p->weight = FADE * p->weight / (1.0 + (double)(round - p->newest) / ROUNDS_OF_HALF) + 1.0;
    p->newest = round;
    p->seconds += (seconds - p->seconds) / p->weight;
    p->rows += (rows - p->rows) / p->weight;
}
