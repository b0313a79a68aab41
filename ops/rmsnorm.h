/* ops/rmsnorm.h -- root-mean-square normalization of each row.
 *
 *     y[s,d] = (x[s,d] * r[s]) * w[d],     r[s] = 1 / sqrt(ss / D + eps),     ss = dot(x[s], x[s])
 *
 *   x [S,D], rows ldx floats apart   w [D]   y [S,D], rows ldy apart, may be x itself            (all f32)
 *
 * Order: ss is kernel dot. Division, +eps, sqrt, 1/ and the two products are one f32 rounding each, left to right.
 * The bits of row s depend on row s alone. (Zhang and Sennrich 2019; DeepSeek-V2 report, 2.1.) */
#ifndef VB_RMSNORM_H
#define VB_RMSNORM_H

#include "ops/op.h"

void op_rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                size_t D, float eps);

#endif
