/* engine/draft/cost.c -- one point for each number of rows up to 16, then four to an octave. */
#include "engine/draft/cost.h"

#include <stddef.h>

#define FORGOTTEN 256 /* if a point was not measured for so many rounds, its old measurements no longer count */

static struct cost_point *point_of(struct cost *c, double rows)
{
    int n = rows < 1.0 ? 0 : rows > 16.0 ? 15 : (int)(rows + 0.5) - 1;
    for (double end = 18.0; n >= 15 && n < COST_POINTS - 1 && rows >= end; end *= 1.189207115)
        n++;
    return &c->point[n];
}

static double seconds_of(const struct cost_point *p)
{
    double sorted[COST_NEWEST];
    unsigned n = 0;
    for (; n < p->count && n < COST_NEWEST; n++) {
        unsigned i = n;
        for (; i > 0 && sorted[i - 1] > p->seconds[n]; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = p->seconds[n];
    }
    return sorted[(n - 1) / 4];
}

/* The measured points around `rows`; beyond the last one, the last two of that side. b is NULL if there are none, a if
 * there is one. */
static void around(const struct cost *c, double rows, const struct cost_point **a, const struct cost_point **b)
{
    *a = *b = NULL;
    for (const struct cost_point *p = c->point; p < c->point + COST_POINTS; p++)
        if (p->count && (!*a || (*b)->rows < rows)) {
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
        return seconds_of(b);
    double first = seconds_of(a), slope = (seconds_of(b) - first) / (b->rows - a->rows), least = 0.01 * first / a->rows;
    int between = rows >= a->rows && rows <= b->rows;
    double drawn = first + (between || slope > least ? slope : least) * (rows - a->rows);
    return drawn > 0.25 * first ? drawn : 0.25 * first;
}

void cost_saw(struct cost *c, unsigned round, double rows, double seconds)
{
    struct cost_point *p = point_of(c, rows);
    if (round - p->newest > FORGOTTEN)
        p->count = 0;
    p->newest = round;
    p->seconds[p->count++ % COST_NEWEST] = seconds;
    p->rows += (rows - p->rows) / (p->count < COST_NEWEST ? (double)p->count : (double)COST_NEWEST);
}
