/* tests/engine/test_sums.c -- the variance of a sum in F32, from which `diff --local` derives its bounds, covers sums
 * of one sign and of random signs, in the order that rounds most: one term after the other. */
#include "reference/layers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/random.h"

#define RUNS 200

/* The mean square of (rounding error / its standard deviation). *most: the largest square. */
static double errors_of(size_t length, float least, double *most)
{
    uint64_t state = length;
    double mean = *most = 0;
    for (int run = 0; run < RUNS; run++) {
        double exact = 0, squares = 0;
        float sum = 0;
        for (size_t i = 0; i < length; i++) {
            float term = least + ldexpf((float)(next_random(&state) >> 40), -24);
            sum += term;
            exact += (double)term;
            squares += (double)term * (double)term;
        }
        double error = ((double)sum - exact) * ((double)sum - exact) / ref_sum_variance(exact, squares, length);
        mean += error / RUNS;
        *most = fmax(*most, error);
    }
    return mean;
}

static void sums_in_f32_are_rounded_as_their_variance_says(void **unused)
{
    (void)unused;
    for (size_t length = 64; length <= 16384; length *= 16)
        for (int one_sign = 0; one_sign < 2; one_sign++) {
            double most, mean = errors_of(length, one_sign ? 0 : -0.5F, &most);
            print_message("%zu terms of %s: %.2f of the standard deviation, at most %.2f\n", length,
                          one_sign ? "one sign" : "random signs", sqrt(mean), sqrt(most));
            assert_true(mean < 1 && mean > 0.01);
            assert_true(most < 16);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_in_f32_are_rounded_as_their_variance_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
