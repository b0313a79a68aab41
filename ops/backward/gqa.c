/* ops/backward/gqa.c -- two parallel regions, and a third for aligned depths, as in attention.c: dq; the gradients of
 * tokens' keys and values, for which probabilities are computed again; and those of the chain's rows.
 *
 * Inside, the queries of a group's heads are rows of one matrix: row s * (H / G) + j is query s of the group's head j.
 * In this order the sums of dk and dv take them. */
#include "ops/backward/gqa.h"
#include "numbers/numbers.h"

#include <math.h>
#include <string.h>

#define BLOCK 256  /* tokens in a block of the softmax */
#define ROWS 16    /* of a task of the first region */
#define TOKENS 32  /* of a task of the second; they lie in one block */
#define AT_ONCE 64 /* rows whose scores with these tokens are computed together */

struct gqa_back {
    const struct op_ctx *cx;
    const struct back_gqa *a;
    size_t T, per, rows, most, blocks, packed; /* per: H / G; rows: T per; most: tokens that a query sees, T + depth */
    float *q, *dy;            /* [G,rows,D] */
    float *m, *e, *L, *mean;  /* m, e [G,blocks,rows]; L, mean [G,rows], where mean is dot(P, dP) */
    float *chain_P, *chain_g; /* [G,rows,depth] */
    float *memory;            /* [threads, pitch] */
    size_t pitch;
};

static struct weight_view view_of(const float *data, size_t rows, size_t cols, size_t stride)
{
    return (struct weight_view){.type = WEIGHT_F32, .data = data, .rows = rows, .cols = cols, .stride = stride};
}

/* How many tokens of depth 0 a row sees */
static size_t tokens_of(const struct gqa_back *p, size_t row) { return row / p->per + 1; }

/* Where a row of a group lies in q, dy and dq */
static size_t place_of(const struct gqa_back *p, size_t group, size_t row)
{
    return (row / p->per * p->a->heads + group * p->per + row % p->per) * p->a->dim;
}

static void copy_groups(void *arg, size_t first, size_t count)
{
    const struct gqa_back *p = arg;
    size_t D = p->a->dim;
    for (size_t group = 0; group < p->a->groups; group++)
        for (size_t row = first * p->per; row < (first + count) * p->per; row++) {
            memcpy(p->q + (group * p->rows + row) * D, p->a->q + place_of(p, group, row), D * sizeof *p->q);
            memcpy(p->dy + (group * p->rows + row) * D, p->a->dy + place_of(p, group, row), D * sizeof *p->dy);
        }
}

/* ---- dq ---- */

/* Changes the n scores of a row into probabilities, and dP into g. */
static void back_row(const struct gqa_back *p, size_t group, size_t row, size_t n, float *score, float *dp)
{
    const struct kernels *k = p->cx->k;
    float *m = p->m + group * p->blocks * p->rows + row, *e = p->e + group * p->blocks * p->rows + row, M = 0.0f,
          L = 0.0f;
    k->scale(score, p->a->scale, n);
    for (size_t t = 0, b = 0; t < n; t += BLOCK, b++) {
        m[b * p->rows] = k->softmax_block(score + t, score + t, min_size(n - t, BLOCK), &e[b * p->rows]);
        M = b == 0 || m[b * p->rows] > M ? m[b * p->rows] : M;
    }
    for (size_t b = 0; b * BLOCK < n; b++) {
        float l = e[b * p->rows];
        e[b * p->rows] = kernel_expf(m[b * p->rows] - M);
        L = fmaf(e[b * p->rows], l, L);
    }
    for (size_t t = 0; t < n; t++)
        score[t] = score[t] * e[t / BLOCK * p->rows] / L;
    float mean = k->dot(score, dp, n);
    for (size_t t = 0; t < n; t++)
        dp[t] = score[t] * (dp[t] - mean) * p->a->scale;
    p->L[group * p->rows + row] = L;
    p->mean[group * p->rows + row] = mean;
}

