/* ops/expanded.c -- some heads at a time: W_uk is decoded, then keys and values of all tokens, then the queries. */
#include "ops/expanded.h"

#include <stdio.h>
#include <string.h>

#include "ops/attention_blocks.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "simd/decode.h"

/* None of these numbers changes a bit. */
#define MOST_EXPANDED ((size_t)1 << 24) /* numbers of keys, values and decoded weights at once; but at least one head */
#define MOST_SUMS ((size_t)1 << 20)     /* numbers of o_b that a thread keeps, if at least FEWEST queries fit */
#define FEWEST 8                        /* queries */
#define QUERIES 64                      /* queries of one head that a task computes */
#define TOKENS 64                       /* tokens that a task expands, */
#define HEADS 4                         /* for so many heads */
#define ALIKE 8 /* queries whose numbers of tokens differ by less than this sum their values together */

struct expanded_pass {
    const struct op_ctx *cx;
    const struct attention *a;
    const struct timeline *seen; /* [S]: neighbouring queries of one sequence */
    const float *q;
    float *y;
    size_t S, length;      /* length: that of the longest timeline */
    struct kv_layout layout;
    size_t row_bytes, key; /* bytes in a cache row; floats in a key */
    size_t head, heads;    /* heads [head, head + heads) are being computed */
    size_t queries;        /* most queries of a task */
    float *w_uk;           /* [heads, c, n]: decoded, transposed */
    float *keys, *values;  /* [heads, length, key] in packed order, [heads, length, v] */
    /* for each thread: */
    float *latent;         /* [TOKENS, c+r]: cache rows in natural order */
    float *nope;           /* [TOKENS, n+r]: keys in natural order */
    struct op_packed x;    /* [TOKENS]: latents in the form that W_uv needs */
    float *query;          /* [queries, key] in packed order */
    float *score;          /* [queries, SCORE_STRIDE]: s, then p */
    float *m, *l;          /* [queries, blocks]: m_b, later e_b; l_b */
    float *sums;           /* [queries, blocks, v]: o_b */
    float *shown;          /* [length]: the scores of a query, for the probe */
};

/* ---- sizes ---- */

static size_t key_of(const struct attention *a) { return packed_length(a->nope + a->rope); }

static size_t floats_of_head(const struct attention *a, size_t length)
{
    return a->latent * a->nope + length * (key_of(a) + a->value);
}

static size_t heads_at_once(const struct attention *a, size_t length)
{
    size_t most = at_most(a->heads, at_least(1, MOST_EXPANDED / floats_of_head(a, length))), turns = (a->heads + most - 1) / most;
    return (a->heads + turns - 1) / turns;
}

static size_t queries_of_task(const struct attention *a, size_t S, size_t context)
{
    return at_most(S, at_most(QUERIES, at_least(FEWEST, MOST_SUMS / (blocks_of(context) * a->value))));
}

/* Returns the floats of all heads at once, for the longest timelines. */
static size_t most_floats(const struct attention *a, size_t context)
{
    size_t one = floats_of_head(a, context);
    return at_most(a->heads * one, at_least(MOST_EXPANDED, one));
}

size_t op_expanded_scratch(const struct attention *a, size_t S, size_t context, int threads)
{
    size_t T = (size_t)threads, queries = queries_of_task(a, S, context), blocks = blocks_of(context), width = a->nope + a->rope;
    return op_scratch_bytes(most_floats(a, context)) + 3 * 64 + op_scratch_bytes(T * TOKENS * (a->latent + a->rope)) +
           op_scratch_bytes(T * TOKENS * width) + op_packed_scratch(T * TOKENS, a->latent) +
           op_scratch_bytes(T * queries * key_of(a)) + op_scratch_bytes(T * queries * SCORE_STRIDE) +
           2 * op_scratch_bytes(T * queries * blocks) + op_scratch_bytes(T * queries * blocks * a->value) + op_scratch_bytes(context);
}

/* ---- keys and values ---- */

