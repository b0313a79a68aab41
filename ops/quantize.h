/* ops/quantize.h -- converts rows of weights to quantized blocks, with the same bytes as ggml's Q8_0 and Q4_0.
 *
 * A block holds 32 weights w as small integers q and a scale d:
 *
 *     Q8_0, 34 bytes:  f16 d | 32 x int8 q             w is about d q
 *     Q4_0, 18 bytes:  f16 d | 16 bytes of two q       w is about d (q - 8)
 *
 * In Q4_0, byte i holds the q of w[i] in its low nibble and the q of w[16 + i] in its high nibble. The formulas are:
 *
 *     Q8_0: d = max|w| / 127,  q = round(w * (1/d)), halves away from 0
 *     Q4_0: d = w_m / -8, w_m the first w whose |w| is largest,  q = min(15, trunc(w * (1/d) + 8.5))
 *
 * The divisions, the product and the addition of 8.5 are each rounded to f32 once. q is computed with the f32 value of
 * d. Then d is rounded to f16, to nearest, ties to even. If d is 0, or so small (2^-128 and below) that 1/d is
 * infinite, then 0 is used instead of 1/d, and the f16 value of d is 0. These formulas are ggml's quantize_row_q8_0_ref
 * and _q4_0_ref (compiled without fma). */
#ifndef VB_QUANTIZE_H
#define VB_QUANTIZE_H

#include <stddef.h>

#define QUANTIZE_BLOCK 32
#define QUANTIZE_Q8_0_BYTES 34
#define QUANTIZE_Q4_0_BYTES 18

/* Quantize K weights, a multiple of 32, to K / 32 blocks. `blocks` need not be aligned. Both functions return 0 on
 * success. They return -1 if a weight is not finite or a scale is not finite as f16, and the blocks are then
 * undefined. */
int op_quantize_q8_0(void *blocks, const float *w, size_t K);
int op_quantize_q4_0(void *blocks, const float *w, size_t K);

/* Writes the codes of 32 weights of type I4 (simd/kernels.h, struct weight_view) in the order of a Q4_0 block: byte l
 * gets the codes of weights l and 16 + l. Both have 16 bytes, and do not overlap. */
void op_reorder_i4(unsigned char *codes, const unsigned char *i4);

/* Convert K weights to f16 or BF16, 2 bytes each, rounded to nearest, ties to even. NaN and infinities stay what they
 * are, and a number that is too large for the type becomes infinite. `numbers` need not be aligned. */
void op_store_f16(void *numbers, const float *w, size_t K);
void op_store_bf16(void *numbers, const float *w, size_t K);

#endif
