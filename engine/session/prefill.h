/* engine/session/prefill.h -- option `prefill`: which passes are given to oneDNN's linear layers, for speed.
 *
 * With onednn, rows of the original prompt are its: those of tokens that were appended before anything was generated, in
 * chunks of 512 from index 0, each computed whole and by itself, and the MTP modules' rows that such a chunk makes final. All
 * else stays on the contract's kernels: generated tokens, text appended after them, what vb_evaluate computes, logits, drafts;
 * and so do norms, RoPE, attention and the router in these passes too. A cut goes back to where a chunk begins. So whose a
 * row is, and with which rows it was computed, depends on what was appended and cut, and not on drafts: decoding with drafts
 * still gives every bit of decoding without. oneDNN's sums depend on the number of rows, on the cut of W into tasks, on its
 * version and on the CPU: each call has one thread and a cut that is always the same, so that the number of threads reaches no
 * bit, nor does the instruction set, which is ours.
 *
 * oneDNN takes BF16 with BF16 only: with BF16 weights these passes are rounded as in precision bf16, whatever the session's. */
#ifndef VB_PREFILL_H
#define VB_PREFILL_H

#include "engine/session/session.h"

#define PREFILL_CHUNK 512

/* Checks the option, the chunk and every weight that it would meet; opens oneDNN for the threads of s->work. */
int prefill_open(struct vb_session *s, vb_error *err);
void prefill_close(struct vb_session *s);

/* How many rows the next pass has, if it is such a chunk; else 0. */
size_t prefill_rows(const struct vb_session *s);
/* Where to begin for row `row` to be computed again. */
size_t prefill_rewind(const struct vb_session *s, size_t row);

/* The passes between the two are oneDNN's. */
void prefill_begin(struct workspace *w);
void prefill_end(struct workspace *w);
/* What it could not do since this was asked last, its memory running out, say. */
int prefill_failed(struct workspace *w, vb_error *err);

#endif
