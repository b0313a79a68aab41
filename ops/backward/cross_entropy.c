#include "ops/backward/cross_entropy.h"

#include <math.h>
#include <string.h>

#define BLOCK 256

struct entropy {
    const struct op_ctx *cx;
    double *row_loss; /* [S] */
    float *m, *dz;    /* m [threads, pitch] */
    const float *z;
    const int32_t *tok;
    float weight;
    size_t V, pitch;
};

static void one_row(void *arg, size_t s, int thread)
{
    const struct entropy *p = arg;
    const struct kernels *k = p->cx->k;
    const float *z = p->z + s * p->V;
    float *dz = p->dz + s * p->V, *m = p->m + (size_t)thread * p->pitch, *l = m + p->pitch / 2;
    size_t V = p->V, blocks = (V + BLOCK - 1) / BLOCK, target = (size_t)p->tok[s];
    if (p->tok[s] < 0) {
        memset(dz, 0, V * sizeof *dz);
        p->row_loss[s] = 0.0;
        return;
    }
    float z_target = z[target], M = 0.0f, L = 0.0f;
    for (size_t b = 0; b < blocks; b++) {
        m[b] = k->softmax_block(dz + b * BLOCK, z + b * BLOCK, V - b * BLOCK < BLOCK ? V - b * BLOCK : BLOCK, &l[b]);
        M = b == 0 || m[b] > M ? m[b] : M;
    }
    for (size_t b = 0; b < blocks; b++) {
        m[b] = kernel_expf(m[b] - M);
        L = fmaf(m[b], l[b], L);
    }
    for (size_t v = 0; v < V; v++)
        dz[v] = dz[v] * m[v / BLOCK] / L;
    dz[target] = dz[target] - 1.0f;
    k->scale(dz, p->weight, V);
    p->row_loss[s] = (double)M + kernel_log((double)L) - (double)z_target;
}

static size_t pitch_of(size_t V) { return 2 * ((V + BLOCK - 1) / BLOCK + 15) / 16 * 16; }

size_t op_cross_entropy_scratch(size_t S, size_t V, int threads)
{
    return op_scratch_bytes(2 * S) + op_scratch_bytes((size_t)threads * pitch_of(V));
}

void op_cross_entropy(struct op_ctx *cx, double *loss, float *dz, const float *z, const int32_t *tok, float weight, size_t S, size_t V)
{
    size_t mark = op_mark(cx), pitch = pitch_of(V);
    double *row_loss = (double *)(void *)op_take(cx, 2 * S);
    struct entropy p = {cx, row_loss, op_take(cx, (size_t)cx->threads * pitch), dz, z, tok, weight, V, pitch};
    op_parallel(cx, S, 8.0 * (double)S * (double)V, one_row, &p);
    for (size_t s = 0; s < S; s++)
        if (tok[s] >= 0)
            *loss = *loss + row_loss[s];
    op_give(cx, mark);
}
