/* tests/cuda/checkcuda_cublas.c -- linear layers by the GPU's library of matrix products. The GPU is an
 * emulated one with a driver and a library of its own (tests/cuda/fake_driver.c, fake_cublas.c), or the one that
 * CHECKCUDA_DEVICE names.
 *     checkcuda_cublas [--speed]    --speed: measures products of 512 rows alone */
#include "engine/base/seconds.h"
#include "tests/cuda/wide.h"

static struct device *opened; /* until it is closed */

/* A GPU and its library. */
static struct device *open_gemm(void)
{
    char message[256];
    struct device *d = opened = open_checked_device();
    if (device_open_gemm(d, message, sizeof message))
        fail_msg("%s", message);
    return d;
}

static void close_gemm(void)
{
    struct device *d = opened;
    opened = NULL;
    close_checked_device(d);
}

/* A test that has failed leaves its GPU open. */
static int end_test(void **state)
{
    device_close(opened);
    opened = NULL;
    return release_all(state);
}

TEST(products_are_sums_of_operands_in_bf16)
{
    static const size_t sizes[] = {1, 31, 64, 100, 1056};
    uint64_t seed = 1;
    struct device *d = open_gemm();
    for (int type = 0; type < WEIGHT_TYPES; type++)
        for (size_t i = 0; i < COUNT(sizes); i++)
            for (size_t S = 1; S < 8; S += 3) {
                /* random_matrix has rows of K + 3 */
                size_t K = sizes[i], gap = weight_is_packed(type) ? 0 : (size_t)(-(K + 3) & 31);
                check_linear(d, type, 9 + S, K, S, gap, 0, &seed);
                check_linear(d, type, 5, K, S, 0, S % 2, &seed);
            }
    close_gemm();
}

/* The weights are converted in parts of 32 MB: here 256 rows, and 44. */
TEST(large_matrices_are_converted_in_parts)
{
    uint64_t seed = 2;
    struct device *d = open_gemm();
    check_linear(d, WEIGHT_F8_E4M3, 300, 65536, 1, 0, 0, &seed);
    close_gemm();
}

TEST(feed_forward_layers_have_the_bits_of_precision_bf16)
{
    static const struct {
        size_t experts, chosen, S;
    } shapes[] = {{8, 2, 1}, {8, 3, 5}, {1, 1, 3}, {40, 4, 9}, {4, 1, 34}};
    uint64_t seed = 3;
    struct device *d = open_gemm();
    for (size_t n = 0; n < COUNT(shapes); n++) /* more columns: rows of 96 and 40 numbers are aligned, those of 101 and
                                                  45 are not */
        for (size_t more = 0; more <= 5; more += 5) {
            check_experts(d, shapes[n].experts, shapes[n].chosen, shapes[n].S, n % 2, 0, more, &seed);
            check_experts(d, shapes[n].experts, shapes[n].chosen, shapes[n].S, 0, 1, more, &seed);
        }
    close_gemm();
}

/* ---- speed ---- */

static double products_per_second(struct device *d, size_t S, size_t N, size_t K)
{
    struct gemm g = {.S = S, .N = N, .K = K, .ldy = N, .ldw = K, .ldx = K};
    void *y, *w, *x;
    size_t count = 0;
    if (d->type->allocate(d, &y, S * N * 4) || d->type->allocate(d, &w, N * K * 2) ||
        d->type->allocate(d, &x, S * K * 2))
        fail_msg("no memory");
    g.y = y, g.w = w, g.x = x;
    device_gemm(d, &g);
    device_wait(d);
    double start = monotonic_seconds();
    while (count < 20 || monotonic_seconds() - start < 0.5) {
        for (int i = 0; i < 20; i++, count++)
            device_gemm(d, &g);
        device_wait(d);
    }
    double seconds = monotonic_seconds() - start;
    d->type->release(d, y), d->type->release(d, w), d->type->release(d, x);
    return (double)count / seconds;
}

static int measure(void)
{
    static const size_t shapes[][2] = {{2048, 7168}, {7168, 2048}, {4096, 7168}, {24576, 1536}, {7168, 16384},
                                       {18432, 7168}};
    struct device *d = open_gemm();
    for (size_t i = 0; i < COUNT(shapes); i++) {
        size_t N = shapes[i][0], K = shapes[i][1];
        double each = products_per_second(d, 512, N, K);
        printf("cuBLAS alone, 512 rows by %5zu x %5zu: %8.1f us, %6.1f TFLOPS\n", N, K, 1e6 / each,
               1e-12 * each * 2 * 512 * (double)N * (double)K);
    }
    close_gemm();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(products_are_sums_of_operands_in_bf16, end_test),
                                       cmocka_unit_test_teardown(large_matrices_are_converted_in_parts, end_test),
                                       cmocka_unit_test_teardown(feed_forward_layers_have_the_bits_of_precision_bf16,
                                                                 end_test)};
    on_a_gpu = !is_emulated();
    setenv("CHECKCUDA_DEVICE", "cuda", 0);
    if (argc > 1 && !strcmp(argv[1], "--speed"))
        return measure();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
