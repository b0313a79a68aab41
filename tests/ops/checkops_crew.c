/* tests/ops/checkops_crew.c -- ops/crew: every task of every job runs once, with its own job's function and argument,
 * and what a task wrote the leader reads, and what the leader wrote a task. Nothing here that tasks share is atomic, so
 * that a race is seen by ThreadSanitizer, for which this file is compiled once more with ops/crew.c and its plan alone
 * (CREW_ALONE, tests.mk). */
#include "ops/crew.h"

#ifdef CREW_ALONE
#define TIMES 1 /* everything is some twenty times slower */
#else
#define TIMES 10
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define TEST(name) static void name(__attribute__((unused)) void **state)
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MOST_THREADS 9
#define PARTS 3
static const int crew_sizes[] = {1, 2, 3, MOST_THREADS}; /* the last is more than the cores of many machines */

/* ---- threads that stand by --------------------------------------------------------------------------------------- */

/* parts: 1, or those of a machine with as many memories, whose processors are none of this one's: nobody moves. */
static struct crew *begin(int threads, int parts, int exact)
{
    static struct topology t;
    static struct placement p;
    static _Alignas(64) char memory[sizeof(struct crew) + MOST_THREADS * sizeof(struct crew_member)];
    memset(t.node_of_cpu, -1, sizeof t.node_of_cpu);
    for (int i = 0; i < parts; i++) {
        t.node_of_cpu[PLACEMENT_CPUS - 1 - i] = i;
        t.memory[i] = (uint64_t)1 << 40;
        for (int j = 0; j < parts; j++)
            t.distance[i][j] = i == j ? 10 : 20;
    }
    if (parts > 1)
        assert_int_equal(placement_plan(&p, &t, PLACEMENT_BIND, 1 << 30), parts);
    assert_true(crew_bytes(threads) <= sizeof memory);
    return crew_open(memory, threads, parts > 1 ? &p : NULL, exact);
}

static struct crew *begin_all(int threads, int parts, int exact)
{
    struct crew *c = begin(threads, parts, exact);
    assert_int_equal(crew_use(c, threads), threads);
    return c;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

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
            fail_msg("job %u of %zu tasks, %d threads: task %zu ran %u times", j->number, j->tasks, j->threads, t,
                     j->times[t]);
        if (t < j->tasks && (j->seen[t] != j->number || j->by[t] != j->number % 2))
            fail_msg("job %u: task %zu ran as function %u of job %u", j->number, t, j->by[t], j->seen[t]);
        if (t < j->tasks && (j->thread[t] < 0 || j->thread[t] >= j->threads))
            fail_msg("job %u: task %zu ran on thread %d of %d", j->number, t, j->thread[t], j->threads);
    }
}

/* Jobs take turns with two places and two functions, so that one which is mixed up with the last or the next is
 * seen. */
static void run_jobs(struct crew *c, uint32_t first, size_t count, size_t longest)
{
    static struct job places[2]; /* not on the stack: a thread that is late must find them, to be seen */
    for (uint32_t n = first; n < first + count; n++) {
        struct job *j = &places[n / 3 % 2];
        size_t tasks = n % 5 == 0 ? 1 : n % 11 == 0 ? 0 : 2 + n * 7 % (MOST_TASKS - 2); /* more than before, and
                                                                                           fewer */
        *j = (struct job){.number = n, .tasks = tasks, .longest = longest, .threads = c->in_use};
        /* or empty */
        size_t one = c->parts == 1 ? tasks : tasks * (n % 4) / 3, two = one + (tasks - one) * (n % 3) / 2;
        crew_run(c, (const size_t[PARTS + 1]){0, one, two, tasks}, n % 2 ? odd : even, j);
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

/* ---- tests ------------------------------------------------------------------------------------------------------- */

TEST(every_task_of_thousands_of_short_jobs_runs_once)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++)
        for (int kind = 0; kind < 4; kind++) {
            struct crew *c = begin_all(crew_sizes[i], kind % 2 ? PARTS : 1, kind / 2);
            run_jobs(c, 1, 1000 * TIMES, 0);
            crew_close(c);
        }
}

