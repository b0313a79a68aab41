/* tests/ops/checkops_attention.c -- attention over the latent cache: rule 4, one query and one head at a time, and the
 * naive form of the report with K and V expanded per head. Tests run twice: with op_attention, and with op_expanded.
 * Some run again for each type of the cache. */
#include "tests/ops/checkops_attention.h"
#include "tests/support/turn.h"

#include <stdlib.h>

/* o [width] = the softmax of s_j, times rows value[j] of `width` numbers: rule 4c. */
static void contract_values(float *o, const float *score, const float *const *value, size_t length, size_t width)
{
    static float o_b[8][1100];
    float m[8], l[8], M = -INFINITY, L = 0.0f;
    size_t blocks = 0;
    for (size_t begin = 0; begin < length; begin += 256, blocks++) {
        size_t count = length - begin < 256 ? length - begin : 256;
        float prob[256];
        m[blocks] = contract_softmax_block(prob, score + begin, count, &l[blocks]);
        M = m[blocks] > M ? m[blocks] : M;
        for (size_t i = 0; i < width; i++) {
            o_b[blocks][i] = 0.0f;
            for (size_t j = 0; j < count; j++)
                o_b[blocks][i] = fmaf(prob[j], value[begin + j][i], o_b[blocks][i]);
        }
    }
    memset(o, 0, width * sizeof *o);
    for (size_t b = 0; b < blocks; b++) {
        float e = kernel_expf(m[b] - M);
        L = fmaf(e, l[b], L);
        for (size_t i = 0; i < width; i++)
            o[i] = fmaf(e, o_b[b][i], o[i]);
    }
    for (size_t i = 0; i < width; i++)
        o[i] = o[i] / L;
}

/* ---- rule 4 in plain C ---- */

/* Rule 2 for q_abs [c] and the latent of token j, whose row is not rounded yet. */
static float contract_q8_dot(const float *query, size_t c, const struct timeline *t, size_t j, size_t width)
{
    float total = 0.0f, acc = 0.0f;
    for (size_t i = 0; i < c; i += 32) {
        struct rounded_group w = rounded_group(row_of(t, j, width) + i), x = rounded_group(query + i);
        int sum = 0;
        for (size_t l = 0; l < 32; l++)
            sum += w.q[l] * x.q[l];
        acc = fmaf((float)sum, w.d * x.d, i % 1024 ? acc : 0.0f);
        if ((i + 32) % 1024 == 0 || i + 32 == c)
            total = i < 1024 ? acc : total + acc;
    }
    return total;
}

static void contract_head(float *y, const struct problem *p, size_t s, size_t h)
{
    const struct attention *a = &p->a;
    size_t n = a->nope, c = a->latent, r = a->rope;
    const float *q = p->q + (s * a->heads + h) * (n + r), *w_uk = p->kv_b.value + h * (n + a->value) * c;
    const float *w_uv = w_uk + n * c;
    const struct timeline *t = &p->seen[s];
    const float *rows[LONGEST];
    float query[2048], nope[64], o[2048], score[LONGEST];

    contract_x(nope, q, n);
    for (size_t i = 0; i < c; i++) {
        query[i] = 0.0f;
        for (size_t k = 0; k < n; k++)
            query[i] = fmaf(nope[k], w_uk[k * c + i], query[i]);
    }
    memcpy(query + c, q + n, r * sizeof *q);
    for (size_t j = 0; j < t->length; j++) {
        rows[j] = row_of(t, j, c + r);
        score[j] = (cache_type == KV_Q8
                        ? contract_q8_dot(query, c, &p->exact[s], j, c + r) + contract_dot(query + c, rows[j] + c, r)
                        : contract_dot(query, rows[j], c + r)) *
                   a->scale;
    }
    contract_values(o, score, rows, t->length, c);
    contract_x(o, o, c);
    for (size_t v = 0; v < a->value; v++)
        y[v] = contract_dot(w_uv + v * c, o, c);
}

