/* tests/ops/checkops_backward_attention.c -- the gradients of attention, and of that of aligned depths: the bits of
 * plain C code in the order of the header, for every table and 1 to 3 threads; and the reference's formulas in double,
 * within a bound. A call takes a whole sequence, so there are no cuts. */
#include "tests/ops/checkops_backward.h"

#include "ops/backward/attention.h"
#include "reference/backward_layers.h"

#define LONGEST 300

/* Token t that query s sees: its rows of kv, k_rope, dkv and dk_rope */
static struct back_chain token(const struct back_attention *a, size_t s, size_t t)
{
    struct back_chain x = {a->kv, a->k_rope, a->dkv, a->dk_rope};
    size_t kv = a->heads * (a->nope + a->value);
    if (t > s) {
        x = a->chain[t - s - 1];
        t = s;
    }
    return (struct back_chain){x.kv + t * kv, x.k_rope + t * a->rope, x.dkv + t * kv, x.dk_rope + t * a->rope};
}

/* The gradients of P and of dot(q, k) that plain code has computed: [LONGEST] */
static void plain_query(const struct back_attention *a, size_t s, size_t h, float *P, float *g)
{
    size_t H = a->heads, K = a->nope + a->rope, V = a->value, n = s + 1 + a->depth;
    float m[4], e[4], M = -INFINITY, L = 0.0f, dP[LONGEST], key[256];
    for (size_t t = 0; t < n; t++) {
        struct back_chain x = token(a, s, t);
        const float *kv = x.kv + h * (a->nope + V);
        memcpy(key, kv, a->nope * sizeof *key);
        memcpy(key + a->nope, x.k_rope, a->rope * sizeof *key);
        P[t] = contract_dot(a->q + (s * H + h) * K, key, K) * a->scale;
        dP[t] = contract_dot(a->dy + (s * H + h) * V, kv + a->nope, V);
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
    float D = contract_dot(P, dP, n);
    for (size_t t = 0; t < n; t++)
        g[t] = (P[t] * (dP[t] - D)) * a->scale;
}

static void plain_attention(const struct back_attention *a, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope, K = N + R, V = a->value;
    float P[LONGEST], g[LONGEST], *ropes = guarded_floats(H * T * R); /* what a head adds to dk_rope */
    memset(ropes, 0, H * T * R * sizeof *ropes);
    memset(a->dq, 0, T * H * K * sizeof *a->dq);
    if (!a->continued) {
        memset(a->dkv, 0, T * H * (N + V) * sizeof *a->dkv);
        memset(a->dk_rope, 0, T * R * sizeof *a->dk_rope);
    }
    for (size_t s = 0; s < T; s++)
        for (size_t h = 0; h < H; h++) {
            const float *q = a->q + (s * H + h) * K, *dy = a->dy + (s * H + h) * V;
            float *dq = a->dq + (s * H + h) * K;
            plain_query(a, s, h, P, g);
            for (size_t t = 0; t <= s + a->depth; t++) {
                struct back_chain x = token(a, s, t);
                const float *kv = x.kv + h * (N + V);
                float *dkv = x.dkv + h * (N + V);
                for (size_t i = 0; i < K; i++)
                    dq[i] = fmaf(g[t], i < N ? kv[i] : x.k_rope[i - N], dq[i]);
                for (size_t i = 0; i < N; i++)
                    dkv[i] = fmaf(g[t], q[i], dkv[i]);
                for (size_t i = 0; i < V; i++)
                    dkv[N + i] = fmaf(P[t], dy[i], dkv[N + i]);
                float *dk_rope = t > s ? x.dk_rope : ropes + (h * T + t) * R;
                for (size_t i = 0; i < R; i++)
                    dk_rope[i] = fmaf(g[t], q[N + i], dk_rope[i]);
            }
        }
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < T * R; i++)
            a->dk_rope[i] = a->dk_rope[i] + ropes[h * T * R + i];
}

/* The arrays of one case, and of its truth. Errors and sums of errors lie beside the values. */
struct truth {
    double *p, *dp, *ds, *p_error, *g_error; /* [T,T] of one head */
    struct ref_heads x, d;
    double *dq_error, *dkv_error, *dk_rope_error;
};

