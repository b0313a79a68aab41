/* ops/cuda/indexer.h -- the indexer of sparse attention (ops/indexer.h) on a device.
 *
 * All addresses of arrays are the host's; the kernels use their twins. Which kernels are started, and with which
 * arguments, depends on sizes and addresses alone: not on how many tokens a row sees. */
#ifndef VB_CUDA_INDEXER_H
#define VB_CUDA_INDEXER_H

#include "ops/cuda/device.h"
#include "ops/indexer.h"
#include "ops/rope.h"

/* What the rows of a pass have in common. */
struct device_index {
    const struct indexer *indexer; /* without `forced` */
    const struct rope *rope;
    const float *cos_sin;          /* [S, rope->dim] */
    const struct row_place *rows; /* [S] */
    size_t layer;                  /* the number of the index cache, from row_place.index_rows on */
    size_t longest;                /* at least the number of tokens that any row sees */
};

/* op_index_norm, op_rope and op_index_key: normalises, rotates and writes the keys k [S, D]. */
void cuda_index_keys(struct op_ctx *cx, const float *k, const float *norm, const float *bias,
                       const struct device_index *p, size_t S);

/* Returns the bytes of scratch that cuda_index_choose needs for up to S rows. */
size_t cuda_index_scratch(size_t S, size_t longest);
/* op_rope, op_index_queries and op_index_choose, for q [S, H, D] as it comes from wq_b, and w [S, H]. Both are changed.
 * slots [S, kept] gets the slots of the tokens that are kept, ascending by token, for rows that have to choose. */
void cuda_index_choose(struct op_ctx *cx, int32_t *slots, float *q, float *w, const struct device_index *p, size_t S);

#endif
