/* ops/embed.h -- token embedding: copies row tok[s] of the matrix, converted to f32 exactly.
 *
 *     y[s,d] = W[tok[s], d]
 *
 * W [V,D] is the embedding matrix as stored, and tok [S] has tokens in [0, V). The rows of y [S,D] are ldy floats
 * apart. V is the size of the vocabulary, D the width of the model, and S the number of tokens. */
#ifndef VB_EMBED_H
#define VB_EMBED_H

#include "ops/op.h"

void op_embed(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, const int32_t *tok, size_t S);

#endif