static double *zeros(size_t n)
{
    double *x = guarded(n * sizeof *x);
    memset(x, 0, n * sizeof *x);
    return x;
}

/* Fills row s of p with the probabilities, and p_error with a bound on those of the operator. A score's error is at
 * most scale times that of its dot, and one rounding. As in checkops_gqa.c, all probabilities then change by a factor
 * within exp(+-2 max error), and by the roundings of exp, of the sums, two products and the quotient. */
static void probabilities(const struct back_attention *a, const struct truth *o, size_t s, size_t h, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope;
    double largest = -INFINITY, error = 0, L = 0, *p = o->p + s * T;
    for (size_t t = 0; t <= s; t++) {
        double dot = 0, size = 0, term;
        for (size_t i = 0; i < N + R; i++) {
            term = i < N ? o->x.q_nope[(s * H + h) * N + i] * o->x.k_nope[(t * H + h) * N + i]
                         : o->x.q_rope[(s * H + h) * R + i - N] * o->x.k_rope[t * R + i - N];
            dot += term;
            size += fabs(term);
        }
        p[t] = dot * (double)a->scale;
        error = fmax(error, (double)a->scale * dot_bound(N + R, size) * 1.01 + fabs(p[t]) * 0x1p-23);
        largest = fmax(largest, fabs(p[t]));
    }
    error += 2 * 2 * largest * 0x1p-24 * 2; /* s - m and m - M are rounded too */
    for (size_t t = 0; t <= s; t++)
        L += p[t] = exp(p[t] - largest);
    for (size_t t = 0; t <= s; t++) {
        p[t] /= L;
        o->p_error[s * T + t] = p[t] * (exp(2 * error) * (1 + rounding_gamma(256 + 20 + 8 * 2 + 8)) - 1);
    }
}

/* Bounds the error of g for row s, after dp has been computed. */
static void bound_g(const struct back_attention *a, const struct truth *o, const float *dy, size_t s, size_t h,
                    size_t T)
{
    size_t H = a->heads, V = a->value;
    double D = 0, D_error = 0, size, dp_error[LONGEST], u = rounding_gamma(4);
    for (size_t t = 0; t <= s; t++) {
        size = 0;
        for (size_t i = 0; i < V; i++)
            size += fabs((double)dy[i] * o->x.v[(t * H + h) * V + i]);
        dp_error[t] = dot_bound(V, size);
        D += o->p[s * T + t] * fabs(o->dp[s * T + t]);
        D_error += o->p_error[s * T + t] * (fabs(o->dp[s * T + t]) + dp_error[t]) + o->p[s * T + t] * dp_error[t];
    }
    D_error += rounding_gamma(dot_depth(T)) * 1.01 * D + 0x1p-140;
    for (size_t t = 0; t <= s; t++) {
        double p = o->p[s * T + t], p_error = o->p_error[s * T + t], difference = fabs(o->dp[s * T + t]) + D;
        o->g_error[s * T + t] = (double)a->scale *
                                (p_error * (difference + dp_error[t] + D_error) + p * (dp_error[t] + D_error) +
                                 u * (p + p_error) * (difference + D_error));
    }
}

static void add_errors(const struct back_attention *a, const struct truth *o, size_t h, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope, V = a->value, K = N + R;
    double sums = rounding_gamma((double)(T * H)) * 1.01; /* one fma for each query, and each head */
    for (size_t s = 0; s < T; s++)
        for (size_t t = 0; t <= s; t++) {
            double g = (double)a->scale * fabs(o->ds[s * T + t]), g_error = o->g_error[s * T + t] + sums * g,
                   p_error = o->p_error[s * T + t] + sums * o->p[s * T + t];
            for (size_t i = 0; i < K; i++) {
                double k = i < N ? o->x.k_nope[(t * H + h) * N + i] : o->x.k_rope[t * R + i - N];
                double q = fabs((double)a->q[(s * H + h) * K + i]);
                o->dq_error[(s * H + h) * K + i] += g_error * fabs(k);
                *(i < N ? &o->dkv_error[(t * H + h) * (N + V) + i] : &o->dk_rope_error[t * R + i - N]) += g_error * q;
            }
            for (size_t i = 0; i < V; i++)
                o->dkv_error[(t * H + h) * (N + V) + N + i] += p_error * fabs((double)a->dy[(s * H + h) * V + i]);
        }
}

