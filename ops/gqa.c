/* ops/gqa.c -- one task per query and head. */
#include "ops/gqa.h"

#include <math.h>
#include <string.h>

struct job {
    const struct op_ctx *cx;
    const struct gqa *a;
    const struct timeline *seen;
    const float *q;
    float *y, *scratch;
};

/* Returns the floats that a thread needs: the scores of a block, and o_b. */
static size_t floats_of_thread(const struct gqa *a) { return ATTENTION_BLOCK + a->dim; }

size_t op_gqa_scratch(const struct gqa *a, int threads)
{
    return (size_t)threads * op_scratch_bytes(floats_of_thread(a));
}

/* Computes o_b[c] = sum p_j v_j[c] over tokens [j0, j1). Returns m_b. */
static float one_block(const struct job *job, const struct timeline *t, size_t group, const float *q, size_t j0,
                       size_t j1, float *p, float *o, float *sum)
{
    const struct gqa *a = job->a;
    const struct kernels *k = job->cx->k;
    for (size_t j = j0; j < j1; j++)
        p[j - j0] = k->dot(q, (const float *)t->rows + (size_t)t->slots[j] * a->row + group * a->dim, a->dim) *
                    a->scale;
    float m = k->softmax_block(p, p, j1 - j0, sum);
    memset(o, 0, a->dim * sizeof *o);
    for (size_t j = j0; j < j1; j++)
        k->axpy(o, p[j - j0], (const float *)t->rows + (size_t)t->slots[j] * a->row + (a->groups + group) * a->dim,
                a->dim);
    return m;
}

static void one_head(void *arg, size_t task, int thread)
{
    const struct job *job = arg;
    const struct gqa *a = job->a;
    const struct kernels *k = job->cx->k;
    size_t h = task % a->heads, group = h / (a->heads / a->groups);
    const struct timeline *t = &job->seen[task / a->heads];
    float *p = job->scratch + (size_t)thread * op_scratch_bytes(floats_of_thread(a)) / sizeof *p,
          *o_b = p + ATTENTION_BLOCK;
    float *o = job->y + task * a->dim, M = -INFINITY, L = 0.0f, sum;
    memset(o, 0, a->dim * sizeof *o);
    for (size_t j = 0; j < t->length; j += ATTENTION_BLOCK) {
        size_t end = j + ATTENTION_BLOCK < t->length ? j + ATTENTION_BLOCK : t->length;
        float m = one_block(job, t, group, job->q + task * a->dim, j, end, p, o_b, &sum), largest = m > M ? m : M;
        float before = kernel_expf(M - largest), e = kernel_expf(m - largest);
        k->scale(o, before, a->dim);
        L = fmaf(e, sum, L * before);
        k->axpy(o, e, o_b, a->dim);
        M = largest;
    }
    k->divide(o, L, a->dim);
}

void op_gqa(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct gqa *a, size_t S)
{
    size_t mark = op_mark(cx);
    double cost = 0.0;
    struct job job = {cx, a, seen, q, y, op_take(cx, op_gqa_scratch(a, cx->threads) / sizeof(float))};
    for (size_t s = 0; s < S; s++)
        cost += 2.0 * (double)(seen[s].length * a->heads * a->dim);
    op_parallel(cx, S * a->heads, cost, one_head, &job);
    op_give(cx, mark);
}
