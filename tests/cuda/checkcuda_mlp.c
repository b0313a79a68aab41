/* tests/cuda/checkcuda_mlp.c -- feed-forward layers, dense and with experts, on an emulated device. */
#include "ops/cuda/linear.h"
#include "ops/mlp.h"
#include "tests/cuda/checkcuda.h"

struct three {
    struct weight_view gate, up, down;
};

static struct weight_view random_view(struct device *d, int type, size_t rows, size_t cols, uint64_t *seed)
{
    if (!weight_is_quantized(type)) {
        struct weight_view stored = random_matrix(type, rows, cols, seed).view;
        if (weight_is_packed(type))
            stored.rounded = in_bf16;
        return on_device(d, &stored, weight_is_packed(type) ? 0 : 29, 0);
    }
    const struct quantized_format *f = quantized_format(type);
    size_t bytes = rows * cols / f->numbers * f->bytes;
    unsigned char *data = guarded(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)next_random(seed);
    for (size_t i = 0; i < bytes; i += f->bytes) { /* scales d of Q8_0, Q4_0 and Q6_K, about 2^-8 */
        size_t at = i + (type == WEIGHT_Q6_K ? 208 : 0);
        data[at + 1] = (unsigned char)((data[at + 1] & 0x83) | 0x1c);
    }
    return (struct weight_view){.type = type, .data = with_twin(d, data, bytes), .rows = rows, .cols = cols,
                                .stride = cols};
}

static struct three random_three(struct device *d, const int types[3], size_t width, size_t intermediate,
                                 uint64_t *seed)
{
    return (struct three){random_view(d, types[0], intermediate, width, seed),
                          random_view(d, types[1], intermediate, width, seed),
                          random_view(d, types[2], width, intermediate, seed)};
}

static void remove_three(struct device *d, const struct three *w)
{
    without_twin(d, &w->gate, 0), without_twin(d, &w->up, 0), without_twin(d, &w->down, 0);
}

static struct mlp_weights weights_of_three(const struct three *w)
{
    return (struct mlp_weights){.gate = &w->gate, .up = &w->up, .down = &w->down};
}
static struct mlp_weights weights_of(const void *arg, size_t e)
{
    return weights_of_three((const struct three *)arg + e);
}

static const int types[][3] = {{WEIGHT_F16, WEIGHT_F16, WEIGHT_F16}, {WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16},
                               {WEIGHT_F8_E4M3, WEIGHT_F8_E4M3, WEIGHT_F8_E4M3}, {WEIGHT_I4, WEIGHT_I4, WEIGHT_F4},
                               {WEIGHT_Q8_0, WEIGHT_Q8_0, WEIGHT_Q8_0}, {WEIGHT_Q4_0, WEIGHT_Q4_0, WEIGHT_Q6_K},
                               {WEIGHT_Q8_0, WEIGHT_BF16, WEIGHT_I8}};
#define CAN_BE_BF16(t) ((t)[0] == WEIGHT_BF16 || (t)[0] == WEIGHT_I4)

static float *twin_of_floats(struct device *d, size_t n) { return with_twin(d, guarded_floats(n), n * sizeof(float)); }

TEST(dense_layers_have_the_bits_of_the_cpu)
{
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (size_t m = 0; m < COUNT(types); m++)
            for (in_bf16 = 0; in_bf16 <= CAN_BE_BF16(types[m]); in_bf16++)
                for (size_t S = 1; S <= 6; S += order_ ? 5 : 2) {
                    size_t mark = guard_count, width = 96, i = types[m][2] == WEIGHT_Q6_K ? 256 : 64,
                           bytes = op_mlp_scratch(S, width, i);
                    size_t size = S * width * sizeof(float);
                    struct three w = random_three(d, types[m], width, i, &seed);
                    struct mlp_weights weights = weights_of_three(&w);
                    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
                    float *x = with_twin(d, random_floats(S * width, &seed), size), *want = guarded_floats(S * width),
                          *got = twin_of_floats(d, S * width);
                    CASE("types %zu%s, S=%zu", m, in_bf16 ? " in bf16" : "", S);
                    op_mlp(&cpu, want, x, &weights, S);
                    cx.op->mlp(&cx, got, x, &weights, S);
                    fetch(d, got, size);
                    check_same_bits(got, width, want, width, S, width);
                    cx.op->mlp(&cx, x, x, &weights, S); /* y may be x */
                    fetch(d, x, size);
                    check_same_bits(x, width, want, width, S, width);
                    remove_three(d, &w);
                    drop(d, x), drop(d, got), drop(d, cx.scratch);
                    release_to(mark);
                }
    in_bf16 = 0;
}

/* The experts of a row are in ascending order. If `crowded` is set, all rows choose the last experts. */
static void choose(int32_t *expert, size_t S, size_t chosen, size_t experts, int crowded, uint64_t *seed)
{
    for (size_t s = 0; s < S; s++)
        for (size_t c = 0, e = crowded ? experts - chosen : 0; c < chosen; e++)
            if (random_below(seed, (unsigned)(experts - e)) < chosen - c)
                expert[s * chosen + c++] = (int32_t)e;
}

