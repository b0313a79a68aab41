/* ops/parallel.c -- runs tasks in parallel, with a crew or with OpenMP. No other file uses OpenMP. */
#include "ops/crew.h"
#include "ops/op.h"

#include "simd/fpenv.h"

#include <assert.h>
#include <omp.h>
#include <string.h>
#include <time.h>

float *op_take(struct op_ctx *cx, size_t floats)
{
    float *p = (float *)(void *)(cx->scratch + cx->scratch_used);
    cx->scratch_used += op_scratch_bytes(floats);
    assert(cx->scratch_used <= cx->scratch_size);
    return p;
}

struct op_pass op_begin_pass(struct op_ctx *cx, struct pace *pace, size_t rows)
{
    if (!cx->crew)
        return (struct op_pass){0};
    int most = cx->crew->threads < cx->most_threads ? cx->crew->threads : cx->most_threads;
    if (pace->most != most)
        pace_open(pace, most);
    cx->threads = crew_use(cx->crew, cx->crew->exact ? most : pace_threads(pace, rows));
    cx->crew->passes++;
    cx->crew->pass_threads += (size_t)crew_available(cx->crew);
    return (struct op_pass){op_seconds(), rows, pace};
}

void op_end_pass(const struct op_ctx *cx, const struct op_pass *pass)
{
    if (cx->crew)
        pace_took(pass->pace, pass->rows, op_seconds() - pass->begun);
}

/* A parallel region with a placement. The crew numbers the tasks part by part. Within a part, the tasks of all matrices
 * follow each other. */
struct placed {
    const struct placement *placement;
    const size_t *first;
    size_t matrices, of_part[PLACEMENT_NODES + 1];
    void (*work)(void *arg, size_t task, int thread);
    void *arg;
};

/* Sets *begin to the first task of matrix m that belongs to the part, and returns the number of such tasks. */
static size_t share_of(const struct placed *p, int part, size_t m, size_t *begin)
{
    size_t end;
    placement_share(p->placement, part, p->first[m + 1] - p->first[m], begin, &end);
    size_t count = end - *begin;
    *begin += p->first[m];
    return count;
}

static void placed_task(void *arg, size_t index, int thread)
{
    const struct placed *p = arg;
    int part = 0;
    size_t m = 0, begin, count;
    while (index >= p->of_part[part + 1])
        part++;
    index -= p->of_part[part];
    for (; index >= (count = share_of(p, part, m, &begin)); m++)
        index -= count;
    p->work(p->arg, begin + index, thread);
}

static void run_placed(const struct op_ctx *cx, struct placed *p)
{
    size_t begin;
    for (int part = 0; part < p->placement->parts; part++) {
        p->of_part[part + 1] = p->of_part[part];
        for (size_t m = 0; m < p->matrices; m++)
            p->of_part[part + 1] += share_of(p, part, m, &begin);
    }
    crew_run(cx->crew, p->of_part, placed_task, p);
}

static void run_in_crew(const struct op_ctx *cx, const size_t *first, size_t matrices,
                        void (*work)(void *arg, size_t task, int thread), void *arg)
{
    struct placed p = {.placement = cx->crew->placement, .first = first, .matrices = matrices, .work = work,
                       .arg = arg};
    size_t all[] = {0, first[matrices]};
    if (cx->crew->in_use > cx->threads) /* the crew also serves another op_ctx, which uses more threads */
        crew_use(cx->crew, cx->threads);
    if (p.placement)
        run_placed(cx, &p);
    else
        crew_run(cx->crew, all, work, arg);
}

/* Returns how many threads a region uses; less than 2: the tasks run on the caller's thread. */
static int threads_of(const struct op_ctx *cx, size_t tasks, double cost)
{
    int threads = cx->threads;
    double most = cost / (cx->thread_cost > 0.0 ? cx->thread_cost : cx->crew ? OP_CREW_COST : OP_THREAD_COST);
    if ((double)threads > most)
        threads = (int)most;
    return (size_t)threads > tasks ? (int)tasks : threads;
}

