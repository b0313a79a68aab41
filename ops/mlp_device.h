/* ops/mlp_device.h -- op_mlp, op_moe and op_moe_sum for op_ctx.device. */
#ifndef VB_MLP_DEVICE_H
#define VB_MLP_DEVICE_H

#include "ops/mlp.h"

void device_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S);
/* The matrices of all experts have the same shapes and types. weights_of(arg, e) points into an array of structs, one
 * for each expert. This array has a twin, in whose matrices all addresses are the device's. */
void device_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
                const struct moe_weights *w, size_t S);
void device_moe_sum(const struct op_ctx *cx, float *y, const float *out, const float *weight, const float *shared,
                    size_t chosen, size_t S, size_t d);

#endif
