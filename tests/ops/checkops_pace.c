/* tests/ops/checkops_pace.c -- ops/pace.h against invented machines: how many threads it settles on, and what trying
 * costs. No clock is read. */
#include "ops/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(name) static void name(__attribute__((unused)) void **state)

/* A pass of `work` seconds on one thread, `fixed` of which no other thread shortens; every n-th is interrupted. */
struct machine {
    double work, fixed;
    int limit; /* more threads than that make it no faster */
    size_t interrupted;
};

static double pass_of(const struct machine *m, int threads, size_t n)
{
    int useful = threads < m->limit ? threads : m->limit;
    double seconds = m->fixed + (m->work - m->fixed) / useful;
    return m->interrupted && n % m->interrupted == 0 ? seconds + 0.012 : seconds;
}

/* The number of threads after `passes` passes of `rows` rows. */
static int settle(struct pace *p, const struct machine *m, size_t rows, size_t passes)
{
    for (size_t n = 1; n <= passes; n++)
        pace_took(p, rows, pass_of(m, pace_threads(p, rows), n));
    return pace_threads(p, rows);
}

static int settled(struct machine m, int threads)
{
    struct pace p;
    pace_open(&p, threads);
    return settle(&p, &m, 1, 1000);
}

TEST(long_passes_take_all_threads)
{
    assert_int_equal(settled((struct machine){.work = 0.070, .limit = 16}, 16), 16);
    assert_int_equal(settled((struct machine){.work = 0.070, .limit = 2}, 16), 16); /* it is not known how busy memory
                                                                                       is */
    assert_int_equal(settled((struct machine){.work = 0.010, .fixed = 0.008, .limit = 8}, 8), 8);
}

TEST(short_passes_take_threads_that_pay)
{
    assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 2}, 2), 2);
    /* 1.33 times as fast */
    assert_int_equal(settled((struct machine){.work = 300e-6, .fixed = 150e-6, .limit = 2}, 2), 1);
    assert_int_equal(settled((struct machine){.work = 300e-6, .fixed = 80e-6, .limit = 2}, 2), 2);  /* 1.58 times */
    assert_int_equal(settled((struct machine){.work = 300e-6, .fixed = 300e-6, .limit = 2}, 2), 1);
    assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 4}, 16), 4);
    assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 1}, 16), 1);
    assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 3}, 3), 3); /* the most there are is tried too */
}

TEST(processor_time_stays_below_its_bound)
{
    for (int fixed = 0; fixed <= 300; fixed += 10) {
        struct machine m = {.work = 300e-6, .fixed = fixed * 1e-6, .limit = 64};
        int n = settled(m, 64);
        assert_true(n * pass_of(&m, n, 1) <= PACE_COST * pass_of(&m, 1, 1));
    }
}

TEST(interruptions_do_not_decide)
{
    for (size_t every = 3; every < 20; every++) {
        assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 2, .interrupted = every}, 2), 2);
        assert_int_equal(settled((struct machine){.work = 300e-6, .limit = 1, .interrupted = every}, 2), 1);
    }
}

TEST(passes_of_many_rows_are_judged_for_themselves)
{
    struct pace p;
    struct machine poor = {.work = 300e-6, .limit = 1}, good = {.work = 900e-6, .limit = 2},
                   heavy = {.work = 0.02, .limit = 2};
    pace_open(&p, 2);
    assert_int_equal(settle(&p, &poor, 1, 100), 1);
    assert_int_equal(settle(&p, &good, 4, 100), 2);
    assert_int_equal(settle(&p, &heavy, 512, 100), 2);
    assert_int_equal(pace_threads(&p, 1), 1);
    assert_int_equal(pace_threads(&p, 3), 2); /* as 4 */
    assert_int_equal(settle(&p, &good, (size_t)1 << 40, 100), 2);
}

/* What was true once is tried again, and trying is rare. */
TEST(it_finds_out_when_the_machine_changes)
{
    struct pace p;
    struct machine alone = {.work = 300e-6, .limit = 1}, together = {.work = 300e-6, .limit = 2};
    size_t others = 0;
    pace_open(&p, 2);
    assert_int_equal(settle(&p, &alone, 1, 3 * PACE_PASSES), 1);
    for (size_t n = 0; n < 100000; n++) {
        others += pace_threads(&p, 1) != 1;
        settle(&p, &alone, 1, 1);
    }
    assert_in_range(others, 1, 300);
    assert_int_equal(settle(&p, &together, 1, 2 * PACE_AGAIN), 2);
}

TEST(one_thread_is_one_thread)
{
    struct pace p;
    pace_open(&p, 1);
    assert_int_equal(settle(&p, &(struct machine){.work = 0.1, .limit = 1}, 1, 100), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_passes_take_all_threads),
        cmocka_unit_test(short_passes_take_threads_that_pay),
        cmocka_unit_test(processor_time_stays_below_its_bound),
        cmocka_unit_test(interruptions_do_not_decide),
        cmocka_unit_test(passes_of_many_rows_are_judged_for_themselves),
        cmocka_unit_test(it_finds_out_when_the_machine_changes),
        cmocka_unit_test(one_thread_is_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
