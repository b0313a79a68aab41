#include "ops/indexer.h"

#include <math.h>
#include <string.h>

#include "ops/attention_blocks.h"
#include "ops/round.h"
#include "simd/decode.h"
#include "numbers/numbers.h"

#define MOST_SCORES ((size_t)1 << 22) /* scores at once, but at least of one query */
#define BLOCK ATTENTION_BLOCK         /* tokens whose scores a task computes; neither number changes a bit */

/* ---- queries and keys ---- */

void op_index_norm(const struct kernels *k, float *x, const float *w, const float *b, size_t D)
{
    float ones[INDEX_MAX_DIM];
    for (size_t i = 0; i < INDEX_MAX_DIM; i++)
        ones[i] = 1.0f;
    float mean = k->dot(x, ones, D) / (float)D;
    for (size_t i = 0; i < D; i++)
        x[i] = x[i] - mean;
    float r = 1.0f / sqrtf(k->dot(x, x, D) / (float)D + INDEX_NORM_EPS);
    for (size_t i = 0; i < D; i++)
        x[i] = x[i] * r * w[i] + b[i];
}

static void hadamard(float *x, size_t D, float scale)
{
    for (size_t n = 1; n < D; n *= 2)
        for (size_t i = 0; i < D; i += 2 * n)
            for (size_t l = i; l < i + n; l++) {
                float a = x[l], b = x[l + n];
                x[l] = a + b;
                x[l + n] = a - b;
            }
    for (size_t i = 0; i < D; i++)
        x[i] = x[i] * scale;
}

float index_inverse_root(size_t n) { return (float)(1.0 / sqrt((double)n)); }

void op_index_key(const struct indexer *ix, void *row, float *k)
{
    size_t D = ix->dim;
    float s;
    if (ix->hadamard)
        hadamard(k, D, index_inverse_root(D));
    if (ix->codes) {
        s = op_encode_e4m3(row, k, D);
        memcpy((char *)row + D, &s, sizeof s);
    } else {
        memcpy(row, k, D * sizeof *k);
    }
}

/* Transforms and encodes a query in place. Returns its scale. */
static float encode_query(const struct indexer *ix, float *q)
{
    uint8_t code[INDEX_MAX_DIM];
    if (ix->hadamard)
        hadamard(q, ix->dim, index_inverse_root(ix->dim));
    if (!ix->codes)
        return 1.0f;
    float s = op_encode_e4m3(code, q, ix->dim);
    for (size_t i = 0; i < ix->dim; i++)
        q[i] = e4m3_to_f32(code[i]);
    return s;
}

struct query_pass {
    const struct op_ctx *cx;
    const struct indexer *ix;
    float *q, *w;
};

/* Prepares heads [first, first + count) of all heads of all rows. */
static void some_heads(void *arg, size_t first, size_t count)
{
    const struct query_pass *p = arg;
    const struct indexer *ix = p->ix;
    size_t D = ix->dim, H = ix->heads;
    float of_heads = index_inverse_root(H), of_dim = index_inverse_root(D);
    for (size_t i = first; i < first + count; i++) {
        float x[INDEX_MAX_DIM], *q = p->q + i * D, s = encode_query(ix, q), w = p->w[i] * of_heads;
        memcpy(x, q, D * sizeof *q);
        p->cx->k->pack(q, x, D);
        if (ix->bf16_weights)
            op_round_bf16(&w, &w, 1);
        p->w[i] = w * s * of_dim;
    }
}

void op_index_queries(const struct op_ctx *cx, float *q, float *w, const struct indexer *ix, size_t S)
{
    struct query_pass p = {cx, ix, q, w};
    op_each_row(cx, S * ix->heads, 16.0 * (double)ix->dim, some_heads, &p);
}

/* ---- scores ---- */

struct choice_pass {
    const struct op_ctx *cx;
    const struct indexer *ix;
    const struct timeline *seen;
    const int32_t *const *forced; /* NULL: none */
    const float *q, *w;
    int32_t *kept;
    size_t S, blocks, context; /* blocks: those of the longest timeline */
    float *score;              /* [S, context] */
    uint32_t *ranks;           /* [threads, context]: working memory of op_index_keep */
};

static size_t queries_at_once(size_t S, size_t context) { return min_size(S, max_size(1, MOST_SCORES / context)); }

size_t op_index_scratch(size_t S, size_t context, int threads)
{
    return op_scratch_bytes(queries_at_once(S, context) * context) + op_scratch_bytes((size_t)threads * context) +
           op_scratch_bytes(context);
}

static int has_to_choose(const struct choice_pass *p, size_t s) { return p->seen[s].length > p->ix->kept; }

static int is_forced(const struct choice_pass *p, size_t s) { return p->forced && p->forced[s]; }

static int wants_scores(const struct choice_pass *p, size_t s)
{
    const struct op_probe *probe = p->cx->probe;
    return (has_to_choose(p, s) && (probe || !is_forced(p, s))) || (probe && probe->scores);
}

/* Computes the scores of one query for one block of tokens. */
static void block_of_scores(void *arg, size_t task, int thread)
{
    struct choice_pass *p = arg;
    size_t s = task / p->blocks, j = task % p->blocks * BLOCK, H = p->ix->heads, D = p->ix->dim;
    const struct timeline *t = &p->seen[s];
    if (!wants_scores(p, s) || j >= t->length)
        return;
    struct index_view keys = {t->rows, t->slots + j, min_size(BLOCK, t->length - j), D, p->ix->codes};
    p->cx->k->index_scores(p->score + s * p->context + j, &keys, p->q + s * H * D, p->w + s * H, H,
                           op_kernel_scratch(p->cx, thread));
}

/* ---- the choice ---- */

