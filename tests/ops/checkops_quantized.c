/* tests/ops/checkops_quantized.c -- operators on quantized matrices, alone and beside others: the bits are those of the
 * scalar kernels, row by row (checkasm holds those to the formats' definitions). */
#include "tests/ops/checkops.h"
#include "tests/support/turn.h"

#include "ops/expanded.h"
#include "ops/linear.h"
#include "ops/mlp.h"
#include "ops/weights.h"
#include "tests/support/scratch.h"

enum how { BLOCKS, PANELS, DENSE };

/* a scale of ordinary size, or 0, or a subnormal one */
static uint16_t random_half(uint64_t *seed)
{
    static const unsigned exponents[] = {0, 3, 7, 9, 10, 11};
    return (uint16_t)(exponents[random_below(seed, COUNT(exponents))] << 10 | random_below(seed, 1 << 10) |
                      random_below(seed, 2) << 15);
}

static struct weight_view random_quantized(enum weight_type type, enum how how, size_t rows, size_t cols,
                                           uint64_t *seed)
{
    const struct quantized_format *f = quantized_format(type);
    size_t blocks = rows * cols / f->numbers;
    unsigned char *data = guarded(blocks * f->bytes), *panels;
    struct weight_view w = {.type = type, .data = data, .rows = rows, .cols = cols, .stride = cols};
    for (size_t i = 0; i < blocks * f->bytes; i++)
        data[i] = (unsigned char)next_random(seed);
    for (size_t i = 0; i < blocks; i++) {
        uint16_t d = random_half(seed), m = random_half(seed);
        memcpy(data + i * f->bytes + (type == WEIGHT_Q6_K ? 208 : 0), &d, sizeof d);
        if (f->minimums)
            memcpy(data + i * f->bytes + 2, &m, sizeof m);
    }
    if (how == BLOCKS)
        return w;
    panels = guarded(panels_bytes(type, rows, cols) + 63);
    panels += -(uintptr_t)panels & 63;
    for (size_t row = 0; row < rows; row += PANEL_ROWS)
        panel_from_blocks(panels + row / PANEL_ROWS * panel_bytes(type, cols), &w, row);
    w.data = panels;
    w.panels = 1;
    return w;
}

static struct weight_view random_view(enum weight_type type, enum how how, size_t rows, size_t cols, uint64_t *seed)
{
    return how == DENSE ? random_matrix(type, rows, cols, seed).view : random_quantized(type, how, rows, cols, seed);
}

/* W x by the scalar kernels, one row of x */
static void scalar_linear(float *y, const float *x, const struct weight_view *w)
{
    const struct kernels *k = scalar_table();
    float packed[4096];
    struct quantized_group groups[4096 / QUANTIZED_GROUP];
    k->pack(packed, x, w->cols);
    if (!weight_is_quantized(w->type)) {
        k->matmul[w->type](y, w->rows, w, 0, w->rows, packed, packed_length(w->cols), 1, kernel_scratch());
        return;
    }
    k->quantize(groups, packed, w->cols);
    k->matmul_quantized(y, w->rows, w, 0, w->rows, groups, w->cols / QUANTIZED_GROUP, 1, kernel_scratch());
}

static const struct mix {
    enum weight_type type;
    enum how how;
} mixes[] = {{WEIGHT_Q8_0, PANELS}, {WEIGHT_Q4_0, PANELS}, {WEIGHT_Q8_0, BLOCKS}, {WEIGHT_Q4_K, BLOCKS},
             {WEIGHT_Q6_K, BLOCKS}, {WEIGHT_Q5_K, BLOCKS}, {WEIGHT_BF16, DENSE}, {WEIGHT_F32, DENSE}};

TEST(layers_of_one_x_take_it_each_in_its_own_form)
{
    uint64_t seed = 1;
    for (size_t m = 0; m < COUNT(mixes); m++)
        for (size_t r = 0; r < COUNT(some_rows); r++)
            for (size_t t = 0; t < COUNT(some_threads); t++)
                FOR_EACH_TABLE(k) {
                    size_t S = some_rows[r], K = 1280, N[3] = {70, 32, 33};
                    if (!has_turn(m + r + t, 3))
                        continue;
                    float *x = random_floats(S * K, &seed), *y[3], want[70];
                    struct weight_view w[3];
                    struct linear layers[3];
                    for (size_t i = 0; i < 3; i++) {
                        const struct mix *mix = &mixes[(m + i * 3) % COUNT(mixes)];
                        w[i] = random_view(mix->type, mix->how, N[i], K, &seed);
                        layers[i] = (struct linear){y[i] = guarded_floats(S * N[i]), &w[i], 0};
                    }
                    struct op_ctx cx = context_of(k, some_threads[t], op_linear_scratch(S, K));
                    CASE("mix %zu, %zu rows, %d threads, %s", m, S, some_threads[t], k->name);
                    op_linears(&cx, layers, 3, x, S);
                    for (size_t i = 0; i < 3; i++)
                        for (size_t s = 0; s < S; s++) {
                            scalar_linear(want, x + s * K, &w[i]);
                            check_same_bits(y[i] + s * N[i], N[i], want, N[i], 1, N[i]);
                        }
                    release_all(NULL);
                }
}

