/* tests/ops/checkops_router_variants.c -- the router against the rule in plain double, on cases chosen so that what
 * other engines do instead is told apart. Each wrong variant is computed here too, as a negative control: on the cases
 * named for it its answer must differ from the right one, which proves that the cases can tell, and the operator must
 * give the right one. Where a case cannot tell (one group), the controls must agree. */
#include "tests/ops/checkops.h"

#include "ops/router.h"

#define MOST_EXPERTS 256
#define MOST_CHOSEN 8

/* ---- the rule, and what is done instead -------------------------------------------------------------------------- */

enum rule {
    RIGHT,
    MASK_ZERO,           /* closed groups' choices 0.0 instead of out: Hugging Face before transformers #45441 */
    GROUPS_IGNORED,      /* ik_llama.cpp; llama.cpp with GGUF files that lack the key */
    BEST_IN_EACH_GROUP,  /* topk_group experts of every group, instead of the experts of topk_group groups:
                            deepseek.cpp */
    OTHER_GROUP_SCORE,   /* the best choice (V2's rule) for the sum of the best two, or the other way round */
    BIASED_WEIGHTS,      /* weights from the scores with the bias: deepseek.cpp */
    BIAS_LEFT_OUT,       /* the official script on any model whose hidden size is not 7168 */
    BIAS_BEFORE_SIGMOID, /* sigmoid(logit + bias) */
    OTHER_SCORES,        /* softmax for sigmoid, or the other way round */
    TIES_TO_THE_LAST,    /* >= in the scan */
    NORM_TURNED,         /* norm_topk_prob read as its opposite */
    SCALE_LEFT_OUT,      /* routed_scaling_factor */
    TINY_IN_THE_SUM,     /* + 1e-20 in the divisor: Hugging Face. Within f32 the same as RIGHT */
    RULES
};

static const char *const rule_names[RULES] = {
    "the rule", "closed groups at 0.0", "groups ignored", "the best of each group", "the other group score",
    "weights with the bias", "no bias", "bias before the sigmoid", "the other scoring function", "ties to the last",
    "norm_topk_prob turned", "not scaled", "1e-20 in the sum"};

struct scenario {
    const char *name;
    struct router router;
    float logits[MOST_EXPERTS], bias[MOST_EXPERTS];
};

struct answer {
    int32_t expert[MOST_CHOSEN]; /* ascending */
    double weight[MOST_CHOSEN];
    double margin;               /* the least by which anybody was elected; 0 is a tie */
};

/* the best of those that are open, and by how much; it is closed */
static size_t take_best(const double *value, int *open, size_t n, int ties_to_the_last, double *margin)
{
    size_t best = n;
    double second = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (open[i] && (best == n || value[i] > value[best] || (ties_to_the_last && value[i] == value[best])))
            best = i;
    open[best] = 0;
    for (size_t i = 0; i < n; i++)
        second = open[i] ? fmax(second, value[i]) : second;
    *margin = value[best] - second;
    return best;
}

static void scores_of(double *s, const struct scenario *c, int sigmoid, int biased)
{
    size_t E = c->router.experts;
    double max = -INFINITY, sum = 0.0;
    for (size_t e = 0; e < E; e++) {
        s[e] = (double)c->logits[e] + (biased ? (double)c->bias[e] : 0.0);
        max = fmax(max, s[e]);
    }
    for (size_t e = 0; e < E; e++)
        sum += s[e] = sigmoid ? 1.0 / (1.0 + exp(-s[e])) : exp(s[e] - max);
    for (size_t e = 0; e < E && !sigmoid; e++)
        s[e] /= sum;
}

/* open[e] on return: whether e may be elected */
static void open_groups(int *open, const double *choice, const struct router *r, enum rule rule, double *margin)
{
    size_t size = r->experts / r->groups;
    double score[MOST_EXPERTS], by;
    int left[MOST_EXPERTS], kept[MOST_EXPERTS] = {0}, two = r->group_sum_of_two != (rule == OTHER_GROUP_SCORE);
    for (size_t g = 0; g < r->groups; g++) {
        int in_group[MOST_EXPERTS];
        for (size_t e = 0; e < size; e++)
            in_group[e] = 1;
        score[g] = choice[g * size + take_best(choice + g * size, in_group, size, 0, &by)];
        score[g] += two ? choice[g * size + take_best(choice + g * size, in_group, size, 0, &by)] : 0.0;
        left[g] = 1;
    }
    for (size_t i = 0; i < r->chosen_groups; i++) {
        kept[take_best(score, left, r->groups, rule == TIES_TO_THE_LAST, &by)] = 1;
        if (i + 1 == r->chosen_groups && i + 1 < r->groups)
            *margin = fmin(*margin, by);
    }
    for (size_t e = 0; e < r->experts; e++)
        open[e] = kept[e / size];
}

