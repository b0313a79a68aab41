/* ops/backward/attention.c -- a task computes one head of one sequence, some queries at a time: their scores,
 * probabilities and g for all tokens that they see, then dq, and then what they add to the gradients of keys and
 * values. So probabilities are computed once, and those of a few queries are in memory. The rope part of a key belongs
 * to all heads; what each of them adds to its gradient is summed at the end. The rows of a chain, which only one query
 * sees, have a region of their own. */
#include "ops/backward/attention.h"
#include "numbers/numbers.h"

#include <math.h>
#include <string.h>

#define BLOCK 256  /* tokens in a block of the softmax */
#define QUERIES 24 /* at a time */
#define TILE 6     /* tokens or queries that a kernel computes together, where not all of them see the same */

struct attention_back {
    const struct op_ctx *cx;
    const struct back_attention *a;
    const size_t *first;      /* [sequences + 1] */
    size_t rows, longest;     /* rows: of all sequences */
    size_t key, packed_key, packed_value, ld; /* key: n + r; ld: floats from a query's scores to the next query's */
    float *ropes;             /* [H,rows,r] */
    float *chain_P, *chain_g; /* [H,rows,depth] */
    float *memory;            /* [threads, pitch] */
    size_t pitch;
};

/* What one task computes, and its memory */
struct attention_head {
    const struct attention_back *p;
    size_t at, T, h;                                 /* at: the sequence's first row */
    float *keys, *packed_keys, *packed_values, *dkeys; /* [T,key], [T,packed_key], [T,packed_value], [T,key] */
    float *score, *dp;                               /* [QUERIES,ld]: scores, then P; dP, then g */
    float *q, *dy;                                   /* [QUERIES,packed_key], [QUERIES,packed_value] */
    float *m, *e;                                    /* [blocks] */
    float *own;                                      /* [depth,key]: keys of a chain */
    void *scratch;
};

/* Rows of an array, as weights of a kernel */
static struct weight_view rows_of(const float *data, size_t rows, size_t cols, size_t stride)
{
    return (struct weight_view){.type = WEIGHT_F32, .data = data, .rows = rows, .cols = cols, .stride = stride};
}

/* Numbers of query or token t and this head, in arrays [rows,H,width] */
static size_t place(const struct attention_head *x, size_t t, size_t width)
{
    return ((x->at + t) * x->p->a->heads + x->h) * width;
}

static void load_head(const struct attention_head *x)
{
    const struct attention_back *p = x->p;
    const struct back_attention *a = p->a;
    const struct kernels *k = p->cx->k;
    size_t N = a->nope, R = a->rope, V = a->value;
    for (size_t t = 0; t < x->T; t++) {
        const float *kv = a->kv + place(x, t, N + V);
        float *key = x->keys + t * p->key, *dkv = a->dkv + place(x, t, N + V), *dkey = x->dkeys + t * p->key;
        memcpy(key, kv, N * sizeof *key);
        memcpy(key + N, a->k_rope + (x->at + t) * R, R * sizeof *key);
        k->pack(x->packed_keys + t * p->packed_key, key, p->key);
        k->pack(x->packed_values + t * p->packed_value, kv + N, V);
        if (!a->continued)
            memset(dkv, 0, (N + V) * sizeof *dkv);
        memcpy(dkey, dkv, N * sizeof *dkey);
        memset(dkey + N, 0, R * sizeof *dkey);
    }
}

static void store_head(const struct attention_head *x)
{
    const struct attention_back *p = x->p;
    const struct back_attention *a = p->a;
    size_t N = a->nope, R = a->rope;
    for (size_t t = 0; t < x->T; t++) {
        memcpy(a->dkv + place(x, t, N + a->value), x->dkeys + t * p->key, N * sizeof *a->dkv);
        memcpy(p->ropes + (x->h * p->rows + x->at + t) * R, x->dkeys + t * p->key + N, R * sizeof *p->ropes);
    }
}

