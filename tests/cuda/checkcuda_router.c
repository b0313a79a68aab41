/* tests/cuda/checkcuda_router.c -- the choice of experts on an emulated device. */
#include "ops/router.h"
#include "tests/cuda/checkcuda.h"

#define S 5
#define MOST 2048

/* Logits of all kinds: random; few different ones, so that many are equal; zeros of both signs, infinities and NaN; all
 * NaN; NaN first. */
static float *all_logits(size_t E, uint64_t *seed)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 90.0f, -90.0f, 0x1p-140f};
    float *x = random_floats(S * E, seed);
    for (size_t e = 0; e < E; e++) {
        x[e] *= 4.0f;
        x[E + e] = (float)random_below(seed, 3) - 1.0f;
        x[2 * E + e] = special[random_below(seed, COUNT(special))];
        x[3 * E + e] = NAN;
    }
    x[4 * E] = NAN;
    return x;
}

static void check(struct device *d, const struct router *r, const float *logits)
{
    size_t n = S * r->chosen;
    struct op_ctx cx = context_of(scalar_table(), 1, op_router_scratch(r));
    int32_t *want = guarded(n * sizeof *want), *got = with_twin(d, guarded(n * sizeof *got), n * sizeof *got);
    float *want_weight = guarded_floats(n), *got_weight = with_twin(d, guarded_floats(n), n * sizeof *got_weight);
    assert_true(cuda_can_route(r));
    cx.op->router(&cx, want, want_weight, logits, r, S);
    cx = device_context(d, op_router_scratch(r));
    cx.op->router(&cx, got, got_weight, logits, r, S);
    fetch(d, got, n * sizeof *got);
    fetch(d, got_weight, n * sizeof *got_weight);
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: expert %zu of row %zu is %d on the device, %d on the CPU", case_name, i % r->chosen,
                     i / r->chosen, (int)got[i], (int)want[i]);
    check_same_bits(got_weight, r->chosen, want_weight, r->chosen, S, r->chosen);
    drop(d, got), drop(d, got_weight), drop(d, cx.scratch);
}

TEST(router_chooses_and_weighs_as_on_the_cpu)
{
    static const struct {
        size_t experts, chosen, groups, kept;
    } shapes[] = {{1, 1, 1, 1}, {8, 2, 4, 2}, {64, 6, 1, 1}, {66, 7, 3, 2}, {256, 8, 8, 4}, {257, 5, 1, 1},
                  {600, 16, 20, 3}, {400, 8, 100, 40}, {MOST, 64, 4, 4}};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t i = 0; i < COUNT(shapes); i++)
            for (unsigned how = 0; how < 24; how++) {
                size_t mark = guard_count, E = shapes[i].experts, pairs = E / shapes[i].groups > 1;
                struct router r = {.experts = E, .chosen = shapes[i].chosen, .groups = shapes[i].groups,
                                   .chosen_groups = shapes[i].kept, .sigmoid = how & 1,
                                   .group_sum_of_two = (how >> 1 & 1) && pairs, .grouped = how % 5 != 0,
                                   .norm_topk_prob = how % 3 != 0, .routed_scaling_factor = 2.5f, .bf16 = how >> 2 & 1,
                                   .normaliser = (int)how / 8, .mask_with_zero = how % 7 == 0,
                                   .scale_softmax = how >> 3 & 1};
                float *logits = with_twin(d, all_logits(E, &seed), S * E * sizeof(float));
                float *bias = with_twin(d, random_floats(E, &seed), E * sizeof(float));
                r.bias = how % 4 < 2 ? bias : NULL;
                CASE("router E=%zu chosen=%zu groups=%zu/%zu how=%u order=%d", E, r.chosen, r.chosen_groups, r.groups,
                     how, order_);
                check(d, &r, logits);
                drop(d, logits), drop(d, bias);
                release_to(mark);
            }
}

TEST(router_refuses_what_does_not_fit)
{
    assert_false(cuda_can_route(&(struct router){.experts = MOST + 1, .chosen = 8}));
    assert_false(cuda_can_route(&(struct router){.experts = MOST, .chosen = 65}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(router_chooses_and_weighs_as_on_the_cpu, release_all),
                                       cmocka_unit_test(router_refuses_what_does_not_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
