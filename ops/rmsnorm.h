/* ops/rmsnorm.h -- root-mean-square normalisation of each row (Zhang and Sennrich 2019; DeepSeek-V2 report, 2.1).
 *
 *     y[s,d] = (x[s,d] * r[s]) * w[d],     r[s] = 1 / sqrt(ss / D + eps),     ss = dot(x[s], x[s])
 *
 * S is the number of rows, and D the length of a row. All numbers are f32. The rows of x [S,D] are ldx floats apart,
 * and the rows of y [S,D] are ldy floats apart. w is [D]. y may be x.
 *
 * Kernel dot computes ss. Each further step is rounded to f32 once, in this order: ss / D, + eps, the square root, the
 * reciprocal, and the two products. The bits of row s depend on row s alone. */
#ifndef VB_RMSNORM_H
#define VB_RMSNORM_H

#include "ops/op.h"

void op_rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                size_t D, float eps);

#endif
