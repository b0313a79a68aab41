/* tests/checkops_crew.c -- ops/crew: every task of every job runs once, with its own job's function and argument, and what a
 * task wrote the leader reads, and what the leader wrote a task. Nothing here that tasks share is atomic, so that a race is
 * seen by ThreadSanitizer, for which this file is compiled once more with ops/crew.c and its plan alone (CREW_ALONE, tests.mk):
 * threads are pthreads, since libgomp is not instrumented. */
#include "../ops/crew.h"

#ifndef CREW_ALONE
#include "checkops.h"
#define TIMES 10
#else
#define TIMES 1 /* everything is some twenty times slower */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#endif

#include <pthread.h>
#include <stdlib.h>

#define TEST(name) static void name(__attribute__((unused)) void **state)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MOST_THREADS 9
#define PARTS 3
static const int crew_sizes[] = {1, 2, 3, MOST_THREADS}; /* the last is more than the cores of many machines */

/* ---- threads that stand by ---------------------------------------------------------------------------------------- */

struct member {
    struct crew *crew;
    int number;
    pthread_t thread;
};

static void *stand_by(void *arg)
{
    struct member *m = arg;
    crew_stand_by(m->crew, m->number);
    return NULL;
}

struct band {
    struct crew crew;
    struct member members[MOST_THREADS];
    int here; /* the leader among them */
};

static void join_band(struct band *b, int threads)
{
    for (; b->here < threads; b->here++) {
        struct member *m = &b->members[b->here];
        *m = (struct member){.crew = &b->crew, .number = b->here};
        assert_int_equal(pthread_create(&m->thread, NULL, stand_by, m), 0);
    }
}

/* parts: 1, or those of a machine with as many memories, whose processors are none of this one's: nobody moves. */
static void begin_band(struct band *b, int threads, int parts)
{
    static struct topology t;
    static struct placement p;
    memset(t.node_of_cpu, -1, sizeof t.node_of_cpu);
    for (int i = 0; i < parts; i++) {
        t.node_of_cpu[PLACEMENT_CPUS - 1 - i] = i;
        t.memory[i] = (uint64_t)1 << 40;
        for (int j = 0; j < parts; j++)
            t.distance[i][j] = i == j ? 10 : 20;
    }
    if (parts > 1)
        assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, 1 << 30), parts);
    crew_begin(&b->crew, threads, parts > 1 ? &p : NULL);
    b->here = 1;
}

static void end_band(struct band *b)
{
    crew_end(&b->crew);
    for (int i = 1; i < b->here; i++)
        assert_int_equal(pthread_join(b->members[i].thread, NULL), 0);
}

/* ---- jobs --------------------------------------------------------------------------------------------------------- */

#define MOST_TASKS 64

struct job {
    uint32_t number;                       /* written by the leader, read by tasks */
    size_t tasks, longest;
    int threads;
    unsigned times[MOST_TASKS];            /* each by its task alone */
    uint32_t seen[MOST_TASKS], by[MOST_TASKS]; /* the job's number there; which of the two functions it was */
    int thread[MOST_TASKS];
};

static void spin(size_t turns)
{
    for (volatile size_t i = 0; i < turns; i++)
        ;
}

static void note(struct job *j, size_t task, int thread, uint32_t by)
{
    if (task >= MOST_TASKS) {
        fprintf(stderr, "job %u of %zu tasks is given task %zu\n", j->number, j->tasks, task);
        abort(); /* cmocka can only fail on its own thread */
    }
    j->times[task]++;
    j->seen[task] = j->number;
    j->by[task] = by;
    j->thread[task] = thread;
    spin(task % 7 == 3 ? j->longest : j->longest / 64); /* of uneven length */
}

static void even(void *arg, size_t task, int thread) { note(arg, task, thread, 0); }
static void odd(void *arg, size_t task, int thread) { note(arg, task, thread, 1); }

static void check_job(const struct job *j)
{
    for (size_t t = 0; t < MOST_TASKS; t++) {
        if (j->times[t] != (t < j->tasks))
            fail_msg("job %u of %zu tasks, %d threads: task %zu ran %u times", j->number, j->tasks, j->threads, t, j->times[t]);
        if (t < j->tasks && (j->seen[t] != j->number || j->by[t] != j->number % 2))
            fail_msg("job %u: task %zu ran as function %u of job %u", j->number, t, j->by[t], j->seen[t]);
        if (t < j->tasks && (j->thread[t] < 0 || j->thread[t] >= j->threads))
            fail_msg("job %u: task %zu ran on thread %d of %d", j->number, t, j->thread[t], j->threads);
    }
}

/* Jobs take turns with two places and two functions, so that one which is mixed up with the last or the next is seen. */
static void run_jobs(struct band *b, uint32_t first, size_t count, size_t longest)
{
    static struct job places[2]; /* not on the stack: a thread that is late must find them, to be seen */
    for (uint32_t n = first; n < first + count; n++) {
        struct job *j = &places[n / 3 % 2];
        size_t tasks = n % 5 == 0 ? 1 : n % 11 == 0 ? 0 : 2 + n * 7 % (MOST_TASKS - 2); /* more than before, and fewer */
        *j = (struct job){.number = n, .tasks = tasks, .longest = longest, .threads = b->crew.threads};
        size_t one = b->crew.parts == 1 ? tasks : tasks * (n % 4) / 3, two = one + (tasks - one) * (n % 3) / 2; /* or empty */
        crew_run(&b->crew, (const size_t[PARTS + 1]){0, one, two, tasks}, n % 2 ? odd : even, j);
        check_job(j);
    }
}

