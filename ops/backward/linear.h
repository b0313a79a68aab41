/* ops/backward/linear.h -- the gradients of a linear layer, y[s,n] = sum_k W[n,k] x[s,k] (ops/linear.h).
 *
 *     dx[s,k] = fma(dy[s,n], W[n,k], dx[s,k])        n ascending
 *     dw[n,k] = fma(dy[s,n], x[s,k], dw[n,k])        s ascending
 *
 *   W [N,K]   dw [N,K]   x, dx [S,K]   dy [S,N]      dx and dw are continued; no two arrays overlap
 *
 * Kernel fma_rows_onto computes dx, and fma_outer dw. W must not be quantized (weight_is_quantized). */
#ifndef VB_BACKWARD_LINEAR_H
#define VB_BACKWARD_LINEAR_H

#include "ops/backward/backward.h"

void op_back_linear_x(const struct op_ctx *cx, float *dx, const float *dy, const struct weight_view *w, size_t S);
void op_back_linear_w(const struct op_ctx *cx, float *dw, const float *dy, const float *x, size_t S, size_t N,
                      size_t K);

#endif
