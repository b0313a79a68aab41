/* tests/cuda/checkcuda_quantized.c -- linear layers with quantized weights (rule 2), on an emulated device. */
#include "ops/cuda/linear.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "tests/cuda/checkcuda.h"

/* Random blocks, whose scales are numbers of any size, and one in many infinite or NaN. */
static struct weight_view random_blocks(struct device *d, enum weight_type type, size_t rows, size_t cols, size_t more,
                                        uint64_t *seed)
{
    const struct quantized_format *f = quantized_format(type);
    struct weight_view w = {.type = type, .rows = rows, .cols = cols, .stride = cols + more, .tensor_scale = 0.7f,
                            .divides = (int)random_below(seed, 2)};
    size_t blocks = rows * w.stride / f->numbers, bytes = blocks * f->bytes;
    unsigned char *data = guarded(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)next_random(seed);
    for (size_t i = 0; i < blocks; i++) { /* f16 numbers below 2^8, wherever a type has them; and BF16 or f32 numbers */
        static const unsigned places[] = {0, 2, 208, 52, 64, 108, 80, 82};
        for (size_t p = 0; p < COUNT(places); p++)
            if (places[p] + 1 < f->bytes && random_below(seed, 64))
                data[i * f->bytes + places[p] + 1] &= 0xdf;
        if (type == WEIGHT_IQ1_M)
            data[i * f->bytes + 55] &= 0xdf;
        if ((type == WEIGHT_Q8_F32 || type == WEIGHT_CACHE_Q8) && random_below(seed, 64))
            data[i * f->bytes + 3] = (unsigned char)(0x38 + random_below(seed, 8));
        if (type == WEIGHT_MXFP4 && w.divides) /* subnormal scales */
            data[i * f->bytes] %= 3;
    }
    w.data = with_twin(d, data, bytes);
    return w;
}

static void check(struct device *d, const struct weight_view *w, const float *x, size_t S)
{
    size_t N = w->rows, K = w->cols, bytes = op_linear_scratch(S, K);
    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
    float *want = guarded_floats(S * N), *got = with_twin(d, guarded_floats(S * N), S * N * sizeof(float));
    op_linear(&cpu, want, x, w, S);
    cx.op->linear(&cx, got, x, w, S);
    fetch(d, got, S * N * sizeof(float));
    check_same_bits(got, N, want, N, S, N);
    drop(d, got), drop(d, cx.scratch);
}

static const float values[] = {0.0f, -0.0f, 0x1p-149f, 0x1p-101f, 0x1.fp-101f, 0x1.fffffep-101f, -0x1p-100f,
                               0x1.fp-100f, 1.5f, -0x1p127f, INFINITY, -INFINITY, NAN};

/* The first groups have tiny numbers, the next ones also large ones, and the last ones any special values. */
TEST(quantized_x_has_the_bits_of_the_cpu)
{
    uint64_t seed = 3;
    FOR_EACH_ORDER(d)
        for (size_t K = 32; K <= 4096; K *= 4) {
            size_t mark = guard_count, S = 3, ldx = K + 5, groups = S * K / 32,
                   bytes = groups * sizeof(struct quantized_group);
            float *x = random_floats(S * ldx, &seed), *packed = guarded_floats(K);
            struct quantized_group *want = guarded(bytes), *got = with_twin(d, guarded(bytes), bytes);
            for (size_t i = 0; i < S * ldx; i++)
                if (i / 32 % 4)
                    x[i] = values[random_below(&seed, i / 32 % 4 == 1 ? 6 : i / 32 % 4 == 2 ? 10 : COUNT(values))];
            with_twin(d, x, S * ldx * sizeof *x);
            CASE("quantize, K=%zu", K);
            device_run(d, quantize, S, (K / 32 + 7) / 8, 1, .y = device_at(d, got), .x = device_at(d, x), .ldx = ldx,
                       .K = K, .heads = 1);
            fetch(d, got, bytes);
            for (size_t s = 0; s < S; s++) {
                scalar_table()->pack(packed, x + s * ldx, K);
                scalar_table()->quantize(want + s * K / 32, packed, K);
            }
            for (size_t g = 0; g < groups; g++) {
                if (!same_bits(got[g].d, want[g].d) ||
                    memcmp(&got[g].sum, &want[g].sum, sizeof *got - sizeof got->d) != 0)
                    fail_msg("%s: group %zu has the scale %a and the sum %d, not %a and %d", case_name, g,
                             (double)got[g].d, got[g].sum, (double)want[g].d, want[g].sum);
            }
            drop(d, x), drop(d, got);
            release_to(mark);
        }
}

