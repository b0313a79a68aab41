/* ops/clock.h -- measures how the time of a pass is divided among its parts, for `verbatim bench --plan`.
 *
 * At each moment, time belongs to one part: a number below OP_CLOCK_PARTS whose meaning the caller chooses
 * (enum pass_part in engine/pass/forward.h). op_enter (ops/op.h) begins a part. op_parallel measures the tasks of every
 * parallel region, so that the time in which threads compute can be told from the time in which they wait. Without a
 * clock, op_enter and a region cost one branch more. */
#ifndef VB_CLOCK_H
#define VB_CLOCK_H

#include <stddef.h>
#include <time.h>

/* Returns the seconds since a fixed moment in the past. */
static inline double op_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define OP_CLOCK_PARTS 16
#define OP_CLOCK_THREADS 256

struct op_clock {
    struct op_clock_part {
        double seconds; /* elapsed time in this part */
        double inside;  /* the share of it inside parallel regions */
        double busy;    /* time inside tasks, summed over all threads */
        size_t regions; /* number of parallel regions that used more than one thread */
    } part[OP_CLOCK_PARTS];
    int threads;  /* at most OP_CLOCK_THREADS */
    int current;  /* the part that time belongs to now */
    double since; /* when that part began */
    struct {
        _Alignas(64) double busy; /* time inside tasks of the current part */
    } thread[OP_CLOCK_THREADS];
};

/* Sets all times to 0, and begins a part. `threads` is the largest number of threads of a region. */
void op_clock_start(struct op_clock *clock, int threads, int part);
/* Ends the current part, and begins another. ops/parallel.c has both functions. */
void op_clock_next(struct op_clock *clock, int part);

#endif