TEST(tasks_of_uneven_length_run_once)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct crew *c = begin_all(crew_sizes[i], PARTS, 0);
        run_jobs(c, 1, 100 * TIMES, 20000);
        crew_close(c);
    }
}

/* As many tasks as threads, none of which ends before all have begun. */
TEST(every_thread_that_stands_by_takes_a_task_when_there_is_one)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct crew *c = begin_all(crew_sizes[i], 1, 1);
        for (int times = 0; times < 20; times++) {
            struct meeting m = {.wanted = crew_sizes[i]};
            unsigned seen = 0;
            crew_run(c, (const size_t[]){0, (size_t)m.wanted}, meet, &m);
            for (int t = 0; t < m.wanted; t++)
                seen |= 1u << m.thread[t];
            assert_int_equal(seen, (1u << m.wanted) - 1);
        }
        crew_close(c);
    }
}

/* Tasks so short that the leader alone would have done them all before anybody else looks. */
TEST(where_the_number_is_exact_every_thread_has_a_task_of_every_job)
{
    for (size_t i = 0; i < COUNT(crew_sizes); i++) {
        struct crew *c = begin_all(crew_sizes[i], 1, 1);
        for (uint32_t times = 0; times < 100; times++) {
            static struct job j;
            unsigned seen = 0;
            j = (struct job){.number = times, .tasks = MOST_THREADS + times % 9, .threads = crew_sizes[i]};
            crew_run(c, (const size_t[]){0, j.tasks}, times % 2 ? odd : even, &j);
            check_job(&j);
            for (size_t t = 0; t < j.tasks; t++)
                seen |= 1u << j.thread[t];
            assert_int_equal(seen, (1u << crew_sizes[i]) - 1);
            if (times % 10 == 0)
                usleep(1000); /* members fall asleep */
        }
        crew_close(c);
    }
}

TEST(a_crew_works_with_as_many_threads_as_are_asked_for)
{
    struct crew *c = begin(MOST_THREADS, PARTS, 0);
    uint32_t n = 1;
    for (int round = 0; round < 30 * TIMES; round++) {
        int threads = 1 + round * 5 % MOST_THREADS;
        assert_int_equal(crew_use(c, threads), threads); /* run_jobs sees that no other takes part */
        run_jobs(c, n, 40, round % 3 ? 100 : 50000); /* long enough for members that ought to rest to come */
        n += 40;
    }
    crew_close(c);
}

TEST(a_crew_that_never_works_ends)
{
    for (int i = 0; i < 20 * TIMES; i++) {
        struct crew *c = i % 3 ? begin_all(4, 1 + 2 * (i % 2), i % 5 == 0) : begin(4, 1, 0);
        if (i % 2)
            run_jobs(c, (uint32_t)i, 1, 0);
        crew_close(c);
    }
}