/* Decodes W_uk of one head, so that the weights of one latent number lie side by side. */
static void decode_head(void *arg, size_t task, int thread)
{
    struct expanded_pass *p = arg;
    const struct attention *a = p->a;
    size_t first = (p->head + task) * a->uk_stride, C = a->latent, N = a->nope;
    float *out = p->w_uk + task * C * N, *row = p->latent + (size_t)thread * TOKENS * (C + a->rope);
    for (size_t c = 0; a->uk_transposed && c < C; c++)
        decode_weights(out + c * N, &a->w_uk, first + c, 0, N);
    for (size_t n = 0; !a->uk_transposed && n < N; n++) {
        decode_weights(row, &a->w_uk, first + n, 0, C);
        for (size_t c = 0; c < C; c++)
            out[c * N + n] = row[c];
    }
}

/* Computes keys and values of n tokens from j on, for head number h of the heads that are being computed. */
static void expand_head(const struct expanded_pass *p, int thread, size_t h, size_t j, size_t n, const float *latent)
{
    const struct attention *a = p->a;
    size_t width = a->nope + a->rope, from = a->latent + a->rope;
    struct weight_view w_uk = {.type = WEIGHT_F32, .data = p->w_uk + h * a->latent * a->nope, .rows = a->latent, .cols = a->nope, .stride = a->nope};
    struct weight_view w_uv = weight_rows(&a->w_uv, (p->head + h) * a->uv_stride, a->value);
    float *nope = p->nope + (size_t)thread * TOKENS * width;
    p->cx->k->fma_rows[WEIGHT_F32](nope, width, &w_uk, 0, a->nope, latent, from, n, op_kernel_scratch(p->cx, thread));
    for (size_t i = 0; i < n; i++) {
        memcpy(nope + i * width + a->nope, latent + i * from + a->latent, a->rope * sizeof *nope);
        p->cx->k->pack(p->keys + (h * p->length + j + i) * p->key, nope + i * width, width);
    }
    op_multiply(p->cx, thread, p->values + (h * p->length + j) * a->value, a->value, &w_uv, 0, a->value,
                op_packed_row(&p->x, op_form(p->cx, &w_uv), (size_t)thread * TOKENS), packed_length(a->latent), n);
}

/* Expands up to TOKENS tokens for up to HEADS heads. */
static void expand_tokens(void *arg, size_t task, int thread)
{
    struct expanded_pass *p = arg;
    const struct attention *a = p->a;
    size_t tasks = (p->heads + HEADS - 1) / HEADS, h = task % tasks * HEADS, end = at_most(h + HEADS, p->heads);
    size_t j = task / tasks * TOKENS, n = at_most(TOKENS, p->length - j), width = a->latent + a->rope;
    const struct timeline *t = &p->seen[0];
    float *latent = p->latent + (size_t)thread * TOKENS * width;
    for (size_t i = 0; i < n; i++) {
        kv_row_read(&p->layout, latent + i * width, (const char *)t->rows + (size_t)t->slots[j + i] * p->row_bytes);
        op_pack_part(p->cx, &p->x, (size_t)thread * TOKENS + i, latent + i * width, 0, a->latent);
    }
    for (; h < end; h++)
        expand_head(p, thread, h, j, n, latent);
}

/* ---- queries ---- */

/* Queries [s, s + count) of head number h of the heads that are being computed, and the memory for them. */
struct expanded_task {
    const struct expanded_pass *p;
    int thread;
    size_t h, s, count, length, blocks; /* length: that of the longest timeline; blocks: its blocks */
    float *query, *score, *m, *l, *sums;
};

static struct expanded_task task_of(const struct expanded_pass *p, int thread, size_t h, size_t s, size_t count)
{
    struct expanded_task t = {.p = p, .thread = thread, .h = h, .s = s, .count = count};
    size_t first = (size_t)thread * p->queries, most = blocks_of(p->length), width = p->a->nope + p->a->rope;
    for (size_t i = 0; i < count; i++)
        t.length = at_least(t.length, p->seen[s + i].length);
    t.blocks = blocks_of(t.length);
    t.query = p->query + first * p->key;
    t.score = p->score + first * SCORE_STRIDE;
    t.m = p->m + first * most;
    t.l = p->l + first * most;
    t.sums = p->sums + first * most * p->a->value;
    for (size_t i = 0; i < count; i++)
        p->cx->k->pack(t.query + i * p->key, p->q + ((s + i) * attention_row_heads(p->a) + p->head + h) * width, width);
    return t;
}