/* The truth of a sequence without a chain */
static struct truth truth_of(const struct back_attention *a, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope, V = a->value, K = N + R;
    struct dims dims = {.H = H, .n = N, .r = R, .v = V};
    struct truth o = {zeros(T * T), zeros(T * T), zeros(T * T), zeros(T * T), zeros(T * T),
                      {zeros(T * H * N), zeros(T * H * R), zeros(T * H * N), zeros(T * R), zeros(T * H * V)},
                      {zeros(T * H * N), zeros(T * H * R), zeros(T * H * N), zeros(T * R), zeros(T * H * V)},
                      zeros(T * H * K), zeros(T * H * (N + V)), zeros(T * R)};
    double *dy = doubles_of(a->dy, T * H * V);
    for (size_t i = 0; i < T * H * K; i++)
        *(i % K < N ? &o.x.q_nope[i / K * N + i % K] : &o.x.q_rope[i / K * R + i % K - N]) = (double)a->q[i];
    for (size_t i = 0; i < T * H * (N + V); i++)
        *(i % (N + V) < N ? &o.x.k_nope[i / (N + V) * N + i % (N + V)]
                          : &o.x.v[i / (N + V) * V + i % (N + V) - N]) = (double)a->kv[i];
    for (size_t i = 0; i < T * R; i++)
        o.x.k_rope[i] = (double)a->k_rope[i];
    for (size_t h = 0; h < H; h++) {
        memset(o.dp, 0, T * T * sizeof *o.dp);
        memset(o.ds, 0, T * T * sizeof *o.ds);
        for (size_t s = 0; s < T; s++)
            probabilities(a, &o, s, h, T);
        ref_back_mix(o.dp, &o.d, dy, &o.x, o.p, (int)h, (int)T, &dims);
        for (size_t s = 0; s < T; s++) {
            ref_back_softmax(o.ds + s * T, o.dp + s * T, o.p + s * T, (int)s + 1);
            bound_g(a, &o, a->dy + (s * H + h) * V, s, h, T);
        }
        ref_back_scores_of_head(&o.d, o.ds, &o.x, (double)a->scale, (int)h, (int)T, &dims);
        add_errors(a, &o, h, T);
    }
    return o;
}

static void check_q(const struct back_attention *a, const float *dq, const struct truth *o, size_t s, size_t at)
{
    size_t H = a->heads, N = a->nope, R = a->rope, K = N + R;
    for (size_t i = 0; i < H * K; i++)
        check_within(dq[i],
                     i % K < N ? o->d.q_nope[at * H * N + i / K * N + i % K]
                               : o->d.q_rope[at * H * R + i / K * R + i % K - N],
                     o->dq_error[at * H * K + i] + 0x1p-120, s * H + i / K, i % K);
}

static void check_truth(const struct back_attention *a, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope, V = a->value;
    struct truth o = truth_of(a, T);
    for (size_t s = 0; s < T; s++)
        check_q(a, a->dq + s * H * (N + R), &o, s, s);
    for (size_t i = 0; i < T * H * (N + V); i++)
        check_within(a->dkv[i],
                     i % (N + V) < N ? o.d.k_nope[i / (N + V) * N + i % (N + V)]
                                     : o.d.v[i / (N + V) * V + i % (N + V) - N],
                     o.dkv_error[i] + 0x1p-120, i / (N + V), i % (N + V));
    for (size_t i = 0; i < T * R; i++)
        check_within(a->dk_rope[i], o.d.k_rope[i], o.dk_rope_error[i] + 0x1p-120, i / R, i % R);
}

