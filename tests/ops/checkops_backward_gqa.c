/* tests/ops/checkops_backward_gqa.c -- the gradients of grouped-query attention, also of aligned depths: the bits of
 * plain C code in the order of the header, for every table and 1 to 3 threads; and the formulas in double, within a
 * bound. A call takes a whole sequence, so there are no cuts. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/gqa.h"

#define LONGEST 304
#define DEEPEST 3

/* The arrays of one case; the gradients begin at the numbers of dk0 and dv0 if they are continued. */
struct gqa_case {
    struct back_gqa a;
    size_t T;
    struct back_gqa_chain chain[DEEPEST];
    const float *dk0[1 + DEEPEST], *dv0[1 + DEEPEST]; /* of depth 0 and of the chain's depths */
};

static size_t size_of(const struct gqa_case *c) { return c->T * c->a.groups * c->a.dim; }

/* Gives the case gradients of its own. */
static void give_gradients(struct gqa_case *c)
{
    c->a.dq = guarded_floats(c->T * c->a.heads * c->a.dim);
    c->a.dk = c->a.continued ? copy_of(c->dk0[0], size_of(c)) : guarded_floats(size_of(c));
    c->a.dv = c->a.continued ? copy_of(c->dv0[0], size_of(c)) : guarded_floats(size_of(c));
    for (size_t m = 0; m < c->a.depth; m++) {
        c->chain[m].dk = copy_of(c->dk0[m + 1], size_of(c));
        c->chain[m].dv = copy_of(c->dv0[m + 1], size_of(c));
    }
    c->a.chain = c->a.depth ? c->chain : NULL;
}

/* Keys and values lie in rows as in a cache: the keys of all groups, the values of all groups, and some numbers that
 * nobody reads. */
static struct gqa_case random_case(size_t T, size_t H, size_t G, size_t D, size_t depth, int continued, uint64_t *seed)
{
    size_t row = 2 * G * D + random_below(seed, 5), n = T * row - (row - 2 * G * D); /* the last row ends with its
                                                                                        values */
    const float *rows = random_floats(n, seed);
    struct gqa_case c = {.a = {.heads = H, .groups = G, .dim = D, .row = row, .scale = 2.0f / sqrtf((float)D),
                               .q = random_floats(T * H * D, seed), .k = rows, .v = rows + G * D,
                               .dy = random_floats(T * H * D, seed), .continued = continued, .depth = depth},
                         .T = T};
    for (size_t m = 0; m < depth; m++) {
        rows = random_floats(n, seed);
        c.chain[m] = (struct back_gqa_chain){.k = rows, .v = rows + G * D};
    }
    for (size_t m = 0; m <= depth; m++) {
        c.dk0[m] = random_floats(size_of(&c), seed);
        c.dv0[m] = random_floats(size_of(&c), seed);
    }
    return c;
}

/* Token t that query s sees, for one group */
static struct back_gqa_chain token(const struct back_gqa *a, size_t group, size_t s, size_t t)
{
    struct back_gqa_chain x = {a->k, a->v, a->dk, a->dv};
    if (t > s) {
        x = a->chain[t - s - 1];
        t = s;
    }
    size_t row = t * a->row + group * a->dim, at = (t * a->groups + group) * a->dim;
    return (struct back_gqa_chain){x.k + row, x.v + row, x.dk + at, x.dv + at};
}

/* ---- plain code ---- */

static void plain_query(const struct back_gqa *a, size_t s, size_t h, float *P, float *g)
{
    size_t D = a->dim, at = (s * a->heads + h) * D, n = s + 1 + a->depth;
    float m[4], e[4], M = -INFINITY, L = 0.0f, dP[LONGEST];
    for (size_t t = 0; t < n; t++) {
        struct back_gqa_chain x = token(a, h / (a->heads / a->groups), s, t);
        P[t] = contract_dot(a->q + at, x.k, D) * a->scale;
        dP[t] = contract_dot(a->dy + at, x.v, D);
    }
    for (size_t b = 0; b * 256 < n; b++) {
        m[b] = contract_softmax_block(P + b * 256, P + b * 256, n - b * 256 < 256 ? n - b * 256 : 256, &e[b]);
        M = m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b * 256 < n; b++) {
        L = fmaf(kernel_expf(m[b] - M), e[b], L);
        e[b] = kernel_expf(m[b] - M);
    }
    for (size_t t = 0; t < n; t++)
        P[t] = P[t] * e[t / 256] / L;
    float mean = contract_dot(P, dP, n);
    for (size_t t = 0; t < n; t++)
        g[t] = (P[t] * (dP[t] - mean)) * a->scale;
}

