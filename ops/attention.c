#include "ops/attention_blocks.h"

#include <string.h>

#include "ops/linear.h"
#include "ops/round.h"
#include "ops/weights.h"
#include "numbers/numbers.h"

#define MOST_QUERIES 64               /* queries at once */
#define MOST_VALUES ((size_t)1 << 22) /* numbers of o_b at once; both limits bound the scratch memory of a long prefill,
                                         and change no bit */
#define GROUP 48                      /* (query, head) pairs that share one reading of the cache */

static size_t packed_latent(const struct attention *a) { return packed_length(a->latent); }
static size_t groups_of(const struct attention *a) { return a->latent / QUANTIZED_GROUP; }

/* Returns how many numbers the o_b of one query have. */
static size_t values_of(const struct attention *a, size_t context)
{
    return max_size(1, a->heads * blocks_of(context) * packed_latent(a));
}

static size_t queries_at_once(const struct attention *a, size_t S, size_t context)
{
    return min_size(S, min_size(MOST_QUERIES, max_size(1, MOST_VALUES / values_of(a, context))));
}

/* Queries [s, s + queries) and heads [h, h + heads). A group has all heads, or only one query. */
struct attention_group {
    size_t s, queries, h, heads;
    size_t length; /* length of the group's longest timeline */
};

struct attention_pass {
    const struct op_ctx *cx;
    const struct attention *a;
    const struct timeline *seen;
    const float *q;
    float *y;
    size_t S, row;       /* S: number of queries; row: floats in a packed query */
    struct kv_layout layout;
    size_t row_bytes;    /* bytes in a cache row */
    struct attention_group *groups;
    size_t group_count, blocks;
    size_t whole, tasks; /* tasks of the cache: `whole` (group, block) tasks, then halves of such tasks */
    float *query, *query_packed;  /* [S, H, c+r] = [q_abs | q_rope] */
    struct quantized_group *query_groups; /* [S, H, c / 32]: q_abs quantized, with cache type q8 */
    float *score;                 /* [threads, GROUP, SCORE_STRIDE]: s of one block, then p */
    float *rope_score;            /* the same, for the dot over the rope part, with cache type q8 */
    float *m, *l;                 /* [S*H, blocks]. m: m_b, later e_b; l: l_b */
    float *values;                /* [S*H, blocks, packed(c)] = o_b, in the order of the cache rows */
    float *latent;                /* [S*H, packed(c)] = o, in packed order */
    struct op_packed o;           /* o in the form that w_uv needs, if this is not f32; row s*H + h */
    float *q_nope;                /* [S, H, n] rounded, in precision bf16 */
    struct quantized_group *q_groups; /* q_nope quantized, if W_uk is quantized */
    char *rows;                   /* [threads, 256, row_bytes]: copies of cache rows that are not adjacent in memory */
    float *shown;                 /* [blocks * 256]: scores for the probe */
};

size_t op_attention_scratch(const struct attention *a, size_t S, size_t context, int threads)
{
    size_t width = a->latent + a->rope, row = packed_length(width), blocks = blocks_of(context);
    size_t queries = queries_at_once(a, S, context), pairs = queries * a->heads;
    struct kv_layout rows = attention_rows(a);
    size_t of_q8 = a->cache != KV_Q8
                       ? 0
                       : op_scratch_bytes((size_t)threads * GROUP * SCORE_STRIDE) +
                             op_scratch_bytes(pairs * groups_of(a) * sizeof(struct quantized_group) / sizeof(float));
    return of_q8 + op_scratch_bytes(pairs * width) + op_scratch_bytes(pairs * row) +
           op_scratch_bytes((size_t)threads * GROUP * SCORE_STRIDE) + 2 * op_scratch_bytes(pairs * blocks) +
           op_scratch_bytes(queries * values_of(a, context)) + op_scratch_bytes(pairs * packed_latent(a)) +
           op_packed_scratch(pairs, a->latent) + op_packed_scratch(pairs, a->nope) +
           op_scratch_bytes(pairs * sizeof(struct attention_group) / sizeof(float)) +
           op_scratch_bytes((size_t)threads * ATTENTION_BLOCK * kv_row_bytes(&rows) / sizeof(float)) +
           op_scratch_bytes(blocks * ATTENTION_BLOCK);
}

