/* ops/attention_device.h -- attention over the latent cache on a device (ops/cuda/device.h): op_attention with
 * op_ctx.device. */
#ifndef VB_ATTENTION_DEVICE_H
#define VB_ATTENTION_DEVICE_H

#include "ops/attention.h"

/* Returns the bytes of scratch that device_attention needs for up to S queries, if none attends to more than `context`
 * tokens. */
size_t device_attention_scratch(const struct attention *a, size_t S, size_t context);

/* Does what op_attention does. a->device_rows, a->layer and a->longest say what the queries attend to. `context` is at
 * least a->longest. The arguments of the kernels depend on shapes, on `longest` and on addresses alone. */
void device_attention(struct op_ctx *cx, float *y, const float *q, const struct attention *a, size_t S);

#endif
