/* engine/pass/reads.h -- which matrices a pass reads, layer by layer. From these, `bench` computes the limits of a
 * pass, and `plan` the memory and the highest speed of several machines. */
#ifndef VB_READS_H
#define VB_READS_H

#include "engine/model/layer_tensors.h"
#include "engine/pass/pass.h"
#include "ops/weights.h"

struct read {
    enum pass_part part;
    enum tensor_share share;
    struct weight_view w; /* the rows that are read: W_uk in a kv_b_proj is without the rows of W_uv */
    int routed;           /* 1: a matrix of expert 0, which stands for those of all routed experts */
    int exact;            /* 1: the input of the matrix is never rounded to BF16 */
};
typedef void (*read_sink)(void *context, const struct read *r);

/* Call each(context, r) for all matrices of a layer, in the order of the computation. All routed experts of a layer are
 * taken to have the type of expert 0. */
void reads_of_layer(const struct config *c, const struct layer *l, read_sink each, void *context);

/* Returns the bytes of `rows` rows of a matrix, with their scales. `rows` is a multiple of 16, or all rows. The bytes
 * of an FP8 scale are distributed evenly over the rows of its block. */
double read_bytes(const struct weight_view *w, size_t rows);

/* Returns whether the rows of a layer attend only to index_topk chosen tokens if there are `depth` tokens. */
int reads_chosen(const struct config *c, const struct mla *a, double depth);
/* Return the bytes of the cache rows of so many tokens in one layer, and of their keys in the cache of one indexer. */
double read_latents(const struct config *c, double tokens);
double read_keys(const struct config *c, double tokens);

#endif
