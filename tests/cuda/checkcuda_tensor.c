/* tests/cuda/checkcuda_tensor.c -- linear layers by tensor cores, on an emulated device. */
#include "tests/cuda/wide.h"

TEST(products_are_sums_of_operands_in_bf16)
{
    static const size_t sizes[] = {1, 7, 31, 64, 100, 1024, 1056, 2100};
    static const size_t rows[] = {1, 7, 8, 9, 16, 17, 70};
    uint64_t seed = 1;
    FOR_EACH_ORDER(d)
        for (int type = 0; type < WEIGHT_TYPES; type++)
            for (size_t i = 0; i < COUNT(sizes); i++) {
                size_t K = sizes[i], S = rows[(i + (size_t)type) % COUNT(rows)],
                       gap = weight_is_packed(type) ? 0 : (size_t)(-(K + 3) & 31);
                if (order_ && type != WEIGHT_BF16)
                    continue;
                check_linear(d, type, 13 + 8 * (i % 3), K, S, gap, 0, &seed); /* random_matrix has rows of K + 3
                                                                                 numbers */
                check_linear(d, type, 5, K, S, 0, i % 2, &seed);
            }
}

/* More blocks of 1024 columns than a block of threads keeps: 64, 32 or 8 for tiles of 8, 16 and 64 rows. */
TEST(long_rows_are_added_in_parts)
{
    uint64_t seed = 2;
    FOR_EACH_ORDER(d) {
        if (order_ != EMULATOR_ASCENDING)
            continue;
        check_linear(d, WEIGHT_BF16, 3, 66 * 1024 + 40, 3, 5, 0, &seed);
        check_linear(d, WEIGHT_BF16, 2, 33 * 1024, 12, 5, 0, &seed);
        check_linear(d, WEIGHT_BF16, 2, 9 * 1024 + 8, 17, 5, 0, &seed);
    }
}

/* What drafting, batches and chunks rely on. */
TEST(a_row_has_the_same_bits_in_any_number_of_rows_and_at_any_place)
{
    enum { S = 75, N = 37 };
    static const size_t counts[] = {1, 2, 5, 8, 9, 16, 17, 64, 65};
    uint64_t seed = 3;
    FOR_EACH_ORDER(d)
        for (int type = 0; type < WEIGHT_TYPES; type += order_ ? WEIGHT_TYPES : 1) {
            size_t mark = guard_count, K = type == WEIGHT_BF16 ? 2100 : 1056, bytes = op_linear_scratch(S, K),
                   count = S * N * sizeof(float);
            struct weight_view stored = random_matrix(type, N, K, &seed).view,
                               w = on_device(d, &stored, weight_is_packed(type) ? 0 : 29, 0);
            float *x = with_twin(d, random_floats(S * K, &seed), S * K * sizeof(float));
            float *all = with_twin(d, guarded_floats(S * N), count), *some = with_twin(d, guarded_floats(S * N), count);
            struct op_ctx cx = device_context(d, bytes);
            multiply_wide(&cx);
            cx.op->linear(&cx, all, x, &w, S);
            device_read(d, all, count);
            for (size_t i = 0; i < COUNT(counts); i++) {
                size_t first = random_below(&seed, (unsigned)(S - counts[i]));
                CASE("%s, %zu rows from row %zu on", type_names[type], counts[i], first);
                cx.op->linear(&cx, some, x + first * K, &w, counts[i]);
                device_read(d, some, counts[i] * N * sizeof(float));
                check_same_bits(some, N, all + first * N, N, counts[i], N);
            }
            device_remove(d, x), device_remove(d, all), device_remove(d, some), device_remove(d, cx.scratch);
            without_twin(d, &w, 0);
            release_to(mark);
        }
}

TEST(feed_forward_layers_have_the_bits_of_precision_bf16)
{
    static const struct {
        size_t experts, chosen, S;
    } shapes[] = {{8, 2, 1}, {8, 3, 5}, {1, 1, 3}, {40, 4, 9}, {4, 1, 34}, {2, 2, 70}};
    uint64_t seed = 4;
    FOR_EACH_ORDER(d)
        for (size_t n = 0; n < COUNT(shapes); n += order_ ? 2 : 1) /* more columns: rows of 96 and 40 numbers are
                                                                      aligned, those of 101 and 45 are not */
            for (size_t more = 0; more <= 5; more += 5) {
                check_experts(d, shapes[n].experts, shapes[n].chosen, shapes[n].S, n % 2, 0, more, &seed);
                check_experts(d, shapes[n].experts, shapes[n].chosen, shapes[n].S, 0, 1, more, &seed);
            }
}

int main(void)
{
    const struct CMUnitTest
        tests[] = {cmocka_unit_test_teardown(products_are_sums_of_operands_in_bf16, release_all),
                   cmocka_unit_test_teardown(long_rows_are_added_in_parts, release_all),
                   cmocka_unit_test_teardown(a_row_has_the_same_bits_in_any_number_of_rows_and_at_any_place,
                                             release_all),
                   cmocka_unit_test_teardown(feed_forward_layers_have_the_bits_of_precision_bf16, release_all)};
    on_a_gpu = !is_emulated();
    by_tensor_cores = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
