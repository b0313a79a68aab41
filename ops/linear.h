/* ops/linear.h -- a linear layer.
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]            kernel matmul (rule 1 of simd/kernels.h)
 *
 *   W [N,K] as stored   x [S,K]   y [S,N], not x                                        (x, y f32)
 *
 * x is packed once for all the layers that read it: [S, packed_length(K)] of f32, or in precision bf16 (op_ctx.bf16; every W
 * is BF16 then) of bf16, rounded, by kernels pack and narrow. op_linear_exact never rounds: the router's gate.
 *
 * With op_ctx.onednn the sums are oneDNN's, in its own order, one task's rows of W to a call; x is then packed in natural
 * order, and rounded with op_ctx.bf16. op_linear_exact and op_multiply stay the contract's. */
#ifndef VB_LINEAR_H
#define VB_LINEAR_H

#include "op.h"

size_t op_linear_scratch(size_t S, size_t K);
void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
void op_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);

/* Several layers of one x, in one parallel region. */
struct linear {
    float *y;
    const struct weight_view *w;
};
#define OP_LINEAR_MOST 4 /* layers */
void op_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);

/* The two halves of it. Rows of a packed x, whatever they hold, begin at op_packed_row(packed, s, K). `narrow` kernels
 * hold half of it. ldx: floats from one row of x to the next. */
static inline void *op_packed_row(const struct op_ctx *cx, void *packed, size_t s, size_t K)
{
    return (char *)packed + s * packed_length(K) * (cx->bf16 ? sizeof(uint16_t) : sizeof(float));
}
void op_pack(const struct op_ctx *cx, void *packed, const float *x, size_t ldx, size_t S, size_t K);
/* Numbers [k0, k0 + n) of one row; k0 is a multiple of 32, and so is n but in the row's last part. */
void op_pack_part(const struct op_ctx *cx, void *packed_row, const float *x, size_t k0, size_t n);
void op_linear_packed(const struct op_ctx *cx, float *y, const void *packed, const struct weight_view *w, size_t S);

/* Rows [n0, n1) of W times packed rows: what a task calls. ldp: numbers from one packed row to the next. op_multiply_packed
 * is for rows that op_pack packed, on thread `thread`: the kernels', or oneDNN's. */
void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                        size_t n1, const void *packed, size_t ldp, size_t S);
void op_multiply(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                 const void *packed, size_t ldp, size_t S);

/* After all rows of W have gone through op_multiply: what precision bf16 has learnt of their magnitudes holds. */
void op_all_multiplied(const struct op_ctx *cx, const struct weight_view *w);

#endif
