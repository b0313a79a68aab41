/* engine/session/prefill.h -- option `prefill`: whether oneDNN computes the linear layers of prompts, which is faster.
 *
 * With prefill onednn, oneDNN computes the rows of the original prompt, that is, of all tokens appended before anything
 * was generated. These rows are computed in chunks of 512, which begin at multiples of 512. Each chunk is a pass of its
 * own, and is never split. oneDNN also computes the rows of MTP modules that become final with such a chunk.
 *
 * The engine's own kernels compute everything else: generated tokens, text appended after them, vb_evaluate, logits and
 * drafts. In the prompt's passes, they also compute norms, RoPE, attention and the router. If the sequence is cut
 * inside a chunk, the whole chunk is computed again.
 *
 * Which rows oneDNN computes, and in which chunks, depends only on the tokens that were appended and removed, and not
 * on drafts. So decoding with drafts still has the same bits as decoding without. oneDNN's sums depend on the number of
 * rows, on how W is divided into tasks, on its version, and on the CPU. Each call uses one thread, and W is always
 * divided in the same way. So the number of threads does not change any bit, and neither does option `isa`.
 *
 * oneDNN multiplies BF16 by BF16 only. So if the weights are BF16, these passes round x as in precision bf16, even if
 * the session has another precision. */
#ifndef VB_PREFILL_H
#define VB_PREFILL_H

#include "engine/session/session.h"

#define PREFILL_CHUNK 512

/* Checks option `prefill`, the chunk size, and the types of all weights that oneDNN would read. With prefill onednn, it
 * opens oneDNN for each thread of s->work. */
int prefill_open(struct vb_session *s, vb_error *err);
void prefill_close(struct vb_session *s);

/* Returns the number of rows of the next pass if it is a chunk for oneDNN, else 0. */
size_t prefill_rows(const struct vb_session *s);
/* Returns the first row that must be computed again so that row `row` is: the beginning of its chunk, or `row` itself. */
size_t prefill_rewind(const struct vb_session *s, size_t row);

/* Passes between prefill_begin and prefill_end use oneDNN. */
void prefill_begin(struct workspace *w);
void prefill_end(struct workspace *w);
/* Returns an error if oneDNN has failed since the last call of prefill_failed, for example without memory; else VB_OK. */
int prefill_failed(struct workspace *w, vb_error *err);

#endif
