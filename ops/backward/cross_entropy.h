/* ops/backward/cross_entropy.h -- the loss of a language model, and the gradient of its logits.
 *
 *     L       = weight sum_s (log(sum_v exp(z[s,v])) - z[s,tok[s]])
 *     p[s]    = softmax(z[s])
 *     dz[s,v] = (p[s,v] - [v = tok[s]]) * weight
 *
 *   z, dz [S,V]; dz may be z   tok [S]: the next tokens; a row whose token is negative has no loss, and its dz is +0
 *
 * weight is 1 / N, where N is the number of rows with a loss in the whole step, or a loss of an MTP depth's factor / N.
 * The caller computes it in double and rounds it once.
 *
 * The softmax uses m_b, p_j, l_b, e_b, M and L of rule 4c, in blocks of 256 numbers, and p[v] = (p_j * e_b) / L, as the
 * router does. Then the difference (for v = tok[s] only) and the product are each rounded. The loss of a row is
 * ((double)M + log((double)L)) - (double)z[s,tok[s]], with kernel_log. op_cross_entropy adds the losses to *loss
 * without the weight, s ascending: *loss is continued. */
#ifndef VB_BACKWARD_CROSS_ENTROPY_H
#define VB_BACKWARD_CROSS_ENTROPY_H

#include "ops/backward/backward.h"

size_t op_cross_entropy_scratch(size_t S, size_t V, int threads);
void op_cross_entropy(struct op_ctx *cx, double *loss, float *dz, const float *z, const int32_t *tok, float weight,
                      size_t S, size_t V);

#endif
