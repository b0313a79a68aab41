/* ops/mlp.h -- the gated feed-forward layer (SwiGLU), dense and as a mixture of experts.
 *
 *     mlp(x) = W_down [ silu(W_gate x) * (W_up x) ]                                   three linears, kernel silu_mul
 *     moe(x) = sum_{e chosen, ascending} fma(g_e, mlp_e(x), .) from +0;  then + mlp_shared(x)
 *
 * Experts' outputs go to (token, expert) buffers first; nothing is added in order of arrival. (DeepSeek-V3 report, 2.1.2.) */
#ifndef VB_MLP_H
#define VB_MLP_H

#include "ops/op.h"

struct mlp_weights {
    const struct weight_view *gate, *up, *down; /* [i,d], [i,d], [d,i] */
};

size_t op_mlp_scratch(size_t S, size_t d, size_t intermediate);
/* x [S,d] -> y [S,d], which may be x itself */
void op_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S);

size_t op_moe_scratch(size_t S, size_t d, size_t intermediate, size_t shared_intermediate, size_t experts, size_t chosen);
/* x [S,d] -> y [S,d], may be x itself. expert, weight [S,chosen], experts ascending in each row, as op_router writes them.
 * weights_of(arg, e) gives the matrices of expert e; shared is NULL when there is none. */
struct moe_weights {
    size_t experts, chosen, intermediate;
    struct mlp_weights (*weights_of)(const void *arg, size_t e);
    const void *arg;
    const struct mlp_weights *shared;
};
void op_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
            const struct moe_weights *w, size_t S);

#endif
