/* tests/ops/checkops_moe.c -- the feed-forward layer, dense and as a mixture of experts. */
#include "tests/ops/checkops.h"

#include "ops/mlp.h"

struct layer { /* the three matrices of one feed-forward */
    struct stored_matrix gate, up, down;
};

static struct layer random_layer(enum weight_type gate, enum weight_type up, enum weight_type down, size_t d, size_t i,
                                 uint64_t *seed)
{
    return (struct layer){random_matrix(gate, i, d, seed), random_matrix(up, i, d, seed),
                          random_matrix(down, d, i, seed)};
}

static struct mlp_weights views_of(const struct layer *l)
{
    return (struct mlp_weights){.gate = &l->gate.view, .up = &l->up.view, .down = &l->down.view};
}

/* One type for all three, then every matrix its own; of precision bf16 only BF16. */
#define ALL_BF16 2
static const enum weight_type type_mixes[][3] = {
    {WEIGHT_F32, WEIGHT_F32, WEIGHT_F32},
    {WEIGHT_F16, WEIGHT_F16, WEIGHT_F16},
    {WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16},
    {WEIGHT_F8_E4M3, WEIGHT_F8_E4M3, WEIGHT_F8_E4M3},
    {WEIGHT_F8_E4M3, WEIGHT_BF16, WEIGHT_F16},
};

/* ---- the contract in plain C: one row ---- */

static void contract_mlp(float *y, const float *x, const struct layer *l)
{
    size_t i = l->gate.view.rows, d = l->down.view.rows;
    float h[512], taken[512];
    contract_x(taken, x, d);
    for (size_t n = 0; n < i; n++) {
        float g = contract_dot(l->gate.value + n * d, taken, d), u = contract_dot(l->up.value + n * d, taken, d);
        float silu = g / (1.0f + kernel_expf(-g));
        h[n] = silu * u;
    }
    contract_x(h, h, i);
    for (size_t n = 0; n < d; n++)
        y[n] = contract_dot(l->down.value + n * i, h, i);
}

/* ---- the formula in double, and how far off a row of it may be ----
 *
 * g and u are dots: off by dg, du = gamma(depth(d)) sum|w x|. silu has slopes below 1.1; its exp is off by 1 ulp = 2 u,
 * which is at most that much of 1 + exp, whose addition is one rounding, the quotient one, the product with u one: 5.
 *     |h_computed - h| <= (|silu(g)| + 1.1 dg) (|u| + du) (1 + gamma(5)) - |silu(g) u| =: dh
 *     |dy| <= sum|w| dh + gamma(depth(i)) sum|w| (|h| + dh) */
static void formula_mlp(double *y, double *bound, const float *x, const struct layer *l)
{
    size_t i = l->gate.view.rows, d = l->down.view.rows;
    double h[512], dh[512];
    for (size_t n = 0; n < i; n++) {
        double g = 0, u = 0, dg = 0, du = 0;
        for (size_t k = 0; k < d; k++) {
            double wg = (double)l->gate.value[n * d + k] * (double)x[k];
            double wu = (double)l->up.value[n * d + k] * (double)x[k];
            g += wg;
            u += wu;
            dg += fabs(wg);
            du += fabs(wu);
        }
        dg = dot_bound(d, dg);
        du = dot_bound(d, du);
        assert_true(g > -80.0); /* exp(-g) is a normal number */
        double silu = g / (1.0 + exp(-g));
        h[n] = silu * u;
        dh[n] = (fabs(silu) + 1.1 * dg) * (fabs(u) + du) * (1 + rounding_gamma(5)) - fabs(h[n]);
    }
    for (size_t n = 0; n < d; n++) {
        double computed_abs = 0;
        y[n] = bound[n] = 0;
        for (size_t k = 0; k < i; k++) {
            double w = (double)l->down.value[n * i + k];
            y[n] += w * h[k];
            bound[n] += fabs(w) * dh[k];
            computed_abs += fabs(w) * (fabs(h[k]) + dh[k]);
        }
        bound[n] += dot_bound(i, computed_abs);
    }
}

/* ---- mlp ---- */

