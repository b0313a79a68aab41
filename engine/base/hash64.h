/* engine/base/hash64.h -- a 64-bit hash of bytes that is as fast as memory, for the fingerprints of models.
 *
 * One core hashes several gigabytes per second; crc64 is slower. Two different inputs have the same hash with a
 * probability of about 2^-64. Two inputs of one call always have different hashes if they differ in one word of eight
 * bytes only, at a multiple of eight bytes. The hash does not protect against somebody who searches for two inputs with
 * the same hash. The result is the same on every machine that Verbatim supports: all of them are little-endian. */
#ifndef VB_HASH64_H
#define VB_HASH64_H

#include <stddef.h>
#include <stdint.h>

/* Returns the hash of `size` bytes at `data`, which need no alignment. `seed` is any number; another seed gives an
 * unrelated hash. The result for one piece of data may be the seed for the next. */
uint64_t hash64(uint64_t seed, const void *data, size_t size);

#endif