static void back_rows(void *arg, size_t task, int thread)
{
    const struct gqa_back *p = arg;
    const struct back_gqa *a = p->a;
    const struct kernels *k = p->cx->k;
    size_t D = a->dim, tiles = (p->rows + ROWS - 1) / ROWS, group = task / tiles;
    size_t first = (tiles - 1 - task % tiles) * ROWS, count = min_size(p->rows - first, ROWS); /* the longest first */
    float *score = p->memory + (size_t)thread * p->pitch, *dp = score + ROWS * p->most, *x = dp + ROWS * p->most;
    float *packed_dy = x + ROWS * p->packed, *dq = packed_dy + ROWS * p->packed;
    const float *q = p->q + (group * p->rows + first) * D, *dy = p->dy + (group * p->rows + first) * D;
    void *scratch = op_kernel_scratch(p->cx, thread);
    struct weight_view keys = view_of(a->k + group * D, tokens_of(p, first + count - 1), D, a->row), values = keys;
    values.data = a->v + group * D;
    for (size_t i = 0; i < count; i++) {
        k->pack(x + i * p->packed, q + i * D, D);
        k->pack(packed_dy + i * p->packed, dy + i * D, D);
    }
    k->matmul[WEIGHT_F32](score, p->most, &keys, 0, keys.rows, x, p->packed, count, scratch);
    k->matmul[WEIGHT_F32](dp, p->most, &values, 0, values.rows, packed_dy, p->packed, count, scratch);
    for (size_t i = 0; i < count; i++) {
        size_t n = tokens_of(p, first + i), at = i * p->most + n, own = (n - 1) * a->row + group * D;
        for (size_t m = 0; m < a->depth; m++) {
            score[at + m] = k->dot(q + i * D, a->chain[m].k + own, D);
            dp[at + m] = k->dot(dy + i * D, a->chain[m].v + own, D);
        }
        back_row(p, group, first + i, n + a->depth, score + i * p->most, dp + i * p->most);
    }
    keys.rows = tokens_of(p, first); /* what all these rows see; then what only row i sees */
    k->fma_rows[WEIGHT_F32](dq, D, &keys, 0, D, dp, p->most, count, scratch);
    for (size_t i = 0; i < count; i++) {
        size_t n = tokens_of(p, first + i), at = i * p->most + n, own = (n - 1) * a->row + group * D;
        size_t kept = (group * p->rows + first + i) * a->depth;
        struct weight_view more = view_of(a->k + keys.rows * a->row + group * D, n - keys.rows, D, a->row);
        k->fma_rows_onto[WEIGHT_F32](dq + i * D, D, &more, 0, D, dp + i * p->most + keys.rows, p->most, 1, scratch);
        for (size_t m = 0; m < a->depth; m++) {
            k->axpy(dq + i * D, dp[at + m], a->chain[m].k + own, D);
            p->chain_P[kept + m] = score[at + m];
            p->chain_g[kept + m] = dp[at + m];
        }
        memcpy(a->dq + place_of(p, group, first + i), dq + i * D, D * sizeof *dq);
    }
}

/* ---- dk and dv ---- */

/* How many of the rows [row, row + rows) come before those that see token t */
static size_t masked_of(const struct gqa_back *p, size_t t, size_t row, size_t rows)
{
    return t * p->per > row ? min_size(t * p->per - row, rows) : 0;
}

/* P and g, with AT_ONCE numbers for each of the tokens [t, t + tokens): those of the rows [row, row + rows). x: room
 * for packed keys and values */
static void probabilities(const struct gqa_back *p, size_t group, size_t t, size_t tokens, size_t row, size_t rows,
                          float *P, float *g, float *x, void *scratch)
{
    const struct back_gqa *a = p->a;
    const struct kernels *k = p->cx->k;
    size_t D = a->dim, at = group * p->rows + row, block = (group * p->blocks + t / BLOCK) * p->rows + row;
    struct weight_view q = view_of(p->q + at * D, rows, D, D), dy = view_of(p->dy + at * D, rows, D, D);
    const float *m = p->m + block, *e = p->e + block, *L = p->L + at, *mean = p->mean + at;
    for (size_t i = 0; i < tokens; i++) /* a dot has the same bits whichever of its vectors is packed */
        k->pack(x + i * p->packed, a->k + (t + i) * a->row + group * D, D);
    k->matmul[WEIGHT_F32](P, AT_ONCE, &q, 0, rows, x, p->packed, tokens, scratch);
    for (size_t i = 0; i < tokens; i++)
        k->pack(x + i * p->packed, a->v + (t + i) * a->row + group * D, D);
    k->matmul[WEIGHT_F32](g, AT_ONCE, &dy, 0, rows, x, p->packed, tokens, scratch);
    for (size_t i = 0; i < tokens; i++, P += AT_ONCE, g += AT_ONCE) {
        size_t masked = masked_of(p, t + i, row, rows);
        for (size_t r = masked; r < rows; r++)
            P[r] = P[r] * a->scale - m[r];
        k->exp(P + masked, P + masked, rows - masked);
        for (size_t r = masked; r < rows; r++) {
            P[r] = P[r] * e[r] / L[r];
            g[r] = P[r] * (g[r] - mean[r]) * a->scale;
        }
    }
}

/* Continues the sums y of the tokens [t, t + tokens) with rows [row, row + rows) of x, times `factor`. */
static void add_rows(const struct gqa_back *p, float *y, const float *x, const float *factor, size_t t, size_t tokens,
                     size_t row, size_t rows, void *scratch)
{
    size_t D = p->a->dim, ldy = p->a->groups * D;
    int all = !masked_of(p, t + tokens - 1, row, rows);
    for (size_t i = 0; i < tokens; i += all ? tokens : 1) {
        size_t masked = masked_of(p, t + i, row, rows);
        struct weight_view w = view_of(x + masked * D, rows - masked, D, D);
        p->cx->k->fma_rows_onto[WEIGHT_F32](y + i * ldy, ldy, &w, 0, D, factor + i * AT_ONCE + masked, AT_ONCE,
                                            all ? tokens : 1, scratch);
    }
}

