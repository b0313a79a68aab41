/* tests/ops/checkops_backward_moe.c -- the gradients of the feed-forward layer, of the sum of experts and of the
 * router: the bits of plain C code in the order of their headers, for every table, 1 to 3 threads and several cuts into
 * micro-batches; and the reference's formulas in double, within a bound. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/linear.h"
#include "ops/backward/moe.h"
#include "ops/backward/router.h"
#include "ops/linear.h"
#include "reference/backward_layers.h"

#define T STEP_TOKENS

/* One feed-forward layer and its gradients. d, I: sizes */
struct layer {
    struct stored_matrix gate, up, down;
    struct mlp_gradients zero, want; /* before the step and after it */
};

static struct layer random_layer(size_t d, size_t I, uint64_t *seed)
{
    struct layer l = {random_matrix(WEIGHT_F32, I, d, seed), random_matrix(WEIGHT_F32, I, d, seed),
                      random_matrix(WEIGHT_F32, d, I, seed), {0}, {0}};
    l.zero = (struct mlp_gradients){random_floats(I * d, seed), random_floats(I * d, seed), random_floats(d * I, seed)};
    l.want = (struct mlp_gradients){copy_of(l.zero.gate, I * d), copy_of(l.zero.up, I * d),
                                    copy_of(l.zero.down, d * I)};
    return l;
}

static struct mlp_gradients copy_of_gradients(const struct mlp_gradients *g, size_t n)
{
    return (struct mlp_gradients){copy_of(g->gate, n), copy_of(g->up, n), copy_of(g->down, n)};
}

static void check_gradients(const struct mlp_gradients *got, const struct mlp_gradients *want, size_t n)
{
    check_same_bits(got->gate, n, want->gate, n, 1, n);
    check_same_bits(got->up, n, want->up, n, 1, n);
    check_same_bits(got->down, n, want->down, n, 1, n);
}

static struct mlp_weights views_of(const struct layer *l)
{
    return (struct mlp_weights){.gate = &l->gate.view, .up = &l->up.view, .down = &l->down.view};
}

/* One row, in the order of mlp.h. gate and up become their gradients. c: NULL, or the weight of the row */
static void plain_row(float *dx, const struct layer *l, float *dc, const float *dy, const float *x, float *gate,
                      float *up, const float *c, size_t d, size_t I)
{
    float h[512] = {0}, a[512];
    for (size_t i = 0; i < I; i++) {
        for (size_t n = 0; n < d; n++)
            h[i] = fmaf(dy[n], l->down.value[n * I + i], h[i]);
        a[i] = gate[i] / (1.0f + kernel_expf(-gate[i])) * up[i];
    }
    if (c)
        *dc = contract_dot(h, a, I);
    for (size_t i = 0; i < I; i++) {
        float da = c ? h[i] * *c : h[i], weighted = c ? a[i] * *c : a[i], g = gate[i], u = up[i];
        float den = 1.0f + kernel_expf(-g), sigma = 1.0f / den;
        for (size_t n = 0; n < d; n++)
            l->want.down[n * I + i] = fmaf(dy[n], weighted, l->want.down[n * I + i]);
        up[i] = da * (g / den);
        gate[i] = ((da * u) * sigma) * (1.0f + g * (1.0f - sigma));
        for (size_t k = 0; k < d; k++) {
            l->want.gate[i * d + k] = fmaf(gate[i], x[k], l->want.gate[i * d + k]);
            l->want.up[i * d + k] = fmaf(up[i], x[k], l->want.up[i * d + k]);
            dx[k] = fmaf(gate[i], l->gate.value[i * d + k], dx[k]);
        }
    }
    for (size_t i = 0; i < I; i++)
        for (size_t k = 0; k < d; k++)
            dx[k] = fmaf(up[i], l->up.value[i * d + k], dx[k]);
}

/* The case of check_mlp: c may be NULL. */
struct mlp_case {
    struct layer l;
    float *x, *dy, *gate, *up, *c, *dx0;
    size_t d, I;
};

/* The wanted values against the reference. A bound multiplies the number of roundings that a term meets, one after the
 * other, with the magnitudes of the terms: d for h, one for c, then 5 for du (exp counts as 2). dg has the factor f = 1
 * + g (1 - sigma): the error of sigma, 4 roundings, makes one of at most 7 (1 + |g|) in f, so the magnitude of f is
 * taken as 1 + |g|. */
