/* engine/draft/cost.h -- remembers how many seconds a pass takes, depending on its number of rows.
 *
 * Measurements of passes with about the same number of rows are averaged. Newer measurements have a larger weight. */
#ifndef VB_DRAFT_COST_H
#define VB_DRAFT_COST_H

#define COST_POINTS 48

struct cost {
    struct cost_point {
        double rows, seconds, weight; /* means, and their weight; a point with weight 0 was not measured */
        unsigned newest;              /* round of the newest measurement */
    } point[COST_POINTS];
};

/* Adds a measurement of round number `round`; later rounds have larger numbers. A time that is much longer than expected is shortened, because another program may have caused
 * it. */
void cost_saw(struct cost *c, unsigned round, double rows, double seconds);
/* Returns the expected seconds. Between two measured points, the result is interpolated. Beyond the last measured point,
 * it is extrapolated from the last two. If only one point was measured, its seconds are returned; if none was measured,
 * 0. */
double cost_of(const struct cost *c, double rows);

#endif
