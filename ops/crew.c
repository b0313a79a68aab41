#include "ops/crew.h"
#include "ops/clock.h"

#include "simd/fpenv.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CLOSED 0xffffffffu   /* in the lower half of a ticket: there is no task */
#define MEMBER_SPINS 100e-6  /* seconds without a task before a member sleeps; longer than the time between two
                                passes */
#define LEADER_SPINS 50e-6   /* seconds of waiting before the leader sleeps */
#define SHORTEST_MISS 50e-6  /* seconds; many times as long as the last task of a short region */
#define PAUSES 64            /* pauses between two reads of the clock, one or two microseconds */
/* Address space for a thread's stack. Most of it stays unused, but a build without optimisation has frames of more than
 * a megabyte, and ThreadSanitizer needs a part. */
#define STACK ((size_t)8 << 20)

static uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

/* Pins the calling thread to a processor, also if it runs there already: without that, it could leave the processor
 * later. */
static void move_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* this fails if the processor may not be used any more; the thread then
                                               stays where it is, and results do not change */
}

static void take_place(const struct crew *c, int thread)
{
    if (c->placement)
        move_to(placement_of_thread(c->placement, thread, c->threads).cpu);
}

/* With `exact`, a job waits for each of its threads, and there may be more of them than free cores. A thread that waits
 * then gives its core to the one that it waits for, instead of spinning until the scheduler takes the core away. */
static void let_others_run(const struct crew *c)
{
    if (c->exact)
        sched_yield();
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static void end_task(struct crew *c)
{
    __atomic_fetch_add(&c->finished, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&c->leader_sleeps, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&c->lock);
        pthread_cond_signal(&c->done);
        pthread_mutex_unlock(&c->lock);
    }
}