static void run_region(const struct op_ctx *cx, const size_t *first, size_t matrices, int threads,
                       void (*work)(void *arg, size_t task, int thread), void *arg)
{
    size_t tasks = first[matrices];
    if (threads <= 1 || cx->crew) {
        struct fpenv env = fpenv_enter();
        if (threads > 1)
            run_in_crew(cx, first, matrices, work, arg);
        for (size_t task = 0; threads <= 1 && task < tasks; task++)
            work(arg, task, 0);
        fpenv_leave(env);
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

/* The tasks of a region whose time a clock measures. */
struct timed {
    struct op_clock *clock;
    void (*work)(void *arg, size_t task, int thread);
    void *arg;
};

static void timed_task(void *arg, size_t task, int thread)
{
    const struct timed *t = arg;
    double begun = op_seconds();
    t->work(t->arg, task, thread);
    t->clock->thread[thread].busy += op_seconds() - begun;
}

void op_parallel_matrices(const struct op_ctx *cx, const size_t *first, size_t matrices, double cost,
                          void (*work)(void *arg, size_t task, int thread), void *arg)
{
    int threads = threads_of(cx, first[matrices], cost);
    if (!cx->clock) {
        run_region(cx, first, matrices, threads, work, arg);
        return;
    }
    struct timed timed = {cx->clock, work, arg};
    struct op_clock_part *part = &cx->clock->part[cx->clock->current];
    double begun = op_seconds();
    run_region(cx, first, matrices, threads, timed_task, &timed);
    part->inside += op_seconds() - begun;
    part->regions += threads > 1;
}

void op_clock_start(struct op_clock *clock, int threads, int part)
{
    memset(clock, 0, sizeof *clock);
    clock->threads = threads;
    clock->current = part;
    clock->since = op_seconds();
}

void op_clock_next(struct op_clock *clock, int part)
{
    struct op_clock_part *p = &clock->part[clock->current];
    double t = op_seconds();
    p->seconds += t - clock->since;
    for (int i = 0; i < clock->threads; i++) {
        p->busy += clock->thread[i].busy;
        clock->thread[i].busy = 0.0;
    }
    clock->current = part;
    clock->since = t;
}

void op_parallel(const struct op_ctx *cx, size_t tasks, double cost, void (*work)(void *arg, size_t task, int thread),
                 void *arg)
{
    size_t first[] = {0, tasks};
    op_parallel_matrices(cx, first, 1, cost, work, arg);
}

int op_foreign_threads(int threads)
{
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}

static size_t groups_of(size_t rows) { return (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP; }

/* With a placement, all tasks have the same size, so that a part's share of the tasks is its share of the rows. */
static size_t equal_tasks(const struct op_ctx *cx, size_t groups)
{
    size_t tasks = (size_t)cx->threads * 4;
    return groups < tasks ? groups : tasks;
}

/* If tasks have different sizes, they are made in rounds. Each round divides half of the remaining rows of the region
 * into one task per thread. So the first tasks are long and read long streams of weights. The last tasks are short, so
 * no thread waits long at the end. */
struct parallel_cut {
    size_t tasks, groups;           /* number of tasks, and of groups of rows, in all rounds so far */
    size_t first_task, first_group; /* of the newest round */
    size_t size;                    /* groups of rows in each task of the newest round */
};

static void next_round(struct parallel_cut *c, size_t threads, size_t groups, size_t after)
{
    size_t left = groups - c->groups, share = threads > 1 ? (left + after + 2 * threads - 1) / (2 * threads) : left;
    c->first_task = c->tasks;
    c->first_group = c->groups;
    c->size = share < left ? share : left;
    for (size_t i = 0; i < threads && c->groups < groups; i++, c->tasks++)
        c->groups += c->size;
}

size_t op_row_tasks(const struct op_ctx *cx, size_t rows, size_t after)
{
    struct parallel_cut c = {0};
    if (cx->placement)
        return equal_tasks(cx, groups_of(rows));
    while (c.groups < groups_of(rows))
        next_round(&c, (size_t)cx->threads, groups_of(rows), groups_of(after));
    return c.tasks;
}

void op_row_range(const struct op_ctx *cx, size_t rows, size_t after, size_t task, size_t *begin, size_t *end)
{
    size_t groups = groups_of(rows), first, last;
    struct parallel_cut c = {0};
    if (cx->placement) {
        first = groups * task / equal_tasks(cx, groups);
        last = groups * (task + 1) / equal_tasks(cx, groups);
    } else {
        while (c.tasks <= task)
            next_round(&c, (size_t)cx->threads, groups, groups_of(after));
        first = c.first_group + (task - c.first_task) * c.size;
        last = first + c.size;
    }
    *begin = first * OP_ROW_GROUP;
    *end = last * OP_ROW_GROUP < rows ? last * OP_ROW_GROUP : rows;
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

void op_each_row(const struct op_ctx *cx, size_t S, double cost, void (*work)(void *arg, size_t first, size_t count),
                 void *arg)
{
    size_t tasks = cx->threads > 1 ? (size_t)cx->threads * 4 : 1;
    struct each_row e = {work, arg, S, S < tasks ? S : tasks};
    struct op_ctx own = *cx;
    if (own.thread_cost <= 0.0)
        own.thread_cost = OP_ROWS_COST;
    op_parallel(&own, e.tasks, cost * (double)S, some_rows, &e);
}
