/* tests/cuda/checkcuda_exp.c -- exp on an emulated device. With the option --all: for all 2^32 floats. */
#include "tests/cuda/checkcuda.h"

#define MOST ((size_t)1 << 22)

static float results[MOST];

/* Compares exp of the n floats with the bits first, first + step, ... */
static void compare(struct device *d, uint32_t first, uint32_t step, size_t n)
{
    device_run(d, exp_of_bits, 8, 1, 1, .y = device_at(d, results), .first = first, .step = step, .n = n);
    device_read(d, results, n * sizeof *results);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = first + (uint32_t)i * step;
        float x, want;
        memcpy(&x, &bits, sizeof x);
        want = kernel_expf(x);
        if (!same_bits(results[i], want))
            fail_msg("exp of the float with the bits %08x is %a (%08x) on the device, %a (%08x) on the CPU", bits,
                     (double)results[i], bits_of(results[i]), (double)want, bits_of(want));
    }
}

static struct device *open_device(void)
{
    struct device *d = open_checked_device();
    assert_non_null(d);
    assert_int_equal(device_add(d, results, sizeof results), 0);
    return d;
}

/* A million floats from everywhere; then the neighbours of all floats at which the method or the result changes its
 * kind. */
TEST(exp_has_the_bits_of_the_cpu)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.34657359f /* q becomes 1 */, -0.34657359f,
                                    88.722839f /* infinity */, 100.0f, -87.336545f /* subnormal */, -103.97208f /* 0 */,
                                    -104.0f, INFINITY, -INFINITY, NAN, 0x1p-126f, -0x1p-126f, 0x1p-24f, 0x1.fffffep127f,
                                    -0x1.fffffep127f};
    struct device *d = open_device();
    compare(d, 0, 4093, ((size_t)1 << 32) / 4093 + 1);
    compare(d, bits_of(80.0f), 5, (bits_of(104.0f) - bits_of(80.0f)) / 5);
    compare(d, bits_of(-80.0f), 5, (bits_of(-105.0f) - bits_of(-80.0f)) / 5);
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        compare(d, bits_of(special[i]) - 500, 1, 1000);
    device_close(d);
}

static void exp_has_the_bits_of_the_cpu_for_all_floats(__attribute__((unused)) void **state)
{
    struct device *d = open_device();
    for (size_t first = 0; first < (size_t)1 << 32; first += MOST)
        compare(d, (uint32_t)first, 1, MOST);
    device_close(d);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exp_has_the_bits_of_the_cpu)},
                            all[] = {cmocka_unit_test(exp_has_the_bits_of_the_cpu_for_all_floats)};
    if (argc > 1 && !strcmp(argv[1], "--all"))
        return cmocka_run_group_tests(all, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
