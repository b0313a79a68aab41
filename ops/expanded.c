/* ops/expanded.c -- some heads at a time: W_uk is decoded, then keys and values of all tokens, then the queries. */
#include "ops/expanded.h"

#include <string.h>

#include "ops/attention_blocks.h"
#include "ops/linear.h"
#include "ops/weights.h"
#include "simd/decode.h"
#include "numbers/numbers.h"

/* None of these numbers changes a bit. */
#define MOST_EXPANDED ((size_t)1 << 24) /* numbers of keys, values and decoded weights at once; but at least one head */
#define MOST_SUMS ((size_t)1 << 20)     /* numbers of o_b that a thread keeps, if at least FEWEST queries fit */
#define FEWEST 8                        /* queries */
#define QUERIES 48                      /* queries of one head that a task computes */
#define TOKENS 64                       /* tokens that a task expands, */
#define HEADS 4                         /* for so many heads */
#define ALIKE 6 /* queries whose numbers of tokens differ by less than this sum their values together */

struct expanded_pass {
    const struct op_ctx *cx;
    const struct attention *a;
    const struct timeline *seen; /* [S]: neighbouring queries of one sequence */
    const float *q;
    float *y;
    size_t S, length;      /* length: that of the longest timeline */
    size_t tokens;         /* length + S * tail: the tokens of the tails come after those of the longest timeline */
    const int32_t *tail_slots; /* [S, tail] */
    struct kv_layout layout;
    size_t row_bytes, key; /* bytes in a cache row; floats in a key */
    size_t head, heads;    /* heads [head, head + heads) are being computed */
    size_t queries;        /* most queries of a task */
    float *w_uk;           /* [heads, c, n]: decoded, transposed */
    float *keys, *values;  /* [heads, tokens, key] in packed order, [heads, tokens, v] */
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

static size_t floats_of_head(const struct attention *a, size_t tokens)
{
    return a->latent * a->nope + tokens * (key_of(a) + a->value);
}

static size_t heads_at_once(const struct attention *a, size_t tokens)
{
    size_t most = min_size(a->heads, max_size(1, MOST_EXPANDED / floats_of_head(a, tokens))),
           turns = (a->heads + most - 1) / most;
    return (a->heads + turns - 1) / turns;
}

static size_t queries_of_task(const struct attention *a, size_t S, size_t context)
{
    return min_size(S, min_size(QUERIES, max_size(FEWEST, MOST_SUMS / (blocks_of(context) * a->value))));
}

/* Returns the floats of all heads at once, for the longest timelines and S tails. */
static size_t most_floats(const struct attention *a, size_t S, size_t context)
{
    size_t one = floats_of_head(a, context + S * a->tail);
    return min_size(a->heads * one, max_size(MOST_EXPANDED, one));
}

size_t op_expanded_scratch(const struct attention *a, size_t S, size_t context, int threads)
{
    size_t T = (size_t)threads, queries = queries_of_task(a, S, context), blocks = blocks_of(context),
           width = a->nope + a->rope;
    return op_scratch_bytes(most_floats(a, S, context)) + 3 * 64 +
           op_scratch_bytes(T * TOKENS * (a->latent + a->rope)) + op_scratch_bytes(T * TOKENS * width) +
           op_packed_scratch(T * TOKENS, a->latent) + op_scratch_bytes(T * queries * key_of(a)) +
           op_scratch_bytes(T * queries * SCORE_STRIDE) + 2 * op_scratch_bytes(T * queries * blocks) +
           op_scratch_bytes(T * queries * blocks * a->value) + op_scratch_bytes(context);
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
    struct weight_view w_uk = {.type = WEIGHT_F32, .data = p->w_uk + h * a->latent * a->nope, .rows = a->latent,
                               .cols = a->nope, .stride = a->nope};
    struct weight_view w_uv = weight_rows(&a->w_uv, (p->head + h) * a->uv_stride, a->value);
    float *nope = p->nope + (size_t)thread * TOKENS * width;
    p->cx->k->fma_rows[WEIGHT_F32](nope, width, &w_uk, 0, a->nope, latent, from, n, op_kernel_scratch(p->cx, thread));
    for (size_t i = 0; i < n; i++) {
        memcpy(nope + i * width + a->nope, latent + i * from + a->latent, a->rope * sizeof *nope);
        p->cx->k->pack(p->keys + (h * p->tokens + j + i) * p->key, nope + i * width, width);
    }
    op_multiply(p->cx, thread, p->values + (h * p->tokens + j) * a->value, a->value, &w_uv, 0, a->value,
                op_packed_row(&p->x, op_form(p->cx, &w_uv), (size_t)thread * TOKENS), packed_length(a->latent), n);
}

/* Expands up to TOKENS tokens for up to HEADS heads. */
static void expand_tokens(void *arg, size_t task, int thread)
{
    struct expanded_pass *p = arg;
    const struct attention *a = p->a;
    size_t tasks = (p->heads + HEADS - 1) / HEADS, h = task % tasks * HEADS, end = min_size(h + HEADS, p->heads);
    size_t j = task / tasks * TOKENS, n = min_size(TOKENS, p->tokens - j), width = a->latent + a->rope;
    const struct timeline *t = &p->seen[0];
    float *latent = p->latent + (size_t)thread * TOKENS * width;
    for (size_t i = 0; i < n; i++) {
        int32_t slot = j + i < p->length ? t->slots[j + i] : p->tail_slots[j + i - p->length];
        kv_row_read(&p->layout, latent + i * width, (const char *)t->rows + (size_t)slot * p->row_bytes);
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
    size_t h, s, count, length, blocks; /* length: that of the longest timeline; blocks: of these tokens and the tail */
    float *query, *score, *m, *l, *sums;
};

static struct expanded_task task_of(const struct expanded_pass *p, int thread, size_t h, size_t s, size_t count)
{
    struct expanded_task t = {.p = p, .thread = thread, .h = h, .s = s, .count = count};
    size_t first = (size_t)thread * p->queries, most = blocks_of(p->length + p->a->tail),
           width = p->a->nope + p->a->rope;
    for (size_t i = 0; i < count; i++)
        t.length = max_size(t.length, p->seen[s + i].length);
    t.blocks = blocks_of(t.length + p->a->tail);
    t.query = p->query + first * p->key;
    t.score = p->score + first * SCORE_STRIDE;
    t.m = p->m + first * most;
    t.l = p->l + first * most;
    t.sums = p->sums + first * most * p->a->value;
    for (size_t i = 0; i < count; i++)
        p->cx->k->pack(t.query + i * p->key, p->q + ((s + i) * attention_row_heads(p->a) + p->head + h) * width, width);
    return t;
}

/* Returns to how many tokens of the block that begins at j query i of the task attends: those of its timeline, and all
 * of them. */
static size_t shared_by(const struct expanded_task *t, size_t i, size_t j)
{
    return seen_of_block(&t->p->seen[t->s + i], j);
}
static size_t seen_by(const struct expanded_task *t, size_t i, size_t j)
{
    struct timeline all = {.length = t->p->seen[t->s + i].length + t->p->a->tail};
    return seen_of_block(&all, j);
}

/* The part of a tail in one block. */
struct part_of_tail {
    size_t first, count; /* the first token of this part, counted in keys and values; how many there are */
    size_t place;        /* the place of the first one in the block */
};

static struct part_of_tail part_of_tail(const struct expanded_task *t, size_t i, size_t j)
{
    const struct expanded_pass *p = t->p;
    size_t length = p->seen[t->s + i].length, shared = shared_by(t, i, j), skipped = j > length ? j - length : 0;
    return (struct part_of_tail){p->length + (t->s + i) * p->a->tail + skipped, seen_by(t, i, j) - shared, shared};
}

/* Computes the scores of `count` queries from query i of a task on, for n tokens, the first of which is `token`, from
 * `place` in the block on. */
static void some_scores(const struct expanded_task *t, size_t i, size_t count, size_t token, size_t n, size_t place)
{
    const struct expanded_pass *p = t->p;
    struct weight_view keys = {.type = WEIGHT_F32, .data = p->keys + (t->h * p->tokens + token) * p->key, .rows = n,
                               .cols = p->a->nope + p->a->rope, .stride = p->key, .packed = 1};
    float *score = t->score + i * SCORE_STRIDE + place;
    p->cx->k->matmul[WEIGHT_F32](score, SCORE_STRIDE, &keys, 0, n, t->query + i * p->key, p->key, count,
                                 op_kernel_scratch(p->cx, t->thread));
    for (size_t k = 0; k < count; k++)
        p->cx->k->scale(score + k * SCORE_STRIDE, p->a->scale, n);
}

/* Computes the scores of all queries of a task for the tokens of the block that begins at j. */
static void scores_of_block(const struct expanded_task *t, size_t j)
{
    if (t->length > j)
        some_scores(t, 0, t->count, j, min_size(ATTENTION_BLOCK, t->length - j), 0);
    for (size_t i = 0; t->p->a->tail && i < t->count; i++) {
        struct part_of_tail tail = part_of_tail(t, i, j);
        if (tail.count)
            some_scores(t, i, 1, tail.first, tail.count, tail.place);
    }
}

/* Adds the values of a tail to o_b of query i. */
static void add_tail(const struct expanded_task *t, float *sums, size_t i, size_t j)
{
    const struct expanded_pass *p = t->p;
    size_t V = p->a->value;
    struct part_of_tail tail = part_of_tail(t, i, j);
    for (size_t m = 0; m < tail.count; m++)
        p->cx->k->axpy(sums, t->score[i * SCORE_STRIDE + tail.place + m],
                       p->values + (t->h * p->tokens + tail.first + m) * V, V);
}

/* Computes o_b of some queries from i on, whose timelines have at least n tokens in the block, and less than n + ALIKE.
 * Returns the number of these queries. */
static size_t sum_values(const struct expanded_task *t, size_t block, size_t i, size_t n)
{
    const struct expanded_pass *p = t->p;
    size_t V = p->a->value, j = block * ATTENTION_BLOCK, count = 1, ld = t->blocks * V;
    const float *values = p->values + (t->h * p->tokens + j) * V;
    struct weight_view shared = {.type = WEIGHT_F32, .data = values, .rows = n, .cols = V, .stride = V};
    float *sums = t->sums + (i * t->blocks + block) * V;
    if (!n) { /* nothing but a tail */
        memset(sums, 0, V * sizeof *sums);
        add_tail(t, sums, i, j);
        return 1;
    }
    while (i + count < t->count && shared_by(t, i + count, j) - n < ALIKE)
        count++;
    p->cx->k->fma_rows[WEIGHT_F32](sums, ld, &shared, 0, V, t->score + i * SCORE_STRIDE, SCORE_STRIDE, count,
                                   op_kernel_scratch(p->cx, t->thread));
    for (size_t k = 0; k < count; k++) {
        for (size_t more = n; more < shared_by(t, i + k, j); more++)
            p->cx->k->axpy(sums + k * ld, t->score[(i + k) * SCORE_STRIDE + more], values + more * V, V);
        if (p->a->tail)
            add_tail(t, sums + k * ld, i + k, j);
    }
    return count;
}

/* Computes m_b, l_b and o_b of one block. */
static void attend_to_block(const struct expanded_task *t, size_t block)
{
    size_t j = block * ATTENTION_BLOCK, n;
    scores_of_block(t, j);
    for (size_t i = 0; i < t->count; i++)
        if ((n = seen_by(t, i, j)))
            t->m[i * t->blocks + block] = t->p->cx->k->softmax_block(t->score + i * SCORE_STRIDE,
                                                                     t->score + i * SCORE_STRIDE, n,
                                                                     &t->l[i * t->blocks + block]);
    for (size_t i = 0; i < t->count;)
        i += seen_by(t, i, j) ? sum_values(t, block, i, shared_by(t, i, j)) : 1;
}

/* Joins the blocks of query i, and writes its output. */
static void join(const struct expanded_task *t, size_t i)
{
    const struct expanded_pass *p = t->p;
    size_t V = p->a->value, blocks = blocks_of(p->seen[t->s + i].length + p->a->tail);
    float *o = p->y + ((t->s + i) * attention_row_heads(p->a) + p->head + t->h) * V;
    attention_join(p->cx->k, o, t->m + i * t->blocks, t->l + i * t->blocks, t->sums + i * t->blocks * V, blocks, V);
}

/* Computes some queries of one head. The last queries, which attend to the most tokens, come first. */
static void attend(void *arg, size_t task, int thread)
{
    const struct expanded_pass *p = arg;
    size_t tiles = (p->S + p->queries - 1) / p->queries, tile = tiles - 1 - task % tiles, s = tile * p->queries;
    struct expanded_task t = task_of(p, thread, task / tiles, s, min_size(p->queries, p->S - s));
    for (size_t block = 0; block < t.blocks; block++)
        attend_to_block(&t, block);
    for (size_t i = 0; i < t.count; i++)
        join(&t, i);
}

/* Reports s_j of every query to the probe. The scores are computed once more, on the caller's thread. */
static void show_scores(const struct expanded_pass *p, size_t first)
{
    struct op_probe *probe = p->cx->probe;
    for (size_t s = 0; s < p->S; s++)
        for (size_t h = 0; h < p->heads; h++) {
            struct expanded_task t = task_of(p, 0, h, s, 1);
            for (size_t j = 0, n; (n = seen_by(&t, 0, j)); j += ATTENTION_BLOCK) {
                scores_of_block(&t, j);
                memcpy(p->shown + j, t.score, n * sizeof *p->shown);
            }
            probe->see(probe, PROBE_ATTENTION_SCORES, (int)(p->head + h), first + s, 1, p->shown,
                       t.length + p->a->tail);
        }
}

/* ---- all of it ---- */

/* Computes neighbouring queries of one sequence, some heads at a time. */
static void one_sequence(struct expanded_pass *p, size_t first, float *memory)
{
    const struct attention *a = p->a;
    size_t at_once = heads_at_once(a, p->tokens), tiles = (p->S + p->queries - 1) / p->queries;
    double tokens = 0;
    for (size_t s = 0; s < p->S; s++)
        tokens += (double)(p->seen[s].length + a->tail);
    for (p->head = 0; p->head < a->heads; p->head += at_once) {
        p->heads = min_size(at_once, a->heads - p->head);
        p->keys = memory;
        p->values = p->keys + (p->heads * p->tokens * p->key + 15) / 16 * 16; /* aligned to 64 bytes, as is w_uk */
        p->w_uk = p->values + (p->heads * p->tokens * a->value + 15) / 16 * 16;
        double heads = (double)p->heads, weights = heads * (double)(a->latent * a->nope);
        op_parallel(p->cx, p->heads, weights, decode_head, p);
        op_parallel(p->cx, (p->tokens + TOKENS - 1) / TOKENS * ((p->heads + HEADS - 1) / HEADS),
                    heads * (double)(p->tokens * a->latent * (a->nope + a->value)), expand_tokens, p);
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
    float *memory = op_take(cx, most_floats(a, S, context) + 2 * 16);
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
            p.length = max_size(p.length, seen[s + p.S].length);
        p.tokens = p.length + p.S * a->tail;
        p.tail_slots = a->tail ? a->tail_slots + s * a->tail : NULL;
        one_sequence(&p, s, memory);
    }
    op_all_multiplied(cx, cx->arithmetic, &a->w_uv);
    op_give(cx, mark);
}
