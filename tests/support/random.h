/* tests/support/random.h -- random numbers for tests (splitmix64). The same seed always gives the same numbers. */
#ifndef VB_TEST_RANDOM_H
#define VB_TEST_RANDOM_H

#include <stddef.h>
#include <stdint.h>

uint64_t next_random(uint64_t *state);

/* A number in [0, n). */
size_t random_below(uint64_t *state, size_t n);

#endif