/* ---- groups: who reads a part of the cache together ---- */

static void make_groups(struct attention_pass *p)
{
    size_t H = p->a->heads, heads = min_size(H, GROUP), longest = 0;
    for (size_t s = 0; s < p->S; s++)
        longest = max_size(longest, p->seen[s].length);
    p->blocks = blocks_of(longest);
    while (heads > 8 && p->S * ((H + heads - 1) / heads) * p->blocks < 3 * (size_t)p->cx->threads)
        heads = (heads + 1) / 2; /* smaller groups, so that every thread has work when there are few queries and few
                                    tokens */
    p->group_count = 0;
    for (size_t s = 0, n; s < p->S; s += n) {
        const struct timeline *t = &p->seen[s];
        size_t length = t->length;
        for (n = 1; heads == H && (n + 1) * H <= GROUP && s + n < p->S; n++) {
            if (t[n].rows != t->rows || t[n].slots != t->slots)
                break;
            length = max_size(length, t[n].length);
        }
        for (size_t h = 0; h < H; h += heads)
            p->groups[p->group_count++] = (struct attention_group){s, n, h, min_size(heads, H - h), length};
    }
}

/* If the tasks cannot be divided equally among the threads, those that are left over are cut into halves. */
static void make_tasks(struct attention_pass *p)
{
    size_t all = p->group_count * p->blocks, halved = all % (size_t)p->cx->threads;
    p->whole = all - halved;
    p->tasks = all + halved;
}

/* Finds the group and the block of a task. A half of a group has half of its heads or, if the group has several
 * queries, of its queries. Returns 0 if there is no such task, or nothing to do in it. */
static int find_task(const struct attention_pass *p, size_t task, struct attention_group *g, size_t *block)
{
    size_t at = task < p->whole ? task : p->whole + (task - p->whole) / 2, second = (task - p->whole) % 2;
    if (task >= p->tasks)
        return 0;
    *g = p->groups[at / p->blocks];
    *block = at % p->blocks;
    if (task >= p->whole) {
        size_t *first = g->queries > 1 ? &g->s : &g->h, *count = g->queries > 1 ? &g->queries : &g->heads,
               half = (*count + 1) / 2;
        *first += second ? half : 0;
        *count = second ? *count - half : half;
    }
    g->length = 0;
    for (size_t s = g->s; s < g->s + g->queries; s++)
        g->length = max_size(g->length, p->seen[s].length);
    return g->heads && *block * ATTENTION_BLOCK < g->length;
}

static size_t first_pair(const struct attention_pass *p, const struct attention_group *g)
{
    return g->s * p->a->heads + g->h;
}

static const struct timeline *longest_of(const struct attention_pass *p, const struct attention_group *g)
{
    const struct timeline *t = &p->seen[g->s];
    while (t->length < g->length)
        t++;
    return t;
}

static size_t tokens_of(const struct attention_group *g, size_t block)
{
    return min_size(ATTENTION_BLOCK, g->length - block * ATTENTION_BLOCK);
}

/* Returns the cache rows of a block up to the first that is not adjacent in memory. */
static struct weight_view adjacent_rows(const struct attention_pass *p, const struct attention_group *g, size_t block)
{
    const struct timeline *t = longest_of(p, g);
    const int32_t *slots = t->slots + block * ATTENTION_BLOCK;
    size_t n = tokens_of(g, block), run = 1;
    while (run < n && slots[run] == slots[0] + (int32_t)run)
        run++;
    return kv_rows_view(&p->layout, (const char *)t->rows + (size_t)slots[0] * p->row_bytes, run);
}

