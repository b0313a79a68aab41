/* tests/ops/checkops_router.c -- which experts are chosen, and with what weight. The election is checked by counting,
 * for every expert, how many come before it: another way to the same order than the operator's. */
#include "tests/ops/checkops.h"

#include "ops/router.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a router's last fields are 0 where a table does not
                                                                 name them */

#define MOST_EXPERTS 600
#define MOST_CHOSEN 16

struct routing {
    int32_t expert[64 * MOST_CHOSEN];
    float weight[64 * MOST_CHOSEN];
};

static void run(const struct kernels *k, struct routing *out, const float *logits, const struct router *r, size_t S)
{
    struct op_ctx cx = context_of(k, 1, op_router_scratch(r));
    int32_t *expert = guarded(S * r->chosen * sizeof *expert);
    float *weight = guarded_floats(S * r->chosen);
    CASE("router %s E=%zu k=%zu groups=%zu/%zu norm=%d S=%zu %s", r->sigmoid ? "sigmoid" : "softmax", r->experts,
         r->chosen, r->grouped ? r->chosen_groups : 0, r->groups, r->norm_topk_prob, S, k->name);
    op_router(&cx, expert, weight, logits, r, S);
    assert_int_equal(cx.scratch_used, 0);
    memcpy(out->expert, expert, S * r->chosen * sizeof *expert);
    memcpy(out->weight, weight, S * r->chosen * sizeof *weight);
}

/* ---- rule 7 in plain C ---- */

/* value descending, then index ascending, -0 equal to +0, NaN after everything, -infinity included */
static int comes_before(float a, size_t i, float b, size_t j)
{
    int a_is_number = !isnan(a), b_is_number = !isnan(b);
    if (a_is_number != b_is_number)
        return a_is_number;
    return a_is_number && a != b ? a > b : i < j;
}

/* how many of the n candidates with open[e] come before e */
static size_t rank_of(const float *value, const int *open, size_t n, size_t e)
{
    size_t rank = 0;
    for (size_t i = 0; i < n; i++)
        rank += open[i] && i != e && comes_before(value[i], i, value[e], e);
    return rank;
}

static void contract_scores(float *s, const float *logits, const struct router *r)
{
    size_t E = r->experts;
    float m[8], l[8], M = -INFINITY, L = 0.0f;
    if (r->sigmoid) {
        for (size_t e = 0; e < E; e++)
            s[e] = 1.0f / (1.0f + kernel_expf(-logits[e]));
        return;
    }
    for (size_t b = 0; b * 256 < E; b++) {
        m[b] = contract_softmax_block(s + b * 256, logits + b * 256, E - b * 256 < 256 ? E - b * 256 : 256, &l[b]);
        M = m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b * 256 < E; b++)
        L = fmaf(kernel_expf(m[b] - M), l[b], L);
    for (size_t e = 0; e < E; e++) {
        float p = s[e] * kernel_expf(m[e / 256] - M);
        s[e] = p / L;
    }
}

static float contract_group_score(const float *choice, size_t size, int sum_of_two)
{
    int all[MOST_EXPERTS];
    float best = 0.0f, second = 0.0f;
    for (size_t e = 0; e < size; e++)
        all[e] = 1;
    for (size_t e = 0; e < size; e++) {
        size_t rank = rank_of(choice, all, size, e);
        best = rank == 0 ? choice[e] : best;
        second = rank == 1 ? choice[e] : second;
    }
    return sum_of_two ? best + second : best;
}

/* open[e]: whether e's group stays; choice[e]: what is compared */
static void contract_choices(float *choice, int *open, const float *s, const struct router *r)
{
    size_t size = r->experts / r->groups;
    float score[MOST_EXPERTS];
    int all[MOST_EXPERTS];
    for (size_t e = 0; e < r->experts; e++)
        choice[e] = r->bias ? s[e] + r->bias[e] : s[e];
    for (size_t g = 0; g < r->groups; g++) {
        score[g] = contract_group_score(choice + g * size, size, r->group_sum_of_two);
        all[g] = 1;
    }
    for (size_t e = 0; e < r->experts; e++)
        open[e] = !r->grouped || rank_of(score, all, r->groups, e / size) < r->chosen_groups;
}

