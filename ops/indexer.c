#include "ops/indexer.h"

#include <math.h>
#include <string.h>

#include "ops/attention_blocks.h"
#include "ops/round.h"
#include "simd/decode.h"

#define MOST_SCORES ((size_t)1 << 22) /* scores at once, but at least of one query */
#define BLOCK ATTENTION_BLOCK         /* tokens whose scores a task computes; neither number changes a bit */
#define NORM_EPS 1e-6f

/* ---- queries and keys ---- */

void op_index_norm(const struct kernels *k, float *x, const float *w, const float *b, size_t D)
{
    float ones[INDEX_MAX_DIM];
    for (size_t i = 0; i < INDEX_MAX_DIM; i++)
        ones[i] = 1.0f;
    float mean = k->dot(x, ones, D) / (float)D;
    for (size_t i = 0; i < D; i++)
        x[i] = x[i] - mean;
    float r = 1.0f / sqrtf(k->dot(x, x, D) / (float)D + NORM_EPS);
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

static float inverse_root(size_t n) { return (float)(1.0 / sqrt((double)n)); }

void op_index_key(const struct indexer *ix, void *row, float *k)
{
    size_t D = ix->dim;
    float s;
    if (ix->hadamard)
        hadamard(k, D, inverse_root(D));
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
        hadamard(q, ix->dim, inverse_root(ix->dim));
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
    float of_heads = inverse_root(H), of_dim = inverse_root(D);
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
    float *dots;               /* [threads, H, SCORE_STRIDE] */
    char *rows;                /* [threads, BLOCK, row]: copies of rows that are not adjacent in memory */
    float *score;              /* [S, context] */
};

static size_t queries_at_once(size_t S, size_t context) { return at_most(S, at_least(1, MOST_SCORES / context)); }

size_t op_index_scratch(const struct indexer *ix, size_t S, size_t context, int threads)
{
    return op_scratch_bytes((size_t)threads * ix->heads * SCORE_STRIDE) +
           op_scratch_bytes((size_t)threads * BLOCK * index_row_bytes(ix) / sizeof(float)) +
           op_scratch_bytes(queries_at_once(S, context) * context) + op_scratch_bytes(context);
}

static int has_to_choose(const struct choice_pass *p, size_t s) { return p->seen[s].length > p->ix->kept; }

static int is_forced(const struct choice_pass *p, size_t s) { return p->forced && p->forced[s]; }

static int wants_scores(const struct choice_pass *p, size_t s)
{
    const struct op_probe *probe = p->cx->probe;
    return (has_to_choose(p, s) && (probe || !is_forced(p, s))) || (probe && probe->scores);
}

/* Returns n rows of the index cache from token j on. If they are not adjacent in memory, they are copied first. */
static const char *index_rows(const struct choice_pass *p, int thread, const struct timeline *t, size_t j, size_t n)
{
    size_t size = index_row_bytes(p->ix), run = 1;
    const int32_t *slots = t->slots + j;
    char *rows = p->rows + (size_t)thread * BLOCK * size;
    while (run < n && slots[run] == slots[0] + (int32_t)run)
        run++;
    if (run == n)
        return (const char *)t->rows + (size_t)slots[0] * size;
    for (size_t i = 0; i < n; i++)
        memcpy(rows + i * size, (const char *)t->rows + (size_t)slots[i] * size, size);
    return rows;
}

/* Computes the scores of one query for one block of tokens. */
static void block_of_scores(void *arg, size_t task, int thread)
{
    static const float one = 1.0f;
    struct choice_pass *p = arg;
    size_t s = task / p->blocks, j = task % p->blocks * BLOCK, H = p->ix->heads, D = p->ix->dim, size = index_row_bytes(p->ix);
    const struct timeline *t = &p->seen[s];
    if (!wants_scores(p, s) || j >= t->length)
        return;
    size_t n = at_most(BLOCK, t->length - j);
    const char *rows = index_rows(p, thread, t, j, n);
    struct weight_view keys = {.type = p->ix->codes ? WEIGHT_F8_E4M3 : WEIGHT_F32, .data = rows, .rows = n, .cols = D,
                               .stride = p->ix->codes ? size : D, .scale = p->ix->codes ? &one : NULL, .block_rows = BLOCK,
                               .block_cols = INDEX_MAX_DIM, .scale_stride = 1};
    float *dots = p->dots + (size_t)thread * H * SCORE_STRIDE, *score = p->score + s * p->context + j;
    p->cx->k->matmul[keys.type](dots, SCORE_STRIDE, &keys, 0, n, p->q + s * H * D, D, H, op_kernel_scratch(p->cx, thread));
    memset(score, 0, n * sizeof *score);
    for (size_t h = 0; h < H; h++)
        p->cx->k->relu_axpy(score, p->w[s * H + h], dots + h * SCORE_STRIDE, n);
    for (size_t i = 0; p->ix->codes && i < n; i++) {
        float s_k;
        memcpy(&s_k, rows + i * size + D, sizeof s_k);
        score[i] = s_k * score[i];
    }
}

/* ---- the choice ---- */

/* Returns a number that is larger for a score that comes earlier in the order of rule 7, and equal for scores that are equal. */
static uint32_t rank_of(const struct indexer *ix, float score)
{
    if (ix->bf16_scores)
        op_round_bf16(&score, &score, 1);
    uint32_t bits = f32_to_bits(score + 0.0f); /* -0 becomes +0 */
    if (score != score)
        return 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

#define DIGIT 8

/* Returns the rank of the score that is number k, from 1 on, in the order of rule 7. *equal becomes the number of scores
 * of this rank that are among the first k. */
static uint32_t find_rank(const struct indexer *ix, const float *score, size_t n, size_t k, size_t *equal)
{
    uint32_t rank = 0, known = 0;
    for (int shift = 32 - DIGIT; shift >= 0; shift -= DIGIT) {
        size_t count[1 << DIGIT] = {0};
        uint32_t digit = (1 << DIGIT) - 1;
        for (size_t t = 0; t < n; t++) {
            uint32_t r = rank_of(ix, score[t]);
            count[r >> shift & ((1 << DIGIT) - 1)] += (r & known) == rank;
        }
        for (; count[digit] < k; digit--)
            k -= count[digit];
        rank |= digit << shift;
        known |= ((1u << DIGIT) - 1) << shift;
    }
    *equal = k;
    return rank;
}

/* Returns how many of the first n scores have this rank. */
static size_t count_rank(const struct indexer *ix, const float *score, size_t n, uint32_t rank)
{
    size_t count = 0;
    for (size_t t = 0; t < n; t++)
        count += rank_of(ix, score[t]) == rank;
    return count;
}

void op_index_keep(int32_t *kept, const float *score, size_t n, const struct indexer *ix)
{
    size_t equal, skipped;
    uint32_t rank = find_rank(ix, score, n, ix->kept, &equal);
    skipped = ix->highest ? count_rank(ix, score, n, rank) - equal : 0;
    for (size_t t = 0; t < n; t++) {
        uint32_t r = rank_of(ix, score[t]);
        int is_equal = r == rank && !skipped && equal;
        if (r > rank || is_equal)
            *kept++ = (int32_t)t;
        equal -= (size_t)is_equal;
        skipped -= r == rank && skipped;
    }
}

static void choose(void *arg, size_t s, int thread)
{
    struct choice_pass *p = arg;
    (void)thread;
    if (has_to_choose(p, s) && is_forced(p, s))
        memcpy(p->kept + s * p->ix->kept, p->forced[s], p->ix->kept * sizeof *p->kept);
    else if (has_to_choose(p, s))
        op_index_keep(p->kept + s * p->ix->kept, p->score + s * p->context, p->seen[s].length, p->ix);
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
            probe->see(probe, "scores", first + s, 1, p->score + s * p->context, 0, n);
        for (size_t t = 0; !has_to_choose(p, s) && t < n; t++)
            all[t] = (int32_t)t;
        probe->see(probe, "kept", first + s, 1, has_to_choose(p, s) ? p->kept + s * p->ix->kept : all, 1, at_most(n, p->ix->kept));
        if (has_to_choose(p, s))
            probe->see(probe, "margin", first + s, 1, &(float){margin_of(p, s)}, 0, 1);
    }
}

/* ---- all of it ---- */

static void some_queries(struct choice_pass *p)
{
    double tokens = 0;
    size_t longest = 0;
    for (size_t s = 0; s < p->S; s++)
        if (wants_scores(p, s)) {
            longest = at_least(longest, p->seen[s].length);
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
    p.dots = op_take(cx, T * ix->heads * SCORE_STRIDE);
    p.rows = (char *)op_take(cx, T * BLOCK * index_row_bytes(ix) / sizeof(float));
    p.score = op_take(cx, most * context);
    int32_t *all = (int32_t *)(void *)op_take(cx, context);
    for (size_t s = 0; s < S; s += most) {
        p.S = at_most(most, S - s);
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
