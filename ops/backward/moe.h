/* ops/backward/moe.h -- the gradients of the sum of the chosen experts, y[s] = sum_j c[s,j] expert_{e[s,j]}(x[s])
 * (ops/mlp.h, op_moe without the shared expert, whose gradients op_back_mlp computes).
 *
 * The choice of the experts is constant. Each expert, in ascending order, is computed as mlp.h defines: with the rows s
 * that chose it, s ascending, c as their weights, g and u by op_linears, and a dx_e of its own that starts at +0. Then
 *
 *     dx[s,k] = dx[s,k] + dx_e[s,k]                  experts ascending
 *
 *   x, dx, dy [S,d]   expert, weight (c), dweight (dc) [S,chosen], from op_router
 *
 * dx and the gradients of the matrices are continued. dweight is written; op_back_router continues from there. */
#ifndef VB_BACKWARD_MOE_H
#define VB_BACKWARD_MOE_H

#include "ops/backward/mlp.h"

/* of(arg, e) returns the gradients of expert e, or NULL if it is frozen. */
struct moe_gradients {
    const struct mlp_gradients *(*of)(const void *arg, size_t e);
    const void *arg;
};

size_t op_back_moe_scratch(size_t S, size_t d, size_t intermediate);
/* w->shared is not used. */
void op_back_moe(struct op_ctx *cx, float *dx, const struct moe_gradients *gradients, float *dweight, const float *dy,
                 const float *x, const int32_t *expert, const float *weight, const struct moe_weights *w, size_t S);

#endif