/* ---- probabilities ---- */

/* Changes the scores of query s into probabilities, and dP into g. */
static void back_query(const struct attention_head *x, size_t s, float *score, float *dp)
{
    const struct kernels *k = x->p->cx->k;
    size_t n = s + 1 + x->p->a->depth;
    float M = 0.0f, L = 0.0f, scale = x->p->a->scale;
    k->scale(score, scale, n);
    for (size_t t = 0, b = 0; t < n; t += BLOCK, b++) {
        x->m[b] = k->softmax_block(score + t, score + t, min_size(n - t, BLOCK), &x->e[b]);
        M = b == 0 || x->m[b] > M ? x->m[b] : M;
    }
    for (size_t t = 0, b = 0; t < n; t += BLOCK, b++) {
        float e = kernel_expf(x->m[b] - M);
        L = fmaf(e, x->e[b], L);
        k->scale(score + t, e, min_size(n - t, BLOCK));
    }
    k->divide(score, L, n);
    float D = k->dot(score, dp, n);
    for (size_t t = 0; t < n; t++)
        dp[t] = score[t] * (dp[t] - D) * scale;
}

/* own [depth, key]: the keys that only query s sees */
static void chain_keys(const struct attention_head *x, size_t s)
{
    const struct back_attention *a = x->p->a;
    float *key = x->own;
    for (size_t m = 0; m < a->depth; m++, key += x->p->key) {
        memcpy(key, a->chain[m].kv + place(x, s, a->nope + a->value), a->nope * sizeof *key);
        memcpy(key + a->nope, a->chain[m].k_rope + (x->at + s) * a->rope, a->rope * sizeof *key);
    }
}

/* The dots of query s with the rows of its chain */
static void dot_chain(const struct attention_head *x, float *score, float *dp, size_t s)
{
    const struct back_attention *a = x->p->a;
    const struct kernels *k = x->p->cx->k;
    chain_keys(x, s);
    for (size_t m = 0; m < a->depth; m++) {
        score[m] = k->dot(a->q + place(x, s, x->p->key), x->own + m * x->p->key, x->p->key);
        dp[m] = k->dot(a->dy + place(x, s, a->value), a->chain[m].kv + place(x, s, a->nope + a->value) + a->nope,
                       a->value);
    }
}

/* P and g of the queries [s, s + count) */
static void probabilities(const struct attention_head *x, size_t s, size_t count)
{
    const struct attention_back *p = x->p;
    const struct back_attention *a = p->a;
    const struct kernels *k = p->cx->k;
    struct weight_view keys = rows_of(x->packed_keys, s + count, p->key, p->packed_key);
    struct weight_view values = rows_of(x->packed_values, s + count, a->value, p->packed_value);
    keys.packed = values.packed = 1;
    for (size_t i = 0; i < count; i++) {
        k->pack(x->q + i * p->packed_key, a->q + place(x, s + i, p->key), p->key);
        k->pack(x->dy + i * p->packed_value, a->dy + place(x, s + i, a->value), a->value);
    }
    k->matmul[WEIGHT_F32](x->score, p->ld, &keys, 0, keys.rows, x->q, p->packed_key, count, x->scratch);
    k->matmul[WEIGHT_F32](x->dp, p->ld, &values, 0, values.rows, x->dy, p->packed_value, count, x->scratch);
    for (size_t i = 0; i < count; i++) {
        float *score = x->score + i * p->ld, *dp = x->dp + i * p->ld;
        dot_chain(x, score + s + i + 1, dp + s + i + 1, s + i);
        back_query(x, s + i, score, dp);
    }
}

/* ---- the sums ---- */

