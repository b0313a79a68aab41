#include "crew.h"

#include "../simd/fpenv.h"

#include <assert.h>
#include <sched.h>

#define CLOSED 0xffffffffu   /* no task */
#define PATIENCE 4000        /* pauses, some hundred microseconds, before a core is given to somebody else */

static uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static void wait_a_little(unsigned *waited)
{
    if (++*waited < PATIENCE)
        cpu_pause();
    else
        sched_yield();
}

/* OpenMP's threads come and go, so each one looks where it is: one that was told before is there. */
static void move_to(int cpu)
{
    cpu_set_t set;
    if (sched_getcpu() == cpu)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* one that may not be used any more: the thread stays, the bits too */
}

static void take_place(const struct crew *c, int thread)
{
    if (c->placement)
        move_to(placement_of_thread(c->placement, thread, c->threads).cpu);
}

/* Takes tasks of a part, while they are of this job, until none is left; returns whether there was one. */
static int take_tasks_of(struct crew *c, struct crew_part *part, uint64_t job, int thread)
{
    int some = 0;
    uint64_t ticket = load(&part->ticket);
    for (;;) {
        uint32_t task = (uint32_t)ticket;
        /* acquire: who sees where the next job's tasks end also sees that this job is closed, and takes none of it */
        if (ticket >> 32 != job || task == CLOSED || task >= __atomic_load_n(&part->end, __ATOMIC_ACQUIRE))
            return some;
        /* only while the job is still the one looked at: its fields were written before, and are not before it closes */
        if (!__atomic_compare_exchange_n(&part->ticket, &ticket, ticket + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
        c->work(c->arg, task, thread);
        __atomic_fetch_add(&c->finished, 1, __ATOMIC_RELEASE);
        some = 1;
        ticket = load(&part->ticket);
    }
}

/* The thread's own part first, then the others', nearest first: their threads may be interrupted, or fewer. Parts are opened
 * one by one: while the own one is closed there is nothing to do. */
static int take_tasks(struct crew *c, int thread)
{
    int own = c->placement ? placement_of_thread(c->placement, thread, c->threads).part : 0;
    uint64_t ticket = load(&c->part[own].ticket), job = ticket >> 32;
    if ((uint32_t)ticket == CLOSED)
        return 0;
    int some = take_tasks_of(c, &c->part[own], job, thread);
    for (int i = 0; i < c->parts && c->placement; i++)
        some |= take_tasks_of(c, &c->part[c->placement->order[own][i]], job, thread);
    return some;
}

void crew_begin(struct crew *c, int threads, const struct placement *placement)
{
    c->placement = placement;
    c->parts = placement ? placement->parts : 1;
    c->threads = threads;
    c->over = 0;
    c->finished = 0;
    for (int i = 0; i < c->parts; i++)
        c->part[i] = (struct crew_part){.ticket = CLOSED};
    take_place(c, 0);
}

void crew_run(struct crew *c, const size_t *first, void (*work)(void *arg, size_t task, int thread), void *arg)
{
    uint64_t job = (load(&c->part->ticket) >> 32) + 1;
    unsigned waited = 0;
    assert(__atomic_load_n(&c->finished, __ATOMIC_RELAXED) == c->part[c->parts - 1].end); /* not from within a task */
    for (int i = 0; i < c->parts; i++) {
        __atomic_store_n(&c->part[i].ticket, job << 32 | CLOSED, __ATOMIC_RELAXED);
        __atomic_store_n(&c->part[i].end, first[i + 1], __ATOMIC_RELEASE); /* closed before: see take_tasks_of */
    }
    c->work = work; /* these two are read by who has taken a task, and no task is out */
    c->arg = arg;
    __atomic_store_n(&c->finished, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < c->parts; i++)
        __atomic_store_n(&c->part[i].ticket, job << 32 | first[i], __ATOMIC_RELEASE);
    take_tasks(c, 0);
    while (__atomic_load_n(&c->finished, __ATOMIC_ACQUIRE) < first[c->parts])
        wait_a_little(&waited);
}

void crew_end(struct crew *c) { __atomic_store_n(&c->over, 1, __ATOMIC_RELEASE); }

void crew_stand_by(struct crew *c, int thread)
{
    unsigned waited = 0;
    take_place(c, thread);
    while (!__atomic_load_n(&c->over, __ATOMIC_ACQUIRE)) {
        if (take_tasks(c, thread))
            waited = 0;
        else
            wait_a_little(&waited);
    }
}
