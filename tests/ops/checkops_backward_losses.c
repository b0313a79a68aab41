/* tests/ops/checkops_backward_losses.c -- the losses of draft rows that learn from the target, soft_cross_entropy and
 * smooth_l1: the bits of plain C code in the order of their headers, for every table, 1 to 3 threads and several cuts
 * into micro-batches; and the reference's formula in double, within a bound. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/cross_entropy.h"
#include "ops/backward/smooth_l1.h"
#include "ops/backward/soft_cross_entropy.h"
#include "reference/backward_layers.h"

#define T STEP_TOKENS

/* -- soft targets -------------------------------------------------------------------------------------------------- */

/* q = softmax(z); returns log(sum exp(z)) */
static double plain_softmax(float *q, const float *z, size_t V)
{
    float m[8], l[8], M = -INFINITY, L = 0.0f;
    for (size_t b = 0; b * 256 < V; b++) {
        m[b] = contract_softmax_block(q + b * 256, z + b * 256, V - b * 256 < 256 ? V - b * 256 : 256, &l[b]);
        M = m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b * 256 < V; b++)
        L = fmaf(kernel_expf(m[b] - M), l[b], L);
    for (size_t v = 0; v < V; v++)
        q[v] = q[v] * kernel_expf(m[v / 256] - M) / L;
    return (double)M + kernel_log((double)L);
}

static int is_top(const float *x, size_t v, size_t K, size_t V)
{
    size_t better = 0;
    for (size_t i = 0; i < V; i++)
        better += x[i] > x[v] || (x[i] == x[v] && i < v);
    return better < K;
}

static void plain_soft(struct soft_sums *sums, float *dz, const float *z, const float *target, int32_t tok,
                       const struct soft_terms *terms, float weight, size_t V)
{
    static float q[1024], p[1024];
    struct soft_sums row = {0};
    double log_q = plain_softmax(q, z, V), log_p = plain_softmax(p, target, V);
    size_t K = terms->top != 0 ? terms->top_tokens : 0;
    float P = 0.0f;
    for (size_t v = 0; v < V; v++) {
        double nats = log_q - (double)z[v];
        int top = is_top(target, v, K, V);
        P = top ? P + p[v] : P;
        row.top = top ? row.top + (double)p[v] * nats : row.top;
        row.soft = row.soft + (double)p[v] * nats;
        row.entropy = row.entropy + (double)p[v] * (log_p - (double)target[v]);
    }
    row.data = log_q - (double)z[tok < 0 ? 0 : tok];
    float m = (terms->data + terms->soft) + terms->top * P;
    for (size_t v = 0; v < V; v++) {
        float d = q[v] * m - (is_top(target, v, K, V) ? terms->soft + terms->top : terms->soft) * p[v];
        dz[v] = tok < 0 ? 0.0f : (v == (size_t)tok ? d - terms->data : d) * weight;
    }
    if (tok < 0)
        return;
    sums->data = sums->data + row.data;
    sums->soft = sums->soft + row.soft;
    sums->top = sums->top + row.top;
    sums->entropy = sums->entropy + row.entropy;
}

/* Of a softmax in f32: each difference z - m_b and m_b - M is rounded, which changes exp of it by as much as 2^-24 of
 * the range, relatively; an exp has an error of 2 roundings. So have the terms of L, with the additions of their block
 * and one fma for each block; then a product and a quotient. */
static double softmax_roundings(double range, size_t blocks) { return 2 * (2 * range + 4) + 20 + (double)blocks + 2; }

static void check_sum(const char *name, double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%s: the sum `%s` is %.17g, should be %.17g, bound %.2g", case_name, name, got, want, bound);
}

