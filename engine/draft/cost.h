/* engine/draft/cost.h -- remembers how many seconds a pass takes, depending on its number of rows.
 *
 * Other programs, and CPU caches that are still cold, make single passes longer. So the time for a number of rows is
 * the second shortest of its five newest measurements, or the shortest while there are fewer than five. */
#ifndef VB_DRAFT_COST_H
#define VB_DRAFT_COST_H

#define COST_POINTS 48
#define COST_NEWEST 5

struct cost {
    struct cost_point {
        double rows;                 /* the mean number of rows of the newest measurements */
        double seconds[COST_NEWEST]; /* the newest measurements; number i, counted from 0, is at i % COST_NEWEST */
        unsigned count, newest;      /* number of measurements; round of the newest one */
    } point[COST_POINTS];
};

/* Adds a measurement of round number `round`; later rounds have larger numbers. */
void cost_saw(struct cost *c, unsigned round, double rows, double seconds);
/* Returns the expected seconds. Between two measured points, the result is interpolated. Beyond the last measured
 * point, it is extrapolated from the last two. If only one point was measured, its seconds are returned; if none was
 * measured,
 * 0. */
double cost_of(const struct cost *c, double rows);

#endif