/* Computes the scores of all queries of a task for the n tokens from j on. */
static void scores_of_tokens(const struct expanded_task *t, size_t j, size_t n)
{
    const struct expanded_pass *p = t->p;
    struct weight_view keys = {.type = WEIGHT_F32, .data = p->keys + (t->h * p->length + j) * p->key, .rows = n,
                               .cols = p->a->nope + p->a->rope, .stride = p->key, .packed = 1};
    p->cx->k->matmul[WEIGHT_F32](t->score, SCORE_STRIDE, &keys, 0, n, t->query, p->key, t->count, op_kernel_scratch(p->cx, t->thread));
    for (size_t i = 0; i < t->count; i++)
        p->cx->k->scale(t->score + i * SCORE_STRIDE, p->a->scale, n);
}

/* Returns to how many tokens of the block that begins at j query i of the task attends. */
static size_t seen_by(const struct expanded_task *t, size_t i, size_t j) { return seen_of_block(&t->p->seen[t->s + i], j); }

/* Computes o_b of some queries from i on, which attend to at least n tokens of the block, and to less than n + ALIKE.
 * Returns the number of these queries. */
static size_t sum_values(const struct expanded_task *t, size_t block, size_t i, size_t n)
{
    const struct expanded_pass *p = t->p;
    size_t V = p->a->value, j = block * ATTENTION_BLOCK, count = 1, ld = t->blocks * V;
    const float *values = p->values + (t->h * p->length + j) * V;
    struct weight_view shared = {.type = WEIGHT_F32, .data = values, .rows = n, .cols = V, .stride = V};
    float *sums = t->sums + (i * t->blocks + block) * V;
    while (i + count < t->count && seen_by(t, i + count, j) - n < ALIKE)
        count++;
    p->cx->k->fma_rows[WEIGHT_F32](sums, ld, &shared, 0, V, t->score + i * SCORE_STRIDE, SCORE_STRIDE, count, op_kernel_scratch(p->cx, t->thread));
    for (size_t k = 0; k < count; k++)
        for (size_t more = n; more < seen_by(t, i + k, j); more++)
            p->cx->k->axpy(sums + k * ld, t->score[(i + k) * SCORE_STRIDE + more], values + more * V, V);
    return count;
}

/* Computes m_b, l_b and o_b of one block. */
static void attend_to_block(const struct expanded_task *t, size_t block)
{
    size_t j = block * ATTENTION_BLOCK, n;
    scores_of_tokens(t, j, at_most(ATTENTION_BLOCK, t->length - j));
    for (size_t i = 0; i < t->count; i++)
        if ((n = seen_by(t, i, j)))
            t->m[i * t->blocks + block] = t->p->cx->k->softmax_block(t->score + i * SCORE_STRIDE, t->score + i * SCORE_STRIDE, n,
                                                                    &t->l[i * t->blocks + block]);
    for (size_t i = 0; i < t->count;)
        i += (n = seen_by(t, i, j)) ? sum_values(t, block, i, n) : 1;
}

/* Joins the blocks of query i, and writes its output. */
static void join(const struct expanded_task *t, size_t i)
{
    const struct expanded_pass *p = t->p;
    size_t V = p->a->value, blocks = blocks_of(p->seen[t->s + i].length);
    float *o = p->y + ((t->s + i) * attention_row_heads(p->a) + p->head + t->h) * V;
    attention_join(p->cx->k, o, t->m + i * t->blocks, t->l + i * t->blocks, t->sums + i * t->blocks * V, blocks, V);
}

/* Computes some queries of one head. The last queries, which attend to the most tokens, come first. */
static void attend(void *arg, size_t task, int thread)
{
    const struct expanded_pass *p = arg;
    size_t tiles = (p->S + p->queries - 1) / p->queries, tile = tiles - 1 - task % tiles, s = tile * p->queries;
    struct expanded_task t = task_of(p, thread, task / tiles, s, at_most(p->queries, p->S - s));
    for (size_t block = 0; block < t.blocks; block++)
        attend_to_block(&t, block);
    for (size_t i = 0; i < t.count; i++)
        join(&t, i);
}