/* The same for op_expanded: keys and values of every token, then one query. */
static void contract_expanded_head(float *y, const struct problem *p, size_t s, size_t h)
{
    const struct attention *a = &p->a;
    size_t n = a->nope, c = a->latent, r = a->rope, V = a->value;
    const float *q = p->q + (s * a->heads + h) * (n + r), *w_uk = p->kv_b.value + h * (n + V) * c, *w_uv = w_uk + n * c;
    const struct timeline *t = &p->seen[s];
    const float *rows[LONGEST];
    float key[64], x[2048], score[LONGEST], value[LONGEST][32];

    for (size_t j = 0; j < t->length; j++) {
        const float *row = row_of(t, j, c + r);
        for (size_t k = 0; k < n; k++) {
            key[k] = 0.0f;
            for (size_t i = 0; i < c; i++)
                key[k] = fmaf(row[i], w_uk[k * c + i], key[k]);
        }
        memcpy(key + n, row + c, r * sizeof *row);
        score[j] = contract_dot(key, q, n + r) * a->scale;
        contract_x(x, row, c);
        for (size_t v = 0; v < V; v++)
            value[j][v] = contract_dot(w_uv + v * c, x, c);
        rows[j] = value[j];
    }
    contract_values(y, score, rows, t->length, V);
}

static float *contract(const struct problem *unrounded)
{
    const struct problem r = rounded(unrounded), *p = &r;
    size_t H = p->a.heads, V = p->a.value;
    float *y = guarded_floats(p->S * H * V);
    for (size_t s = 0; s < p->S; s++)
        for (size_t h = 0; h < H; h++)
            (expanded ? contract_expanded_head : contract_head)(y + (s * H + h) * V, p, s, h);
    return y;
}

static const size_t edge_lengths[] = {1, 2, 15, 17, 255, 256, 257, 512, 513};

TEST(attention_is_rule_4_bit_for_bit)
{
    uint64_t seed = 1;
    for (size_t d = 0; d < COUNT(shapes); d++)
        FOR_EACH_TYPE(type) {
            if (cache_type != KV_F32 && type != WEIGHT_BF16)
                continue;
            size_t S = d ? 3 : COUNT(edge_lengths);
            struct problem p =
                random_problem(shapes[d], (enum weight_type)type, S, edge_lengths + (d ? 3 : 0), S, &seed);
            float *want = contract(&p);
            size_t N = p.a.heads * p.a.value;
            FOR_EACH_TABLE(k)
                for (int threads = 1; threads <= 3; threads++)
                    if (has_turn((size_t)(type + threads), 3))
                        check_same_bits(run(k, threads, &p), N, want, N, S, N);
            release_all(NULL);
        }
}

/* ---- the naive form in double ----
 *
 * Let A[c] = sum_n |q W_uk|, B_j = sum_c A[c] |row_jc| + sum_r |q_r row_jr|, gamma(k) = k u / (1 - k u).
 *
 * Scores. q_abs is off by gamma(n) A; the dot over c+r adds gamma(depth), the product with scale one rounding:
 *     |ds_j| <= gamma(n + depth(c+r) + 1) |scale| B_j  <= D, the largest over j.
 *     In the expanded form, the key is off by gamma(c), and the dot is over n+r: gamma(c + depth(n+r) + 1).
 * Weights. p_j e_b is exp(s_j - m_b) exp(m_b - M). Any m_b and M cancel, but each difference is rounded: since
 *     s_j <= m_b <= M the two errors are together at most u (M - s_j) <= u R, R the range of the computed scores. exp
 *     itself is off by 1 ulp = 2 u, twice. So p_j e_b has a relative error of at most exp(D + u R) (1 + gamma(4)) - 1.
 *     No exponent falls below the range of normal numbers (R < 80 is asserted), so no error is absolute but that of
 *     sums of tiny products (2^-149 each).
 * Quotient. o_b sums at most 256 products and o at most `blocks` of them; l_b sums 256/16 numbers per lane and 4 of the
 *     fold, L adds blocks; numerator and denominator both carry the weights' error; one division:
 *     |do_c| <= phi sum_j w_j |row_jc|,  1 + phi = exp(2 (D + u R)) (1 + gamma(4 + 256 + blocks + 4 + 20 + blocks + 1))
 * Values. W_uv's dot adds gamma(depth(c)):
 *     |dy_v| <= ((1 + phi)(1 + gamma(depth(c))) - 1) sum_c |W_uv| sum_j w_j |row_jc|. */
