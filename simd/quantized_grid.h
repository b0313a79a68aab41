/* simd/quantized_grid.h -- unpacks one group of the IQ1, IQ2 and IQ3 types of GGUF files (private to simd/).
 *
 * A block has 256 weights. Its group g has four rows of eight codes from a grid (IQ3: eight rows of four codes). ls is
 * the scale of a group or a half, an unsigned integer of three or four bits. Below, |..| are the fields of a block,
 * with their sizes in bytes:
 *
 *     IQ2_XXS  |2 d| eight groups of |4 rows|4 signs, ls|           weight = d (2 ls + 1) / 8 * q
 *     IQ2_XS   |2 d|64 rows and signs|8 ls|                         d (2 ls + 1) / 8 * q         one ls for each half
 *     IQ2_S    |2 d|32 rows|32 signs|8 high|8 ls|                   d (2 ls + 1) / 8 * q         one ls for each half
 *     IQ3_XXS  |2 d|64 rows| eight groups of |4 signs, ls|          d (2 ls + 1) / 4 * q
 *     IQ3_S    |2 d|64 rows|8 high|32 signs|4 ls|                   d (2 ls + 1) * q
 *     IQ1_S    |2 d|32 rows|16 high, ls, shift|                     d (2 ls + 1) / 8 * q
 *     IQ1_M    |32 rows|16 high, shift|8 ls, d|                     d (2 ls + 1) / 8 * q         one ls for each half
 *
 * `rows` are the low eight bits of the rows' numbers; `high` are their upper bits. Two bytes of IQ2_XS have nine bits
 * of a row's number and seven bits of signs. `signs` has a bit for each weight, 1 for minus. Where there are seven bits
 * for eight weights (IQ2_XXS, IQ2_XS, IQ3_XXS), the eighth makes the number of ones even. In IQ1 a weight is d (2 ls +
 * 1) (c + 1/8) or d (2 ls + 1) (c - 1/8), where c is -1, 0 or 1: so q = 8 c + 1 or 8 c - 1, as the bit `shift` says. */
#ifndef VB_QUANTIZED_GRID_H
#define VB_QUANTIZED_GRID_H

#include "simd/grids.h"
#include "simd/quantized.h"

#define GRID_INLINE static inline __attribute__((always_inline))
#define EIGHT_BYTES(byte) ((uint64_t)(byte) * 0x0101010101010101u)

/* One group: eight codes in each integer, the first in its lowest byte. A code is q plus `above`, which makes it
 * unsigned. */
struct grid_group {
    uint64_t codes[4];
    unsigned ls[2]; /* of each half */
};

GRID_INLINE int is_iq1(enum weight_type type) { return type == WEIGHT_IQ1_S || type == WEIGHT_IQ1_M; }
GRID_INLINE int is_iq3(enum weight_type type) { return type == WEIGHT_IQ3_XXS || type == WEIGHT_IQ3_S; }
GRID_INLINE int has_grid(enum weight_type type)
{
    return type == WEIGHT_IQ2_XXS || type == WEIGHT_IQ2_XS || type == WEIGHT_IQ2_S || is_iq3(type) || is_iq1(type);
}

/* The scale of a half is d (2 ls + 1) times this. All three products are exact in f32: d has 11 bits and 2 ls + 1 has
 * five. */
GRID_INLINE float grid_unit(enum weight_type type)
{
    return type == WEIGHT_IQ3_S ? 1.0f : type == WEIGHT_IQ3_XXS ? 0.25f : 0.125f;
}

GRID_INLINE uint32_t grid_u16(const unsigned char *at)
{
    uint16_t u;
    memcpy(&u, at, sizeof u);
    return u;
}

GRID_INLINE uint32_t grid_u32(const unsigned char *at)
{
    uint32_t u;
    memcpy(&u, at, sizeof u);
    return u;
}

/* Returns the bits of d, an f16. IQ1_M has four of its bits at the top of each integer of 16 bits at the end of the
 * block. */
GRID_INLINE uint16_t grid_scale(enum weight_type type, const unsigned char *block)
{
    if (type != WEIGHT_IQ1_M)
        return (uint16_t)grid_u16(block);
    const unsigned char *s = block + 48;
    return (uint16_t)(s[1] >> 4 | (s[3] & 0xf0u) | (s[5] & 0xf0u) << 4 | (s[7] & 0xf0u) << 8);
}

GRID_INLINE unsigned even_signs(uint32_t seven) { return seven | (unsigned)__builtin_parity(seven) << 7; }

/* Byte i becomes `above` minus byte i of `row` if bit i of `signs` is set, else their sum. No byte of a sum carries:
 * codes are at most 62, and not above `above` */
