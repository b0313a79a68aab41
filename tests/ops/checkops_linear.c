/* tests/ops/checkops_linear.c -- the operators of one matrix or less: linear, rmsnorm, embed, rope. */
#include "tests/ops/checkops.h"

#include "ops/embed.h"
#include "ops/gather.h"
#include "ops/linear.h"
#include "ops/rmsnorm.h"
#include "ops/rope.h"
#include "tests/support/scratch.h"

/* ---- linear ---- */

static float *run_linear(const struct kernels *k, int threads, const float *x, const struct stored_matrix *w, size_t S)
{
    size_t N = w->view.rows, K = w->view.cols;
    struct op_ctx cx = context_of(k, threads, op_linear_scratch(S, K));
    float *y = guarded_floats(S * N);
    CASE("linear %s N=%zu K=%zu S=%zu threads=%d %s", type_names[w->view.type], N, K, S, threads, k->name);
    op_linear(&cx, y, x, &w->view, S);
    assert_int_equal(cx.scratch_used, 0);
    return y;
}

static const size_t dot_lengths[] = {0, 1, 2, 15, 16, 31, 32, 33, 63, 65, 1023, 1024, 1025, 1056, 2100};

TEST(linear_is_rule_1_bit_for_bit)
{
    uint64_t seed = 1;
    FOR_EACH_TYPE(type)
        for (size_t i = 0; i < COUNT(dot_lengths); i++) {
            size_t K = dot_lengths[i], N = 19, S = 3, mark = guard_count;
            struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
            float *x = random_floats(S * K, &seed), *want = guarded_floats(S * N), taken[2100];
            for (size_t s = 0; s < S; s++)
                for (size_t n = 0; n < N; n++) {
                    contract_x(taken, x + s * K, K);
                    want[s * N + n] = contract_dot(w.value + n * K, taken, K);
                }
            FOR_EACH_TABLE(k)
                check_same_bits(run_linear(k, 2, x, &w, S), N, want, N, S, N);
            release_to(mark);
        }
}

/* k of the bound is dot_depth: 74 roundings at most for K = 2100, less than n. */
TEST(linear_is_within_its_bound_of_the_formula)
{
    uint64_t seed = 2;
    for (int type = 0; type < WEIGHT_TYPES; type++)
        for (size_t i = 0; i < COUNT(dot_lengths); i++) {
            size_t K = dot_lengths[i], N = 5, S = 2, mark = guard_count;
            struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
            float *x = random_floats(S * K, &seed);
            FOR_EACH_TABLE(k) {
                float *y = run_linear(k, 1, x, &w, S);
                for (size_t s = 0; s < S; s++)
                    for (size_t n = 0; n < N; n++) {
                        double sum = 0.0, sum_abs = 0.0;
                        for (size_t j = 0; j < K; j++) {
                            sum += (double)w.value[n * K + j] * (double)x[s * K + j];
                            sum_abs += fabs((double)w.value[n * K + j] * (double)x[s * K + j]);
                        }
                        check_within(y[s * N + n], sum, dot_bound(K, sum_abs), s, n);
                    }
            }
            release_to(mark);
        }
}

/* 315 * 325 multiplications for a single row are worth three threads, and fill neither tiles nor chunks. */
TEST(linear_row_has_the_same_bits_alone_and_among_any_others)
{
    uint64_t seed = 3;
    size_t N = 315, K = 325;
    FOR_EACH_TYPE(type) {
        struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
        float *x = random_floats(64 * K, &seed), *alone = guarded_floats(64 * N);
        size_t mark = guard_count;
        for (size_t s = 0; s < 64; s++) {
            memcpy(alone + s * N, run_linear(scalar_table(), 1, copy_of(x + s * K, K), &w, 1), N * sizeof *alone);
            release_to(mark);
        }
        FOR_EACH_TABLE(k)
            for (size_t i = 0; i < COUNT(some_rows); i++)
                for (size_t j = 0; j < COUNT(some_threads); j++) {
                    size_t S = some_rows[i];
                    check_same_bits(run_linear(k, some_threads[j], copy_of(x, S * K), &w, S), N, alone, N, S, N);
                    release_to(mark);
                }
        release_to(0);
    }
}

