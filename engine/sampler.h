/* engine/sampler.h -- how the target's token is chosen from its row of logits (rule 8 of the contract).
 *
 * Order: logit bias; repetition penalty over prompt and output; minus presence, minus frequency * count over the
 * output; mask; then argmax at temperature 0, else z / T, top-k, top-p, min-p, and one random number that depends on
 * (seed, index of the token) alone, so that a drafted run follows the very path that plain decoding takes. */
#ifndef VB_SAMPLER_H
#define VB_SAMPLER_H

#include "support.h"

struct sampler;

/* Refuses values out of range, naming option and value. */
int sampler_open(struct sampler **out, const vb_sampling *options, size_t vocab_size, const vb_allocator *a, vb_error *err);
void sampler_close(struct sampler *s, const vb_allocator *a);

/* The timeline that penalties look at: its prompt tokens, then each chosen token. sampler_restart forgets all. */
void sampler_restart(struct sampler *s);
void sampler_saw_prompt(struct sampler *s, int32_t token);
void sampler_saw_output(struct sampler *s, int32_t token);
/* How often the output had it. */
int32_t sampler_in_output(const struct sampler *s, int32_t token);

/* The token of index `index`, given the row of logits [V], which must be finite, and the tokens before it (for the
 * mask). -1 when no candidate is left. Does not count the token as output: sampler_saw_output does. */
int32_t sampler_choose(struct sampler *s, const float *logits, const int32_t *tokens, size_t index);

/* argmax, lowest index. n >= 1. */
int32_t argmax(const float *z, size_t n);
int all_finite(const float *z, size_t n);

/* Philox4x32-10 (Salmon et al. 2011): counter and key -> four words. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);
enum random_stream { RANDOM_TARGET, RANDOM_DRAFT, RANDOM_ACCEPTANCE, RANDOM_RESIDUAL };
/* u in [0, 1) for the token of this index: 53 bits. */
double random_at(uint64_t seed, uint64_t index, enum random_stream stream);

#endif
