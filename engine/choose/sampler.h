/* engine/choose/sampler.h -- chooses the target's token from its row of logits (docs/ARITHMETIC.md, rule 8).
 *
 * These steps change the logits z, in this order: add the logit bias; apply the repetition penalty to tokens of prompt
 * and output; subtract the presence penalty for tokens of the output; subtract the frequency penalty once for each
 * occurrence of a token in the output; apply the mask. At temperature 0, the token with the largest z is then chosen.
 * At any other temperature T, z is divided by T; top-k, top-p and min-p are applied in this order; and one random
 * number chooses among the remaining tokens. The random number depends only on the seed and the token's index, so
 * decoding with drafts chooses the same tokens as plain decoding. */
#ifndef VB_SAMPLER_H
#define VB_SAMPLER_H

#include "engine/choose/random.h"
#include "engine/base/support.h"

struct sampler;

/* Returns VB_BAD_ARGUMENT if the value of an option is out of range; the message names the option and the value. The
 * caller closes *out with sampler_close. */
int sampler_open(struct sampler **out, const vb_sampling *options, size_t vocab_size, const vb_allocator *a,
                 vb_error *err);
void sampler_close(struct sampler *s, const vb_allocator *a);

/* The penalties depend on the tokens of prompt and output. The caller reports each token of the prompt with
 * sampler_saw_prompt, and each token of the output with sampler_saw_output. sampler_restart forgets all tokens. */
void sampler_restart(struct sampler *s);
void sampler_saw_prompt(struct sampler *s, int32_t token);
void sampler_saw_output(struct sampler *s, int32_t token);
void sampler_forget_output(struct sampler *s, int32_t token); /* undoes one call of sampler_saw_output; used for
                                                                 drafts */
/* Returns how many times `token` occurs in the output. */
int32_t sampler_in_output(const struct sampler *s, int32_t token);

/* Returns the first error code that the caller's mask callback has returned since the last call of sampler_mask_failed,
 * and sets *index to the index of the token for which it failed; `index` may be NULL. Returns VB_OK if there was no
 * error. The tokens chosen after such an error are meaningless. */
int sampler_mask_failed(struct sampler *s, size_t *index);

/* Chooses the token with index `index` from its row of logits [V], which must be finite. tokens[0..index) are the
 * earlier tokens, which the mask callback receives. Returns -1 if no token is allowed. The chosen token is not yet
 * counted as output: the caller does this with sampler_saw_output. */
int32_t sampler_choose(struct sampler *s, const float *logits, const int32_t *tokens, size_t index);

/* Computes the weights with which sampler_choose draws a token. Sets *weights to an array [V] of weights, which is
 * valid until the next call. Tokens that cannot be chosen have weight 0. At temperature 0 the best token has weight 1.
 * Returns the sum of the weights, which is 0 if no token is allowed. The sum begins with +0 and adds the weights in
 * double precision, in ascending order of token id. */
double sampler_distribution(struct sampler *s, const float *logits, const int32_t *tokens, size_t index,
                            const double **weights);
/* Returns the first token whose cumulative weight is larger than u * total, for u in [0, 1). Because of rounding there
 * may be no such token; the function then returns the last token whose weight is not 0. If all weights are 0, returns
 * -1. */
int32_t weighted_choice(const double *weights, size_t V, double total, double u);

/* Says why the last call of sampler_choose or sampler_distribution could not choose `token`. Returns VB_REJECT_MASKED
 * or VB_REJECT_CUT_OFF. If `token` could have been chosen, returns `otherwise`. */
enum vb_reject sampler_excluded(const struct sampler *s, int32_t token, enum vb_reject otherwise);

/* Compares a token with the best token of its row, at temperature 1. The logits z include bias, penalties and mask.
 * rank is the number of better tokens. weight is exp(z - z_best), and total is the sum of these weights over all
 * tokens. nats is log p_best - log p. */
struct closeness {
    size_t rank;
    double weight, total, nats;
};
struct closeness sampler_closeness(struct sampler *s, const float *logits, const int32_t *tokens, size_t index,
                                   int32_t token);

/* Returns the index of the largest of n >= 1 numbers. If several numbers are equally large, returns the lowest of their
 * indices. */
int32_t argmax(const float *z, size_t n);
int all_finite(const float *z, size_t n);

#endif
