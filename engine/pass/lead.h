/* engine/pass/lead.h -- rank 0 tells the other ranks which passes to compute (engine/verbatim_ranks.h).
 *
 * The other ranks have copies of everything that a pass reads: the weights of their share, a workspace, and the cache
 * rows. A message names the rows of the pass, and for each row the slots of the tokens to which it attends. So the
 * other ranks need no sequences, drafts or sampling. Each of these functions does nothing if there is only one process,
 * or on a rank other than 0. */
#ifndef VB_LEAD_H
#define VB_LEAD_H

#include "engine/pass/forward.h"

/* Call these before a pass. lead_target returns -1 if w->stop ended the pass before it began, else 0. For lead_head,
 * `head` is an output head of the model. If `vocab` is not NULL, only the rows of its tokens are multiplied. `bf16` is
 * the caller's op_ctx.bf16. */
int lead_target(struct workspace *w, const struct row *rows, size_t S);
void lead_mtp(const struct workspace *w, const struct mtp_module *module, int depth, const struct row *rows,
              const float *h, size_t S);
void lead_head(const struct workspace *w, const struct weight_view *head, const vb_draft_vocab *vocab, int bf16,
               const float *hidden, size_t S);

/* Call this after a workspace was opened: the other ranks open a workspace of the same sizes. */
int lead_workspace(struct workspace *w, int exact, vb_error *err);
void lead_no_workspace(struct workspace *w);
/* Call this after a pool was opened whose rows are written by passes of a model. `ranks` is model.ranks. */
int lead_pool(struct kvpool *pool, struct vb_ranks *ranks, vb_error *err);
void lead_no_pool(struct kvpool *pool);
/* Call this after a draft vocabulary was opened: the other ranks open the same. */
int lead_vocab(vb_draft_vocab *vocab, vb_error *err);
void lead_no_vocab(vb_draft_vocab *vocab);
/* Call this after something other than a pass wrote the rows of tokens [first, first + count) of the cache. */
void lead_rows(const struct kvcache *cache, size_t first, size_t count);

#endif