static void contract_elect(int32_t *expert, const float *choice, const int *open, const struct router *r)
{
    size_t count = 0;
    for (size_t e = 0; e < r->experts; e++)
        if (open[e] && rank_of(choice, open, r->experts, e) < r->chosen)
            expert[count++] = (int32_t)e;
    assert_int_equal(count, r->chosen);
}

static void contract_weigh(float *weight, const int32_t *expert, const float *s, const struct router *r)
{
    float sum = s[expert[0]];
    for (size_t i = 1; i < r->chosen; i++)
        sum = sum + s[expert[i]];
    for (size_t i = 0; i < r->chosen; i++) {
        float part = s[expert[i]] / sum;
        if (r->norm_topk_prob)
            weight[i] = r->sigmoid ? part * r->routed_scaling_factor : part;
        else
            weight[i] = s[expert[i]] * r->routed_scaling_factor;
    }
}

static void contract_router(int32_t *expert, float *weight, const float *logits, const struct router *r)
{
    float s[MOST_EXPERTS], choice[MOST_EXPERTS];
    int open[MOST_EXPERTS];
    contract_scores(s, logits, r);
    contract_choices(choice, open, s, r);
    contract_elect(expert, choice, open, r);
    contract_weigh(weight, expert, s, r);
}

static void check_routing(const struct routing *got, const float *logits, const struct router *r, size_t S)
{
    for (size_t row = 0; row < S; row++) {
        int32_t expert[MOST_CHOSEN];
        float weight[MOST_CHOSEN];
        contract_router(expert, weight, logits + row * r->experts, r);
        for (size_t i = 0; i < r->chosen; i++) {
            size_t at = row * r->chosen + i;
            if (got->expert[at] != expert[i])
                fail_msg("%s: row %zu, choice %zu is expert %d (logit %.9g), should be %d (logit %.9g)", case_name, row,
                         i, got->expert[at], (double)logits[row * r->experts + (size_t)got->expert[at]], expert[i],
                         (double)logits[row * r->experts + (size_t)expert[i]]);
            if (!same_bits(got->weight[at], weight[i]))
                fail_msg("%s: row %zu, weight %zu (expert %d) is %a, should be %a", case_name, row, i, expert[i],
                         (double)got->weight[at], (double)weight[i]);
        }
    }
}

/* ---- models ---- */

static const struct router routers[] = {
    /* E, k, groups, chosen groups, sigmoid, sum of two, grouped, norm, factor */
    {256, 8, 8, 4, 1, 1, 1, 1, 2.5f, NULL},   /* DeepSeek-V3 */
    {384, 8, 1, 1, 1, 1, 1, 1, 2.827f, NULL}, /* Kimi-K2 */
    {64, 6, 1, 1, 1, 1, 1, 0, 2.446f, NULL},
    {16, 3, 8, 2, 1, 1, 1, 0, 2.5f, NULL},
    {12, 2, 3, 1, 1, 1, 1, 1, 1.0f, NULL},
    {160, 6, 8, 3, 0, 0, 1, 0, 16.0f, NULL}, /* DeepSeek-V2 */
    {64, 6, 1, 1, 0, 0, 0, 0, 1.0f, NULL},   /* DeepSeek-V2-Lite */
    {160, 6, 8, 3, 0, 0, 1, 1, 16.0f, NULL},
    {384, 8, 4, 2, 0, 0, 1, 1, 16.0f, NULL}, /* softmax in two blocks, the second cut short */
    {512, 4, 8, 8, 0, 0, 1, 0, 2.0f, NULL},  /* two whole ones */
    {600, 16, 1, 1, 0, 0, 0, 1, 2.0f, NULL}, /* three */
    {256, 1, 1, 1, 0, 0, 0, 0, 1.0f, NULL},
    {8, 8, 1, 1, 1, 0, 0, 1, 1.0f, NULL}, /* everyone is chosen */
    {8, 4, 8, 4, 0, 0, 1, 0, 1.0f, NULL}, /* groups of one */
};

