/* engine/pass/indexing.h -- sparse attention in a pass: index keys, and the tokens to which each row attends
 * (ops/indexer.h). */
#ifndef VB_INDEXING_H
#define VB_INDEXING_H

#include "engine/pass/forward.h"
#include "ops/indexer.h"

/* Writes the keys of all rows to the index cache, chooses tokens for the rows that see more than w->kept_most, and
 * makes w->seen of these rows the chosen tokens. A layer without an indexer uses the choice of the last layer that has
 * one.
 *
 * x [S, d] is the output of input_layernorm. w->index_k is the output of wk, w->q_a the output of q_a_layernorm.
 * w->seen has all tokens that each row can see. `layer` is the number of the layer in row.forced_kept. Queries and
 * scores are computed only if a row has to choose, or if there are taps.
 *
 * On a device, w->seen keeps all tokens: attention reads w->offload.kept_rows there. Queries and scores are computed in
 * every pass that has room for more than w->kept_most tokens (offload_chooses). */
void index_tokens(struct workspace *w, const struct mla *a, size_t layer, const struct row *rows, const float *x,
                  size_t S);

/* Computes weights_proj of x [S, d] as convention indexer-weights says. out [S, H]. Changes w->delta. */
void index_head_weights(struct workspace *w, const struct mla *a, float *out, const float *x, size_t S);
/* Returns the indexer of the workspace's model. Its `kept` is at most the workspace's context. */
struct indexer index_of(const struct workspace *w);

#endif
