/* ops/backward/smooth_l1.h -- the distance of hidden states from the target's, smooth_L1 of Fast R-CNN (Girshick 2015,
 * eq. 3), and its gradient.
 *
 *     e[s,d]   = x[s,d] - target[s,d]
 *     l(e)     = e^2 / 2 if |e| < 1, else |e| - 1/2
 *     L        = weight * D * sum_s mean_d l(e[s,d])
 *     dx[s,d] += max(-1, min(1, e[s,d])) * weight
 *
 *   x, target [S,D]   dx [S,D], continued; NULL: only the loss   tok [S]: a row whose token is negative has no loss,
 *                     and its dx does not change
 *
 * weight is a factor divided by N D, where N is the number of rows with a loss in the whole step. The target is
 * constant: it gets no gradient.
 *
 * The difference, the product and the sum are each rounded. l is computed in double from e in f32; a row is the sum of
 * its l, d ascending, divided by D. op_smooth_l1 adds the rows to *loss, s ascending; *loss is continued. */
#ifndef VB_BACKWARD_SMOOTH_L1_H
#define VB_BACKWARD_SMOOTH_L1_H

#include "ops/backward/backward.h"

size_t op_smooth_l1_scratch(size_t S);
void op_smooth_l1(struct op_ctx *cx, double *loss, float *dx, const float *x, const float *target, const int32_t *tok,
                  float weight, size_t S, size_t D);

#endif
