/* engine/choose/random.h -- random numbers that depend on (seed, index of the token, stream) alone: whoever asks gets the same, so a
 * drafted run can follow the path of plain decoding. */
#ifndef VB_RANDOM_H
#define VB_RANDOM_H

#include <stdint.h>

/* Philox4x32-10 (Salmon et al. 2011): counter and key -> four words. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* What a number is for: the target's token; a draft drawn from its module's distribution; whether that draft stands; the
 * token in place of one that does not. */
enum random_stream { RANDOM_TARGET, RANDOM_DRAFT, RANDOM_ACCEPTANCE, RANDOM_RESIDUAL };
/* u in [0, 1) for the token of this index: 53 bits. */
double random_at(uint64_t seed, uint64_t index, enum random_stream stream);

#endif
