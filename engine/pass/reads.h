/* engine/pass/reads.h -- which matrices a pass reads, layer by layer. `bench` computes the limits of a pass from them, and `plan` the
 * memory and the speed of machines. */
#ifndef VB_READS_H
#define VB_READS_H

#include "engine/pass/forward.h"
#include "ops/weights.h"

/* How a matrix is divided if many machines compute one model (docs/RANKS.md): not at all, by attention heads, or by rows. */
enum read_split { READ_WHOLE, READ_BY_HEADS, READ_BY_ROWS };

struct read {
    enum pass_part part;
    enum read_split split;
    struct weight_view w; /* with the rows that are read: without those of W_uv if it is W_uk in a kv_b_proj */
    int routed;           /* 1: a matrix of expert 0, which stands for those of all routed experts */
    int exact;            /* 1: the input of the matrix is never rounded to BF16 */
};
typedef void (*read_sink)(void *context, const struct read *r);

/* Call each(context, r) for all matrices of a layer, in the order of the computation. All routed experts of a layer are taken to have
 * the type of expert 0. reads_of_heads: only W_uk and W_uv. */
void reads_of_layer(const struct config *c, const struct layer *l, read_sink each, void *context);
void reads_of_heads(const struct config *c, const struct mla *a, read_sink each, void *context);

/* Returns the bytes of `rows` rows of a matrix, with their scales. `rows` is a multiple of 16, or all rows. An FP8 scale is divided among the
 * rows of its block. */
double read_bytes(const struct weight_view *w, size_t rows);

/* Returns whether the rows of a layer attend to chosen tokens only (index_topk of them) if there are `depth` tokens. */
int reads_chosen(const struct config *c, const struct mla *a, double depth);
/* Return the bytes of the cache rows of so many tokens in one layer, and of their keys in the cache of one indexer. */
double read_latents(const struct config *c, double tokens);
double read_keys(const struct config *c, double tokens);

#endif
