/* ops/mlp.h -- the gated feed-forward layer (SwiGLU), dense or as a mixture of experts (DeepSeek-V3 report, 2.1.2).
 *
 *     mlp(x) = W_down [ silu(W_gate x) * (W_up x) ]
 *     moe(x) = acc + mlp_shared(x)
 *
 * acc starts at +0. For each chosen expert e, in ascending order, acc becomes fma(g_e, mlp_e(x), acc).
 *
 * An MLP consists of three linear layers and kernel silu_mul. Here d is the width of the model, i the intermediate
 * size, S the number of rows, and g_e the weight of expert e. The output of each expert for each token is first stored
 * in a separate buffer. So the order of the sum does not depend on which expert is computed first. */
#ifndef VB_MLP_H
#define VB_MLP_H

#include "ops/op.h"

/* If several processes compute the layer together (ops/ranks.h), each matrix has only this rank's rows, in units of 32
 * rows. */
struct mlp_weights {
    const struct weight_view *gate, *up, *down; /* [i,d], [i,d], [d,i] */
    float *kept_gate, *kept_up; /* [S,i]: op_mlp, and op_moe for the shared expert, leave gate x and up x here, for a
                                   backward pass; NULL: not. The CPU alone does it */
};

size_t op_mlp_scratch(size_t S, size_t d, size_t intermediate);
/* Computes y [S,d] = mlp(x), for x [S,d]. y may be x. */
void op_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S);

size_t op_moe_scratch(size_t S, size_t d, size_t intermediate, size_t shared_intermediate, size_t experts,
                      size_t chosen);
/* op_moe computes y [S,d] = moe(x), for x [S,d]; y may be x. expert [S,chosen] and weight [S,chosen] come from
 * op_router, and the experts of each row are in ascending order. weights_of(arg, e) returns the matrices of expert e.
 * `shared` is NULL if the layer has no shared expert. */
struct moe_weights {
    size_t experts, chosen, intermediate;
    struct mlp_weights (*weights_of)(const void *arg, size_t e);
    const void *arg;
    const struct mlp_weights *shared;
};
void op_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
            const struct moe_weights *w, size_t S);
/* The last step of op_moe, for callers who have the outputs of the experts: out [S,chosen,d], in the order of the
 * weights, and shared [S,d] or NULL. */
void op_moe_sum(const struct op_ctx *cx, float *y, const float *out, const float *weight, const float *shared,
                size_t chosen, size_t S, size_t d);

#endif