static struct router biased(struct router r, uint64_t *seed)
{
    float *bias = random_floats(r.experts, seed);
    for (size_t e = 0; e < r.experts; e++) /* quarters, so that sums tie; mostly negative */
        bias[e] = e % 3 ? 0.25f * floorf(4.0f * bias[e]) - 0.5f : bias[e];
    if (r.sigmoid && r.grouped)
        r.bias = bias;
    return r;
}

enum kind { CONTINUOUS, COARSE, SIGNED_ZEROS, SATURATED, WITH_NAN, MOSTLY_NAN, WITH_INFINITY, KINDS };

static float *random_logits(size_t n, enum kind kind, uint64_t *seed)
{
    float *z = random_floats(n, seed);
    for (size_t e = 0; e < n; e++) {
        size_t dice = random_below(seed, 10);
        float coarse = floorf(4.0f * z[e]);
        z[e] = kind == CONTINUOUS      ? 6.0f * z[e]
               : kind == SIGNED_ZEROS  ? (dice < 5 ? -0.0f : dice < 9 ? 0.0f : coarse)
               : kind == SATURATED     ? 200.0f * z[e] /* sigmoid is 0 or 1, softmax underflows */
               : kind == WITH_NAN      ? (dice < 2 ? NAN : coarse)
               : kind == MOSTLY_NAN    ? (dice < 9 ? -NAN : coarse)
               : kind == WITH_INFINITY ? (dice < 1 ? INFINITY : dice < 4 ? -INFINITY : coarse)
                                       : coarse;
    }
    return z;
}

TEST(router_elects_and_weighs_as_counting_does_bit_for_bit)
{
    uint64_t seed = 1;
    static struct routing got;
    for (size_t i = 0; i < COUNT(routers); i++)
        for (int kind = 0; kind < KINDS; kind++) {
            struct router r = biased(routers[i], &seed);
            size_t S = r.experts > 64 ? 3 : 24;
            float *logits = random_logits(S * r.experts, (enum kind)kind, &seed);
            FOR_EACH_TABLE(k) {
                run(k, &got, logits, &r, S);
                check_routing(&got, logits, &r, S);
            }
            release_all(NULL);
        }
}

TEST(router_row_has_the_same_bits_alone_and_among_any_others)
{
    uint64_t seed = 2;
    static struct routing all, some;
    for (size_t i = 0; i < COUNT(routers); i++) {
        struct router r = biased(routers[i], &seed);
        float *logits = random_logits(64 * r.experts, i % 2 ? COARSE : CONTINUOUS, &seed);
        size_t mark = guard_count;
        for (size_t s = 0; s < 64; s++) {
            struct routing one;
            run(scalar_table(), &one, copy_of(logits + s * r.experts, r.experts), &r, 1);
            memcpy(all.expert + s * r.chosen, one.expert, r.chosen * sizeof *one.expert);
            memcpy(all.weight + s * r.chosen, one.weight, r.chosen * sizeof *one.weight);
            release_to(mark);
        }
        FOR_EACH_TABLE(k)
            for (size_t j = 0; j < COUNT(some_rows); j++) {
                size_t S = some_rows[j];
                run(k, &some, copy_of(logits, S * r.experts), &r, S);
                check_same_bits(some.weight, r.chosen, all.weight, r.chosen, S, r.chosen);
                assert_memory_equal(some.expert, all.expert, S * r.chosen * sizeof *some.expert);
                release_to(mark);
            }
        release_all(NULL);
    }
}

/* ---- the formula in double ----
 *
 * sigmoid: exp(-x) is off by 1 ulp = 2 u, 1 + exp by at most 2 u + u, the quotient by one more: s (1 + gamma(4)).
 * softmax: p e_b is exp(x - m_b) exp(m_b - M): two exp (4 u), two differences off by u (M - x) together, one product; L
 *     carries the same and 16 + 4 + blocks additions; one division. With R = M - x of the worst expert that counts:
 *     1 + phi = exp(2 u R) (1 + gamma(4 + 1 + 4 + 16 + 4 + blocks + 1)). An expert below the range of normal numbers
 *     adds at most 2^-126 to L >= 1.
 * weight: s again for the sum, k - 1 additions, a division, a product: (1 + phi)^2 (1 + gamma(k + 1)), or without
 *     norm_topk_prob (1 + phi)(1 + gamma(1)).
 * election, without groups: a choice s + bias is off by phi s + u |s + bias|, so nobody who was left out is ahead of
 *     anybody elected by more than the sum of their two errors. */