static void interrupted(void *arg, size_t task, int thread)
{
    struct meeting *m = arg;
    m->thread[task] = thread;
    if (!m->wanted) {
        usleep(100); /* so that others come as well */
        return;
    }
    meet(arg, task, thread); /* so that each has one */
    if (thread == 2)
        usleep(100000); /* as if its core were somebody else's */
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The leader waits for it twice in a short time; the jobs after that do without it. */
TEST(a_thread_that_is_often_interrupted_inside_a_task_is_left_out)
{
    struct crew *c = begin_all(3, 1, 0);
    struct meeting m = {.wanted = 3};
    crew_run(c, (const size_t[]){0, 3}, interrupted, &m);
    assert_true(c->left_out == 0 && c->waited > 0.0 && c->member[2].until > 0.0 && c->member[2].until <= now());
    c->member[2].until = now() + 1000.0; /* as if the wait had only just ended, however slow this machine is */
    c->changed = 0;                      /* but it may work */
    m = (struct meeting){.wanted = 3};
    crew_run(c, (const size_t[]){0, 3}, interrupted, &m);
    assert_true(c->left_out >= 1);
    double until = c->member[2].until;
    assert_true(c->member[2].rest >= 16.0 * 0.09); /* less than it slept: the leader begins to wait a little later */
    for (int times = 0; times < 100; times++) {
        m = (struct meeting){0};
        crew_run(c, (const size_t[]){0, MOST_THREADS}, interrupted, &m);
        for (int t = 0; t < MOST_THREADS && now() < until; t++)
            assert_int_not_equal(m.thread[t], 2);
        assert_true(!c->member[2].wanted || now() >= until);
    }
    c->member[2].until = 0.0; /* its time is over */
    c->changed = 1;
    for (int times = 0, came = 0; !came; times++) { /* whenever it finds a task */
        m = (struct meeting){0};
        crew_run(c, (const size_t[]){0, MOST_THREADS}, interrupted, &m);
        for (int t = 0; t < MOST_THREADS; t++)
            came |= m.thread[t] == 2;
    }
    crew_close(c);
}

TEST(at_most_a_seventeenth_of_the_time_is_lost_to_waiting)
{
    assert_true(crew_rest(0.004, 0.0, 0.008, 2) >= 16 * 0.004);
    assert_true(crew_rest(0.004, 0.01, 0.012, 2) < 0.1); /* its rest was over long ago: as at first */
    assert_true(crew_rest(0.004, 1.0, 0.012, 2) >= 2.0); /* it was interrupted again at once */
    assert_true(crew_rest(0.004, 3.0, 0.012, 2) <= 4.0); /* but it is asked again now and then */
    assert_true(crew_rest(1.0, 3.0, 1.5, 2) >= 16.0);
}

/* A member works for t seconds and is then interrupted for w seconds. With n threads, it gains more than it costs if t
 * > (n - 1) w. */
TEST(a_member_that_gains_more_than_it_costs_is_not_left_out)
{
    for (int n = 2; n <= 64; n *= 2) {
        assert_true(crew_rest(0.0005, 1.0, 3 * n * 0.0005, n) <= 0.0);
        assert_true(crew_rest(0.0005, 0.0, n * 0.0005, n) > 0.0);
    }
    assert_true(crew_rest(1.0, 4.0, 1e9, 1024) <= 0.0); /* the first time */
    assert_true(crew_patience(0.0) > 0.0 && crew_patience(1.0) >= 1.0);
}

TEST(the_child_of_a_fork_works_alone)
{
    struct crew *c = begin_all(3, 1, 0);
    run_jobs(c, 1, 20, 0);
    pid_t child = fork();
    if (!child) {
        int alone = crew_use(c, 3) == 1;
        run_jobs(c, 21, 20, 0);
        crew_close(c);
        _exit(!alone);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    run_jobs(c, 21, 20, 0);
    crew_close(c);
}

#ifndef CREW_ALONE /* ThreadSanitizer needs memory of its own */
TEST(where_the_system_refuses_threads_the_leader_works_alone)
{
    pid_t child = fork();
    if (!child) {
        struct crew *c = begin(3, 1, 1);
        setrlimit(RLIMIT_AS, &(struct rlimit){1 << 16, 1 << 16}); /* less than it has: no stack for another thread */
        int alone = crew_use(c, 3) == 1;
        run_jobs(c, 1, 20, 0);
        crew_close(c);
        _exit(!alone);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef CREW_ALONE /* first: libc keeps the stacks of threads that ended */
        cmocka_unit_test(where_the_system_refuses_threads_the_leader_works_alone),
#endif
        cmocka_unit_test(every_task_of_thousands_of_short_jobs_runs_once),
        cmocka_unit_test(tasks_of_uneven_length_run_once),
        cmocka_unit_test(every_thread_that_stands_by_takes_a_task_when_there_is_one),
        cmocka_unit_test(where_the_number_is_exact_every_thread_has_a_task_of_every_job),
        cmocka_unit_test(a_crew_works_with_as_many_threads_as_are_asked_for),
        cmocka_unit_test(a_crew_that_never_works_ends),
        cmocka_unit_test(a_thread_that_is_often_interrupted_inside_a_task_is_left_out),
        cmocka_unit_test(at_most_a_seventeenth_of_the_time_is_lost_to_waiting),
        cmocka_unit_test(a_member_that_gains_more_than_it_costs_is_not_left_out),
        cmocka_unit_test(the_child_of_a_fork_works_alone),
    };
    alarm(600); /* a task that is lost would be waited for for ever */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
