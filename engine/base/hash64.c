/* engine/base/hash64.c -- eight lanes of multiply, rotate, multiply.
 *
 * Each step is a bijection of its lane, and so is each step at the end: a difference in one word cannot get lost. */
#include "engine/base/hash64.h"

#include <string.h>

#define LANES 8
#define BLOCK (LANES * sizeof(uint64_t))
#define ODD_1 0xd6e8feb86659fd93u /* odd numbers with about as many ones as zeros */
#define ODD_2 0x9e3779b97f4a7c15u

static inline uint64_t step(uint64_t lane, uint64_t word)
{
    lane += word * ODD_1;
    return (lane << 31 | lane >> 33) * ODD_2;
}

/* Every bit of the result depends on every bit of x. */
static uint64_t spread(uint64_t x)
{
    x = (x ^ x >> 32) * ODD_1;
    x = (x ^ x >> 29) * ODD_2;
    return x ^ x >> 32;
}

static void add_block(uint64_t lane[LANES], const unsigned char *data)
{
    for (size_t i = 0; i < LANES; i++) {
        uint64_t word;
        memcpy(&word, data + i * sizeof word, sizeof word);
        lane[i] = step(lane[i], word);
    }
}

uint64_t hash64(uint64_t seed, const void *data, size_t size)
{
    const unsigned char *at = data;
    unsigned char last[BLOCK] = {0};
    uint64_t lane[LANES], h = spread(seed ^ size);
    for (size_t i = 0; i < LANES; i++)
        lane[i] = h + i * ODD_2;
    size_t left = size;
    for (; left >= BLOCK; left -= BLOCK, at += BLOCK)
        add_block(lane, at);
    if (left) {
        memcpy(last, at, left);
        add_block(lane, last);
    }
    for (size_t i = 0; i < LANES; i++)
        h = spread(h ^ lane[i]);
    return h;
}