static void check_attention(size_t T, size_t H, size_t N, size_t R, size_t V, uint64_t *seed)
{
    size_t K = N + R;
    struct back_attention a = {H, N, R, V, 2.0f / sqrtf((float)K), random_floats(T * H * K, seed),
                               random_floats(T * H * (N + V), seed), random_floats(T * R, seed),
                               random_floats(T * H * V, seed), guarded_floats(T * H * K),
                               guarded_floats(T * H * (N + V)), guarded_floats(T * R), 0, 0, NULL};
    CASE("attention of %zu tokens, %zu heads, %zu + %zu, %zu", T, H, N, R, V);
    plain_attention(&a, T);
    check_truth(&a, T);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            size_t mark = guard_count;
            struct kernels k = spy_begin(real);
            struct op_ctx cx = context_of(&k, threads, op_back_attention_scratch(&a, T, T, threads));
            struct back_attention got = a;
            got.dq = guarded_floats(T * H * K);
            got.dkv = guarded_floats(T * H * (N + V));
            got.dk_rope = guarded_floats(T * R);
            CASE("%s %s, %d threads, %zu tokens, %zu heads, %zu + %zu, %zu", real->name,
                 real->variant ? real->variant : "", threads, T, H, N, R, V);
            op_back_attention(&cx, &got, (size_t[]){0, T}, 1);
            assert_int_equal(cx.scratch_used, 0);
            if (T >= 100)
                check_threads_ran(threads < (int)H ? threads : (int)H);
            check_same_bits(got.dq, K, a.dq, K, T * H, K);
            check_same_bits(got.dkv, N + V, a.dkv, N + V, T * H, N + V);
            check_same_bits(got.dk_rope, R, a.dk_rope, R, T, R);
            release_to(mark);
        }
    release_to(0);
}

TEST(gradients_of_attention_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 1;
    check_attention(LONGEST, 2, 24, 8, 20, &seed);
    check_attention(129, 3, 7, 2, 33, &seed);
    check_attention(33, 1, 40, 16, 8, &seed);
    check_attention(1, 2, 4, 2, 4, &seed);
}

/* Several sequences, one of which is empty, in one call */
TEST(sequences_do_not_see_each_other)
{
    enum { H = 2, N = 8, R = 4, V = 12, T = 71, SEQUENCES = 3 };
    static const size_t first[SEQUENCES + 1] = {0, 30, 30, T};
    uint64_t seed = 3;
    size_t q = H * (N + R), kv = H * (N + V), y = H * V;
    struct back_attention a = {H, N, R, V, 0.5f, random_floats(T * q, &seed), random_floats(T * kv, &seed),
                               random_floats(T * R, &seed), random_floats(T * y, &seed), guarded_floats(T * q),
                               guarded_floats(T * kv), guarded_floats(T * R), 0, 0, NULL};
    struct back_attention got = a;
    for (size_t i = 0; i < SEQUENCES; i++) {
        size_t at = first[i];
        struct back_attention alone = {H, N, R, V, 0.5f, a.q + at * q, a.kv + at * kv, a.k_rope + at * R, a.dy + at * y,
                                       a.dq + at * q, a.dkv + at * kv, a.dk_rope + at * R, 0, 0, NULL};
        plain_attention(&alone, first[i + 1] - at);
    }
    FOR_EACH_TABLE(k)
    for (int threads = 1; threads <= 3; threads++) {
        struct op_ctx cx = context_of(k, threads, op_back_attention_scratch(&a, T, 41, threads));
        got.dq = guarded_floats(T * q);
        got.dkv = guarded_floats(T * kv);
        got.dk_rope = guarded_floats(T * R);
        CASE("%s, %d threads, %d sequences", k->name, threads, SEQUENCES);
        op_back_attention(&cx, &got, first, SEQUENCES);
        assert_int_equal(cx.scratch_used, 0);
        check_same_bits(got.dq, q, a.dq, q, T, q);
        check_same_bits(got.dkv, kv, a.dkv, kv, T, kv);
        check_same_bits(got.dk_rope, R, a.dk_rope, R, T, R);
    }
    release_to(0);
}

/* -- aligned depths ------------------------------------------------------------------------------------------------ */

#define DEEPEST 3

/* What query s sees is a sequence of its own, s + 1 + depth tokens whose last query is s: the gradients of the query,
 * and the sums of those of its keys and values, are those of such sequences, in which the other queries have no
 * gradient. */
