/* engine/choose/sampler.h -- chooses the target's token from its row of logits (docs/ARITHMETIC.md, rule 8).
 *
 * These steps change the logits z, in this order: add the logit bias; apply the repetition penalty to tokens of prompt
 * and output; for tokens of the output, subtract the presence penalty, and the frequency penalty times the token's
 * count; apply the mask. At temperature 0, the token is then the argmax. At temperature T, z / T, top-k, top-p and
 * min-p follow, and one random number chooses among the remaining tokens. The random number depends only on the seed
 * and the token's index, so decoding with drafts chooses the same tokens as plain decoding. */
#ifndef VB_SAMPLER_H
#define VB_SAMPLER_H

#include "engine/choose/random.h"
#include "engine/base/support.h"

struct sampler;

/* Returns VB_BAD_ARGUMENT, naming option and value, if a value is out of range. The caller closes *out with
 * sampler_close. */
int sampler_open(struct sampler **out, const vb_sampling *options, size_t vocab_size, const vb_allocator *a, vb_error *err);
void sampler_close(struct sampler *s, const vb_allocator *a);

/* Penalties need to know which tokens the prompt and the output have. The caller reports each of them here.
 * sampler_restart forgets all tokens. */
void sampler_restart(struct sampler *s);
void sampler_saw_prompt(struct sampler *s, int32_t token);
void sampler_saw_output(struct sampler *s, int32_t token);
void sampler_forget_output(struct sampler *s, int32_t token); /* undoes sampler_saw_output, for a draft */
/* Returns how many times the output has the token. */
int32_t sampler_in_output(const struct sampler *s, int32_t token);

/* Returns the first code other than VB_OK that the caller's mask has returned since the last call of this function, or VB_OK. If the
 * mask failed, the tokens chosen since then are meaningless. */
int sampler_mask_failed(struct sampler *s);

/* Chooses the token with index `index` from its row of logits [V], which must be finite. `tokens` are the tokens before
 * it, for the mask. Returns -1 if no token is allowed. The chosen token is not yet counted as output: the caller does
 * this with sampler_saw_output. */
int32_t sampler_choose(struct sampler *s, const float *logits, const int32_t *tokens, size_t index);

/* As sampler_choose, but draws no random number. *weights becomes an array [V] of weights, valid until the next call;
 * tokens that cannot be chosen have weight 0. At temperature 0 the best token has weight 1. Returns the sum of the
 * weights, which is 0 if no token is allowed. The sum is in double, starts at +0, and goes over ascending indices. */
double sampler_distribution(struct sampler *s, const float *logits, const int32_t *tokens, size_t index, const double **weights);
/* Returns the first token whose cumulative weight is larger than u * total, for u in [0, 1). If rounding leaves none,
 * it returns the last token with a weight, and -1 if all weights are 0. */
int32_t weighted_choice(const double *weights, size_t V, double total, double u);

/* Returns why `token` could not be chosen in the row that was sampled last: VB_REJECT_MASKED or VB_REJECT_CUT_OFF. If
 * it could be chosen, it returns `otherwise`. */
enum vb_reject sampler_excluded(const struct sampler *s, int32_t token, enum vb_reject otherwise);

/* Compares a token with the best token of its row, after bias, penalties and mask, at temperature 1. rank is 0 for the
 * best token. weight is exp(z - z_best), and total is the sum of these weights over all tokens. nats is log p_best -
 * log p. */
struct closeness {
    size_t rank;
    double weight, total, nats;
};
struct closeness sampler_closeness(struct sampler *s, const float *logits, const int32_t *tokens, size_t index, int32_t token);

/* Returns the index of the largest number, the lowest among equals. n >= 1. */
int32_t argmax(const float *z, size_t n);
int all_finite(const float *z, size_t n);

#endif
