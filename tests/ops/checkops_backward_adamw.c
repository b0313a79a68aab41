/* tests/ops/checkops_backward_adamw.c -- the step of AdamW and the norm of gradients: the bits of plain C code in the
 * order of the header, for any number of threads, and the formulas in double, within a bound. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/adamw.h"

static double plain_squares(double squares, const float *g, size_t n)
{
    for (size_t b = 0; b < n; b += 4096) {
        double a[16] = {0};
        for (size_t i = b; i < b + 4096 && i < n; i++)
            a[i % 16] = a[i % 16] + (double)g[i] * (double)g[i];
        for (size_t h = 8; h; h /= 2)
            for (size_t l = 0; l < h; l++)
                a[l] = a[l] + a[l + h];
        squares = squares + a[0];
    }
    return squares;
}

TEST(the_norm_of_gradients_is_the_same_with_any_threads)
{
    static const size_t sizes[] = {1, 4097, 15, 700001}; /* the tensors of a model */
    uint64_t seed = 1;
    float *g[COUNT(sizes)];
    double want = 0;
    long double exact = 0;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        g[i] = random_floats(sizes[i], &seed);
        want = plain_squares(want, g[i], sizes[i]);
        for (size_t j = 0; j < sizes[i]; j++)
            exact += (long double)g[i][j] * (long double)g[i][j];
    }
    /* 256 additions of a block's sums, 4 of its fold, one of each block */
    assert_true(fabsl((long double)want - exact) <= (256 + 4 + 174) * 0x1p-53L * exact);
    FOR_EACH_TABLE(k)
        for (int threads = 1; threads <= 3; threads++) {
            double squares = 0;
            for (size_t i = 0; i < COUNT(sizes); i++) {
                struct op_ctx cx = context_of(k, threads, op_squares_scratch(sizes[i]));
                op_squares(&cx, &squares, g[i], sizes[i]);
            }
            if (memcmp(&squares, &want, sizeof want))
                fail_msg("%s, %d threads: the sum of squares is %a, should be %a", k->name, threads, squares, want);
        }
}

TEST(gradients_are_clipped_only_above_the_largest_norm)
{
    assert_true(op_clip(4.0, 1.0) == (float)(1.0 / (2.0 + 1e-6)));
    assert_true(op_clip(0.25, 1.0) == 1.0f);
    assert_true(op_clip(0.0, 1.0) == 1.0f);
}

/* One number, in the order of the header */
static void plain_step(float *w, float *m, float *v, float g, const struct adamw *a, int t, float clip)
{
    float beta1 = (float)a->beta1, beta2 = (float)a->beta2, rest1 = (float)(1 - a->beta1),
          rest2 = (float)(1 - a->beta2);
    float step = (float)(a->lr / (1 - kernel_pow(a->beta1, t))), root = (float)sqrt(1 - kernel_pow(a->beta2, t));
    g = g * clip;
    *m = fmaf(beta1, *m, rest1 * g);
    *v = fmaf(beta2, *v, (rest2 * g) * g);
    *w = *w * (float)(1 - a->lr * a->weight_decay) - step * (*m / (sqrtf(*v) / root + (float)a->eps));
}

TEST(adamw_is_the_formula_of_its_header_bit_for_bit)
{
    uint64_t seed = 2;
    enum { n = 20001 };
    const struct adamw a = {.lr = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    float *w0 = random_floats(n, &seed), *want_w = copy_of(w0, n), *want_m = guarded_floats(n),
          *want_v = guarded_floats(n), *g[3], clip[] = {1.0f, 0.375f, 0.1f};
    memset(want_m, 0, n * sizeof *want_m);
    memset(want_v, 0, n * sizeof *want_v);
    for (int t = 1; t <= 3; t++) {
        g[t - 1] = random_floats(n, &seed);
        g[t - 1][7] = 0.0f; /* a token that the step lacks: only the decay changes its weight */
        for (size_t i = 0; i < n; i++) {
            double m = (double)want_m[i], v = (double)want_v[i], w = (double)want_w[i],
                   G = (double)g[t - 1][i] * (double)clip[t - 1];
            double m_size = a.beta1 * fabs(m) + (1 - a.beta1) * fabs(G);
            plain_step(&want_w[i], &want_m[i], &want_v[i], g[t - 1][i], &a, t, clip[t - 1]);
            CASE("AdamW, step %d", t); /* beta and 1 - beta are rounded too; g, the products, the fma */
            m = a.beta1 * m + (1 - a.beta1) * G;
            v = a.beta2 * v + (1 - a.beta2) * G * G;
            check_within(want_m[i], m, rounding_gamma(4) * m_size + 0x1p-140, i, 0);
            check_within(want_v[i], v, rounding_gamma(7) * v + 0x1p-140, i, 1);
            /* v's error counts half; root, the quotient, eps and its sum, the quotient, step and its product, decay and
             * its product, the difference */
            double denominator = sqrt(v) / sqrt(1 - pow(a.beta2, t)) + a.eps, step = a.lr / (1 - pow(a.beta1, t));
            check_within(want_w[i], w * (1 - a.lr * a.weight_decay) - step * m / denominator,
                         rounding_gamma(4 + 4 + 8) * step * m_size / denominator + rounding_gamma(3) * fabs(w), i, 2);
        }
    }
    FOR_EACH_TABLE(k)
        for (int threads = 1; threads <= 3; threads++) {
            size_t mark = guard_count;
            float *w = copy_of(w0, n), *m = guarded_floats(n), *v = guarded_floats(n);
            memset(m, 0, n * sizeof *m);
            memset(v, 0, n * sizeof *v);
            CASE("AdamW, %s, %d threads", k->name, threads);
            for (int t = 1; t <= 3; t++) {
                struct op_ctx cx = context_of(k, threads, 0);
                struct adamw_step step = op_adamw_step(&a, t);
                op_adamw(&cx, w, m, v, g[t - 1], &step, clip[t - 1], n);
            }
            check_same_bits(w, n, want_w, n, 1, n);
            check_same_bits(m, n, want_m, n, 1, n);
            check_same_bits(v, n, want_v, n, 1, n);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_norm_of_gradients_is_the_same_with_any_threads, release_all),
        cmocka_unit_test(gradients_are_clipped_only_above_the_largest_norm),
        cmocka_unit_test_teardown(adamw_is_the_formula_of_its_header_bit_for_bit, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