/* Continues dq of query s, and keeps P and g of its chain. */
static void add_chain(const struct attention_head *x, float *dq, const float *score, const float *dp, size_t s)
{
    const struct attention_back *p = x->p;
    size_t depth = p->a->depth, at = (x->h * p->rows + x->at + s) * depth;
    struct weight_view keys = rows_of(x->own, depth, p->key, p->key);
    chain_keys(x, s);
    p->cx->k->fma_rows_onto[WEIGHT_F32](dq, p->key, &keys, 0, p->key, dp, depth, 1, x->scratch);
    memcpy(p->chain_P + at, score, depth * sizeof *score);
    memcpy(p->chain_g + at, dp, depth * sizeof *dp);
}

/* dq of the queries [s, s + count): first the tokens that all of them see, then those that all of a tile see, then the
 * others. */
static void sum_dq(const struct attention_head *x, size_t s, size_t count)
{
    const struct attention_back *p = x->p;
    const struct kernels *k = p->cx->k;
    size_t ldq = p->a->heads * p->key, ld = p->ld;
    float *dq = p->a->dq + place(x, s, p->key);
    struct weight_view keys = rows_of(x->keys, s + 1, p->key, p->key);
    k->fma_rows[WEIGHT_F32](dq, ldq, &keys, 0, p->key, x->dp, ld, count, x->scratch);
    for (size_t i = 0; i < count; i += TILE) {
        size_t n = min_size(count - i, TILE);
        struct weight_view more = rows_of(x->keys + (s + 1) * p->key, i, p->key, p->key);
        k->fma_rows_onto[WEIGHT_F32](dq + i * ldq, ldq, &more, 0, p->key, x->dp + i * ld + s + 1, ld, n, x->scratch);
        for (size_t j = i + 1; j < i + n; j++)
            for (size_t t = s + i + 1; t <= s + j; t++)
                k->axpy(dq + j * ldq, x->dp[j * ld + t], x->keys + t * p->key, p->key);
    }
    for (size_t i = 0; i < count && p->a->depth; i++)
        add_chain(x, dq + i * ldq, x->score + i * ld + s + i + 1, x->dp + i * ld + s + i + 1, s + i);
}

/* Continues the sums y of all tokens with the queries [s, s + count), whose rows are those of w. factor: P or g. First
 * come the tokens that all of these queries see, then the others in tiles. Of a tile, first come the queries that see
 * only some of its tokens. */
static void sum_queries(const struct attention_head *x, float *y, size_t ldy, const struct weight_view *w,
                        const float *factor, size_t s, size_t count)
{
    const struct kernels *k = x->p->cx->k;
    const float *rows = w->data;
    size_t ld = x->p->ld;
    k->fma_outer(y, ldy, w, factor, ld, s + 1, x->scratch);
    for (size_t t = s + 1, n; t < s + count; t += n) {
        n = min_size(s + count - t, TILE);
        size_t whole = t + n - 1 - s; /* the queries from here on see all tokens of the tile */
        for (size_t j = t; j + 1 < t + n; j++)
            for (size_t i = j - s; i < whole; i++)
                k->axpy(y + j * ldy, factor[i * ld + j], rows + i * w->stride, w->cols);
        struct weight_view others = rows_of(rows + whole * w->stride, count - whole, w->cols, w->stride);
        k->fma_outer(y + t * ldy, ldy, &others, factor + whole * ld + t, ld, n, x->scratch);
    }
}

