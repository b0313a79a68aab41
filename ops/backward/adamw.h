/* ops/backward/adamw.h -- the step of AdamW (Loshchilov and Hutter 2019), with clipping by the global norm. Each number
 * of a weight is computed by itself, so its bits depend on no cut of the work.
 *
 *     g' = g * clip
 *     m  = fma(beta1, m, (1 - beta1) * g')
 *     v  = fma(beta2, v, ((1 - beta2) * g') * g')
 *     w  = w * decay - step * (m / (sqrt(v) / root + eps))
 *
 *   decay = 1 - lr * weight_decay     step = lr / (1 - beta1^t)     root = sqrt(1 - beta2^t)     t = 1 for the first
 *                                     step
 *
 *   w, m, v, g [n]; m and v are +0 before the first step
 *
 * These factors, beta1, 1 - beta1, beta2, 1 - beta2 and eps are computed in double (kernel_pow) and rounded once to
 * f32. Each operation is rounded. The formula is that of PyTorch's AdamW. Tensors that shall not decay have a step of
 * their own, with weight_decay 0.
 *
 * The global norm is computed in double, from tensors in an order that the caller keeps. The numbers of a tensor are
 * cut into blocks of 4096. In each block, sixteen sums start at +0, and the square of number i is added to sum i mod
 * 16, i ascending; a square is exact. The fold of rule 1 adds up the sixteen. The sums of the blocks are added to
 * *squares, ascending; *squares is continued. */
#ifndef VB_BACKWARD_ADAMW_H
#define VB_BACKWARD_ADAMW_H

#include "ops/backward/backward.h"

size_t op_squares_scratch(size_t n);
void op_squares(struct op_ctx *cx, double *squares, const float *g, size_t n);

/* Returns clip: max_norm / (sqrt(squares) + 1e-6), computed in double and rounded once, if that is less than 1, else 1.
 * The caller has seen that `squares` is finite. */
float op_clip(double squares, double max_norm);

struct adamw {
    double lr, beta1, beta2, eps, weight_decay;
};
struct adamw_step {
    float beta1, rest1, beta2, rest2, eps, decay, step, root; /* rest1: 1 - beta1 */
};
struct adamw_step op_adamw_step(const struct adamw *a, int64_t t);
void op_adamw(const struct op_ctx *cx, float *w, float *m, float *v, const float *g, const struct adamw_step *a,
              float clip, size_t n);

#endif
