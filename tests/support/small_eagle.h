/* tests/support/small_eagle.h -- generated EAGLE heads. All tensors are F32, and all weights are multiples of 2^-10
 * with magnitudes below 2, so that differences.h can move them. */
#ifndef VB_TEST_SMALL_EAGLE_H
#define VB_TEST_SMALL_EAGLE_H

#include <stddef.h>
#include <stdint.h>

struct small_eagle {
    int version;
    int target_width, target_vocab;
    int d, heads, groups, dim, intermediate;
    int vocab;          /* EAGLE-3: of its own, with gaps; 0: that of the target */
    int feature_norms;  /* EAGLE-3: 1: input_norm, 3: the three of fc_norm; 0: none. keys says so, too */
    int bias, embeds;   /* nonzero: fc has a bias; the head has an embedding of its own */
    const char *keys;   /* of config.json, each followed by a comma; NULL: none */
};

/* Writes the head into a new directory, whose path is written to `dir`. */
void small_eagle(char dir[64], const struct small_eagle *c, uint64_t seed);
/* The target's token for id `id` of a vocabulary with gaps */
int small_eagle_token(const struct small_eagle *c, int id);

/* The heads of golden/scripts/make_eagle_norms.py: golden/eagle/eagle3-v3 with other norms, by keys of config.json.
 * Norms that the golden does not have are those of the script. */
struct eagle_variant {
    const char *name, *keys[4];
};
extern const struct eagle_variant eagle_variants[];
extern const size_t eagle_variant_count;
/* Writes the head into a new directory, whose path is written to `dir`. */
void eagle_variant(char dir[64], const struct eagle_variant *v);

#endif
