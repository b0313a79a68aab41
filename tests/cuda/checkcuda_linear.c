/* tests/cuda/checkcuda_linear.c -- linear layers that follow rule 1, on an emulated device. */
#include "ops/linear.h"
#include "tests/cuda/checkcuda.h"

/* x [S,K] times a matrix, on the device and on the CPU. */
static void check(struct device *d, const struct weight_view *w, const float *x, size_t S, int exact)
{
    size_t N = w->rows, K = w->cols, bytes = op_linear_scratch(S, K), count = S * N * sizeof(float);
    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
    float *want = guarded_floats(S * N), *got = with_twin(d, guarded_floats(S * N), count);
    (exact ? op_linear_exact : op_linear)(&cpu, want, x, w, S);
    (exact ? cx.op->linear_exact : cx.op->linear)(&cx, got, x, w, S);
    fetch(d, got, count);
    check_same_bits(got, N, want, N, S, N);
    cx.op->linear_divided(&cx, got, N, x, 0, w, S); /* among one process */
    if (exact)
        cpu.op->linear(&cpu, want, x, w, S);
    fetch(d, got, count);
    check_same_bits(got, N, want, N, S, N);
    drop(d, got), drop(d, cx.scratch);
}

static void check_shape(struct device *d, int type, size_t N, size_t K, size_t S, size_t more, size_t shift, int exact,
                        uint64_t *seed)
{
    size_t mark = guard_count;
    struct weight_view stored = random_matrix(type, N, K, seed).view;
    if (weight_is_packed(type))
        stored.rounded = in_bf16;
    struct weight_view w = on_device(d, &stored, more, shift);
    float *x = with_twin(d, random_floats(S * K, seed), S * K * sizeof(float));
    CASE("%s%s N=%zu K=%zu S=%zu stride=%zu shift=%zu", type_names[type], in_bf16 ? " in bf16" : "", N, K, S, w.stride,
         shift);
    check(d, &w, x, S, exact);
    drop(d, x);
    without_twin(d, &w, shift);
    release_to(mark);
}

TEST(sums_of_every_length_have_the_bits_of_the_cpu)
{
    static const size_t sizes[] = {1, 31, 32, 33, 68, 1023, 1024, 1025, 2048 + 32, 9 * 1024 + 36, 34 * 1024 + 32};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            FOR_EACH_PRECISION(type)
                for (size_t i = 0; i < COUNT(sizes); i++) {
                    size_t K = sizes[i], aligned = weight_is_packed(type) ? 0 : (size_t)(-(K + 3) & 31), S = 1 + i % 4;
                    if (order_ && K > 10000 && type)
                        continue;
                    check_shape(d, type, 3, K, S, aligned, 0, 0, &seed);
                    if (K < 10000)
                        check_shape(d, type, 2, K, S, 0, i % 2, i % 3 == 0, &seed);
                }
    in_bf16 = 0;
}

TEST(any_number_of_rows_has_the_bits_of_each_alone)
{
    static const size_t rows[] = {1, 2, 3, 4, 5, 8, 9, 17};
    uint64_t seed = 2;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            FOR_EACH_PRECISION(type)
                for (size_t i = 0; i < COUNT(rows); i++)
                    check_shape(d, type, type % 2 ? 9 : 37, 160, rows[i], weight_is_packed(type) ? 0 : 29, 0, 0, &seed);
    in_bf16 = 0;
}

TEST(embedded_rows_have_the_bits_of_the_cpu)
{
    uint64_t seed = 5;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            FOR_EACH_PRECISION(type)
                for (size_t shift = 0; shift < 2; shift++) {
                    size_t mark = guard_count;
                    struct weight_view stored = random_matrix(type, 5, 301, &seed).view, w;
                    if (weight_is_packed(type))
                        stored.rounded = in_bf16;
                    w = on_device(d, &stored, 0, shift);
                    CASE("embed %s%s", type_names[type], in_bf16 ? " in bf16" : "");
                    check_embed(d, &w, &seed);
                    without_twin(d, &w, shift);
                    release_to(mark);
                }
    in_bf16 = 0;
}

/* One of the first `count` special numbers: zeros of both signs and subnormal numbers; 9: numbers about 2^-56, below
 * which precision bf16 has zeros; 11: ordinary numbers; 17: numbers whose sums overflow, infinities and NaN. */
static float special_float(uint64_t *seed, unsigned count)
{
    static const float values[] = {0.0f, -0.0f, 0x1p-149f, -0x1.8p-127f, 0x1p-126f, 0x1p-60f, -0x1.004p-56f,
                                    0x1.8p-57f, 0x1.ffp-57f, 1.0f, -0x1.01p0f, 0x1p64f, -0x1.fp127f,
                                    INFINITY, -INFINITY, NAN, __builtin_nanf("0x3fffff") /* all ones */};
    return values[random_below(seed, count)];
}

