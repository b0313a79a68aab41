/* ops/backward/router.h -- the gradient of the router's logits (ops/router.h). The choice of the experts is constant,
 * and the bias has no gradient: DeepSeek-V3 changes it by a rule of its own (op_balance_bias).
 *
 * s are the scores, as in the forward pass; j counts the chosen experts, in ascending order of their indices, and s_j
 * is the score of the j-th one. f is routed_scaling_factor where the forward pass multiplies by it, else 1. m is the
 * divisor of norm_topk_prob.
 *
 *     ds_j = f * dc_j                                     without norm_topk_prob
 *     mean = fma(dc_j, s_j / m, mean)                     with norm_topk_prob: from +0, j ascending. +0 if m is a
 *     constant (r->normaliser) ds_j = (f * (dc_j - mean)) / m
 *
 *     dx[e] = (ds_j * s[e]) * (1 - s[e])                  sigmoid, for chosen experts; +0 for the others
 *     t     = fma(s_j, ds_j, t)                           softmax: from +0, j ascending
 *     dx[e] = s[e] * (ds_j - t)                           ds_j is +0 for experts that were not chosen
 *
 *   dweight (dc) [S,chosen], from op_back_moe   logits, dlogits (dx) [S,E]; dlogits may be logits   expert [S,chosen]
 *
 * Each operation is rounded. r->bf16 must be 0. */
#ifndef VB_BACKWARD_ROUTER_H
#define VB_BACKWARD_ROUTER_H

#include "ops/backward/backward.h"
#include "ops/router.h"

size_t op_back_router_scratch(const struct router *r);
void op_back_router(struct op_ctx *cx, float *dlogits, const float *dweight, const float *logits, const int32_t *expert,
                    const struct router *r, size_t S);

/* Balances the load of the experts after a step, without an auxiliary loss (DeepSeek-V3 report, 2.1.2). load [E] is the
 * number of tokens of the step that chose each expert. If an expert has less than the mean, its bias becomes bias +
 * speed; if more, bias - speed. */
void op_balance_bias(float *bias, const int64_t *load, size_t E, float speed);

#endif
