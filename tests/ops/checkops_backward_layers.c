/* tests/ops/checkops_backward_layers.c -- the gradients of linear layers, RMSNorm, RoPE, embedding and cross entropy:
 * the bits of plain C code in the order of their headers, for every table, 1 to 3 threads and several cuts into
 * micro-batches; and the reference's formula in double, within a bound. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/cross_entropy.h"
#include "ops/backward/embed.h"
#include "ops/backward/linear.h"
#include "ops/backward/rmsnorm.h"
#include "ops/backward/rope.h"
#include "reference/backward_layers.h"

#define T STEP_TOKENS

/* -- linear layers ------------------------------------------------------------------------------------------------- */

static void plain_linear(float *dx, float *dw, const float *dy, const float *w, const float *x, size_t S, size_t N,
                         size_t K)
{
    for (size_t s = 0; s < S; s++)
        for (size_t n = 0; n < N; n++)
            for (size_t k = 0; k < K; k++) {
                dx[s * K + k] = fmaf(dy[s * N + n], w[n * K + k], dx[s * K + k]);
                dw[n * K + k] = fmaf(dy[s * N + n], x[s * K + k], dw[n * K + k]);
            }
}

static void check_linear(size_t N, size_t K, uint64_t *seed)
{
    struct stored_matrix w = random_matrix(WEIGHT_F32, N, K, seed);
    float *x = random_floats(T * K, seed), *dy = random_floats(T * N, seed), *dx0 = random_floats(T * K, seed),
          *dw0 = random_floats(N * K, seed);
    float *want_dx = copy_of(dx0, T * K), *want_dw = copy_of(dw0, N * K);
    plain_linear(want_dx, want_dw, dy, w.value, x, T, N, K);
    size_t mark = guard_count;
    FOR_EACH_SETTING(real, threads, cut)
    {
        struct kernels k = spy_begin(real);
        float *dx = copy_of(dx0, T * K), *dw = copy_of(dw0, N * K);
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(cut ? real : &k, threads, 0);
            op_back_linear_w(&cx, dw, dy + s * N, x + s * K, S, N, K);
            op_back_linear_x(&cx, dx + s * K, dy + s * N, &w.view, S);
            assert_int_equal(cx.scratch_used, 0);
        }
        if (cut == 0 && N > 64 && K > 64)
            check_threads_ran(threads);
        check_same_bits(dx, K, want_dx, K, T, K);
        check_same_bits(dw, K, want_dw, K, N, K);
        release_to(mark);
    }
    double *dx = doubles_of(dx0, T * K), *dw = doubles_of(dw0, N * K), *dx_size = magnitudes_of(dx0, T * K),
           *dw_size = magnitudes_of(dw0, N * K);
    ref_back_linear(dx, dw, doubles_of(dy, T * N), doubles_of(w.value, N * K), doubles_of(x, T * K), T, (int)N, (int)K);
    ref_back_linear(dx_size, dw_size, magnitudes_of(dy, T * N), magnitudes_of(w.value, N * K), magnitudes_of(x, T * K),
                    T, (int)N, (int)K);
    CASE("linear [%zu, %zu]", N, K);
    check_rounded(want_dx, dx, dx_size, (double)N, T * K); /* one fma for each row of W */
    check_rounded(want_dw, dw, dw_size, (double)T, N * K); /* one fma for each token */
    release_to(0);
}

TEST(gradients_of_linear_layers_are_sums_in_order_bit_for_bit)
{
    uint64_t seed = 1;
    check_linear(130, 97, &seed);
    check_linear(1, 1, &seed);
    check_linear(33, 7, &seed);
    check_linear(5, 200, &seed);
}

/* More than the operator takes at once, of both. */
TEST(the_order_is_the_same_for_many_tokens_and_rows)
{
    uint64_t seed = 5;
    size_t S = 530, N = 210, K = 37;
    struct stored_matrix w = random_matrix(WEIGHT_F32, N, K, &seed);
    float *x = random_floats(S * K, &seed), *dy = random_floats(S * N, &seed), *dw0 = random_floats(N * K, &seed);
    float *want_dx = guarded_floats(S * K), *want_dw = copy_of(dw0, N * K);
    memset(want_dx, 0, S * K * sizeof *want_dx);
    plain_linear(want_dx, want_dw, dy, w.value, x, S, N, K);
    size_t mark = guard_count;
    FOR_EACH_TABLE(k)
    for (int threads = 1; threads <= 3; threads += 2) {
        CASE("%s, %d threads, %zu tokens", k->name, threads, S);
        struct op_ctx cx = context_of(k, threads, 0);
        float *dw = copy_of(dw0, N * K);
        op_back_linear_w(&cx, dw, dy, x, S, N, K);
        check_same_bits(dw, K, want_dw, K, N, K);
        release_to(mark);
    }
    release_to(0);
}