static void check_head(const struct problem *p, size_t s, size_t h, const float *y)
{
    const struct attention *a = &p->a;
    const struct timeline *t = &p->seen[s];
    size_t n = a->nope, c = a->latent, r = a->rope, V = a->value, T = t->length;
    const float *q = p->q + (s * a->heads + h) * (n + r), *w_uk = p->kv_b.value + h * (n + V) * c, *w_uv = w_uk + n * c;
    double roundings = expanded ? (double)c + dot_depth(n + r) + 1 : (double)n + dot_depth(c + r) + 1;
    double weight[LONGEST], D = 0.0, M = -INFINITY, lowest = INFINITY, L = 0.0, A[2048] = {0}, value[32] = {0};
    double size[32] = {0};

    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < c; i++)
            A[i] += fabs((double)q[k] * (double)w_uk[k * c + i]);
    for (size_t j = 0; j < T; j++) {
        const float *row = row_of(t, j, c + r);
        double score = 0.0, B = 0.0;
        for (size_t k = 0; k < n; k++) { /* K of this head, expanded: [n] */
            double key = 0.0;
            for (size_t i = 0; i < c; i++)
                key += (double)w_uk[k * c + i] * (double)row[i];
            score += (double)q[k] * key;
        }
        for (size_t i = 0; i < c; i++)
            B += A[i] * fabs((double)row[i]);
        for (size_t i = 0; i < r; i++) {
            score += (double)q[n + i] * (double)row[c + i];
            B += fabs((double)q[n + i] * (double)row[c + i]);
        }
        weight[j] = score * (double)a->scale;
        D = fmax(D, rounding_gamma(roundings) * fabs((double)a->scale) * B);
        M = fmax(M, weight[j]);
        lowest = fmin(lowest, weight[j]);
    }
    assert_true(M - lowest < 80.0);
    for (size_t j = 0; j < T; j++)
        L += weight[j] = exp(weight[j] - M);
    for (size_t j = 0; j < T; j++) {
        const float *row = row_of(t, j, c + r);
        for (size_t v = 0; v < V; v++)
            for (size_t i = 0; i < c; i++) { /* V of this head, expanded */
                value[v] += weight[j] / L * (double)w_uv[v * c + i] * (double)row[i];
                size[v] += weight[j] / L * fabs((double)w_uv[v * c + i] * (double)row[i]);
            }
    }
    double blocks = (double)((T + 255) / 256), moved = exp(2 * (D + 0x1p-24 * (M - lowest + 2 * D)));
    double factor = moved * (1 + rounding_gamma(4 + 256 + blocks + 4 + 20 + blocks + 1));
    factor = factor * (1 + rounding_gamma(dot_depth(c))) - 1;
    for (size_t v = 0; v < V; v++)
        check_within(y[v], value[v], factor * size[v] + (double)(T + c) * 0x1p-149, s, h * V + v);
}

TEST(attention_is_within_its_bound_of_the_naive_formula)
{
    uint64_t seed = 2;
    for (size_t d = 0; d < COUNT(shapes); d++)
        for (int type = 0; type < WEIGHT_TYPES; type++) {
            if (cache_type != KV_F32 && type != WEIGHT_BF16)
                continue;
            if (!has_turn(d + (size_t)type, 2))
                continue;
            size_t S = d ? 2 : COUNT(edge_lengths);
            struct problem p =
                random_problem(shapes[d], (enum weight_type)type, S, edge_lengths + (d ? 3 : 0), S, &seed);
            struct problem r = rounded(&p);
            FOR_EACH_TABLE(k) {
                float *y = run(k, 2, &p);
                for (size_t s = 0; s < S; s++)
                    for (size_t h = 0; h < p.a.heads; h += d ? 3 : 1)
                        check_head(&r, s, h, y + (s * p.a.heads + h) * p.a.value);
            }
            release_all(NULL);
        }
}

/* ---- independence ---- */

static const size_t mixed_lengths[] = {70, 1, 255, 256, 257, 3, 513, 16, 33, 120, 300};

/* Sub-batches of 64 queries, 1 to 3 groups of heads, three caches; each query against itself in a cache of its own. */
static void check_alone_and_among_others(int bf16)
{
    static const size_t rows[] = {1, 2, 7, 64, 130};
    uint64_t seed = 3;
    struct problem p = random_problem(shapes[0], WEIGHT_BF16, 130, mixed_lengths, COUNT(mixed_lengths), &seed);
    size_t N = p.a.heads * p.a.value;
    float *want = guarded_floats(130 * N);
    in_bf16 = bf16;
    for (size_t s = 0; s < 130; s++) {
        size_t mark = guard_count;
        struct problem one = alone(&p, s, IN_A_ROW, &seed);
        memcpy(want + s * N, run(scalar_table(), 1, &one), N * sizeof *want);
        release_to(mark);
    }
    FOR_EACH_TABLE(k)
        for (size_t i = 0; i < COUNT(rows); i++)
            for (size_t j = 0; j < COUNT(some_threads); j++) {
                size_t mark = guard_count;
                struct problem some = p;
                if (!has_turn(i + j, 3))
                    continue;
                some.S = rows[i];
                check_same_bits(run(k, some_threads[j], &some), N, want, N, some.S, N);
                release_to(mark);
            }
}

