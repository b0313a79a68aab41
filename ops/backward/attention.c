/* ops/backward/attention.c -- two parallel regions, and a third for aligned depths. The first computes dq, some queries of one head at a time, and keeps the four numbers that
 * a probability depends on beside its score. The second computes the gradients of some tokens' keys and values. It computes scores and
 * probabilities again, because all of them may not fit into memory. Those of the chain's rows, which only one query sees, are kept by the
 * first region for a third. */
#include "ops/backward/attention.h"

#include <math.h>
#include <string.h>

#define BLOCK 256  /* tokens in a block of the softmax */
#define QUERIES 16 /* of a task of the first region */
#define TOKENS 32  /* of a task of the second; they lie in one block */
#define AT_ONCE 64 /* queries whose scores with these tokens are computed together */

struct attention_back {
    const struct op_ctx *cx;
    const struct back_attention *a;
    size_t T, most, blocks, key, packed_key, packed_value; /* most: tokens that a query sees, T + depth; key: n + r */
    float *keys;         /* [H,T,key] */
    float *m, *e, *L, *D; /* m, e [H,blocks,T]; L, D [H,T], where D is dot(P, dP) */
    float *chain_P, *chain_g; /* [H,T,depth] */
    float *memory;       /* [threads, pitch] */
    size_t pitch;
};

static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

/* Rows of an array, as weights of a kernel */
static struct weight_view rows_of(const float *data, size_t rows, size_t cols, size_t stride)
{
    return (struct weight_view){.type = WEIGHT_F32, .data = data, .rows = rows, .cols = cols, .stride = stride};
}

static void copy_keys(void *arg, size_t first, size_t count)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    for (size_t t = first; t < first + count; t++)
        for (size_t h = 0; h < a->heads; h++) {
            float *key = p->keys + (h * p->T + t) * p->key;
            memcpy(key, a->kv + (t * a->heads + h) * (a->nope + a->value), a->nope * sizeof *key);
            memcpy(key + a->nope, a->k_rope + t * a->rope, a->rope * sizeof *key);
        }
}

/* ---- dq ---- */

/* Changes the scores of query s into probabilities, and dP into g. */
static void back_query(const struct attention_back *p, size_t h, size_t s, float *score, float *dp)
{
    const struct kernels *k = p->cx->k;
    size_t n = s + 1 + p->a->depth;
    float *m = p->m + h * p->blocks * p->T + s, *e = p->e + h * p->blocks * p->T + s, M = 0.0f, L = 0.0f;
    k->scale(score, p->a->scale, n);
    for (size_t t = 0, b = 0; t < n; t += BLOCK, b++) {
        m[b * p->T] = k->softmax_block(score + t, score + t, at_most(n - t, BLOCK), &e[b * p->T]);
        M = b == 0 || m[b * p->T] > M ? m[b * p->T] : M;
    }
    for (size_t b = 0; b * BLOCK < n; b++) {
        float l = e[b * p->T];
        e[b * p->T] = kernel_expf(m[b * p->T] - M);
        L = fmaf(e[b * p->T], l, L);
    }
    for (size_t t = 0; t < n; t++)
        score[t] = score[t] * e[t / BLOCK * p->T] / L;
    float D = k->dot(score, dp, n);
    for (size_t t = 0; t < n; t++)
        dp[t] = score[t] * (dp[t] - D) * p->a->scale;
    p->L[h * p->T + s] = L;
    p->D[h * p->T + s] = D;
}

/* keys [depth, key]: those of head h that only query s sees */
static void chain_keys(const struct attention_back *p, float *keys, size_t h, size_t s)
{
    const struct back_attention *a = p->a;
    for (size_t m = 0; m < a->depth; m++, keys += p->key) {
        memcpy(keys, a->chain[m].kv + (s * a->heads + h) * (a->nope + a->value), a->nope * sizeof *keys);
        memcpy(keys + a->nope, a->chain[m].k_rope + s * a->rope, a->rope * sizeof *keys);
    }
}

