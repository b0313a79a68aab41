/* ops/attention.h -- multi-head latent attention over a cache of latents, absorbed (DeepSeek-V2 report, 2.1.2).
 *
 *     q_abs[h,c] = sum_n q_nope[h,n] W_uk[h,n,c]
 *     s_j        = dot([q_abs[h] | q_rope[h]], row_j) * scale            row_j = [latent c | rotated rope r] of token j
 *     o[h,c]     = sum_j softmax_j(s) row_j[c]
 *     y[h,v]     = sum_c W_uv[h,v,c] o[h,c]
 *
 * Order (docs/ARITHMETIC.md, rule 4): q_abs by kernel fma_rows, n ascending; s_j one rule-1 dot of c+r numbers and one
 * product. j is the token's index in its own timeline, whatever slot holds its row. Blocks of 256 at absolute j: m_b,
 * p_j = exp(s_j - m_b), l_b by kernel softmax_block; o_b[c] by fma_rows, j ascending. Over blocks ascending, with
 * M = max m_b and e_b = exp(m_b - M): L = fma(e_b, l_b, L), o[c] = fma(e_b, o_b[c], o[c]), both from +0; then o / L.
 * W_uv by rule 1; a quantised one by rule 2 of o. Tokens that a query does not see are not computed at all. */
#ifndef VB_ATTENTION_H
#define VB_ATTENTION_H

#include "ops/op.h"

#define ATTENTION_BLOCK 256

/* What one query sees: tokens 0..length-1 of its timeline. Token j's row, [latent | rope part] as kernel pack packs c + r
 * numbers, stands at rows + slots[j] * packed_length(c + r). */
struct timeline {
    const float *rows;
    const int32_t *slots;
    size_t length; /* >= 1 */
};

struct attention {
    size_t heads, nope, rope, value, latent; /* H, n, r, v, c */
    struct weight_view w_uk, w_uv; /* W_uk of head h: n rows [.., c] from row h * uk_stride on; with uk_transposed, which */
    size_t uk_stride, uv_stride;   /* a quantised one is, c rows [.., n]: q_abs is then rule 2 over n. W_uv: v rows [.., c] */
    int uk_transposed;
    float scale;
};

/* context: the longest timeline. */
size_t op_attention_scratch(const struct attention *a, size_t S, size_t context, int threads);

/* Queries of one sequence share the reading of the cache when they stand side by side, with the same rows and slots.
 * q [S, H, n+r], rope part rotated; seen [S]; y [S, H*v], not q. */
void op_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                  size_t S, size_t context);

#endif