static int is_among(size_t e, const int32_t *expert, size_t n)
{
    while (n && (size_t)expert[n - 1] != e)
        n--;
    return n != 0;
}

TEST(router_weights_are_within_their_bound_of_the_formula)
{
    uint64_t seed = 3;
    static struct routing got;
    for (size_t i = 0; i < COUNT(routers); i++) {
        struct router r = biased(routers[i], &seed);
        size_t S = 8, E = r.experts;
        float *logits = random_logits(S * E, CONTINUOUS, &seed);
        FOR_EACH_TABLE(k) {
            run(k, &got, logits, &r, S);
            for (size_t row = 0; row < S; row++) {
                double s[MOST_EXPERTS], M = -INFINITY, lowest = INFINITY, L = 0.0, sum = 0.0;
                const float *z = logits + row * E;
                for (size_t e = 0; e < E; e++) {
                    M = fmax(M, (double)z[e]);
                    lowest = fmin(lowest, (double)z[e]);
                }
                for (size_t e = 0; e < E; e++)
                    L += s[e] = r.sigmoid ? 1.0 / (1.0 + exp(-(double)z[e])) : exp((double)z[e] - M);
                for (size_t e = 0; e < E && !r.sigmoid; e++)
                    s[e] /= L;
                for (size_t c = 0; c < r.chosen; c++)
                    sum += s[got.expert[row * r.chosen + c]];
                double blocks = (double)((E + 255) / 256);
                double phi = r.sigmoid ? 1 + rounding_gamma(4)
                                       : exp(2 * 0x1p-24 * (M - lowest)) * (1 + rounding_gamma(30 + blocks));
                for (size_t in = 0; in < r.chosen && (!r.grouped || r.groups == 1); in++)
                    for (size_t e = 0; e < E; e++) {
                        size_t a = (size_t)got.expert[row * r.chosen + in];
                        double bias_a = r.bias ? (double)r.bias[a] : 0.0, bias_e = r.bias ? (double)r.bias[e] : 0.0;
                        double off = (phi - 1) * (s[a] + s[e]) +
                                     0x1p-24 * (fabs(s[a] * phi + bias_a) + fabs(s[e] * phi + bias_e));
                        if (s[e] + bias_e > s[a] + bias_a + off && !is_among(e, got.expert + row * r.chosen, r.chosen))
                            fail_msg("%s: row %zu, expert %zu is elected, %zu is not; the formula says %.9g and %.9g",
                                     case_name, row, a, e, s[a] + bias_a, s[e] + bias_e);
                    }
                double factor = r.norm_topk_prob ? phi * phi * (1 + rounding_gamma((double)r.chosen + 1)) - 1
                                                 : phi * (1 + rounding_gamma(1)) - 1;
                for (size_t c = 0; c < r.chosen; c++) {
                    double want = s[got.expert[row * r.chosen + c]];
                    want = r.norm_topk_prob ? want / sum : want;
                    want = r.sigmoid || !r.norm_topk_prob ? want * (double)r.routed_scaling_factor : want;
                    check_within(got.weight[row * r.chosen + c], want, factor * want, row, c);
                }
            }
        }
        release_all(NULL);
    }
}

/* ---- the cases where implementations differ ---- */

static void check_experts(const struct routing *got, const int32_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got->expert[i] != want[i])
            fail_msg("%s: choice %zu is expert %d, should be %d", case_name, i, got->expert[i], want[i]);
}

#define EXPERTS(...) (const int32_t[]){__VA_ARGS__}

