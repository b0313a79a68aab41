/* ops/indexer.h -- the indexer of DeepSeek sparse attention (DSA): chooses the tokens to which a query attends.
 *
 *     q[h]    = code(hadamard(rope(wq_b[h] qr)))                       h < H, D numbers each
 *     k_t     = code(hadamard(rope(layernorm(wk x_t))))                D numbers, one per token
 *     w_h     = ((weights_proj(x)_h * H^-1/2) * s_q,h) * D^-1/2
 *     score_t = s_k,t * sum_h w_h max(dot(q[h], k_t), 0)
 *
 * A query that can see more than `kept` tokens attends to the `kept` tokens with the largest scores only. Tokens are ranked in the
 * order of rule 7: a larger score comes first; of equal scores, the one of the earlier token; NaN comes last. A query that can
 * see no more tokens attends to all of them.
 *
 * The formulas are from DeepSeek-V3.2-Exp's report and inference/model.py. docs/ARITHMETIC.md, rule 9, has the order of all
 * sums:
 *
 * layernorm: mean = dot(x, 1) / D; y = x - mean; r = 1 / sqrt(dot(y, y) / D + 1e-6); ((y * r) * w) + b. Both dots follow rule 1.
 * rope: rule 6, on numbers 0..r-1 of each vector.
 * hadamard: for n = 1, 2, 4, .. D/2, every pair (a, b) of numbers i and i + n, with i / n even, becomes (a + b, a - b); then one
 * product with D^-1/2.
 * code: a = max(largest magnitude, 1e-4); s = 2^ceil(log2(a * fl32(1/448))); each number x becomes the E4M3 code of x / s,
 * limited to +-448, rounded to nearest, ties to even. If a number of the vector is not finite, all codes are NaN.
 * score: dot(q[h], k_t) follows rule 1, over the codes. acc starts at +0; for h ascending, acc = fma(w_h, max(dot, 0), acc). Then
 * score_t = s_k,t * acc.
 *
 * A row of the index cache holds D codes (1 byte each), and then s_k,t as f32. */
#ifndef VB_INDEXER_H
#define VB_INDEXER_H

#include "ops/attention.h"
#include "ops/rope.h"

#define INDEX_MIN_DIM 32
#define INDEX_MAX_DIM 128

struct indexer {
    size_t heads, dim, kept;  /* H; D, a power of two from INDEX_MIN_DIM to INDEX_MAX_DIM; the number of tokens to keep */
    const struct rope *rope;  /* r = rope->dim is at most D */
};

/* Returns the size of a row of the index cache in bytes; a multiple of 4. */
static inline size_t index_row_bytes(size_t dim) { return dim + sizeof(float); }

/* Normalises k [D] in place, with the weights w [D] and the bias b [D] of the LayerNorm. */
void op_index_norm(const struct kernels *k, float *x, const float *w, const float *b, size_t D);
/* Writes a row of the index cache for the normalised k [D]. cos_sin is that of the token (op_rope_angles). k becomes the
 * numbers that the row represents, s * code. */
void op_index_key(const struct indexer *ix, void *row, float *k, const float *cos_sin);
/* Prepares the indexer's queries of S rows in place. q [S, H, D], the output of wq_b, becomes codes as f32 in packed order.
 * w [S, H], the output of weights_proj, becomes w_h. cos_sin is [S, r]. */
void op_index_queries(const struct op_ctx *cx, float *q, float *w, const float *cos_sin, const struct indexer *ix, size_t S);

/* Returns the bytes of scratch that op_index_choose needs for up to S queries over at most `context` tokens. */
size_t op_index_scratch(const struct indexer *ix, size_t S, size_t context, int threads);
/* Chooses the tokens of S queries, which op_index_queries has prepared. Query s can see the tokens of seen[s], whose rows are
 * rows of the index cache. If they are more than ix->kept, the indices of the chosen tokens are written to kept + s * ix->kept, in
 * ascending order. Else nothing is written. `context` is at least the length of every timeline.
 *
 * A probe receives `kept` for every query (all tokens if nothing has to be chosen), and, for a query that has to choose, `margin`: the
 * lowest score that was kept minus the highest score that was not. If the probe wants scores, it receives `scores`. */
void op_index_choose(struct op_ctx *cx, int32_t *kept, const float *q, const float *w, const struct timeline *seen,
                     const struct indexer *ix, size_t S, size_t context);

#endif