/* Returns the cache rows of a block. If these rows are not adjacent in memory, they are copied first. */
static struct weight_view cache_rows(const struct attention_pass *p, int thread, const struct attention_group *g,
                                     size_t block)
{
    struct weight_view w = adjacent_rows(p, g, block);
    size_t n = tokens_of(g, block);
    if (w.rows < n) {
        const struct timeline *t = longest_of(p, g);
        const int32_t *slots = t->slots + block * ATTENTION_BLOCK;
        char *rows = p->rows + (size_t)thread * ATTENTION_BLOCK * p->row_bytes;
        for (size_t i = 0; i < n; i++)
            memcpy(rows + i * p->row_bytes, (const char *)t->rows + (size_t)slots[i] * p->row_bytes, p->row_bytes);
        w.data = rows;
        w.rows = n;
    }
    return w;
}

/* Returns the cache rows that a task reads first. */
static struct weight_ahead rows_of_task(const struct attention_pass *p, size_t task)
{
    struct attention_group g;
    size_t block;
    if (!find_task(p, task, &g, &block))
        return (struct weight_ahead){NULL, NULL};
    struct weight_view rows = adjacent_rows(p, &g, block);
    return (struct weight_ahead){rows.data, (const char *)rows.data + rows.rows * p->row_bytes};
}

/* ---- queries ---- */

/* Returns what a thread reads after W_uk of head h: W_uk of a later head, or the cache. */
static struct weight_ahead after_head(const struct attention_pass *p, size_t h)
{
    const struct attention *a = p->a;
    size_t next = h + (size_t)p->cx->threads;
    if (next >= a->heads)
        return rows_of_task(p, next - a->heads);
    const char *at = weight_rows(&a->w_uk, next * a->uk_stride, a->nope).data;
    return (struct weight_ahead){at, weight_rows(&a->w_uk, next * a->uk_stride + a->nope, 0).data};
}

/* Computes q_abs of one head for every query. */
static void absorb(struct attention_pass *p, size_t h, int thread, float *query, size_t ldy)
{
    void *scratch = op_kernel_scratch(p->cx, thread);
    const struct attention *a = p->a;
    size_t first = h * a->uk_stride, ldq = attention_row_heads(a) * (a->nope + a->rope), ldr = a->heads * a->nope;
    const float *q = p->q + h * (a->nope + a->rope);
    if (a->uk_transposed) {
        size_t groups = a->nope / QUANTIZED_GROUP;
        struct weight_view w_uk = weight_rows(&a->w_uk, first, a->latent);
        struct quantized_group *rows = p->q_groups + h * groups;
        for (size_t s = 0; s < p->S; s++) {
            struct op_packed row = {.K = a->nope, .rows[OP_GROUPS] = (char *)(rows + s * a->heads * groups)};
            op_pack_part(p->cx, &row, 0, q + s * ldq, 0, a->nope);
        }
        op_multiply(p->cx, thread, query, ldy, &w_uk, 0, a->latent, rows, ldr, p->S);
        return;
    }
    struct weight_view w_uk = weight_rows(&a->w_uk, first, a->nope);
    struct weight_ahead ahead = after_head(p, h);
    w_uk.ahead = &ahead;
    if (p->cx->arithmetic->bf16) {
        float *rounded = p->q_nope + h * a->nope;
        for (size_t s = 0; s < p->S; s++)
            op_round_x(rounded + s * ldr, q + s * ldq, a->nope);
        p->cx->k->fma_rows[w_uk.type](query, ldy, &w_uk, 0, a->latent, rounded, ldr, p->S, scratch);
    } else {
        p->cx->k->fma_rows[w_uk.type](query, ldy, &w_uk, 0, a->latent, q, ldq, p->S, scratch);
    }
}

