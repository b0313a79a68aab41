/* ops/cuda/decode.h -- unpacks a group of 32 quantized weights, as quantized_codes in simd/quantized.c does.
 * simd/quantized.h and simd/quantized_grid.h show the layouts of the blocks.
 *
 * Codes are computed four at a time, in the bytes of an integer. Blocks may begin at any address. Only aligned integers
 * are read, so up to three bytes before and after a block are read too; they belong to the same allocation. */
#ifndef VB_CUDA_DECODE_H
#define VB_CUDA_DECODE_H

#include "ops/cuda/weights.h"

/* One group: the signed integers q of rule 2, four in each element, and sw and mw of each half. */
struct group_codes {
    uint32_t q[8];
    float scale[2], minimum[2];
};

DEVICE uint32_t u32_at(const unsigned char *at)
{
    const uint32_t *word = (const uint32_t *)((uintptr_t)at & ~(uintptr_t)3);
    uint32_t shift = (uint32_t)(uintptr_t)at % 4 * 8;
    return __funnelshift_r(word[0], word[shift ? 1 : 0], shift);
}

DEVICE float half_at(const unsigned char *at) { return half_to_float((uint16_t)u16_at(at)); }

/* Four bytes v - above. Neither v nor `above` is larger than 128, and v is less. */
DEVICE uint32_t minus(uint32_t v, uint32_t above) { return ((v | 0x80808080) - above * 0x01010101) ^ 0x80808080; }