/* The dots of query s with the rows of its chain */
static void dot_chain(const struct attention_back *p, float *score, float *dp, float *keys, size_t h, size_t s)
{
    const struct back_attention *a = p->a;
    size_t at = s * a->heads + h;
    chain_keys(p, keys, h, s);
    for (size_t m = 0; m < a->depth; m++) {
        score[m] = p->cx->k->dot(a->q + at * p->key, keys + m * p->key, p->key);
        dp[m] = p->cx->k->dot(a->dy + at * a->value, a->chain[m].kv + at * (a->nope + a->value) + a->nope, a->value);
    }
}

/* Continues dq of query s, and keeps P and g of its chain. */
static void back_chain_query(const struct attention_back *p, float *dq, const float *score, const float *dp, float *keys, size_t h, size_t s, void *scratch)
{
    size_t depth = p->a->depth, at = (h * p->T + s) * depth;
    struct weight_view w = rows_of(keys, depth, p->key, p->key);
    chain_keys(p, keys, h, s);
    p->cx->k->fma_rows_onto[WEIGHT_F32](dq, p->key, &w, 0, p->key, dp, depth, 1, scratch);
    memcpy(p->chain_P + at, score, depth * sizeof *score);
    memcpy(p->chain_g + at, dp, depth * sizeof *dp);
}

static void back_queries(void *arg, size_t task, int thread)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    const struct kernels *k = p->cx->k;
    size_t H = a->heads, V = a->value, tiles = (p->T + QUERIES - 1) / QUERIES, h = task / tiles;
    size_t first = (tiles - 1 - task % tiles) * QUERIES, count = at_most(p->T - first, QUERIES); /* the longest first */
    float *score = p->memory + (size_t)thread * p->pitch, *dp = score + QUERIES * p->most, *x = dp + QUERIES * p->most;
    float *dy = x + QUERIES * p->packed_key, *own = dy + QUERIES * p->packed_value; /* own: keys of a chain */
    float *dq = a->dq + (first * H + h) * p->key;
    void *scratch = op_kernel_scratch(p->cx, thread);
    struct weight_view keys = rows_of(p->keys + h * p->T * p->key, first + count, p->key, p->key);
    struct weight_view values = rows_of(a->kv + h * (a->nope + V) + a->nope, first + count, V, H * (a->nope + V));
    for (size_t i = 0; i < count; i++) {
        k->pack(x + i * p->packed_key, a->q + ((first + i) * H + h) * p->key, p->key);
        k->pack(dy + i * p->packed_value, a->dy + ((first + i) * H + h) * V, V);
    }
    k->matmul[WEIGHT_F32](score, p->most, &keys, 0, keys.rows, x, p->packed_key, count, scratch);
    k->matmul[WEIGHT_F32](dp, p->most, &values, 0, values.rows, dy, p->packed_value, count, scratch);
    for (size_t i = 0; i < count; i++) {
        dot_chain(p, score + i * p->most + first + i + 1, dp + i * p->most + first + i + 1, own, h, first + i);
        back_query(p, h, first + i, score + i * p->most, dp + i * p->most);
    }
    keys.rows = first + 1; /* the tokens that all these queries see; then those after them that query i sees */
    k->fma_rows[WEIGHT_F32](dq, H * p->key, &keys, 0, p->key, dp, p->most, count, scratch);
    for (size_t i = 1; i < count; i++) {
        struct weight_view more = rows_of(p->keys + (h * p->T + first + 1) * p->key, i, p->key, p->key);
        k->fma_rows_onto[WEIGHT_F32](dq + i * H * p->key, H * p->key, &more, 0, p->key, dp + i * p->most + first + 1, p->most, 1, scratch);
    }
    for (size_t i = 0; i < count && a->depth; i++) {
        size_t chain = i * p->most + first + i + 1;
        back_chain_query(p, dq + i * H * p->key, score + chain, dp + chain, own, h, first + i, scratch);
    }
}

/* ---- dkv and dk_rope ---- */

/* Continues the sums of tokens [t, t + tokens) with `per` rows of each of the queries [s, s + queries). factor: where the numbers of
 * token t begin, ld floats apart. A token does not meet the queries before it. */