TEST(attention_row_has_the_same_bits_alone_and_among_any_others)
{
    check_alone_and_among_others(0);
    release_all(NULL);
    check_alone_and_among_others(1);
    in_bf16 = 0;
}

TEST(attention_does_not_depend_on_the_slots_of_a_timeline)
{
    uint64_t seed = 4;
    struct problem p =
        random_problem(shapes[0], WEIGHT_F16, COUNT(edge_lengths), edge_lengths, COUNT(edge_lengths), &seed);
    size_t N = p.a.heads * p.a.value;
    float *want = run(scalar_table(), 1, &p);
    FOR_EACH_TABLE(k)
        for (size_t s = 0; s < p.S; s++)
            for (int how = IN_A_ROW; how <= MOSTLY_IN_A_ROW; how++) {
                size_t mark = guard_count;
                struct problem one = alone(&p, s, (enum slots)how, &seed);
                float *y = run(k, 1, &one);
                CASE("attention, %zu tokens, slots %s, %s", p.seen[s].length,
                     how == IN_A_ROW ? "in a row" : how == SCATTERED ? "scattered" : "in two runs", k->name);
                check_same_bits(y, N, want + s * N, N, 1, N);
                release_to(mark);
            }
}

/* Many queries sum their values where the result is; few keep each block's sums first. */
TEST(attention_of_more_queries_than_keep_their_blocks_equals_that_of_each_alone)
{
    uint64_t seed = 11;
    size_t length = 500;
    struct problem p = random_problem((struct shape){16, 4, 8, 5, 544}, WEIGHT_BF16, 64, &length, 1, &seed);
    size_t N = p.a.heads * p.a.value;
    p.context = LONGEST;
    for (size_t s = 0; s < p.S; s++) /* neighbours in one timeline, the end of a block between them */
        p.seen[s] = (struct timeline){p.seen[s / 24].rows, p.seen[0].slots, 496 + s % 24};
    FOR_EACH_TABLE(k) {
        if (k == scalar_table())
            continue;
        size_t mark = guard_count;
        float *y = run(k, 2, &p);
        for (size_t s = 0; s < p.S; s += 7) {
            struct problem one = alone(&p, s, IN_A_ROW, &seed);
            check_same_bits(run(k, 1, &one), N, y + s * N, N, 1, N);
        }
        release_to(mark);
    }
}

/* Tasks of the expanded form: 64 queries of a head, less if a query may see many tokens; and not all heads at once. */
TEST(attention_of_a_prompt_equals_that_of_each_query_alone)
{
    static const struct {
        struct shape shape;
        size_t S, first, context;
    } cases[] = {{{3, 8, 8, 24, 32}, 150, 300, LONGEST}, {{2, 16, 8, 33, 64}, 70, 1, 1 << 20},
                 {{500, 1, 1, 40, 32}, 2, 518, LONGEST}};
    uint64_t seed = 12;
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t length = 1, S = cases[i].S, N;
        struct problem p = random_problem(cases[i].shape, WEIGHT_BF16, S, &length, 1, &seed);
        N = p.a.heads * p.a.value;
        p.context = cases[i].context;
        for (size_t s = 0; s < S; s++)
            p.seen[s] = (struct timeline){p.seen[0].rows, p.seen[0].slots, cases[i].first + s};
        float *want = guarded_floats(S * N);
        for (size_t s = 0; s < S; s += S / 20 + 1) {
            size_t mark = guard_count;
            struct problem one = alone(&p, s, IN_A_ROW, &seed);
            memcpy(want + s * N, run(kernels_select("best", NULL), 1, &one), N * sizeof *want);
            release_to(mark);
        }
        FOR_EACH_TABLE(k) {
            float *y = run(k, 3, &p);
            for (size_t s = 0; s < S; s += S / 20 + 1)
                check_same_bits(y + s * N, N, want + s * N, N, 1, N);
        }
        release_all(NULL);
    }
}

