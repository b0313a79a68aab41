/* ops/add.h -- the residual sum.
 *
 *     y[i] = y[i] + x[i]        i < n
 *
 * Each sum is rounded once. x and y do not overlap. */
#ifndef VB_ADD_H
#define VB_ADD_H

#include "ops/op.h"

void op_add(const struct op_ctx *cx, float *y, const float *x, size_t n);

#endif
