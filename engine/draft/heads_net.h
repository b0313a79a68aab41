/* engine/draft/heads_net.h -- parallel heads as a network that drafts.
 *
 *     head k, k = 0, 1 ..: x_i = z_i;  y = decoder_layer_k(x);  logits = lm_head(norm(y)), predicting tok[i+k+2]
 *
 * z_i is the target's residual stream before the last layer, as the heads of Gloeckle et al. 2024 read it (arXiv
 * 2404.19737, section 2), or, for heads that were added to a finished model, after it (docs/SEMANTICS.md, "Parallel
 * heads"). The target's own head predicts tok[i+1]. norm and lm_head are the target's. A head reads no token, so all
 * heads can run before any of them has proposed a draft. Layers have the same kinds as the target's; each has a cache
 * of its own. */
#ifndef VB_DRAFT_HEADS_NET_H
#define VB_DRAFT_HEADS_NET_H

#include "engine/draft/drafter.h"
#include "engine/draft/net.h"

/* Opens the parallel heads in `dir`: depth k of the network is head k. Sets *count to the number of heads. The passes
 * have at most o->most_observed rows. `take` expects rows of ROWS_TRUNK. */
int heads_net_open(struct draft_net **out, int *count, const char *dir, const struct vb_model *target,
                   const struct drafter_options *o, vb_error *err);

#endif
