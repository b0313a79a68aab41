/* engine/session/prefill.h -- the option `prefill`, which chooses how prompts are computed: contract (as all other
 * tokens), expanded, onednn, or cublas. All but contract are faster for long prompts, and a session has only one of
 * them.
 *
 * With prefill expanded, attention has the expanded form (ops/expanded.h) for the rows of the original prompt. The
 * original prompt consists of all tokens that were appended before the first token was generated. Its rows attend to
 * rows of the original prompt only, so all keys and values have the expanded form. Chunks, threads, instruction sets,
 * drafts and other rows of a pass change no bit. Attention has the absorbed form for all other rows: those of generated
 * tokens, of tokens that are appended after generated tokens, and of MTP modules and draft models. In vb_evaluate, rows
 * of the original prompt have the expanded form too. If the sequence
 * is truncated inside the original prompt or at its end, tokens that are appended then belong to it.
 *
 * With prefill onednn, oneDNN computes the linear layers for the rows of the original prompt. The original prompt
 * is the same as above. These rows are computed in chunks of 512 rows. The index of the first row of a chunk is a
 * multiple of 512. Each chunk is one pass without other rows, and a chunk is never split. After each chunk, the drafter
 * observes the tokens of the chunk, and rows of MTP modules become final. oneDNN also computes the linear layers for
 * these rows of MTP modules.
 *
 * The engine's own kernels compute everything else: the rows of generated tokens, the rows of tokens that are appended
 * after generated tokens, all rows in vb_evaluate, logits, and drafts. In the passes of the prompt, the engine's own
 * kernels compute norms, RoPE, attention and the router. If the sequence is truncated inside a chunk, the whole chunk
 * is computed again.
 *
 * Drafts do not influence which rows and chunks oneDNN computes. This depends only on which tokens were appended and
 * removed. So decoding with drafts still has the same bits as decoding without drafts. oneDNN's sums depend on the
 * number of rows, on how the weight matrix W is divided into tasks, on the version of oneDNN, and on the CPU. Each call
 * of oneDNN uses one thread, and W is always divided in the same way. So the number of threads changes no bit, and the
 * option `isa` changes no bit.
 *
 * oneDNN multiplies BF16 numbers only by BF16 numbers. So if the weights are BF16, these passes round the input of
 * linear layers to BF16, even if the session's precision is not bf16.
 *
 * With prefill cublas, a GPU's library computes the linear layers of the same rows in the same chunks, and of the rows
 * in vb_evaluate too, as far as the GPU computes these layers and their weights are not quantized. It
 * sums in f32 what was rounded to BF16. The GPU's own kernels compute W_uk and W_uv, which are a part of attention, and
 * all else. The CPU computes its layers as always. So the bits depend on the number of layers that the GPU computes, on
 * the version of cuBLAS and on the kind of GPU, but not on drafts, threads or `isa`. */
#ifndef VB_PREFILL_H
#define VB_PREFILL_H

#include "engine/session/session.h"

#define PREFILL_CHUNK 512   /* rows in a chunk of a prompt; exactly so many with prefill onednn and cublas */
#define EXPANDED_CHUNK 2048 /* with prefill expanded, where each chunk computes keys and values of all rows before it */

/* Returns whether the options choose prefill expanded. */
int prefill_expands(const vb_session_options *o);
/* Returns the kind of prefill of a session: "contract", "expanded", "onednn" or "cublas". */
const char *prefill_kind(const struct vb_session *s);
/* Returns whether a library computes the prompt in chunks: prefill onednn or cublas. */
int prefill_has_chunks(const struct vb_session *s);
/* Session s and another session with the same option `prefill` begin with the same tokens. The original prompt of the
 * other session has `prompt` tokens. Returns how many of the first `rows` rows are computed in the same way for
 * both. */
size_t prefill_alike(const struct vb_session *s, size_t prompt, size_t rows);

/* Checks whether the options go together with precision tensor, if the model has it. */
int prefill_check_tensor_cores(const struct vb_model *m, const vb_session_options *o, vb_error *err);
/* Checks this, and the option `prefill`, the chunk size, and the types of all weights that oneDNN would read. With
 * prefill onednn, the function opens a oneDNN object for each thread of s->pass. With prefill cublas, it opens the
 * GPU's library. */
int prefill_open(struct vb_session *s, vb_error *err);
void prefill_close(struct vb_session *s);

/* If the next pass is a chunk for a library, returns the number of its rows. Otherwise returns 0. */
size_t prefill_rows(const struct vb_session *s);
/* If row `row` must be computed again, earlier rows may have to be computed again too. Returns the first row that must
 * be computed again. If a library computes row `row`, this is the first row of its chunk; otherwise it is `row`
 * itself. */
size_t prefill_rewind(const struct vb_session *s, size_t row);

/* Passes between prefill_begin and prefill_end use the library. */
void prefill_begin(struct pass *pass);
void prefill_end(struct pass *pass);
/* Returns an error if a pass has failed since the last call of pass_failed: oneDNN, for example because there was no
 * memory, or a GPU. A GPU that has failed once fails always. Otherwise returns VB_OK. */
int pass_failed(struct pass *pass, vb_error *err);

#endif
