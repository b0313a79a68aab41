/* tests/support/retype.h -- writes a checkpoint again with other dtypes. The numbers stay the same, or are rounded, or
 * change slightly. */
#ifndef VB_TEST_RETYPE_H
#define VB_TEST_RETYPE_H

#include "engine/files/checkpoint.h"
#include "tests/support/engine_support.h"

struct retype {
    const char *from;    /* the directory of the checkpoint */
    enum dtype linear;   /* the dtype for matrices of linear layers: DTYPE_F32 (exact) or DTYPE_BF16 (rounded) */
    enum dtype others;   /* the dtype for embed_tokens and the router's gate: DTYPE_F32, or DTYPE_OTHER to keep their
                            dtypes */
    double noise;        /* each number of an F32 matrix changes by a random fraction of itself, which is at most
                            `noise` */
    const char *tiny;    /* the name of a BF16 matrix whose middle number becomes 2^-60; NULL: none */
};

/* Writes model.safetensors and config.json into a new directory. *was: how many numbers of the old checkpoint are in
 * linear layers' matrices that are not BF16. *is: the same for the new checkpoint. */
void retype(char dir[64], const struct retype *r, size_t *was, size_t *is);

#endif
