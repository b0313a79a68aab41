/* ops/linear.h -- a linear layer: a matrix times each row of x.
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]
 *
 * Kernel matmul computes the sums (rule 1 of simd/kernels.h). W [N,K] is used as stored. x [S,K] and y [S,N] are f32,
 * and do not overlap. S is the number of rows in the pass, K the length of a row of x, and N the length of a row of y.
 *
 * x is converted once for all layers that read it, to each form that one of them needs (struct op_packed). There are
 * three forms. By default it is f32 in packed order (kernel pack). In precision bf16 (op_ctx.bf16), where every W that
 * is not quantised is BF16, it is x rounded to BF16 (kernels pack and narrow). For a quantised W it is groups of 32
 * (kernels pack and quantise, rule 2). op_linear_exact never rounds x to BF16; the router's gate needs this.
 *
 * With op_ctx.onednn, oneDNN computes the sums, in an order of its own. Each task makes one call for its rows of W. x
 * then stays in natural order, and is rounded to BF16 if op_ctx.bf16 is set. op_linear_exact and op_multiply never use
 * oneDNN, and always have the bits of docs/ARITHMETIC.md. */
#ifndef VB_LINEAR_H
#define VB_LINEAR_H

#include "ops/op.h"

size_t op_linear_scratch(size_t S, size_t K);
void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
void op_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);

/* Several layers that read the same x. op_linears computes them in one parallel region. */
struct linear {
    float *y;
    const struct weight_view *w;
};
#define OP_LINEAR_MOST 4 /* the most layers in one call of op_linears */
void op_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);

/* --- the two steps of a linear layer: packing x, and multiplying --- */

enum op_form { OP_F32, OP_BF16, OP_GROUPS, OP_FORMS };
static inline enum op_form op_form(const struct op_ctx *cx, const struct weight_view *w)
{
    return weight_is_quantised(w->type) ? OP_GROUPS : cx->bf16 ? OP_BF16 : OP_F32;
}

/* Rows of x, each of length K, in one or more forms. If OP_GROUPS is one of them, K is a multiple of 32. */
struct op_packed {
    size_t K;
    char *rows[OP_FORMS]; /* indexed by enum op_form; NULL if the rows do not exist in that form */
};
size_t op_packed_bytes(int form, size_t K); /* bytes of one row */
static inline void *op_packed_row(const struct op_packed *p, int form, size_t s)
{
    return p->rows[form] + s * op_packed_bytes(form, p->K);
}
/* op_take_packed takes scratch for S rows in several forms: bit 1 << op_form() of `forms` is set for each form that is
 * needed. It takes at most op_packed_scratch bytes, whichever forms the layers of one op_ctx need. */
size_t op_packed_scratch(size_t S, size_t K);
struct op_packed op_take_packed(struct op_ctx *cx, unsigned forms, size_t S, size_t K);
/* Returns the same rows without the first s. */
struct op_packed op_packed_from(const struct op_packed *p, size_t s);

/* Packs x [S, K], whose rows are ldx floats apart, into every form that p has. */
void op_pack(const struct op_ctx *cx, const struct op_packed *p, const float *x, size_t ldx, size_t S);
/* Packs numbers [k0, k0 + n) of row s; x points to number k0. k0 is a multiple of 32. So is n, except at the row's end. */
void op_pack_part(const struct op_ctx *cx, const struct op_packed *p, size_t s, const float *x, size_t k0, size_t n);
void op_linear_packed(const struct op_ctx *cx, float *y, const struct op_packed *x, const struct weight_view *w, size_t S);

/* Multiplies rows [n0, n1) of W by S packed rows, with the kernels or with oneDNN. A task calls it, on thread `thread`. */
void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                        size_t n1, const struct op_packed *x, size_t S);
/* As op_multiply_packed, always with the kernels. `packed` points to rows in the form that W needs, ldp numbers apart. */
void op_multiply(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                 const void *packed, size_t ldp, size_t S);

/* Call this after all rows of W have gone through op_multiply. In precision bf16, if no kernel has found a tiny weight,
 * it records that W has none (enum magnitudes in simd/kernels.h). */
void op_all_multiplied(const struct op_ctx *cx, const struct weight_view *w);

#endif