static void open_best_of_each_group(int *open, const double *choice, const struct router *r)
{
    size_t size = r->experts / r->groups;
    double by;
    for (size_t g = 0; g < r->groups; g++) {
        int left[MOST_EXPERTS];
        for (size_t e = 0; e < size; e++)
            left[e] = 1;
        for (size_t i = 0; i < r->chosen_groups && i < size; i++)
            take_best(choice + g * size, left, size, 0, &by);
        for (size_t e = 0; e < size; e++)
            open[g * size + e] = !left[e];
    }
}

static struct answer route(const struct scenario *c, enum rule rule)
{
    const struct router *r = &c->router;
    struct answer a = {.margin = INFINITY};
    double s[MOST_EXPERTS], choice[MOST_EXPERTS] = {0}, sum = 0.0, by = 0.0;
    int open[MOST_EXPERTS], norm = r->norm_topk_prob != (rule == NORM_TURNED);
    size_t E = r->experts, count = 0;
    scores_of(s, c, r->sigmoid != (rule == OTHER_SCORES), rule == BIAS_BEFORE_SIGMOID);
    for (size_t e = 0; e < E; e++) {
        choice[e] = r->bias && rule != BIAS_LEFT_OUT && rule != BIAS_BEFORE_SIGMOID ? s[e] + (double)c->bias[e] : s[e];
        open[e] = 1;
    }
    if (rule == BEST_IN_EACH_GROUP)
        open_best_of_each_group(open, choice, r);
    else if (rule != GROUPS_IGNORED)
        open_groups(open, choice, r, rule, &a.margin);
    for (size_t e = 0; rule == MASK_ZERO && e < E; e++) {
        choice[e] = open[e] ? choice[e] : 0.0;
        open[e] = 1;
    }
    int elected[MOST_EXPERTS] = {0};
    for (size_t i = 0; i < r->chosen; i++)
        elected[take_best(choice, open, E, rule == TIES_TO_THE_LAST, &by)] = 1;
    a.margin = fmin(a.margin, by);
    for (size_t e = 0; e < E; e++)
        if (elected[e]) {
            a.expert[count] = (int32_t)e;
            a.weight[count++] = rule == BIASED_WEIGHTS ? choice[e] : s[e];
        }
    for (size_t i = 0; i < r->chosen; i++)
        sum += a.weight[i];
    sum += rule == TINY_IN_THE_SUM ? 1e-20 : 0.0;
    for (size_t i = 0; i < r->chosen; i++) {
        a.weight[i] = norm ? a.weight[i] / sum : a.weight[i];
        if ((r->sigmoid || !norm) && rule != SCALE_LEFT_OUT)
            a.weight[i] *= (double)r->routed_scaling_factor;
    }
    return a;
}

/* Roundings on the way to a weight, as tests/ops/checkops_router.c derives them; logits here differ by at most 64. */
static double relative_bound(const struct router *r)
{
    double score = r->sigmoid ? rounding_gamma(4) : exp(2 * 0x1p-24 * 64) * (1 + rounding_gamma(31)) - 1;
    return (1 + score) * (1 + score) * (1 + rounding_gamma((double)r->chosen + 1)) - 1;
}

/* other experts, or weights further apart than rounding explains: twice, since both may be off */
static int differ(const struct answer *a, const struct answer *b, const struct router *r)
{
    for (size_t i = 0; i < r->chosen; i++)
        if (a->expert[i] != b->expert[i] ||
            fabs(a->weight[i] - b->weight[i]) > 2 * relative_bound(r) * fabs(a->weight[i]))
            return 1;
    return 0;
}

/* ---- the cases --------------------------------------------------------------------------------------------------- */

enum { V3, V3_NEGATIVE, V3_TIES, V3_EQUAL, NEGATIVE, TWO_AGAINST_ONE, ONE_GROUP, ALL_GROUPS, V2, SCENARIOS };
static struct scenario scenarios[SCENARIOS];