static void add_queries(const struct attention_back *p, float *y, size_t ldy, struct weight_view w, size_t per, const float *factor, size_t ld, size_t t,
                        size_t tokens, size_t s, size_t queries, void *scratch)
{
    if (s >= t + tokens - 1) {
        w.rows = queries * per;
        p->cx->k->fma_rows_onto[WEIGHT_F32](y, ldy, &w, 0, w.cols, factor, ld, tokens, scratch);
        return;
    }
    const float *data = w.data;
    for (size_t i = 0; i < tokens; i++) {
        size_t hidden = t + i > s ? at_most(t + i - s, queries) : 0;
        w.data = data + hidden * per * w.stride;
        w.rows = (queries - hidden) * per;
        p->cx->k->fma_rows_onto[WEIGHT_F32](y + i * ldy, ldy, &w, 0, w.cols, factor + i * ld + hidden * per, ld, 1, scratch);
    }
}

/* P and g of head h, with a row for each of the tokens [t, t + tokens) and a column for each of the queries [s, s + queries): `score` and
 * dp, AT_ONCE numbers in a row. x: room for packed keys and values */
static void probabilities(const struct attention_back *p, size_t h, size_t t, size_t tokens, size_t s, size_t queries, float *score, float *dp, float *x,
                          void *scratch)
{
    const struct back_attention *a = p->a;
    const struct kernels *k = p->cx->k;
    size_t H = a->heads, V = a->value, width = a->nope + V;
    struct weight_view q = rows_of(a->q + (s * H + h) * p->key, queries, p->key, H * p->key), dy = rows_of(a->dy + (s * H + h) * V, queries, V, H * V);
    const float *m = p->m + (h * p->blocks + t / BLOCK) * p->T + s, *e = p->e + (h * p->blocks + t / BLOCK) * p->T + s;
    const float *L = p->L + h * p->T + s, *D = p->D + h * p->T + s;
    for (size_t i = 0; i < tokens; i++) /* a dot has the same bits whichever of its vectors is packed */
        k->pack(x + i * p->packed_key, p->keys + (h * p->T + t + i) * p->key, p->key);
    k->matmul[WEIGHT_F32](score, AT_ONCE, &q, 0, queries, x, p->packed_key, tokens, scratch);
    for (size_t i = 0; i < tokens; i++)
        k->pack(x + i * p->packed_value, a->kv + ((t + i) * H + h) * width + a->nope, V);
    k->matmul[WEIGHT_F32](dp, AT_ONCE, &dy, 0, queries, x, p->packed_value, tokens, scratch);
    for (size_t i = 0; i < tokens; i++, score += AT_ONCE, dp += AT_ONCE) {
        size_t hidden = t + i > s ? at_most(t + i - s, queries) : 0;
        for (size_t j = hidden; j < queries; j++)
            score[j] = score[j] * a->scale - m[j];
        k->exp(score + hidden, score + hidden, queries - hidden);
        for (size_t j = hidden; j < queries; j++) {
            score[j] = score[j] * e[j] / L[j];
            dp[j] = score[j] * (dp[j] - D[j]) * a->scale;
        }
    }
}

static void back_tokens(void *arg, size_t task, int thread)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    size_t H = a->heads, N = a->nope, V = a->value, R = a->rope, t = task * TOKENS, tokens = at_most(p->T - t, TOKENS);
    float *score = p->memory + (size_t)thread * p->pitch, *dp = score + TOKENS * AT_ONCE, *all = dp + TOKENS * AT_ONCE, *x = all + TOKENS * AT_ONCE * H;
    void *scratch = op_kernel_scratch(p->cx, thread);
    if (!a->continued) {
        memset(a->dkv + t * H * (N + V), 0, tokens * H * (N + V) * sizeof *a->dkv);
        memset(a->dk_rope + t * R, 0, tokens * R * sizeof *a->dk_rope);
    }
    for (size_t s = t; s < p->T; s += AT_ONCE) {
        size_t queries = at_most(p->T - s, AT_ONCE);
        for (size_t h = 0; h < H; h++) {
            float *dkv = a->dkv + (t * H + h) * (N + V);
            probabilities(p, h, t, tokens, s, queries, score, dp, x, scratch);
            add_queries(p, dkv, H * (N + V), rows_of(a->q + (s * H + h) * p->key, 0, N, H * p->key), 1, dp, AT_ONCE, t, tokens, s, queries, scratch);
            add_queries(p, dkv + N, H * (N + V), rows_of(a->dy + (s * H + h) * V, 0, V, H * V), 1, score, AT_ONCE, t, tokens, s, queries, scratch);
            for (size_t i = 0; i < tokens; i++)
                for (size_t j = 0; j < queries; j++)
                    all[i * AT_ONCE * H + j * H + h] = dp[i * AT_ONCE + j];
        }
        add_queries(p, a->dk_rope + t * R, R, rows_of(a->q + s * H * p->key + N, 0, R, p->key), H, all, AT_ONCE * H, t, tokens, s, queries, scratch);
    }
}