TEST(linear_runs_on_as_many_threads_as_it_is_given)
{
    uint64_t seed = 4;
    size_t N = 320, K = 320;
    struct stored_matrix w = random_matrix(WEIGHT_BF16, N, K, &seed);
    float *x = random_floats(K, &seed), *want = run_linear(scalar_table(), 1, x, &w, 1);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            float *y = run_linear(&k, threads, x, &w, 1);
            check_threads_ran(threads);
            check_same_bits(y, N, want, N, 1, N);
        }
}

TEST(linear_with_little_work_stays_on_the_callers_thread)
{
    uint64_t seed = 5;
    struct stored_matrix w = random_matrix(WEIGHT_F32, 64, 64, &seed);
    struct kernels k = spy_begin(scalar_table());
    run_linear(&k, 3, random_floats(64, &seed), &w, 1);
    check_threads_ran(1);
}

/* Products near 2^-130 vanish under flush to zero, and every sum is rounded otherwise. */
TEST(linear_computes_in_the_default_environment_whatever_the_caller_has_set)
{
    uint64_t seed = 6;
    size_t N = 320, K = 320;
    struct stored_matrix w = random_matrix(WEIGHT_F32, N, K, &seed);
    float *x = random_floats(K, &seed), *y = NULL;
    for (size_t k = 0; k < K; k++)
        x[k] = k % 2 ? x[k] * 0x1p-130f : x[k] * 0x1p-110f;
    float *want = run_linear(scalar_table(), 1, x, &w, 1);
    FOR_EACH_TABLE(real)
        for (int threads = 2; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            IN_SPOILED_ENVIRONMENT(threads, y = run_linear(&k, threads, x, &w, 1));
            check_same_bits(y, N, want, N, 1, N);
        }
}

TEST(linear_does_not_trust_the_padding_of_a_packed_x)
{
    uint64_t seed = 7;
    static const size_t lengths[] = {1, 17, 31, 33, 1030};
    for (int type = 0; type < WEIGHT_TYPES; type++)
        for (size_t i = 0; i < COUNT(lengths); i++) {
            size_t K = lengths[i], ld = packed_length(K), N = 9, S = 2, mark = guard_count;
            struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
            float *x = random_floats(S * K, &seed), *packed = guarded_floats(S * ld);
            FOR_EACH_TABLE(k) {
                float *want = run_linear(k, 1, x, &w, S), *y = guarded_floats(S * N);
                struct op_ctx cx = {.k = k, .arithmetic = &arithmetic_exact, .threads = 1,
                                    .kernel_scratch = kernel_scratch()};
                struct op_packed rows = {.K = K, .how = cx.arithmetic, .rows[OP_F32] = (char *)packed};
                op_pack(&cx, &rows, x, K, S);
                for (size_t s = 0; s < S; s++)
                    for (size_t j = K; j < ld; j++) /* in a packed chunk odd numbers come first, then even ones */
                        packed[s * ld + j / 32 * 32 + (j % 2 ? 0 : 16) + j % 32 / 2] = NAN;
                CASE("linear_packed %s K=%zu, padding NaN, %s", type_names[type], K, k->name);
                op_linear_packed(&cx, y, &rows, &w.view, S);
                check_same_bits(y, N, want, N, S, N);
            }
            release_to(mark);
        }
}

