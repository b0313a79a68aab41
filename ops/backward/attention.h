/* ops/backward/attention.h -- the gradients of multi-head latent attention, for whole sequences, in the expanded form:
 * with a key and a value of each head (docs/ARITHMETIC.md, rules 4c and 4e). The absorbed form is the same function of
 * its inputs, so its gradients are the same but for rounding.
 *
 *     k[t,h]    = [kv[t,h,0..n) | k_rope[t]],   v[t,h] = kv[t,h,n..n+v)
 *     P[s,h,t]  = softmax_t(dot(q[s,h], k[t,h]) * scale),   t <= s
 *     y[s,h]    = sum_t P[s,h,t] v[t,h]
 *
 *   q, dq [T,H,n+r]: rope parts rotated   kv, dkv [T,H,n+v]: the output of kv_b_proj   k_rope, dk_rope [T,r]: rotated
 *                                         dy [T,H,v]
 *
 * The gradients are written (but see below). dq and dk_rope are those of the rotated parts; op_back_rope turns them
 * back. No two arrays overlap.
 *
 * Order. The scores follow rule 4e, and the softmax rule 4c: P = (p_t * e_b) / L, with t in blocks of 256. Both dots
 * below follow rule 1, and every operation is rounded. For query s and head h, over the tokens t from 0 to s:
 *
 *     dP[t]     = dot(dy[s,h], v[t,h])
 *     g[s,h,t]  = (P[t] * (dP[t] - dot(P, dP))) * scale          the gradient of dot(q, k)
 *     dq[s,h,i] = fma(g[s,h,t], k[t,h,i], dq[s,h,i])             t ascending
 *
 * and for token t, over the queries s from t to T-1, s ascending:
 *
 *     dkv[t,h,i]   = fma(g[s,h,t], q[s,h,i], dkv[t,h,i])         i < n
 *     dkv[t,h,n+i] = fma(P[s,h,t], dy[s,h,i], dkv[t,h,n+i])      i < v
 *     dk[t,h,i]    = fma(g[s,h,t], q[s,h,n+i], dk[t,h,i])        i < r, from +0
 *     dk_rope[t,i] = dk_rope[t,i] + dk[t,h,i]                    h ascending, after all s
 *
 * All sums start at +0, or those of dkv and dk_rope at what the arrays hold if `continued` is nonzero. No result
 * depends on tokens that a query may not attend to.
 *
 * Aligned depths (docs/TRAINING.md, "Other losses"). If `depth` is k > 0, the queries are the rows of depth k of an MTP
 * module. kv, k_rope, dkv and dk_rope are those of the rows of depth 0, and chain[m-1] has those of depth m, for m =
 * 1..k. Query s attends to the tokens 0..s of depth 0 and then to the rows s of the depths 1..k, as tokens s+1..s+k; in
 * the formulas above, t goes from 0 to s+k. The gradients of the chain's rows are continued:
 *
 *     dkv_m[s,h,i]   = fma(g[s,h,s+m], q[s,h,i], dkv_m[s,h,i])         dkv_m[s,h,n+i] = fma(P[s,h,s+m], dy[s,h,i],
 *                    dkv_m[s,h,n+i])
 *     dk_rope_m[s,i] = fma(g[s,h,s+m], q[s,h,n+i], dk_rope_m[s,i])     h ascending */
#ifndef VB_BACKWARD_ATTENTION_H
#define VB_BACKWARD_ATTENTION_H

#include "ops/backward/backward.h"

struct back_chain {
    const float *kv, *k_rope; /* [T,H,n+v], [T,r] */
    float *dkv, *dk_rope;
};

struct back_attention {
    size_t heads, nope, rope, value; /* H, n, r, v */
    float scale;
    const float *q, *kv, *k_rope, *dy;
    float *dq, *dkv, *dk_rope;
    int continued;
    size_t depth;                   /* k; 0: no chain */
    const struct back_chain *chain; /* [depth] */
};

/* The arrays have the rows of some sequences: those of sequence q are [first[q], first[q + 1]), and first[0] is 0. A
 * token attends to those of its own sequence, and T above is the length of that. rows, longest: at most so many rows in
 * all, and in a sequence. */
size_t op_back_attention_scratch(const struct back_attention *a, size_t rows, size_t longest, int threads);
void op_back_attention(struct op_ctx *cx, const struct back_attention *a, const size_t *first, size_t sequences);

#endif
