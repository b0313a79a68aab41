/* tests/ops/checkops_bf16.c -- precision bf16 at its edges: what is rounded how, weights too small for instructions
 * that flush, what is learnt of them, and who is never rounded. That whole operators keep their order in this precision
 * is checked where the operators are: checkops_linear.c, _moe.c, _attention.c. */
#include "tests/ops/checkops.h"

#include "ops/linear.h"

/* A matrix of BF16 numbers, these, again and again. */
static struct stored_matrix matrix_of(const float *numbers, size_t count, size_t rows, size_t cols)
{
    struct stored_matrix m = {.view = {.type = WEIGHT_BF16, .rows = rows, .cols = cols, .stride = cols}};
    unsigned char *data = guarded(rows * cols * 2);
    m.value = guarded_floats(rows * cols);
    for (size_t i = 0; i < rows * cols; i++) {
        uint32_t bits = bits_of(numbers[(i * 7 + i / cols) % count]);
        assert_int_equal(bits & 0xffff, 0);
        m.value[i] = numbers[(i * 7 + i / cols) % count];
        memcpy(data + 2 * i, (unsigned char *)&bits + 2, 2);
    }
    m.view.data = data;
    return m;
}

static float *contract(const float *x, const struct stored_matrix *w, size_t S)
{
    size_t N = w->view.rows, K = w->view.cols;
    float *y = guarded_floats(S * N), *taken = guarded_floats(K);
    for (size_t s = 0; s < S; s++) {
        contract_x(taken, x + s * K, K);
        for (size_t n = 0; n < N; n++)
            y[s * N + n] = contract_dot(w->value + n * K, taken, K);
    }
    return y;
}

static float *run_linear(const struct kernels *k, int threads, const float *x, const struct stored_matrix *w, size_t S)
{
    size_t N = w->view.rows, K = w->view.cols;
    struct op_ctx cx = context_of(k, threads, op_linear_scratch(S, K));
    float *y = guarded_floats(S * N);
    CASE("linear N=%zu K=%zu S=%zu threads=%d %s%s%s", N, K, S, threads, k->name, k->variant ? " " : "",
         k->variant ? k->variant : "");
    op_linear(&cx, y, x, &w->view, S);
    return y;
}

/* Ties up and down, what becomes 0 and what does not, what becomes infinite, numbers that bf16 holds. */
static const float edges[] = {0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.010002p0f, 0x1.00fffep0f, 0x1.fffffep5f, 0x1p-56f,
                              0x1.fffffep-57f, 0x1.fep-57f, 0x1.ffp-57f, 0x1.fefffep-57f, -0x1p-57f, 0x1p-149f, -0.0f,
                              0.0f, 0x1p-40f, -0x1.8p-50f, 0x1.fefffep127f, 0x1.aap3f, -0x1.54p-3f};

/* One number of x against 1 in a matrix of one column: the sum is the number that was taken. */
TEST(linear_in_bf16_takes_the_nearest_number_ties_to_even_and_nothing_below_2_to_the_minus_56)
{
    float one = 1.0f;
    struct stored_matrix w = matrix_of(&one, 1, 1, 1);
    in_bf16 = 1;
    FOR_EACH_TABLE(k)
        for (size_t i = 0; i < COUNT(edges); i++) {
            float taken;
            contract_x(&taken, &edges[i], 1);
            /* -0 + 0 */
            check_same_bits(run_linear(k, 1, copy_of(&edges[i], 1), &w, 1), 1, &(float){taken + 0.0f}, 1, 1, 1);
        }
    FOR_EACH_TABLE(k) {
        float x[3] = {NAN, 0x1.ffp127f, -INFINITY}, want[3] = {NAN, INFINITY, -INFINITY};
        check_same_bits(run_linear(k, 1, copy_of(x, 3), &w, 3), 1, want, 1, 3, 1);
    }
}

/* Products of weights below 2^-56 are subnormal for some of these x, and all there is in the sums of some rows. */
TEST(linear_in_bf16_keeps_the_bits_of_weights_however_small)
{
    static const float mixed[] = {0x1p-100f, -0x1.8p-90f, 0x1.04p-120f, 0x1p-133f, 0.0f, -0x1p-57f, 0x1.02p-70f};
    static const float ordinary[] = {0x1p-56f, -0x1.fep-56f, 0x1p-3f, 0.0f, -0.0f, 0x1.54p3f};
    static const size_t rows[] = {1, 2, 5, 6, 7, 40};
    uint64_t seed = 1;
    size_t N = 70, K = 45;
    in_bf16 = 1;
    for (int tiny = 0; tiny < 2; tiny++) {
        struct stored_matrix w = tiny ? matrix_of(mixed, COUNT(mixed), N, K)
                                      : matrix_of(ordinary, COUNT(ordinary), N, K);
        float *x = random_floats(40 * K, &seed);
        for (size_t i = 0; i < 40 * K; i++)
            x[i] *= i % 3 ? 0x1p-30f : 0x1p-54f;
        float *want = contract(x, &w, 40), most = 0;
        for (size_t i = 0; i < 40 * N; i++)
            most = fmaxf(most, fabsf(want[i]));
        assert_true(tiny ? most < 0x1p-80f : most > 0x1p-40f);
        size_t mark = guard_count;
        FOR_EACH_TABLE(k)
            for (size_t i = 0; i < COUNT(rows); i++)
                for (size_t t = 0; t < COUNT(some_threads); t++) {
                    check_same_bits(run_linear(k, some_threads[t], copy_of(x, rows[i] * K), &w, rows[i]), N, want, N,
                                    rows[i], N);
                    release_to(mark);
                }
        release_all(NULL);
    }
}