TEST(a_view_of_some_rows_has_their_bits)
{
    uint64_t seed = 2;
    for (size_t m = 0; m < COUNT(mixes); m++)
        FOR_EACH_TABLE(k) {
            size_t K = 512, N = 90, first = 21, count = 40, S = 3;
            struct weight_view all = random_view(mixes[m].type, mixes[m].how, N, K, &seed),
                               some = weight_rows(&all, first, count);
            float *x = random_floats(S * K, &seed), *y = guarded_floats(S * count), want[90];
            struct op_ctx cx = context_of(k, 2, op_linear_scratch(S, K));
            CASE("rows of mix %zu, %s", m, k->name);
            op_linear(&cx, y, x, &some, S);
            for (size_t s = 0; s < S; s++) {
                scalar_linear(want, x + s * K, &all);
                check_same_bits(y + s * count, count, want + first, count, 1, count);
            }
            release_all(NULL);
        }
}

/* ---- feed-forward ---- */

static struct mlp_weights random_mlp(struct weight_view w[3], size_t m, size_t d, size_t i, uint64_t *seed)
{
    for (size_t j = 0; j < 3; j++) {
        const struct mix *mix = &mixes[(m + j * 5) % COUNT(mixes)];
        w[j] = random_view(mix->type, mix->how, j < 2 ? i : d, j < 2 ? d : i, seed);
    }
    return (struct mlp_weights){.gate = &w[0], .up = &w[1], .down = &w[2]};
}

static void scalar_mlp(float *y, const float *x, const struct mlp_weights *w)
{
    float h[512], u[512];
    scalar_linear(h, x, w->gate);
    scalar_linear(u, x, w->up);
    scalar_table()->silu_mul(h, h, u, w->gate->rows);
    scalar_linear(y, h, w->down);
}

struct experts {
    struct weight_view w[3][3];
    struct mlp_weights of[3];
};

static struct mlp_weights weights_of(const void *arg, size_t e) { return ((const struct experts *)arg)->of[e]; }

TEST(experts_of_any_types_give_the_bits_of_each_alone)
{
    uint64_t seed = 3;
    for (size_t m = 0; m < COUNT(mixes); m++)
        for (size_t r = 0; r < COUNT(some_rows); r++)
            FOR_EACH_TABLE(k) {
                size_t S = some_rows[r], d = 256, i = 512, chosen = 2;
                struct experts e;
                struct weight_view shared_views[3];
                struct mlp_weights shared = random_mlp(shared_views, m, d, i, &seed);
                for (size_t j = 0; j < 3; j++)
                    e.of[j] = random_mlp(e.w[j], m + j, d, i, &seed);
                struct moe_weights w = {3, chosen, i, weights_of, &e, m % 2 ? &shared : NULL};
                int32_t *expert = guarded(S * chosen * sizeof *expert);
                float *weight = random_floats(S * chosen, &seed), *x = random_floats(S * d, &seed),
                      *y = guarded_floats(S * d);
                for (size_t s = 0; s < S; s++) {
                    int32_t out = (int32_t)random_below(&seed, 3);
                    expert[s * chosen] = out == 0;
                    expert[s * chosen + 1] = out == 2 ? 1 : 2;
                }
                struct op_ctx cx = context_of(k, 2, op_moe_scratch(S, d, i, i, 3, chosen));
                CASE("experts of mix %zu, %zu rows, %s", m, S, k->name);
                op_moe(&cx, y, x, expert, weight, &w, S);
                for (size_t s = 0; s < S; s++) {
                    float want[256] = {0}, one[256];
                    for (size_t c = 0; c < chosen; c++) {
                        scalar_mlp(one, x + s * d, &e.of[expert[s * chosen + c]]);
                        scalar_table()->axpy(want, weight[s * chosen + c], one, d);
                    }
                    if (w.shared) {
                        scalar_mlp(one, x + s * d, &shared);
                        scalar_table()->axpy(want, 1.0f, one, d);
                    }
                    check_same_bits(y + s * d, d, want, d, 1, d);
                }
                release_all(NULL);
            }
}

/* ---- attention ----
 *
 * With W_uk the unit matrix, q_abs is q_nope itself, and with W_uv the unit matrix y is o: so what stands between the
 * two can be had from the operator, and the quantized products before and after it from the scalar kernels. */

