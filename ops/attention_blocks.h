/* ops/attention_blocks.h -- what the absorbed and the expanded form of attention share: blocks of tokens, and how they
 * are joined (docs/ARITHMETIC.md, rule 4c). */
#ifndef VB_ATTENTION_BLOCKS_H
#define VB_ATTENTION_BLOCKS_H

#include "ops/attention.h"
#include "numbers/numbers.h"

#define SCORE_STRIDE (ATTENTION_BLOCK + 16) /* from the scores of a query and head to those of the next; no power of
                                               two */

static inline size_t blocks_of(size_t length) { return divide_up(length, ATTENTION_BLOCK); }

/* Returns to how many tokens of the block that begins at token j the query with this timeline attends. */
static inline size_t seen_of_block(const struct timeline *t, size_t j)
{
    return t->length > j ? min_size(ATTENTION_BLOCK, t->length - j) : 0;
}

/* Joins the blocks of one query and head: computes o [n] from m_b, l_b and o_b. m and l are [blocks], sums is [blocks,
 * n]. Replaces each m_b by e_b. */
void attention_join(const struct kernels *k, float *o, float *m, const float *l, const float *sums, size_t blocks,
                    size_t n);

#endif
