/* ops/crew.h -- threads that stand by during a pass, and take tasks from the one that leads.
 *
 * A pass is a hundred short regions. OpenMP ends each when every thread has come by, so that a thread which a busy neighbour
 * keeps off its core holds up all the others, a clock tick at a time: measured, 2 tokens a second instead of 50. Here
 * a region ends when its tasks are done, by whoever was there; only a thread that is interrupted inside a task is waited for. */
#ifndef VB_CREW_H
#define VB_CREW_H

#include "placement.h"

struct crew {
    /* A job's tasks are in parts, one where memory has no places. Who takes a task counts its part's `ticket` up: the job's
     * number in the upper half, the part's next task in the lower one. Between two jobs, while the fields below are
     * written, the lower half is beyond all tasks. */
    struct crew_part {
        _Alignas(64) uint64_t ticket;
        size_t end; /* of its tasks */
    } part[PLACEMENT_NODES];
    int parts;
    const struct placement *placement; /* threads are pinned, and begin with their own part; or NULL */
    _Alignas(64) size_t finished; /* tasks of this job that are done */
    _Alignas(64) void (*work)(void *arg, size_t task, int thread);
    void *arg;
    int over; /* the pass */
    int threads; /* the leader among them */
};

#define CREW_MOST_TASKS ((size_t)1 << 31)

void crew_begin(struct crew *c, int threads, const struct placement *placement);
/* Calls work(arg, task, thread) for every task in [0, first[parts]), below CREW_MOST_TASKS, here (as thread 0) and wherever
 * somebody stands by; returns when all are done. Part p's tasks are first[p] .. first[p + 1] - 1: its own threads' first,
 * then anybody's. For the leader, and not from within a task. */
void crew_run(struct crew *c, const size_t *first, void (*work)(void *arg, size_t task, int thread), void *arg);
/* Sends the others home. */
void crew_end(struct crew *c);

/* The others' life: takes tasks until the pass is over. */
void crew_stand_by(struct crew *c, int thread);

#endif