/* The weights of a frozen layer may have any type of rule 1. */
TEST(gradients_flow_through_weights_of_every_type)
{
    uint64_t seed = 2;
    size_t N = 40, K = 96, S = 9;
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
        float *dy = random_floats(S * N, &seed), *want = random_floats(S * K, &seed), *dx0 = copy_of(want, S * K),
              *dw = random_floats(N * K, &seed);
        plain_linear(want, dw, dy, w.value, dx0, S, N, K);
        FOR_EACH_TABLE(k) {
            struct op_ctx cx = context_of(k, 2, 0);
            float *dx = copy_of(dx0, S * K);
            CASE("%s, %s", k->name, type_names[type]);
            op_back_linear_x(&cx, dx, dy, &w.view, S);
            check_same_bits(dx, K, want, K, S, K);
        }
        release_to(0);
    }
}

/* -- RMSNorm ------------------------------------------------------------------------------------------------------- */

static void plain_norm(float *dx, float *dw, const float *dy, const float *x, const float *w, size_t S, size_t D,
                       size_t ld, float eps)
{
    float g[512];
    for (size_t s = 0; s < S; s++, dx += ld, x += ld, dy += D) {
        float r = 1.0f / sqrtf(contract_dot(x, x, D) / (float)D + eps);
        for (size_t d = 0; d < D; d++)
            g[d] = dy[d] * w[d];
        float t = (contract_dot(g, x, D) * r) / (float)D;
        for (size_t d = 0; d < D; d++) {
            dx[d] = fmaf(r, g[d] - (x[d] * r) * t, dx[d]);
            dw[d] = fmaf(dy[d], x[d] * r, dw[d]);
        }
    }
}

static void check_norm(size_t D, size_t ld, uint64_t *seed)
{
    float *x = random_floats(T * ld, seed), *dy = random_floats(T * D, seed), *w = random_floats(D, seed),
          *dx0 = random_floats(T * ld, seed);
    float *dw0 = random_floats(D, seed), *want_dx = copy_of(dx0, T * ld), *want_dw = copy_of(dw0, D), eps = 0.01f;
    plain_norm(want_dx, want_dw, dy, x, w, T, D, ld, eps);
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dx = copy_of(dx0, T * ld), *dw = copy_of(dw0, D);
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_back_rmsnorm_scratch(S, D, threads));
            op_back_rmsnorm(&cx, dx + s * ld, cut == 1 && s ? NULL : dw, dy + s * D, D, x + s * ld, ld, w, S, D, eps);
            if (cut == 1 && s) /* without dw nothing else changes; then once more for dw alone */
                op_back_rmsnorm(&cx, copy_of(dx0, T * ld), dw, dy + s * D, D, x + s * ld, ld, w, S, D, eps);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dx, ld, want_dx, ld, T, ld);
        check_same_bits(dw, D, want_dw, D, 1, D);
        release_to(mark);
    }
    /* r has the error of its dot, halved by the root, and four roundings: less than gamma(depth + 4). So has t, twice,
     * with that of its own dot, of the products g, and two roundings; x r t has it once more. */
    double depth = dot_depth(D), *dw = doubles_of(dw0, D), *dw_size = magnitudes_of(dw0, D);
    for (size_t s = 0; s < T; s++) {
        double *dx = doubles_of(dx0 + s * ld, D), squares = 0, sum = 0;
        ref_back_norm(dx, dw, doubles_of(dy + s * D, D), doubles_of(w, D), doubles_of(x + s * ld, D), 1, (int)D,
                      (double)eps);
        for (size_t d = 0; d < D; d++) {
            squares += pow((double)x[s * ld + d], 2);
            sum += fabs((double)(dy[s * D + d] * w[d] * x[s * ld + d]));
        }
        double r = 1 / sqrt(squares / (double)D + (double)eps);
        for (size_t d = 0; d < D; d++) {
            double X = (double)x[s * ld + d],
                   size = r * fabs((double)(dy[s * D + d] * w[d])) + r * r * r * fabs(X) / (double)D * sum * 1.001;
            check_within(want_dx[s * ld + d], dx[d],
                         rounding_gamma(4 * depth + 24) * (size + fabs((double)dx0[s * ld + d])), s, d);
            dw_size[d] += fabs((double)dy[s * D + d] * X * r);
        }
    }
    check_rounded(want_dw, dw, dw_size, depth + 4 + 1 + T, D);
    release_to(0);
}