static void check_mlp_truth(const struct mlp_case *o, const float *dx, const float *dc, const float *dgate,
                            const float *dup)
{
    size_t d = o->d, I = o->I, n = T * I;
    double *w[3] = {doubles_of(o->l.gate.value, I * d), doubles_of(o->l.up.value, I * d),
                    doubles_of(o->l.down.value, I * d)},
           *dy = doubles_of(o->dy, T * d);
    double *dw[3] = {doubles_of(o->l.zero.gate, I * d), doubles_of(o->l.zero.up, I * d),
                     doubles_of(o->l.zero.down, I * d)};
    double *size[3] = {magnitudes_of(o->l.zero.gate, I * d), magnitudes_of(o->l.zero.up, I * d),
                       magnitudes_of(o->l.zero.down, I * d)};
    double *a = guarded(n * sizeof *a), *da = guarded(n * sizeof *da), *da_size = guarded(n * sizeof *da),
           *y = guarded(d * sizeof *y), *dx_of = doubles_of(o->dx0, T * d);
    double *g = doubles_of(o->gate, n), *u = doubles_of(o->up, n), *dg = guarded(n * sizeof *dg),
           *du = guarded(n * sizeof *du), *dx_size = magnitudes_of(o->dx0, T * d);
    double *a_size = guarded(n * sizeof *a), *none = guarded(n * sizeof *none), *dyc = guarded(d * sizeof *y),
           *x = doubles_of(o->x, T * d);
    memset(da, 0, n * sizeof *da);
    memset(da_size, 0, n * sizeof *da);
    memset(dg, 0, n * sizeof *dg);
    memset(du, 0, n * sizeof *du);
    for (size_t s = 0; s < T; s++) {
        double c = o->c ? (double)o->c[s] : 1, dweight = 0, dweight_size = 0;
        for (size_t i = s * I; i < (s + 1) * I; i++) {
            a[i] = g[i] / (1 + exp(-g[i])) * u[i];
            a_size[i] = fabs(a[i]);
        }
        for (size_t k = 0; k < d; k++) {
            y[k] = dyc[k] = 0;
            for (size_t i = 0; i < I; i++)
                y[k] += w[2][k * I + i] * a[s * I + i];
        }
        ref_back_experts_sum(&dweight, dyc, dy + s * d, &c, y, 1, 1, (int)d);
        ref_back_linear(da + s * I, dw[2], dyc, w[2], a + s * I, 1, (int)d, (int)I);
        for (size_t k = 0; k < d; k++)
            for (size_t i = 0; i < I; i++) {
                da_size[s * I + i] += fabs(c * dy[s * d + k] * w[2][k * I + i]);
                size[2][k * I + i] += fabs(c * dy[s * d + k] * a[s * I + i]);
            }
        for (size_t i = s * I; i < (s + 1) * I; i++)
            dweight_size += da_size[i] / fabs(c) * a_size[i];
        if (o->c)
            check_within(dc[s], dweight, rounding_gamma((double)d + 6 + dot_depth(I)) * dweight_size, s, 0);
    }
    ref_back_swiglu(dg, du, da, g, u, n);
    double *dg_size = guarded(n * sizeof *dg_size), *du_size = guarded(n * sizeof *du_size);
    for (size_t i = 0; i < n; i++) {
        double sigma = 1 / (1 + exp(-g[i]));
        dg_size[i] = da_size[i] * fabs(u[i]) * sigma * (1 + fabs(g[i]));
        du_size[i] = da_size[i] * fabs(g[i]) * sigma;
    }
    check_rounded(dgate, dg, dg_size, (double)d + 1 + 16, n);
    check_rounded(dup, du, du_size, (double)d + 1 + 5, n);
    ref_back_linear(dx_of, dw[0], dg, w[0], x, T, (int)I, (int)d);
    ref_back_linear(dx_of, dw[1], du, w[1], x, T, (int)I, (int)d);
    ref_back_linear(dx_size, size[0], dg_size, magnitudes_of(o->l.gate.value, I * d), magnitudes_of(o->x, T * d), T,
                    (int)I, (int)d);
    ref_back_linear(dx_size, size[1], du_size, magnitudes_of(o->l.up.value, I * d), magnitudes_of(o->x, T * d), T,
                    (int)I, (int)d);
    check_rounded(dx, dx_of, dx_size, 2 * (double)I + (double)d + 17, T * d);
    check_rounded(o->l.want.gate, dw[0], size[0], T + (double)d + 17, I * d);
    check_rounded(o->l.want.up, dw[1], size[1], T + (double)d + 6, I * d);
    check_rounded(o->l.want.down, dw[2], size[2], T + 7, I * d);
}

