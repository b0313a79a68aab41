/* engine/pass/feed_forward.h -- the steps of the feed-forward part: an MLP, or a router and its experts. */
#ifndef VB_FEED_FORWARD_H
#define VB_FEED_FORWARD_H

#include "engine/pass/pass.h"
#include "ops/mlp.h"
#include "ops/router.h"

void dense_mlp(struct pass *p);

/* The router's logits; then the experts of each row and their weights; then their outputs, and those of the shared
 * experts, added up. */
void router_logits(struct pass *p);
void route(struct pass *p);
void routed_experts(struct pass *p);

struct mlp_weights mlp_weights_of(const struct mlp *m);

/* On entry, p->w.forced[s] is row.forced or row.forced_kept of row s. Changes it to the address of the numbers of one
 * layer, which begin at number `at`, or to NULL if nothing is forced there. Returns p->w.forced, or NULL if no row has
 * forced numbers. */
const int32_t *const *forced_numbers(struct pass *p, size_t at, size_t S);

#endif
