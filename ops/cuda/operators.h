/* ops/cuda/operators.h -- the operators of a device (ops/cuda/device.h).
 *
 * They read and write the twins of their arrays, on op_ctx.device. Their scratch memory has a twin too. They have the
 * bits of the CPU's operators. Which kernels they start, and with which arguments, depends on sizes and addresses
 * alone: not on what the arrays hold. cuBLAS is the exception (mlp.c).
 *
 * Before the pass, its caller makes sure that nothing is asked for which they cannot compute: probes, other ranks,
 * oneDNN, experts or tokens that are forced, attention in the expanded form; and routers for which cuda_can_route
 * returns 0. */
#ifndef VB_CUDA_OPERATORS_H
#define VB_CUDA_OPERATORS_H

#include "ops/attention.h"
#include "ops/cuda/device.h"
#include "ops/operators.h"
#include "ops/router.h"

/* attention: a->places, a->layer and a->longest say what the queries attend to; `seen` and `context` are not used.
 * cache_rows: the twin of `rows` is up to date.
 * moe: the matrices of all experts have the same shapes and types. weights_of(arg, e) points into an array of structs,
 * one for each expert. This array has a twin, in whose matrices all addresses are the device's. */
extern const struct operators operators_cuda;

/* From now on, the operators of this context compute on device d, or on the CPU if d is NULL. */
void operators_place(struct op_ctx *cx, struct device *d);

/* Returns whether `router` can choose the experts, if none are forced. */
int cuda_can_route(const struct router *r);

/* The bytes of scratch memory that operators need in addition to what they need on the CPU: `attention` for up to S
 * queries, if none attends to more than `context` tokens, and `argmax`. */
size_t cuda_attention_scratch(const struct attention *a, size_t S, size_t context);
size_t cuda_argmax_scratch(size_t S, size_t V);

#endif
