/* tests/ops/checkops_rows.c -- op_each_row: few rows begin no parallel region, many rows do, and every row is computed
 * once. */
#include "ops/crew.h"
#include "ops/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_ROWS 512
#define THREADS 2

static void count(void *arg, size_t first, size_t rows)
{
    int *times = arg;
    for (size_t s = first; s < first + rows; s++)
        times[s]++;
}

/* Returns the number of parallel regions that S rows of `cost` multiplications begin. */
static uint64_t regions_of(struct op_ctx *cx, size_t S, double cost)
{
    int times[MOST_ROWS] = {0};
    uint64_t before = cx->crew->part->ticket >> 32;
    op_each_row(cx, S, cost, count, times);
    for (size_t s = 0; s < S; s++)
        if (times[s] != 1)
            fail_msg("row %zu of %zu was computed %d times", s, S, times[s]);
    return (cx->crew->part->ticket >> 32) - before;
}

static void few_rows_begin_no_region_and_many_do(__attribute__((unused)) void **state)
{
    static _Alignas(64) char memory[sizeof(struct crew) + THREADS * sizeof(struct crew_member)];
    struct op_ctx cx = {.most_threads = THREADS};
    cx.crew = crew_open(memory, THREADS, NULL, 0);
    cx.threads = crew_use(cx.crew, THREADS);
    for (size_t S = 1; S <= 16; S++)
        if (regions_of(&cx, S, 8.0 * 1024)) /* eight experts' outputs of 1024 numbers */
            fail_msg("%zu rows begin a region", S);
    assert_int_equal(regions_of(&cx, MOST_ROWS, 8.0 * 1024), cx.threads > 1);
    cx.thread_cost = 1.0;
    assert_int_equal(regions_of(&cx, 2, 8.0 * 1024), cx.threads > 1);
    crew_close(cx.crew);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows_begin_no_region_and_many_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
