/* simd/quantised.h -- quantised weights: the blocks of GGUF files, and panels.
 *
 * A block is `numbers` weights of one row in `bytes`. Scales d, dmin and m are f16 (exact in f32); codes q are integers:
 *
 *     type   numbers  bytes   layout                                        weight
 *     Q8_0        32     34   d | 32 int8                                   d * q
 *     Q4_0        32     18   d | 16 bytes                                  d * (q - 8)
 *     Q5_0        32     22   d | 32 high bits | 16 bytes                   d * (q - 16)
 *     Q5_1        32     24   d | m | 32 high bits | 16 bytes               d * q + m
 *     Q4_K       256    144   d | dmin | 12 bytes | 128 bytes               (d * sc) * q - (dmin * m)
 *     Q5_K       256    176   d | dmin | 12 bytes | 32 bytes | 128 bytes    the same with 5 bits
 *     Q6_K       256    210   128 bytes | 64 bytes | 16 int8 sc | d         (d * sc) * (q - 32)
 *
 * In the first four a byte holds the codes of elements l (low nibble) and l + 16; in Q4_K and Q5_K of elements l and l + 32 of
 * 64; in Q6_K of l and l + 64 of 128. sc and m have six bits for each 32 numbers in Q4_K and Q5_K (twelve bytes of eight each), eight
 * with a sign for each 16 in Q6_K. The scale of a group is sw = fl32(d * sc), exact but for its sign of zero, its minimum
 * mw = fl32(dmin * m), of Q5_1 -m. As a number by itself (a row of embed_tokens) a weight is fl32(fl32(sw * q) - mw).
 *
 * A panel is 16 rows of Q8_0 or Q4_0 side by side, so that a vector's lanes are rows. Two groups of 32 columns after two:
 *
 *     16 scales f16 of the first group | 16 of the second | codes of the first | codes of the second
 *     codes, Q8_0: [8][16 rows][4]: q + 128 of elements 4j..4j+3
 *            Q4_0: [4][16 rows][4]: low nibbles elements 4j..4j+3, high nibbles 16 + 4j..16 + 4j+3, as stored
 *
 * An odd group more is padded with zeros; so are rows beyond the last. */
#ifndef VB_QUANTISED_H
#define VB_QUANTISED_H

#include "simd/decode.h"

#define PANEL_ROWS 16

struct quantised_format {
    const char *name;
    unsigned numbers, bytes; /* of a block */
    int halves;              /* a scale for each 16 numbers */
    int minimums;
};
const struct quantised_format *quantised_format(enum weight_type type);

/* One group of a row: codes as integers around 0, exactly; scale[1] is of the second half (else scale[0] again). */
struct quantised_codes {
    int8_t q[QUANTISED_GROUP];
    float scale[2], minimum; /* sw, mw (0 for types without) */
};
void quantised_codes(struct quantised_codes *out, const struct weight_view *w, size_t row, size_t group);

/* --- panels --- */

static inline size_t panel_code_bytes(enum weight_type type) { return type == WEIGHT_Q8_0 ? 512 : 256; } /* of a group */
static inline size_t panel_pair_bytes(enum weight_type type) { return 64 + 2 * panel_code_bytes(type); }
static inline size_t panel_bytes(enum weight_type type, size_t cols)
{
    return (cols / QUANTISED_GROUP + 1) / 2 * panel_pair_bytes(type);
}
static inline const unsigned char *panel_scales(const unsigned char *panel, enum weight_type type, size_t group)
{
    return panel + group / 2 * panel_pair_bytes(type) + group % 2 * 32;
}
static inline const unsigned char *panel_codes(const unsigned char *panel, enum weight_type type, size_t group)
{
    return panel + group / 2 * panel_pair_bytes(type) + 64 + group % 2 * panel_code_bytes(type);
}

/* Whether matrices of this type have panels. */
static inline int weight_has_panels(enum weight_type type) { return type == WEIGHT_Q8_0 || type == WEIGHT_Q4_0; }
/* All panels of a matrix [rows, cols]. */
static inline size_t panels_bytes(enum weight_type type, size_t rows, size_t cols)
{
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS * panel_bytes(type, cols);
}
/* Writes the panel of rows [row, row + 16) of w, which is blocks; row is a multiple of 16. */
void panel_from_blocks(unsigned char *panel, const struct weight_view *w, size_t row);

#endif
