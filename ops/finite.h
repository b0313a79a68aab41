/* ops/finite.h -- finds the first layer whose output is not finite, for the error message about logits that are not
 * finite.
 *
 * first [S] has the number of this layer for each row, or -1. If x [S,D], the output of layer number `layer`, has an
 * infinity or a NaN in row s and first[s] is less than 0, first[s] becomes `layer`. */
#ifndef VB_FINITE_H
#define VB_FINITE_H

#include "ops/op.h"

void op_first_not_finite(const struct op_ctx *cx, int32_t *first, const float *x, int32_t layer, size_t S, size_t D);

#endif
