/* engine/pass/indexing.h -- the indexer of one layer, for the rows of a pass (sparse attention; ops/indexer.h). */
#ifndef VB_INDEXING_H
#define VB_INDEXING_H

#include "engine/pass/pass.h"
#include "ops/indexer.h"

/* A step of the layer: replaces the tokens that each row sees by those that the layer's indexer chooses, or, in a layer
 * without an indexer, by those that the last indexer chose. Does nothing in a layer that attends to all tokens. */
void choose_tokens(struct pass *p);

/* The same on the CPU (struct side): also forces and records choices, and keeps them for rows that ask for it. */
void index_tokens(struct pass *p);

/* The model's indexer. It keeps at most as many tokens as a sequence of the session can have. */
struct indexer index_of(const struct pass *p);
/* out [S, heads] = weights_proj(x), for x [S, d], with the roundings of convention indexer-weights. Uses p->w.delta. */
void index_head_weights(struct pass *p, float *out, const float *x, size_t S);

#endif
