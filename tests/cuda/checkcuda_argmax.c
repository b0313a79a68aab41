/* tests/cuda/checkcuda_argmax.c -- the token with the largest logit, on an emulated device and on the CPU. */
#include "ops/argmax.h"
#include "tests/cuda/checkcuda.h"

/* Random numbers; few different ones; zeros of both signs; equal numbers; subnormals; the best at both ends; then three
 * rows with one number that is not finite. */
enum { ROWS = 9 };
static void fill(float *z, size_t V, unsigned how, uint64_t *seed)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t v = 0; v < V; v++)
        z[v] = how == 1   ? (float)random_below(seed, 3) - 1.0f
               : how == 2 ? (random_below(seed, 2) ? 0.0f : -0.0f)
               : how == 3 ? -7.0f
               : how == 4 ? 0x1p-149f * (float)random_below(seed, 9)
                          : random_float(seed);
    if (how == 5)
        z[0] = z[V - 1] = 0x1.fffffep127f;
    if (how >= 6)
        z[how == 6 ? V - 1 : random_below(seed, V)] = bad[how - 6];
}

/* What ops/argmax.h says about the result, number by number. */
static void check_best(int32_t best, const float *z, size_t V)
{
    int finite = 1, first = 1, largest = 1;
    for (size_t v = 0; v < V; v++) {
        finite &= isfinite(z[v]) != 0;
        largest &= best < 0 || !(z[v] > z[best]);
        first &= best < 0 || v >= (size_t)best || z[v] < z[best];
    }
    if (finite ? best < 0 || !largest || !first : best != -1)
        fail_msg("%s: the CPU's result is %d", case_name, (int)best);
}

TEST(the_largest_logit_is_that_of_the_cpu)
{
    static const size_t lengths[] = {1, 2, 255, 256, 257, 1024, 8191, 8192, 8193, 20000};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            size_t mark = guard_count, V = lengths[i], bytes = cuda_argmax_scratch(ROWS, V);
            struct op_ctx cpu = context_of(scalar_table(), 1, 0), cx = device_context(d, bytes);
            float *z = guarded_floats(ROWS * V);
            int32_t *want = guarded(ROWS * sizeof *want),
                    *got = with_twin(d, guarded(ROWS * sizeof *got), ROWS * sizeof *got);
            for (unsigned s = 0; s < ROWS; s++)
                fill(z + s * V, V, s, &seed);
            with_twin(d, z, ROWS * V * sizeof *z);
            op_argmax(&cpu, want, z, ROWS, V);
            cx.op->argmax(&cx, got, z, ROWS, V);
            fetch(d, got, ROWS * sizeof *got);
            for (size_t s = 0; s < ROWS; s++) {
                CASE("argmax of row %zu of %zu numbers, order %d", s, V, order_);
                check_best(want[s], z + s * V, V);
                if (got[s] != want[s])
                    fail_msg("%s: %d on the device, %d on the CPU", case_name, (int)got[s], (int)want[s]);
            }
            drop(d, z), drop(d, got), drop(d, cx.scratch);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(the_largest_logit_is_that_of_the_cpu, release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
