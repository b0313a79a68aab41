#include "ops/attention_blocks.h"

#include <math.h>
#include <string.h>

void attention_join(const struct kernels *k, float *o, float *m, const float *l, const float *sums, size_t blocks,
                    size_t n)
{
    float M = m[0], L = 0.0f;
    for (size_t b = 1; b < blocks; b++)
        M = m[b] > M ? m[b] : M;
    for (size_t b = 0; b < blocks; b++)
        m[b] = m[b] - M;
    k->exp(m, m, blocks);
    memset(o, 0, n * sizeof *o);
    for (size_t b = 0; b < blocks; b++) {
        L = fmaf(m[b], l[b], L);
        k->axpy(o, m[b], sums + b * n, n);
    }
    k->divide(o, L, n);
}