static void check_shape(struct device *d, enum weight_type type, size_t N, size_t K, size_t S, size_t more, int special,
                        uint64_t *seed)
{
    size_t mark = guard_count;
    struct weight_view w = random_blocks(d, type, N, K, more, seed);
    float *x = random_floats(S * K, seed);
    for (size_t i = 0; special && i < S * K; i++)
        if (i / 32 % 3 || random_below(seed, 32) == 0)
            x[i] = i / 32 % 3 ? values[random_below(seed, i / 32 % 3 == 1 ? 8 : 10)]
                              : values[random_below(seed, COUNT(values))];
    with_twin(d, x, S * K * sizeof *x);
    CASE("%s N=%zu K=%zu S=%zu stride=%zu%s", weight_type_name(type), N, K, S, w.stride,
         special ? " special values" : "");
    assert_int_equal(d ? device_add_tables(d, type) : 0, 0);
    check(d, &w, x, S);
    drop(d, x), drop(d, w.data);
    release_to(mark);
}

TEST(every_type_has_the_bits_of_the_cpu)
{
    static const size_t rows[] = {1, 2, 3, 4, 5, 9, 8, 34};
    uint64_t seed = 1;
    FOR_EACH_OPERATORS(d)
        for (int type = WEIGHT_TYPES; type < WEIGHT_KINDS; type++)
            for (size_t i = 0; i < COUNT(rows); i++) {
                size_t unit = quantized_format(type)->numbers;
                if (d && is_emulated())
                    d->tensor_cores = i != 5; /* without them, tiles have at most four rows */
                check_shape(d, type, i % 2 ? 9 : 17, (1 + i % 3 * 4) * unit, rows[i], i % 2 * unit, (int)i % 2, &seed);
            }
}

TEST(sums_of_every_length_have_the_bits_of_the_cpu)
{
    static const enum weight_type types[] = {WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_MXFP4, WEIGHT_GGUF_NVFP4, WEIGHT_Q4_K,
                                             WEIGHT_Q6_K};
    static const size_t sizes[] = {32, 992, 1024, 1056, 2048 + 32, 5 * 1024, 33 * 1024 + 512};
    uint64_t seed = 2;
    FOR_EACH_OPERATORS(d)
        for (size_t t = 0; t < COUNT(types); t++)
            for (size_t i = 0; i < COUNT(sizes); i++) {
                size_t unit = quantized_format(types[t])->numbers, K = (sizes[i] + unit - 1) / unit * unit;
                check_shape(d, types[t], 2 + 17 * (i % 2), K, 1 + i % 5, 0, i == 3, &seed);
                if (!order_ || i % 2)
                    check_shape(d, types[t], 2 + 17 * (i % 2), K, i % 3 ? 8 : 20, 0, i == 3, &seed);
            }
}

TEST(embedded_rows_have_the_bits_of_the_cpu)
{
    uint64_t seed = 4;
    FOR_EACH_OPERATORS(d)
        for (int type = WEIGHT_TYPES; type < WEIGHT_KINDS; type++) {
            size_t mark = guard_count;
            assert_int_equal(d ? device_add_tables(d, type) : 0, 0);
            struct weight_view w = random_blocks(d, type, 7, 3 * quantized_format(type)->numbers,
                                                 quantized_format(type)->numbers, &seed);
            CASE("embed %s", weight_type_name(type));
            check_embed(d, &w, &seed);
            drop(d, w.data);
            release_to(mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(quantized_x_has_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(embedded_rows_have_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(every_type_has_the_bits_of_the_cpu, release_all),
                                       cmocka_unit_test_teardown(sums_of_every_length_have_the_bits_of_the_cpu,
                                                                 release_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
