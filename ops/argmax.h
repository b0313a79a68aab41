/* ops/argmax.h -- the token with the largest logit.
 *
 *     best[s] = the lowest v with z[s,v] = max over u < V of z[s,u], or -1 if a number of row s is not finite
 *
 * z is [S,V], best [S]. With op_ctx.device, the device reads and writes the twins of both, and needs scratch memory. */
#ifndef VB_ARGMAX_H
#define VB_ARGMAX_H

#include "ops/op.h"

size_t op_argmax_scratch(size_t S, size_t V);
void op_argmax(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V);

#endif