/* Reports s_j of every query to the probe. The scores are computed once more, on the caller's thread. */
static void show_scores(const struct expanded_pass *p, size_t first)
{
    struct op_probe *probe = p->cx->probe;
    char name[32];
    for (size_t s = 0; s < p->S; s++)
        for (size_t h = 0; h < p->heads; h++) {
            struct expanded_task t = task_of(p, 0, h, s, 1);
            for (size_t j = 0; j < t.length; j += ATTENTION_BLOCK) {
                size_t n = at_most(ATTENTION_BLOCK, t.length - j);
                scores_of_tokens(&t, j, n);
                memcpy(p->shown + j, t.score, n * sizeof *p->shown);
            }
            snprintf(name, sizeof name, "scores.%zu", p->head + h);
            probe->see(probe, name, first + s, 1, p->shown, 0, t.length);
        }
}

/* ---- all of it ---- */

/* Computes neighbouring queries of one sequence, some heads at a time. */
static void one_sequence(struct expanded_pass *p, size_t first, float *memory)
{
    const struct attention *a = p->a;
    size_t at_once = heads_at_once(a, p->length), tiles = (p->S + p->queries - 1) / p->queries;
    double tokens = 0;
    for (size_t s = 0; s < p->S; s++)
        tokens += (double)p->seen[s].length;
    for (p->head = 0; p->head < a->heads; p->head += at_once) {
        p->heads = at_most(at_once, a->heads - p->head);
        p->keys = memory;
        p->values = p->keys + (p->heads * p->length * p->key + 15) / 16 * 16; /* aligned to 64 bytes, as is w_uk */
        p->w_uk = p->values + (p->heads * p->length * a->value + 15) / 16 * 16;
        double heads = (double)p->heads, weights = heads * (double)(a->latent * a->nope);
        op_parallel(p->cx, p->heads, weights, decode_head, p);
        op_parallel(p->cx, (p->length + TOKENS - 1) / TOKENS * ((p->heads + HEADS - 1) / HEADS),
                    heads * (double)(p->length * a->latent * (a->nope + a->value)), expand_tokens, p);
        if (p->cx->probe && p->cx->probe->scores)
            show_scores(p, first);
        op_parallel(p->cx, p->heads * tiles, tokens * heads * (double)(a->nope + a->rope + a->value), attend, p);
    }
}

void op_expanded(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                 size_t S, size_t context)
{
    size_t mark = op_mark(cx), T = (size_t)cx->threads, blocks = blocks_of(context), width = a->nope + a->rope;
    size_t queries = queries_of_task(a, S, context);
    struct expanded_pass p = {.cx = cx, .a = a, .layout = attention_rows(a), .key = key_of(a), .queries = queries};
    p.row_bytes = kv_row_bytes(&p.layout);
    float *memory = op_take(cx, most_floats(a, context) + 2 * 16);
    p.latent = op_take(cx, T * TOKENS * (a->latent + a->rope));
    p.nope = op_take(cx, T * TOKENS * width);
    p.x = op_take_packed(cx, 1u << op_form(cx, &a->w_uv), T * TOKENS, a->latent);
    p.query = op_take(cx, T * queries * p.key);
    p.score = op_take(cx, T * queries * SCORE_STRIDE);
    p.m = op_take(cx, T * queries * blocks);
    p.l = op_take(cx, T * queries * blocks);
    p.sums = op_take(cx, T * queries * blocks * a->value);
    p.shown = op_take(cx, context);
    for (size_t s = 0; s < S; s += p.S) {
        p.seen = seen + s;
        p.q = q + s * attention_row_heads(a) * width;
        p.y = y + s * attention_row_heads(a) * a->value;
        p.length = seen[s].length;
        for (p.S = 1; s + p.S < S && seen[s + p.S].rows == seen[s].rows && seen[s + p.S].slots == seen[s].slots; p.S++)
            p.length = at_least(p.length, seen[s + p.S].length);
        one_sequence(&p, s, memory);
    }
    op_all_multiplied(cx, &a->w_uv);
    op_give(cx, mark);
}
