/* simd/quantized.h -- the layout of quantized weights, in the blocks of GGUF files and in panels.
 *
 * A block holds `numbers` consecutive weights of one row in `bytes` bytes. The scales d and dmin and the minimum m are
 * f16, which f32 holds exactly. The codes q are integers.
 *
 *     type   numbers  bytes   layout                                        weight
 *     Q8_0        32     34   d | 32 int8                                   d * q
 *     Q4_0        32     18   d | 16 bytes                                  d * (q - 8)
 *     Q5_0        32     22   d | 32 high bits | 16 bytes                   d * (q - 16)
 *     Q5_1        32     24   d | m | 32 high bits | 16 bytes               d * q + m
 *     Q4_K       256    144   d | dmin | 12 bytes | 128 bytes               (d * sc) * q - (dmin * m)
 *     Q5_K       256    176   d | dmin | 12 bytes | 32 bytes | 128 bytes    the same with 5 bits
 *     Q6_K       256    210   128 bytes | 64 bytes | 16 int8 sc | d         (d * sc) * (q - 32)
 *     MXFP4       32     17   e | 16 bytes                                  2^(e-128) * q
 *     IQ2_XXS    256     66   simd/quantized_grid.h shows the layouts       (d * (2 ls + 1) / 8) * q
 *     IQ2_XS     256     74   of these seven types                          the same
 *     IQ2_S      256     82                                                 the same
 *     IQ3_XXS    256     98                                                 (d * (2 ls + 1) / 4) * q
 *     IQ3_S      256    110                                                 (d * (2 ls + 1)) * q
 *     IQ1_S      256     50                                                 (d * (2 ls + 1) / 8) * (8 c + 1) or (8 c -
 *                1)
 *     IQ1_M      256     56                                                 the same
 *     TQ1_0      256     54   48 bytes | 4 bytes | d                        d * (t - 1)
 *     TQ2_0      256     66   64 bytes | d                                  d * (t - 1)
 *     Q4_1        32     20   d | m | 16 bytes                              d * q + m
 *     IQ4_NL      32     18   d | 16 bytes                                  d * q
 *     IQ4_XS     256    136   d | 2 bytes | 4 bytes | 128 bytes             (d * (sc - 32)) * q
 *     Q3_K       256    110   32 bytes | 64 bytes | 12 bytes | d            (d * (sc - 32)) * (q - 4)
 *     Q2_K       256     84   16 bytes | 64 bytes | d | dmin                (d * sc) * q - (dmin * m)
 *     GGUF_NVFP4  64     36   4 E4M3 numbers s | 32 bytes                   d * q, with a d for each 16 weights
 *
 * Four types are in memory only: latents in the KV cache, and copies of I4, F4 and I8 weights.
 *
 *     CACHE_Q8    32     36   d as f32 | 32 int8                            d * q
 *     Q4_BF16     32     18   d as BF16 | 16 bytes                          d * (q - 8)
 *     NVFP4       32     18   2 E4M3 numbers s | 16 bytes                   d * q, with a d for each 16 weights
 *     Q8_F32      32     36   d as f32 | 32 int8                            d * q
 *
 * All blocks of a row of a Q8_F32 matrix have the same d.
 *
 * A byte of Q8_0, CACHE_Q8 and Q8_F32 holds one code. In the other types, a byte holds the low four bits of two codes,
 * one in its low nibble and one in its high nibble. In Q4_0, Q4_1, Q4_BF16, Q5_0, Q5_1, IQ4_NL, MXFP4 and NVFP4 the two
 * codes belong to elements l and l + 16 of the block, and in IQ4_XS to these elements of each 32 weights. In Q4_K and
 * Q5_K the two codes belong to elements l and l + 32 of each 64 weights. In Q6_K the two codes belong to elements l and
 * l + 64 of each 128 weights.
 *
 * In MXFP4 and NVFP4 a code is a number of the format E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same with a minus sign.
 * The integer q is twice this number (quantized_e2m1). The byte e of a block is the exponent of its scale. All 256
 * values of e are scales, as in ggml: 2^-128 (0) to 2^127 (255).
 *
 * In NVFP4 each half group has a scale s, and the matrix has a number t (weight_view.tensor_scale). d = fl32(s/2 * t)
 * or, if weight_view.divides is nonzero, d = fl32((s/2) / t).
 *
 * In IQ4_NL and IQ4_XS a code stands for one of 16 integers q (quantized_iq4). In IQ4_XS each group has a six-bit scale
 * sc: bits 2g and 2g + 1 of the 2 bytes are the upper bits of group g, and nibble g of the 4 bytes has the lower bits.
 *
 * In a GGUF file, the type that is called GGUF_NVFP4 here has the name NVFP4. Each 16 weights have 8 of the 32 bytes:
 * byte j has the codes of elements j and j + 8. d = fl32(s/2 * t). As in ggml, s has no sign, and 127 is 0.
 *
 * In Q2_K and Q3_K, byte l of each 32 of the 64 bytes has the low two bits of four codes: of elements l, l + 32, l + 64
 * and l + 96 of 128 weights. In Q3_K, bit g of byte l of the first 32 bytes is the third bit of element l of group g.
 * Each half group has a scale. In Q2_K its byte has the scale sc in the low nibble, and the minimum m in the high
 * nibble. In Q3_K the low nibbles of the first 8 of the 12 bytes have the low four bits of the scales 0..7, and the
 * high nibbles those of the scales 8..15. Bits 2k and 2k + 1 of the last 4 bytes are the upper bits of the scales
 * 4k..4k+3.
 *
 * In Q4_K and Q5_K each group of 32 weights has a six-bit scale sc and a six-bit minimum m. The 12 bytes of a block
 * hold the scales and minimums of its eight groups. In Q6_K each half group (16 weights) has a signed 8-bit scale sc.
 *
 * Rule 2 needs a scale sw and a minimum mw per group: sw = fl32(d * sc), and mw = fl32(dmin * m). In Q4_1 and Q5_1, mw
 * = -m. The product d * sc is exact in f32. Where weights are needed one by one, as in a row of embed_tokens, a weight
 * is fl32(fl32(sw * q) - mw).
 *
 * A panel holds 16 rows of a Q8_0, Q4_0, IQ4_NL, Q4_BF16 or Q8_F32 matrix, interleaved so that each lane of a vector
 * works on one row. It stores groups of 32 columns in pairs:
 *
 *     16 scales of the first group | 16 of the second | codes of the first group | codes of the second
 *     codes of Q8_0 and Q8_F32: [8][16 rows][4]: q + 128 of elements 4j..4j+3
 *     the other codes: [4][16 rows][4]: elements 4j..4j+3 in low nibbles, 16 + 4j..16 + 4j+3 in high nibbles, as stored
 *
 * The scales of Q8_F32 are twice as long, and both groups have the same: there are 16 scales before the codes.
 *
 * If the number of groups is odd, the second group of the last pair is filled with zeros. If the matrix has too few
 * rows for the last panel, the remaining rows of this panel are filled with zeros. */