TEST(router_ties_elect_the_lowest_index)
{
    static struct routing got;
    struct router sigmoid = {8, 3, 4, 2, 1, 1, 1, 1, 1.0f, NULL}, softmax = {8, 3, 1, 1, 0, 0, 0, 1, 1.0f, NULL};
    const float equal[8] = {0}, zeros[8] = {-0.0f, 0.0f, -0.0f, 0.0f, 0.0f, -0.0f, 0.0f, 0.0f};
    const float late[8] = {0, 1, 0, 1, 1, 0, 1, 0};
    FOR_EACH_TABLE(k) {
        run(k, &got, equal, &sigmoid, 1);
        check_experts(&got, EXPERTS(0, 1, 2), 3);
        run(k, &got, zeros, &sigmoid, 1);
        check_experts(&got, EXPERTS(0, 1, 2), 3);
        run(k, &got, equal, &softmax, 1);
        check_experts(&got, EXPERTS(0, 1, 2), 3);
        run(k, &got, late, &softmax, 1);
        check_experts(&got, EXPERTS(1, 3, 4), 3);
    }
}

/* Zeros made in two ways: a bias that takes the score away, and a score that underflows beside a bias of -0 or +0. (A
 * choice of -0 cannot come about: scores are never -0, and a sum of other numbers rounds to +0.) */
TEST(router_choices_of_zero_tie)
{
    static struct routing got;
    const float logits[4] = {0, 0, 0, 0}, bias[4] = {-0.5f, -0.5f, -0.5f, -0.25f};
    const float never[4] = {-200, -200, -200, -200}, zeros[4] = {-0.0f, 0.0f, -0.0f, 0.0f};
    struct router r = {4, 2, 1, 1, 1, 1, 1, 0, 1.0f, bias}, z = {4, 2, 1, 1, 1, 1, 1, 0, 1.0f, zeros};
    FOR_EACH_TABLE(k) {
        run(k, &got, logits, &r, 1);
        check_experts(&got, EXPERTS(0, 3), 2);
        run(k, &got, never, &z, 1);
        check_experts(&got, EXPERTS(0, 1), 2);
    }
}

TEST(router_ranks_nan_below_everything)
{
    static struct routing got;
    const float logits[6] = {NAN, 1, -INFINITY, -NAN, -900, NAN}, bias[6] = {0, 0, -INFINITY, 9, 0, 9};
    struct router r = {6, 3, 1, 1, 1, 1, 1, 1, 1.0f, bias}, all = {6, 5, 1, 1, 1, 1, 1, 1, 1.0f, bias};
    struct router groups = {6, 2, 3, 1, 1, 1, 1, 1, 1.0f, NULL}, softmax = {6, 3, 1, 1, 0, 0, 0, 0, 1.0f, NULL};
    FOR_EACH_TABLE(k) {
        run(k, &got, logits, &r, 1);
        check_experts(&got, EXPERTS(1, 2, 4), 3); /* -infinity is a number, and comes before NaN */
        run(k, &got, logits, &all, 1);
        check_experts(&got, EXPERTS(0, 1, 2, 3, 4), 5);
        run(k, &got, logits, &groups, 1);
        check_experts(&got, EXPERTS(0, 1), 2); /* every group has a NaN: by index */
        run(k, &got, logits, &softmax, 1);
        check_experts(&got, EXPERTS(0, 1, 2), 3); /* one NaN makes all of a softmax NaN */
        assert_true(isnan(got.weight[0]) && isnan(got.weight[2]));
    }
}

/* The choices left are negative: with closed groups at 0 instead of out, experts of the closed group would win. (Expert
 * 4 has the best choice of all, in a group whose second best is poor.) */