TEST(linear_carries_nan_and_infinity_to_the_rows_that_have_them)
{
    uint64_t seed = 8;
    size_t N = 20, K = 70, S = 3;
    struct stored_matrix w = random_matrix(WEIGHT_F32, N, K, &seed);
    float *x = random_floats(S * K, &seed), *want = guarded_floats(S * N);
    x[K + 66] = NAN;
    x[2 * K + 3] = INFINITY;
    for (size_t s = 0; s < S; s++)
        for (size_t n = 0; n < N; n++)
            want[s * N + n] = contract_dot(w.value + n * K, x + s * K, K);
    assert_true(isfinite(want[0]) && isnan(want[N]) && isinf(want[2 * N]));
    FOR_EACH_TABLE(k)
        check_same_bits(run_linear(k, 1, x, &w, S), N, want, N, S, N);
}

/* ---- rmsnorm ---- */

struct norm {
    size_t D, ldx, ldy, S;
    float eps, *x, *w;
};

static const size_t norm_widths[] = {1, 31, 40, 512, 1025, 2100};

static struct norm random_norm(size_t D, size_t S, uint64_t *seed)
{
    struct norm n = {D, D + 5, D + 2, S, 1e-6f, random_floats(S * (D + 5), seed), random_floats(D, seed)};
    for (size_t s = 0; s < S; s++) /* rows of other sizes than 1: 2^-9 is where eps begins to count */
        for (size_t d = 0; d < D; d++)
            n.x[s * n.ldx + d] *= s % 3 == 0 ? 1.0f : s % 3 == 1 ? 0x1p-9f : 0x1p12f;
    return n;
}

static float *run_norm(const struct kernels *k, const struct norm *n)
{
    struct op_ctx cx = {.k = k, .threads = 1};
    float *y = guarded_floats(n->S * n->ldy);
    CASE("rmsnorm D=%zu S=%zu %s", n->D, n->S, k->name);
    op_rmsnorm(&cx, y, n->ldy, n->x, n->ldx, n->w, n->S, n->D, n->eps);
    check_untouched(y, n->ldy, n->S, n->D);
    return y;
}

TEST(rmsnorm_is_the_order_of_its_header_bit_for_bit)
{
    uint64_t seed = 10;
    for (size_t i = 0; i < COUNT(norm_widths); i++) {
        struct norm n = random_norm(norm_widths[i], 4, &seed);
        float *want = guarded_floats(n.S * n.D);
        for (size_t s = 0; s < n.S; s++) {
            float mean = contract_dot(n.x + s * n.ldx, n.x + s * n.ldx, n.D) / (float)n.D;
            float root = sqrtf(mean + n.eps), r = 1.0f / root;
            for (size_t d = 0; d < n.D; d++) {
                float normal = n.x[s * n.ldx + d] * r;
                want[s * n.D + d] = normal * n.w[d];
            }
        }
        FOR_EACH_TABLE(k)
            check_same_bits(run_norm(k, &n), n.ldy, want, n.D, n.S, n.D);
        release_to(0);
    }
}

/* Every square is positive, so the sum is off by gamma(depth) of itself; the quotient and + eps (a positive number,
 * which only dilutes what was off) are two roundings more. The square root halves the relative error, and it, the
 * reciprocal and the two products are four roundings: gamma(depth / 2 + 5) |y| in all. */
TEST(rmsnorm_is_within_its_bound_of_the_formula)
{
    uint64_t seed = 11;
    for (size_t i = 0; i < COUNT(norm_widths); i++) {
        struct norm n = random_norm(norm_widths[i], 6, &seed);
        FOR_EACH_TABLE(k) {
            float *y = run_norm(k, &n);
            for (size_t s = 0; s < n.S; s++) {
                double ss = 0.0;
                for (size_t d = 0; d < n.D; d++)
                    ss += (double)n.x[s * n.ldx + d] * (double)n.x[s * n.ldx + d];
                double r = 1.0 / sqrt(ss / (double)n.D + (double)n.eps);
                for (size_t d = 0; d < n.D; d++) {
                    double want = (double)n.x[s * n.ldx + d] * r * (double)n.w[d];
                    double k_u = rounding_gamma(dot_depth(n.D) / 2 + 5) + (double)n.D * 0x1p-53;
                    check_within(y[s * n.ldy + d], want, k_u * fabs(want), s, d);
                }
            }
        }
        release_to(0);
    }
}

