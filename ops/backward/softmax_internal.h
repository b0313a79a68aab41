/* ops/backward/softmax_internal.h -- the softmax of a row of logits, for losses. */
#ifndef VB_BACKWARD_SOFTMAX_INTERNAL_H
#define VB_BACKWARD_SOFTMAX_INTERNAL_H

#include "ops/backward/backward.h"

#define SOFTMAX_BLOCK 256
/* Floats that loss_softmax needs in `factors`; rounded up, so that the parts of different threads do not share cache
 * lines. */
static inline size_t softmax_factors(size_t V) { return 2 * ((V + SOFTMAX_BLOCK - 1) / SOFTMAX_BLOCK + 15) / 16 * 16; }

/* p [V] = softmax(z [V]); p may be z. Returns log(sum exp(z)). m_b, p_j, l_b, e_b, M and L are those of rule 4c, in
 * blocks of 256 numbers: p[v] = (p_j * e_b) / L, as in the router, and the sum is (double)M + log((double)L), with
 * kernel_log. */
double loss_softmax(const struct kernels *k, float *p, float *factors, const float *z, size_t V);

#endif
