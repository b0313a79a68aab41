/* ops/backward/rmsnorm.h -- the gradients of RMSNorm, y[s,d] = (x[s,d] * r[s]) * w[d] (ops/rmsnorm.h).
 *
 *     g[d]    = dy[s,d] * w[d]
 *     t       = (dot(g, x[s]) * r[s]) / D
 *     dx[s,d] = fma(r[s], g[d] - (x[s,d] * r[s]) * t, dx[s,d])        because dr/dx[s,d] = -r^3 x[s,d] / D
 *     dw[d]   = fma(dy[s,d], x[s,d] * r[s], dw[d])                    s ascending
 *
 *   x, dx [S,D], rows ldx floats apart   dy [S,D], rows ldy floats apart   w, dw [D]      dx and dw are continued; no
 *                                        two arrays overlap
 *
 * dot follows rule 1, and r[s] has the bits of the forward pass. Where no fma is written, each operation is rounded.
 * If dw is NULL, it is left out. */
#ifndef VB_BACKWARD_RMSNORM_H
#define VB_BACKWARD_RMSNORM_H

#include "ops/backward/backward.h"

size_t op_back_rmsnorm_scratch(size_t S, size_t D, int threads);
void op_back_rmsnorm(struct op_ctx *cx, float *dx, float *dw, const float *dy, size_t ldy, const float *x, size_t ldx,
                     const float *w, size_t S, size_t D, float eps);

#endif