#ifndef VB_QUANTIZED_H
#define VB_QUANTIZED_H

#include "simd/decode.h"

#define PANEL_ROWS 16

struct quantized_format {
    const char *name;
    unsigned numbers, bytes; /* weights in a block, and its size in bytes */
    int halves;              /* nonzero if each half of a group (16 weights) has its own scale: what is added to q to
                                make it unsigned, 32 for codes of six bits, 64 for codes of seven */
    int minimums;            /* nonzero if each group has a minimum; with `halves`, each half has one */
};
const struct quantized_format *quantized_format(enum weight_type type);

/* One group of a row, unpacked. q are the signed integers that rule 2 multiplies: if a type stores q + 8, q + 16 or
 * q + 32, the constant has been subtracted. */
struct quantized_codes {
    int8_t q[QUANTIZED_GROUP];
    float scale[2], minimum[2]; /* sw and mw of each half of the group (equal for most types); mw is 0 if the type has
                                   none */
};
/* the integers q of MXFP4's codes; those of IQ4_NL and IQ4_XS (kvalues_iq4nl in llama.cpp's ggml-common.h) */
extern const int8_t quantized_e2m1[16], quantized_iq4[16];
void quantized_codes(struct quantized_codes *out, const struct weight_view *w, size_t row, size_t group);

/* --- panels --- */

static inline int weight_is_q8(enum weight_type type) { return type == WEIGHT_Q8_0 || type == WEIGHT_Q8_F32; }
static inline size_t panel_code_bytes(enum weight_type type) { return weight_is_q8(type) ? 512 : 256; } /* per group */
/* Bytes from the scales of the first group of a pair to those of the second. */
static inline size_t panel_scale_step(enum weight_type type) { return type == WEIGHT_Q8_F32 ? 0 : 32; }
static inline size_t panel_pair_bytes(enum weight_type type) { return 64 + 2 * panel_code_bytes(type); }
static inline size_t panel_bytes(enum weight_type type, size_t cols)
{
    return (cols / QUANTIZED_GROUP + 1) / 2 * panel_pair_bytes(type);
}
static inline const unsigned char *panel_scales(const unsigned char *panel, enum weight_type type, size_t group)
{
    return panel + group / 2 * panel_pair_bytes(type) + group % 2 * panel_scale_step(type);
}
static inline const unsigned char *panel_codes(const unsigned char *panel, enum weight_type type, size_t group)
{
    return panel + group / 2 * panel_pair_bytes(type) + 64 + group % 2 * panel_code_bytes(type);
}

/* Returns whether panels can hold matrices of this type. */
static inline int weight_has_panels(enum weight_type type)
{
    return weight_is_q8(type) || type == WEIGHT_Q4_0 || type == WEIGHT_Q4_BF16 || type == WEIGHT_IQ4_NL;
}
/* Returns the size in bytes of all panels of a matrix [rows, cols]. */
static inline size_t panels_bytes(enum weight_type type, size_t rows, size_t cols)
{
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS * panel_bytes(type, cols);
}
/* Writes the panel of rows [row, row + 16) of w. w consists of blocks, and row is a multiple of 16. */
void panel_from_blocks(unsigned char *panel, const struct weight_view *w, size_t row);
/* Does the same with rows that may be anywhere: row[r] points to the first block of row r. `rows` is at most 16. */
void panel_from_rows(unsigned char *panel, enum weight_type type, size_t cols, const unsigned char *const *row,
                     size_t rows);

#endif
