/* engine/pass/forward.h -- one forward pass of rows through the transformer.
 *
 * A row is one token on its way through the model (engine/pass/row.h). The same function (forward_target) does prefill,
 * decoding and the verification of drafts. The rows of a pass may belong to several sequences. The results of a row
 * depend only on the tokens to which it attends. Sizes in brackets use the letters of docs/SEMANTICS.md. */
#ifndef VB_FORWARD_H
#define VB_FORWARD_H

#include "engine/pass/pass.h"

/* Runs the target on rows [S], S <= max_rows, and writes p->w.hidden [S, d]. The rows of one sequence are in ascending
 * order of index, and the caller has appended their slots to the cache of the sequence. Returns 0, or -1 if p->stop
 * ended the pass. After -1, the caller removes the rows from the caches. */
int forward_target(struct pass *p, const struct row *rows, size_t S);

/* Runs the MTP module of one depth on S rows (docs/SEMANTICS.md, "MTP module k"). It computes x = eh_proj
 * [RMSNorm_e(Emb(token)) ; RMSNorm_h(h)], y = decoder_layer(x), and g = shared_head.norm(y). The output head of the
 * module reads g. `next` is the input of the next depth. It is a copy of g, or of y with convention
 * draft-hidden=pre-norm. h, g and next are [S, d]. `next` may be the same array as h, or NULL: nobody needs it. The
 * cache of each row's sequence has one layer. Parallel heads and EAGLE heads have another input, or no norm
 * (engine/pass/layer.c). */
void forward_mtp(struct pass *p, const struct mtp_module *module, int depth, const struct row *rows, const float *h,
                 float *g, float *next, size_t S);

/* Computes logits [S, V] = head(hidden). The hidden states are normalised already. */
void forward_head(struct pass *p, const struct weight_view *head, float *logits, const float *hidden, size_t S);
/* Computes best [S]: the tokens with the largest of these logits (ops/argmax.h), for S <= max_logit_rows. p->w.logits
 * is overwritten, or its twin: a device that has the head sends only the tokens back. */
void forward_head_best(struct pass *p, const struct weight_view *head, int32_t *best, const float *hidden, size_t S);
/* Computes logits [S, vocab->count]: the same for the tokens of a list alone, with the head of the MTP module of this
 * number. */
void forward_listed(struct pass *p, const vb_draft_vocab *vocab, int module, float *logits, const float *hidden,
                    size_t S);

/* Reports logits [count, vocab_size] to the tap callback. These logits belong to rows [first, first + count) of the
 * newest pass. */
void forward_tap_logits(const struct pass *p, const float *logits, size_t vocab_size, size_t first, size_t count);

#endif