/* An array of experts whose twin has the addresses of the device. */
static struct three *random_experts(struct device *d, const int of[3], size_t experts, size_t width, size_t i,
                                    uint64_t *seed)
{
    struct three *w = guarded(experts * sizeof *w), *there = guarded(experts * sizeof *w);
    for (size_t e = 0; e < experts; e++) {
        w[e] = random_three(d, of, width, i, seed);
        if (d)
            there[e] = (struct three){device_view(d, &w[e].gate), device_view(d, &w[e].up), device_view(d, &w[e].down)};
    }
    if (d) {
        assert_int_equal(device_add(d, w, experts * sizeof *w), 0);
        d->type->write(d, device_at(d, w), there, experts * sizeof *w);
    }
    return w;
}

TEST(experts_have_the_bits_of_the_cpu)
{
    static const struct {
        size_t experts, chosen, S;
    } shapes[] = {{8, 2, 1}, {8, 3, 2}, {1, 1, 3}, {8, 2, 4}, {5, 4, 9}, {300, 4, 6}, {4, 1, 34}};
    uint64_t seed = 2;
    FOR_EACH_OPERATORS(d)
        for (size_t m = 0; m < COUNT(types); m++)
            for (in_bf16 = 0; in_bf16 <= CAN_BE_BF16(types[m]); in_bf16++)
                for (size_t n = 0; n < COUNT(shapes); n++) {
                    size_t mark = guard_count, experts = shapes[n].experts, chosen = shapes[n].chosen, S = shapes[n].S;
                    size_t width = weight_is_quantized(types[m][0]) || m == 3 ? 64 : 36,
                           i = types[m][2] == WEIGHT_Q6_K ? 256 : 64;
                    size_t bytes, size = S * width * sizeof(float);
                    if (order_ ? m % 3 != 1 || n > 4 : n > 4 && m % 2) /* in other orders, BF16 and Q8_0 only */
                        continue;
                    struct three *w = random_experts(d, types[m], experts, width, i, &seed);
                    struct three shared = random_three(d, types[(m + n) % 2 ? 1 : m], width, i, &seed);
                    struct mlp_weights of_shared = weights_of_three(&shared);
                    struct moe_weights weights = {experts, chosen, i, weights_of, w, n % 3 ? &of_shared : NULL};
                    int32_t *expert = guarded(S * chosen * sizeof *expert);
                    float *weight = random_floats(S * chosen, &seed),
                          *x = with_twin(d, random_floats(S * width, &seed), S * width * sizeof(float));
                    float *want = guarded_floats(S * width), *got = twin_of_floats(d, S * width);
                    choose(expert, S, chosen, experts, n == 4, &seed);
                    with_twin(d, expert, S * chosen * sizeof *expert),
                        with_twin(d, weight, S * chosen * sizeof *weight);
                    bytes = op_moe_scratch(S, width, i, i, experts, chosen);
                    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
                    CASE("types %zu%s, %zu of %zu experts, S=%zu", m, in_bf16 ? " in bf16" : "", chosen, experts, S);
                    op_moe(&cpu, want, x, expert, weight, &weights, S);
                    cx.op->moe(&cx, got, x, expert, weight, &weights, S);
                    fetch(d, got, size);
                    check_same_bits(got, width, want, width, S, width);
                    for (size_t e = 0; e < experts; e++)
                        remove_three(d, &w[e]);
                    remove_three(d, &shared);
                    drop(d, w), drop(d, expert), drop(d, weight), drop(d, x),
                        drop(d, got);
                    drop(d, cx.scratch);
                    release_to(mark);
                }
    in_bf16 = 0;
}

TEST(sums_of_experts_have_the_bits_of_the_cpu)
{
    uint64_t seed = 3;
    FOR_EACH_ORDER(d)
        for (size_t chosen = 1; chosen <= 8; chosen++) {
            size_t mark = guard_count, S = 3, width = 300, pairs = S * chosen;
            float *out = with_twin(d, random_floats(pairs * width, &seed), pairs * width * sizeof(float));
            float *weight = with_twin(d, random_floats(pairs, &seed), pairs * sizeof(float));
            float *shared = chosen % 2 ? with_twin(d, random_floats(S * width, &seed), S * width * sizeof(float))
                                       : NULL;
            float *want = guarded_floats(S * width), *got = twin_of_floats(d, S * width);
            struct op_ctx cpu = context_of(scalar_table(), 1, 0);
            for (size_t j = 0; j < S * width; j += 5) { /* a sum that begins with +0 is not -0 */
                for (size_t c = 0; c < chosen; c++)
                    out[j / width * chosen * width + c * width + j % width] = -0.0f;
                if (shared)
                    shared[j] = -0.0f;
            }
            for (size_t i = 0; i < pairs; i++)
                weight[i] = fabsf(weight[i]);
            device_write(d, out, pairs * width * sizeof(float));
            device_write(d, weight, pairs * sizeof(float));
            device_write(d, shared, shared ? S * width * sizeof(float) : 0);
            CASE("sum of %zu experts", chosen);
            op_moe_sum(&cpu, want, out, weight, shared, chosen, S, width);
            device_run(d, sum_experts, S, divide_up(width, THREADS_sum_experts), 1, .y = device_at(d, got),
                       .out = device_at(d, out), .weight = device_at(d, weight), .shared = device_at(d, shared),
                       .chosen = chosen, .d = width);
            fetch(d, got, S * width * sizeof(float));
            check_same_bits(got, width, want, width, S, width);
            drop(d, out), drop(d, weight), drop(d, shared), drop(d, got);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(dense_layers_have_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(experts_have_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(sums_of_experts_have_the_bits_of_the_cpu,
                                                                 release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