TEST(gradients_of_rms_norm_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 3;
    check_norm(388, 388, &seed);
    check_norm(33, 41, &seed);
    check_norm(1, 1, &seed);
}

/* -- RoPE ---------------------------------------------------------------------------------------------------------- */

TEST(the_gradient_of_rope_turns_back)
{
    uint64_t seed = 4;
    for (int interleave = 0; interleave < 2; interleave++) {
        enum { R = 10,
               HEADS = 3,
               STRIDE = 13 };
        struct rope rope;
        float angles[R], *dy = random_floats(HEADS * STRIDE, &seed), *dx = copy_of(dy, HEADS * STRIDE),
                         *want = copy_of(dy, HEADS * STRIDE);
        rope_init(&rope, R, interleave, 10000.0, NULL);
        op_rope_angles(angles, &rope, 777);
        op_back_rope(dx, HEADS, STRIDE, angles, &rope);
        CASE("RoPE, interleave %d", interleave);
        for (size_t h = 0; h < HEADS; h++) {
            double exact[R], size[R], c[R / 2], s[R / 2];
            for (size_t i = 0; i < R / 2; i++) {
                size_t a = h * STRIDE + (interleave ? 2 * i : i), b = h * STRIDE + (interleave ? 2 * i + 1 : i + R / 2);
                c[i] = (double)angles[i];
                s[i] = (double)angles[R / 2 + i];
                want[a] = dy[a] * angles[i] + dy[b] * angles[R / 2 + i];
                want[b] = dy[b] * angles[i] - dy[a] * angles[R / 2 + i];
                size[a - h * STRIDE] = fabs((double)dy[a] * c[i]) + fabs((double)dy[b] * s[i]);
                size[b - h * STRIDE] = fabs((double)dy[b] * c[i]) + fabs((double)dy[a] * s[i]);
            }
            for (size_t i = 0; i < R; i++)
                exact[i] = (double)dy[h * STRIDE + i];
            ref_back_rope(exact, c, s, 1, 1, R, interleave);
            check_rounded(dx + h * STRIDE, exact, size, 2, R); /* a product and the sum */
        }
        check_same_bits(dx, STRIDE, want, STRIDE, HEADS, STRIDE); /* what lies between the heads stays */
        release_to(0);
    }
}

/* -- embedding ----------------------------------------------------------------------------------------------------- */

TEST(gradients_of_the_embedding_are_added_token_by_token)
{
    uint64_t seed = 5;
    size_t V = 6, D = 1500;
    int32_t tok[T];
    float *dy = random_floats(T * D, &seed), *dw0 = random_floats(V * D, &seed), *want = copy_of(dw0, V * D);
    for (size_t s = 0; s < T; s++) {
        tok[s] = (int32_t)random_below(&seed, V);
        for (size_t d = 0; d < D; d++)
            want[(size_t)tok[s] * D + d] = want[(size_t)tok[s] * D + d] + dy[s * D + d];
    }
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dw = copy_of(dw0, V * D);
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, 0);
            op_back_embed(&cx, dw, dy + s * D, tok + s, S, D);
        }
        check_same_bits(dw, D, want, D, V, D);
        release_to(mark);
    }
    double *dw = doubles_of(dw0, V * D), *size = magnitudes_of(dw0, V * D);
    ref_back_embed(dw, doubles_of(dy, T * D), tok, T, (int)D);
    ref_back_embed(size, magnitudes_of(dy, T * D), tok, T, (int)D);
    CASE("embedding");
    check_rounded(want, dw, size, T, V * D);
}

/* -- cross entropy ------------------------------------------------------------------------------------------------- */

