/* ops/parallel.c -- the only file that knows OpenMP. */
#include "op.h"

#include "../simd/fpenv.h"

#include <assert.h>
#include <omp.h>
#include <sched.h>

float *op_take(struct op_ctx *cx, size_t floats)
{
    float *p = (float *)(void *)(cx->scratch + cx->scratch_used);
    cx->scratch_used += op_scratch_bytes(floats);
    assert(cx->scratch_used <= cx->scratch_size);
    return p;
}

struct region {
    const struct placement *placement;
    const size_t *first;
    size_t matrices;
    void (*work)(void *arg, size_t task, int thread);
    void *arg;
};

struct counter {
    _Alignas(64) size_t next; /* a cache line of its own */
};

/* OpenMP's threads come and go between regions, so each one looks where it is: a thread that was told before is there. */
static void move_to(int cpu)
{
    cpu_set_t set;
    if (sched_getcpu() == cpu)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set); /* one that may not be used any more: the thread stays, the bits too */
}

/* The tasks of matrix m that are a part's; none behind the last matrix. */
static size_t share_of(const struct region *r, int part, size_t m, size_t *begin)
{
    size_t end;
    if (m == r->matrices)
        return 0;
    placement_share(r->placement, part, r->first[m + 1] - r->first[m], begin, &end);
    size_t count = end - *begin;
    *begin += r->first[m];
    return count;
}

/* A part's tasks, matrix by matrix. `done` counts those that any thread has taken. */
static void work_for(const struct region *r, int part, struct counter *done, int thread)
{
    size_t m = 0, before = 0, begin = 0, count = share_of(r, part, 0, &begin);
    for (;;) {
        size_t n = __atomic_fetch_add(&done->next, 1, __ATOMIC_RELAXED);
        for (; m < r->matrices && n - before >= count; count = share_of(r, part, ++m, &begin))
            before += count;
        if (m == r->matrices)
            return;
        r->work(r->arg, begin + n - before, thread);
    }
}

/* The thread's own part first, then the others': their threads may have been interrupted, or be fewer. */
static void work_by_place(const struct region *r, struct counter *done, int thread, int threads)
{
    struct place here = placement_of_thread(r->placement, thread, threads);
    move_to(here.cpu);
    for (int i = 0; i < r->placement->parts; i++) {
        int part = r->placement->order[here.part][i];
        work_for(r, part, &done[part], thread);
    }
}

/* `of`: the threads that the session has, of which this region wakes `threads`. */
static void run_by_place(const struct region *r, int threads, int of)
{
    struct counter done[PLACEMENT_NODES];
    for (int i = 0; i < r->placement->parts; i++)
        done[i].next = 0;
#pragma omp parallel num_threads(threads)
    {
        struct fpenv env = fpenv_enter();
        work_by_place(r, done, omp_get_thread_num(), of);
        fpenv_leave(env);
    }
}

void op_parallel_matrices(const struct op_ctx *cx, const size_t *first, size_t matrices, double cost,
                          void (*work)(void *arg, size_t task, int thread), void *arg)
{
    int threads = cx->threads;
    size_t tasks = first[matrices];
    double most = cost / (cx->thread_cost > 0.0 ? cx->thread_cost : OP_THREAD_COST);
    if ((double)threads > most)
        threads = (int)most;
    if ((size_t)threads > tasks)
        threads = (int)tasks;
    if (threads <= 1) {
        struct fpenv env = fpenv_enter();
        for (size_t task = 0; task < tasks; task++)
            work(arg, task, 0);
        fpenv_leave(env);
        return;
    }
    if (cx->placement) {
        struct region r = {cx->placement, first, matrices, work, arg};
        run_by_place(&r, threads, cx->threads);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        struct fpenv env = fpenv_enter();
#pragma omp for schedule(dynamic, 1) nowait
        for (size_t task = 0; task < tasks; task++)
            work(arg, task, omp_get_thread_num());
        fpenv_leave(env);
    }
}

void op_parallel(const struct op_ctx *cx, size_t tasks, double cost, void (*work)(void *arg, size_t task, int thread),
                 void *arg)
{
    size_t first[] = {0, tasks};
    op_parallel_matrices(cx, first, 1, cost, work, arg);
}

/* Several tasks per thread, so that a thread that a neighbour interrupts does not hold up the others. */
size_t op_row_tasks(const struct op_ctx *cx, size_t rows)
{
    size_t groups = (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP, tasks = cx->threads > 1 ? (size_t)cx->threads * 4 : 1;
    return groups < tasks ? groups : tasks;
}

void op_row_range(const struct op_ctx *cx, size_t rows, size_t task, size_t *begin, size_t *end)
{
    size_t groups = (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP, tasks = op_row_tasks(cx, rows);
    *begin = groups * task / tasks * OP_ROW_GROUP;
    *end = groups * (task + 1) / tasks * OP_ROW_GROUP;
    if (*end > rows)
        *end = rows;
}

struct each_row {
    void (*work)(void *arg, size_t first, size_t count);
    void *arg;
    size_t S, tasks;
};

static void some_rows(void *arg, size_t task, int thread)
{
    struct each_row *e = arg;
    size_t first = e->S * task / e->tasks, end = e->S * (task + 1) / e->tasks;
    (void)thread;
    if (end > first)
        e->work(e->arg, first, end - first);
}

void op_each_row(const struct op_ctx *cx, size_t S, double cost, void (*work)(void *arg, size_t first, size_t count), void *arg)
{
    size_t tasks = cx->threads > 1 ? (size_t)cx->threads * 4 : 1;
    struct each_row e = {work, arg, S, S < tasks ? S : tasks};
    op_parallel(cx, e.tasks, cost * (double)S, some_rows, &e);
}