/* Every code of every type, and scales of any size. */
TEST(special_values_have_the_bits_of_the_cpu)
{
    uint64_t seed = 3;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            FOR_EACH_PRECISION(type)
                for (int i = 0; i < 8; i++) {
                    size_t mark = guard_count, N = 11, K = 352, S = 1 + i % 4;
                    struct weight_view stored = random_matrix(type, N, K, &seed).view, w;
                    unsigned char *data = (unsigned char *)(uintptr_t)stored.data,
                                  *groups = (unsigned char *)(uintptr_t)stored.group_scale;
                    float *x = guarded_floats(S * K), *scale = (float *)(uintptr_t)stored.scale;
                    for (size_t j = 0; j < weight_type_bytes(type, N * K); j++)
                        if (i % 2 || random_below(&seed, 8) == 0)
                            data[j] = (unsigned char)next_random(&seed);
                    for (size_t j = 0; j < scale_floats(&stored); j++)
                        scale[j] = special_float(&seed, 11);
                    for (size_t j = 0; j < group_bytes(&stored); j++)
                        groups[j] = (unsigned char)(i % 2 ? next_random(&seed) : next_random(&seed) % 8);
                    for (size_t j = 0; j < S * K; j++)
                        x[j] = random_below(&seed, 4) ? random_float(&seed) * 0x1p-100f
                                                      : special_float(&seed, i < 3 ? 9
                                                      : i < 5 || j % 3 ? 11
                                                      : 17);
                    if (weight_is_packed(type))
                        stored.rounded = in_bf16;
                    w = on_device(d, &stored, weight_is_packed(type) ? 0 : 29, 0);
                    with_twin(d, x, S * K * sizeof *x);
                    CASE("%s%s, special values %d", type_names[type], in_bf16 ? " in bf16" : "", i);
                    check(d, &w, x, S, 0);
                    drop(d, x);
                    without_twin(d, &w, 0);
                    release_to(mark);
                }
    in_bf16 = 0;
}

TEST(layers_of_one_x_have_the_bits_of_each_alone)
{
    static const size_t N[] = {70, 3, 33, 8};
    uint64_t seed = 4;
    FOR_EACH_OPERATORS(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            for (size_t S = 1; S <= 5; S += 2) {
                size_t mark = guard_count, K = 1184, bytes = op_linear_scratch(S, K);
                struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
                float *x = with_twin(d, random_floats(S * K, &seed), S * K * sizeof(float)), *got[OP_LINEAR_MOST];
                struct weight_view w[OP_LINEAR_MOST];
                struct linear want[OP_LINEAR_MOST], layers[OP_LINEAR_MOST];
                for (size_t i = 0; i < OP_LINEAR_MOST; i++) {
                    int of = (type + (int)i) % WEIGHT_TYPES;
                    struct weight_view stored = random_matrix(of, N[i], K, &seed).view;
                    size_t ldy = i % 2 ? N[i] + 5 : N[i];
                    w[i] = on_device(d, &stored, weight_is_packed(of) ? 0 : 29, 0);
                    got[i] = with_twin(d, guarded_floats(S * ldy), S * ldy * sizeof(float));
                    layers[i] = (struct linear){got[i], &w[i], i % 2 ? ldy : 0};
                    want[i] = (struct linear){guarded_floats(S * ldy), &w[i], i % 2 ? ldy : 0};
                }
                CASE("four layers, S=%zu", S);
                op_linears(&cpu, want, OP_LINEAR_MOST, x, S);
                cx.op->linears(&cx, layers, OP_LINEAR_MOST, x, S);
                for (size_t i = 0; i < OP_LINEAR_MOST; i++) {
                    size_t ldy = i % 2 ? N[i] + 5 : N[i];
                    fetch(d, got[i], S * ldy * sizeof(float));
                    check_same_bits(got[i], ldy, want[i].y, ldy, S, N[i]);
                    check_untouched(got[i], ldy, S, N[i]);
                    drop(d, got[i]);
                    without_twin(d, &w[i], 0);
                }
                drop(d, x), drop(d, cx.scratch);
                release_to(mark);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(sums_of_every_length_have_the_bits_of_the_cpu,
                                                                 release_all),
                                       cmocka_unit_test_teardown(any_number_of_rows_has_the_bits_of_each_alone,
                                                                 release_all),
                                       cmocka_unit_test_teardown(special_values_have_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(embedded_rows_have_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(layers_of_one_x_have_the_bits_of_each_alone,
                                                                 release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
