/* engine/choose/random.h -- random numbers without a state. Each number depends only on the seed, the index of a token,
 * and the stream.
 *
 * So the random number of a token is the same with and without drafts. Therefore decoding with drafts can choose the
 * same tokens as decoding without drafts. */
#ifndef VB_RANDOM_H
#define VB_RANDOM_H

#include <stdint.h>

/* Philox4x32-10 (Salmon et al. 2011): computes four random words from a counter and a key. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* The stream is the purpose of a random number. Stream 0 chooses the target's token. Stream 1 draws a draft from a
 * drafter's distribution. Stream 2 accepts or rejects this draft. Stream 3 draws the token that replaces a rejected
 * draft. */
enum random_stream { RANDOM_TARGET, RANDOM_DRAFT, RANDOM_ACCEPTANCE, RANDOM_RESIDUAL };
/* Returns a random number in [0, 1), with 53 random bits, for the token with this index. */
double random_at(uint64_t seed, uint64_t index, enum random_stream stream);

#endif
