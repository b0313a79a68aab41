/* ops/backward/soft_cross_entropy.h -- the loss of a draft row that learns from the target's distribution of the same
 * token, and from the token itself.
 *
 *     q[s] = softmax(z[s]),   p[s] = softmax(target[s])
 *     L    = weight sum_s row(s)
 *     row  = data * -log q[s,tok[s]]  +  soft * sum_v p[s,v] (-log q[s,v])  +  top * sum_{v in top(s)} p[s,v] (-log
 *          q[s,v])
 *
 *     a[s,v]  = soft, or soft + top if v is in top(s)
 *     m[s]    = (data + soft) + top * P[s],    P[s] = sum_{v in top(s)} p[s,v], v ascending
 *     dz[s,v] = (q[s,v] * m[s] - a[s,v] * p[s,v] - [v = tok[s]] data) * weight          because sum_v p[s,v] = 1
 *
 *   z, dz [S,V]; dz may be z   target [S,V], not changed   tok [S]: a row whose token is negative has no loss, and its
 *                              dz is +0
 *
 * The target is constant: it gets no gradient. top(s) has the top_tokens tokens with the largest target[s,v], and of
 * equal ones those with the lowest index. Their p are not divided by P. The Kullback-Leibler divergence of p and q is
 * the soft term minus the entropy of p, which does not depend on z.
 *
 * Every operation is rounded, from left to right; the difference with `data` is made for v = tok[s] only. With data 1,
 * soft 0 and top 0, dz has the bits of op_cross_entropy. Both softmax and the logarithm of their sums follow
 * cross_entropy.h. The losses are computed in double, from q and p in f32: -log q[v] = ((double)M + log((double)L)) -
 * (double)z[v], and the sums start at +0 and add (double)p[v] * -log q[v], v ascending. They are added to `sums`
 * without the weights, s ascending; `sums` is continued. sums->top stays if top is 0. */
#ifndef VB_BACKWARD_SOFT_CROSS_ENTROPY_H
#define VB_BACKWARD_SOFT_CROSS_ENTROPY_H

#include "ops/backward/backward.h"

/* The weights of the terms, each rounded once to f32 by the caller. */
struct soft_terms {
    float data, soft, top;
    size_t top_tokens; /* at most V; not used if top is 0 */
};

struct soft_sums {
    double data, soft, top; /* the sums of the terms */
    double entropy;         /* of p */
};

size_t op_soft_cross_entropy_scratch(size_t S, size_t V, size_t top_tokens, int threads);
void op_soft_cross_entropy(struct op_ctx *cx, struct soft_sums *sums, float *dz, const float *z, const float *target,
                           const int32_t *tok, const struct soft_terms *terms, float weight, size_t S, size_t V);

#endif