static void one_head(void *arg, size_t task, int thread)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    size_t H = a->heads, V = a->value, sequence = task / H, T = p->first[sequence + 1] - p->first[sequence];
    struct attention_head x = {.p = p, .at = p->first[sequence], .T = T, .h = task % H,
                               .scratch = op_kernel_scratch(p->cx, thread)};
    x.keys = p->memory + (size_t)thread * p->pitch;
    x.packed_keys = x.keys + p->longest * p->key;
    x.packed_values = x.packed_keys + p->longest * p->packed_key;
    x.dkeys = x.packed_values + p->longest * p->packed_value;
    x.score = x.dkeys + p->longest * p->key;
    x.dp = x.score + QUERIES * p->ld;
    x.q = x.dp + QUERIES * p->ld;
    x.dy = x.q + QUERIES * p->packed_key;
    x.m = x.dy + QUERIES * p->packed_value;
    x.e = x.m + p->ld / BLOCK + 1;
    x.own = x.e + p->ld / BLOCK + 1;
    load_head(&x);
    for (size_t s = 0, count; s < T; s += count) {
        count = min_size(T - s, QUERIES);
        struct weight_view q = rows_of(a->q + place(&x, s, p->key), count, p->key, H * p->key);
        struct weight_view dy = rows_of(a->dy + place(&x, s, V), count, V, H * V);
        probabilities(&x, s, count);
        sum_dq(&x, s, count);
        sum_queries(&x, x.dkeys, p->key, &q, x.dp, s, count);
        sum_queries(&x, a->dkv + place(&x, 0, a->nope + V) + a->nope, H * (a->nope + V), &dy, x.score, s, count);
    }
    store_head(&x);
}

static void sum_ropes(void *arg, size_t first, size_t count)
{
    const struct attention_back *p = arg;
    const struct back_attention *a = p->a;
    size_t R = a->rope;
    for (size_t t = first; t < first + count; t++) {
        float *dk_rope = a->dk_rope + t * R;
        if (!a->continued)
            memset(dk_rope, 0, R * sizeof *dk_rope);
        for (size_t h = 0; h < a->heads; h++)
            for (size_t i = 0; i < R; i++)
                dk_rope[i] = dk_rope[i] + p->ropes[(h * p->rows + t) * R + i];
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
                float g = p->chain_g[(h * p->rows + s) * a->depth + m],
                      P = p->chain_P[(h * p->rows + s) * a->depth + m];
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

static struct attention_back sizes_of(const struct back_attention *a, size_t longest)
{
    struct attention_back p = {.a = a, .longest = longest, .key = a->nope + a->rope};
    p.packed_key = packed_length(p.key);
    p.packed_value = packed_length(a->value);
    p.ld = (longest + a->depth + 15) / 16 * 16 + 16; /* no power of two: such rows push each other out of the cache */
    p.pitch = longest * (2 * p.key + p.packed_key + p.packed_value) +
              QUERIES * (2 * p.ld + p.packed_key + p.packed_value) + 2 * (p.ld / BLOCK + 1) + a->depth * p.key;
    p.pitch = (p.pitch + 15) / 16 * 16;
    return p;
}

size_t op_back_attention_scratch(const struct back_attention *a, size_t rows, size_t longest, int threads)
{
    return op_scratch_bytes(a->heads * rows * a->rope) + 2 * op_scratch_bytes(a->heads * rows * a->depth) +
           op_scratch_bytes((size_t)threads * sizes_of(a, longest).pitch);
}

void op_back_attention(struct op_ctx *cx, const struct back_attention *a, const size_t *first, size_t sequences)
{
    size_t mark = op_mark(cx), H = a->heads, rows = first[sequences], longest = 0;
    double pairs = 0;
    for (size_t q = 0; q < sequences; q++) {
        size_t T = first[q + 1] - first[q];
        longest = T > longest ? T : longest;
        pairs += (double)H * (double)T * (double)T / 2.0;
    }
    struct attention_back p = sizes_of(a, longest);
    double width = (double)(p.key + a->value);
    p.cx = cx;
    p.first = first;
    p.rows = rows;
    p.ropes = op_take(cx, H * rows * a->rope);
    p.chain_P = op_take(cx, H * rows * a->depth);
    p.chain_g = op_take(cx, H * rows * a->depth);
    p.memory = op_take(cx, (size_t)cx->threads * p.pitch);
    op_parallel(cx, sequences * H, 2.5 * pairs * width, one_head, &p);
    op_each_row(cx, rows, (double)(H * a->rope), sum_ropes, &p);
    if (a->depth)
        op_each_row(cx, rows, 2.0 * (double)(a->depth * H) * width, back_chains, &p);
    op_give(cx, mark);
}