static float *run_mlp(const struct kernels *k, int threads, const float *x, const struct layer *l, size_t S,
                      int in_place)
{
    size_t i = l->gate.view.rows, d = l->down.view.rows;
    struct mlp_weights w = views_of(l);
    struct op_ctx cx = context_of(k, threads, op_mlp_scratch(S, d, i));
    float *copy = copy_of(x, S * d), *y = in_place ? copy : guarded_floats(S * d);
    CASE("mlp %s %s %s d=%zu i=%zu S=%zu threads=%d %s%s", type_names[w.gate->type], type_names[w.up->type],
         type_names[w.down->type], d, i, S, threads, k->name, in_place ? " in place" : "");
    op_mlp(&cx, y, copy, &w, S);
    assert_int_equal(cx.scratch_used, 0);
    if (!in_place)
        check_same_bits(copy, d, x, d, S, d);
    return y;
}

static const size_t mlp_shapes[][2] = {{1, 1}, {7, 3}, {33, 31}, {64, 96}, {45, 77}};

TEST(mlp_is_its_order_bit_for_bit_in_place_or_not)
{
    uint64_t seed = 1;
    for (size_t m = 0; in_bf16 = m == COUNT(type_mixes), m <= COUNT(type_mixes); m++)
        for (size_t n = 0; n < COUNT(mlp_shapes); n++) {
            const enum weight_type *t = type_mixes[in_bf16 ? ALL_BF16 : m];
            size_t S = 3, d = mlp_shapes[n][0], i = mlp_shapes[n][1];
            struct layer l = random_layer(t[0], t[1], t[2], d, i, &seed);
            float *x = random_floats(S * d, &seed), *want = guarded_floats(S * d);
            for (size_t s = 0; s < S; s++)
                contract_mlp(want + s * d, x + s * d, &l);
            FOR_EACH_TABLE(k)
                for (int in_place = 0; in_place < 2; in_place++)
                    check_same_bits(run_mlp(k, 2, x, &l, S, in_place), d, want, d, S, d);
            release_all(NULL);
        }
}

TEST(mlp_is_within_its_bound_of_the_formula)
{
    uint64_t seed = 2;
    for (size_t m = 0; m < COUNT(type_mixes); m++) {
        const enum weight_type *t = type_mixes[m];
        size_t S = 4, d = 100, i = 130;
        struct layer l = random_layer(t[0], t[1], t[2], d, i, &seed);
        float *x = random_floats(S * d, &seed);
        FOR_EACH_TABLE(k) {
            float *y = run_mlp(k, 1, x, &l, S, 0);
            for (size_t s = 0; s < S; s++) {
                double want[512], bound[512];
                formula_mlp(want, bound, x + s * d, &l);
                for (size_t n = 0; n < d; n++)
                    check_within(y[s * d + n], want[n], bound[n], s, n);
            }
        }
        release_all(NULL);
    }
}

TEST(mlp_row_has_the_same_bits_alone_and_among_any_others)
{
    uint64_t seed = 3;
    size_t d = 235, i = 470; /* a single row is worth three threads, in both regions */
    for (size_t m = 0; in_bf16 = m == COUNT(type_mixes), m <= COUNT(type_mixes); m++) {
        const enum weight_type *t = type_mixes[in_bf16 ? ALL_BF16 : m];
        size_t most = m < 4 ? 7 : 64;
        struct layer l = random_layer(t[0], t[1], t[2], d, i, &seed);
        float *x = random_floats(most * d, &seed), *alone = guarded_floats(most * d);
        size_t mark = guard_count;
        for (size_t s = 0; s < most; s++) {
            memcpy(alone + s * d, run_mlp(scalar_table(), 1, x + s * d, &l, 1, 0), d * sizeof *x);
            release_to(mark);
        }
        FOR_EACH_TABLE(k)
            for (size_t n = 0; n < COUNT(some_rows) && some_rows[n] <= most; n++)
                for (size_t j = 0; j < COUNT(some_threads); j++) {
                    check_same_bits(run_mlp(k, some_threads[j], x, &l, some_rows[n], (int)n % 2), d, alone, d,
                                    some_rows[n], d);
                    release_to(mark);
                }
        release_all(NULL);
    }
}

/* ---- moe ---- */

#define EXPERTS 7

struct mixture {
    struct layer layers[EXPERTS], shared;
    struct mlp_weights views[EXPERTS], shared_views;
    struct moe_weights w;
    size_t S, d, i, shared_i;
    float *x;
    int32_t *expert; /* [S, chosen], ascending in a row */
    float *weight;
    int asked[EXPERTS];
};

