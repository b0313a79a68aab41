/* engine/pass/layer.h -- one decoder layer, and one MTP module.
 *
 * Each function computes a part of a pass for all its rows (struct pass): it reads and changes the residual stream.
 * `p->l` is the layer, and `p->module` the module. */
#ifndef VB_LAYER_H
#define VB_LAYER_H

#include "engine/pass/pass.h"

/* The two halves of a decoder layer: x += attention(norm(x)), and x += feed_forward(norm(x)). */
void layer_attention(struct pass *p);
void layer_feed_forward(struct pass *p);
void decoder_layer(struct pass *p);

/* An MTP module, or another network of its kind (enum module_kind): what goes before eh_proj, then eh_proj and the
 * decoder layer, then the norm before the output head. */
void module_input(struct pass *p);
void module_projection(struct pass *p);
void module_layer(struct pass *p); /* module_projection and decoder_layer */
void module_output(struct pass *p);

#endif
