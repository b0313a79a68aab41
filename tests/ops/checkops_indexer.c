/* tests/ops/checkops_indexer.c -- ops/indexer.c: the bits of rule 9 in plain C, for any rows, threads and kernel table;
 * the formula in double; codes that are the nearest ones; and choices among scores that are equal or NaN. */
#include "tests/ops/checkops.h"

#include <stdlib.h>

#include "ops/indexer.h"

/* ---- rule 9 in plain C ---- */

static double value_of_code(unsigned code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double magnitude = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -magnitude : magnitude;
}

/* Returns the E4M3 code that is nearest to x, by trying all of them; of two, the even one. */
static uint8_t nearest_code(float x)
{
    unsigned best = 0, sign = signbit(x) ? 0x80 : 0;
    for (unsigned code = 0; code < 0x7f; code++) {
        double d = fabs(value_of_code(code) - fabs((double)x)), least = fabs(value_of_code(best) - fabs((double)x));
        if (d < least || (d == least && code % 2 == 0))
            best = code;
    }
    return (uint8_t)(best | sign);
}

static void contract_norm(float *x, const float *w, const float *b, size_t D)
{
    float ones[INDEX_MAX_DIM], mean, r;
    for (size_t i = 0; i < INDEX_MAX_DIM; i++)
        ones[i] = 1.0f;
    mean = contract_dot(x, ones, D) / (float)D;
    for (size_t i = 0; i < D; i++)
        x[i] -= mean;
    r = 1.0f / sqrtf(contract_dot(x, x, D) / (float)D + 1e-6f);
    for (size_t i = 0; i < D; i++) {
        float normed = x[i] * r, weighed = normed * w[i];
        x[i] = weighed + b[i];
    }
}

/* Replaces a rotated key or query by its codes. Returns their scale. */
static float contract_encode(const struct indexer *ix, float *x)
{
    size_t D = ix->dim;
    float most = 1e-4f, s = 0x1p-40f, root = (float)(1 / sqrt((double)D));
    for (size_t n = 1; n < D && ix->hadamard; n *= 2)
        for (size_t i = 0; i < D; i++)
            if (i / n % 2 == 0) {
                float a = x[i], b = x[i + n];
                x[i] = a + b;
                x[i + n] = a - b;
            }
    for (size_t i = 0; i < D && ix->hadamard; i++)
        x[i] *= root;
    if (!ix->codes)
        return 1.0f;
    for (size_t i = 0; i < D; i++)
        most = fmaxf(most, fabsf(x[i]));
    float wanted = most * (1.0f / 448.0f);
    while (s < wanted)
        s *= 2;
    for (size_t i = 0; i < D; i++) {
        float scaled = fmaxf(fminf(x[i] / s, 448.0f), -448.0f);
        x[i] = (float)value_of_code(nearest_code(scaled));
    }
    return s;
}

/* To 8 significant bits, ties to even. */
static float to_bf16(float x)
{
    int exponent;
    float fraction = frexpf(x, &exponent);
    return ldexpf(nearbyintf(fraction * 256.0f), exponent - 8);
}

/* ---- cases ---- */

struct index_case {
    struct indexer ix;
    size_t S, slots, context;
    char *rows;            /* [slots, row] */
    float *q, *w;          /* [S, H, D], [S, H] before they are prepared */
    int32_t *slot_of;
    struct timeline *seen;
    float *key, *scale;    /* [slots, D], [slots]: codes of each row as f32, and their scale */
};

