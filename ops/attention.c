#include "ops/attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/linear.h"
#include "ops/round.h"
#include "ops/weights.h"

#define MOST_QUERIES 64             /* queries at once */
#define MOST_SCORES ((size_t)1 << 24) /* scores at once; both limits bound the scratch memory of a long prefill, and change no
                                         bit */
#define GROUP 48                    /* (query, head) pairs that share one reading of the cache */
#define COLUMNS 64                  /* columns of the latent that one task sums */
#define MOST_VALUES ((size_t)1 << 20) /* largest size of kept o_b; if o_b is kept, the cache is read only once */

static size_t at_most(size_t a, size_t b) { return a < b ? a : b; }
static size_t at_least(size_t a, size_t b) { return a > b ? a : b; }

static size_t blocks_of(size_t length) { return (length + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK; }

/* Returns the distance between the scores of two (query, head) pairs. 16 is added so that it is no power of two. */
static size_t score_stride(size_t context) { return blocks_of(context) * ATTENTION_BLOCK + 16; }

static size_t queries_at_once(const struct attention *a, size_t S, size_t context)
{
    return at_most(S, at_most(MOST_QUERIES, at_least(1, MOST_SCORES / (a->heads * score_stride(context)))));
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
    size_t S, row;       /* S: number of queries; row: floats in a cache row or a packed query */
    struct attention_group *groups;
    size_t group_count, blocks;
    float *query, *query_packed;  /* [S, H, c+r] = [q_abs | q_rope] */
    float *score;                 /* [S*H, score_stride]: s, then p */
    size_t ld;                    /* score_stride of the longest timeline */
    float *m, *l;                 /* [S*H, blocks]. m: m_b, later e_b; l: l_b */
    float *L;                     /* [S*H] */
    float *values;                /* [S*H, blocks, packed(c)] = o_b; NULL: o_b is not kept */
    float *latent;                /* [S*H, packed(c)] = o, in packed order like the cache rows */
    struct op_packed o;           /* o in the form that w_uv needs, if this is not f32; row s*H + h */
    float *q_nope;                /* [S, H, n] rounded, in precision bf16 */
    struct quantised_group *q_groups; /* q_nope quantised, if W_uk is quantised */
    float *rows;                  /* [threads, 256, row]: copies of cache rows that are not adjacent in memory */
};

static size_t packed_latent(const struct attention *a) { return packed_length(a->latent); }

/* Returns how many numbers o_b has for this many pairs, or 0 if these are too many to be kept. */
static size_t values_of(const struct attention *a, size_t pairs, size_t context)
{
    size_t numbers = pairs * blocks_of(context) * packed_latent(a);
    return numbers <= MOST_VALUES ? numbers : 0;
}

size_t op_attention_scratch(const struct attention *a, size_t S, size_t context, int threads)
{
    size_t width = a->latent + a->rope, row = packed_length(width);
    size_t queries = queries_at_once(a, S, context), pairs = queries * a->heads;
    return op_scratch_bytes(pairs * width) + op_scratch_bytes(pairs * row) + op_scratch_bytes(pairs * score_stride(context)) +
           2 * op_scratch_bytes(pairs * blocks_of(context)) + op_scratch_bytes(pairs) +
           op_scratch_bytes(values_of(a, pairs, context)) +
           op_scratch_bytes(pairs * packed_latent(a)) + op_packed_scratch(pairs, a->latent) + op_packed_scratch(pairs, a->nope) +
           op_scratch_bytes(pairs * sizeof(struct attention_group) / sizeof(float)) +
           op_scratch_bytes((size_t)threads * ATTENTION_BLOCK * row);
}

/* ---- queries ---- */

/* Computes q_abs of one head for every query. */
static void absorb(struct attention_pass *p, size_t h, int thread, float *query, size_t ldy)
{
    void *scratch = op_kernel_scratch(p->cx, thread);
    const struct attention *a = p->a;
    size_t first = h * a->uk_stride, ldq = a->heads * (a->nope + a->rope), ldr = a->heads * a->nope;
    const float *q = p->q + h * (a->nope + a->rope);
    if (a->uk_transposed) {
        size_t groups = a->nope / QUANTISED_GROUP;
        struct weight_view w_uk = weight_rows(&a->w_uk, first, a->latent);
        struct quantised_group *rows = p->q_groups + h * groups;
        for (size_t s = 0; s < p->S; s++) {
            struct op_packed row = {.K = a->nope, .rows[OP_GROUPS] = (char *)(rows + s * a->heads * groups)};
            op_pack_part(p->cx, &row, 0, q + s * ldq, 0, a->nope);
        }
        op_multiply(p->cx, thread, query, ldy, &w_uk, 0, a->latent, rows, ldr, p->S);
        return;
    }
    struct weight_view w_uk = weight_rows(&a->w_uk, first, a->nope);
    if (p->cx->bf16) {
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
    size_t width = a->latent + a->rope, ldq = a->heads * (a->nope + a->rope), ldy = a->heads * width;
    const float *q_rope = p->q + h * (a->nope + a->rope) + a->nope;
    float *query = p->query + h * width;
    absorb(p, h, thread, query, ldy);
    for (size_t s = 0; s < p->S; s++) {
        memcpy(query + s * ldy + a->latent, q_rope + s * ldq, a->rope * sizeof *q_rope);
        p->cx->k->pack(p->query_packed + (s * a->heads + h) * p->row, query + s * ldy, width);
    }
}

/* ---- groups: who reads a part of the cache together ---- */

static void make_groups(struct attention_pass *p)
{
    size_t H = p->a->heads, heads = at_most(H, GROUP), longest = 0;
    for (size_t s = 0; s < p->S; s++)
        longest = at_least(longest, p->seen[s].length);
    p->ld = score_stride(longest);
    p->blocks = blocks_of(longest);
    while (heads > 8 && p->S * ((H + heads - 1) / heads) * p->blocks < 3 * (size_t)p->cx->threads)
        heads = (heads + 1) / 2; /* smaller groups, so that every thread has work when there are few queries and few tokens */
    p->group_count = 0;
    for (size_t s = 0, n; s < p->S; s += n) {
        const struct timeline *t = &p->seen[s];
        size_t length = t->length;
        for (n = 1; heads == H && (n + 1) * H <= GROUP && s + n < p->S; n++) {
            if (t[n].rows != t->rows || t[n].slots != t->slots)
                break;
            length = at_least(length, t[n].length);
        }
        for (size_t h = 0; h < H; h += heads)
            p->groups[p->group_count++] = (struct attention_group){s, n, h, at_most(heads, H - h), length};
    }
}

/* Returns columns [c0, c1) of the cache rows of tokens [j, j+n). If these rows are not adjacent in memory, they are
 * copied first. */
static struct weight_view cache_rows(const struct attention_pass *p, int thread, const struct timeline *t, size_t j, size_t n,
                                     size_t c0, size_t c1)
{
    struct weight_view w = {.type = WEIGHT_F32, .rows = n, .cols = c1 - c0, .stride = p->row, .packed = 1};
    size_t run = 1;
    while (run < n && t->slots[j + run] == t->slots[j] + (int32_t)run)
        run++;
    w.data = t->rows + (size_t)t->slots[j] * p->row + c0;
    if (run < n) {
        float *rows = p->rows + (size_t)thread * ATTENTION_BLOCK * p->row;
        for (size_t i = 0; i < n; i++)
            memcpy(rows + i * p->row, t->rows + (size_t)t->slots[j + i] * p->row + c0, (c1 - c0) * sizeof *rows);
        w.data = rows;
    }
    return w;
}

static size_t first_pair(const struct attention_pass *p, const struct attention_group *g) { return g->s * p->a->heads + g->h; }

static const struct timeline *longest_of(const struct attention_pass *p, const struct attention_group *g)
{
    const struct timeline *t = &p->seen[g->s];
    while (t->length < g->length)
        t++;
    return t;
}

/* Returns to how many tokens of the block that begins at j query s attends. */
static size_t seen_of_block(const struct attention_pass *p, size_t s, size_t j)
{
    size_t length = p->seen[s].length;
    return length > j ? at_most(ATTENTION_BLOCK, length - j) : 0;
}

/* ---- scores, block by block ---- */

/* Computes the scores of a group for one block, for every token to which at least one query of the group attends.
 * Scores of tokens to which a query does not attend are never read. Returns the cache rows of the block. */
static struct weight_view scores_of_block(const struct attention_pass *p, int thread, const struct attention_group *g, size_t block)
{
    size_t j = block * ATTENTION_BLOCK, n = at_most(ATTENTION_BLOCK, g->length - j), pair = first_pair(p, g);
    size_t pairs = g->queries * g->heads;
    struct weight_view rows = cache_rows(p, thread, longest_of(p, g), j, n, 0, p->row);
    float *score = p->score + pair * p->ld + j;
    p->cx->k->matmul[WEIGHT_F32](score, p->ld, &rows, 0, n, p->query_packed + pair * p->row, p->row, pairs,
                                op_kernel_scratch(p->cx, thread));
    for (size_t i = 0; i < pairs; i++)
        p->cx->k->scale(score + i * p->ld, p->a->scale, n);
    return rows;
}

/* Computes o_b of pairs [pair, pair + pairs) over n tokens of a block. `rows` has `columns` columns. */
static void sum_values(const struct attention_pass *p, int thread, float *o_b, size_t ld, struct weight_view *rows, size_t n, size_t pair, size_t pairs,
                       size_t block, size_t columns)
{
    rows->rows = n;
    p->cx->k->fma_rows[WEIGHT_F32](o_b, ld, rows, 0, columns, p->score + pair * p->ld + block * ATTENTION_BLOCK, p->ld, pairs,
                                  op_kernel_scratch(p->cx, thread));
}

/* Returns how many queries of a group, from q on, attend to the same number of tokens of the block at j. *n is this
 * number of tokens. */
static size_t see_the_same(const struct attention_pass *p, const struct attention_group *g, size_t q, size_t j, size_t *n)
{
    size_t same = 1;
    *n = seen_of_block(p, g->s + q, j);
    while (q + same < g->queries && seen_of_block(p, g->s + q + same, j) == *n)
        same++;
    return same;
}

/* Computes and keeps all columns of o_b of a group. */
static void keep_values(const struct attention_pass *p, int thread, const struct attention_group *g, size_t block, struct weight_view *rows)
{
    for (size_t q = 0, same, n; q < g->queries; q += same) {
        size_t pair = first_pair(p, g) + q * g->heads;
        same = see_the_same(p, g, q, block * ATTENTION_BLOCK, &n);
        if (n)
            sum_values(p, thread, p->values + (pair * p->blocks + block) * packed_latent(p->a), p->blocks * packed_latent(p->a), rows, n,
                       pair, same * g->heads, block, packed_latent(p->a));
    }
}

/* Computes s_j, m_b, p_j and l_b of one block for one group. Also computes o_b if o_b is kept, because the rows are now
 * in the CPU's cache. */
static void score_block(void *arg, size_t task, int thread)
{
    struct attention_pass *p = arg;
    const struct attention_group *g = &p->groups[task / p->blocks];
    size_t block = task % p->blocks, j = block * ATTENTION_BLOCK, pair = first_pair(p, g);
    if (j >= g->length)
        return;
    struct weight_view rows = scores_of_block(p, thread, g, block);
    for (size_t i = 0; i < g->queries * g->heads; i++, pair++) {
        size_t n = seen_of_block(p, g->s + i / g->heads, j), at = pair * p->blocks + block;
        float *score = p->score + pair * p->ld + j;
        if (n)
            p->m[at] = p->cx->k->softmax_block(score, score, n, &p->l[at]);
    }
    if (p->values)
        keep_values(p, thread, g, block, &rows);
}

/* Computes M, e_b and L of some queries. */
static void join_blocks(void *arg, size_t first, size_t count)
{
    struct attention_pass *p = arg;
    size_t H = p->a->heads;
    for (size_t pair = first * H; pair < (first + count) * H; pair++) {
        size_t blocks = blocks_of(p->seen[pair / H].length);
        float *m = p->m + pair * p->blocks, *l = p->l + pair * p->blocks, M = m[0], L = 0.0f;
        for (size_t b = 1; b < blocks; b++)
            M = m[b] > M ? m[b] : M;
        for (size_t b = 0; b < blocks; b++)
            m[b] = m[b] - M;
        p->cx->k->exp(m, m, blocks);
        for (size_t b = 0; b < blocks; b++)
            L = fmaf(m[b], l[b], L);
        p->L[pair] = L;
    }
}

/* ---- values, column by column ---- */

/* o += e_b o_b, for columns [c0, c0 + columns) of pairs [pair, pair + pairs). `o_b` is that of the first pair; ld is
 * the distance to the next pair's. */
static void add_values(const struct attention_pass *p, const float *o_b, size_t ld, size_t pair, size_t pairs, size_t block, size_t c0,
                       size_t columns)
{
    for (size_t i = 0; i < pairs; i++, pair++)
        p->cx->k->axpy(p->latent + pair * packed_latent(p->a) + c0, p->m[pair * p->blocks + block], o_b + i * ld, columns);
}

/* Adds the kept o_b of all blocks. */
static void add_kept(const struct attention_pass *p, const struct attention_group *g, size_t c0, size_t columns)
{
    for (size_t pair = first_pair(p, g), i = 0; i < g->queries * g->heads; i++, pair++)
        for (size_t block = 0; block < blocks_of(p->seen[g->s + i / g->heads].length); block++)
            add_values(p, p->values + (pair * p->blocks + block) * packed_latent(p->a) + c0, 0, pair, 1, block, c0, columns);
}

/* Computes o_b block by block and adds it to o. Queries that attend to the same number of tokens of a block are
 * computed together. */
static void add_blocks(const struct attention_pass *p, int thread, const struct attention_group *g, size_t c0, size_t columns)
{
    const struct timeline *t = longest_of(p, g);
    float o_b[GROUP][COLUMNS];
    for (size_t block = 0, j = 0; j < g->length; block++, j += ATTENTION_BLOCK) {
        struct weight_view rows = cache_rows(p, thread, t, j, at_most(ATTENTION_BLOCK, g->length - j), c0, c0 + columns);
        for (size_t q = 0, same, n; q < g->queries; q += same) {
            size_t pair = first_pair(p, g) + q * g->heads;
            same = see_the_same(p, g, q, j, &n);
            if (!n)
                continue;
            sum_values(p, thread, o_b[0], COLUMNS, &rows, n, pair, same * g->heads, block, columns);
            add_values(p, o_b[0], COLUMNS, pair, same * g->heads, block, c0, columns);
        }
    }
}

/* Computes some columns of o for one group. */
static void value_columns(void *arg, size_t task, int thread)
{
    static const float zeros[COLUMNS];
    struct attention_pass *p = arg;
    size_t tasks = packed_latent(p->a) / COLUMNS + (packed_latent(p->a) % COLUMNS != 0);
    const struct attention_group *g = &p->groups[task / tasks];
    size_t c0 = task % tasks * COLUMNS, columns = at_most(COLUMNS, packed_latent(p->a) - c0), pair = first_pair(p, g);
    for (size_t i = 0; i < g->queries * g->heads; i++) {
        float *o = p->latent + (pair + i) * packed_latent(p->a) + c0;
        if (columns == COLUMNS) /* nearly always; the compiler then uses a few vector stores */
            memcpy(o, zeros, sizeof zeros);
        else
            memset(o, 0, columns * sizeof *o);
    }
    if (p->values)
        add_kept(p, g, c0, columns);
    else
        add_blocks(p, thread, g, c0, columns);
    for (size_t i = 0; i < g->queries * g->heads; i++) {
        float *o = p->latent + (pair + i) * packed_latent(p->a) + c0;
        p->cx->k->divide(o, p->L[pair + i], columns);
        if (p->o.rows[OP_BF16]) /* o already has the order of a packed x */
            p->cx->k->narrow((uint16_t *)op_packed_row(&p->o, OP_BF16, pair + i) + c0, o, at_most(columns, p->a->latent - c0));
        if (p->o.rows[OP_GROUPS])
            p->cx->k->quantise((struct quantised_group *)op_packed_row(&p->o, OP_GROUPS, pair + i) + c0 / QUANTISED_GROUP, o, columns);
    }
}

static void value_head(void *arg, size_t h, int thread)
{
    struct attention_pass *p = arg;
    const struct attention *a = p->a;
    struct weight_view w_uv = weight_rows(&a->w_uv, h * a->uv_stride, a->value);
    enum op_form form = op_form(p->cx, &w_uv);
    const void *o = form == OP_F32 ? (const void *)(p->latent + h * packed_latent(a)) : op_packed_row(&p->o, form, h);
    op_multiply(p->cx, thread, p->y + h * a->value, a->heads * a->value, &w_uv, 0, a->value, o, a->heads * packed_latent(a), p->S);
}

/* ---- telling ---- */

/* Reports s_j of every query to the probe, head by head. The scores are computed once more, on the caller's thread. */
static void show_scores(struct attention_pass *p, size_t first)
{
    struct op_probe *probe = p->cx->probe;
    char name[32];
    for (size_t s = 0; s < p->S; s++)
        for (size_t h = 0; h < p->a->heads; h++) {
            struct attention_group one = {s, 1, h, 1, p->seen[s].length};
            for (size_t block = 0; block < blocks_of(one.length); block++)
                scores_of_block(p, 0, &one, block);
            snprintf(name, sizeof name, "scores.%zu", h);
            probe->see(probe, name, first + s, 1, p->score + first_pair(p, &one) * p->ld, 0, one.length);
        }
}

/* ---- all of it ---- */

static void some_queries(struct attention_pass *p, size_t first)
{
    const struct attention *a = p->a;
    double latent = (double)p->S * (double)(a->heads * a->latent), tokens = 0;
    for (size_t s = 0; s < p->S; s++)
        tokens += (double)p->seen[s].length;
    make_groups(p);
    op_parallel(p->cx, a->heads, latent * (double)a->nope, absorb_head, p);
    if (p->cx->probe && p->cx->probe->scores)
        show_scores(p, first);
    op_parallel(p->cx, p->group_count * p->blocks, tokens * (double)(a->heads * p->row), score_block, p);
    op_each_row(p->cx, p->S, 16.0 * (double)(a->heads * p->blocks), join_blocks, p);
    op_parallel(p->cx, p->group_count * ((packed_latent(a) + COLUMNS - 1) / COLUMNS), tokens * (double)(a->heads * a->latent),
                value_columns, p);
    op_parallel(p->cx, a->heads, latent * (double)a->value, value_head, p);
}

void op_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                  size_t S, size_t context)
{
    size_t mark = op_mark(cx), width = a->latent + a->rope, most = queries_at_once(a, S, context), pairs = most * a->heads;
    struct attention_pass p = {.cx = cx, .a = a, .row = packed_length(width)};
    p.query = op_take(cx, pairs * width);
    p.query_packed = op_take(cx, pairs * p.row);
    p.score = op_take(cx, pairs * score_stride(context));
    p.m = op_take(cx, pairs * blocks_of(context));
    p.l = op_take(cx, pairs * blocks_of(context));
    p.L = op_take(cx, pairs);
    p.values = values_of(a, pairs, context) ? op_take(cx, values_of(a, pairs, context)) : NULL;
    p.latent = op_take(cx, pairs * packed_latent(a));
    p.o = op_take_packed(cx, (1u << op_form(cx, &a->w_uv)) & ~(1u << OP_F32), pairs, a->latent);
    if (a->uk_transposed)
        p.q_groups = (struct quantised_group *)(void *)op_take_packed(cx, 1u << OP_GROUPS, pairs, a->nope).rows[OP_GROUPS];
    else
        p.q_nope = op_take(cx, pairs * a->nope);
    p.groups = (struct attention_group *)(void *)op_take(cx, pairs * sizeof(struct attention_group) / sizeof(float));
    p.rows = op_take(cx, (size_t)cx->threads * ATTENTION_BLOCK * p.row);
    for (size_t s = 0; s < S; s += most) {
        p.S = at_most(most, S - s);
        p.seen = seen + s;
        p.q = q + s * a->heads * (a->nope + a->rope);
        p.y = y + s * a->heads * a->value;
        some_queries(&p, s);
    }
    op_all_multiplied(cx, &a->w_uv); /* only W_uv: op_multiply never reads a W_uk of type BF16 */
    op_give(cx, mark);
}
