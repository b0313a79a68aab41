/* ops/embed.h -- token embedding: copies row tok[s] of the matrix, converted to f32 exactly.
 *
 *     y[s,d] = W[tok[s], d]                  W [V,D] as stored   tok [S], each in [0, V)   y [S,D], rows ldy floats apart
 *
 * The letters are those of docs/SEMANTICS.md. */
#ifndef VB_EMBED_H
#define VB_EMBED_H

#include "ops/op.h"

void op_embed(float *y, size_t ldy, const struct weight_view *w, const int32_t *tok, size_t S);

#endif