GRID_INLINE uint64_t with_signs(uint64_t row, unsigned signs, unsigned above)
{
    uint64_t one_each = EIGHT_BYTES(signs) & 0x8040201008040201u;
    uint64_t ones = (one_each + EIGHT_BYTES(0x7f)) >> 7 & EIGHT_BYTES(1);
    return EIGHT_BYTES(above) + row - 2 * (row & ones * 255);
}

GRID_INLINE uint64_t two_rows_of_iq3(const uint32_t *grid, unsigned low, unsigned high)
{
    return grid[low] | (uint64_t)grid[high] << 32;
}

/* Returns eight numbers of the grid, for weights 8 i .. 8 i + 7 of group g. */
GRID_INLINE uint64_t grid_row(enum weight_type type, const unsigned char *block, size_t g, unsigned i)
{
    const unsigned char *rows = block + (type == WEIGHT_IQ1_M ? 0 : 2) +
                                (is_iq3(type) || type == WEIGHT_IQ2_XXS || type == WEIGHT_IQ2_XS ? 8 : 4) * g;
    uint32_t high;
    switch (type) {
    case WEIGHT_IQ2_XXS: return grid_iq2_xxs[rows[i]];
    case WEIGHT_IQ2_XS: return grid_iq2_xs[grid_u16(rows + 2 * i) & 511];
    case WEIGHT_IQ2_S: return grid_iq2_s[rows[i] | ((uint32_t)block[66 + g] << (8 - 2 * i) & 0x300)];
    case WEIGHT_IQ3_XXS: return two_rows_of_iq3(grid_iq3_xxs, rows[2 * i], rows[2 * i + 1]);
    case WEIGHT_IQ3_S:
        high = block[66 + g];
        return two_rows_of_iq3(grid_iq3_s, rows[2 * i] | (high << (8 - 2 * i) & 0x100),
                               rows[2 * i + 1] | (high << (7 - 2 * i) & 0x100));
    default: /* IQ1 */
        high = type == WEIGHT_IQ1_S ? grid_u16(block + 34 + 2 * g) >> 3 * i & 7
                                    : grid_u16(block + 32 + 2 * g) >> 4 * i & 7;
        return grid_iq1[rows[i] | high << 8];
    }
}

GRID_INLINE struct grid_group grid_group(enum weight_type type, const unsigned char *block, size_t g, unsigned above)
{
    struct grid_group v;
    const unsigned char *signs = NULL;
    uint32_t packed = 0, high = 0; /* signs and ls of the XXS types; `high` of IQ1 */
    switch (type) {
    case WEIGHT_IQ2_XXS:
        packed = grid_u32(block + 6 + 8 * g);
        v.ls[0] = v.ls[1] = packed >> 28;
        break;
    case WEIGHT_IQ3_XXS:
        packed = grid_u32(block + 66 + 4 * g);
        v.ls[0] = v.ls[1] = packed >> 28;
        break;
    case WEIGHT_IQ2_XS:
        v.ls[0] = block[66 + g] & 15u;
        v.ls[1] = block[66 + g] >> 4;
        break;
    case WEIGHT_IQ2_S:
        signs = block + 34 + 4 * g;
        v.ls[0] = block[74 + g] & 15u;
        v.ls[1] = block[74 + g] >> 4;
        break;
    case WEIGHT_IQ3_S:
        signs = block + 74 + 4 * g;
        v.ls[0] = v.ls[1] = block[106 + g / 2] >> 4 * (g % 2) & 15u;
        break;
    case WEIGHT_IQ1_S:
        high = grid_u16(block + 34 + 2 * g);
        v.ls[0] = v.ls[1] = high >> 12 & 7;
        break;
    default: /* IQ1_M */
        high = grid_u16(block + 32 + 2 * g);
        v.ls[0] = grid_u16(block + 48 + g / 2 * 2) >> 6 * (g % 2) & 7;
        v.ls[1] = grid_u16(block + 48 + g / 2 * 2) >> (6 * (g % 2) + 3) & 7;
    }
    for (unsigned i = 0; i < 4; i++) {
        uint64_t row = grid_row(type, block, g, i);
        if (is_iq1(type)) {
            unsigned minus = type == WEIGHT_IQ1_S ? high >> 15 : high >> (4 * i + 3) & 1;
            row = (row ^ EIGHT_BYTES(0x80)) - EIGHT_BYTES(0x78); /* -8, 0 and 8 become 0, 8 and 16, so that nothing
                                                                    carries */
            v.codes[i] = row + EIGHT_BYTES(above - 8 + 1 - 2 * minus);
        } else if (type == WEIGHT_IQ2_XS)
            v.codes[i] = with_signs(row, even_signs(grid_u16(block + 2 + 8 * g + 2 * i) >> 9), above);
        else
            v.codes[i] = with_signs(row, signs ? signs[i] : even_signs(packed >> 7 * i & 127), above);
    }
    return v;
}

#endif