struct meeting {
    int wanted, here; /* atomic: tasks that wait for each other are not what a crew is for */
    int thread[MOST_THREADS];
};

static void meet(void *arg, size_t task, int thread)
{
    struct meeting *m = arg;
    m->thread[task] = thread;
    __atomic_fetch_add(&m->here, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&m->here, __ATOMIC_RELAXED) < m->wanted)
        usleep(10);
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

TEST(every_task_of_thousands_of_short_jobs_runs_once)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct band b;
        for (int parts = 1; parts <= PARTS; parts += PARTS - 1) {
            begin_band(&b, crew_sizes[i], parts);
            join_band(&b, crew_sizes[i]);
            run_jobs(&b, 1, 2000 * TIMES, 0);
            end_band(&b);
        }
    }
}

TEST(tasks_of_uneven_length_run_once)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct band b;
        begin_band(&b, crew_sizes[i], PARTS);
        join_band(&b, crew_sizes[i]);
        run_jobs(&b, 1, 100 * TIMES, 20000);
        end_band(&b);
    }
}

/* As many tasks as threads, none of which ends before all have begun. */
TEST(every_thread_that_stands_by_takes_a_task_when_there_is_one)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct band b;
        begin_band(&b, crew_sizes[i], 1);
        join_band(&b, crew_sizes[i]);
        for (int times = 0; times < 20; times++) {
            struct meeting m = {.wanted = crew_sizes[i]};
            unsigned seen = 0;
            crew_run(&b.crew, (const size_t[]){0, (size_t)m.wanted}, meet, &m);
            for (int t = 0; t < m.wanted; t++)
                seen |= 1u << m.thread[t];
            assert_int_equal(seen, (1u << m.wanted) - 1);
        }
        end_band(&b);
    }
}

/* A region ends when its tasks are done, by whoever was there. */
TEST(a_job_does_not_wait_for_threads_that_have_not_come)
{
    struct band b;
    begin_band(&b, MOST_THREADS, PARTS);
    run_jobs(&b, 1, 50, 100);
    join_band(&b, 3);
    run_jobs(&b, 51, 100 * TIMES, 100);
    join_band(&b, MOST_THREADS); /* in the middle of things */
    run_jobs(&b, 51 + 100 * TIMES, 100 * TIMES, 100);
    end_band(&b);
}

TEST(a_crew_that_never_works_goes_home)
{
    for (int i = 0; i < 20 * TIMES; i++) {
        struct band b;
        begin_band(&b, 4, 1 + 2 * (i % 2));
        join_band(&b, 4);
        if (i % 2)
            run_jobs(&b, (uint32_t)i, 1, 0);
        end_band(&b);
    }
}

#ifndef CREW_ALONE
/* ---- the operators' side of it: OpenMP's threads, regions that call on regions ------------------------------------- */

struct nest {
    struct op_ctx *cx, *other;
    uint32_t number;
    struct job job;
};

static void rows(void *arg, size_t first, size_t count)
{
    struct job *j = arg;
    for (size_t t = first; t < first + count; t++)
        note(j, t, 0, j->number % 2);
}

static void one_of_each(struct nest *n, struct op_ctx *cx, size_t tasks)
{
    struct job *j = &n->job;
    *j = (struct job){.number = ++n->number, .tasks = tasks, .longest = 200, .threads = cx->threads};
    op_parallel(cx, j->tasks, 1e9, j->number % 2 ? odd : even, j);
    check_job(j);
    *j = (struct job){.number = ++n->number, .tasks = tasks, .longest = 0, .threads = cx->threads};
    op_each_row(cx, j->tasks, 1e9, rows, j);
    check_job(j);
}

static void inner(void *arg)
{
    struct nest *n = arg;
    assert_non_null(n->cx->crew);
    one_of_each(n, n->cx, 17);
}

/* As a round does: its own regions, passes within it that would gather a crew if there were none, and another session's
 * operators with its own scratch. */
static void outer(void *arg)
{
    struct nest *n = arg;
    struct crew *crew = n->cx->crew;
    for (size_t tasks = 2; tasks < 40; tasks += 9) {
        one_of_each(n, n->cx, tasks);
        op_with_crew(n->cx, inner, n);
        assert_ptr_equal(n->cx->crew, crew); /* still there */
        op_share_crew(n->other, n->cx);
        assert_true(n->other->crew == (n->other->threads >= crew->threads ? crew : NULL));
        one_of_each(n, n->other, tasks);
        n->other->crew = NULL;
    }
}

TEST(regions_within_a_crew_and_crews_within_a_crew_run_every_task_once)
{
    static struct nest n;
    for (size_t i = 0; i < COUNT(crew_sizes) - 1; i++)
        for (int times = 0; times < 100; times++) {
            int threads = crew_sizes[i + 1];
            struct op_ctx cx = {.k = scalar_table(), .threads = threads}, other = {.k = cx.k, .threads = threads + (times % 3 - 1)};
            n = (struct nest){.cx = &cx, .other = &other};
            op_with_crew(&cx, outer, &n);
            assert_null(cx.crew);
        }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_of_thousands_of_short_jobs_runs_once),
        cmocka_unit_test(tasks_of_uneven_length_run_once),
        cmocka_unit_test(every_thread_that_stands_by_takes_a_task_when_there_is_one),
        cmocka_unit_test(a_job_does_not_wait_for_threads_that_have_not_come),
        cmocka_unit_test(a_crew_that_never_works_goes_home),
#ifndef CREW_ALONE
        cmocka_unit_test(regions_within_a_crew_and_crews_within_a_crew_run_every_task_once),
#endif
    };
    alarm(600); /* a task that is lost would be waited for for ever */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