static void check_soft_with_formula(const float *dz, const struct soft_sums *sums, const float *z, const float *target,
                                    const int32_t *tok, const struct soft_terms *terms, float weight, size_t V,
                                    double range)
{
    const struct loss_terms exact_terms = {(double)terms->data, (double)terms->soft, (double)terms->top, 0,
                                           (int)terms->top_tokens};
    struct reference_terms want = {0};
    double gamma = rounding_gamma(softmax_roundings(range, (V + 255) / 256)), nats = 0, counted = 0,
           *exact = guarded(V * sizeof *exact);
    for (size_t s = 0; s < T; s++) {
        struct reference_terms row = {0};
        if (tok[s] < 0)
            continue;
        memset(exact, 0, V * sizeof *exact);
        double *zs = doubles_of(z + s * V, V), *ts = doubles_of(target + s * V, V);
        ref_soft_cross_entropy(&row, exact, zs, ts, &tok[s], 1, (int)V, &exact_terms, (double)weight);
        double log_q = row.data + zs[tok[s]], log_p = plain_softmax(copy_of(target + s * V, V), target + s * V, V);
        double most = 1.001 * (exact_terms.data + exact_terms.soft + exact_terms.top); /* m */
        for (size_t v = 0; v < V; v++) {
            /* q and p have errors of gamma. P adds K roundings at most; m, both products, two differences and the
             * product with the weight have less than K + 8 */
            double q = exp(zs[v] - log_q), p = exp(ts[v] - log_p) * 1.001, K = (double)terms->top_tokens;
            double size = q * most + most * p + (v == (size_t)tok[s]) * exact_terms.data;
            check_within(dz[s * V + v], exact[v],
                         (double)weight * (2 * gamma + rounding_gamma(K + 8)) * size + 0x1p-140, s, v);
        }
        want.data += row.data;
        want.soft += row.soft;
        want.top += row.top;
        want.entropy += row.entropy;
        /* log L has an error of gamma, and each p one of gamma p; what a p is multiplied with is at most 2 range + log
         * V */
        nats += gamma * (1 + 2 * range + log((double)V));
        counted += 2 * range + log((double)V);
        release_to(guard_count - 3);
    }
    double bound = nats + T * (double)V * 0x1p-53 * counted;
    check_sum("data", sums->data, want.data, bound);
    check_sum("soft", sums->soft, want.soft, bound);
    check_sum("top", sums->top, terms->top != 0 ? want.top : 0, bound);
    check_sum("entropy", sums->entropy, want.entropy, bound);
}

static void check_soft(size_t V, float spread, struct soft_terms terms, uint64_t *seed)
{
    float *z = random_floats(T * V, seed), *target = random_floats(T * V, seed), *want = guarded_floats(T * V),
          weight = (float)(0.3 / 61);
    struct soft_sums want_sums = {0};
    int32_t tok[T];
    for (size_t i = 0; i < T * V; i++) {
        z[i] *= spread;
        target[i] *= spread;
        if (i % 3 == 0) /* many numbers are equal */
            target[i] = roundf(target[i]);
    }
    for (size_t s = 0; s < T; s++) {
        tok[s] = s % 9 == 4 ? -1 : (int32_t)random_below(seed, V);
        plain_soft(&want_sums, want + s * V, z + s * V, target + s * V, tok[s], &terms, weight, V);
    }
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dz = cut == 1 ? guarded_floats(T * V) : copy_of(z, T * V); /* else in place */
        struct soft_sums sums = {0};
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_soft_cross_entropy_scratch(S, V, terms.top_tokens, threads));
            op_soft_cross_entropy(&cx, &sums, dz + s * V, cut == 1 ? z + s * V : dz + s * V, target + s * V, tok + s,
                                  &terms, weight, S, V);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dz, V, want, V, T, V);
        if (memcmp(&sums, &want_sums, sizeof sums))
            fail_msg("%s: the sums are %a %a %a %a, should be %a %a %a %a", case_name, sums.data, sums.soft, sums.top,
                     sums.entropy, want_sums.data, want_sums.soft, want_sums.top, want_sums.entropy);
        release_to(mark);
    }
    CASE("soft targets of %zu, data %g, soft %g, top %g (%zu)", V, (double)terms.data, (double)terms.soft,
         (double)terms.top, terms.top_tokens);
    check_soft_with_formula(want, &want_sums, z, target, tok, &terms, weight, V, 2 * (double)spread);
    release_to(0);
}

TEST(soft_targets_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 1;
    check_soft(520, 8, (struct soft_terms){.soft = 0.1f, .top = 1, .top_tokens = 10}, &seed);
    check_soft(300, 20, (struct soft_terms){.data = 0.5f, .soft = 0.5f}, &seed);
    check_soft(256, 2, (struct soft_terms){.data = 0.25f, .top = 0.75f, .top_tokens = 256}, &seed);
    check_soft(2, 1, (struct soft_terms){.soft = 1, .top = 3, .top_tokens = 1}, &seed);
}

