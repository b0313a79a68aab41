/* numbers/numbers.h -- arithmetic that every folder may use: sizes, hashes, random numbers. */
#ifndef VB_NUMBERS_H
#define VB_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline size_t divide_up(size_t n, size_t by) { return (n + by - 1) / by; }
static inline size_t round_up(size_t n, size_t unit) { return divide_up(n, unit) * unit; }

/* 64-bit FNV-1a of bytes, or of words of 32 bits. A hash begins with FNV1A_START. */
#define FNV1A_START 14695981039346656037u
static inline uint64_t fnv1a_word(uint64_t hash, uint32_t word) { return (hash ^ word) * 1099511628211u; }
static inline uint64_t fnv1a_bytes(uint64_t hash, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = fnv1a_word(hash, ((const unsigned char *)data)[i]);
    return hash;
}

/* splitmix64 (Steele, Lea and Flood 2014): number i of the sequence that begins with `seed`, and the next number. */
static inline uint64_t splitmix64_at(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline uint64_t splitmix64_next(uint64_t *state)
{
    uint64_t z = splitmix64_at(*state, 0);
    *state += 0x9e3779b97f4a7c15u;
    return z;
}

/* Knuth's linear congruential generator: the next state, whose high bits are the random ones. */
static inline uint64_t lcg_next(uint64_t state) { return state * 6364136223846793005u + 1442695040888963407u; }

#endif
