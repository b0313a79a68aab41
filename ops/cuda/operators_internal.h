/* ops/cuda/operators_internal.h -- the operators of a device that have a file of their own. */
#ifndef VB_CUDA_OPERATORS_INTERNAL_H
#define VB_CUDA_OPERATORS_INTERNAL_H

#include "ops/cuda/operators.h"
#include "ops/linear.h"
#include "ops/mlp.h"

void cuda_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);
void cuda_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
void cuda_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S);
void cuda_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
              const struct moe_weights *w, size_t S);
void cuda_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                    size_t S, size_t context);

#endif