static struct index_case random_case(struct indexer ix, size_t S, size_t longest, uint64_t *seed)
{
    struct index_case c = {.ix = ix, .S = S, .slots = longest + 3, .context = longest};
    size_t D = ix.dim, size = index_row_bytes(&ix);
    float *w = random_floats(D, seed), *b = random_floats(D, seed);
    c.rows = guarded(c.slots * size);
    c.key = guarded_floats(c.slots * D);
    c.scale = guarded_floats(c.slots);
    for (size_t j = 0; j < c.slots; j++) {
        float *k = random_floats(D, seed), *same = c.key + j * D;
        memcpy(same, k, D * sizeof *k);
        op_index_norm(scalar_table(), k, w, b, D);
        contract_norm(same, w, b, D);
        check_same_bits(k, D, same, D, 1, D);
        op_index_key(&ix, c.rows + j * size, k);
        c.scale[j] = contract_encode(&ix, same);
    }
    c.q = random_floats(S * ix.heads * D, seed);
    c.w = random_floats(S * ix.heads, seed);
    c.slot_of = guarded(c.slots * sizeof *c.slot_of);
    c.seen = guarded(S * sizeof *c.seen);
    for (size_t j = 0, half = c.slots / 2; j < c.slots; j++) /* the rows of the later tokens are in descending order */
        c.slot_of[j] = (int32_t)(j < half ? j : c.slots - 1 - (j - half));
    for (size_t s = 0; s < S; s++)
        c.seen[s] = (struct timeline){c.rows, c.slot_of, s ? 1 + random_below(seed, longest) : longest};
    return c;
}

struct seen_scores {
    struct op_probe probe;
    float *score;  /* [S, context] */
    float *margin; /* [S] */
    size_t context, kept[64];
};

static void see(struct op_probe *probe, enum probed_value value, int index, size_t first, size_t count,
                const void *data, size_t width)
{
    struct seen_scores *to = (struct seen_scores *)(void *)probe;
    assert_int_equal(count, 1);
    assert_int_equal(index, -1);
    if (value == PROBE_INDEX_SCORES)
        memcpy(to->score + first * to->context, data, width * sizeof(float));
    else if (value == PROBE_INDEX_MARGIN)
        to->margin[first] = *(const float *)data;
    else if (value == PROBE_INDEX_KEPT)
        to->kept[first] = width;
    else
        fail_msg("value %d", (int)value);
}

/* Runs the operator on rows [first, first + count). The probe may be NULL. */
static void run(const struct index_case *c, const struct kernels *k, int threads, size_t first, size_t count,
                int32_t *kept, struct seen_scores *scores)
{
    size_t H = c->ix.heads, D = c->ix.dim, mark = guard_count;
    struct op_ctx cx = context_of(k, threads, op_index_scratch(count, c->context, threads));
    float *q = copy_of(c->q + first * H * D, count * H * D), *w = copy_of(c->w + first * H, count * H);
    cx.probe = scores ? &scores->probe : NULL;
    op_index_queries(&cx, q, w, &c->ix, count);
    op_index_choose(&cx, kept + first * c->ix.kept, q, w, c->seen + first, &c->ix, count, c->context);
    assert_int_equal(cx.scratch_used, 0);
    release_to(mark);
}

/* Scores of query s by rule 9, and the bound of their errors against the formula in double over the same codes. */
static void contract_scores(const struct index_case *c, size_t s, float *score)
{
    size_t H = c->ix.heads, D = c->ix.dim;
    float of_heads = (float)(1 / sqrt((double)H)), of_dim = (float)(1 / sqrt((double)D));
    float *q = copy_of(c->q + s * H * D, H * D), *w = copy_of(c->w + s * H, H);
    for (size_t h = 0; h < H; h++) {
        float scale = contract_encode(&c->ix, q + h * D);
        w[h] = c->ix.bf16_weights ? to_bf16(w[h] * of_heads) : w[h] * of_heads;
        w[h] *= scale;
        w[h] *= of_dim;
    }
    for (size_t t = 0; t < c->seen[s].length; t++) {
        size_t slot = (size_t)c->slot_of[t];
        float acc = 0.0f;
        double exact = 0, bound = 0, size = 0;
        for (size_t h = 0; h < H; h++) {
            double dot = 0, terms = 0;
            for (size_t i = 0; i < D; i++) {
                dot += (double)q[h * D + i] * (double)c->key[slot * D + i];
                terms += fabs((double)q[h * D + i] * (double)c->key[slot * D + i]);
            }
            acc = fmaf(w[h], fmaxf(contract_dot(c->key + slot * D, q + h * D, D), 0.0f), acc);
            exact += (double)w[h] * fmax(dot, 0);
            bound += fabs((double)w[h]) * dot_bound(D, terms);
            size += fabs((double)w[h]) * fmax(dot, 0);
        }
        score[t] = c->scale[slot] * acc; /* a product with a power of two */
        bound += rounding_gamma((double)H + 1) * (size + bound);
        check_within(score[t], (double)c->scale[slot] * exact, (double)c->scale[slot] * bound + 0x1p-120, s, t);
    }
}

