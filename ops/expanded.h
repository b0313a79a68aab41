/* ops/expanded.h -- multi-head latent attention (MLA) in the expanded form, for prompts (option prefill expanded).
 *
 *     k_j[h,n] = sum_c W_uk[h,n,c] latent_j[c]
 *     v_j[h,v] = sum_c W_uv[h,v,c] latent_j[c]
 *     s_j      = dot([q_nope[h] | q_rope[h]], [k_j[h] | rope_j]) * scale
 *     y[h,v]   = sum_j softmax_j(s) v_j[h,v]
 *
 * The formula equals that of ops/attention.h, but the order of the sums differs, so the bits differ. The cache and all
 * letters are those of ops/attention.h. A query, a token and a head cost n + r + v multiplications here and 2c + r
 * there. Keys and values of every token cost c (n + v) multiplications per head, once per call, so the expanded form is
 * faster if a call has some hundred queries of a sequence. The formulas are from the DeepSeek-V2 report, 2.1.2.
 *
 * Order of the sums (docs/ARITHMETIC.md, rule 4e): k_j[h,n] starts at +0, and k_j[h,n] = fma(latent_j[c], W_uk[h,n,c],
 * k_j[h,n]) for c ascending. latent_j is used as the cache stores it, in every precision. A weight of W_uk is decoded
 * to f32 first; a quantized one is fl32(fl32(sw * q) - mw). v_j[h,v] is computed as a linear layer computes it: by rule
 * 1, or by rule 2 if W_uv is quantized. s_j is one dot product of n + r numbers by rule 1, times scale. Softmax, sums
 * of values and blocks follow rule 4c: blocks of 256 tokens at multiples of 256, o_b[v] = fma(p_j, v_j[v], o_b[v]) for
 * j ascending, and the join of ops/attention.h. Nothing is computed for tokens that a query may not attend to. If
 * queries have tails (struct attention), the tokens of a query are those of its timeline and then those of its tail. */
#ifndef VB_EXPANDED_H
#define VB_EXPANDED_H

#include "ops/attention.h"

/* Returns the bytes of scratch that op_expanded needs for up to S queries, if none attends to more than `context`
 * tokens, with those of its tail. */
size_t op_expanded_scratch(const struct attention *a, size_t S, size_t context, int threads);

/* Computes y [S, H*v] for S queries q [S, H, n+r], as op_attention does. The keys and values of all tokens that at
 * least one of several neighbouring queries with the same `rows` and `slots` attends to are computed once for these
 * queries. */
void op_expanded(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                 size_t S, size_t context);

#endif
