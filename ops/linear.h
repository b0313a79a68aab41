/* ops/linear.h -- a linear layer.
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]            kernel matmul (rule 1 of simd/kernels.h)
 *
 *   W [N,K] as stored   x [S,K]   y [S,N], not x                                        (x, y f32)
 *
 * x is packed once for all the layers that read it, in each form that one of them wants (struct op_packed): f32 by kernel pack;
 * in precision bf16 (op_ctx.bf16; every W that is not quantised is BF16 then) bf16, rounded, by pack and narrow; for
 * a quantised W groups of 32, by pack and quantise (rule 2). op_linear_exact never rounds: the router's gate.
 *
 * With op_ctx.onednn the sums are oneDNN's, in its own order, one task's rows of W to a call; x is then packed in natural
 * order, and rounded with op_ctx.bf16. op_linear_exact and op_multiply stay the contract's. */
#ifndef VB_LINEAR_H
#define VB_LINEAR_H

#include "ops/op.h"

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

/* --- the two halves of it --- */

enum op_form { OP_F32, OP_BF16, OP_GROUPS, OP_FORMS };
static inline enum op_form op_form(const struct op_ctx *cx, const struct weight_view *w)
{
    return weight_is_quantised(w->type) ? OP_GROUPS : cx->bf16 ? OP_BF16 : OP_F32;
}

/* Rows of x, [.., K], in some forms; K is a multiple of 32 where one is OP_GROUPS. */
struct op_packed {
    size_t K;
    char *rows[OP_FORMS]; /* by enum op_form; NULL: not in this one */
};
size_t op_packed_bytes(int form, size_t K); /* of a row */
static inline void *op_packed_row(const struct op_packed *p, int form, size_t s)
{
    return p->rows[form] + s * op_packed_bytes(form, p->K);
}
/* Memory for S rows in the forms whose bits are set in `forms`: 1 << op_form(). It is no more than op_packed_scratch,
 * whatever the forms that one op_ctx has. */
size_t op_packed_scratch(size_t S, size_t K);
struct op_packed op_take_packed(struct op_ctx *cx, unsigned forms, size_t S, size_t K);
/* The same rows from row s on. */
struct op_packed op_packed_from(const struct op_packed *p, size_t s);

/* x [S, K], ldx floats from one row to the next, in all forms that p has. */
void op_pack(const struct op_ctx *cx, const struct op_packed *p, const float *x, size_t ldx, size_t S);
/* Numbers [k0, k0 + n) of row s; k0 is a multiple of 32, and so is n but in the row's last part. */
void op_pack_part(const struct op_ctx *cx, const struct op_packed *p, size_t s, const float *x, size_t k0, size_t n);
void op_linear_packed(const struct op_ctx *cx, float *y, const struct op_packed *x, const struct weight_view *w, size_t S);

/* Rows [n0, n1) of W times packed rows: what a task calls, on thread `thread`: the kernels', or oneDNN's. */
void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                        size_t n1, const struct op_packed *x, size_t S);
/* The same by the kernels, of rows in the form that W wants. ldp: numbers from one packed row to the next. */
void op_multiply(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                 const void *packed, size_t ldp, size_t S);

/* After all rows of W have gone through op_multiply: what precision bf16 has learnt of their magnitudes holds. */
void op_all_multiplied(const struct op_ctx *cx, const struct weight_view *w);

#endif
