/* ops/crew.h -- the threads of a session: one leads, the others stand by and take tasks from it.
 *
 * A pass is a hundred short regions, so the others wait for the next one actively, and sleep when none comes. OpenMP would end
 * each region when every thread has come by; a thread whose core a neighbour uses would then hold up all the others, a clock
 * tick at a time. Here a region ends when its tasks are done, by whoever was there. The leader waits only for a thread
 * that was interrupted inside a task, and then leaves that thread out for a time that is many times the wait: so what is lost
 * to busy cores stays a small part of the whole. The bits do not depend on who computes what. */
#ifndef VB_CREW_H
#define VB_CREW_H

#include "ops/placement.h"

#include <pthread.h>
#include <sys/types.h>

struct crew_member {
    _Alignas(64) struct crew *crew;
    int thread; /* its number, from 1; the leader is 0 */
    int wanted; /* it may take tasks */
    int asleep, inside; /* inside a task */
    uint64_t own_job, job; /* exact: the newest job that has a task for this member alone; the newest whose it has begun */
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Alignas(64) int late; /* from here on the leader's alone: it was inside a task when the leader began to wait */
    double rest, until;    /* how long it is left out, and until when, in seconds of the monotonic clock */
};

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
    int leader_sleeps;
    _Alignas(64) void (*work)(void *arg, size_t task, int thread);
    void *arg;
    size_t own, total; /* exact: tasks [own, total) belong to one member each */
    int over;          /* members end */
    int exact, threads, started, in_use; /* all of them count the leader */
    int changed;         /* who is wanted has to be decided again */
    double next_return;  /* the earliest `until` of those left out */
    pid_t process;
    size_t passes, pass_threads; /* of ops/parallel.c: passes, and their threads added up */
    size_t left_out;     /* how often a member was */
    double waited;       /* seconds that the leader waited for interrupted members */
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct crew_member *member; /* [threads]; [0] is not used */
};

#define CREW_MOST_TASKS ((size_t)1 << 31)

/* The memory, 64-byte aligned, that crew_open wants. */
size_t crew_bytes(int threads);
/* No thread is started before it is used. exact: nobody is left out, and in a job with at least as many tasks as threads every
 * thread does one (where memory has no places): for tests and measurements that want N threads, and not the N that are best. */
struct crew *crew_open(void *memory, int threads, const struct placement *placement, int exact);
/* Ends and joins its threads; NULL is allowed. The memory stays the caller's. */
void crew_close(struct crew *c);

/* The jobs to come are for threads [0, threads); at most crew.threads. Starts those that are missing, and returns how many
 * there are: fewer when the system refuses a thread, or in the child of a fork. */
int crew_use(struct crew *c, int threads);
/* How many of them are not left out at present, the leader among them. */
int crew_available(const struct crew *c);
/* Calls work(arg, task, thread) for every task in [0, first[parts]), below CREW_MOST_TASKS, here (as thread 0) and wherever
 * somebody stands by; returns when all are done. Part p's tasks are first[p] .. first[p + 1] - 1: its own threads' first,
 * then anybody's. For the leader, one at a time, and not from within a task. */
void crew_run(struct crew *c, const size_t *first, void (*work)(void *arg, size_t task, int thread), void *arg);

/* What decides about those who are late, apart from the clock so that tests can ask. How many seconds the leader waits, after
 * `led` seconds of tasks of its own, before a member counts as interrupted: none of them has a longer task than it had. */
double crew_patience(double led);
/* How long a member is left out that the leader waited for, and that came back `since` seconds ago from `rest` seconds. */
double crew_rest(double waited, double rest, double since);

#endif
