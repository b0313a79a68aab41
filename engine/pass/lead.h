/* engine/pass/lead.h -- rank 0 tells the other ranks which passes to compute (engine/verbatim_ranks.h).
 *
 * The other ranks have copies of everything that a pass reads: the weights of their share, a struct pass, and the cache
 * rows. A message names the rows of the pass, and for each row the slots of the tokens to which it attends. So the
 * other ranks need no sequences, drafts or sampling. Each of these functions does nothing if there is only one process,
 * or on a rank other than 0. */
#ifndef VB_LEAD_H
#define VB_LEAD_H

#include "engine/pass/pass.h"

/* Call this after pass_open: the other ranks open the same, and from now on compute the passes too (struct runner). */
int lead_pass(struct pass *p, int exact, vb_error *err);
/* For an output head of p->model that somebody else multiplies: the other ranks compute their share of it. If `vocab`
 * is not NULL, only the rows of its tokens are multiplied. `how` is the arithmetic of whoever multiplies. */
void lead_head(const struct pass *p, const struct weight_view *head, const vb_draft_vocab *vocab,
               const struct arithmetic *how, const float *hidden, size_t S);

/* Call this after a pool was opened whose rows are written by passes of a model: the other ranks open a copy of it
 * (struct pool_twin). `ranks` is model.ranks. */
int lead_pool(struct kvpool *pool, struct vb_ranks *ranks, vb_error *err);
/* Call this after a draft vocabulary was opened: the other ranks open the same. */
int lead_vocab(vb_draft_vocab *vocab, vb_error *err);
void lead_no_vocab(vb_draft_vocab *vocab);

#endif