static void add(int which, const char *name, struct router router, float spread, float bias, float bias_spread,
                int coarse)
{
    struct scenario *c = &scenarios[which];
    uint64_t seed = 100 + (uint64_t)which;
    *c = (struct scenario){.name = name, .router = router};
    for (size_t e = 0; e < router.experts; e++) {
        c->logits[e] = spread * random_float(&seed);
        c->bias[e] = bias + bias_spread * random_float(&seed);
        if (coarse) { /* scores of exactly 1/2 and 1, biases in eighths: sums are exact, and tie */
            c->logits[e] = random_below(&seed, 3) ? 0.0f : 40.0f;
            c->bias[e] = 0.125f * (float)random_below(&seed, 8) - 0.75f;
        }
    }
    c->router.bias = router.sigmoid ? c->bias : NULL;
}

static void set(int which, const float *logits, const float *bias)
{
    memcpy(scenarios[which].logits, logits, scenarios[which].router.experts * sizeof *logits);
    memcpy(scenarios[which].bias, bias, scenarios[which].router.experts * sizeof *bias);
}

static void make_scenarios(void)
{
    struct router v3 = {.experts = 256, .chosen = 8, .groups = 8, .chosen_groups = 4, .grouped = 1,
                        .group_sum_of_two = 1, .sigmoid = 1, .norm_topk_prob = 1, .routed_scaling_factor = 2.5f};
    struct router v2 = {.experts = 160, .chosen = 6, .groups = 8, .chosen_groups = 3, .grouped = 1,
                        .routed_scaling_factor = 16.0f};
    struct router moonlight = v3, all = v3, eight = v3, six = v3;
    moonlight.experts = all.experts = 64, moonlight.chosen = all.chosen = 6;
    moonlight.groups = moonlight.chosen_groups = 1, moonlight.routed_scaling_factor = 2.446f;
    all.chosen_groups = all.groups;
    eight.experts = 8, eight.chosen = 3, eight.groups = 2, eight.chosen_groups = 1;
    six.experts = 6, six.chosen = 2, six.groups = 2, six.chosen_groups = 1;
    add(V3, "256 experts in 8 groups", v3, 3.0f, 0.0f, 0.3f, 0);
    add(V3_NEGATIVE, "256 experts in 8 groups, every choice negative", v3, 3.0f, -1.5f, 0.3f, 0);
    add(V3_TIES, "256 experts in 8 groups, ties", v3, 0.0f, 0.0f, 0.0f, 1);
    add(V3_EQUAL, "256 experts in 8 groups, all equal", v3, 0.0f, -1.0f, 0.0f, 0);
    add(NEGATIVE, "8 experts in 2 groups, every choice negative", eight, 0, 0, 0, 0);
    set(NEGATIVE, (const float[]){2, 1, 0, -1, 3, -3, -3, -3}, (const float[]){-1, -1, -1, -1, -1, -2, -2, -2});
    add(TWO_AGAINST_ONE, "the best expert against the best two", six, 0, 0, 0, 0);
    set(TWO_AGAINST_ONE, (const float[]){2.25f, -6, -6, 2, 2, -6}, (const float[6]){0});
    add(ONE_GROUP, "64 experts in 1 group", moonlight, 3.0f, 0.0f, 0.3f, 0);
    add(ALL_GROUPS, "64 experts in 8 groups, all kept", all, 3.0f, -0.2f, 0.3f, 0);
    add(V2, "160 experts in 8 groups, softmax", v2, 3.0f, 0, 0, 0);
}

/* which cases tell a wrong variant from the rule */
static const struct {
    enum rule rule;
    int cases[4]; /* -1 ends the list */
} told_by[] = {
    {MASK_ZERO, {V3_NEGATIVE, NEGATIVE, V3_EQUAL, -1}},
    {GROUPS_IGNORED, {V3, V3_NEGATIVE, V2, -1}},
    {BEST_IN_EACH_GROUP, {V3, V3_NEGATIVE, -1}},
    {OTHER_GROUP_SCORE, {TWO_AGAINST_ONE, V3_NEGATIVE, V2, -1}},
    {BIASED_WEIGHTS, {V3, ONE_GROUP, NEGATIVE, -1}},
    {BIAS_LEFT_OUT, {V3, ONE_GROUP, -1}},
    {BIAS_BEFORE_SIGMOID, {V3, ONE_GROUP, -1}},
    {OTHER_SCORES, {V3, ONE_GROUP, V2, -1}},
    {TIES_TO_THE_LAST, {V3_TIES, V3_EQUAL, -1}},
    {NORM_TURNED, {V3, ONE_GROUP, V2, -1}},
    {SCALE_LEFT_OUT, {V3, ONE_GROUP, V2, -1}},
};

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* the operator, told `r`, gives `want` */
static void check_operator(const struct scenario *c, const struct router *r, const struct answer *want)
{
    if (!(want->margin == 0.0 || want->margin > 1e-5)) /* some 40 times what f32 may be off */
        fail_msg("%s: somebody is elected by %g only, which f32 may not see", c->name, want->margin);
    FOR_EACH_TABLE(k) {
        struct op_ctx cx = context_of(k, 1, op_router_scratch(r));
        int32_t *expert = guarded(r->chosen * sizeof *expert);
        float *weight = guarded_floats(r->chosen);
        CASE("%s, %s", c->name, k->name);
        op_router(&cx, expert, weight, c->logits, r, 1);
        for (size_t j = 0; j < r->chosen; j++) {
            if (expert[j] != want->expert[j])
                fail_msg("%s: choice %zu is expert %d, should be %d", case_name, j, expert[j], want->expert[j]);
            check_within(weight[j], want->weight[j], relative_bound(r) * want->weight[j], 0, j);
        }
    }
}