static struct mlp_weights expert_of(const void *arg, size_t e)
{
    struct mixture *m = (struct mixture *)(uintptr_t)arg;
    m->asked[e] = 1;
    return m->views[e];
}

enum choice { MIXED, ALL_THE_SAME, NEVER_4 };

/* each of them in f32, then in precision bf16 */
#define FOR_EACH_CHOICE(choice)                                                                                        \
    for (int choice##_ = 0, choice = MIXED; in_bf16 = choice##_ > NEVER_4 && choice##_ <= 2 * NEVER_4 + 1,             \
             choice = choice##_ % (NEVER_4 + 1), choice##_ <= 2 * NEVER_4 + 1;                                         \
         choice##_++)

static struct mixture *random_mixture(enum choice choice, size_t S, size_t chosen, size_t d, size_t i, size_t shared_i,
                                      uint64_t *seed)
{
    struct mixture *m = guarded(sizeof *m);
    memset(m, 0, sizeof *m);
    m->S = S;
    m->d = d;
    m->i = i;
    m->shared_i = shared_i;
    for (size_t e = 0; e < EXPERTS; e++) {
        const enum weight_type *t = type_mixes[in_bf16 ? ALL_BF16 : e % COUNT(type_mixes)];
        m->layers[e] = random_layer(t[0], t[1], t[2], d, i, seed);
        m->views[e] = views_of(&m->layers[e]);
    }
    m->w = (struct moe_weights){EXPERTS, chosen, i, expert_of, m, NULL};
    if (shared_i) {
        m->shared = random_layer(WEIGHT_BF16, WEIGHT_BF16, in_bf16 ? WEIGHT_BF16 : WEIGHT_F8_E4M3, d, shared_i, seed);
        m->shared_views = views_of(&m->shared);
        m->w.shared = &m->shared_views;
    }
    m->x = random_floats(S * d, seed);
    m->weight = random_floats(S * chosen, seed);
    m->expert = guarded(S * chosen * sizeof *m->expert);
    for (size_t s = 0; s < S; s++) /* each expert in turn, with the chance that what is left to choose needs */
        for (size_t e = 0, n = 0, left = EXPERTS; e < EXPERTS; e++, left--) {
            int barred = choice == NEVER_4 && e == 4;
            size_t candidates = left - (choice == NEVER_4 && e <= 4);
            int take = choice == ALL_THE_SAME ? e >= 2 : !barred && random_below(seed, candidates) < chosen - n;
            if (take && n < chosen)
                m->expert[s * chosen + n++] = (int32_t)e;
        }
    return m;
}

static float *run_moe(const struct kernels *k, int threads, struct mixture *m, size_t S, int in_place)
{
    struct op_ctx cx = context_of(k, threads, op_moe_scratch(S, m->d, m->i, m->shared_i, EXPERTS, m->w.chosen));
    size_t pairs = S * m->w.chosen;
    float *x = copy_of(m->x, S * m->d), *y = in_place ? x : guarded_floats(S * m->d), *g = copy_of(m->weight, pairs);
    int32_t *expert = memcpy(guarded(pairs * sizeof *expert), m->expert, pairs * sizeof *expert);
    CASE("moe d=%zu i=%zu shared=%zu k=%zu of %d S=%zu threads=%d %s%s", m->d, m->i, m->shared_i, m->w.chosen, EXPERTS,
         S, threads, k->name, in_place ? " in place" : "");
    op_moe(&cx, y, x, expert, g, &m->w, S);
    assert_int_equal(cx.scratch_used, 0);
    return y;
}

static void contract_moe(float *y, const struct mixture *m, size_t s)
{
    float part[512];
    for (size_t j = 0; j < m->d; j++)
        y[j] = 0.0f;
    for (size_t n = s * m->w.chosen; n < (s + 1) * m->w.chosen; n++) {
        contract_mlp(part, m->x + s * m->d, &m->layers[m->expert[n]]);
        for (size_t j = 0; j < m->d; j++)
            y[j] = fmaf(m->weight[n], part[j], y[j]);
    }
    if (!m->w.shared)
        return;
    contract_mlp(part, m->x + s * m->d, &m->shared);
    for (size_t j = 0; j < m->d; j++)
        y[j] = y[j] + part[j];
}

TEST(moe_adds_experts_in_ascending_order_and_the_shared_one_last_bit_for_bit)
{
    uint64_t seed = 10;
    FOR_EACH_CHOICE(choice)
        for (size_t shared = 0; shared < 3; shared++)
            for (size_t chosen = 1; chosen <= 5; chosen += 2) {
                size_t S = 6, d = 45, i = 37;
                struct mixture *m = random_mixture((enum choice)choice, S, chosen, d, i, shared * 50, &seed);
                float *want = guarded_floats(S * d);
                for (size_t s = 0; s < S; s++)
                    contract_moe(want + s * d, m, s);
                FOR_EACH_TABLE(k)
                    for (int in_place = 0; in_place < 2; in_place++)
                        check_same_bits(run_moe(k, 2, m, S, in_place), d, want, d, S, d);
                release_all(NULL);
            }
}

/* The sum's fmas are at most `chosen` roundings of g_e y_e, the shared one's addition one more:
 *     |dy| <= sum|g_e| dy_e + gamma(chosen + 1) (sum|g_e| (|y_e| + dy_e) + |shared| + d_shared) + d_shared */
TEST(moe_is_within_its_bound_of_the_formula)
{
    uint64_t seed = 11;
    for (size_t shared = 0; shared < 2; shared++) {
        size_t S = 5, d = 60, i = 50;
        struct mixture *m = random_mixture(MIXED, S, 3, d, i, shared * 70, &seed);
        FOR_EACH_TABLE(k) {
            float *y = run_moe(k, 1, m, S, 0);
            for (size_t s = 0; s < S; s++) {
                double want[512] = {0}, off[512] = {0}, size[512] = {0}, part[512], d_part[512];
                for (size_t n = 0; n < 3 + shared; n++) {
                    double g = n < 3 ? (double)m->weight[s * 3 + n] : 1.0;
                    formula_mlp(part, d_part, m->x + s * d, n < 3 ? &m->layers[m->expert[s * 3 + n]] : &m->shared);
                    for (size_t j = 0; j < d; j++) {
                        want[j] += g * part[j];
                        off[j] += fabs(g) * d_part[j];
                        size[j] += fabs(g) * (fabs(part[j]) + d_part[j]);
                    }
                }
                for (size_t j = 0; j < d; j++)
                    check_within(y[s * d + j], want[j], off[j] + rounding_gamma(3 + 1) * size[j], s, j);
            }
        }
        release_all(NULL);
    }
}

TEST(moe_row_has_the_same_bits_alone_and_among_any_others)
{
    uint64_t seed = 12;
    FOR_EACH_CHOICE(choice) {
        size_t d = 130, i = 120, chosen = 3, most = choice == MIXED ? 64 : 7;
        struct mixture *m = random_mixture((enum choice)choice, most, chosen, d, i, 96, &seed);
        float *alone = guarded_floats(most * d);
        size_t mark = guard_count;
        for (size_t s = 0; s < most; s++) {
            struct mixture one = *m;
            one.w.arg = &one;
            one.x = m->x + s * d;
            one.expert = m->expert + s * chosen;
            one.weight = m->weight + s * chosen;
            memcpy(alone + s * d, run_moe(scalar_table(), 1, &one, 1, 0), d * sizeof *alone);
            release_to(mark);
        }
        FOR_EACH_TABLE(k)
            for (size_t n = 0; n < COUNT(some_rows) && some_rows[n] <= most; n++)
                for (size_t j = 0; j < COUNT(some_threads); j++) {
                    float *y = run_moe(k, some_threads[j], m, some_rows[n], (int)j % 2);
                    check_same_bits(y, d, alone, d, some_rows[n], d);
                    release_to(mark);
                }
        release_all(NULL);
    }
}

/* A checkpoint is mapped: an expert that nobody chose must not even be asked for. */
/* x [S,cols] W^T */
static float *dots_of(const struct stored_matrix *w, const float *x, size_t S)
{
    size_t rows = w->view.rows, cols = w->view.cols;
    float *y = guarded_floats(S * rows);
    for (size_t s = 0; s < S; s++)
        for (size_t n = 0; n < rows; n++)
            y[s * rows + n] = contract_dot(w->value + n * cols, x + s * cols, cols);
    return y;
}

TEST(gate_and_up_of_the_mlp_that_all_rows_go_through_are_left_for_a_backward_pass)
{
    uint64_t seed = 17;
    size_t S = 5, d = 45, i = 50;
    struct mixture *m = random_mixture(MIXED, S, 2, d, 37, i, &seed);
    const float *gate = dots_of(&m->shared.gate, m->x, S), *up = dots_of(&m->shared.up, m->x, S);
    FOR_EACH_TABLE(k)
        for (int moe = 0; moe < 2; moe++) {
            struct op_ctx cx = context_of(k, 2, op_mlp_scratch(S, d, i));
            float *mlp = guarded_floats(S * d);
            m->shared_views = views_of(&m->shared);
            const float *want = run_moe(k, 2, m, S, 0);
            m->shared_views.kept_gate = guarded_floats(S * i);
            m->shared_views.kept_up = guarded_floats(S * i);
            if (moe)
                check_same_bits(run_moe(k, 2, m, S, 0), d, want, d, S, d);
            else
                op_mlp(&cx, mlp, m->x, &m->shared_views, S);
            check_same_bits(m->shared_views.kept_gate, i, gate, i, S, i);
            check_same_bits(m->shared_views.kept_up, i, up, i, S, i);
        }
}

TEST(moe_leaves_experts_without_rows_alone)
{
    uint64_t seed = 13;
    for (int choice = ALL_THE_SAME; choice <= NEVER_4; choice++) {
        struct mixture *m = random_mixture((enum choice)choice, 40, 3, 33, 20, 0, &seed);
        FOR_EACH_TABLE(k) {
            memset(m->asked, 0, sizeof m->asked);
            run_moe(k, 2, m, 40, 0);
            for (int e = 0; e < EXPERTS; e++)
                if (m->asked[e] != (choice == NEVER_4 ? e != 4 : e >= 2 && e < 5))
                    fail_msg("%s: expert %d %s asked for", case_name, e, m->asked[e] ? "was" : "was not");
        }
    }
}

/* Expert 3's up_proj has a weight of 2^-60. It is known for it, the others for what they are, and expert 4, which
 * nobody chose, not at all; only kernels that look say so. Then other kernels come, and those again. */
TEST(moe_in_bf16_learns_which_matrix_has_a_tiny_weight)
{
    static const uint16_t tiny = (127 - 60) << 7;
    uint64_t seed = 15;
    size_t S = 30, d = 45;
    int learns = 0;
    in_bf16 = 1;
    FOR_EACH_TABLE(k) {
        learns |= k->learns_magnitudes;
        struct mixture *m = random_mixture(NEVER_4, S, 3, d, 37, 50, &seed);
        unsigned char known[EXPERTS + 1][3] = {{0}};
        struct stored_matrix *up = &m->layers[3].up;
        memcpy((unsigned char *)(uintptr_t)up->view.data + (17 * up->view.stride + 8) * sizeof tiny, &tiny,
               sizeof tiny);
        up->value[17 * d + 8] = 0x1p-60f;
        for (size_t e = 0; e <= EXPERTS; e++) {
            struct layer *l = e < EXPERTS ? &m->layers[e] : &m->shared;
            l->gate.view.magnitudes = &known[e][0];
            l->up.view.magnitudes = &known[e][1];
            l->down.view.magnitudes = &known[e][2];
        }
        float *want = guarded_floats(S * d);
        for (size_t s = 0; s < S; s++)
            contract_moe(want + s * d, m, s);
        for (int again = 0; again < 2; again++) {
            check_same_bits(run_moe(k, 3, m, S, 0), d, want, d, S, d);
            for (size_t e = 0; e <= EXPERTS; e++)
                for (size_t i = 0; i < 3; i++) {
                    int wanted = !k->learns_magnitudes || e == 4 ? MAGNITUDES_UNKNOWN
                                 : e == 3 && i == 1              ? MAGNITUDES_TINY
                                                                 : MAGNITUDES_ORDINARY;
                    if (known[e][i] != wanted)
                        fail_msg("%s: of matrix %zu of expert %zu it is known %d, wanted %d", case_name, i, e,
                                 known[e][i], wanted);
                }
        }
        FOR_EACH_TABLE(other)
            check_same_bits(run_moe(other, 2, m, S, 1), d, want, d, S, d);
        check_same_bits(run_moe(k, 1, m, S, 0), d, want, d, S, d);
        release_all(NULL);
    }
    if (!learns)
        printf("skipped: that a matrix is known for its tiny weight: this CPU has no kernel that looks, which "
               "AVX512-BF16 wants\n");
}

/* A row that overflowed, or was routed by NaN, is its own affair. */
TEST(moe_keeps_nan_in_the_row_that_has_it)
{
    uint64_t seed = 14;
    size_t S = 5, d = 45;
    struct mixture *m = random_mixture(MIXED, S, 3, d, 37, 50, &seed);
    float *clean = run_moe(scalar_table(), 1, m, S, 0);
    m->x[2 * d + 7] = NAN;
    m->weight[4 * 3 + 1] = NAN;
    FOR_EACH_TABLE(k) {
        float *y = run_moe(k, 2, m, S, 0);
        check_same_bits(y, d, clean, d, 2, d);
        check_same_bits(y + 3 * d, d, clean + 3 * d, d, 1, d);
        for (size_t j = 0; j < d; j++)
            assert_true(isnan(y[2 * d + j]) && isnan(y[4 * d + j]));
    }
}

/* ---- threads ---- */

TEST(mlp_and_moe_run_on_as_many_threads_as_they_are_given)
{
    uint64_t seed = 15;
    size_t d = 235, i = 240;
    struct layer l = random_layer(WEIGHT_F32, WEIGHT_BF16, WEIGHT_F16, d, i, &seed);
    struct mixture *m = random_mixture(MIXED, 2, 3, d, i, 0, &seed);
    float *x = random_floats(d, &seed), *dense = run_mlp(scalar_table(), 1, x, &l, 1, 0);
    float *sparse = run_moe(scalar_table(), 1, m, 2, 0);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            check_same_bits(run_mlp(&k, threads, x, &l, 1, 0), d, dense, d, 1, d);
            check_threads_ran(threads);
            k = spy_begin(real);
            check_same_bits(run_moe(&k, threads, m, 2, 0), d, sparse, d, 2, d);
            check_threads_ran(threads);
        }
}

