#include "attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "linear.h"
#include "mistake.h"
#include "weights.h"

#define QUERIES_AT_ONCE 64 /* bounds the scratch of a long prefill; the bits of a query do not depend on it */
#define HEADS_AT_ONCE 16

static size_t at_most(size_t a, size_t b) { return a < b ? a : b; }

/* Heads that one task looks after: they share the reading of the cache. */
static size_t heads_per_task(const struct attention *a, int threads)
{
    return at_most((a->heads + (size_t)threads - 1) / (size_t)threads, HEADS_AT_ONCE);
}

/* of one thread: scores of its heads over the whole timeline, p and o_b of a block, the running o and L */
static size_t thread_floats(const struct attention *a, size_t context, int threads)
{
    size_t heads = heads_per_task(a, threads);
    return heads * (context + ATTENTION_BLOCK + a->latent) + 3 * heads + 16;
}

size_t op_attention_scratch(const struct attention *a, size_t S, size_t context, int threads)
{
    size_t s = at_most(S, QUERIES_AT_ONCE), width = a->latent + a->rope;
    return op_scratch_bytes(s * a->heads * width) + op_scratch_bytes(s * a->heads * packed_length(width)) +
           op_scratch_bytes(s * a->heads * a->latent) + op_scratch_bytes(s * a->heads * packed_length(a->latent)) +
           (size_t)threads * op_scratch_bytes(thread_floats(a, context, threads));
}

struct pass {
    const struct op_ctx *cx;
    const struct attention *a;
    const struct timeline *seen;
    const float *q;
    float *y;
    float *query, *query_packed;   /* [S, H, c+r] = [q_abs | q_rope] */
    float *latent, *latent_packed; /* [S, H, c] = o */
    float *per_thread;
    size_t thread_stride, heads_per_task, S;
};

/* q_abs of one head for every query, and q_rope beside it */
static void absorb_head(void *arg, size_t h, int thread)
{
    struct pass *p = arg;
    const struct attention *a = p->a;
    size_t width = a->latent + a->rope, ldq = a->heads * (a->nope + a->rope), ldy = a->heads * width;
    size_t keys = h * (a->nope + a->value) + (MISTAKE(values_before_keys) ? a->value : 0);
    struct weight_view w_uk = weight_rows(a->kv_b_proj, keys, a->nope);
    const float *q = p->q + h * (a->nope + a->rope);
    float *query = p->query + h * width;
    (void)thread;
    p->cx->k->fma_rows[w_uk.type](query, ldy, &w_uk, 0, a->latent, q, ldq, p->S);
    for (size_t s = 0; s < p->S; s++) {
        memcpy(query + s * ldy + a->latent, q + s * ldq + a->nope, a->rope * sizeof *q);
        p->cx->k->pack(p->query_packed + (s * a->heads + h) * packed_length(width), query + s * ldy, width);
    }
}

/* Calls of a kernel want rows that stand one after another: the length of such a run of slots from token j on. */
static size_t run_of_slots(const struct timeline *t, size_t j, size_t end)
{
    size_t n = 1;
    while (j + n < end && t->slots[j + n] == t->slots[j] + (int32_t)n)
        n++;
    return n;
}

static struct weight_view cache_rows(const struct timeline *t, size_t j, size_t count, size_t cols, size_t width)
{
    return (struct weight_view){.type = WEIGHT_F32, .data = t->rows + (size_t)t->slots[j] * width,
                                .rows = count, .cols = cols, .stride = width};
}

/* s_j of `heads` heads for tokens [j0, j1): scores[h*lds + j] */
static void scores_of_block(const struct pass *p, float *scores, size_t lds, const float *query_packed, size_t heads,
                            const struct timeline *t, size_t j0, size_t j1)
{
    size_t width = p->a->latent + p->a->rope, n;
    for (size_t j = j0; j < j1; j += n) {
        n = run_of_slots(t, j, j1);
        struct weight_view rows = cache_rows(t, j, n, width, width);
        p->cx->k->matmul[WEIGHT_F32](scores + j, lds, &rows, 0, n, query_packed, packed_length(width), heads);
    }
    for (size_t h = 0; h < heads; h++)
        for (size_t j = j0; j < j1; j++)
            scores[h * lds + j] = scores[h * lds + j] * p->a->scale;
}

/* o_b[h*c ..] = sum over tokens [j0, j1) of p[h*256 + j-j0] row_j. A run continues the sums of the run before. */
static void values_of_block(const struct pass *p, float *o, const float *prob, size_t heads, const struct timeline *t,
                            size_t j0, size_t j1)
{
    size_t width = p->a->latent + p->a->rope, latent = p->a->latent;
    size_t n = run_of_slots(t, j0, j1);
    if (n == j1 - j0) {
        struct weight_view rows = cache_rows(t, j0, n, latent, width);
        p->cx->k->fma_rows[WEIGHT_F32](o, latent, &rows, 0, latent, prob, ATTENTION_BLOCK, heads);
        return;
    }
    memset(o, 0, heads * latent * sizeof *o); /* rows scattered over the cache: the same sums, one token at a time */
    for (size_t j = j0; j < j1; j++)
        for (size_t h = 0; h < heads; h++) {
            const float *row = t->rows + (size_t)t->slots[j] * width;
            for (size_t c = 0; c < latent; c++)
                o[h * latent + c] = fmaf(prob[h * ATTENTION_BLOCK + j - j0], row[c], o[h * latent + c]);
        }
}

