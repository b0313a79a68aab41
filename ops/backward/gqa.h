/* ops/backward/gqa.h -- the gradients of grouped-query attention (ops/gqa.h), for one whole sequence.
 *
 *     P[s,h,t] = softmax_t(dot(q[s,h], k[t,g]) * scale),   t <= s,   where g = h / (H / G) is the group of head h
 *     y[s,h]   = sum_t P[s,h,t] v[t,g]
 *
 *   q, dq [T,H,D]: rotated   dy [T,H,D]   k, v [T,G,D]: `row` floats from one token to the next, keys rotated   dk, dv
 *                            [T,G,D]
 *
 * The gradients are written (but see below). dq and dk are those of the rotated vectors; op_back_rope turns them back.
 * No two arrays overlap, except that k and v may be parts of the same rows, as in the cache of ops/gqa.h.
 *
 * Order. Scores are dots by rule 1, times scale. The softmax follows rule 4c (docs/ARITHMETIC.md): P = (p_t * e_b) / L,
 * with t in blocks of 256. With more than one block, ops/gqa.h takes the same sums relative to the largest score so
 * far, and its P may differ in the last bits. Both dots below follow rule 1, and every operation is rounded. For query
 * s and head h, over the tokens t from 0 to s:
 *
 *     dP[t]     = dot(dy[s,h], v[t,g])
 *     g[s,h,t]  = (P[t] * (dP[t] - dot(P, dP))) * scale          the gradient of dot(q, k)
 *     dq[s,h,i] = fma(g[s,h,t], k[t,g,i], dq[s,h,i])             t ascending
 *
 * and for token t and group g, over the queries s from t to T-1, s ascending, and for each s over the heads h of the
 * group, h ascending:
 *
 *     dk[t,g,i] = fma(g[s,h,t], q[s,h,i], dk[t,g,i])
 *     dv[t,g,i] = fma(P[s,h,t], dy[s,h,i], dv[t,g,i])
 *
 * All sums of fma start at +0, or those of dk and dv at what the arrays hold if `continued` is nonzero. No result
 * depends on tokens that a query may not attend to.
 *
 * Aligned depths (docs/TRAINING.md, "Other losses"). If `depth` is k > 0, the queries are the rows of depth k of a
 * draft head. k, v, dk and dv are those of the rows of depth 0, and chain[m-1] has those of depth m, for m = 1..k.
 * Query s attends to the tokens 0..s of depth 0 and then to the rows s of the depths 1..k, as tokens s+1..s+k; in the
 * formulas above, t goes from 0 to s+k. The gradients of the chain's rows are continued:
 *
 *     dk_m[s,g,i] = fma(g[s,h,s+m], q[s,h,i], dk_m[s,g,i])        dv_m[s,g,i] = fma(P[s,h,s+m], dy[s,h,i], dv_m[s,g,i])
 *     h ascending
 *
 * So the depths of a sequence go backwards from the deepest, whose chain includes its own rows, to depth 0. Before the
 * first call, dk and dv of all depths are cleared, and `continued` is set in all calls. After the call for depth k,
 * those of its own rows are complete. */
#ifndef VB_BACKWARD_GQA_H
#define VB_BACKWARD_GQA_H

#include "ops/backward/backward.h"

struct back_gqa_chain {
    const float *k, *v; /* [T,G,D], as in struct back_gqa */
    float *dk, *dv;     /* [T,G,D] */
};

struct back_gqa {
    size_t heads, groups, dim; /* H, G, D */
    size_t row;                /* floats from one token to the next in k and v, at least G D */
    float scale;
    const float *q, *k, *v, *dy;
    float *dq, *dk, *dv;
    int continued;
    size_t depth;                       /* k; 0: no chain */
    const struct back_gqa_chain *chain; /* [depth] */
};

size_t op_back_gqa_scratch(const struct back_gqa *a, size_t T, int threads);
void op_back_gqa(struct op_ctx *cx, const struct back_gqa *a, size_t T);

#endif
