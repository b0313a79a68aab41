/* tests/support/quantised.h -- GGUF files of small models whose weights are random blocks of quantised types, in any mixture.
 * They need no quantiser: codes and group scales are random bytes, and the scales are chosen so that weights have the size of
 * those in a trained matrix. */
#ifndef VB_TEST_QUANTISED_H
#define VB_TEST_QUANTISED_H

#include "tests/support/gguf.h"

/* Types of blocks. numbers, bytes: of one block. d_at, minimum_at: where a block has its scale d and its minimum. spread: the
 * standard deviation of random numbers when d is 1. minimum: the minimum that makes their mean 0 when d is 1. */
struct block_type {
    const char *name;
    uint32_t type; /* in GGUF */
    size_t numbers, bytes, d_at, minimum_at;
    double spread, minimum;
};
extern const struct block_type block_types[10];

struct quantised_model {
    const char *name;
    const char *types[4];         /* the types of matrices, used in turn */
    const char *k_b, *v_b;        /* types of attn_k_b and attn_v_b; v_b NULL: the next of `types`; k_b NULL: attn_kv_b instead */
    const char *embedding, *gate; /* types of these matrices; embedding NULL: the next of `types`; gate NULL: F32 */
    int tied;                     /* no output matrix: the embedding is used */
    int large;                    /* rows long enough for blocks of 256 numbers */
    size_t taken;                 /* how many of `types` were used; start with 0 */
    uint64_t seed;
};

/* Writes a model of one dense layer and an MTP module with experts to DIR/NAME. */
void write_quantised(const char *dir, const char *name, struct quantised_model q);

#endif