/* One query, a group of heads: the softmax over its timeline and the weighted latent. */
static void attend(void *arg, size_t task, int thread)
{
    struct pass *p = arg;
    const struct attention *a = p->a;
    size_t groups = (a->heads + p->heads_per_task - 1) / p->heads_per_task;
    size_t s = task / groups, h0 = task % groups * p->heads_per_task;
    size_t heads = at_most(p->heads_per_task, a->heads - h0), c = a->latent;
    const struct timeline *t = &p->seen[s];
    const float *query_packed = p->query_packed + (s * a->heads + h0) * packed_length(c + a->rope);
    float *scores = p->per_thread + (size_t)thread * p->thread_stride; /* [heads, length] */
    float *prob = scores + heads * t->length;                          /* [heads, 256] */
    float *o_b = prob + heads * ATTENTION_BLOCK;                       /* [heads, c] */
    float *M = o_b + heads * c, *L = M + heads;
    float *o = p->latent + (s * a->heads + h0) * c;

    for (size_t j0 = 0; j0 < t->length; j0 += ATTENTION_BLOCK)
        scores_of_block(p, scores, t->length, query_packed, heads, t, j0, at_most(j0 + ATTENTION_BLOCK, t->length));
    for (size_t h = 0; h < heads; h++) {
        M[h] = scores[h * t->length];
        for (size_t j = 1; j < t->length; j++)
            M[h] = scores[h * t->length + j] > M[h] ? scores[h * t->length + j] : M[h];
        L[h] = 0.0f;
        memset(o + h * c, 0, c * sizeof *o);
    }
    for (size_t j0 = 0; j0 < t->length; j0 += ATTENTION_BLOCK) {
        size_t j1 = at_most(j0 + ATTENTION_BLOCK, t->length);
        float m_b[HEADS_AT_ONCE], l_b[HEADS_AT_ONCE], e_b[HEADS_AT_ONCE];
        for (size_t h = 0; h < heads; h++) {
            m_b[h] = p->cx->k->softmax_block(prob + h * ATTENTION_BLOCK, scores + h * t->length + j0, j1 - j0, &l_b[h]);
            e_b[h] = m_b[h] - M[h];
        }
        p->cx->k->exp(e_b, e_b, heads);
        values_of_block(p, o_b, prob, heads, t, j0, j1);
        for (size_t h = 0; h < heads; h++) {
            L[h] = fmaf(e_b[h], l_b[h], L[h]);
            for (size_t i = 0; i < c; i++)
                o[h * c + i] = fmaf(e_b[h], o_b[h * c + i], o[h * c + i]);
        }
    }
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < c; i++)
            o[h * c + i] = o[h * c + i] / L[h];
        p->cx->k->pack(p->latent_packed + (s * a->heads + h0 + h) * packed_length(c), o + h * c, c);
    }
}

/* Tells of s_j, head by head, of every query: computed once more, on the caller's thread. */
static void show_scores(const struct pass *p, size_t first)
{
    const struct attention *a = p->a;
    struct op_probe *probe = p->cx->probe;
    char name[32];
    for (size_t s = 0; s < p->S; s++) {
        const struct timeline *t = &p->seen[s];
        for (size_t h = 0; h < a->heads; h++) {
            const float *query_packed = p->query_packed + (s * a->heads + h) * packed_length(a->latent + a->rope);
            for (size_t j = 0; j < t->length; j += ATTENTION_BLOCK)
                scores_of_block(p, p->per_thread, t->length, query_packed, 1, t, j, at_most(j + ATTENTION_BLOCK, t->length));
            snprintf(name, sizeof name, "scores.%zu", h);
            probe->see(probe, name, first + s, 1, p->per_thread, 0, t->length);
        }
    }
}

static void value_head(void *arg, size_t h, int thread)
{
    struct pass *p = arg;
    const struct attention *a = p->a;
    size_t values = h * (a->nope + a->value) + (MISTAKE(values_before_keys) ? 0 : a->nope);
    struct weight_view w_uv = weight_rows(a->kv_b_proj, values, a->value);
    (void)thread;
    p->cx->k->matmul[w_uv.type](p->y + h * a->value, a->heads * a->value, &w_uv, 0, a->value,
                                p->latent_packed + h * packed_length(a->latent), a->heads * packed_length(a->latent),
                                p->S);
}

void op_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                  size_t S, size_t context)
{
    size_t mark = op_mark(cx), most = at_most(S, QUERIES_AT_ONCE), width = a->latent + a->rope;
    struct pass p = {.cx = cx, .a = a};
    p.query = op_take(cx, most * a->heads * width);
    p.query_packed = op_take(cx, most * a->heads * packed_length(width));
    p.latent = op_take(cx, most * a->heads * a->latent);
    p.latent_packed = op_take(cx, most * a->heads * packed_length(a->latent));
    p.heads_per_task = heads_per_task(a, cx->threads);
    p.thread_stride = op_scratch_bytes(thread_floats(a, context, cx->threads)) / sizeof(float);
    p.per_thread = op_take(cx, (size_t)cx->threads * p.thread_stride);

    for (size_t s = 0; s < S; s += most) {
        p.S = at_most(most, S - s);
        p.seen = seen + s;
        p.q = q + s * a->heads * (a->nope + a->rope);
        p.y = y + s * a->heads * a->value;
        double per_head = (double)p.S * (double)a->latent, tokens = 0;
        for (size_t i = 0; i < p.S; i++)
            tokens += (double)p.seen[i].length;
        size_t groups = (a->heads + p.heads_per_task - 1) / p.heads_per_task;
        op_parallel(cx, a->heads, per_head * (double)(a->heads * a->nope), absorb_head, &p);
        if (cx->probe && cx->probe->scores)
            show_scores(&p, s);
        op_parallel(cx, p.S * groups, 2.0 * tokens * (double)(a->heads * width), attend, &p);
        op_parallel(cx, a->heads, per_head * (double)(a->heads * a->value), value_head, &p);
    }
    op_give(cx, mark);
}