/* Computes q_abs of one head for every query, and copies q_rope behind it. */
static void absorb_head(void *arg, size_t h, int thread)
{
    struct attention_pass *p = arg;
    const struct attention *a = p->a;
    size_t width = a->latent + a->rope, ldq = attention_row_heads(a) * (a->nope + a->rope), ldy = a->heads * width;
    const float *q_rope = p->q + h * (a->nope + a->rope) + a->nope;
    float *query = p->query + h * width;
    absorb(p, h, thread, query, ldy);
    for (size_t s = 0; s < p->S; s++) {
        memcpy(query + s * ldy + a->latent, q_rope + s * ldq, a->rope * sizeof *q_rope);
        size_t pair = s * a->heads + h;
        p->cx->k->pack(p->query_packed + pair * p->row, query + s * ldy, width);
        if (a->cache == KV_Q8)
            p->cx->k->quantize(p->query_groups + pair * groups_of(a), p->query_packed + pair * p->row, a->latent);
    }
}

/* ---- scores and values, block by block ---- */

/* Computes the dots of a group for one block with cache type q8: by rule 2 over the latents, plus by rule 1 over the
 * rope parts. */
static void dots_of_groups(const struct attention_pass *p, int thread, const struct attention_group *g,
                           const struct weight_view *rows, float *score)
{
    size_t first = first_pair(p, g), pairs = g->queries * g->heads;
    struct weight_view rope = kv_rope_view(&p->layout, rows->data, rows->rows);
    float *rope_score = p->rope_score + (size_t)thread * GROUP * SCORE_STRIDE;
    void *scratch = op_kernel_scratch(p->cx, thread);
    p->cx->k->matmul_quantized(score, SCORE_STRIDE, rows, 0, rows->rows, p->query_groups + first * groups_of(p->a),
                               groups_of(p->a), pairs, scratch);
    p->cx->k->matmul[WEIGHT_BF16](rope_score, SCORE_STRIDE, &rope, 0, rows->rows,
                                  p->query_packed + first * p->row + p->a->latent, p->row, pairs, scratch);
    for (size_t i = 0; i < pairs; i++)
        p->cx->k->axpy(score + i * SCORE_STRIDE, 1.0f, rope_score + i * SCORE_STRIDE, rows->rows);
}

/* Computes s of a group for one block, for every token to which at least one query of the group attends. Scores of
 * tokens to which a query does not attend are never read. */
static void scores_of_block(const struct attention_pass *p, int thread, const struct attention_group *g,
                            const struct weight_view *rows, float *score)
{
    size_t pairs = g->queries * g->heads;
    if (p->a->cache == KV_Q8)
        dots_of_groups(p, thread, g, rows, score);
    else
        p->cx->k->matmul[rows->type](score, SCORE_STRIDE, rows, 0, rows->rows,
                                     p->query_packed + first_pair(p, g) * p->row, p->row, pairs,
                                     op_kernel_scratch(p->cx, thread));
    for (size_t i = 0; i < pairs; i++)
        p->cx->k->scale(score + i * SCORE_STRIDE, p->a->scale, rows->rows);
}

/* Computes o_b of a group. Queries that attend to the same number of tokens of the block are computed together. */
static void values_of_block(const struct attention_pass *p, int thread, const struct attention_group *g, size_t block,
                            struct weight_view *rows, const float *score)
{
    size_t c = packed_latent(p->a), ld = p->blocks * c;
    for (size_t q = 0, same; q < g->queries; q += same) {
        float *o_b = p->values + (first_pair(p, g) + q * p->a->heads) * ld + block * c;
        rows->rows = seen_of_block(&p->seen[g->s + q], block * ATTENTION_BLOCK);
        for (same = 1;
             q + same < g->queries && seen_of_block(&p->seen[g->s + q + same], block * ATTENTION_BLOCK) == rows->rows;)
            same++;
        if (rows->rows)
            (p->a->cache == KV_Q8 ? p->cx->k->fma_rows_cache_q8
                                  : p->cx->k->fma_rows[rows->type])(o_b, ld, rows, 0, c,
                                                                    score + q * g->heads * SCORE_STRIDE, SCORE_STRIDE,
                                                                    same * g->heads, op_kernel_scratch(p->cx, thread));
    }
}

