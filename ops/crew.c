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

/* Takes tasks of the job whose number `ticket` has, until none is left; returns whether there was one. */
static int take_tasks(struct crew *c, uint64_t ticket, int thread)
{
    int some = 0;
    for (;;) {
        uint32_t task = (uint32_t)ticket;
        /* acquire: who sees the next job's number of tasks also sees that this job is closed, and takes none of it */
        if (task == CLOSED || task >= __atomic_load_n(&c->tasks, __ATOMIC_ACQUIRE))
            return some;
        /* only while the job is still the one looked at: its fields were written before, and are not before it closes */
        if (!__atomic_compare_exchange_n(&c->ticket, &ticket, ticket + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
        c->work(c->arg, task, thread);
        __atomic_fetch_add(&c->finished, 1, __ATOMIC_RELEASE);
        some = 1;
        ticket = load(&c->ticket);
    }
}

void crew_begin(struct crew *c, int threads) { *c = (struct crew){.ticket = CLOSED, .threads = threads}; }

void crew_run(struct crew *c, size_t tasks, void (*work)(void *arg, size_t task, int thread), void *arg)
{
    uint64_t job = (load(&c->ticket) >> 32) + 1;
    unsigned waited = 0;
    assert(__atomic_load_n(&c->finished, __ATOMIC_RELAXED) == c->tasks); /* not from within a task */
    __atomic_store_n(&c->ticket, job << 32 | CLOSED, __ATOMIC_RELAXED);
    __atomic_store_n(&c->tasks, tasks, __ATOMIC_RELEASE); /* closed before: see take_tasks */
    c->work = work; /* these two are read by who has taken a task, and no task is out */
    c->arg = arg;
    __atomic_store_n(&c->finished, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&c->ticket, job << 32, __ATOMIC_RELEASE);
    take_tasks(c, job << 32, 0);
    while (__atomic_load_n(&c->finished, __ATOMIC_ACQUIRE) < tasks)
        wait_a_little(&waited);
}

void crew_end(struct crew *c) { __atomic_store_n(&c->over, 1, __ATOMIC_RELEASE); }

void crew_stand_by(struct crew *c, int thread)
{
    unsigned waited = 0;
    while (!__atomic_load_n(&c->over, __ATOMIC_ACQUIRE)) {
        if (take_tasks(c, load(&c->ticket), thread))
            waited = 0;
        else
            wait_a_little(&waited);
    }
}
