/* ops/backward/rope.h -- the gradient of RoPE (ops/rope.h): the rotation by the same angles in the other direction.
 *
 *     dx0 = dy0 c + dy1 s,   dx1 = dy1 c - dy0 s        for each pair y0 = x0 c - x1 s, y1 = x0 s + x1 c
 *
 * Each product is rounded; there is no fma. x holds dy and becomes dx. The other arguments are those of op_rope. */
#ifndef VB_BACKWARD_ROPE_H
#define VB_BACKWARD_ROPE_H

#include "ops/backward/backward.h"
#include "ops/rope.h"

void op_back_rope(float *x, size_t heads, size_t stride, const float *cos_sin, const struct rope *rope);

#endif