static struct weight_view unit_matrices(size_t count, size_t n)
{
    float *data = guarded_floats(count * n * n);
    memset(data, 0, count * n * n * sizeof *data);
    for (size_t i = 0; i < count * n; i++)
        data[i * n + i % n] = 1.0f;
    return (struct weight_view){.type = WEIGHT_F32, .data = data, .rows = count * n, .cols = n, .stride = n};
}

static float *run(const struct kernels *k, int threads, const struct attention *a, const float *q,
                  const struct timeline *seen, size_t S, size_t context)
{
    struct op_ctx cx = context_of(k, threads, op_attention_scratch(a, S, context, threads));
    float *y = guarded_floats(S * a->heads * a->value);
    op_attention(&cx, y, q, seen, a, S, context);
    return y;
}

TEST(attention_absorbs_quantized_keys_and_values)
{
    uint64_t seed = 4;
    enum { H = 3, N = 64, R = 32, V = 48, C = 96, LONG = 300 };
    for (size_t m = 0; m < 4; m++)
        for (size_t r = 0; r < COUNT(some_rows); r++)
            for (size_t t = 0; t < COUNT(some_threads); t++)
                FOR_EACH_TABLE(k) {
                    size_t S = some_rows[r], width = packed_length(C + R);
                    if (!has_turn(m + r + t, 3))
                        continue;
                    enum weight_type type = m % 2 ? WEIGHT_Q4_0 : WEIGHT_Q8_0;
                    struct attention a = {.heads = H, .nope = N, .rope = R, .value = V, .latent = C, .scale = 0.1f,
                                          .uk_stride = C, .uv_stride = V, .uk_transposed = 1};
                    a.w_uk = random_quantized(type, m < 2 ? PANELS : BLOCKS, H * C, N, &seed);
                    a.w_uv = m == 3 ? random_matrix(WEIGHT_BF16, H * V, C, &seed).view
                                    : random_quantized(type, m < 2 ? PANELS : BLOCKS, H * V, C, &seed);
                    struct attention inside = a;
                    inside.nope = inside.value = inside.uk_stride = inside.uv_stride = C;
                    inside.uk_transposed = 0;
                    inside.w_uk = inside.w_uv = unit_matrices(H, C);

                    float *rows = random_floats(LONG * width, &seed), *q = random_floats(S * H * (N + R), &seed);
                    float *q_abs = guarded_floats(S * H * (C + R)), want[V];
                    int32_t *slots = guarded(LONG * sizeof *slots);
                    struct timeline *seen = guarded(S * sizeof *seen);
                    for (size_t j = 0; j < LONG; j++)
                        slots[j] = (int32_t)j;
                    for (size_t s = 0; s < S; s++) {
                        seen[s] = (struct timeline){rows, slots, LONG - S + s + 1};
                        for (size_t h = 0; h < H; h++) {
                            struct weight_view keys = weight_rows(&a.w_uk, h * C, C);
                            scalar_linear(q_abs + (s * H + h) * (C + R), q + (s * H + h) * (N + R), &keys);
                            memcpy(q_abs + (s * H + h) * (C + R) + C, q + (s * H + h) * (N + R) + N, R * sizeof *q);
                        }
                    }
                    CASE("attention, case %zu, %zu rows, %d threads, %s", m, S, some_threads[t], k->name);
                    float *y = run(k, some_threads[t], &a, q, seen, S, LONG);
                    float *o = run(scalar_table(), 1, &inside, q_abs, seen, S, LONG);
                    for (size_t s = 0; s < S; s++)
                        for (size_t h = 0; h < H; h++) {
                            struct weight_view values = weight_rows(&a.w_uv, h * V, V);
                            scalar_linear(want, o + (s * H + h) * C, &values);
                            check_same_bits(y + (s * H + h) * V, V, want, V, 1, V);
                        }
                    release_all(NULL);
                }
}

/* ---- attention in the expanded form: one query and one head in plain C ---- */