/* Computes a number for each score that is larger if the score comes earlier in the order of rule 7, and equal if
 * scores are equal. */
static void compute_ranks(uint32_t *rank, const float *score, size_t n, const struct indexer *ix)
{
    for (size_t t = 0; t < n; t++) {
        float x = ix->bf16_scores ? round_to_bf16(score[t]) : score[t];
        uint32_t bits = f32_to_bits(x + 0.0f), negative = 0u - (bits >> 31); /* -0 becomes +0 */
        rank[t] = x == x ? bits ^ (negative | 0x80000000) : 0;
    }
}

/* Returns the largest number that at least `wanted` ranks are not below, or a smaller one if exactly `wanted` ranks are
 * not below that. *count becomes the number of these ranks. */
static uint32_t find_rank(const struct kernels *k, const uint32_t *rank, size_t n, size_t wanted, size_t *count)
{
    uint32_t least = 0;
    *count = n;
    for (uint32_t bit = 0x80000000; bit && *count > wanted; bit >>= 1) {
        size_t c = k->count_from(rank, n, least | bit);
        if (c >= wanted) {
            least |= bit;
            *count = c;
        }
    }
    return least;
}

void op_index_keep(const struct kernels *k, int32_t *kept, uint32_t *rank, const float *score, size_t n,
                   const struct indexer *ix)
{
    size_t count, places = ix->kept, equal = 0; /* equal: how many scores of rank `least` the loop has seen */
    compute_ranks(rank, score, n, ix);
    uint32_t least = find_rank(k, rank, n, places, &count);
    size_t all_equal = count - k->count_from(rank, n, least + 1); /* no rank is UINT32_MAX, which would be a NaN */
    size_t kept_equal = places - (count - all_equal);
    size_t first = ix->highest ? all_equal - kept_equal : 0;
    for (size_t t = 0, i = 0; i < places; t++) {
        int is_equal = rank[t] == least;
        kept[i] = (int32_t)t;
        i += (size_t)(rank[t] > least || (is_equal && equal - first < kept_equal));
        equal += (size_t)is_equal;
    }
}

static void choose(void *arg, size_t s, int thread)
{
    struct choice_pass *p = arg;
    if (has_to_choose(p, s) && is_forced(p, s))
        memcpy(p->kept + s * p->ix->kept, p->forced[s], p->ix->kept * sizeof *p->kept);
    else if (has_to_choose(p, s))
        op_index_keep(p->cx->k, p->kept + s * p->ix->kept, p->ranks + (size_t)thread * p->context,
                      p->score + s * p->context, p->seen[s].length, p->ix);
}

/* ---- telling ---- */

/* Returns the lowest score that was kept minus the highest one that was not. */
static float margin_of(const struct choice_pass *p, size_t s)
{
    const float *score = p->score + s * p->context;
    const int32_t *kept = p->kept + s * p->ix->kept;
    float low = INFINITY, high = -INFINITY;
    for (size_t t = 0, i = 0; t < p->seen[s].length; t++)
        if (i < p->ix->kept && (size_t)kept[i] == t) {
            low = score[t] < low ? score[t] : low;
            i++;
        } else
            high = score[t] > high ? score[t] : high;
    return low - high;
}

static void show(const struct choice_pass *p, size_t first, int32_t *all)
{
    struct op_probe *probe = p->cx->probe;
    for (size_t s = 0; s < p->S; s++) {
        size_t n = p->seen[s].length;
        if (!n)
            continue;
        if (probe->scores)
            probe->see(probe, PROBE_INDEX_SCORES, -1, first + s, 1, p->score + s * p->context, n);
        for (size_t t = 0; !has_to_choose(p, s) && t < n; t++)
            all[t] = (int32_t)t;
        probe->see(probe, PROBE_INDEX_KEPT, -1, first + s, 1, has_to_choose(p, s) ? p->kept + s * p->ix->kept : all,
                   min_size(n, p->ix->kept));
        if (has_to_choose(p, s))
            probe->see(probe, PROBE_INDEX_MARGIN, -1, first + s, 1, &(float){margin_of(p, s)}, 1);
    }
}

/* ---- all of it ---- */

static void some_queries(struct choice_pass *p)
{
    double tokens = 0;
    size_t longest = 0;
    for (size_t s = 0; s < p->S; s++)
        if (wants_scores(p, s)) {
            longest = max_size(longest, p->seen[s].length);
            tokens += (double)p->seen[s].length;
        }
    p->blocks = blocks_of(longest);
    op_parallel(p->cx, p->S * p->blocks, tokens * (double)(p->ix->heads * p->ix->dim), block_of_scores, p);
    op_parallel(p->cx, p->S, 8 * tokens, choose, p);
}

void op_index_choose(struct op_ctx *cx, int32_t *kept, const float *q, const float *w, const struct timeline *seen,
                     const struct indexer *ix, size_t S, size_t context)
{
    size_t mark = op_mark(cx), T = (size_t)cx->threads, most = queries_at_once(S, context);
    struct choice_pass p = {.cx = cx, .ix = ix, .context = context};
    p.ranks = (uint32_t *)(void *)op_take(cx, T * context);
    p.score = op_take(cx, most * context);
    int32_t *all = (int32_t *)(void *)op_take(cx, context);
    for (size_t s = 0; s < S; s += most) {
        p.S = min_size(most, S - s);
        p.seen = seen + s;
        p.forced = ix->forced ? ix->forced + s : NULL;
        p.q = q + s * ix->heads * ix->dim;
        p.w = w + s * ix->heads;
        p.kept = kept + s * ix->kept;
        some_queries(&p);
        if (cx->probe)
            show(&p, s, all);
    }
    op_give(cx, mark);
}
