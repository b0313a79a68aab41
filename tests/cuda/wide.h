/* tests/cuda/wide.h -- checks of linear layers that a GPU multiplies in BF16, with sums in an order of its own: by a
 * library (checkcuda_cublas.c) or by our kernels for tensor cores (checkcuda_tensor.c). */
#ifndef VB_CHECK_WIDE_H
#define VB_CHECK_WIDE_H

#include "ops/cuda/linear.h"
#include "ops/mlp.h"
#include "tests/cuda/checkcuda.h"

static float to_bf16(float x)
{
    float y;
    in_bf16 = 1; /* random numbers are 0 or larger than 2^-56 */
    contract_x(&y, &x, 1);
    in_bf16 = 0;
    return y;
}

static int on_a_gpu;
static int by_tensor_cores; /* our kernels multiply, not a library (struct arithmetic) */

/* The products of two BF16 numbers are f32 numbers. What stands for a GPU adds them one by one: at most K roundings. A
 * tensor core cuts off bits where the additions of f32 round, which is up to 2 u, and those below the last bit of its
 * largest operand, which is as much again. */
static double sum_bound(size_t K, double sum_abs) { return rounding_gamma((double)(on_a_gpu ? 4 * K : K)) * sum_abs; }

static void check_sums(const float *got, size_t ldy, const float *x, const struct stored_matrix *m, size_t S)
{
    size_t N = m->view.rows, K = m->view.cols;
    float *w = guarded_floats(N * K), *rounded = guarded_floats(S * K);
    for (size_t i = 0; i < N * K; i++)
        w[i] = to_bf16(m->value[i]);
    for (size_t i = 0; i < S * K; i++)
        rounded[i] = to_bf16(x[i]);
    for (size_t s = 0; s < S; s++)
        for (size_t n = 0; n < N; n++) {
            double sum = 0, all = 0;
            for (size_t k = 0; k < K; k++) {
                double product = (double)w[n * K + k] * (double)rounded[s * K + k];
                sum += product;
                all += fabs(product);
            }
            check_within(got[s * ldy + n], sum, sum_bound(K, all), s, n);
        }
}

static struct weight_view random_q8(struct device *d, size_t rows, size_t cols, uint64_t *seed)
{
    size_t bytes = rows * cols / 32 * 34;
    unsigned char *blocks = guarded(bytes);
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (unsigned char)(i % 34 == 1 ? 0x1c : next_random(seed)); /* scales are about 2^-8 */
    return (struct weight_view){.type = WEIGHT_Q8_0, .data = with_twin(d, blocks, bytes), .rows = rows, .cols = cols,
                                .stride = cols};
}

static void multiply_wide(struct op_ctx *cx)
{
    static const struct arithmetic tensor_cores = {.tensor_cores = 1}, cublas = {.cublas = 1};
    cx->arithmetic = by_tensor_cores ? &tensor_cores : &cublas;
}

/* Two matrices that read the same x: one in BF16, and one that is quantized. */
static void check_linear(struct device *d, int type, size_t N, size_t K, size_t S, size_t more, size_t shift,
                         uint64_t *seed)
{
    size_t mark = guard_count, bytes = op_linear_scratch(S, K), ldy = N + 3, count = S * ldy * sizeof(float),
           of_q = S * 8 * sizeof(float);
    struct stored_matrix m = random_matrix(type, N, K, seed);
    struct weight_view w = on_device(d, &m.view, more, shift), q = random_q8(d, 8, (K + 31) / 32 * 32, seed);
    int with_q = K % 32 == 0;
    float *x = with_twin(d, random_floats(S * K, seed), S * K * sizeof(float)),
          *y = with_twin(d, guarded_floats(S * ldy), count);
    float *got = with_twin(d, guarded_floats(S * 8), of_q), *want = guarded_floats(S * 8),
          *exact = guarded_floats(S * N);
    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
    struct linear layers[] = {{y, &w, ldy}, {got, &q, 0}};
    multiply_wide(&cx);
    CASE("%s N=%zu K=%zu S=%zu stride=%zu shift=%zu", type_names[type], N, K, S, w.stride, shift);
    cx.op->linears(&cx, layers, 1 + (size_t)with_q, x, S);
    device_read(d, y, count);
    check_sums(y, ldy, x, &m, S);
    check_untouched(y, ldy, S, N);
    if (with_q) {
        op_linear(&cpu, want, x, &q, S);
        device_read(d, got, of_q);
        check_same_bits(got, 8, want, 8, S, 8);
    }
    op_linear_exact(&cpu, exact, x, &w, S);
    cx.op->linear_exact(&cx, y, x, &w, S);
    device_read(d, y, S * N * sizeof(float));
    check_same_bits(y, N, exact, N, S, N);
    device_remove(d, x), device_remove(d, y), device_remove(d, got), device_remove(d, cx.scratch);
    without_twin(d, &w, shift), without_twin(d, &q, 0);
    release_to(mark);
}

/* ---- feed-forward layers: with these small integers no sum is rounded, so the order of its operands does not matter,
 * and the bits are those that the CPU has in precision bf16. ---- */