/* A query with a tail is a query whose timeline has the tail's tokens at its end. */
static void check_tails(size_t tail, uint64_t *seed)
{
    static const size_t lengths[] = {1, 2, 15, 17, 253, 254, 255, 256, 257, 300, 301, 511, 512, 513, 514};
    struct problem p = random_problem(shapes[0], WEIGHT_BF16, COUNT(lengths), lengths, COUNT(lengths), seed), whole;
    int32_t *slots = guarded(p.S * tail * sizeof *slots);
    for (size_t s = 0; s < p.S * tail; s++)
        slots[s] = (int32_t)(2 + random_below(seed, LONGEST));
    p.context += tail;
    whole = p;
    whole.seen = guarded(p.S * sizeof *whole.seen);
    for (size_t s = 0; s < p.S; s++) {
        int32_t *all = guarded(LONGEST * sizeof *all);
        memcpy(all, p.seen[s].slots, p.seen[s].length * sizeof *all);
        memcpy(all + p.seen[s].length, slots + s * tail, tail * sizeof *all);
        whole.seen[s] = (struct timeline){p.seen[s].rows, all, p.seen[s].length + tail};
    }
    size_t N = p.a.heads * p.a.value;
    float *want = contract(&whole);
    p.a.tail = tail;
    p.a.tail_slots = slots;
    FOR_EACH_TABLE(k)
        for (int threads = 1; threads <= 3; threads++)
            check_same_bits(run(k, threads, &p), N, want, N, p.S, N);
    release_all(NULL);
}

TEST(tails_are_the_last_tokens_of_their_queries)
{
    uint64_t seed = 21;
    for (size_t tail = 1; tail <= 4; tail += 3)
        check_tails(tail, &seed);
}

/* as branches of a tree of drafts do */
TEST(attention_of_timelines_that_share_rows_equals_that_of_copies)
{
    uint64_t seed = 5;
    size_t length = 270;
    struct problem p = random_problem(shapes[0], WEIGHT_F32, 4, &length, 1, &seed);
    size_t N = p.a.heads * p.a.value;
    for (size_t s = 0; s < 4; s++) { /* 267 tokens in common, then slots 300 + s, 310 + s, 320 + s */
        int32_t *slots = guarded(length * sizeof *slots);
        for (size_t j = 0; j < length; j++)
            slots[j] = (int32_t)(j < 267 ? j + 2 : 300 + s + 10 * (j - 267));
        p.seen[s] = (struct timeline){p.seen[0].rows, slots, length};
    }
    FOR_EACH_TABLE(k) {
        float *y = run(k, 3, &p);
        for (size_t s = 0; s < 4; s++) {
            struct problem one = alone(&p, s, IN_A_ROW, &seed);
            check_same_bits(run(k, 1, &one), N, y + s * N, N, 1, N);
        }
    }
}

/* alone() leaves every row that the query does not see NaN; here rows are poisoned that were seen before */
TEST(attention_ignores_what_stands_behind_its_timeline)
{
    uint64_t seed = 6;
    static const size_t lengths[] = {1, 255, 256, 257};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct problem p = random_problem(shapes[0], WEIGHT_BF16, 1, &lengths[i], 1, &seed);
        size_t width = width_of(&p), N = p.a.heads * p.a.value;
        FOR_EACH_TABLE(k) {
            float *before = run(k, 1, &p);
            float *rows = copy_of(p.seen[0].rows, (LONGEST + 8) * width);
            struct problem poisoned = p;
            memset(rows, 0xff, 2 * width * sizeof *rows);
            memset(rows + (2 + lengths[i]) * width, 0xff, (LONGEST + 6 - lengths[i]) * width * sizeof *rows);
            poisoned.seen = guarded(sizeof *poisoned.seen);
            poisoned.seen[0] = (struct timeline){rows, p.seen[0].slots, lengths[i]};
            check_same_bits(run(k, 1, &poisoned), N, before, N, 1, N);
        }
    }
}

TEST(attention_gives_nan_to_the_query_that_sees_one_and_to_no_other)
{
    uint64_t seed = 7;
    static const size_t lengths[] = {100, 100, 100, 99};
    struct problem p = random_problem(shapes[0], WEIGHT_F32, 4, lengths, 4, &seed);
    size_t N = p.a.heads * p.a.value, width = width_of(&p);
    for (size_t s = 1; s < p.S; s++)
        p.seen[s].rows = p.seen[0].rows;
    float *clean = run(scalar_table(), 1, &p), *rows = copy_of(p.seen[0].rows, (LONGEST + 8) * width);
    rows[(size_t)p.seen[0].slots[99] * width + 7] = NAN; /* token 99, which query 3 does not see */
    for (size_t s = 0; s < p.S; s++)
        p.seen[s].rows = rows;
    FOR_EACH_TABLE(k) {
        float *y = run(k, 2, &p);
        for (size_t i = 0; i < 3 * N; i++)
            assert_true(isnan(y[i]));
        check_same_bits(y + 3 * N, N, clean + 3 * N, N, 1, N);
    }
}