static void back_tokens(void *arg, size_t task, int thread)
{
    const struct gqa_back *p = arg;
    const struct back_gqa *a = p->a;
    size_t D = a->dim, G = a->groups, group = task % G, t = task / G * TOKENS, tokens = min_size(p->T - t, TOKENS);
    float *P = p->memory + (size_t)thread * p->pitch, *g = P + TOKENS * AT_ONCE, *x = g + TOKENS * AT_ONCE;
    float *dk = a->dk + (t * G + group) * D, *dv = a->dv + (t * G + group) * D;
    void *scratch = op_kernel_scratch(p->cx, thread);
    for (size_t i = 0; i < tokens && !a->continued; i++) {
        memset(dk + i * G * D, 0, D * sizeof *dk);
        memset(dv + i * G * D, 0, D * sizeof *dv);
    }
    for (size_t row = t * p->per; row < p->rows; row += AT_ONCE) {
        size_t rows = min_size(p->rows - row, AT_ONCE), at = (group * p->rows + row) * D;
        probabilities(p, group, t, tokens, row, rows, P, g, x, scratch);
        add_rows(p, dk, p->q + at, g, t, tokens, row, rows, scratch);
        add_rows(p, dv, p->dy + at, P, t, tokens, row, rows, scratch);
    }
}

/* ---- dk and dv of chains ---- */

static void back_chains(void *arg, size_t first, size_t count)
{
    const struct gqa_back *p = arg;
    const struct back_gqa *a = p->a;
    size_t D = a->dim;
    for (size_t m = 0; m < a->depth; m++)
        for (size_t group = 0; group < a->groups; group++)
            for (size_t row = first * p->per; row < (first + count) * p->per; row++) {
                size_t at = group * p->rows + row, own = (row / p->per * a->groups + group) * D;
                p->cx->k->axpy(a->chain[m].dk + own, p->chain_g[at * a->depth + m], p->q + at * D, D);
                p->cx->k->axpy(a->chain[m].dv + own, p->chain_P[at * a->depth + m], p->dy + at * D, D);
            }
}

/* ---- together ---- */

static struct gqa_back sizes_of(const struct back_gqa *a, size_t T)
{
    size_t per = a->heads / a->groups, most = T + a->depth;
    struct gqa_back p = {.a = a, .T = T, .per = per, .rows = T * per, .most = most,
                         .blocks = (most + BLOCK - 1) / BLOCK, .packed = packed_length(a->dim)};
    size_t of_rows = ROWS * (2 * most + 2 * p.packed + a->dim), of_tokens = TOKENS * (2 * AT_ONCE + p.packed);
    p.pitch = ((of_rows > of_tokens ? of_rows : of_tokens) + 15) / 16 * 16;
    return p;
}

size_t op_back_gqa_scratch(const struct back_gqa *a, size_t T, int threads)
{
    struct gqa_back p = sizes_of(a, T);
    size_t rows = a->groups * p.rows;
    return 2 * op_scratch_bytes(rows * a->dim) + 2 * op_scratch_bytes(rows * p.blocks) + 2 * op_scratch_bytes(rows) +
           2 * op_scratch_bytes(rows * a->depth) + op_scratch_bytes((size_t)threads * p.pitch);
}

void op_back_gqa(struct op_ctx *cx, const struct back_gqa *a, size_t T)
{
    struct gqa_back p = sizes_of(a, T);
    size_t mark = op_mark(cx), rows = a->groups * p.rows;
    double products = (double)rows * (double)T * (double)a->dim; /* of each of the five matrices, about half are
                                                                    computed */
    p.cx = cx;
    p.q = op_take(cx, rows * a->dim);
    p.dy = op_take(cx, rows * a->dim);
    p.m = op_take(cx, rows * p.blocks);
    p.e = op_take(cx, rows * p.blocks);
    p.L = op_take(cx, rows);
    p.mean = op_take(cx, rows);
    p.chain_P = op_take(cx, rows * a->depth);
    p.chain_g = op_take(cx, rows * a->depth);
    p.memory = op_take(cx, (size_t)cx->threads * p.pitch);
    op_each_row(cx, T, (double)(2 * a->heads * a->dim), copy_groups, &p);
    op_parallel(cx, a->groups * ((p.rows + ROWS - 1) / ROWS), 1.5 * products, back_rows, &p);
    op_parallel(cx, a->groups * ((T + TOKENS - 1) / TOKENS), 2.0 * products, back_tokens, &p);
    if (a->depth)
        op_each_row(cx, T, 4.0 * (double)(a->depth * a->heads * a->dim), back_chains, &p);
    op_give(cx, mark);
}
