/* engine/base/numbers.h -- the smaller and the larger of two numbers, one step of FNV-1a, and a clock. */
#ifndef VB_NUMBERS_H
#define VB_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }

/* One step of 64-bit FNV-1a. The step hashes a word of 32 bits instead of a byte. */
static inline uint64_t fnv1a_word(uint64_t hash, uint32_t word) { return (hash ^ word) * 1099511628211u; }

/* Returns the seconds since a fixed moment in the past. The result never decreases. */
double monotonic_seconds(void);

#endif