static void plain_gqa(const struct gqa_case *c)
{
    const struct back_gqa *a = &c->a;
    size_t D = a->dim;
    float P[LONGEST], g[LONGEST];
    memset(a->dq, 0, c->T * a->heads * D * sizeof *a->dq);
    if (!a->continued) {
        memset(a->dk, 0, size_of(c) * sizeof *a->dk);
        memset(a->dv, 0, size_of(c) * sizeof *a->dv);
    }
    for (size_t s = 0; s < c->T; s++)
        for (size_t h = 0; h < a->heads; h++) {
            size_t at = (s * a->heads + h) * D;
            plain_query(a, s, h, P, g);
            for (size_t t = 0; t <= s + a->depth; t++) {
                struct back_gqa_chain x = token(a, h / (a->heads / a->groups), s, t);
                for (size_t i = 0; i < D; i++) {
                    a->dq[at + i] = fmaf(g[t], x.k[i], a->dq[at + i]);
                    x.dk[i] = fmaf(g[t], a->q[at + i], x.dk[i]);
                    x.dv[i] = fmaf(P[t], a->dy[at + i], x.dv[i]);
                }
            }
        }
}

/* ---- the formulas in double ---- */

/* Gradients with bounds on their errors; `tokens` are those of depth 0, and then those of each depth of the chain */
struct truth {
    double *dq, *dq_error, *dk, *dk_error, *dv, *dv_error;
};

static double product(const float *a, const float *b, size_t n, double *size)
{
    double sum = *size = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
        *size += fabs((double)a[i] * (double)b[i]);
    }
    return sum;
}

/* Probabilities and their gradients' g of one query and head, with bounds. As in checkops_gqa.c, a score's error is at
 * most scale times that of its dot, and one rounding; all probabilities then change by a factor within exp(+-2 max
 * error), and by the roundings of exp, of the sums, two products and the quotient. */
static void true_query(const struct back_gqa *a, size_t s, size_t h, double *P, double *P_error, double *g,
                       double *g_error)
{
    size_t D = a->dim, at = (s * a->heads + h) * D, n = s + 1 + a->depth;
    double largest = 0, error = 0, L = 0, mean = 0, means = 0, mean_error = 0, size, dP[LONGEST], dP_error[LONGEST],
           scale = (double)a->scale;
    for (size_t t = 0; t < n; t++) {
        struct back_gqa_chain x = token(a, h / (a->heads / a->groups), s, t);
        P[t] = scale * product(a->q + at, x.k, D, &size);
        error = fmax(error, scale * dot_bound(D, size) * 1.01 + fabs(P[t]) * 0x1p-23);
        largest = fmax(largest, fabs(P[t]));
        dP[t] = product(a->dy + at, x.v, D, &size);
        dP_error[t] = dot_bound(D, size);
    }
    error += 2 * 2 * largest * 0x1p-24 * 2; /* s - m and m - M are rounded too */
    for (size_t t = 0; t < n; t++)
        L += P[t] = exp(P[t]);
    for (size_t t = 0; t < n; t++) {
        P[t] /= L;
        P_error[t] = P[t] * (exp(2 * error) * (1 + rounding_gamma(256 + 20 + 8 * 2 + 8)) - 1);
        mean += P[t] * dP[t];
        means += P[t] * fabs(dP[t]);
        mean_error += P_error[t] * (fabs(dP[t]) + dP_error[t]) + P[t] * dP_error[t];
    }
    mean_error += rounding_gamma(dot_depth(n)) * 1.01 * means + 0x1p-140;
    for (size_t t = 0; t < n; t++) {
        double both = dP_error[t] + mean_error, difference = fabs(dP[t]) + means;
        g[t] = scale * P[t] * (dP[t] - mean);
        g_error[t] = scale * (P_error[t] * (difference + both) + P[t] * both +
                              rounding_gamma(4) * (P[t] + P_error[t]) * (difference + both));
    }
}

static double *zeros(size_t n)
{
    double *x = guarded(n * sizeof *x);
    memset(x, 0, n * sizeof *x);
    return x;
}

/* sum += factor x, and its error; sums: the relative rounding error of the sum of the terms' magnitudes */
static void add(double *sum, double *sum_error, double factor, double factor_error, const float *x, double sums,
                size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum[i] += factor * (double)x[i];
        sum_error[i] += (factor_error + sums * (fabs(factor) + factor_error)) * fabs((double)x[i]);
    }
}