TEST(rmsnorm_row_has_the_same_bits_alone_and_among_any_others_in_place_or_not)
{
    uint64_t seed = 12;
    struct norm n = random_norm(1100, 64, &seed);
    float *want = run_norm(scalar_table(), &n);
    FOR_EACH_TABLE(k) {
        size_t mark = guard_count;
        for (size_t s = 0; s < 64; s++) {
            struct norm row = n;
            row.S = 1;
            row.x = n.x + s * n.ldx;
            check_same_bits(run_norm(k, &row), n.ldy, want + s * n.ldy, n.ldy, 1, n.D);
        }
        for (size_t i = 0; i < COUNT(some_rows); i++) {
            struct op_ctx cx = {.k = k, .threads = 1};
            float *x = copy_of(n.x, 64 * n.ldx);
            CASE("rmsnorm in place, S=%zu %s", some_rows[i], k->name);
            op_rmsnorm(&cx, x, n.ldx, x, n.ldx, n.w, some_rows[i], n.D, n.eps);
            check_same_bits(x, n.ldx, want, n.ldy, some_rows[i], n.D);
            for (size_t s = 0; s < 64; s++)
                check_same_bits(x + s * n.ldx + n.D, 5, n.x + s * n.ldx + n.D, 5, 1, 5);
        }
        release_to(mark);
    }
}

TEST(rmsnorm_of_a_row_of_zeros_is_zero)
{
    float x[3] = {0.0f, -0.0f, 0.0f}, w[3] = {1.0f, 1.0f, -1.0f}, want[3] = {0.0f, -0.0f, -0.0f};
    FOR_EACH_TABLE(k) {
        struct norm n = {3, 3, 3, 1, 1e-6f, x, w};
        check_same_bits(run_norm(k, &n), 3, want, 3, 1, 3);
    }
}

/* ---- embed ---- */

TEST(embed_widens_exactly_the_rows_it_is_asked_for)
{
    uint64_t seed = 20;
    static const int32_t tok[7] = {3, 0, 10, 10, 7, 3, 1};
    struct op_ctx cx = context_of(scalar_table(), 1, 0);
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        size_t D = 77, ld = D + 3;
        struct stored_matrix w = random_matrix((enum weight_type)type, 11, D, &seed);
        for (size_t S = 1; S <= 7; S++) {
            float *y = guarded_floats((S - 1) * ld + D);
            CASE("embed %s S=%zu", type_names[type], S);
            op_embed(&cx, y, ld, &w.view, tok, S);
            for (size_t s = 0; s < S; s++)
                check_same_bits(y + s * ld, D, w.value + (size_t)tok[s] * D, D, 1, D);
            check_untouched(y, ld, S, D);
        }
    }
}

/* ---- rope ---- */

static const struct rope_yarn v3_yarn = {40, 32, 1, 1, 1, 4096}, v2_yarn = {40, 32, 1, 0.707, 0.707, 4096};
static const struct {
    const char *name;
    size_t dim;
    double theta;
    const struct rope_yarn *yarn;
} rope_cases[] = {
    {"plain", 64, 10000, NULL},
    {"plain, one pair", 2, 10000, NULL},
    {"plain, large theta", 64, 1e7, NULL},
    {"DeepSeek-V3", 64, 10000, &v3_yarn},
    {"DeepSeek-V2", 64, 10000, &v2_yarn},
    {"Kimi-K2", 64, 50000, &(const struct rope_yarn){32, 1, 1, 1, 1, 4096}},
    {"no mscale_all_dim", 64, 10000, &(const struct rope_yarn){8, 32, 1, 1, 0, 4096}},
    {"two mscales", 16, 10000, &(const struct rope_yarn){4, 32, 1, 0.5, 1.25, 64}},
    {"equal ends at 0", 32, 10000, &(const struct rope_yarn){4, 64, 11, 1, 1, 64}},
    {"high end below 0", 32, 10000, &(const struct rope_yarn){4, 64, 32, 1, 1, 64}},
    {"low end clamped", 16, 100, &(const struct rope_yarn){16, 32, 1, 1, 1, 32}},
    {"high end clamped", 16, 10000, &(const struct rope_yarn){16, 1e6, 1, 1, 1, 1e9}},
    {"factor 1", 16, 10000, &(const struct rope_yarn){1, 32, 1, 1, 0, 64}},
};
static const int64_t rope_positions[] = {0, 1, 2, 63, 255, 4095, 4096, 163839};

