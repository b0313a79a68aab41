/* tests/support/quantized.h -- GGUF files of small models whose weights are random blocks of quantized types, in any
 * mixture. The files are made without a quantizer: codes and group scales are random bytes, and the scales are chosen
 * so that the weights are about as large as in a trained matrix. */
#ifndef VB_TEST_QUANTIZED_H
#define VB_TEST_QUANTIZED_H

#include "tests/support/gguf.h"

/* A type of blocks. A block has `numbers` numbers in `bytes` bytes. Its scale d is at byte d_at, and its minimum at
 * byte minimum_at. If d is 1 and the codes are random, the numbers have the standard deviation `spread`. If the block's
 * minimum is also `minimum`, their mean is 0. MXFP4 has a byte instead of d, the exponent of a power of two. IQ1_M has
 * d in four pieces. NVFP4 has four bytes, and its tensors have one number each in a tensor of their own. */
struct block_type {
    const char *name;
    uint32_t type; /* in GGUF */
    size_t numbers, bytes, d_at, minimum_at;
    double spread, minimum;
};
extern const struct block_type block_types[26];

struct quantized_model {
    const char *name;
    const char *types[4];         /* the types of matrices, used in turn */
    /* the types of attn_k_b and attn_v_b. v_b NULL: the next entry of `types` is used. k_b NULL: the file has attn_kv_b
     * instead */
    const char *k_b, *v_b;
    /* the types of the embedding and of the router's matrix. embedding NULL: the next entry of `types` is used. gate
     * NULL: F32 */
    const char *embedding, *gate;
    int tied;                     /* nonzero: the file has no output matrix, and the embedding is used instead */
    int large;                    /* nonzero: rows are long enough for blocks of 256 numbers */
    size_t taken;                 /* how many of `types` were used; start with 0 */
    uint64_t seed;
};

/* Writes a model of one dense layer and an MTP module with experts to DIR/NAME. */
void write_quantized(const char *dir, const char *name, struct quantized_model q);

#endif
