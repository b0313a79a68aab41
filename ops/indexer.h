/* ops/indexer.h -- the indexer of DeepSeek sparse attention (DSA): chooses the tokens to which a query attends.
 *
 *     q[h]    = code(hadamard(rope(wq_b[h] qr)))                       h < H, D numbers each
 *     k_t     = code(hadamard(rope(layernorm(wk x_t))))                D numbers, one per token
 *     w_h     = ((weights_proj(x)_h * H^-1/2) * s_q,h) * D^-1/2
 *     score_t = s_k,t * sum_h w_h max(dot(q[h], k_t), 0)
 *
 * A query that can see more than `kept` tokens attends to the `kept` tokens with the largest scores only. Tokens are
 * ranked in the order of rule 7: a larger score comes first; of equal scores, the one of the earlier token; NaN comes
 * last. A query that can see no more tokens attends to all of them.
 *
 * The caller may force the tokens of a query (`forced`). Then its scores are computed only for a probe. If these are
 * the tokens that the indexer chooses, all bits are the same.
 *
 * The formulas are from DeepSeek-V3.2-Exp's report and inference/model.py. docs/ARITHMETIC.md, rule 9, has the order of
 * all sums:
 *
 * layernorm: mean = dot(x, 1) / D; y = x - mean; r = 1 / sqrt(dot(y, y) / D + 1e-6); ((y * r) * w) + b. Both dots
 * follow rule 1. hadamard: for n = 1, 2, 4, .. D/2, every pair (a, b) of numbers i and i + n, with i / n even, becomes
 * (a + b, a - b); then one product with D^-1/2.
 * code: op_encode_e4m3 (ops/round.h), which returns s. rope: op_rope, which the caller calls.
 * score: dot(q[h], k_t) follows rule 1, over the codes. acc starts at +0; for h ascending, acc = fma(w_h, max(dot, 0),
 * acc). Then score_t = s_k,t * acc.
 *
 * A row of the index cache holds D codes (1 byte each), and then s_k,t as f32; without codes, D numbers of type f32. */
#ifndef VB_INDEXER_H
#define VB_INDEXER_H

#include "ops/attention.h"

#define INDEX_NORM_EPS 1e-6f
#define INDEX_MIN_DIM 32 /* INDEX_MAX_DIM: simd/kernels.h */

struct indexer {
    size_t heads, dim, kept;  /* H; D, a power of two from INDEX_MIN_DIM to INDEX_MAX_DIM; the number of tokens to
                                 keep */
    int hadamard, codes;      /* 1; 0: this step is left out, and s is 1 (convention indexer-codes) */
    /* The next three members make the indexer do what other implementations do (engine/model/conventions.h). They are 0
     * by default. */
    int bf16_weights;         /* 1: weights_proj(x)_h * H^-1/2 is rounded to BF16 */
    int bf16_scores;          /* 1: tokens are ranked by scores rounded to BF16 */
    int highest;              /* 1: of equal scores, the one of the later token comes first */
    const int32_t *const *forced; /* NULL, or [S]: forced[s] is NULL, or the tokens that query s keeps if it has to
                                     choose, [kept], in ascending order */
};

/* Returns the size of a row of the index cache in bytes; a multiple of 4. */
static inline size_t index_row_bytes(const struct indexer *ix)
{
    return ix->codes ? ix->dim + sizeof(float) : ix->dim * sizeof(float);
}

/* Returns n^-1/2, computed in double and rounded to f32 once. */
float index_inverse_root(size_t n);
/* Normalises k [D] in place, with the weights w [D] and the bias b [D] of the LayerNorm. */
void op_index_norm(const struct kernels *k, float *x, const float *w, const float *b, size_t D);
/* Writes a row of the index cache for k [D], which is normalised and rotated. Changes k. */
void op_index_key(const struct indexer *ix, void *row, float *k);
/* Prepares the indexer's queries of S rows in place. q [S, H, D], rotated, becomes codes as f32 in packed order. w [S,
 * H], the output of weights_proj, becomes w_h. */
void op_index_queries(const struct op_ctx *cx, float *q, float *w, const struct indexer *ix, size_t S);

/* Writes the indices of the ix->kept scores that come first in the order of rule 7, ascending. n is larger than
 * ix->kept. rank [n] is working memory. */
void op_index_keep(const struct kernels *k, int32_t *kept, uint32_t *rank, const float *score, size_t n,
                   const struct indexer *ix);

/* Returns the bytes of scratch that op_index_choose needs for up to S queries over at most `context` tokens. */
size_t op_index_scratch(size_t S, size_t context, int threads);
/* Chooses the tokens of S queries, which op_index_queries has prepared. Query s can see the tokens of seen[s], whose
 * rows are rows of the index cache. If there are more than ix->kept, the indices of the chosen tokens are written to
 * kept + s * ix->kept, in ascending order. Otherwise nothing is written. A query whose timeline has length 0 is left
 * out. `context` is at least the length of every timeline.
 *
 * A probe receives `kept` for every query (all tokens if nothing has to be chosen), and, for a query that has to
 * choose, `margin`: the lowest score that was kept minus the highest score that was not. If the probe wants scores, it
 * receives `scores`. */
void op_index_choose(struct op_ctx *cx, int32_t *kept, const float *q, const float *w, const struct timeline *seen,
                     const struct indexer *ix, size_t S, size_t context);

#endif