static long double formula_mscale(long double factor, long double scale)
{
    return factor <= 1 ? 1 : 0.1L * scale * logl(factor) + 1;
}

/* The published formula (transformers, _compute_yarn_parameters) in long double; *a is the factor on cos and sin. */
static long double formula_frequency(size_t i, size_t dim, double theta, const struct rope_yarn *y, long double *a)
{
    long double f = powl(theta, -2.0L * (long double)i / (long double)dim), pi = 3.14159265358979323846L;
    *a = 1;
    if (!y)
        return f;
    long double context = y->original_max_position_embeddings, two_log = 2 * logl(theta);
    long double low = floorl((long double)dim * logl(context / (y->beta_fast * 2 * pi)) / two_log);
    long double high = ceill((long double)dim * logl(context / (y->beta_slow * 2 * pi)) / two_log);
    low = fmaxl(low, 0);
    high = fminl(high, (long double)dim - 1);
    if (low == high)
        high += 0.001L;
    long double stretched = fminl(fmaxl(((long double)i - low) / (high - low), 0), 1);
    *a = formula_mscale(y->factor, y->mscale) / formula_mscale(y->factor, y->mscale_all_dim);
    return stretched * f / y->factor + (1 - stretched) * f;
}

/* Rounding c to f32 is u |c|. In double (2^-53): pow is off by 2, and by ln(theta) <= 17 through its rounded exponent;
 * the ramp (its end of high + 0.001 included), its complement, quotient, products and sum make less than 20; all
 * relative to the unblended f, at most 2^-47 f; an angle of p f is off by as much, and cos and sin move no faster than
 * their angle. The last 2^-50 are sin, cos and a themselves. */
TEST(rope_angles_are_within_their_bound_of_the_published_formula)
{
    for (size_t n = 0; n < COUNT(rope_cases); n++) {
        struct rope rope;
        float *cos_sin = guarded_floats(rope_cases[n].dim);
        rope_init(&rope, rope_cases[n].dim, 1, rope_cases[n].theta, rope_cases[n].yarn);
        for (size_t j = 0; j < COUNT(rope_positions); j++) {
            int64_t p = rope_positions[j];
            CASE("rope_angles (%s) p=%d", rope_cases[n].name, (int)p);
            op_rope_angles(cos_sin, &rope, p);
            for (size_t i = 0, half = rope.dim / 2; i < half; i++) {
                long double a, ignored, f = formula_frequency(i, rope.dim, rope_cases[n].theta, rope_cases[n].yarn, &a);
                double plain = (double)formula_frequency(i, rope.dim, rope_cases[n].theta, NULL, &ignored);
                double c = (double)(cosl((long double)p * f) * a), s = (double)(sinl((long double)p * f) * a);
                double drift = (double)a * ((double)p * plain * 0x1p-47 + 0x1p-50);
                check_within(cos_sin[i], c, 0x1p-24 * fabs(c) + drift, j, i);
                check_within(cos_sin[half + i], s, 0x1p-24 * fabs(s) + drift, j, half + i);
            }
        }
    }
}

