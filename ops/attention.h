/* ops/attention.h -- multi-head latent attention (MLA) over a KV cache of latents, in the absorbed form.
 *
 *     q_abs[h,c] = sum_n q_nope[h,n] W_uk[h,n,c]
 *     s_j        = dot([q_abs[h] | q_rope[h]], row_j) * scale
 *     o[h,c]     = sum_j softmax_j(s) row_j[c]
 *     y[h,v]     = sum_c W_uv[h,v,c] o[h,c]
 *
 * row_j is the cache row of token j: its latent (c numbers), then its rotated rope part (r numbers), as the cache
 * stores them (ops/kv_rows.h).
 * The letters h, n, c, r and v are those of docs/SEMANTICS.md. The formulas are from the DeepSeek-V2 report, 2.1.2.
 *
 * Order of the sums (docs/ARITHMETIC.md, rule 4): kernel fma_rows computes q_abs, with n ascending. Each s_j is one dot
 * product of c + r numbers, computed by rule 1, times scale. j is the token's index in its own sequence; it does not
 * depend on the slot that holds the token's row.
 *
 * Tokens are processed in blocks of 256 that begin at multiples of 256. Kernel softmax_block computes m_b, p_j =
 * exp(s_j - m_b) and l_b, the sum of p_j, for each block b. fma_rows computes o_b[c], the sum of p_j row_j[c], with j
 * ascending. Then the blocks are joined. M is the largest m_b, and e_b = exp(m_b - M). L and o[c] start at +0. For each
 * block, in ascending order, L becomes fma(e_b, l_b, L) and o[c] becomes fma(e_b, o_b[c], o[c]). At the end, o[c] is
 * divided by L.
 *
 * If the cache type is q8, the scores are s_j = (dot(q_abs[h], latent_j) + dot(q_rope[h], rope_j)) * scale instead. The
 * first dot follows rule 2, with q_abs quantized in groups of 32; the second follows rule 1. The sum and the product
 * are each rounded once. In o_b, each number of a latent is fl32(d * q).
 *
 * The product with W_uv follows rule 1, or rule 2 if W_uv is quantized. Nothing is computed for tokens that a query may
 * not attend to. */
#ifndef VB_ATTENTION_H
#define VB_ATTENTION_H

#include "ops/kv_rows.h"
#include "ops/op.h"
#include "ops/row_place.h"

#define ATTENTION_BLOCK 256

/* The tokens that one query attends to: tokens 0..length-1 of its sequence. The cache row of token j is number slots[j]
 * of the rows at `rows` (ops/kv_rows.h). */
struct timeline {
    const void *rows;
    const int32_t *slots;
    size_t length; /* >= 1 */
};

/* Rows of W_uk for head h begin at row h * uk_stride of w_uk: n rows with c columns. If uk_transposed is set, W_uk is
 * stored transposed: each head has c rows with n columns. uk_transposed is set if W_uk is quantized, and only then. The
 * sums over n in q_abs then follow rule 2. Rows of W_uv for head h begin at row h * uv_stride of w_uv: v rows with c
 * columns. */
struct attention {
    size_t heads, nope, rope, value, latent; /* the sizes H, n, r, v and c */
    size_t row_heads; /* heads in a row of q and of y; 0: H. If it is more than H, other processes compute the other
                         heads */
    struct weight_view w_uk, w_uv;
    size_t uk_stride, uv_stride;
    int uk_transposed;
    float scale;
    enum kv_type cache; /* the type of the cache rows */
    /* These three are for the operators of a device only, which do not use `seen` and `context` of op_attention. places
     * [S] has the same tokens; `layer` is the layer's number in the cache, and longest is the length of the longest
     * timeline or more. */
    const struct row_place *places;
    size_t layer, longest;
    /* op_expanded only; op_attention computes no tails. After the tokens of its timeline, query s attends
     * to `tail` more tokens, whose cache rows are numbers tail_slots[s * tail ..] of the timeline's rows. They are the
     * last tokens in the order of the sums */
    size_t tail;
    const int32_t *tail_slots; /* [S, tail] */
};

/* Heads are divided among several processes in units of so many. The values of a unit are a multiple of 32, so that a
 * unit of rows of y is whole chunks of the input of o_proj. */
static inline size_t attention_head_unit(size_t value)
{
    size_t unit = 1;
    while (unit * value % OP_ROW_GROUP)
        unit *= 2;
    return unit;
}

static inline size_t attention_row_heads(const struct attention *a) { return a->row_heads ? a->row_heads : a->heads; }
static inline struct kv_layout attention_rows(const struct attention *a)
{
    return (struct kv_layout){.type = a->cache, .latent = a->latent, .rope = a->rope};
}

/* Returns the bytes of scratch that op_attention needs for up to S queries, if none attends to more than `context`
 * tokens. */
size_t op_attention_scratch(const struct attention *a, size_t S, size_t context, int threads);

/* Computes y [S, H*v] for S queries q [S, H, n+r], whose rope parts are already rotated. Query s attends to the tokens
 * of seen[s]. y and q do not overlap. `context` is at least the length of every timeline in `seen`. Neighbouring
 * queries with the same `rows` and `slots` read the cache together, which is faster. */
void op_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                  size_t S, size_t context);

#endif