/* Bits 0 to 3 become the lowest bits of four bytes. */
DEVICE uint32_t bits_to_bytes(uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

/* Four codes of four bits become numbers of a table. */
DEVICE uint32_t look_up(uint32_t codes, const uint32_t table[4])
{
    uint32_t three = codes & 0x07070707, pairs = three | three >> 4, which = (pairs & 0xff) | (pairs >> 8 & 0xff00);
    uint32_t upper = (codes >> 3 & 0x01010101) * 0xff;
    return (__byte_perm(table[0], table[1], which) & ~upper) | (__byte_perm(table[2], table[3], which) & upper);
}

DEVICE void nibbles(uint32_t q[8], const unsigned char *bytes, uint32_t above)
{
    UNROLL for (int i = 0; i < 4; i++) {
        uint32_t v = u32_at(bytes + 4 * i);
        q[i] = minus(v & 0x0f0f0f0f, above);
        q[i + 4] = minus(v >> 4 & 0x0f0f0f0f, above);
    }
}

DEVICE void five_bits(uint32_t q[8], const unsigned char *high, const unsigned char *bytes, uint32_t above)
{
    uint32_t bits = u32_at(high);
    nibbles(q, bytes, 0);
    UNROLL for (int i = 0; i < 8; i++)
        q[i] = minus(q[i] | bits_to_bytes(bits >> 4 * i) << 4, above);
}

/* Codes of E2M1 (quantized_e2m1) and of IQ4_NL (quantized_iq4), for each nibble of the integer. */
DEVICE uint32_t e2m1_codes(uint32_t codes)
{
    const uint32_t table[4] = {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc};
    return look_up(codes, table);
}
DEVICE uint32_t iq4_codes(uint32_t codes)
{
    const uint32_t table[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
    return look_up(codes, table);
}

DEVICE void nibbles_of_e2m1(uint32_t q[8], const unsigned char *bytes)
{
    nibbles(q, bytes, 0);
    UNROLL for (int i = 0; i < 8; i++)
        q[i] = e2m1_codes(q[i]);
}

DEVICE void nibbles_of_iq4(uint32_t q[8], const unsigned char *bytes)
{
    nibbles(q, bytes, 0);
    UNROLL for (int i = 0; i < 8; i++)
        q[i] = iq4_codes(q[i]);
}

/* Q4_K, and Q5_K with `high` */
DEVICE void codes_of_k(struct group_codes &out, const unsigned char *block, const unsigned char *high,
                       const unsigned char *bytes, unsigned g)
{
    const unsigned char *s = block + 4;
    int sc = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4,
        m = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
    out.scale[0] = out.scale[1] = half_at(block) * (float)sc;
    out.minimum[0] = out.minimum[1] = half_at(block + 2) * (float)m;
    UNROLL for (int i = 0; i < 8; i++) {
        out.q[i] = u32_at(bytes + g / 2 * 32 + 4 * i) >> g % 2 * 4 & 0x0f0f0f0f;
        if (high)
            out.q[i] |= (u32_at(high + 4 * i) >> g & 0x01010101) << 4;
    }
}

DEVICE void codes_of_q6_k(struct group_codes &out, const unsigned char *block, unsigned g)
{
    const unsigned char *low = block + g / 4 * 64 + g % 2 * 32, *high = block + 128 + g / 4 * 32;
    UNROLL for (int i = 0; i < 8; i++) out.q[i] = minus((u32_at(low + 4 * i) >> g % 4 / 2 * 4 & 0x0f0f0f0f) |
                                                            (u32_at(high + 4 * i) >> 2 * (g % 4) & 0x03030303) << 4,
                                                        32);
    UNROLL for (int half = 0; half < 2; half++)
        out.scale[half] = half_at(block + 208) * (float)(int8_t)block[192 + 2 * g + half];
}

/* the low two bits of codes 4i .. 4i + 3 of group g */
DEVICE uint32_t two_bits(const unsigned char *bytes, unsigned g, int i)
{
    return u32_at(bytes + g / 4 * 32 + 4 * i) >> 2 * (g % 4) & 0x03030303;
}

DEVICE void codes_of_q3_k(struct group_codes &out, const unsigned char *block, unsigned g)
{
    const unsigned char *s = block + 96;
    UNROLL for (int i = 0; i < 8; i++)
        out.q[i] = minus(two_bits(block + 32, g, i) | (u32_at(block + 4 * i) >> g & 0x01010101) << 2, 4);
    UNROLL for (unsigned half = 0; half < 2; half++) {
        unsigned i = 2 * g + half;
        int sc = (s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4;
        out.scale[half] = half_at(block + 108) * (float)(sc - 32);
    }
}

DEVICE void codes_of_q2_k(struct group_codes &out, const unsigned char *block, unsigned g)
{
    UNROLL for (int i = 0; i < 8; i++)
        out.q[i] = two_bits(block + 16, g, i);
    UNROLL for (int half = 0; half < 2; half++) {
        out.scale[half] = half_at(block + 80) * (float)(block[2 * g + half] & 15);
        out.minimum[half] = half_at(block + 82) * (float)(block[2 * g + half] >> 4);
    }
}

DEVICE void codes_of_tq1_0(struct group_codes &out, const unsigned char *block, unsigned g)
{
    UNROLL for (int i = 0; i < 8; i++) {
        uint32_t four = 0;
        ROLL for (unsigned l = 0; l < 4; l++) {
            unsigned at = g * 32 + 4 * i + l, digit = at < 160 ? g : at < 240 ? (at - 160) / 16 : (at - 240) / 4, b;
            b = at < 160 ? block[4 * i + l] : at < 240 ? block[32 + at % 16] : block[48 + at % 4];
            b *= digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
            four |= ((b & 255) * 3 >> 8) << 8 * l;
        }
        out.q[i] = minus(four, 1);
    }
    out.scale[0] = out.scale[1] = half_at(block + 52);
}

DEVICE void codes_of_gguf_nvfp4(struct group_codes &out, const unsigned char *block, unsigned g, float tensor_scale)
{
    UNROLL for (int half = 0; half < 2; half++) {
        uint32_t s = block[2 * g + half] & 127;
        out.scale[half] = (s == 127 ? 0.0f : 0.5f * e4m3_to_float(s)) * tensor_scale;
        UNROLL for (int i = 0; i < 2; i++) {
            uint32_t v = u32_at(block + 4 + 16 * g + 8 * half + 4 * i);
            out.q[4 * half + i] = e2m1_codes(v & 0x0f0f0f0f);
            out.q[4 * half + 2 + i] = e2m1_codes(v >> 4 & 0x0f0f0f0f);
        }
    }
}

DEVICE void codes_of_nvfp4(struct group_codes &out, const struct weight_view &w, const unsigned char *block)
{
    UNROLL for (int half = 0; half < 2; half++) {
        float s = 0.5f * e4m3_to_float(block[half]);
        out.scale[half] = w.divides ? s / w.tensor_scale : s * w.tensor_scale;
    }
    nibbles_of_e2m1(out.q, block + 2);
}

/* --- the grids of the IQ types --- */

DEVICE uint32_t odd_ones(uint32_t v)
{
    v ^= v >> 4;
    return 0x6996 >> (v & 15) & 1;
}

/* q of four weights: numbers of a grid, negative where `signs` has a one */
DEVICE uint32_t with_signs(uint32_t row, uint32_t signs)
{
    uint32_t ones = bits_to_bytes(signs) * 0xff;
    return (row ^ ones) + (ones & 0x01010101); /* no sum carries: no number of a grid of IQ2 or IQ3 is 0 */
}

/* Numbers 8i .. 8i + 7 of group g; the first four are in the lower half. */
DEVICE uint64_t grid_row(int type, const void *grid, const unsigned char *block, unsigned g, unsigned i)
{
    const unsigned char *rows = block + (type == WEIGHT_IQ1_M ? 0 : 2);
    const uint64_t *eight = (const uint64_t *)grid;
    const uint32_t *four = (const uint32_t *)grid;
    switch (type) {
    case WEIGHT_IQ2_XXS: return eight[rows[8 * g + i]];
    case WEIGHT_IQ2_XS: return eight[u16_at(rows + 8 * g + 2 * i) & 511];
    case WEIGHT_IQ2_S: return eight[rows[4 * g + i] | ((uint32_t)block[66 + g] << (8 - 2 * i) & 0x300)];
    case WEIGHT_IQ3_XXS: return four[rows[8 * g + 2 * i]] | (uint64_t)four[rows[8 * g + 2 * i + 1]] << 32;
    case WEIGHT_IQ3_S:
        return four[rows[8 * g + 2 * i] | ((uint32_t)block[66 + g] << (8 - 2 * i) & 0x100)] |
               (uint64_t)four[rows[8 * g + 2 * i + 1] | ((uint32_t)block[66 + g] << (7 - 2 * i) & 0x100)] << 32;
    case WEIGHT_IQ1_S: return eight[rows[4 * g + i] | (u16_at(block + 34 + 2 * g) >> 3 * i & 7) << 8];
    default: return eight[rows[4 * g + i] | (u16_at(block + 32 + 2 * g) >> 4 * i & 7) << 8];
    }
}

DEVICE void codes_of_grid(struct group_codes &out, int type, const void *grid, const unsigned char *block, unsigned g)
{
    bool iq1 = type == WEIGHT_IQ1_S || type == WEIGHT_IQ1_M;
    uint32_t packed = type == WEIGHT_IQ2_XXS ? u32_at(block + 6 + 8 * g)
                      : type == WEIGHT_IQ3_XXS ? u32_at(block + 66 + 4 * g)
                      : 0;
    uint32_t high = type == WEIGHT_IQ1_S ? u16_at(block + 34 + 2 * g)
                    : type == WEIGHT_IQ1_M ? u16_at(block + 32 + 2 * g)
                    : 0;
    const unsigned char *s = block + 48;
    uint32_t d = type == WEIGHT_IQ1_M ? s[1] >> 4 | (s[3] & 0xf0u) | (s[5] & 0xf0u) << 4 | (s[7] & 0xf0u) << 8
                                      : u16_at(block);
    UNROLL for (unsigned half = 0; half < 2; half++) {
        uint32_t ls;
        switch (type) {
        case WEIGHT_IQ2_XXS:
        case WEIGHT_IQ3_XXS: ls = packed >> 28; break;
        case WEIGHT_IQ2_XS: ls = block[66 + g] >> 4 * half & 15u; break;
        case WEIGHT_IQ2_S: ls = block[74 + g] >> 4 * half & 15u; break;
        case WEIGHT_IQ3_S: ls = block[106 + g / 2] >> 4 * (g % 2) & 15u; break;
        case WEIGHT_IQ1_S: ls = high >> 12 & 7; break;
        default: ls = u16_at(s + g / 2 * 2) >> (6 * (g % 2) + 3 * half) & 7;
        }
        out.scale[half] = half_to_float((uint16_t)d) * (float)(2 * ls + 1) *
                          (type == WEIGHT_IQ3_S ? 1.0f
                           : type == WEIGHT_IQ3_XXS ? 0.25f
                           : 0.125f);
    }
    UNROLL for (unsigned i = 0; i < 4; i++) {
        uint64_t row = grid_row(type, grid, block, g, i);
        uint32_t lower = (uint32_t)row, upper = (uint32_t)(row >> 32), seven = packed >> 7 * i & 127, signs;
        if (iq1) { /* -8, 0 or 8, and then 1 more or less: as bytes from 56 on, of which no difference carries */
            uint32_t less = (type == WEIGHT_IQ1_S ? high >> 15 : high >> (4 * i + 3) & 1) ? 65 : 63;
            out.q[2 * i] = minus((lower ^ 0x80808080) - 0x40404040, less);
            out.q[2 * i + 1] = minus((upper ^ 0x80808080) - 0x40404040, less);
            continue;
        }
        if (type == WEIGHT_IQ2_XS)
            seven = u16_at(block + 2 + 8 * g + 2 * i) >> 9;
        signs = type == WEIGHT_IQ2_S ? block[34 + 4 * g + i]
                : type == WEIGHT_IQ3_S ? block[74 + 4 * g + i]
                : seven | odd_ones(seven) << 7;
        out.q[2 * i] = with_signs(lower, signs);
        out.q[2 * i + 1] = with_signs(upper, signs >> 4);
    }
}

/* Unpacks group g of a block of matrix w. `grid` is the grid of its type, or NULL. */
DEVICE void unpack_group(struct group_codes &out, const struct weight_view &w, const void *grid,
                         const unsigned char *block, unsigned g)
{
    out.minimum[0] = out.minimum[1] = 0.0f;
    switch (w.type) {
    case WEIGHT_Q8_0:
    case WEIGHT_Q8_F32:
    case WEIGHT_CACHE_Q8:
        UNROLL for (int i = 0; i < 8; i++)
            out.q[i] = u32_at(block + (w.type == WEIGHT_Q8_0 ? 2 : 4) + 4 * i);
        out.scale[0] = w.type == WEIGHT_Q8_0 ? half_at(block) : float_of_bits(u32_at(block));
        break;
    case WEIGHT_Q4_0:
    case WEIGHT_Q4_BF16:
        nibbles(out.q, block + 2, 8);
        out.scale[0] = w.type == WEIGHT_Q4_0 ? half_at(block) : float_of_bits(u16_at(block) << 16);
        break;
    case WEIGHT_Q5_0:
        five_bits(out.q, block + 2, block + 6, 16);
        out.scale[0] = half_at(block);
        break;
    case WEIGHT_Q5_1:
        five_bits(out.q, block + 4, block + 8, 0);
        out.scale[0] = half_at(block);
        out.minimum[0] = out.minimum[1] = -half_at(block + 2);
        break;
    case WEIGHT_Q4_1:
        nibbles(out.q, block + 4, 0);
        out.scale[0] = half_at(block);
        out.minimum[0] = out.minimum[1] = -half_at(block + 2);
        break;
    case WEIGHT_MXFP4: /* 2^(e-128), which is subnormal if e < 2 */
        nibbles_of_e2m1(out.q, block + 1);
        out.scale[0] = float_of_bits(*block < 2 ? (*block + 1u) << 21 : (*block - 1u) << 23);
        break;
    case WEIGHT_IQ4_NL:
        nibbles_of_iq4(out.q, block + 2);
        out.scale[0] = half_at(block);
        break;
    case WEIGHT_IQ4_XS:
        nibbles_of_iq4(out.q, block + 8 + 16 * g);
        out.scale[0] = half_at(block) * (float)((int)((block[2 + g / 4] >> 2 * (g % 4) & 3u) << 4 |
                                                      (block[4 + g / 2] >> 4 * (g % 2) & 15u)) -
                                                32);
        break;
    case WEIGHT_TQ2_0:
        UNROLL for (int i = 0; i < 8; i++)
            out.q[i] = minus(two_bits(block, g, i), 1);
        out.scale[0] = half_at(block + 64);
        break;
    case WEIGHT_TQ1_0: codes_of_tq1_0(out, block, g); return;
    case WEIGHT_Q4_K: codes_of_k(out, block, NULL, block + 16, g); return;
    case WEIGHT_Q5_K: codes_of_k(out, block, block + 16, block + 48, g); return;
    case WEIGHT_Q6_K: codes_of_q6_k(out, block, g); return;
    case WEIGHT_Q3_K: codes_of_q3_k(out, block, g); return;
    case WEIGHT_Q2_K: codes_of_q2_k(out, block, g); return;
    case WEIGHT_NVFP4: codes_of_nvfp4(out, w, block); return;
    case WEIGHT_GGUF_NVFP4: codes_of_gguf_nvfp4(out, block, g, w.tensor_scale); return;
    default: codes_of_grid(out, w.type, grid, block, g); return;
    }
    out.scale[1] = out.scale[0];
}

#endif