TEST(yarn_keeps_fast_waves_stretches_slow_ones_and_blends_between)
{
    struct rope plain, yarn;
    int blended = 0;
    rope_init(&plain, 64, 1, 10000, NULL);
    rope_init(&yarn, 64, 1, 10000, &v3_yarn);
    assert_true(yarn.frequency[0] == plain.frequency[0]);   /* 652 turns in 4096 tokens, more than beta_fast */
    assert_true(yarn.frequency[31] == plain.frequency[31] / 40); /* 0.09 turns, fewer than beta_slow */
    for (size_t i = 0; i < 32; i++) {
        assert_true(yarn.frequency[i] <= plain.frequency[i] && yarn.frequency[i] >= plain.frequency[i] / 40);
        blended += yarn.frequency[i] < plain.frequency[i] && yarn.frequency[i] > plain.frequency[i] / 40;
    }
    assert_int_equal(blended, 12); /* between correction dims 10 and 23 */
    assert_true(yarn.attention_factor == 1.0 && rope_mscale(0.5, 1) == 1.0);
}

/* heads of 8 numbers that are not rotated and r that are, as q has them */
TEST(rope_rotates_pairs_or_halves_in_place_and_touches_nothing_else)
{
    uint64_t seed = 30;
    static const size_t dims[] = {2, 8, 64};
    for (size_t n = 0; n < COUNT(dims); n++)
        for (int interleave = 0; interleave < 2; interleave++) {
            size_t r = dims[n], half = r / 2, heads = 5, stride = r + 8;
            struct rope rope;
            float *before = random_floats(heads * stride, &seed), *x = copy_of(before, heads * stride);
            float *want = copy_of(before, heads * stride), *cos_sin = guarded_floats(r);
            rope_init(&rope, r, interleave, 10000, n == 2 ? &v2_yarn : NULL);
            op_rope_angles(cos_sin, &rope, 1234);
            CASE("rope r=%zu interleave=%d", r, interleave);
            op_rope(x + 8, heads, stride, cos_sin, &rope);
            for (size_t h = 0; h < heads; h++)
                for (size_t i = 0; i < half; i++) {
                    size_t at = h * stride + 8, first = interleave ? at + 2 * i : at + i;
                    size_t second = interleave ? first + 1 : first + half;
                    float x0c = before[first] * cos_sin[i], x1s = before[second] * cos_sin[half + i];
                    float x0s = before[first] * cos_sin[half + i], x1c = before[second] * cos_sin[i];
                    want[first] = x0c - x1s;
                    want[second] = x0s + x1c;
                }
            check_same_bits(x, stride, want, stride, heads, stride);
        }
}

/* Two products and their sum: three roundings on each path with that of c and s, so gamma(3) (|x0 c| + |x1 s|);
 * the angle's drift as above. */
TEST(rope_is_within_its_bound_of_the_formula)
{
    uint64_t seed = 31;
    for (size_t n = 0; n < COUNT(rope_cases); n++)
        for (size_t j = 0; j < COUNT(rope_positions); j++) {
            struct rope rope;
            size_t r = rope_cases[n].dim, mark = guard_count;
            float *before = random_floats(r, &seed), *x = copy_of(before, r), *cos_sin = guarded_floats(r);
            double p = (double)rope_positions[j];
            rope_init(&rope, r, 1, rope_cases[n].theta, rope_cases[n].yarn);
            op_rope_angles(cos_sin, &rope, rope_positions[j]);
            CASE("rope (%s) p=%d", rope_cases[n].name, (int)p);
            op_rope(x, 1, r, cos_sin, &rope);
            for (size_t i = 0; i < r / 2; i++) {
                long double a, ignored, f = formula_frequency(i, r, rope_cases[n].theta, rope_cases[n].yarn, &a);
                double plain = (double)formula_frequency(i, r, rope_cases[n].theta, NULL, &ignored);
                double c = (double)(cosl((long double)p * f) * a), s = (double)(sinl((long double)p * f) * a);
                double x0 = (double)before[2 * i], x1 = (double)before[2 * i + 1];
                double drift = (fabs(x0) + fabs(x1)) * (double)a * (p * plain * 0x1p-47 + 0x1p-50);
                check_within(x[2 * i], x0 * c - x1 * s, rounding_gamma(3) * (fabs(x0 * c) + fabs(x1 * s)) + drift, 0,
                             2 * i);
                check_within(x[2 * i + 1], x0 * s + x1 * c, rounding_gamma(3) * (fabs(x0 * s) + fabs(x1 * c)) + drift,
                             0, 2 * i + 1);
            }
            release_to(mark);
        }
}