static void check_mlp(size_t d, size_t I, int weighted, uint64_t *seed)
{
    struct mlp_case o = {random_layer(d, I, seed), random_floats(T * d, seed), random_floats(T * d, seed),
                         random_floats(T * I, seed), random_floats(T * I, seed),
                         weighted ? random_floats(T, seed) : NULL, random_floats(T * d, seed), d, I};
    for (size_t i = 0; i < T * I; i++)
        o.gate[i] *= 9.0f;
    float *want_dx = copy_of(o.dx0, T * d), *want_dc = guarded_floats(T), *dgate = copy_of(o.gate, T * I),
          *dup = copy_of(o.up, T * I);
    for (size_t s = 0; s < T; s++)
        plain_row(want_dx + s * d, &o.l, want_dc + s, o.dy + s * d, o.x + s * d, dgate + s * I, dup + s * I,
                  o.c ? o.c + s : NULL, d, I);
    size_t mark = guard_count;
    struct mlp_weights w = views_of(&o.l);
    FOR_EACH_SETTING(k, threads, cut)
    {
        struct mlp_gradients grown = copy_of_gradients(&o.l.zero, I * d);
        float *dx = copy_of(o.dx0, T * d), *gate = copy_of(o.gate, T * I), *up = copy_of(o.up, T * I),
              *dc = guarded_floats(T);
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_back_mlp_scratch(S, I));
            op_back_mlp(&cx, dx + s * d, &grown, o.c ? dc + s : NULL, o.dy + s * d, o.x + s * d, gate + s * I,
                        up + s * I, o.c ? o.c + s : NULL, &w, S);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dx, d, want_dx, d, T, d);
        check_same_bits(gate, I, dgate, I, T, I);
        check_same_bits(up, I, dup, I, T, I);
        check_same_bits(dc, 1, want_dc, 1, o.c ? T : 0, 1);
        check_gradients(&grown, &o.l.want, I * d);
        release_to(mark);
    }
    CASE("MLP of %zu and %zu", d, I);
    check_mlp_truth(&o, want_dx, want_dc, dgate, dup);
    release_to(0);
}

TEST(gradients_of_the_feed_forward_layer_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 1;
    check_mlp(67, 90, 0, &seed);
    check_mlp(40, 300, 1, &seed);
    check_mlp(3, 1, 1, &seed);
}

/* -- the sum of experts -------------------------------------------------------------------------------------------- */

enum { D = 48,
       I = 40,
       E = 5,
       X = 2 };

static struct layer experts[E];
static struct mlp_gradients grown[E];

static struct mlp_weights expert_at(const void *arg, size_t e)
{
    (void)arg;
    return views_of(&experts[e]);
}

/* Expert 3 is frozen. */
static const struct mlp_gradients *gradients_at(const void *arg, size_t e)
{
    (void)arg;
    return e == 3 ? NULL : &grown[e];
}

