/* tests/cuda/checkcuda_rows.c -- operators that compute each row alone, on an emulated device. */
#include "ops/rmsnorm.h"
#include "tests/cuda/checkcuda.h"

static void rmsnorm_has_the_bits_of_the_cpu(__attribute__((unused)) void **state)
{
    static const size_t sizes[] = {1, 31, 32, 64, 1000, 1024, 1025, 5 * 1024 + 33, 70 * 1024 + 1};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t S = 1; S <= 3; S += 2) {
                size_t mark = guard_count, D = sizes[i], ldx = D + 3, ldy = D + 1;
                struct op_ctx cx = {.k = scalar_table(), .op = &operators_cpu, .threads = 1, .most_threads = 1};
                float *x = with_twin(d, random_floats(S * ldx, &seed), S * ldx * sizeof(float)),
                      *w = with_twin(d, random_floats(D, &seed), D * sizeof(float));
                float *want = guarded_floats(S * ldy),
                      *got = with_twin(d, guarded_floats(S * ldy), S * ldy * sizeof(float));
                CASE("rmsnorm D=%zu S=%zu order=%d", D, S, order_);
                cx.op->rmsnorm(&cx, want, ldy, x, ldx, w, S, D, 1e-6f);
                cx = device_context(d, 0);
                cx.op->rmsnorm(&cx, got, ldy, x, ldx, w, S, D, 1e-6f);
                fetch(d, got, S * ldy * sizeof(float));
                check_same_bits(got, ldy, want, ldy, S, D);
                check_untouched(got, ldy, S, D);
                drop(d, x), drop(d, w), drop(d, got);
                release_to(mark);
            }
}

/* Nobody asks before a call whether a member is there. */
TEST(tables_have_no_holes)
{
    const struct operators *const tables[] = {&operators_cpu, &operators_cuda};
    for (size_t t = 0; t < COUNT(tables); t++)
        for (size_t i = 0; i < sizeof(struct operators); i += sizeof(void (*)(void))) {
            void (*member)(void);
            memcpy(&member, (const char *)tables[t] + i, sizeof member);
            if (!member)
                fail_msg("member %zu of table %s is NULL", i / sizeof member, tables[t]->name);
        }
}

TEST(more_blocks_than_a_gpu_has_are_an_error)
{
    static const size_t grids[][3] = {{1, 1, 1}, {1, DEVICE_MOST_BLOCKS + 1, 1}, {1, 1, DEVICE_MOST_BLOCKS + 1},
                                      {(size_t)1 << 32, 1, 1}};
    for (size_t i = 0; i < COUNT(grids); i++) {
        struct device *d = open_checked_device();
        device_run(d, add, grids[i][0], grids[i][1], grids[i][2], .n = 0);
        if ((device_wait(d) != 0) != (i > 0) || (i && !strstr(device_failure(d), "compute fewer tokens in a pass")))
            fail_msg("%zu x %zu x %zu blocks: %s", grids[i][0], grids[i][1], grids[i][2],
                     device_failure(d) ? device_failure(d) : "no failure");
        device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_have_no_holes),
                                       cmocka_unit_test(more_blocks_than_a_gpu_has_are_an_error),
                                       cmocka_unit_test_teardown(rmsnorm_has_the_bits_of_the_cpu, release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
