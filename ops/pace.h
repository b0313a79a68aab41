/* ops/pace.h -- chooses the number of threads for each forward pass, by measuring passes.
 *
 * The bits do not depend on the number of threads, so it may change from pass to pass. A long pass uses all threads. In
 * a short pass, threads spend much of their time waiting for each other and for the next parallel region. So n threads
 * are considered for short passes only if a pass with n threads is at least n/1.3 times as fast as with one thread.
 * This limits the total processor time to 1.3 times the time of one thread. Among these numbers n, the one with the
 * fastest passes is used. Each pass is compared with passes of about as many rows. */
#ifndef VB_PACE_H
#define VB_PACE_H

#include <stddef.h>

#define PACE_CLASSES 12 /* classes of passes by number of rows: 1, 2, 3-4, 5-8, ... */
#define PACE_CHOICES 14 /* the numbers of threads that are tried: 1, 2, 4, ... 4096, and the maximum */
#define PACE_PASSES 8   /* number of passes for which each number of threads is tried */
#define PACE_LONG 2e-3  /* a pass that takes more seconds than this is long */
#define PACE_AGAIN 4096 /* after this many passes, every number of threads is tried again */
#define PACE_COST 1.3   /* limit for the processor time of short passes, relative to one thread */

struct pace_class {
    double time[PACE_CHOICES]; /* seconds per pass with each number of threads; 0 if not tried yet */
    double first, second;      /* the times of the two fastest passes of the present trial */
    size_t passes;             /* number of passes in the present trial; between trials: passes since the last trial */
    /* index in `time` of the number of threads being tried, from the largest index down to 0; -1: no trial */
    int trial;
    int best;
};

struct pace {
    int most, choices;
    struct pace_class of[PACE_CLASSES];
};

/* Initialises *p without any measurement, for at most `threads` threads. */
void pace_open(struct pace *p, int threads);
/* Returns the number of threads for the next pass of `rows` rows. */
int pace_threads(const struct pace *p, size_t rows);
/* Records that a pass of `rows` rows took `seconds` seconds. */
void pace_took(struct pace *p, size_t rows, double seconds);

#endif