/* ---- gather ---- */

static void gathered_rows_are_the_rows_of_the_matrix(void **state)
{
    static const int32_t rows[] = {6, 9, 18, 5};
    uint64_t seed = 77;
    (void)state;
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        struct stored_matrix m = random_matrix((enum weight_type)type, 19, 70, &seed);
        CASE("gather of type %d", type);
        float *x = guarded_floats(COUNT(rows) * 70 + 70), *row = x + COUNT(rows) * 70; /* large enough for every type */
        struct weight_view part = weight_rows(&m.view, 5, 14), copy = weight_gather(x, &part, rows, COUNT(rows), 5);
        assert_int_equal(copy.rows, COUNT(rows));
        for (size_t i = 0; i < COUNT(rows); i++) {
            decode_weights(row, &copy, i, 0, 70);
            assert_memory_equal(row, m.value + (size_t)rows[i] * 70, 70 * sizeof *row);
        }
    }
}

/* Scales of a whole matrix are kept. */
static void gathered_rows_have_the_scale_of_their_matrix(void **state)
{
    static const enum weight_type types[] = {WEIGHT_NVFP4, WEIGHT_GGUF_NVFP4};
    static const int32_t rows[] = {2, 0};
    uint64_t seed = 78;
    (void)state;
    for (size_t t = 0; t < COUNT(types); t++) {
        unsigned char data[3 * 36], *copied = guarded(2 * 36);
        float want[64], have[64];
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (unsigned char)(next_random(&seed) % 120);
        struct weight_view w = {.type = types[t], .data = data, .rows = 3, .cols = 64, .stride = 64,
                                .tensor_scale = 1.375f, .divides = (int)t == 0};
        struct weight_view copy = weight_gather(copied, &w, rows, COUNT(rows), 0);
        for (size_t i = 0; i < COUNT(rows); i++) {
            decode_weights(want, &w, (size_t)rows[i], 0, 64);
            decode_weights(have, &copy, i, 0, 64);
            assert_memory_equal(have, want, sizeof want);
            assert_true(want[5] != 0 || want[6] != 0 || want[7] != 0);
        }
    }
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(linear_is_rule_1_bit_for_bit),
        T(linear_is_within_its_bound_of_the_formula),
        T(linear_row_has_the_same_bits_alone_and_among_any_others),
        T(linear_runs_on_as_many_threads_as_it_is_given),
        T(linear_with_little_work_stays_on_the_callers_thread),
        T(linear_computes_in_the_default_environment_whatever_the_caller_has_set),
        T(linear_does_not_trust_the_padding_of_a_packed_x),
        T(linear_carries_nan_and_infinity_to_the_rows_that_have_them),
        T(rmsnorm_is_the_order_of_its_header_bit_for_bit),
        T(rmsnorm_is_within_its_bound_of_the_formula),
        T(rmsnorm_row_has_the_same_bits_alone_and_among_any_others_in_place_or_not),
        T(rmsnorm_of_a_row_of_zeros_is_zero),
        T(embed_widens_exactly_the_rows_it_is_asked_for),
        T(rope_angles_are_within_their_bound_of_the_published_formula),
        T(yarn_keeps_fast_waves_stretches_slow_ones_and_blends_between),
        T(rope_rotates_pairs_or_halves_in_place_and_touches_nothing_else),
        T(rope_is_within_its_bound_of_the_formula),
        T(gathered_rows_are_the_rows_of_the_matrix), T(gathered_rows_have_the_scale_of_their_matrix),
    };
    return cmocka_run_group_tests_name("checkops_linear", tests, NULL, NULL);
}
