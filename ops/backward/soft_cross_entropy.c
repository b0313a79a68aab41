#include "ops/backward/soft_cross_entropy.h"

#include <assert.h>
#include <string.h>

#include "ops/backward/softmax_internal.h"

struct soft_entropy {
    const struct op_ctx *cx;
    struct soft_sums *row; /* [S] */
    float *memory;         /* [threads, pitch]: q [V], p [V], factors, the indices of top */
    float *dz;
    const float *z, *target;
    const int32_t *tok;
    const struct soft_terms *terms;
    float weight;
    size_t V, K, pitch;
};

static size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }
static size_t pitch_of(size_t V, size_t K) { return 2 * padded(V) + softmax_factors(V) + padded(K); }

/* Writes the indices of the K largest numbers of x [n] to best, ascending. Of equal numbers, the lowest index is the
 * best. */
static void choose(int32_t *best, size_t K, const float *x, size_t n)
{
    for (size_t v = 0, count = 0; v < n && K; v++) { /* best has the best first */
        if (count == K && !(x[v] > x[best[K - 1]]))
            continue;
        size_t i = count < K ? count++ : K - 1;
        for (; i > 0 && x[v] > x[best[i - 1]]; i--)
            best[i] = best[i - 1];
        best[i] = (int32_t)v;
    }
    for (size_t i = 1; i < K; i++) { /* now in ascending order of the indices */
        int32_t v = best[i];
        size_t j = i;
        for (; j > 0 && best[j - 1] > v; j--)
            best[j] = best[j - 1];
        best[j] = v;
    }
}

static void one_row(void *arg, size_t s, int thread)
{
    const struct soft_entropy *o = arg;
    const struct soft_terms *terms = o->terms;
    size_t V = o->V;
    const float *z = o->z + s * V, *target = o->target + s * V;
    float *q = o->memory + (size_t)thread * o->pitch, *p = q + padded(V), *factors = p + padded(V), *dz = o->dz + s * V;
    int32_t *top = (int32_t *)(void *)(factors + softmax_factors(V));
    struct soft_sums row = {0};
    if (o->tok[s] < 0) {
        memset(dz, 0, V * sizeof *dz);
        o->row[s] = row;
        return;
    }
    double log_q = loss_softmax(o->cx->k, q, factors, z, V), log_p = loss_softmax(o->cx->k, p, factors, target, V);
    choose(top, o->K, target, V);
    float P = 0.0f;
    for (size_t i = 0; i < o->K; i++) {
        P = P + p[top[i]];
        row.top = row.top + (double)p[top[i]] * (log_q - (double)z[top[i]]);
    }
    row.data = log_q - (double)z[o->tok[s]];
    for (size_t v = 0; v < V; v++) {
        row.soft = row.soft + (double)p[v] * (log_q - (double)z[v]);
        row.entropy = row.entropy + (double)p[v] * (log_p - (double)target[v]);
    }
    o->row[s] = row;

    float m = terms->data + terms->soft + terms->top * P, a = terms->soft, a_top = terms->soft + terms->top;
    for (size_t v = 0; v < V; v++)
        dz[v] = q[v] * m - a * p[v];
    for (size_t i = 0; i < o->K; i++)
        dz[top[i]] = q[top[i]] * m - a_top * p[top[i]];
    dz[o->tok[s]] = dz[o->tok[s]] - terms->data;
    o->cx->k->scale(dz, o->weight, V);
}

static size_t sums_floats(size_t S) { return S * sizeof(struct soft_sums) / sizeof(float); }

size_t op_soft_cross_entropy_scratch(size_t S, size_t V, size_t top_tokens, int threads)
{
    return op_scratch_bytes(sums_floats(S)) + op_scratch_bytes((size_t)threads * pitch_of(V, top_tokens));
}

void op_soft_cross_entropy(struct op_ctx *cx, struct soft_sums *sums, float *dz, const float *z, const float *target,
                           const int32_t *tok, const struct soft_terms *terms, float weight, size_t S, size_t V)
{
    size_t mark = op_mark(cx), K = terms->top != 0.0f ? terms->top_tokens : 0, pitch = pitch_of(V, K);
    assert(K <= V);
    struct soft_sums *row = (struct soft_sums *)(void *)op_take(cx, sums_floats(S));
    struct soft_entropy o = {cx, row, op_take(cx, (size_t)cx->threads * pitch), dz, z, target, tok, terms, weight, V, K,
                             pitch};
    op_parallel(cx, S, 24.0 * (double)S * (double)V, one_row, &o);
    for (size_t s = 0; s < S; s++) {
        sums->data = sums->data + row[s].data;
        sums->soft = sums->soft + row[s].soft;
        sums->top = sums->top + row[s].top;
        sums->entropy = sums->entropy + row[s].entropy;
    }
    op_give(cx, mark);
}
