/* ops/round.h -- f32 numbers rounded to what bf16 can hold, and kept as f32.
 *
 *     y[i] = the bf16 number nearest to x[i], ties to the even one                               y may be x
 *
 * What is not a number stays so (quiet); what lies beyond bf16's largest becomes infinite, as IEEE 754 says. */
#ifndef VB_ROUND_H
#define VB_ROUND_H

#include <stddef.h>

void op_round_bf16(float *y, const float *x, size_t n);

/* x of precision bf16: the same, then 0 for what is below 2^-56 (kernel narrow's rounding, kept as f32). */
void op_round_x(float *y, const float *x, size_t n);

#endif