/* Computes m_b, l_b and o_b of one block for one group. The cache rows are read from memory once: for o_b they are
 * still in the CPU's cache. */
static void block_of_cache(void *arg, size_t task, int thread)
{
    struct attention_pass *p = arg;
    struct attention_group g;
    size_t block;
    if (!find_task(p, task, &g, &block))
        return;
    struct weight_view rows = cache_rows(p, thread, &g, block);
    struct weight_ahead ahead = rows_of_task(p, task + (size_t)p->cx->threads); /* this thread's next task, if all are
                                                                                   equally fast */
    rows.ahead = &ahead;
    float *score = p->score + (size_t)thread * GROUP * SCORE_STRIDE;
    scores_of_block(p, thread, &g, &rows, score);
    for (size_t i = 0; i < g.queries * g.heads; i++) {
        size_t n = seen_of_block(&p->seen[g.s + i / g.heads], block * ATTENTION_BLOCK),
               at = (first_pair(p, &g) + i) * p->blocks + block;
        float *s = score + i * SCORE_STRIDE;
        if (n)
            p->m[at] = p->cx->k->softmax_block(s, s, n, &p->l[at]);
    }
    values_of_block(p, thread, &g, block, &rows, score);
}

/* ---- blocks joined, and the output ---- */

/* Computes o of one pair, in the form that W_uv needs. */
static void join_values(const struct attention_pass *p, size_t pair)
{
    size_t c = packed_latent(p->a), blocks = blocks_of(p->seen[pair / p->a->heads].length);
    size_t first = pair * p->blocks;
    float *o = p->latent + pair * c;
    attention_join(p->cx->k, o, p->m + first, p->l + first, p->values + first * c, blocks, c);
    if (p->layout.type != KV_F32) { /* o is in natural order, and o_b is not needed any more */
        memcpy(p->values + first * c, o, c * sizeof *o);
        p->cx->k->pack(o, p->values + first * c, p->a->latent);
    }
    if (p->o.rows[OP_BF16]) /* o already has the order of a packed x */
        p->cx->k->narrow(op_packed_row(&p->o, OP_BF16, pair), o, p->a->latent);
    if (p->o.rows[OP_ROUNDED])
        op_round_x(op_packed_row(&p->o, OP_ROUNDED, pair), o, c);
    if (p->o.rows[OP_GROUPS])
        p->cx->k->quantize(op_packed_row(&p->o, OP_GROUPS, pair), o, p->a->latent);
}

static void value_head(void *arg, size_t h, int thread)
{
    struct attention_pass *p = arg;
    const struct attention *a = p->a;
    struct weight_view w_uv = weight_rows(&a->w_uv, h * a->uv_stride, a->value);
    enum op_form form = op_form(p->cx, &w_uv);
    const void *o = form == OP_F32 ? (const void *)(p->latent + h * packed_latent(a)) : op_packed_row(&p->o, form, h);
    for (size_t s = 0; s < p->S; s++)
        join_values(p, s * a->heads + h);
    op_multiply(p->cx, thread, p->y + h * a->value, attention_row_heads(a) * a->value, &w_uv, 0, a->value, o,
                a->heads * packed_latent(a), p->S);
}

/* ---- telling ---- */

/* Computes s_j of one query and one head. */
static void scores_of_pair(struct attention_pass *p, size_t s, size_t h)
{
    struct attention_group one = {s, 1, h, 1, p->seen[s].length};
    for (size_t block = 0; block < blocks_of(one.length); block++) {
        struct weight_view rows = cache_rows(p, 0, &one, block);
        scores_of_block(p, 0, &one, &rows, p->shown + block * ATTENTION_BLOCK);
    }
}

/* Reports s_j of every query to the probe, head by head. The scores are computed once more, on the caller's thread. If
 * there are several ranks, each rank computes those of its heads. */
