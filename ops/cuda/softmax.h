/* ops/cuda/softmax.h -- one block of a softmax (rule 4c of docs/ARITHMETIC.md): sixteen lanes compute it. */
#ifndef VB_CUDA_SOFTMAX_H
#define VB_CUDA_SOFTMAX_H

#include "ops/cuda/dot.h"
#include "ops/cuda/expf.h"

/* Does what kernel softmax_block does: sets p[j] = exp(s[j] - m) and *sum, and returns m. All lanes of a warp call this
 * together; each half may have other scores. s and p are `step` numbers apart. p may be s. n may be 0; then nothing is
 * written, and the results have no meaning.
 *
 * A comparison with NaN is false. So every lane starts with s[0], and m is NaN only if s[0] is NaN. */
DEVICE float softmax_block(float *p, size_t p_step, const float *s, size_t s_step, size_t n, float *sum)
{
    float m = n ? s[0] : 0.0f, a = 0.0f;
    for (size_t j = lane_of_sum(); j < n; j += 16)
        m = s[j * s_step] > m ? s[j * s_step] : m;
    for (int h = 8; h; h /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, m, h);
        m = other > m ? other : m;
    }
    m = m + 0.0f; /* after the exchanges, all lanes have read s[0]: one of them may write p[0] */
    for (size_t j = lane_of_sum(); j < n; j += 16) {
        float e = device_expf(s[j * s_step] - m);
        p[j * p_step] = e;
        a = a + e;
    }
    *sum = fold(a);
    return m;
}

#endif