static void plain_entropy(double *loss, float *dz, const float *z, int32_t tok, float weight, size_t V)
{
    float m[8], l[8], M = -INFINITY, L = 0.0f;
    for (size_t b = 0; b * 256 < V; b++) {
        m[b] = contract_softmax_block(dz + b * 256, z + b * 256, V - b * 256 < 256 ? V - b * 256 : 256, &l[b]);
        M = m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b * 256 < V; b++)
        L = fmaf(kernel_expf(m[b] - M), l[b], L);
    for (size_t v = 0; v < V; v++) {
        float p = dz[v] * kernel_expf(m[v / 256] - M) / L;
        dz[v] = tok < 0 ? 0.0f : (v == (size_t)tok ? p - 1.0f : p) * weight;
    }
    if (tok >= 0)
        *loss = *loss + ((double)M + kernel_log((double)L) - (double)z[tok]);
}

/* Each difference z - m_b and m_b - M is rounded, which changes exp of it by as much as 2^-24 of the range, relatively;
 * an exp has an error of 2 roundings. So have the terms of L, with the additions of their block and one fma for each
 * block; then a product and a quotient. */
static double entropy_roundings(double range, size_t blocks) { return 2 * (2 * range + 4) + 20 + (double)blocks + 2; }

static void check_entropy(size_t V, float spread, uint64_t *seed)
{
    float *z = random_floats(T * V, seed), *want = guarded_floats(T * V), weight = (float)(0.3 / 61);
    double want_loss = 2.5, loss_of_rows = 0, bound = 0, size = 0;
    int32_t tok[T];
    for (size_t i = 0; i < T * V; i++)
        z[i] *= spread;
    for (size_t s = 0; s < T; s++) {
        tok[s] = s % 9 == 4 ? -1 : (int32_t)random_below(seed, V);
        plain_entropy(&want_loss, want + s * V, z + s * V, tok[s], weight, V);
    }
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dz = cut == 1 ? guarded_floats(T * V) : copy_of(z, T * V); /* else in place */
        double loss = 2.5;
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_cross_entropy_scratch(S, V, threads));
            op_cross_entropy(&cx, &loss, dz + s * V, cut == 1 ? z + s * V : dz + s * V, tok + s, weight, S, V);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dz, V, want, V, T, V);
        if (memcmp(&loss, &want_loss, sizeof loss))
            fail_msg("%s: the loss is %a, should be %a", case_name, loss, want_loss);
        release_to(mark);
    }
    CASE("cross entropy of %zu", V);
    double roundings = entropy_roundings(2 * (double)spread, (V + 255) / 256), *exact = guarded(V * sizeof *exact);
    for (size_t s = 0; s < T; s++) {
        if (tok[s] < 0)
            continue;
        memset(exact, 0, V * sizeof *exact);
        double *row = doubles_of(z + s * V, V),
               loss = ref_cross_entropy(exact, row, &tok[s], 1, (int)V, (double)weight);
        for (size_t v = 0; v < V; v++) { /* then the difference with 1, and the product */
            double p = exact[v] / (double)weight + (v == (size_t)tok[s]);
            check_within(want[s * V + v], exact[v],
                         (double)weight * (rounding_gamma(roundings) * p + rounding_gamma(2)) + 0x1p-140, s, v);
        }
        loss_of_rows += loss;
        bound += rounding_gamma(roundings);
        size += fabs(loss) + fabs((double)z[s * V]) + 2 * (double)spread;
        release_to(guard_count - 1);
    }
    if (!(fabs(want_loss - 2.5 - loss_of_rows) <= bound + T * 4 * 0x1p-53 * (size + 2.5)))
        fail_msg("%s: the loss is %.17g, should be %.17g", case_name, want_loss - 2.5, loss_of_rows);
    release_to(0);
}

TEST(cross_entropy_is_that_of_its_header_bit_for_bit)
{
    uint64_t seed = 6;
    check_entropy(520, 8, &seed);
    check_entropy(256, 30, &seed);
    check_entropy(2, 1, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_of_linear_layers_are_sums_in_order_bit_for_bit, release_all),
        cmocka_unit_test_teardown(the_order_is_the_same_for_many_tokens_and_rows, release_all),
        cmocka_unit_test_teardown(gradients_flow_through_weights_of_every_type, release_all),
        cmocka_unit_test_teardown(gradients_of_rms_norm_are_those_of_their_header_bit_for_bit, release_all),
        cmocka_unit_test_teardown(the_gradient_of_rope_turns_back, release_all),
        cmocka_unit_test_teardown(gradients_of_the_embedding_are_added_token_by_token, release_all),
        cmocka_unit_test_teardown(cross_entropy_is_that_of_its_header_bit_for_bit, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