static void expanded_head(float *y, const struct attention *a, const float *q, const struct timeline *t, size_t h)
{
    enum { MOST = 320, WIDTH = 128 };
    static float w_uk[WIDTH][WIDTH], value[MOST][WIDTH];
    size_t N = a->nope, C = a->latent, R = a->rope, V = a->value, row = packed_length(C + R),
           blocks = (t->length + 255) / 256;
    struct weight_view w_uv = weight_rows(&a->w_uv, h * a->uv_stride, V);
    float natural[WIDTH], key[WIDTH], score[MOST], m[2], l[2], M = -INFINITY, L = 0.0f;
    for (size_t c = 0; c < C; c++)
        for (size_t n = 0; n < N; n++) {
            struct quantized_codes g;
            quantized_codes(&g, &a->w_uk, h * C + c, n / 32);
            w_uk[c][n] = g.scale[n % 32 / 16] * (float)g.q[n % 32] - g.minimum[n % 32 / 16];
        }
    for (size_t j = 0; j < t->length; j++) {
        const float *packed = (const float *)t->rows + (size_t)t->slots[j] * row;
        for (size_t i = 0; i < C + R; i++)
            natural[i] = packed[i / 32 * 32 + i % 32 / 2 + (i % 2 ? 0 : 16)];
        for (size_t n = 0; n < N; n++) {
            key[n] = 0.0f;
            for (size_t c = 0; c < C; c++)
                key[n] = fmaf(natural[c], w_uk[c][n], key[n]);
        }
        memcpy(key + N, natural + C, R * sizeof *key);
        score[j] = contract_dot(key, q, N + R) * a->scale;
        scalar_linear(value[j], natural, &w_uv);
    }
    for (size_t b = 0; b < blocks; b++) {
        m[b] = contract_softmax_block(score + 256 * b, score + 256 * b,
                                      t->length - 256 * b < 256 ? t->length - 256 * b : 256, &l[b]);
        M = m[b] > M ? m[b] : M;
    }
    memset(y, 0, V * sizeof *y);
    for (size_t b = 0; b < blocks; b++) {
        float e = kernel_expf(m[b] - M), sum;
        L = fmaf(e, l[b], L);
        for (size_t v = 0; v < V; v++) {
            sum = 0.0f;
            for (size_t j = 256 * b; j < t->length && j < 256 * (b + 1); j++)
                sum = fmaf(score[j], value[j][v], sum);
            y[v] = fmaf(e, sum, y[v]);
        }
    }
    for (size_t v = 0; v < V; v++)
        y[v] = y[v] / L;
}

TEST(expanded_attention_decodes_quantized_keys)
{
    uint64_t seed = 5;
    enum { H = 3, N = 64, R = 32, V = 48, C = 96, LONG = 300, S = 5 };
    static const struct mix keys[] = {{WEIGHT_Q8_0, PANELS}, {WEIGHT_Q4_0, PANELS}, {WEIGHT_Q5_1, BLOCKS},
                                      {WEIGHT_Q4_0, BLOCKS}},
                            vals[] = {{WEIGHT_Q4_0, PANELS}, {WEIGHT_Q8_0, BLOCKS}, {WEIGHT_Q5_1, BLOCKS},
                                      {WEIGHT_F16, DENSE}};
    for (size_t i = 0; i < COUNT(keys); i++) {
        size_t width = packed_length(C + R);
        struct attention a = {.heads = H, .nope = N, .rope = R, .value = V, .latent = C, .scale = 0.01f,
                              .uk_stride = C, .uv_stride = V, .uk_transposed = 1};
        a.w_uk = random_view(keys[i].type, keys[i].how, H * C, N, &seed);
        a.w_uv = random_view(vals[i].type, vals[i].how, H * V, C, &seed);
        float *rows = random_floats(LONG * width, &seed), *q = random_floats(S * H * (N + R), &seed),
              *want = guarded_floats(S * H * V);
        int32_t *slots = guarded(LONG * sizeof *slots);
        struct timeline *seen = guarded(S * sizeof *seen);
        for (size_t j = 0; j < LONG; j++)
            slots[j] = (int32_t)(LONG - 1 - j);
        for (size_t s = 0; s < S; s++) {
            seen[s] = (struct timeline){rows, slots, LONG - 60 * s};
            for (size_t h = 0; h < H; h++)
                expanded_head(want + (s * H + h) * V, &a, q + (s * H + h) * (N + R), &seen[s], h);
        }
        FOR_EACH_TABLE(k)
            for (size_t t = 0; t < COUNT(some_threads); t++) {
                struct op_ctx cx = context_of(k, some_threads[t], op_expanded_scratch(&a, S, LONG, some_threads[t]));
                float *y = guarded_floats(S * H * V);
                CASE("expanded attention, case %zu, %d threads, %s", i, some_threads[t], k->name);
                op_expanded(&cx, y, q, seen, &a, S, LONG);
                check_same_bits(y, H * V, want, H * V, S, H * V);
            }
        release_all(NULL);
    }
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(layers_of_one_x_take_it_each_in_its_own_form),
        T(a_view_of_some_rows_has_their_bits),
        T(experts_of_any_types_give_the_bits_of_each_alone),
        T(attention_absorbs_quantized_keys_and_values),
        T(expanded_attention_decodes_quantized_keys),
    };
    return cmocka_run_group_tests_name("checkops_quantized", tests, NULL, NULL);
}