static const float *compared;
static const struct indexer *comparing;
static int earlier(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    float x = compared[i], y = compared[j];
    if (isnan(x) != isnan(y))
        return isnan(x) ? 1 : -1;
    x = comparing->bf16_scores ? to_bf16(x) : x;
    y = comparing->bf16_scores ? to_bf16(y) : y;
    return x > y ? -1 : x < y ? 1 : (i < j) == !comparing->highest ? -1 : 1;
}

static int ascending(const void *a, const void *b) { return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1; }

/* Compares the chosen tokens of query s with a sorted list of all tokens. */
static void check_choice(const struct index_case *c, size_t s, const float *score, const int32_t *kept,
                         const struct seen_scores *seen)
{
    size_t n = c->seen[s].length, K = c->ix.kept, mark = guard_count;
    if (n <= K)
        return;
    int32_t *order = guarded(n * sizeof *order);
    for (size_t t = 0; t < n; t++)
        order[t] = (int32_t)t;
    compared = score;
    comparing = &c->ix;
    qsort(order, n, sizeof *order, earlier);
    if (seen && !c->ix.bf16_scores && !isnan(score[order[0]]) && !isnan(score[order[n - 1]]))
        assert_true(seen->margin[s] == score[order[K - 1]] - score[order[K]]);
    qsort(order, K, sizeof *order, ascending);
    for (size_t i = 0; i < K; i++)
        if (kept[s * K + i] != order[i])
            fail_msg("%s: query %zu of %zu tokens keeps token %d as number %zu, wanted %d", case_name, s, n,
                     (int)kept[s * K + i], i, (int)order[i]);
    release_to(mark);
}

static void check_case(const struct index_case *c, const char *what)
{
    size_t S = c->S, K = c->ix.kept;
    int32_t *kept = guarded(S * K * sizeof *kept), *other = guarded(S * K * sizeof *other);
    float *score = guarded_floats(S * c->context), *margin = guarded_floats(S),
          *wanted = guarded_floats(S * c->context);
    struct seen_scores seen = {{see, 1}, score, margin, c->context, {0}};
    for (size_t s = 0; s < S; s++)
        contract_scores(c, s, wanted + s * c->context);
    FOR_EACH_TABLE(k)
        for (int threads = 1; threads <= 3; threads++) {
            CASE("%s, %s, %d threads, H %zu, D %zu, %zu of %zu tokens", what, k->name, threads, c->ix.heads, c->ix.dim,
                 K, c->context);
            run(c, k, threads, 0, S, kept, &seen);
            for (size_t s = 0; s < S; s++) {
                check_same_bits(score + s * c->context, c->context, wanted + s * c->context, c->context, 1,
                                c->seen[s].length);
                check_choice(c, s, wanted + s * c->context, kept, &seen);
                assert_int_equal(seen.kept[s], c->seen[s].length < K ? c->seen[s].length : K);
                if (threads == 1)
                    run(c, k, threads, s, 1, other, NULL);
                if (threads == 1)
                    check_choice(c, s, wanted + s * c->context, other, NULL);
            }
        }
}

