/* ops/backward/mlp.h -- the gradients of a gated feed-forward layer (ops/mlp.h), and of its part SwiGLU.
 *
 * SwiGLU, a = SiLU(g) u, where den = 1 + exp(-g) and sigma = 1 / den:
 *
 *     du = da * (g / den)
 *     dg = ((da * u) * sigma) * (1 + g * (1 - sigma))
 *
 *   da, g, u, dg, du [S,I]; dg may be g, and du may be u
 *
 * The layer, y[s] = c[s] (W_down a[s]), a[s] = SiLU(W_gate x[s]) * (W_up x[s]); c[s] is the weight of an expert, or 1:
 *
 *     h[s,i]       = fma(dy[s,n], W_down[n,i], h[s,i])          from +0, n ascending
 *     dc[s]        = dot(h[s], a[s])                            rule 1
 *     dW_down[n,i] = fma(dy[s,n], a[s,i] * c[s], dW_down[n,i])  s ascending
 *     da[s,i]      = h[s,i] * c[s]                              then dg and du as above, with g = W_gate x and u = W_up
 *                  x
 *     dW_gate, dW_up                                            as in linear.h, from dg and du
 *     dx           continues with W_gate and dg, as in linear.h, and then with W_up and du
 *
 *   x, dx, dy [S,d]   gate, up [S,i]: g and u; they become dg and du   weight (c), dweight (dc) [S]
 *
 * Each operation is rounded. dx and the gradients of the matrices are continued. If weight is NULL, c is 1, h is not
 * multiplied, and dweight is not used. If the layer is frozen, `d` is NULL. */
#ifndef VB_BACKWARD_MLP_H
#define VB_BACKWARD_MLP_H

#include "ops/backward/backward.h"
#include "ops/mlp.h"

void op_back_swiglu(const struct op_ctx *cx, float *dg, float *du, const float *da, const float *g, const float *u,
                    size_t S, size_t I);

/* the gradients of struct mlp_weights */
struct mlp_gradients {
    float *gate, *up, *down; /* [i,d], [i,d], [d,i] */
};

size_t op_back_mlp_scratch(size_t S, size_t intermediate);
void op_back_mlp(struct op_ctx *cx, float *dx, const struct mlp_gradients *d, float *dweight, const float *dy,
                 const float *x, float *gate, float *up, const float *weight, const struct mlp_weights *w, size_t S);

#endif
