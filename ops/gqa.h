/* ops/gqa.h -- grouped-query attention over a cache of keys and values (Ainslie et al. 2023).
 *
 *     s_j[h] = dot(q[h], k_j[g]) * scale
 *     y[h]   = sum_j softmax_j(s[h]) v_j[g]
 *
 * Heads are divided into groups that share a key and a value: head h belongs to group g = h / (H / G). q and y are [S,
 * H, D]. Row j of the cache has the keys [G, D] of token j, then its values [G, D]. q and the keys are already rotated.
 * All numbers are f32.
 *
 * S is the number of queries, H the number of heads, G the number of key/value groups, and D the length of a head.
 *
 * Order of the sums: each s_j is one dot product, computed by rule 1 (docs/ARITHMETIC.md), times scale. Tokens are
 * processed in blocks of 256, as in ops/attention.h. For each block b, kernel softmax_block computes m_b, p_j and l_b.
 * o_b starts at +0, and kernel axpy adds p_j v_j to it, with j ascending. Blocks are joined in ascending order, and M
 * is the largest m_b so far. When M grows from M_old to M, L and o are first multiplied by exp(M_old - M). Then L
 * becomes fma(e_b, l_b, L) and o becomes fma(e_b, o_b, o), with e_b = exp(m_b - M). At the end, y = o / L. The bits of
 * a query's output depend only on this query and on the tokens of its own sequence. */
#ifndef VB_GQA_H
#define VB_GQA_H

#include "ops/attention.h"

struct gqa {
    size_t heads, groups, dim; /* the sizes H, G and D */
    size_t row;                /* floats from one row of the cache to the next, at least 2 G D */
    float scale;
};

size_t op_gqa_scratch(const struct gqa *a, int threads);
/* Query s attends to the tokens of seen[s], as in op_attention, but cache rows are in natural order. y and q do not
 * overlap. */
void op_gqa(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct gqa *a, size_t S);

#endif