TEST(indexer_is_rule_9_bit_for_bit)
{
    static const struct indexer kinds[] = {{.heads = 1, .dim = 32, .hadamard = 1, .codes = 1},
                                           {.heads = 3, .dim = 64, .hadamard = 1, .codes = 1},
                                           {.heads = 4, .dim = 128, .codes = 1, .highest = 1},
                                           {.heads = 17, .dim = 128, .hadamard = 1, .codes = 1},
                                           {.heads = 3, .dim = 64, .hadamard = 1, .bf16_weights = 1},
                                           {.heads = 4, .dim = 128, .bf16_scores = 1},
                                           {.heads = 130, .dim = 32, .codes = 1}};
    static const size_t lengths[][2] = {{1, 1}, {5, 4}, {255, 7}, {256, 255}, {300, 256}, {700, 33}}; /* tokens; kept */
    uint64_t seed = 9;
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (size_t l = i < 4 ? 0 : 4; l < COUNT(lengths); l++) {
            struct indexer ix = kinds[i];
            ix.kept = lengths[l][1];
            struct index_case c = random_case(ix, 1 + l, lengths[l][0], &seed);
            check_case(&c, "random");
            release_to(0);
        }
}

/* Without any weight all scores are 0, so the earliest tokens are kept. Weights below 0 make many scores equal to 0; if
 * they are tiny, others become -0. The numbers of the last two queries are far below 1e-4, so their codes are
 * subnormal. */
TEST(equal_scores_keep_the_earliest_tokens)
{
    uint64_t seed = 10;
    struct index_case c = random_case((struct indexer){.heads = 2, .dim = 64, .kept = 40, .hadamard = 1, .codes = 1}, 4,
                                      600, &seed);
    for (size_t i = 0; i < c.S * 2; i++)
        c.w[i] = i < 2 ? 0.0f : i < 4 ? -0.5f : i < 6 ? -7e-38f : 1.0f;
    for (size_t i = 4 * 64; i < 8 * 64; i++)
        c.q[i] *= 1e-8f;
    for (size_t s = 1; s < c.S; s++)
        c.seen[s].length = 600;
    int32_t *kept = guarded(c.S * c.ix.kept * sizeof *kept);
    run(&c, scalar_table(), 1, 0, c.S, kept, NULL);
    for (size_t i = 0; i < c.ix.kept; i++)
        assert_int_equal(kept[i], i);
    check_case(&c, "ties");
    c.ix.highest = 1;
    check_case(&c, "ties, the latest first");
}

/* A key or a query that is not finite has codes that are NaN: its scores come last, in ascending order. */
TEST(numbers_that_are_not_finite_come_last)
{
    uint64_t seed = 11;
    struct index_case c = random_case((struct indexer){.heads = 2, .dim = 64, .kept = 40, .hadamard = 1, .codes = 1}, 1,
                                      50, &seed);
    float bad[64], wanted[50], *score = guarded_floats(50), *margin = guarded_floats(1);
    struct seen_scores seen = {{see, 1}, score, margin, c.context, {0}};
    int32_t *kept = guarded(c.ix.kept * sizeof *kept);
    contract_scores(&c, 0, wanted);
    for (size_t t = 3; t < 50; t += 3) { /* 16 of 50 tokens: 6 of them are kept */
        memset(bad, 0, sizeof bad);
        bad[0] = t % 2 ? INFINITY : NAN;
        op_index_key(&c.ix, c.rows + (size_t)c.slot_of[t] * index_row_bytes(&c.ix), bad);
        wanted[t] = NAN;
    }
    FOR_EACH_TABLE(k)
    {
        CASE("not finite, %s", k->name);
        run(&c, k, 1, 0, 1, kept, &seen);
        check_same_bits(score, 50, wanted, 50, 1, 50);
        check_choice(&c, 0, wanted, kept, NULL);
    }
    c.q[0] = c.q[64] = NAN;
    run(&c, scalar_table(), 1, 0, 1, kept, NULL);
    for (size_t i = 0; i < c.ix.kept; i++)
        assert_int_equal(kept[i], i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(indexer_is_rule_9_bit_for_bit, release_all),
        cmocka_unit_test_teardown(equal_scores_keep_the_earliest_tokens, release_all),
        cmocka_unit_test_teardown(numbers_that_are_not_finite_come_last, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