static void check_chain_truth(const struct back_attention *a, const float *dkv0, const float *dk_rope0, size_t T)
{
    size_t H = a->heads, N = a->nope, R = a->rope, V = a->value, K = N + R, kv = H * (N + V);
    double *dkv = doubles_of(dkv0, T * kv), *dk_rope = doubles_of(dk_rope0, T * R),
           *dkv_error = magnitudes_of(dkv0, T * kv);
    double *dk_rope_error = magnitudes_of(dk_rope0, T * R), more = rounding_gamma((double)((T + a->depth) * H));
    for (size_t i = 0; i < T * kv; i++)
        dkv_error[i] *= more; /* one fma for each query, and each head */
    for (size_t i = 0; i < T * R; i++)
        dk_rope_error[i] *= more;
    for (size_t s = 0; s < T; s++) {
        size_t mark = guard_count, n = s + 1 + a->depth;
        float *q = guarded_floats(n * H * K), *kvs = guarded_floats(n * kv), *k_rope = guarded_floats(n * R),
              *dy = guarded_floats(n * H * V);
        memset(q, 0, n * H * K * sizeof *q);
        memset(dy, 0, n * H * V * sizeof *dy);
        memcpy(q + (n - 1) * H * K, a->q + s * H * K, H * K * sizeof *q);
        memcpy(dy + (n - 1) * H * V, a->dy + s * H * V, H * V * sizeof *dy);
        for (size_t t = 0; t < n; t++) {
            memcpy(kvs + t * kv, token(a, s, t).kv, kv * sizeof *kvs);
            memcpy(k_rope + t * R, token(a, s, t).k_rope, R * sizeof *k_rope);
        }
        struct back_attention alone = {H, N, R, V, a->scale, q, kvs, k_rope, dy, NULL, NULL, NULL, 0, 0, NULL};
        struct truth o = truth_of(&alone, n);
        check_q(a, a->dq + s * H * K, &o, s, n - 1);
        for (size_t t = 0; t <= s; t++) {
            for (size_t i = 0; i < kv; i++) {
                double d = i % (N + V) < N ? o.d.k_nope[t * H * N + i / (N + V) * N + i % (N + V)]
                                           : o.d.v[t * H * V + i / (N + V) * V + i % (N + V) - N];
                dkv[t * kv + i] += d;
                dkv_error[t * kv + i] += o.dkv_error[t * kv + i] + more * fabs(d);
            }
            for (size_t i = 0; i < R; i++) {
                dk_rope[t * R + i] += o.d.k_rope[t * R + i];
                dk_rope_error[t * R + i] += o.dk_rope_error[t * R + i] + more * fabs(o.d.k_rope[t * R + i]);
            }
        }
        for (size_t m = 0; m < a->depth; m++) { /* they began at 0 */
            for (size_t i = 0; i < kv; i++) {
                size_t t = s + 1 + m;
                double d = i % (N + V) < N ? o.d.k_nope[t * H * N + i / (N + V) * N + i % (N + V)]
                                           : o.d.v[t * H * V + i / (N + V) * V + i % (N + V) - N];
                check_within(a->chain[m].dkv[s * kv + i], d, o.dkv_error[t * kv + i] + 0x1p-120, t, i);
            }
            for (size_t i = 0; i < R; i++)
                check_within(a->chain[m].dk_rope[s * R + i], o.d.k_rope[(s + 1 + m) * R + i],
                             o.dk_rope_error[(s + 1 + m) * R + i] + 0x1p-120, s, i);
        }
        release_to(mark);
    }
    for (size_t i = 0; i < T * kv; i++)
        check_within(a->dkv[i], dkv[i], dkv_error[i] + 0x1p-120, i / kv, i % kv);
    for (size_t i = 0; i < T * R; i++)
        check_within(a->dk_rope[i], dk_rope[i], dk_rope_error[i] + 0x1p-120, i / R, i % R);
}

static void give_chain(struct back_attention *a, struct back_chain *chain, const float *const *dkv,
                       const float *const *dk_rope, size_t T)
{
    for (size_t m = 0; m < a->depth; m++) {
        chain[m].dkv = copy_of(dkv[m], T * a->heads * (a->nope + a->value));
        chain[m].dk_rope = copy_of(dk_rope[m], T * a->rope);
    }
    a->chain = chain;
}

