/* tests/ops/checkops_clock.c -- ops/clock.h: time goes to the part that was entered, and the time of tasks is told from
 * waiting. Tasks last at least as long as they say. A busy machine makes them longer, so each check has one side only,
 * or holds for any time. */
#include "ops/crew.h"
#include "ops/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define TEST(name) static void name(__attribute__((unused)) void **state)
#define TASK 0.002 /* seconds */
#define TASKS 6

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void last(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        ;
}

static void task(void *arg, size_t number, int thread)
{
    (void)number, (void)thread;
    last(*(const double *)arg);
}

/* Part 1: a region; part 2: code of one thread alone; part 3: no time at all; part 1 again. */
static void three_parts(struct op_ctx *cx, struct op_clock *clock)
{
    double seconds = TASK;
    op_clock_start(clock, cx->threads, 0);
    op_enter(cx, 1);
    op_parallel(cx, TASKS, 1e9, task, &seconds);
    op_enter(cx, 2);
    last(2 * TASK);
    op_enter(cx, 3);
    op_enter(cx, 1);
    op_parallel(cx, TASKS, 1e9, task, &seconds);
    op_clock_next(clock, 0);
}

static void check(const struct op_clock *clock, int threads, double whole)
{
    const struct op_clock_part *p = clock->part;
    double sum = 0;
    for (int i = 0; i < OP_CLOCK_PARTS; i++) {
        sum += p[i].seconds;
        assert_true(p[i].seconds >= p[i].inside && p[i].busy <= threads * p[i].inside);
    }
    assert_true(sum <= whole);
    assert_true(p[1].busy >= 2 * TASKS * TASK && p[1].seconds >= 2 * TASKS * TASK / threads);
    assert_int_equal(p[1].regions, threads > 1 ? 2 : 0);
    assert_true(p[2].seconds >= 2 * TASK && p[2].inside <= 0 && p[2].busy <= 0 && p[2].regions == 0);
    assert_true(p[3].inside <= 0 && p[3].busy <= 0);
}

TEST(time_belongs_to_the_part_that_was_entered_with_a_crew_and_without)
{
    for (int threads = 1; threads <= 3; threads++)
        for (int with_crew = 0; with_crew <= (threads > 1); with_crew++) {
            struct op_clock clock;
            struct op_ctx cx = {.threads = threads, .most_threads = threads, .clock = &clock};
            void *memory = NULL;
            assert_int_equal(posix_memalign(&memory, 64, crew_bytes(threads)), 0);
            if (with_crew) {
                cx.crew = crew_open(memory, threads, NULL, 1);
                crew_use(cx.crew, threads);
            }
            double begun = now();
            three_parts(&cx, &clock);
            check(&clock, threads, now() - begun);
            crew_close(cx.crew);
            free(memory);
        }
}

TEST(a_region_too_small_for_two_threads_wakes_none)
{
    struct op_clock clock;
    struct op_ctx cx = {.threads = 2, .most_threads = 2, .clock = &clock};
    double seconds = TASK;
    op_clock_start(&clock, 2, 0);
    op_parallel(&cx, TASKS, 1, task, &seconds);
    op_clock_next(&clock, 0);
    assert_true(clock.part[0].busy >= TASKS * TASK && clock.part[0].seconds >= TASKS * TASK &&
                clock.part[0].regions == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_belongs_to_the_part_that_was_entered_with_a_crew_and_without),
        cmocka_unit_test(a_region_too_small_for_two_threads_wakes_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
