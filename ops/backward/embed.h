/* ops/backward/embed.h -- the gradient of the embedding, y[s] = W[tok[s]] (ops/embed.h).
 *
 *     dw[tok[s],d] = dw[tok[s],d] + dy[s,d]        s ascending
 *
 *   dw [V,D]   tok [S]   dy [S,D]      dw is continued */
#ifndef VB_BACKWARD_EMBED_H
#define VB_BACKWARD_EMBED_H

#include "ops/backward/backward.h"

void op_back_embed(const struct op_ctx *cx, float *dw, const float *dy, const int32_t *tok, size_t S, size_t D);

#endif