/* One tiny weight in one row. Whoever comes first, what is known is right, stays, and changes no bit for those who
 * follow. */
TEST(linear_in_bf16_learns_of_a_matrix_what_holds_for_all_its_rows)
{
    uint64_t seed = 2;
    size_t N = 200, K = 333, S = 3;
    in_bf16 = 1;
    for (size_t at = 0; at < 4; at++) { /* nowhere, in the first row, the last, in between: in other threads' parts */
        struct stored_matrix w = random_matrix(WEIGHT_BF16, N, K, &seed);
        size_t row = at == 1 ? 0 : at == 2 ? N - 1 : 101, col = at == 2 ? K - 1 : 40;
        uint16_t tiny = 1; /* 2^-133 */
        if (at) {
            memcpy((unsigned char *)(uintptr_t)w.view.data + (row * w.view.stride + col) * 2, &tiny, 2);
            w.value[row * K + col] = 0x1p-133f;
        }
        float *x = random_floats(S * K, &seed), *want = contract(x, &w, S);
        FOR_EACH_TABLE(first)
            for (size_t t = 0; t < COUNT(some_threads); t++) {
                unsigned char known = MAGNITUDES_UNKNOWN;
                w.view.magnitudes = &known;
                size_t mark = guard_count;
                check_same_bits(run_linear(first, some_threads[t], x, &w, S), N, want, N, S, N);
                int wanted = !first->learns_magnitudes ? MAGNITUDES_UNKNOWN
                             : at ? MAGNITUDES_TINY
                             : MAGNITUDES_ORDINARY;
                if (known != wanted)
                    fail_msg("%s: known is %d, wanted %d", case_name, known, wanted);
                FOR_EACH_TABLE(then)
                    check_same_bits(run_linear(then, 2, x, &w, S), N, want, N, S, N);
                if (known == MAGNITUDES_UNKNOWN || (wanted != MAGNITUDES_UNKNOWN && known != wanted))
                    for (const struct kernels *const *k = kernel_tables; *k; k++)
                        if (kernels_runs_here(*k) && (*k)->learns_magnitudes)
                            fail_msg("%s: known is %d at last", case_name, known);
                release_to(mark);
            }
        release_all(NULL);
    }
}

/* The router's gate: of any type, in a context of precision bf16, the bits of precision f32. */
TEST(linear_exact_rounds_nothing)
{
    uint64_t seed = 3;
    size_t N = 40, K = 77, S = 5;
    for (int type = 0; type < WEIGHT_TYPES; type++) {
        struct stored_matrix w = random_matrix((enum weight_type)type, N, K, &seed);
        float *x = random_floats(S * K, &seed);
        in_bf16 = 0;
        float *want = run_linear(scalar_table(), 1, x, &w, S);
        in_bf16 = 1;
        FOR_EACH_TABLE(k) {
            struct op_ctx cx = context_of(k, 2, op_linear_scratch(S, K));
            float *y = guarded_floats(S * N);
            CASE("linear_exact %s %s", type_names[type], k->name);
            op_linear_exact(&cx, y, x, &w.view, S);
            check_same_bits(y, N, want, N, S, N);
            assert_true(cx.arithmetic->bf16 && cx.scratch_used == 0);
        }
        release_all(NULL);
    }
}

/* Layers of one x in one region, and x packed in parts, are the layers alone. */
TEST(layers_of_one_x_have_the_bits_of_each_alone)
{
    uint64_t seed = 4;
    static const size_t N[] = {33, 1, 150, 64};
    size_t K = 100, S = 7;
    for (in_bf16 = 0; in_bf16 < 2; in_bf16++)
        FOR_EACH_TABLE(k) {
            struct stored_matrix w[OP_LINEAR_MOST];
            struct linear layers[OP_LINEAR_MOST];
            float *x = random_floats(S * K, &seed);
            for (size_t i = 0; i < OP_LINEAR_MOST; i++) {
                w[i] = random_matrix(WEIGHT_BF16, N[i], K, &seed);
                layers[i] = (struct linear){guarded_floats(S * N[i]), &w[i].view, 0};
            }
            struct op_ctx cx = context_of(k, 3, op_linear_scratch(S, K));
            op_linears(&cx, layers, OP_LINEAR_MOST, x, S);
            for (size_t i = 0; i < OP_LINEAR_MOST; i++)
                check_same_bits(layers[i].y, N[i], run_linear(scalar_table(), 1, x, &w[i], S), N[i], S, N[i]);
            for (size_t s = 0; s < S; s++) { /* 32 numbers, then 64, then what is left */
                enum op_form form = op_form(&cx, &w[0].view);
                struct op_packed row = {.K = K, .how = cx.arithmetic};
                float *y = guarded_floats(N[0]);
                row.rows[form] = guarded(op_packed_bytes(form, K));
                op_pack_part(&cx, &row, 0, x + s * K, 0, 32);
                op_pack_part(&cx, &row, 0, x + s * K + 32, 32, 64);
                op_pack_part(&cx, &row, 0, x + s * K + 96, 96, K - 96);
                op_linear_packed(&cx, y, &row, &w[0].view, 1);
                check_same_bits(y, N[0], layers[0].y + s * N[0], N[0], 1, N[0]);
            }
            release_all(NULL);
        }
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(linear_in_bf16_takes_the_nearest_number_ties_to_even_and_nothing_below_2_to_the_minus_56),
        T(linear_in_bf16_keeps_the_bits_of_weights_however_small),
        T(linear_in_bf16_learns_of_a_matrix_what_holds_for_all_its_rows),
        T(linear_exact_rounds_nothing),
        T(layers_of_one_x_have_the_bits_of_each_alone),
    };
    return cmocka_run_group_tests_name("checkops_bf16", tests, NULL, NULL);
}
