/* engine/session/routes.h -- forced routes: experts that the tokens of a session must take, and sets of tokens to which
 * they must attend; recorded routes: experts that they took, and sets of tokens to which they attended.
 *
 * Routes are indexed by token, so chunks, drafts and batches do not matter. The row of a token depends on the routes of
 * this token and of all tokens before it: sequences may share rows only if all these routes are the same. */
#ifndef VB_SESSION_ROUTES_H
#define VB_SESSION_ROUTES_H

#include "engine/session/session.h"

/* Checks the routes (vb_session_options.routes) and copies them. The experts of a MoE layer are in ascending order;
 * dense layers contain -1. Kept sets are in ascending order, too. They contain -1 in layers without an indexer, and
 * where all tokens that can be seen are kept anyway. The copy comes from the model's allocator; routes_free frees it.
 * Without routes and after an error, both pointers of *copy are NULL. Returns VB_BAD_ARGUMENT if the routes do not fit
 * the model. */
int routes_copy(vb_routes *copy, const struct vb_model *m, const vb_routes *r, vb_error *err);
void routes_free(const struct vb_model *m, vb_routes *copy);

/* Makes s->options.routes a copy of itself, and allocates s->taken and s->taken_kept for `rows` rows if the session
 * records them. routes_close frees them. */
int routes_open(struct vb_session *s, size_t rows, vb_error *err);
void routes_close(struct vb_session *s);

/* The next functions read copies that routes_copy made. */
/* Returns the forced experts of a token, [layers, experts per token], or NULL. */
static inline const int32_t *routes_forced(const vb_routes *r, size_t index)
{
    return r->experts && index < r->tokens ? r->experts + index * (size_t)(r->layers * r->top_k) : NULL;
}
/* Returns the forced sets of a token, [layers, index_topk], or NULL. */
static inline const int32_t *routes_kept(const vb_routes *r, size_t index)
{
    return r->kept && index < r->tokens ? r->kept + index * (size_t)r->layers * (size_t)r->index_topk : NULL;
}
/* The next two functions compare only layers of the target: no row of a session depends on routes of MTP depths,
 * because vb_evaluate keeps the rows of MTP modules in caches of its own. */
/* Returns how many of the first `tokens` tokens have the same forced routes and kept sets in a and b, up to the first
 * difference. */
size_t routes_alike(const struct vb_model *m, const vb_routes *a, const vb_routes *b, size_t tokens);
#define ROUTES_HASH 17 /* room for a hash in hexadecimal digits and the final 0 */
/* Writes a hash of the forced routes of the first `tokens` tokens, or "none" if nothing is forced there. */
void routes_hash(const struct vb_model *m, const vb_routes *r, size_t tokens, char hash[ROUTES_HASH]);

/* Recorded routes. Row `row` of a pass will record what the token at `index` takes. */
void routes_record(const struct vb_session *s, struct row *row, size_t index);
/* Copies the recorded row `from` of `other` to row `to` of s. What s does not record is left out. */
void routes_take_row(struct vb_session *s, size_t to, const struct vb_session *other, size_t from);
/* Records -1 for the first `rows` tokens, whose rows s does not compute. */
void routes_unknown(struct vb_session *s, size_t rows);

#endif