TEST(gradients_of_experts_are_those_of_the_rows_that_chose_them)
{
    uint64_t seed = 2;
    struct moe_weights w = {.experts = E, .chosen = X, .intermediate = I, .weights_of = expert_at};
    struct moe_gradients gradients = {gradients_at, NULL};
    int32_t chosen[T * X];
    float *x = random_floats(T * D, &seed), *dy = random_floats(T * D, &seed), *c = random_floats(T * X, &seed),
          *dx0 = random_floats(T * D, &seed);
    float *want_dx = copy_of(dx0, T * D), *want_dc = guarded_floats(T * X);
    for (size_t e = 0; e < E; e++)
        experts[e] = random_layer(D, I, &seed);
    for (size_t s = 0; s < T; s++) { /* nobody chooses expert 4 */
        chosen[s * X] = (int32_t)random_below(&seed, 3);
        chosen[s * X + 1] = chosen[s * X] + 1 + (int32_t)random_below(&seed, (uint64_t)(3 - chosen[s * X]));
    }
    for (size_t s = 0; s < T; s++)
        for (size_t j = 0; j < X; j++) {
            const struct layer *l = &experts[chosen[s * X + j]];
            float gate[I], up[I], dx[D] = {0};
            for (size_t i = 0; i < I; i++) {
                gate[i] = contract_dot(l->gate.value + i * D, x + s * D, D);
                up[i] = contract_dot(l->up.value + i * D, x + s * D, D);
            }
            plain_row(dx, l, want_dc + s * X + j, dy + s * D, x + s * D, gate, up, c + s * X + j, D, I);
            for (size_t k = 0; k < D; k++)
                want_dx[s * D + k] = want_dx[s * D + k] + dx[k];
        }
    size_t mark = guard_count;
    FOR_EACH_SETTING(k, threads, cut)
    {
        float *dx = copy_of(dx0, T * D), *dc = guarded_floats(T * X);
        for (size_t e = 0; e < E; e++)
            grown[e] = copy_of_gradients(&experts[e].zero, I * D);
        FOR_EACH_MICRO_BATCH(cut, s, S)
        {
            struct op_ctx cx = context_of(k, threads, op_back_moe_scratch(S, D, I));
            op_back_moe(&cx, dx + s * D, &gradients, dc + s * X, dy + s * D, x + s * D, chosen + s * X, c + s * X, &w,
                        S);
            assert_int_equal(cx.scratch_used, 0);
        }
        check_same_bits(dx, D, want_dx, D, T, D);
        check_same_bits(dc, X, want_dc, X, T, X);
        for (size_t e = 0; e < E; e++)
            check_gradients(&grown[e], e == 3 ? &experts[e].zero : &experts[e].want, I * D);
        release_to(mark);
    }
}

/* -- the router ---------------------------------------------------------------------------------------------------- */

static void plain_router(float *dx, const float *dc, const float *s, const int32_t *e, const struct router *r)
{
    size_t chosen = r->chosen;
    float ds[16], sum = 0.0f, mean = 0.0f, t = 0.0f,
                  f = r->sigmoid || r->scale_softmax || !r->norm_topk_prob ? r->routed_scaling_factor : 1.0f;
    for (size_t j = 0; j < chosen; j++)
        sum = sum + s[e[j]];
    float m = r->normaliser == 2 ? fmaxf(sum, 0x1p-14f) : r->normaliser ? sum + 1e-20f
                                                                        : sum;
    for (size_t j = 0; j < chosen; j++)
        mean = r->normaliser == 2 && sum < 0x1p-14f ? 0.0f : fmaf(dc[j], s[e[j]] / m, mean);
    for (size_t j = 0; j < chosen; j++) {
        ds[j] = r->norm_topk_prob ? (f * (dc[j] - mean)) / m : f * dc[j];
        t = fmaf(s[e[j]], ds[j], t);
    }
    for (size_t i = 0; i < r->experts; i++)
        dx[i] = r->sigmoid ? 0.0f : s[i] * (0.0f - t);
    for (size_t j = 0; j < chosen; j++)
        dx[e[j]] = r->sigmoid ? (ds[j] * s[e[j]]) * (1.0f - s[e[j]]) : s[e[j]] * (ds[j] - t);
}

/* The scores have an error of `rho` roundings (4 with sigmoid: exp counts as 2, the sum, the quotient), their sum and m
 * `chosen` more. */
static void check_router_truth(const float *dx, const float *dc, const float *logits, const int32_t *e,
                               const struct router *r, double range)
{
    struct reference_run run = {0};
    struct config config = {.n_routed_experts = (int)r->experts, .num_experts_per_tok = (int)r->chosen,
                            .norm_topk_prob = r->norm_topk_prob};
    double *s = doubles_of(logits, r->experts), *ds = guarded(r->experts * sizeof *ds),
           *want = guarded(r->experts * sizeof *want), chosen[16], m = 0, mean = 0, t = 0;
    config.routed_scaling_factor = (double)r->routed_scaling_factor;
    config.scoring_func = r->sigmoid ? SCORING_SIGMOID : SCORING_SOFTMAX;
    config.topk_method = r->scale_softmax ? TOPK_GROUP_LIMITED_TOP2 : TOPK_GREEDY;
    run.options.conventions.value[NORMALISER_EPS] = r->normaliser;
    run.c = &config;
    memset(ds, 0, r->experts * sizeof *ds);
    memset(want, 0, r->experts * sizeof *want);
    for (size_t j = 0; j < r->chosen; j++)
        chosen[j] = e[j];
    ref_scores(&run, s);
    ref_back_expert_weights(&run, ds, doubles_of(dc, r->chosen), chosen, s);
    ref_back_scores(&run, want, ds, s);
    for (size_t j = 0; j < r->chosen; j++)
        m += s[e[j]];
    m = r->normaliser == 2 ? fmax(m, 0x1p-14) : m;
    for (size_t j = 0; j < r->chosen; j++)
        mean += fabs((double)dc[j]) * s[e[j]] / m;
    double rho = r->sigmoid ? 4 : 2 * (2 * range + 4) + 20 + (double)r->experts / 256 + 1 + 2, X_ = (double)r->chosen,
           f = ref_weight_factor(&config);
    double size[512] = {0};
    for (size_t j = 0; j < r->chosen; j++) {
        size[e[j]] = r->norm_topk_prob ? f / m * (fabs((double)dc[j]) + mean) : f * fabs((double)dc[j]);
        t += s[e[j]] * size[e[j]];
    }
    for (size_t i = 0; i < r->experts; i++) /* sigmoid: 1 - s has the absolute error of s */
        check_within(dx[i], want[i],
                     rounding_gamma(6 * rho + 4 * X_ + 12) * s[i] * (r->sigmoid ? size[i] : size[i] + t) + 0x1p-140, 0,
                     i);
}