static void show_scores(struct attention_pass *p, size_t first)
{
    struct op_probe *probe = p->cx->probe;
    struct op_ranks *ranks = p->cx->ranks;
    size_t H = attention_row_heads(p->a), unit = attention_head_unit(p->a->value);
    struct op_share own = op_own(p->cx, H, unit);
    for (size_t s = 0; s < p->S; s++)
        for (size_t h = 0; h < H; h++) {
            if (h >= own.begin && h < own.end)
                scores_of_pair(p, s, h - own.begin);
            if (ranks)
                op_spread(p->cx, op_owner(ranks, h, H, unit), p->shown, p->seen[s].length * sizeof *p->shown);
            if (probe)
                probe->see(probe, PROBE_ATTENTION_SCORES, (int)h, first + s, 1, p->shown, p->seen[s].length);
        }
}

/* ---- all of it ---- */

static void some_queries(struct attention_pass *p, size_t first)
{
    const struct attention *a = p->a;
    double latent = (double)p->S * (double)(a->heads * a->latent), tokens = 0;
    for (size_t s = 0; s < p->S; s++)
        tokens += (double)p->seen[s].length;
    if (a->heads) { /* a rank may have none */
        make_groups(p);
        make_tasks(p);
    }
    op_parallel(p->cx, a->heads, latent * (double)a->nope, absorb_head, p);
    if (p->cx->ranks ? p->cx->ranks->scores : p->cx->probe && p->cx->probe->scores)
        show_scores(p, first);
    op_parallel(p->cx, p->tasks, tokens * (double)(a->heads * (p->row + a->latent)), block_of_cache, p);
    op_parallel(p->cx, a->heads, latent * (double)(a->value + p->blocks), value_head, p);
}

void op_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                  size_t S, size_t context)
{
    size_t mark = op_mark(cx), width = a->latent + a->rope, most = queries_at_once(a, S, context),
           pairs = most * a->heads;
    size_t blocks = blocks_of(context);
    struct attention_pass p = {.cx = cx, .a = a, .row = packed_length(width), .layout = attention_rows(a)};
    p.row_bytes = kv_row_bytes(&p.layout);
    p.query = op_take(cx, pairs * width);
    p.query_packed = op_take(cx, pairs * p.row);
    p.score = op_take(cx, (size_t)cx->threads * GROUP * SCORE_STRIDE);
    if (a->cache == KV_Q8) {
        p.rope_score = op_take(cx, (size_t)cx->threads * GROUP * SCORE_STRIDE);
        p.query_groups = (struct quantized_group *)(void *)op_take(cx, pairs * groups_of(a) *
                                                                           sizeof(struct quantized_group) /
                                                                           sizeof(float));
    }
    p.m = op_take(cx, pairs * blocks);
    p.l = op_take(cx, pairs * blocks);
    p.values = op_take(cx, most * values_of(a, context));
    p.latent = op_take(cx, pairs * packed_latent(a));
    p.o = op_take_packed(cx, (1u << op_form(cx, &a->w_uv)) & ~(1u << OP_F32), pairs, a->latent);
    if (a->uk_transposed)
        p.q_groups = (struct quantized_group *)(void *)op_take_packed(cx, 1u << OP_GROUPS, pairs, a->nope)
                         .rows[OP_GROUPS];
    else
        p.q_nope = op_take(cx, pairs * a->nope);
    p.groups = (struct attention_group *)(void *)op_take(cx, pairs * sizeof(struct attention_group) / sizeof(float));
    p.rows = (char *)op_take(cx, (size_t)cx->threads * ATTENTION_BLOCK * p.row_bytes / sizeof(float));
    p.shown = op_take(cx, blocks * ATTENTION_BLOCK);
    for (size_t s = 0; s < S; s += most) {
        p.S = min_size(most, S - s);
        p.seen = seen + s;
        p.q = q + s * attention_row_heads(a) * (a->nope + a->rope);
        p.y = y + s * attention_row_heads(a) * a->value;
        some_queries(&p, s);
    }
    op_all_multiplied(cx, cx->arithmetic, &a->w_uv); /* only W_uv: op_multiply never reads a W_uk of type BF16 */
    op_give(cx, mark);
}