TEST(router_gives_the_rules_answer_on_every_case)
{
    for (size_t i = 0; i < SCENARIOS; i++) {
        struct answer right = route(&scenarios[i], RIGHT);
        check_operator(&scenarios[i], &scenarios[i].router, &right);
    }
}

/* Two of the variants are conventions, which the operator can be told to follow. */
TEST(router_told_a_convention_gives_that_variants_answer)
{
    for (size_t i = 0; i < SCENARIOS; i++) {
        struct router mask = scenarios[i].router, tiny = scenarios[i].router;
        struct answer masked = route(&scenarios[i], MASK_ZERO), added = route(&scenarios[i], TINY_IN_THE_SUM);
        mask.mask_with_zero = 1;
        tiny.normaliser = 1;
        check_operator(&scenarios[i], &mask, &masked);
        check_operator(&scenarios[i], &tiny, &added);
    }
}

TEST(router_cases_tell_each_wrong_variant_from_the_rule)
{
    int told[RULES] = {0};
    for (size_t i = 0; i < COUNT(told_by); i++)
        for (const int *which = told_by[i].cases; *which >= 0; which++) {
            struct answer right = route(&scenarios[*which], RIGHT), wrong = route(&scenarios[*which], told_by[i].rule);
            if (!differ(&right, &wrong, &scenarios[*which].router))
                fail_msg("%s: \"%s\" gives the right answer", scenarios[*which].name, rule_names[told_by[i].rule]);
            told[told_by[i].rule]++;
        }
    for (int rule = RIGHT + 1; rule < TINY_IN_THE_SUM; rule++)
        if (!told[rule])
            fail_msg("no case tells \"%s\" from the rule", rule_names[rule]);
}

/* A case that told everything from everything would prove nothing. */
TEST(router_variants_that_cannot_matter_agree_with_the_rule)
{
    static const enum rule of_groups[] = {MASK_ZERO, GROUPS_IGNORED, OTHER_GROUP_SCORE};
    static const int no_closed_group[] = {ONE_GROUP, ALL_GROUPS};
    for (size_t i = 0; i < COUNT(of_groups); i++)
        for (size_t j = 0; j < COUNT(no_closed_group); j++) {
            const struct scenario *c = &scenarios[no_closed_group[j]];
            struct answer right = route(c, RIGHT), variant = route(c, of_groups[i]);
            if (differ(&right, &variant, &c->router))
                fail_msg("%s: \"%s\" gives another answer, and no group is closed", c->name, rule_names[of_groups[i]]);
        }
    for (size_t i = 0; i < SCENARIOS; i++) {
        struct answer right = route(&scenarios[i], RIGHT), tiny = route(&scenarios[i], TINY_IN_THE_SUM);
        assert_false(differ(&right, &tiny, &scenarios[i].router));
    }
    struct answer right = route(&scenarios[V3], RIGHT), mask = route(&scenarios[V3], MASK_ZERO);
    assert_false(differ(&right, &mask, &scenarios[V3].router)); /* choices above 0: the older code was right by luck */
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    make_scenarios();
    const struct CMUnitTest tests[] = {
        T(router_gives_the_rules_answer_on_every_case),
        T(router_told_a_convention_gives_that_variants_answer),
        T(router_cases_tell_each_wrong_variant_from_the_rule),
        T(router_variants_that_cannot_matter_agree_with_the_rule),
    };
    return cmocka_run_group_tests_name("checkops_router_variants", tests, NULL, NULL);
}