TEST(the_gradient_of_the_router_is_that_of_its_header_bit_for_bit)
{
    uint64_t seed = 3;
    for (int variant = 0; variant < 24; variant++) {
        struct router r = {.experts = variant % 2 ? 300 : 17, .chosen = variant % 2 ? 8 : 3, .sigmoid = variant / 2 % 2,
                           .norm_topk_prob = variant / 4 % 2, .routed_scaling_factor = 2.5f, .normaliser = variant / 8,
                           .scale_softmax = variant / 8 == 1};
        size_t n = r.experts, S = 9;
        float *logits = random_floats(S * n, &seed), *dc = random_floats(S * r.chosen, &seed),
              *want = guarded_floats(S * n), *s = guarded_floats(n), few[2];
        int32_t e[9 * 8];
        for (size_t i = 0; i < S * n; i++)
            logits[i] = logits[i] * 3.0f - (variant / 8 == 2 ? 12.0f : 0.0f); /* -12: the sum of sigmoids is less than
                                                                                 2^-14 */
        for (size_t i = 0; i < S * r.chosen; i++)
            e[i] = (int32_t)(i % r.chosen * (n / r.chosen) + random_below(&seed, n / r.chosen));
        CASE("router variant %d", variant);
        for (size_t row = 0; row < S; row++) {
            struct op_ctx cx = context_of(scalar_table(), 1, 0);
            op_router_scores(&cx, s, logits + row * n, &r, few);
            plain_router(want + row * n, dc + row * r.chosen, s, e + row * r.chosen, &r);
            check_router_truth(want + row * n, dc + row * r.chosen, logits + row * n, e + row * r.chosen, &r, 6);
        }
        FOR_EACH_TABLE(k) {
            struct op_ctx cx = context_of(k, 3, op_back_router_scratch(&r));
            float *dx = copy_of(logits, S * n);
            op_back_router(&cx, dx, dc, dx, e, &r, S);
            assert_int_equal(cx.scratch_used, 0);
            CASE("%s, router variant %d", k->name, variant);
            check_same_bits(dx, n, want, n, S, n);
        }
        release_to(0);
    }
}

TEST(the_bias_of_busy_experts_falls_and_that_of_idle_experts_rises)
{
    float bias[] = {1.0f, 1.0f, 1.0f, 1.0f};
    const int64_t load[] = {7, 6, 5, 6};
    op_balance_bias(bias, load, 4, 0.25f);
    assert_true(bias[0] == 0.75f && bias[1] == 1.0f && bias[2] == 1.25f && bias[3] == 1.0f);
    const int64_t uneven[] = {1, 0, 0}; /* the mean is a third */
    op_balance_bias(bias, uneven, 3, 0.25f);
    assert_true(bias[0] == 0.5f && bias[1] == 1.25f && bias[2] == 1.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_of_the_feed_forward_layer_are_those_of_their_header_bit_for_bit,
                                  release_all),
        cmocka_unit_test_teardown(gradients_of_experts_are_those_of_the_rows_that_chose_them, release_all),
        cmocka_unit_test_teardown(the_gradient_of_the_router_is_that_of_its_header_bit_for_bit, release_all),
        cmocka_unit_test(the_bias_of_busy_experts_falls_and_that_of_idle_experts_rises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