/* A BF16 matrix. Each row of W_down has one number that is not 0. */
static struct weight_view integers(struct device *d, size_t rows, size_t cols, int one, size_t more, uint64_t *seed)
{
    size_t stride = cols + more;
    uint16_t *data = guarded(rows * stride * sizeof *data);
    for (size_t n = 0; n < rows; n++)
        for (size_t k = 0; k < stride; k++)
            data[n * stride + k] = one || k >= cols || random_below(seed, 4) ? 0
                                   : random_below(seed, 2) ? 0x3f80
                                   : 0xbf80; /* 1 or -1 */
    /* 1, 2, 4 */
    for (size_t n = 0; n < rows && one; n++)
        data[n * stride + random_below(seed, (unsigned)cols)] = (uint16_t)(0x3f80 + 0x80 * random_below(seed, 3));
    return (struct weight_view){.type = WEIGHT_BF16, .data = with_twin(d, data, rows * stride * sizeof *data),
                                .rows = rows, .cols = cols, .stride = stride};
}

struct three {
    struct weight_view gate, up, down;
};

static struct mlp_weights weights_of(const void *arg, size_t e)
{
    const struct three *w = (const struct three *)arg + e;
    return (struct mlp_weights){.gate = &w->gate, .up = &w->up, .down = &w->down};
}

static struct three integer_three(struct device *d, size_t width, size_t i, size_t more, uint64_t *seed)
{
    return (struct three){integers(d, i, width, 0, more, seed), integers(d, i, width, 0, more, seed),
                          integers(d, width, i, 1, more, seed)};
}

static float *integer_floats(struct device *d, size_t n, uint64_t *seed)
{
    float *x = guarded_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)random_below(seed, 7) - 3;
    return with_twin(d, x, n * sizeof *x);
}

/* If `mixed` is set, W_gate of the experts is quantized. Then all of an expert obeys the contract, and x is not rounded
 * to BF16. */
static void check_experts(struct device *d, size_t experts, size_t chosen, size_t S, int shares, int mixed, size_t more,
                          uint64_t *seed)
{
    size_t mark = guard_count, width = 96, i = 40, pairs = S * chosen, size = S * width * sizeof(float),
           bytes = op_moe_scratch(S, width, i, i, experts, chosen);
    struct three *w = guarded(experts * sizeof *w), *there = guarded(experts * sizeof *w),
                 shared = integer_three(d, width, i, more, seed);
    struct mlp_weights of_shared = weights_of(&shared, 0);
    for (size_t e = 0; e < experts; e++) {
        w[e] = integer_three(d, width, i, more, seed);
        if (mixed) {
            without_twin(d, &w[e].gate, 0);
            w[e].gate = random_q8(d, i, width, seed);
        }
        there[e] = (struct three){device_view(d, &w[e].gate), device_view(d, &w[e].up), device_view(d, &w[e].down)};
    }
    assert_int_equal(device_add(d, w, experts * sizeof *w), 0);
    d->type->write(d, device_at(d, w), there, experts * sizeof *w);
    struct moe_weights weights = {experts, chosen, i, weights_of, w, shares ? &of_shared : NULL};
    int32_t *expert = guarded(pairs * sizeof *expert);
    for (size_t s = 0; s < S; s++)
        for (size_t c = 0; c < chosen; c++)
            expert[s * chosen + c] = (int32_t)(c * (experts / chosen) +
                                               random_below(seed, (unsigned)(experts / chosen)));
    with_twin(d, expert, pairs * sizeof *expert);
    float *x = integer_floats(d, S * width, seed), *weight = random_floats(pairs, seed),
          *want = guarded_floats(S * width);
    float *got = with_twin(d, guarded_floats(S * width), size);
    with_twin(d, weight, pairs * sizeof *weight);
    struct op_ctx cpu = context_of(scalar_table(), 1, bytes), cx = device_context(d, bytes);
    cpu.arithmetic = &precisions[!mixed];
    multiply_wide(&cx);
    CASE("%zu of %zu experts%s%s, S=%zu, %zu more columns", chosen, experts, shares ? " and a shared one" : "",
         mixed ? " of mixed types" : "", S, more);
    op_moe(&cpu, want, x, expert, weight, &weights, S);
    cx.op->moe(&cx, got, x, expert, weight, &weights, S);
    device_read(d, got, size);
    check_same_bits(got, width, want, width, S, width);
    cpu.arithmetic = &precisions[1];
    op_mlp(&cpu, want, x, &of_shared, S);
    cx.op->mlp(&cx, got, x, &of_shared, S);
    device_read(d, got, size);
    check_same_bits(got, width, want, width, S, width);
    struct three *all[] = {&shared, w};
    for (size_t e = 0; e <= experts; e++) {
        struct three *t = e ? all[1] + e - 1 : all[0];
        without_twin(d, &t->gate, 0), without_twin(d, &t->up, 0), without_twin(d, &t->down, 0);
    }
    device_remove(d, w), device_remove(d, expert), device_remove(d, weight), device_remove(d, x), device_remove(d, got),
        device_remove(d, cx.scratch);
    release_to(mark);
}

#endif
