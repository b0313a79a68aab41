/* ops/round.h -- rounds f32 numbers to values that BF16 can hold, and keeps them as f32.
 *
 * y[i] becomes the BF16 value nearest to x[i], ties to the even one. y may be x. A NaN becomes a quiet NaN. A number
 * beyond the largest BF16 rounds to infinity, as IEEE 754 defines it. */
#ifndef VB_ROUND_H
#define VB_ROUND_H

#include <stddef.h>

void op_round_bf16(float *y, const float *x, size_t n);

/* Rounds like op_round_bf16, and then sets numbers smaller than 2^-56 in magnitude to +0. Precision bf16 needs this for
 * the inputs of linear layers. Kernel `narrow` computes the same values. */
void op_round_x(float *y, const float *x, size_t n);

#endif
