/* engine/pass/forward_internal.h -- parts of a pass that engine/pass/operators.c also computes alone. */
#ifndef VB_FORWARD_INTERNAL_H
#define VB_FORWARD_INTERNAL_H

#include "engine/pass/forward.h"
#include "ops/attention.h"
#include "ops/mlp.h"

struct attention forward_attention(const struct workspace *w, const struct mla *a);
struct mlp_weights forward_mlp_weights(const struct mlp *m);

/* Sets w->ids, w->cos_sin and w->places from the tokens, the positions and the caches of the rows. */
void forward_rows(struct workspace *w, const struct row *rows, size_t S);
/* Computes w->x, the embeddings that an MTP module reads, from w->ids. */
void forward_module_embedding(struct workspace *w, const struct mtp_module *module, const struct row *rows, size_t S);
/* Mistral 4: the queries q [heads,n+r] of a row are multiplied by a factor that grows with its position
 * (config_query_scale); it is 1 in other models. */
float forward_query_scale(const struct workspace *w, const struct row *row);
/* Applies RoPE to the queries in w->q, and scales them. Normalises the latent vectors in w->kv_a, applies RoPE to their
 * RoPE parts, and writes both to the cache. The cache may round them; with taps, w->kv_a then receives the rounded
 * numbers. Sets w->seen. */
void forward_cache_rows(struct workspace *w, const struct mla *a, size_t layer, const struct row *rows, size_t S);
/* Computes attention (w->heads) for all rows, from w->q and w->seen. */
void forward_attend(struct workspace *w, const struct attention *a, const struct row *rows, size_t S);
/* Computes the router's logits (w->scores) of x [S,d]. `scratch` [S,d] is not x. */
void forward_gate(struct workspace *w, const struct router *router, const struct moe *moe, const float *x,
                  float *scratch, size_t S);
/* On entry, w->forced[s] is row.forced or row.forced_kept of row s. Changes it to the address of the numbers of one
 * layer, which begin at number `at`, or to NULL if nothing is forced there. Returns w->forced, or NULL if no row has
 * forced numbers. */
const int32_t *const *forward_forced(struct workspace *w, size_t at, size_t S);

#endif