/* Does tasks of a part until the part has no more tasks of this job. Returns 1 if the thread did a task, else 0. */
static int take_tasks_of(struct crew *c, struct crew_part *part, uint64_t job, int thread)
{
    int some = 0;
    uint64_t ticket = load(&part->ticket);
    for (;;) {
        uint32_t task = (uint32_t)ticket;
        /* These loads are acquire loads. So a thread that sees the next job's `end` or `wanted` also sees that this job
         * is closed, and takes no task of it */
        if (ticket >> 32 != job || task == CLOSED || task >= __atomic_load_n(&part->end, __ATOMIC_ACQUIRE) ||
            !__atomic_load_n(&c->member[thread].wanted, __ATOMIC_ACQUIRE))
            return some;
        /* succeeds only if the ticket still belongs to this job, whose fields do not change until it is closed */
        if (!__atomic_compare_exchange_n(&part->ticket, &ticket, ticket + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
        __atomic_store_n(&c->member[thread].inside, 1, __ATOMIC_RELAXED);
        c->work(c->arg, task, thread);
        __atomic_store_n(&c->member[thread].inside, 0, __ATOMIC_RELAXED);
        end_task(c);
        some = 1;
        ticket = load(&part->ticket);
    }
}

/* With `exact`, does the task of this job that is reserved for the thread. The job cannot end before this task is done,
 * so the job's fields do not change. */
static int take_own_task(struct crew *c, uint64_t job, int thread)
{
    struct crew_member *m = &c->member[thread];
    if (m->job == job || __atomic_load_n(&m->own_job, __ATOMIC_ACQUIRE) != job)
        return 0;
    m->job = job;
    c->work(c->arg, c->own + (size_t)thread, thread);
    end_task(c);
    return 1;
}

/* Does tasks of the thread's own part, then tasks of the other parts, the nearest part first. The threads of another
 * part may be interrupted, or the part may have fewer threads. The leader opens the parts one after the other; while
 * the own part is closed, there is nothing to do. */
static int take_tasks(struct crew *c, int thread)
{
    int own = c->placement ? placement_of_thread(c->placement, thread, c->threads).part : 0;
    uint64_t ticket = load(&c->part[own].ticket), job = ticket >> 32;
    if ((uint32_t)ticket == CLOSED)
        return 0;
    int some = c->exact ? take_own_task(c, job, thread) : 0;
    some |= take_tasks_of(c, &c->part[own], job, thread);
    for (int i = 0; i < c->parts && c->placement; i++)
        some |= take_tasks_of(c, &c->part[c->placement->order[own][i]], job, thread);
    return some;
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static int is_open(const struct crew *c)
{
    for (int i = 0; i < c->parts; i++)
        if ((uint32_t)__atomic_load_n(&c->part[i].ticket, __ATOMIC_SEQ_CST) <
            __atomic_load_n(&c->part[i].end, __ATOMIC_RELAXED))
            return 1;
    return 0;
}

static int may_sleep(struct crew_member *m)
{
    struct crew *c = m->crew;
    if (__atomic_load_n(&c->over, __ATOMIC_SEQ_CST))
        return 0;
    if (__atomic_load_n(&m->own_job, __ATOMIC_SEQ_CST) != m->job)
        return 0;
    return !__atomic_load_n(&m->wanted, __ATOMIC_SEQ_CST) || !is_open(c);
}

static void sleep_until_woken(struct crew_member *m)
{
    pthread_mutex_lock(&m->lock);
    __atomic_store_n(&m->asleep, 1, __ATOMIC_SEQ_CST);
    if (!may_sleep(m)) /* the leader may have changed something before it could see that this member sleeps */
        __atomic_store_n(&m->asleep, 0, __ATOMIC_RELAXED);
    while (__atomic_load_n(&m->asleep, __ATOMIC_RELAXED))
        pthread_cond_wait(&m->wake, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

static void wake(struct crew_member *m)
{
    if (!__atomic_load_n(&m->asleep, __ATOMIC_SEQ_CST))
        return;
    pthread_mutex_lock(&m->lock);
    __atomic_store_n(&m->asleep, 0, __ATOMIC_RELAXED);
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

static void *stand_by(void *arg)
{
    struct crew_member *m = arg;
    struct crew *c = m->crew;
    unsigned pauses = 0;
    double since = 0.0;
    fpenv_enter();
    take_place(c, m->thread);
    while (!__atomic_load_n(&c->over, __ATOMIC_ACQUIRE)) {
        if (take_tasks(c, m->thread)) {
            since = 0.0;
            continue;
        }
        cpu_pause();
        if (++pauses % PAUSES && __atomic_load_n(&m->wanted, __ATOMIC_RELAXED))
            continue;
        let_others_run(c);
        double t = op_seconds();
        if (since <= 0.0)
            since = t;
        if (t - since > MEMBER_SPINS || !__atomic_load_n(&m->wanted, __ATOMIC_RELAXED)) {
            sleep_until_woken(m);
            since = 0.0;
        }
    }
    return NULL;
}

static int start(struct crew_member *m)
{
    pthread_attr_t attr;
    sigset_t all, before;
    if (pthread_attr_init(&attr))
        return -1;
    sigfillset(&all);
    pthread_attr_setstacksize(&attr, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals of the program are for the program's own threads */
    int failed = pthread_create(&m->id, &attr, stand_by, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

/* ---- the leader -------------------------------------------------------------------------------------------------- */

size_t crew_bytes(int threads) { return sizeof(struct crew) + (size_t)threads * sizeof(struct crew_member); }

struct crew *crew_open(void *memory, int threads, const struct placement *placement, int exact)
{
    struct crew *c = memory;
    memset(c, 0, crew_bytes(threads));
    c->placement = placement;
    c->parts = placement ? placement->parts : 1;
    c->threads = threads;
    c->exact = exact;
    c->started = c->in_use = 1;
    c->process = getpid();
    c->member = (struct crew_member *)(void *)(c + 1);
    c->member[0].wanted = 1;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->done, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < c->parts; i++)
        c->part[i].ticket = CLOSED;
    for (int i = 1; i < threads; i++) {
        c->member[i].crew = c;
        c->member[i].thread = i;
        pthread_mutex_init(&c->member[i].lock, NULL);
        pthread_cond_init(&c->member[i].wake, NULL);
    }
    return c;
}

void crew_close(struct crew *c)
{
    if (!c || getpid() != c->process) /* a forked child does not have the crew's threads */
        return;
    __atomic_store_n(&c->over, 1, __ATOMIC_SEQ_CST);
    for (int i = 1; i < c->started; i++)
        wake(&c->member[i]);
    for (int i = 1; i < c->started; i++)
        pthread_join(c->member[i].id, NULL);
    for (int i = 1; i < c->threads; i++) {
        pthread_mutex_destroy(&c->member[i].lock);
        pthread_cond_destroy(&c->member[i].wake);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->done);
}

int crew_use(struct crew *c, int threads)
{
    if (getpid() != c->process)
        threads = 1;
    while (c->started < threads && !start(&c->member[c->started]))
        c->started++;
    threads = threads < c->started ? threads : c->started;
    c->changed |= threads != c->in_use;
    c->in_use = threads;
    take_place(c, 0);
    return threads;
}

int crew_available(const struct crew *c)
{
    int available = 1;
    double t = op_seconds();
    for (int i = 1; i < c->in_use; i++)
        available += t >= c->member[i].until;
    return available;
}

double crew_patience(double led) { return led > SHORTEST_MISS ? led : SHORTEST_MISS; }

#define SHORTEST_REST 16.0 /* shortest rest, as a multiple of the wait; so at most 1/17 of the time is lost */
#define LONGEST_REST 4.0   /* limit in seconds for doubled rests; SHORTEST_REST times the wait may be longer */
#define WORTH 2.0          /* a member is not left out if the loss by its waits is below its gain divided by this
                              number */

/* With n threads, a member's gain is a share of about 1/n of the work. If the member is interrupted again soon after
 * its rest, the next rest is twice as long. */
double crew_rest(double waited, double rest, double since, int threads)
{
    if (since > WORTH * threads * waited)
        return 0.0;
    double least = SHORTEST_REST * waited, twice = since < rest ? 2.0 * rest : 0.0;
    if (twice > LONGEST_REST)
        twice = LONGEST_REST;
    return twice > least ? twice : least;
}

/* Computes `wanted` of all members. May be called only between two jobs, when no thread does a task (see
 * take_tasks_of). */
static void decide_who_is_wanted(struct crew *c)
{
    double t = op_seconds();
    c->changed = 0;
    c->next_return = 1e300;
    for (int i = 1; i < c->started; i++) {
        struct crew_member *m = &c->member[i];
        int wanted = i < c->in_use && t >= m->until;
        if (i < c->in_use && !wanted && m->until < c->next_return)
            c->next_return = m->until;
        __atomic_store_n(&m->wanted, wanted, __ATOMIC_RELEASE);
    }
}

static void note_who_is_late(struct crew *c)
{
    for (int i = 1; i < c->in_use; i++)
        c->member[i].late = __atomic_load_n(&c->member[i].inside, __ATOMIC_RELAXED);
}

static void leave_out_the_late(struct crew *c, double waited)
{
    double t = op_seconds();
    c->waited += waited;
    for (int i = 1; i < c->in_use; i++) {
        struct crew_member *m = &c->member[i];
        if (!m->late)
            continue;
        m->rest = crew_rest(waited, m->rest, t - m->until, c->in_use);
        m->until = t + m->rest;
        c->left_out += m->rest > 0.0;
        c->changed = 1;
    }
}

static int all_done(const struct crew *c) { return __atomic_load_n(&c->finished, __ATOMIC_SEQ_CST) >= c->total; }

/* Sleeps until all tasks are done or the monotonic clock shows `until`. */
static void sleep_until(struct crew *c, double until)
{
    struct timespec t = {.tv_sec = (time_t)until, .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    pthread_mutex_lock(&c->lock);
    __atomic_store_n(&c->leader_sleeps, 1, __ATOMIC_SEQ_CST);
    while (!all_done(c) && pthread_cond_timedwait(&c->done, &c->lock, &t) != ETIMEDOUT)
        ;
    __atomic_store_n(&c->leader_sleeps, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&c->lock);
}

static void wait_for_others(struct crew *c, double begun)
{
    for (unsigned i = 0; i < PAUSES && !all_done(c); i++)
        cpu_pause();
    if (all_done(c))
        return;
    double since = op_seconds(), waited = 0.0, patience = crew_patience(since - begun);
    while (!all_done(c) && waited < LEADER_SPINS) {
        for (unsigned i = 0; i < PAUSES && !all_done(c); i++)
            cpu_pause();
        let_others_run(c);
        waited = op_seconds() - since;
    }
    if (!all_done(c))
        sleep_until(c, since + patience);
    if (all_done(c))
        return;
    note_who_is_late(c);
    while (!all_done(c))
        sleep_until(c, op_seconds() + 1.0);
    if (!c->exact)
        leave_out_the_late(c, op_seconds() - since);
}

/* Returns how many tasks at the end of a job are reserved, each for one thread. */
static size_t own_tasks(const struct crew *c, size_t total)
{
    if (!c->exact || c->parts > 1)
        return 0;
    return (size_t)c->in_use < total ? (size_t)c->in_use : total;
}

void crew_run(struct crew *c, const size_t *first, void (*work)(void *arg, size_t task, int thread), void *arg)
{
    uint64_t job = (load(&c->part->ticket) >> 32) + 1;
    double begun = op_seconds();
    assert(all_done(c)); /* fails if crew_run is called from within a task */
    size_t total = first[c->parts], own = total - own_tasks(c, total);
    for (int i = 0; i < c->parts; i++) {
        size_t end = first[i + 1] < own ? first[i + 1] : own;
        __atomic_store_n(&c->part[i].ticket, job << 32 | CLOSED, __ATOMIC_RELAXED);
        __atomic_store_n(&c->part[i].end, end, __ATOMIC_RELEASE); /* the part was closed in the line above: see
                                                                     take_tasks_of */
    }
    if (c->changed || begun >= c->next_return)
        decide_who_is_wanted(c);
    c->work = work; /* only a thread that has taken a task reads these fields, and now no thread has one */
    c->arg = arg;
    c->own = own;
    c->total = total;
    __atomic_store_n(&c->finished, 0, __ATOMIC_RELAXED);
    for (size_t i = 0; i < total - own; i++)
        __atomic_store_n(&c->member[i].own_job, job, __ATOMIC_SEQ_CST);
    for (int i = 0; i < c->parts; i++)
        __atomic_store_n(&c->part[i].ticket, job << 32 | first[i], __ATOMIC_SEQ_CST);
    for (int i = 1; i < c->in_use; i++)
        if (__atomic_load_n(&c->member[i].wanted, __ATOMIC_RELAXED))
            wake(&c->member[i]);
    take_tasks(c, 0);
    wait_for_others(c, begun);
}