/* from: 0, or 1 for gradients of the chain that begin at other numbers */
static void check_aligned(size_t T, size_t depth, int from, size_t H, size_t N, size_t R, size_t V, uint64_t *seed)
{
    size_t K = N + R, kv = H * (N + V);
    struct back_chain want_chain[DEEPEST], chain[DEEPEST];
    const float *dkv[DEEPEST], *dk_rope[DEEPEST], *dkv0 = random_floats(T * kv, seed),
                                                  *dk_rope0 = random_floats(T * R, seed);
    struct back_attention a = {H, N, R, V, 2.0f / sqrtf((float)K), random_floats(T * H * K, seed),
                               random_floats(T * kv, seed), random_floats(T * R, seed), random_floats(T * H * V, seed),
                               guarded_floats(T * H * K), copy_of(dkv0, T * kv), copy_of(dk_rope0, T * R), 1, depth,
                               NULL};
    for (size_t m = 0; m < depth; m++) {
        want_chain[m] = chain[m] = (struct back_chain){random_floats(T * kv, seed), random_floats(T * R, seed), NULL,
                                                       NULL};
        float *zero_kv = random_floats(T * kv, seed), *zero_rope = random_floats(T * R, seed);
        for (size_t i = 0; i < T * kv; i++)
            zero_kv[i] *= (float)from;
        for (size_t i = 0; i < T * R; i++)
            zero_rope[i] *= (float)from;
        dkv[m] = zero_kv;
        dk_rope[m] = zero_rope;
    }
    CASE("aligned depth %zu, %zu rows, %zu heads, %zu + %zu, %zu", depth, T, H, N, R, V);
    give_chain(&a, want_chain, dkv, dk_rope, T);
    plain_attention(&a, T);
    if (!from)
        check_chain_truth(&a, dkv0, dk_rope0, T);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            size_t mark = guard_count;
            struct kernels k = spy_begin(real);
            struct back_attention got = a;
            got.dq = guarded_floats(T * H * K);
            got.dkv = copy_of(dkv0, T * kv);
            got.dk_rope = copy_of(dk_rope0, T * R);
            give_chain(&got, chain, dkv, dk_rope, T);
            struct op_ctx cx = context_of(&k, threads, op_back_attention_scratch(&got, T, T, threads));
            CASE("%s %s, %d threads, aligned depth %zu, %zu rows, %zu heads, %zu + %zu, %zu", real->name,
                 real->variant ? real->variant : "", threads, depth, T, H, N, R, V);
            op_back_attention(&cx, &got, (size_t[]){0, T}, 1);
            assert_int_equal(cx.scratch_used, 0);
            if (T >= 100)
                check_threads_ran(threads < (int)H ? threads : (int)H);
            check_same_bits(got.dq, K, a.dq, K, T * H, K);
            check_same_bits(got.dkv, N + V, a.dkv, N + V, T * H, N + V);
            check_same_bits(got.dk_rope, R, a.dk_rope, R, T, R);
            for (size_t m = 0; m < depth; m++) {
                check_same_bits(chain[m].dkv, N + V, want_chain[m].dkv, N + V, T * H, N + V);
                check_same_bits(chain[m].dk_rope, R, want_chain[m].dk_rope, R, T, R);
            }
            release_to(mark);
        }
    release_to(0);
}

TEST(gradients_of_aligned_depths_are_those_of_their_header_bit_for_bit)
{
    uint64_t seed = 2;
    check_aligned(40, 2, 0, 2, 7, 2, 9, &seed);
    check_aligned(255, 3, 1, 2, 24, 8, 20, &seed); /* chains lie in two blocks of the softmax */
    check_aligned(1, 1, 0, 1, 4, 2, 4, &seed);
    check_aligned(20, 0, 0, 2, 4, 2, 4, &seed); /* without a chain, dkv is continued */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gradients_of_attention_are_those_of_their_header_bit_for_bit, release_all),
        cmocka_unit_test_teardown(sequences_do_not_see_each_other, release_all),
        cmocka_unit_test_teardown(gradients_of_aligned_depths_are_those_of_their_header_bit_for_bit, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
