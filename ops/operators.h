/* ops/operators.h -- the operators of a pass as a table: one for the CPU, and one for each kind of device.
 *
 * A member has the name of its function without `op_`. The header of this function says what it computes. Every member
 * of every table is set, and has the same bits in every table. A table of a device has limits (ops/cuda/operators.h):
 * whoever begins a pass asks first, and lets the CPU's operators compute what the device's cannot.
 *
 * Steps of a pass call cx->op->NAME(cx, ...). An operator that consists of other operators calls those of its own table
 * directly. */
#ifndef VB_OPERATORS_H
#define VB_OPERATORS_H

#include "ops/op.h"

struct attention;
struct cache_rows;
struct linear;
struct mlp_weights;
struct moe_weights;
struct router;
struct row_place;
struct timeline;

struct operators {
    const char *name;
    void (*embed)(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, const int32_t *tok,
                  size_t S);
    void (*rmsnorm)(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                    size_t D, float eps);
    void (*linears)(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);
    void (*linear)(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
    void (*linear_exact)(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
    void (*linear_divided)(struct op_ctx *cx, float *y, size_t N, const float *x, size_t unit,
                           const struct weight_view *w, size_t S);
    void (*add)(const struct op_ctx *cx, float *y, const float *x, size_t n);
    void (*round)(const struct op_ctx *cx, float *y, const float *x, size_t n);
    void (*cache_rows)(const struct op_ctx *cx, float *q, float *kv_a, const float *cos_sin,
                       const struct row_place *rows, const struct cache_rows *a, size_t S);
    void (*attention)(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen,
                      const struct attention *a, size_t S, size_t context);
    void (*mlp)(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S);
    void (*router)(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r,
                   size_t S);
    void (*moe)(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
                const struct moe_weights *w, size_t S);
    void (*first_not_finite)(const struct op_ctx *cx, int32_t *first, const float *x, int32_t layer, size_t S,
                             size_t D);
    void (*argmax)(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V);
};

extern const struct operators operators_cpu;

#endif