TEST(router_keeps_closed_groups_out_when_surviving_choices_are_negative)
{
    static struct routing got;
    const float logits[8] = {2, 1, 0, -1, 3, -3, -3, -3}, bias[8] = {-1, -1, -1, -1, -1, -2, -2, -2};
    struct router r = {8, 3, 2, 1, 1, 1, 1, 1, 2.5f, bias};
    float s[8], choice[8];
    int open[8], all[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t masked_with_zero[3];
    contract_scores(s, logits, &r);
    contract_choices(choice, open, s, &r);
    for (size_t e = 0; e < 8; e++) {
        assert_true(choice[e] < 0.0f && open[e] == (e < 4));
        choice[e] = open[e] ? choice[e] : 0.0f;
    }
    contract_elect(masked_with_zero, choice, all, &r);
    assert_memory_equal(masked_with_zero, EXPERTS(4, 5, 6), sizeof masked_with_zero);
    FOR_EACH_TABLE(k) {
        run(k, &got, logits, &r, 1);
        check_experts(&got, EXPERTS(0, 1, 2), 3);
        check_routing(&got, logits, &r, 1);
    }
}

TEST(router_bias_elects_experts_and_never_weighs_them)
{
    uint64_t seed = 4;
    static struct routing got, plain;
    float *logits = random_logits(12, CONTINUOUS, &seed), *four = copy_of(logits + 8, 4);
    const float bias[12] = {[8] = 100, 100, 100, 100};
    for (int norm = 0; norm < 2; norm++) {
        struct router r = {12, 4, 1, 1, 1, 1, 1, norm, 2.5f, bias}, only = {4, 4, 1, 1, 1, 1, 1, norm, 2.5f, NULL};
        FOR_EACH_TABLE(k) {
            run(k, &plain, four, &only, 1);
            run(k, &got, logits, &r, 1);
            check_experts(&got, EXPERTS(8, 9, 10, 11), 4);
            check_same_bits(got.weight, 4, plain.weight, 4, 1, 4);
        }
    }
}

/* group 0 has the best expert, group 1 the best two */
TEST(router_groups_score_their_two_best_or_their_best)
{
    static struct routing got;
    const float logits[6] = {2.25f, -6, -6, 2, 2, -6};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        struct router two = {6, 2, 2, 1, sigmoid, 1, 1, 1, 1.0f, NULL},
                      best = {6, 2, 2, 1, sigmoid, 0, 1, 1, 1.0f, NULL};
        FOR_EACH_TABLE(k) {
            run(k, &got, logits, &two, 1);
            check_experts(&got, EXPERTS(3, 4), 2);
            run(k, &got, logits, &best, 1);
            check_experts(&got, EXPERTS(0, 1), 2);
        }
    }
}

TEST(router_without_groups_ignores_how_many_there_are)
{
    static struct routing got;
    const float logits[6] = {3, -6, -6, 2, 2, -6};
    struct router greedy = {6, 3, 2, 1, 0, 0, 0, 0, 1.0f, NULL};
    FOR_EACH_TABLE(k) {
        run(k, &got, logits, &greedy, 1);
        check_experts(&got, EXPERTS(0, 3, 4), 3);
    }
}

/* Powers of two, so that the scaled weights are exact: softmax is scaled only when it is not normalised. */
TEST(router_scales_normalised_weights_of_sigmoid_and_not_of_softmax)
{
    static struct routing got;
    const float logits[4] = {0, 0, 0, 0};
    static const float want[2][2] = {{0.25f * 4, 0.5f}, {0.5f * 4, 0.5f * 4}}; /* [sigmoid][norm] */
    for (int sigmoid = 0; sigmoid < 2; sigmoid++)
        for (int norm = 0; norm < 2; norm++) {
            struct router r = {4, 2, 1, 1, sigmoid, sigmoid, sigmoid, norm, 4.0f, NULL};
            FOR_EACH_TABLE(k) {
                run(k, &got, logits, &r, 1);
                check_same_bits(got.weight, 2, (const float[]){want[sigmoid][norm], want[sigmoid][norm]}, 2, 1, 2);
            }
        }
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(router_elects_and_weighs_as_counting_does_bit_for_bit),
        T(router_row_has_the_same_bits_alone_and_among_any_others),
        T(router_weights_are_within_their_bound_of_the_formula),
        T(router_ties_elect_the_lowest_index),
        T(router_choices_of_zero_tie),
        T(router_ranks_nan_below_everything),
        T(router_keeps_closed_groups_out_when_surviving_choices_are_negative),
        T(router_bias_elects_experts_and_never_weighs_them),
        T(router_groups_score_their_two_best_or_their_best),
        T(router_without_groups_ignores_how_many_there_are),
        T(router_scales_normalised_weights_of_sigmoid_and_not_of_softmax),
    };
    return cmocka_run_group_tests_name("checkops_router", tests, NULL, NULL);
}