/* h is about 2^-136: nothing is left of it under flush to zero. In moe the last sum is the caller's own thread's, which
 * the engine's entry points protect: here only its kernels are looked at. */
TEST(mlp_and_moe_compute_in_the_default_environment_whatever_the_caller_has_set)
{
    uint64_t seed = 16;
    size_t d = 235, i = 480;
    struct layer l = random_layer(WEIGHT_F32, WEIGHT_BF16, WEIGHT_F16, d, i, &seed);
    struct mixture *m = random_mixture(MIXED, 2, 3, d, i, 0, &seed);
    float *x = random_floats(d, &seed), *y = NULL;
    for (size_t j = 0; j < d; j++)
        x[j] *= 0x1p-70f;
    float *want = run_mlp(scalar_table(), 1, x, &l, 1, 0);
    FOR_EACH_TABLE(real)
        for (int threads = 2; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            IN_SPOILED_ENVIRONMENT(threads, y = run_mlp(&k, threads, x, &l, 1, 0));
            check_same_bits(y, d, want, d, 1, d);
            k = spy_begin(real);
            IN_SPOILED_ENVIRONMENT(threads, run_moe(&k, threads, m, 2, 0));
        }
}

#define T(name) cmocka_unit_test_teardown(name, release_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(mlp_is_its_order_bit_for_bit_in_place_or_not),
        T(mlp_is_within_its_bound_of_the_formula),
        T(mlp_row_has_the_same_bits_alone_and_among_any_others),
        T(moe_adds_experts_in_ascending_order_and_the_shared_one_last_bit_for_bit),
        T(moe_is_within_its_bound_of_the_formula),
        T(moe_row_has_the_same_bits_alone_and_among_any_others),
        T(gate_and_up_of_the_mlp_that_all_rows_go_through_are_left_for_a_backward_pass),
        T(moe_leaves_experts_without_rows_alone),
        T(moe_in_bf16_learns_which_matrix_has_a_tiny_weight),
        T(moe_keeps_nan_in_the_row_that_has_it),
        T(mlp_and_moe_run_on_as_many_threads_as_they_are_given),
        T(mlp_and_moe_compute_in_the_default_environment_whatever_the_caller_has_set),
    };
    return cmocka_run_group_tests_name("checkops_moe", tests, NULL, NULL);
}
