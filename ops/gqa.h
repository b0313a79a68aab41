/* ops/gqa.h -- grouped-query attention over a cache of keys and values: what EAGLE's heads have, and no layer of the target.
 *
 *     s_j[h] = dot(q[h], k_j[g]) * scale                 g = h / (H / G): H / G heads share a key and a value
 *     y[h]   = sum_j softmax_j(s[h]) v_j[g]
 *
 *   q [S, H, D], rotated   row j of the cache: keys [G, D], rotated, then values [G, D]   y [S, H, D]             (all f32)
 *
 * Order: one rule-1 dot and one product for s_j. Blocks of 256 at absolute j as in ops/attention.h: m_b, p_j, l_b by kernel
 * softmax_block; o_b by kernel axpy, j ascending from +0. Over blocks ascending, with M the largest m so far: what has been summed is
 * scaled by exp(M before - M), then L = fma(e_b, l_b, L), o = fma(e_b, o_b, o), e_b = exp(m_b - M). y = o / L. A row's bits depend on
 * its own timeline alone, as those of the target do. (Ainslie et al. 2023.) */
#ifndef VB_GQA_H
#define VB_GQA_H

#include "ops/attention.h"

struct gqa {
    size_t heads, groups, dim; /* H, G, D */
    size_t row;                /* floats from one row of the cache to the next, at least 2 G D */
    float scale;
};

size_t op_gqa_scratch(const struct gqa *a, int threads);
/* seen [S], as of op_attention; rows are not packed. y is not q. */
void op_gqa(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct gqa *a, size_t S);

#endif