TEST(without_soft_terms_the_gradient_is_that_of_cross_entropy)
{
    uint64_t seed = 2;
    size_t V = 700;
    float *z = random_floats(T * V, &seed), *target = random_floats(T * V, &seed), *dz = guarded_floats(T * V),
          *want = guarded_floats(T * V);
    struct soft_terms terms = {.data = 1, .top_tokens = 10};
    struct soft_sums sums = {0};
    double loss = 0;
    int32_t tok[T];
    for (size_t s = 0; s < T; s++)
        tok[s] = (int32_t)random_below(&seed, V + 1) - 1;
    struct op_ctx cx = context_of(scalar_table(), 1, op_soft_cross_entropy_scratch(T, V, 10, 1));
    op_soft_cross_entropy(&cx, &sums, dz, z, target, tok, &terms, 0.01f, T, V);
    op_cross_entropy(&cx, &loss, want, z, tok, 0.01f, T, V);
    CASE("data alone");
    check_same_bits(dz, V, want, V, T, V);
    if (sums.data != loss || sums.top != 0)
        fail_msg("the sum of the data is %a, op_cross_entropy says %a; the sum of the top is %g", sums.data, loss,
                 sums.top);
}

/* -- features ------------------------------------------------------------------------------------------------------ */

static void check_features(size_t D, float spread, uint64_t *seed)
{
    float *x = random_floats(T * D, seed), *target = random_floats(T * D, seed), *dx0 = random_floats(T * D, seed),
          *want = copy_of(dx0, T * D);
    float weight = (float)(0.7 / 60 / (double)D);
    double want_loss = 1.5, exact_loss = 0, bound = 0, *exact = doubles_of(dx0, T * D);
    int32_t tok[T];
    for (size_t i = 0; i < T * D; i++)
        x[i] *= spread;
    for (size_t s = 0; s < T; s++) {
        double row = 0;
        tok[s] = s % 7 == 2 ? -1 : (int32_t)s;
        for (size_t d = 0; d < D && tok[s] >= 0; d++) {
            float e = x[s * D + d] - target[s * D + d];
            double l = fabs((double)e) < 1 ? 0.5 * fabs((double)e) * fabs((double)e) : fabs((double)e) - 0.5;
            row = row + l;
            want[s * D + d] = want[s * D + d] + fmaxf(-1.0f, fminf(1.0f, e)) * weight;
            bound += (2 * fabs((double)e) * fabs((double)e) + l) / (double)D; /* e is rounded: l changes by |e| 2^-24
                                                                                 min(1, |e|) */
        }
        if (tok[s] >= 0) {
            want_loss = want_loss + row / (double)D;
            exact_loss += ref_smooth_l1(exact + s * D, doubles_of(x + s * D, D), doubles_of(target + s * D, D), &tok[s],
                                        1, (int)D, (double)weight * (double)D);
            release_to(guard_count - 2);
        }
    }
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dx = copy_of(dx0, T * D);
        double loss = 1.5;
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_smooth_l1_scratch(S));
            op_smooth_l1(&cx, &loss, dx + s * D, x + s * D, target + s * D, tok + s, weight, S, D);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dx, D, want, D, T, D);
        if (memcmp(&loss, &want_loss, sizeof loss))
            fail_msg("%s: the loss is %a, should be %a", case_name, loss, want_loss);
        release_to(mark);
    }
    CASE("smooth L1 of %zu", D);
    for (size_t i = 0; i < T * D; i++) /* e, the product, the sum */
        check_within(want[i], exact[i], rounding_gamma(3) * ((double)weight + fabs((double)dx0[i])), i / D, i % D);
    check_sum("smooth L1", want_loss - 1.5, exact_loss,
              0x1p-24 * bound + 0x1p-53 * (double)(T + D + 4) * (exact_loss + 1.5));
    release_to(0);
}

TEST(smooth_l1_is_that_of_its_header_bit_for_bit)
{
    uint64_t seed = 3;
    check_features(2000, 3, &seed);
    check_features(33, 1, &seed);
    check_features(1, 9, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(soft_targets_are_those_of_their_header_bit_for_bit, release_all),
        cmocka_unit_test_teardown(without_soft_terms_the_gradient_is_that_of_cross_entropy, release_all),
        cmocka_unit_test_teardown(smooth_l1_is_that_of_its_header_bit_for_bit, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
