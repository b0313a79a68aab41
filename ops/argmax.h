/* ops/argmax.h -- the token with the largest logit.
 *
 *     best[s] = the lowest v with z[s,v] = max over u < V of z[s,u], or -1 if a number of row s is not finite
 *
 * z is [S,V], best [S]. */
#ifndef VB_ARGMAX_H
#define VB_ARGMAX_H

#include "ops/op.h"

void op_argmax(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V);

#endif
