#include "ops/backward/cross_entropy.h"

#include <math.h>
#include <string.h>

#include "ops/backward/softmax_internal.h"

double loss_softmax(const struct kernels *k, float *p, float *factors, const float *z, size_t V)
{
    size_t blocks = (V + SOFTMAX_BLOCK - 1) / SOFTMAX_BLOCK;
    float *m = factors, *l = factors + softmax_factors(V) / 2, M = 0.0f, L = 0.0f;
    for (size_t b = 0; b < blocks; b++) {
        size_t first = b * SOFTMAX_BLOCK, n = V - first < SOFTMAX_BLOCK ? V - first : SOFTMAX_BLOCK;
        m[b] = k->softmax_block(p + first, z + first, n, &l[b]);
        M = b == 0 || m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b < blocks; b++) {
        m[b] = kernel_expf(m[b] - M);
        L = fmaf(m[b], l[b], L);
    }
    for (size_t v = 0; v < V; v++)
        p[v] = p[v] * m[v / SOFTMAX_BLOCK] / L;
    return (double)M + kernel_log((double)L);
}

struct entropy {
    const struct op_ctx *cx;
    double *row_loss;   /* [S] */
    float *factors, *dz; /* factors [threads, pitch] */
    const float *z;
    const int32_t *tok;
    float weight;
    size_t V, pitch;
};

static void one_row(void *arg, size_t s, int thread)
{
    const struct entropy *p = arg;
    const float *z = p->z + s * p->V;
    float *dz = p->dz + s * p->V;
    size_t V = p->V, target = (size_t)p->tok[s];
    if (p->tok[s] < 0) {
        memset(dz, 0, V * sizeof *dz);
        p->row_loss[s] = 0.0;
        return;
    }
    float z_target = z[target];
    p->row_loss[s] = loss_softmax(p->cx->k, dz, p->factors + (size_t)thread * p->pitch, z, V) - (double)z_target;
    dz[target] = dz[target] - 1.0f;
    p->cx->k->scale(dz, p->weight, V);
}

size_t op_cross_entropy_scratch(size_t S, size_t V, int threads)
{
    return op_scratch_bytes(2 * S) + op_scratch_bytes((size_t)threads * softmax_factors(V));
}

void op_cross_entropy(struct op_ctx *cx, double *loss, float *dz, const float *z, const int32_t *tok, float weight,
                      size_t S, size_t V)
{
    size_t mark = op_mark(cx), pitch = softmax_factors(V);
    double *row_loss = (double *)(void *)op_take(cx, 2 * S);
    struct entropy p = {cx, row_loss, op_take(cx, (size_t)cx->threads * pitch), dz, z, tok, weight, V, pitch};
    op_parallel(cx, S, 8.0 * (double)S * (double)V, one_row, &p);
    for (size_t s = 0; s < S; s++)
        if (tok[s] >= 0)
            *loss = *loss + row_loss[s];
    op_give(cx, mark);
}
