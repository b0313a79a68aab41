/* ops/linear.h -- a linear layer.
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]            kernel matmul (rule 1 of simd/kernels.h)
 *
 *   W [N,K] as stored   x [S,K]   y [S,N], not x                                        (x, y f32)
 *
 * A packed x is [S, packed_length(K)]; several layers that read the same x share it. */
#ifndef VB_LINEAR_H
#define VB_LINEAR_H

#include "op.h"

size_t op_linear_scratch(size_t S, size_t K);
void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);

/* The two halves of it. ldx: floats from one row of x to the next. */
void op_pack(const struct op_ctx *cx, float *packed, const float *x, size_t ldx, size_t S, size_t K);
void op_linear_packed(const struct op_ctx *cx, float *y, const float *packed, const struct weight_view *w, size_t S);

#endif
