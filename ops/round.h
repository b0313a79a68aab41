/* ops/round.h -- rounds f32 numbers to values that BF16 can hold, and keeps them as f32; and to E4M3 codes.
 *
 * op_round_bf16: y[i] becomes the BF16 value nearest to x[i], ties to the even one. y may be x. A NaN becomes a quiet
 * NaN. A number beyond the largest BF16 rounds to infinity, as IEEE 754 defines it. */
#ifndef VB_ROUND_H
#define VB_ROUND_H

#include <stddef.h>
#include <stdint.h>

void op_round_bf16(float *y, const float *x, size_t n);
struct op_ctx;
/* Does the same: an operator of the table (ops/operators.h). */
void op_round(const struct op_ctx *cx, float *y, const float *x, size_t n);

/* Rounds like op_round_bf16, and then sets numbers smaller than 2^-56 in magnitude to +0. Precision bf16 needs this for
 * the inputs of linear layers. Kernel `narrow` computes the same values. */
void op_round_x(float *y, const float *x, size_t n);

/* Encodes n numbers as E4M3 codes with one scale s, which it returns: a = max(largest |x|, 1e-4); s =
 * 2^ceil(log2(fl32(a * fl32(1/448)))); each code is x / s, limited to +-448, rounded to nearest, ties to even. If a
 * number is not finite, all codes are NaN. */
float op_encode_e4m3(uint8_t *code, const float *x, size_t n);
/* Replaces n numbers x by s * code. n is at most 128. */
void op_round_e4m3(float *x, size_t n);

#endif
