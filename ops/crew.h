/* ops/crew.h -- a pool of threads, called a crew. One thread leads, and the other members wait for its tasks.
 *
 * A forward pass consists of about a hundred short parallel regions. So members spin while they wait for the next
 * region, and sleep only when none comes for a while. With OpenMP, a region ends only when every thread has arrived.
 * Whenever another program takes the core of one thread, all other threads wait for that thread, usually for a
 * scheduler tick.
 *
 * In a crew, a region ends when its tasks are done. It does not matter which threads have done them. The leader waits
 * only for a member that was interrupted inside a task. If these waits cost more than the member's work gains, the
 * member gets no tasks for a time that is many times as long as the wait. So only a small part of the time is lost to
 * busy cores. If the interruptions are short and rare, as when a server's thread sends tokens after each pass, the
 * member goes on. No bit of the results depends on which thread does a task. */
#ifndef VB_CREW_H
#define VB_CREW_H

#include "ops/placement.h"

#include <pthread.h>
#include <sys/types.h>

struct crew_member {
    _Alignas(64) struct crew *crew;
    int thread; /* number of the member, from 1; the leader is 0 */
    int wanted; /* nonzero if the member may take tasks */
    int asleep, inside; /* inside: nonzero while the member computes a task */
    /* both only with `exact`. own_job: number of the newest job in which a task is reserved for this member. job:
     * number of the newest job in which this member has begun its reserved task */
    uint64_t own_job, job;
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* this member was still inside a task after crew_patience seconds; only the leader uses `late`, `rest` and
     * `until` */
    _Alignas(64) int late;
    /* this member was interrupted and is left out for `rest` seconds, until the monotonic clock shows `until`; `rest`
     * may be 0 */
    double rest, until;
};

struct crew {
    /* The tasks of one crew_run are a job. A job is divided into parts, one for each part of the placement (one part in
     * all if placement is NULL). A thread takes a task by incrementing the part's `ticket` with compare-and-swap. The
     * upper half of a ticket is the job's number, and the lower half is the number of the part's next task. Between two
     * jobs, the leader writes the fields of the next job. Until these fields are complete, the lower half of every
     * ticket is larger than any task number, so that no thread takes a task. */
    struct crew_part {
        _Alignas(64) uint64_t ticket;
        size_t end; /* end of the part's range of tasks */
    } part[PLACEMENT_NODES];
    int parts;
    const struct placement *placement; /* pins threads to processors, and says from which part a thread takes its first
                                          tasks; or NULL */
    _Alignas(64) size_t finished; /* number of tasks of this job that are done */
    int leader_sleeps;
    _Alignas(64) void (*work)(void *arg, size_t task, int thread);
    void *arg;
    size_t own, total; /* total: the number of tasks; with `exact`, each of the tasks [own, total) is reserved for one
                          member */
    int over;          /* nonzero: members shall end */
    int exact, threads, started, in_use; /* threads, started and in_use count the leader too */
    int changed;         /* nonzero: `wanted` of all members has to be computed again */
    double next_return;  /* the earliest `until` of the members that are left out */
    pid_t process;
    size_t passes, pass_threads; /* the number of passes, and the sum of their thread counts; op_begin_pass adds to
                                    both */
    size_t left_out;     /* how many times a member was left out */
    double waited;       /* seconds that the leader has waited for interrupted members */
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct crew_member *member; /* [threads]; member[0] belongs to the leader */
};

#define CREW_MOST_TASKS ((size_t)1 << 31)

/* Returns the size in bytes of the memory that crew_open needs. */
size_t crew_bytes(int threads);
/* Makes a crew of `threads` threads, the caller included, in memory that is 64-byte aligned. A thread is not started
 * before crew_use asks for it. If `exact` is nonzero, no member is ever left out, and every thread does a task of each
 * job that has enough tasks. But if the placement has several parts, a thread may get none. Tests and measurements use
 * `exact` to run on exactly N threads, also where fewer cores are free; so a thread that waits lets other threads run
 * (sched_yield). */
struct crew *crew_open(void *memory, int threads, const struct placement *placement, int exact);
/* Ends and joins the threads. c may be NULL. The caller keeps and frees the memory. */
void crew_close(struct crew *c);

/* Makes threads 0 .. threads - 1 work on the next jobs, and starts the threads among them that do not run yet.
 * `threads` is at most crew.threads. Returns the number of threads that work. This number is smaller than `threads` if
 * the system refuses to start a thread, and 1 in a forked child. */
int crew_use(struct crew *c, int threads);
/* Returns the number of threads that take tasks now: the leader and the members that are not left out. */
int crew_available(const struct crew *c);
/* Calls work(arg, task, thread) for every task in [0, first[parts]), and returns when all are done. The number of tasks
 * is below CREW_MOST_TASKS. The caller takes tasks as thread 0, and the members take tasks too. Part p has tasks
 * first[p] .. first[p + 1] - 1; the threads of part p do these tasks first, and then tasks of other parts. Only the
 * leader may call this, not from two threads at once and not from within a task. */
void crew_run(struct crew *c, const size_t *first, void (*work)(void *arg, size_t task, int thread), void *arg);

/* crew_patience and crew_rest decide how long the leader waits for a member, and for how long the member is then left
 * out. These two functions do not read a clock, so that tests can choose the times. crew_patience returns how many
 * seconds the leader waits before it treats a member as interrupted. `led`: for how many seconds the leader itself has
 * worked on the job. A single task of a member normally takes less time than that. */
double crew_patience(double led);
/* Returns for how many seconds a member is left out, after the leader has waited `waited` seconds for it; 0: it is not
 * left out. The previous rest of this member lasted `rest` seconds (0 if it was not left out after the previous wait)
 * and ended `since` seconds ago. threads: how many threads work, the leader and this member included. */
double crew_rest(double waited, double rest, double since, int threads);

#endif