/* e_b of a block that is far below the best one is tiny or zero; one token per block stands out */
TEST(attention_joins_blocks_of_very_different_scores)
{
    uint64_t seed = 8;
    static const size_t length = 513;
    struct problem p = random_problem(shapes[0], WEIGHT_F32, 3, &length, 1, &seed);
    size_t N = p.a.heads * p.a.value;
    p.a.scale *= 40.0f;
    FOR_EACH_TABLE(k)
        check_same_bits(run(k, 2, &p), N, contract(&p), N, 3, N);
}

/* ---- threads ---- */

/* 5, 3 or 2 of 5 heads per task; 64 queries make every region worth three threads */
TEST(attention_runs_on_as_many_threads_as_it_is_given)
{
    uint64_t seed = 9;
    static const size_t length = 300;
    struct problem p = random_problem(shapes[0], WEIGHT_F32, 64, &length, 1, &seed);
    size_t N = p.a.heads * p.a.value;
    float *want = run(scalar_table(), 1, &p);
    FOR_EACH_TABLE(real)
        for (int threads = 1; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            float *y = run(&k, threads, &p);
            check_threads_ran(threads);
            check_same_bits(y, N, want, N, p.S, N);
        }
}

TEST(attention_computes_in_the_default_environment_whatever_the_caller_has_set)
{
    uint64_t seed = 10;
    static const size_t length = 300;
    struct problem p = random_problem(shapes[0], WEIGHT_F32, 64, &length, 1, &seed);
    size_t N = p.a.heads * p.a.value;
    float *want = run(scalar_table(), 1, &p), *y = NULL;
    FOR_EACH_TABLE(real)
        for (int threads = 2; threads <= 3; threads++) {
            struct kernels k = spy_begin(real);
            IN_SPOILED_ENVIRONMENT(threads, y = run(&k, threads, &p));
            check_same_bits(y, N, want, N, p.S, N);
        }
}

/* The initial state of a test: which operator it tests, and the type of the cache. */
static struct setting {
    int expanded;
    enum kv_type type;
} settings[][2] = {{{0, KV_F32}, {1, KV_F32}}, {{0, KV_BF16}, {1, KV_BF16}}, {{0, KV_Q8}, {1, KV_Q8}}};

static int use(void **state)
{
    const struct setting *s = *state;
    expanded = s->expanded;
    cache_type = s->type;
    return 0;
}

#define WITH(type, prefix, name)                                      \
    {prefix #name, name, use, release_all, &settings[type][0]},       \
        {"expanded: " prefix #name, name, use, release_all, &settings[type][1]}
#define T(name) WITH(KV_F32, "", name)
#define ALL(name) T(name), WITH(KV_BF16, "cache bf16: ", name), WITH(KV_Q8, "cache q8: ", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(attention_is_rule_4_bit_for_bit),
        T(attention_is_within_its_bound_of_the_naive_formula),
        WITH(KV_BF16, "cache bf16: ", attention_is_within_its_bound_of_the_naive_formula), /* cache q8 quantizes queries
                                                                                              too */
        T(attention_row_has_the_same_bits_alone_and_among_any_others),
        ALL(attention_does_not_depend_on_the_slots_of_a_timeline),
        T(attention_of_more_queries_than_keep_their_blocks_equals_that_of_each_alone),
        T(attention_of_a_prompt_equals_that_of_each_query_alone),
        {"tails_are_the_last_tokens_of_their_queries", tails_are_the_last_tokens_of_their_queries, use, release_all,
         &settings[KV_F32][1]}, /* op_attention has none */
        ALL(attention_of_timelines_that_share_rows_equals_that_of_copies),
        ALL(attention_ignores_what_stands_behind_its_timeline),
        ALL(attention_gives_nan_to_the_query_that_sees_one_and_to_no_other),
        T(attention_joins_blocks_of_very_different_scores),
        T(attention_runs_on_as_many_threads_as_it_is_given),
        T(attention_computes_in_the_default_environment_whatever_the_caller_has_set),
    };
    return cmocka_run_group_tests_name("checkops_attention", tests, NULL, NULL);
}
