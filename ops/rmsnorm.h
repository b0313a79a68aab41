/* ops/rmsnorm.h -- root-mean-square normalisation of each row (Zhang and Sennrich 2019; DeepSeek-V2 report, 2.1).
 *
 *     y[s,d] = (x[s,d] * r[s]) * w[d],     r[s] = 1 / sqrt(ss / D + eps),     ss = dot(x[s], x[s])
 *
 *   x [S,D], rows ldx floats apart   w [D]   y [S,D], rows ldy floats apart, may be x            (all f32)
 *
 * S is the number of rows, and D the length of a row. Kernel dot computes ss. The division by D, + eps, the root, 1 / and the
 * two products are each rounded to f32 once, in this order. The bits of row s depend on row s alone. */
#ifndef VB_RMSNORM_H
#define VB_RMSNORM_H

#include "ops/op.h"

void op_rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                size_t D, float eps);

#endif