/* ---- dkv and dk_rope of chains ---- */

static void back_chains(void *arg, size_t first, size_t count)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    size_t H = a->heads, N = a->nope, V = a->value, R = a->rope;
    for (size_t s = first; s < first + count; s++)
        for (size_t m = 0; m < a->depth; m++)
            for (size_t h = 0; h < H; h++) {
                float g = p->chain_g[(h * p->T + s) * a->depth + m], P = p->chain_P[(h * p->T + s) * a->depth + m];
                const float *q = a->q + (s * H + h) * p->key, *dy = a->dy + (s * H + h) * V;
                float *dkv = a->chain[m].dkv + (s * H + h) * (N + V), *dk_rope = a->chain[m].dk_rope + s * R;
                for (size_t i = 0; i < N; i++)
                    dkv[i] = fmaf(g, q[i], dkv[i]);
                for (size_t i = 0; i < V; i++)
                    dkv[N + i] = fmaf(P, dy[i], dkv[N + i]);
                for (size_t i = 0; i < R; i++)
                    dk_rope[i] = fmaf(g, q[N + i], dk_rope[i]);
            }
}

/* ---- together ---- */

static struct attention_back sizes_of(const struct back_attention *a, size_t T)
{
    size_t most = T + a->depth;
    struct attention_back p = {.a = a, .T = T, .most = most, .blocks = (most + BLOCK - 1) / BLOCK, .key = a->nope + a->rope};
    p.packed_key = packed_length(p.key);
    p.packed_value = packed_length(a->value);
    size_t queries = QUERIES * (2 * most + p.packed_key + p.packed_value) + a->depth * p.key;
    size_t wider = p.packed_key > p.packed_value ? p.packed_key : p.packed_value, tokens = TOKENS * (AT_ONCE * (2 + a->heads) + wider);
    p.pitch = ((queries > tokens ? queries : tokens) + 15) / 16 * 16;
    return p;
}

size_t op_back_attention_scratch(const struct back_attention *a, size_t T, int threads)
{
    struct attention_back p = sizes_of(a, T);
    return op_scratch_bytes(a->heads * T * p.key) + 2 * op_scratch_bytes(a->heads * p.blocks * T) + 2 * op_scratch_bytes(a->heads * T) +
           2 * op_scratch_bytes(a->heads * T * a->depth) + op_scratch_bytes((size_t)threads * p.pitch);
}

void op_back_attention(struct op_ctx *cx, const struct back_attention *a, size_t T)
{
    size_t mark = op_mark(cx), H = a->heads;
    struct attention_back p = sizes_of(a, T);
    double pairs = (double)H * (double)T * (double)T / 2.0, width = (double)(p.key + a->value);
    p.cx = cx;
    p.keys = op_take(cx, H * T * p.key);
    p.m = op_take(cx, H * p.blocks * T);
    p.e = op_take(cx, H * p.blocks * T);
    p.L = op_take(cx, H * T);
    p.D = op_take(cx, H * T);
    p.chain_P = op_take(cx, H * T * a->depth);
    p.chain_g = op_take(cx, H * T * a->depth);
    p.memory = op_take(cx, (size_t)cx->threads * p.pitch);
    op_each_row(cx, T, (double)(H * p.key), copy_keys, &p);
    op_parallel(cx, H * ((T + QUERIES - 1) / QUERIES), 1.5 * pairs * width, back_queries, &p);
    op_parallel(cx, (T + TOKENS - 1) / TOKENS, 2.0 * pairs * width, back_tokens, &p);
    if (a->depth)
        op_each_row(cx, T, 2.0 * (double)(a->depth * H) * width, back_chains, &p);
    op_give(cx, mark);
}
