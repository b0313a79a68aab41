/* simd/index_scores.h -- kernel `index_scores`: what all vector instruction sets share (private to simd/).
 *
 * Each lane of a register belongs to one key. So each of the sixteen partial sums of rule 1 has its own register, the
 * fold adds whole registers, and one fma per head adds to the scores of many keys. First, the keys are decoded and
 * transposed: term i of key j is keys[i * K + j], where K is the number of keys of a tile. Terms are either f32 numbers
 * in packed order, or pairs of BF16 numbers in natural order. In both cases, the terms l, l + 16, l + 32 ... belong to
 * partial sum l, and are added in this order. */
#ifndef VB_INDEX_SCORES_H
#define VB_INDEX_SCORES_H

#include "simd/tiles.h"

#define INDEX_MOST_KEYS 32 /* in a tile */

/* The functions that an instruction set supplies. */
struct index_loops {
    size_t keys; /* K */
    /* Decodes whole chunks of 32 codes to pairs of BF16 numbers; NULL: the terms are f32 numbers. */
    void (*pairs)(void *out, const void *codes, size_t chunks);
    /* out[i * K + j] = rows[j * terms + i] for i < terms and j < K. `terms` is a multiple of 16. */
    void (*transpose)(float *out, const float *rows, size_t terms);
    /* Adds H heads to acc [K] of rule 9, for the keys of a tile. q has `terms` terms for each head. */
    void (*sums)(float *acc, const float *keys, const float *q, const float *w, size_t H, size_t terms);
};

void tiled_index_scores(const struct vector_loops *v, const struct index_loops *loops, float *score,
                        const struct index_view *keys, const float *q, const float *w, size_t H, void *scratch);

#endif