static struct truth truth_of(const struct gqa_case *c)
{
    const struct back_gqa *a = &c->a;
    size_t D = a->dim, H = a->heads, n = size_of(c), all = n * (1 + a->depth);
    struct truth o = {zeros(c->T * H * D), zeros(c->T * H * D), zeros(all), zeros(all), zeros(all), zeros(all)};
    double sums = rounding_gamma((double)((c->T + a->depth) * H)), P[LONGEST], P_error[LONGEST], g[LONGEST],
           g_error[LONGEST];
    for (size_t m = 0; m <= a->depth; m++)
        for (size_t i = 0; i < n && (m || a->continued); i++) {
            o.dk_error[m * n + i] = sums * fabs(o.dk[m * n + i] = (double)c->dk0[m][i]);
            o.dv_error[m * n + i] = sums * fabs(o.dv[m * n + i] = (double)c->dv0[m][i]);
        }
    for (size_t s = 0; s < c->T; s++)
        for (size_t h = 0; h < H; h++) {
            size_t at = (s * H + h) * D, group = h / (H / a->groups);
            true_query(a, s, h, P, P_error, g, g_error);
            for (size_t t = 0; t <= s + a->depth; t++) {
                size_t key = t > s ? (t - s) * n + (s * a->groups + group) * D : (t * a->groups + group) * D;
                add(o.dq + at, o.dq_error + at, g[t], g_error[t], token(a, group, s, t).k, sums, D);
                add(o.dk + key, o.dk_error + key, g[t], g_error[t], a->q + at, sums, D);
                add(o.dv + key, o.dv_error + key, P[t], P_error[t], a->dy + at, sums, D);
            }
        }
    return o;
}

static void check_array(const float *got, const double *want, const double *error, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_within(got[i], want[i], error[i] + 0x1p-120, 0, i);
}

static void check_truth(const struct gqa_case *c)
{
    struct truth o = truth_of(c);
    size_t n = size_of(c);
    check_array(c->a.dq, o.dq, o.dq_error, c->T * c->a.heads * c->a.dim);
    check_array(c->a.dk, o.dk, o.dk_error, n);
    check_array(c->a.dv, o.dv, o.dv_error, n);
    for (size_t m = 0; m < c->a.depth; m++) {
        check_array(c->chain[m].dk, o.dk + (m + 1) * n, o.dk_error + (m + 1) * n, n);
        check_array(c->chain[m].dv, o.dv + (m + 1) * n, o.dv_error + (m + 1) * n, n);
    }
}

/* ---- cases ---- */

static void check_gqa(size_t T, size_t H, size_t G, size_t D, size_t depth, int continued, uint64_t *seed)
{
    struct gqa_case want = random_case(T, H, G, D, depth, continued, seed);
    size_t row = G * D;
    give_gradients(&want);
    CASE("%zu tokens, %zu heads, %zu groups of %zu, depth %zu", T, H, G, D, depth);
    plain_gqa(&want);
    check_truth(&want);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            size_t mark = guard_count;
            struct kernels k = spy_begin(real);
            struct gqa_case got = want;
            give_gradients(&got);
            struct op_ctx cx = context_of(&k, threads, op_back_gqa_scratch(&got.a, T, threads));
            CASE("%s %s, %d threads, %zu tokens, %zu heads, %zu groups of %zu, depth %zu", real->name,
                 real->variant ? real->variant : "", threads, T, H, G, D, depth);
            op_back_gqa(&cx, &got.a, T);
            assert_int_equal(cx.scratch_used, 0);
            if (T >= 100)
                check_threads_ran(threads);
            check_same_bits(got.a.dq, D, want.a.dq, D, T * H, D);
            check_same_bits(got.a.dk, row, want.a.dk, row, T, row);
            check_same_bits(got.a.dv, row, want.a.dv, row, T, row);
            for (size_t m = 0; m < depth; m++) {
                check_same_bits(got.chain[m].dk, row, want.chain[m].dk, row, T, row);
                check_same_bits(got.chain[m].dv, row, want.chain[m].dv, row, T, row);
            }
            release_to(mark);
        }
    release_to(0);
}

TEST(gradients_of_grouped_queries_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 1;
    check_gqa(300, 4, 2, 24, 0, 0, &seed);
    check_gqa(129, 3, 1, 33, 0, 1, &seed);
    check_gqa(65, 8, 2, 64, 0, 0, &seed);
    check_gqa(33, 2, 2, 2, 0, 0, &seed);
    check_gqa(1, 3, 1, 6, 0, 0, &seed);
}

TEST(gradients_of_aligned_grouped_queries_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 2;
    check_gqa(255, 4, 2, 20, 3, 1, &seed); /* chains lie in two blocks of the softmax */
    check_gqa(40, 6, 2, 10, 2, 1, &seed);
    check_gqa(7, 2, 2, 4, 1, 0, &seed);
    check_gqa(1, 4, 1, 4, 3, 1, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_of_grouped_queries_are_those_of_their_header_bit_for_bit, release_all),
        cmocka_unit_test_teardown(gradients_of_aligned_grouped_queries_are_those_of_their_header_bit_for_bit,
                                  release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
