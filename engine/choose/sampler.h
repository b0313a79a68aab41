/* engine/choose/sampler.h -- how the target's token is chosen from its row of logits (docs/ARITHMETIC.md, rule 8).
 *
 * Order: logit bias; repetition penalty over prompt and output; minus presence, minus frequency * count over the
 * output; mask; then argmax at temperature 0, else z / T, top-k, top-p, min-p, and one random number that depends on
 * (seed, index of the token) alone, so that a drafted run follows the very path that plain decoding takes. */
#ifndef VB_SAMPLER_H
#define VB_SAMPLER_H

#include "engine/choose/random.h"
#include "engine/base/support.h"

struct sampler;

/* Refuses values out of range, naming option and value. */
int sampler_open(struct sampler **out, const vb_sampling *options, size_t vocab_size, const vb_allocator *a, vb_error *err);
void sampler_close(struct sampler *s, const vb_allocator *a);

/* The timeline that penalties look at: its prompt tokens, then each chosen token. sampler_restart forgets all. */
void sampler_restart(struct sampler *s);
void sampler_saw_prompt(struct sampler *s, int32_t token);
void sampler_saw_output(struct sampler *s, int32_t token);
void sampler_forget_output(struct sampler *s, int32_t token); /* it was a draft */
/* How often the output had it. */
int32_t sampler_in_output(const struct sampler *s, int32_t token);

/* The token of index `index`, given the row of logits [V], which must be finite, and the tokens before it (for the
 * mask). -1 when no candidate is left. Does not count the token as output: sampler_saw_output does. */
int32_t sampler_choose(struct sampler *s, const float *logits, const int32_t *tokens, size_t index);

/* The same up to the random number: weights [V], which stay valid until the next call; 0 for what is no candidate. Returns
 * their sum, in double, ascending index, from +0: 0 when no candidate is left. At temperature 0 the best token weighs 1. */
double sampler_distribution(struct sampler *s, const float *logits, const int32_t *tokens, size_t index, const double **weights);
/* The first token whose cumulative sum exceeds u * total, u in [0, 1); -1 when none weighs anything. */
int32_t weighted_choice(const double *weights, size_t V, double total, double u);

/* Of the row looked at last: why the token was no candidate (VB_REJECT_MASKED, VB_REJECT_CUT_OFF); `otherwise`: it was one. */
enum vb_reject sampler_excluded(const struct sampler *s, int32_t token, enum vb_reject otherwise);

/* How close a token is to the best of its row after bias, penalties and mask, at temperature 1: rank, 0 for the best; its
 * weight exp(z - z_best) and that of all, of which the best's is 1; log p_best - log p. */
struct closeness {
    size_t rank;
    double weight, total, nats;
};
struct closeness sampler_closeness(struct sampler *s, const float *logits, const int32_t *tokens, size_t index, int32_t token);

/* argmax, lowest index. n >= 1. */
int32_t argmax(const float *z, size_t n);
int all_finite(const float *z, size_t n);

#endif
