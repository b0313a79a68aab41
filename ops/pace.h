/* ops/pace.h -- how many threads a pass is worth, found by trying.
 *
 * The bits do not depend on the number of threads, so it may change from pass to pass. Where a pass is long, all of them work.
 * Where it is short, the threads spend much of their time waiting for each other and for the next region: n threads are used
 * if they make the pass at least n/1.3 times as fast as one does, so that the processor time stays below 1.3 times that of
 * one thread; of those n, the fastest. Passes are compared with passes of about as many rows. */
#ifndef VB_PACE_H
#define VB_PACE_H

#include <stddef.h>

#define PACE_CLASSES 12 /* passes of 1, 2, 3-4, 5-8, ... rows */
#define PACE_CHOICES 14 /* numbers of threads: 1, 2, 4, ... 4096, and the most there are */
#define PACE_PASSES 8   /* in a trial of one number of threads */
#define PACE_LONG 2e-3  /* seconds that a long pass takes */
#define PACE_AGAIN 4096 /* passes, before all numbers are tried again */
#define PACE_COST 1.3   /* the most processor time, in times of what one thread takes, that short passes may take */

struct pace_class {
    double time[PACE_CHOICES]; /* seconds a pass, 0: not tried yet */
    double first, second;      /* the shortest passes of this trial */
    size_t passes;             /* in this trial; or since the last one */
    int trial;                 /* which number is tried, from the most down to 1; -1: none */
    int best;
};

struct pace {
    int most, choices;
    struct pace_class of[PACE_CLASSES];
};

/* A pace without history, for at most `threads` threads. */
void pace_open(struct pace *p, int threads);
/* How many threads the next pass of `rows` rows shall have. */
int pace_threads(const struct pace *p, size_t rows);
/* Such a pass took that many seconds. */
void pace_took(struct pace *p, size_t rows, double seconds);

#endif
