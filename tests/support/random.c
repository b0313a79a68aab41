/* tests/support/random.c -- splitmix64. */
#include "tests/support/random.h"
#include "numbers/numbers.h"

uint64_t next_random(uint64_t *state)
{
    return splitmix64_next(state);
}

size_t random_below(uint64_t *state, size_t n) { return (size_t)(next_random(state) % n); }
