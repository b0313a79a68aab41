/* ops/linear.h -- a linear layer: a matrix times each row of x.
 *
 *     y[s,n] = sum_k W[n,k] x[s,k]
 *
 * Kernel matmul computes the sums (rule 1 of simd/kernels.h). W [N,K] is used as stored. x [S,K] and y [S,N] are f32,
 * and do not overlap. S is the number of rows in the pass, K the length of a row of x, and N the length of a row of y.
 *
 * x is converted once for all layers that read it, into each form that one of them needs (struct op_packed). There are
 * four forms. The default form is f32 in packed order (kernel pack). In precision bf16 (ops/arithmetic.h), every W that
 * is not quantized is BF16, and x is rounded to BF16 (kernels pack and narrow, or op_round_x). For a quantized W, x is
 * quantized in groups of 32 numbers (kernels pack and quantize, rule 2). op_linear_exact never rounds x to BF16; the
 * router's gate needs this.
 *
 * With oneDNN (ops/arithmetic.h), each task calls oneDNN once for its rows of W. x then stays in natural order, and is
 * rounded to BF16 in precision bf16. op_linear_exact and op_multiply never use oneDNN, so their results always have the
 * bits that docs/ARITHMETIC.md defines. */
#ifndef VB_LINEAR_H
#define VB_LINEAR_H

#include "ops/arithmetic.h"
#include "ops/op.h"

size_t op_linear_scratch(size_t S, size_t K);
void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);
void op_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S);

/* Several layers that read the same x. op_linears computes them in one parallel region. */
struct linear {
    float *y;
    const struct weight_view *w;
    size_t ldy; /* floats from one row of y to the next; 0: as many as w has rows */
};
#define OP_LINEAR_MOST 4 /* largest number of layers in one call of op_linears */
void op_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S);

/* Computes y [S,N] if W is divided among several processes (ops/ranks.h): w has this rank's rows of W [N,K], in units
 * of 32 rows. If unit is 0, each rank has all of x. Otherwise each rank has its own columns of x, in units of `unit`
 * columns, a multiple of 32; these travel in the form to which w needs them rounded, and the others are not written to
 * x. With op_ranks.taps_all, each rank has all of x in any case. If there is only one process, this is op_linear. */
void op_linear_divided(struct op_ctx *cx, float *y, size_t N, const float *x, size_t unit, const struct weight_view *w,
                       size_t S);
/* The same if the rows of W are divided in another way: rank r has rows [cuts[r], cuts[r + 1]). Each rank has all of
 * x. */
void op_linear_cut(struct op_ctx *cx, float *y, const size_t *cuts, const float *x, const struct weight_view *w,
                   size_t S);

/* --- the two steps of a linear layer: packing x, and multiplying --- */

/* OP_ROUNDED: f32 in packed order, rounded to BF16. The kernels of most instruction sets would widen BF16 to f32 again
 * in every tile, so they get the rounded numbers as f32. */
enum op_form { OP_F32, OP_BF16, OP_ROUNDED, OP_GROUPS, OP_FORMS };
static inline enum op_form op_form_by(const struct op_ctx *cx, const struct arithmetic *how,
                                      const struct weight_view *w)
{
    if (weight_is_quantized(w->type))
        return OP_GROUPS;
    return !how->bf16 ? OP_F32 : how->onednn || cx->k->learns_magnitudes ? OP_BF16 : OP_ROUNDED;
}
static inline enum op_form op_form(const struct op_ctx *cx, const struct weight_view *w)
{
    return op_form_by(cx, cx->arithmetic, w);
}

/* Rows of x, each of length K, in one or more forms. If OP_GROUPS is one of them, K is a multiple of 32. */
struct op_packed {
    size_t K;
    const struct arithmetic *how; /* how they are multiplied; op_take_packed takes it from op_ctx.arithmetic */
    char *rows[OP_FORMS]; /* indexed by enum op_form; NULL if the rows do not exist in that form */
};
size_t op_packed_bytes(int form, size_t K); /* bytes of one row */
static inline void *op_packed_row(const struct op_packed *p, int form, size_t s)
{
    return p->rows[form] + s * op_packed_bytes(form, p->K);
}
/* op_take_packed takes scratch memory for S rows in each form that is needed. For every such form f (enum op_form), the
 * caller sets bit 1 << f of `forms`. op_packed_scratch returns the largest number of bytes that op_take_packed can take
 * for the layers of one op_ctx. */
size_t op_packed_scratch(size_t S, size_t K);
struct op_packed op_take_packed(struct op_ctx *cx, unsigned forms, size_t S, size_t K);
/* Returns the same rows without the first s. */
struct op_packed op_packed_from(const struct op_packed *p, size_t s);

/* Packs x [S, K], whose rows are ldx floats apart, into every form that p has. */
void op_pack(const struct op_ctx *cx, const struct op_packed *p, const float *x, size_t ldx, size_t S);
/* Packs numbers [k0, k0 + n) of row s; x points to number k0. k0 is a multiple of 32. n is a multiple of 32 too, unless
 * the numbers are the last ones of the row. */
void op_pack_part(const struct op_ctx *cx, const struct op_packed *p, size_t s, const float *x, size_t k0, size_t n);
/* Each rank has its own columns of packed rows, in units of `unit` numbers, a multiple of 32. On return it has all of
 * them. p has `count` arrays of packed rows; array i has rows[i] rows. */
void op_gather_packed(const struct op_ctx *cx, const struct op_packed *p, const size_t *rows, size_t count,
                      size_t unit);
void op_linear_packed(const struct op_ctx *cx, float *y, const struct op_packed *x, const struct weight_view *w,
                      size_t S);

/* Like op_row_tasks and op_row_range. With oneDNN, the ranges of rows do not depend on the number of threads, because
 * they may influence the bits of oneDNN's results. */
size_t op_linear_tasks(const struct op_ctx *cx, const struct arithmetic *how, size_t rows, size_t after);
void op_linear_range(const struct op_ctx *cx, const struct arithmetic *how, size_t rows, size_t after, size_t task,
                     size_t *begin, size_t *end);

/* Multiplies rows [n0, n1) of W by S packed rows, with the kernels or with oneDNN. `thread` is the number of the
 * calling thread. */
void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w,
                        size_t n0, size_t n1, const struct op_packed *x, size_t S);
/* Like op_multiply_packed, but never with oneDNN. The rows at `packed` have the form that W needs, and are ldp numbers
 * apart. */
void op_multiply(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                 size_t n1, const void *packed, size_t ldp, size_t S);

/* Call this after all rows of W have gone through op_multiply. In precision bf16, the kernels look for tiny weights. If
 * the kernels have found none in W, this function records this fact (enum magnitudes in simd/kernels.h). */
void op_all_multiplied(const struct op_ctx *cx, const struct arithmetic *how, const struct weight_view *w);

#endif
