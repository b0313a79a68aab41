/* reference/eagle.h -- EAGLE heads in double: drafts, the losses of training, and the gradients of the head's tensors.
 *
 * Row i of depth k reads tok[i+k+1] and a hidden state h^k_i, and predicts tok[i+k+2]. In the formulas, d is the width
 * of the head, and T that of the target's rows:
 *
 *     EAGLE-1   h^0_i: the target's row i after model.norm          x = W_fc [Emb(tok) ; h] + bias      attention reads
 *               x
 *     EAGLE-3   h^0_i = W_fc [three rows of the target's residual stream, before the layers of config_three_layers];
 *               with norm_before_fc after an RMSNorm of all three together, with fc_norm each after its own x = h, or
 *               RMSNorm_h(h) with norm_before_residual    attention reads [RMSNorm_e(Emb(tok)) ; RMSNorm_h(h)]
 *     both      m = x + attention;   y = m + mlp(RMSNorm(m));   h^{k+1} = y, or RMSNorm(y) as below with norm_output
 *     EAGLE-1   logits = W_head y, with the target's W_head         EAGLE-3   logits = W_head RMSNorm(y), over the
 *               head's own vocabulary
 *
 * Attention is grouped-query attention (ops/gqa.h has the formula), with RoPE in pairs (j, j + D/2).
 *
 * The sources are Li et al. 2024 and 2025 (arXiv 2401.15077, 2503.01840), and SafeAILab/EAGLE, commit cb7e084:
 * cnets1.py and cnets.py in eagle/model/, eagle/train/ and eagle/traineagle3/; for the keys of config.json
 * vllm-project/speculators, commit c05b95b, src/speculators/models/eagle3/. */
#ifndef VB_REFERENCE_EAGLE_H
#define VB_REFERENCE_EAGLE_H

#include "reference/backward.h"

struct reference_eagle;

/* Opens the EAGLE head in `dir` that drafts for `target`; `version` is 1 or 3. The caller closes *out with
 * reference_eagle_close, before the target. Returns the errors of config_read_eagle, VB_BAD_CHECKPOINT if a tensor is
 * missing or has a wrong shape, and VB_NO_MEMORY. */
int reference_eagle_open(struct reference_eagle **out, const char *dir, int version, const struct reference *target,
                         vb_error *err);
void reference_eagle_close(struct reference_eagle *e);

/* Sizes: of the target's rows that the head reads (T, or 3T with EAGLE-3), of the head (d), and of its logits (V). */
struct reference_eagle_sizes {
    int row, width, vocab;
};
struct reference_eagle_sizes reference_eagle_sizes(const struct reference_eagle *e);
/* Returns the target's token for the head's token id. */
int32_t reference_eagle_token(const struct reference_eagle *e, int id);

/* Drafts at temperature 0. rows [N, row] are the target's rows 0..N-1, and tokens [N] what these rows of the head read:
 * tokens[i] follows token
 * i. The head then goes on alone: row N+j reads draft j and h^1 of row N-1+j, for j < K. hidden [N+K, d] receives what
 *    the row after each takes, and logits
 * [N+K, V] theirs; drafts [K] the target's tokens that rows N-1 .. N+K-2 propose. Each array may be NULL. Of the
 * options (NULL: all are 0), perturb and hook are used; the values are those of reference_eagle_backward.
 *
 * Returns VB_BAD_ARGUMENT if a token is outside of the vocabulary or N < 1, and VB_NOT_FINITE if a draft's logit is not
 * finite. */
int reference_eagle_draft(const struct reference_eagle *e, const struct reference_options *options, const double *rows,
                          const int32_t *tokens, int N, int K, int32_t *drafts, double *hidden, double *logits,
                          vb_error *err);

/* Allocates gradients of the head's tensors, all 0, in the order of names: of every matrix and vector of its files that
 * it computes with, also of an embedding of its own. Trainers that keep the embedding as it is do not use this one. The
 * caller closes *g with reference_gradients_close. */
int reference_eagle_gradients_open(struct reference_gradients *g, const struct reference_eagle *e, vb_error *err);

/* Computes the losses of one training step of a head whose target stays as it is (docs/TRAINING.md, "Other losses",
 * where the head takes the place of module 0). options->loss names the loss; NULL: Megatron's. Every loss is possible,
 * and its depths are aligned or unrolled; CHAIN_MODULES is the same as CHAIN_UNROLLED, as there is one head;
 * options->heads is not read. The target is not trained: losses->main is 0 and not part of losses->total, and its
 * weight is not used. If the loss is detached, h^k of k > 0 is constant, so that of EAGLE-3 no gradient flows through
 * them; but h^0 = W_fc [..] is part of the head, and W_fc has its gradient.
 *
 * With an EAGLE-3 head that has a vocabulary of its own, distributions are those over this vocabulary: p = softmax of
 * the target's logits of these tokens alone, and the top tokens are among them. A row has soft and top terms, and an
 * entropy, only if the target's best token is in the vocabulary, and a data term only if the text's token is. The sums
 * are divided by the number of all rows, also of those without terms.
 *
 * If g is not NULL, adds the gradient of losses->total to it. The hooks receive the target's values, and of depth k,
 * whose `layer` is num_hidden_layers + k: embed, taken and fc [d] (EAGLE-3: fc before taken, of depth 0 only, and
 * before it input_norm or fc_norm [3T] if there is one), input_layernorm and hidden_norm [d] with EAGLE-3, concat [2d],
 * q [HD], k and v [GD], q_rope [S*H, D], k_rope [S*G, D], scores and probabilities [S] for each head, heads [HD],
 * attention [d], residual [d], the values of an MLP, residual [d], norm [d] with EAGLE-3, and logits [V]. If depths are
 * aligned, depth k computes the rows of the depths before it again, as in reference_backward.
 *
 * Returns the errors of reference_backward, and VB_BAD_ARGUMENT for a loss of features with EAGLE-3, whose h has no
 * counterpart in the target. */
int reference_eagle_backward(const struct reference_eagle *e, const struct reference_loss_options *options,
                             const struct reference_sequence *sequences, int count, struct reference_losses *losses,
                             struct reference_gradients *g, vb_error *err);

#endif
