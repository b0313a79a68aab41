/* ops/quantise.h -- a row of weights as blocks of 32 small integers and a scale, in the bytes of ggml's Q8_0 and Q4_0.
 *
 *     Q8_0, 34 bytes:  f16 d | 32 x int8 q                        w is about d q
 *     Q4_0, 18 bytes:  f16 d | 16 bytes: q of w[i] in the low half of byte i, of w[16 + i] in the high   d (q - 8)
 *
 *     Q8_0: d = max|w| / 127,  q = round(w * (1/d)), halves away from 0
 *     Q4_0: d = w_m / -8, w_m the first w whose |w| is largest,  q = min(15, trunc(w * (1/d) + 8.5))
 *
 * Order: each of /, 1/d, the product and + 8.5 is one f32 rounding; d is then rounded to f16, to nearest, ties to even, and
 * q has seen d before that. These are ggml's quantize_row_q8_0_ref and _q4_0_ref (compiled without fma).
 * d = 0 has inverse 0, and so has a d so small (2^-128 and below) that 1/d is infinite: as f16 it is 0 anyway. */
#ifndef VB_QUANTISE_H
#define VB_QUANTISE_H

#include <stddef.h>

#define QUANTISE_BLOCK 32
#define QUANTISE_Q8_0_BYTES 34
#define QUANTISE_Q4_0_BYTES 18

/* K is a multiple of 32; `blocks`, at any address, are K / 32 of them. 0, or -1 when a w or a d as f16 is not finite: what is
 * in `blocks` is then of no use. */
int op_quantise_q8_0(void *blocks, const float *w, size_t K);
int op_quantise_q4_0(void *blocks, const float *w, size_t K);

/* The same for types without blocks: K numbers of 2 bytes, each the nearest, ties to even; what is not finite stays so, and
 * what the type cannot hold becomes infinite. */
void op_store_f16(void *numbers, const float *w, size_t K);
void op_store_bf16(void *numbers, const float *w, size_t K);

#endif
