/* ops/cuda/round.h -- for kernels: the numbers that BF16, E4M3 and groups of rule 2 can hold (ops/round.h,
 * simd/kernels.h). */
#ifndef VB_CUDA_ROUND_H
#define VB_CUDA_ROUND_H

#include "ops/cuda/weights.h"

DEVICE float bf16_to_float(uint16_t code) { return float_of_bits((uint32_t)code << 16); }

/* Returns the nearest BF16 number, ties to even, as op_round_bf16 does. */
DEVICE uint16_t float_to_bf16(float x)
{
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        bits |= 0x400000; /* NaN: keep the upper half */
    else
        bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

/* The same for four numbers, the first in the lowest bits. */
DEVICE uint2 four_to_bf16(const float f[4])
{
    uint2 four;
    four.x = float_to_bf16(f[0]) | (uint32_t)float_to_bf16(f[1]) << 16;
    four.y = float_to_bf16(f[2]) | (uint32_t)float_to_bf16(f[3]) << 16;
    return four;
}

/* The bits of |x|, which have the order of the magnitudes. Infinity and NaN are at least NOT_FINITE. */
DEVICE uint32_t magnitude(float x) { return bits_of_float(x) & 0x7fffffff; }
#define NOT_FINITE 0x7f800000u

/* Returns a number that is larger if x comes earlier in the order of rule 7, and equal if two x are equal. NaN comes
 * last: 0. */
DEVICE uint32_t order_of(float x)
{
    uint32_t bits = bits_of_float(x + 0.0f); /* -0 equals +0 */
    return magnitude(x) > NOT_FINITE ? 0 : bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

/* Returns the largest number that a thread of the warp has. All threads of the warp call this together. */
DEVICE uint32_t warp_most(uint32_t x)
{
    for (int h = 16; h; h /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, x, h);
        x = other > x ? other : x;
    }
    return x;
}

/* The rounding of one group of 32 numbers by rule 2: each lane of a warp has one number x, and gets its q. Every lane
 * gets d. All threads of the warp call this together. */
DEVICE int quantize_lane(float x, float *d)
{
    uint32_t most = warp_most(magnitude(x));
    *d = most >= NOT_FINITE ? float_of_bits(0x7fc00000) : 0.0f;
    if (most >= NOT_FINITE || most < (127u - 100) << 23)
        return 0;
    float m = float_of_bits(most);
    *d = m / 127.0f;
    return (int)rintf(x * (127.0f / m));
}

/* Rounds x, |x| <= 448, to E4M3, as f32_to_e4m3 does (simd/decode.h). */
DEVICE uint8_t float_to_e4m3(float x)
{
    uint32_t bits = bits_of_float(x), size = bits & 0x7fffffff;
    if (size < 121u << 23) /* subnormal: adding 1.5 * 2^14 rounds it to a multiple of 2^-9 */
        size = bits_of_float(float_of_bits(size) + 24576.0f) - bits_of_float(24576.0f);
    else
        size = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120u << 3);
    return (uint8_t)((bits >> 24 & 0x80) | size);
}

/* The scale of a group of E4M3 codes whose largest magnitude has these bits: 2^ceil(log2(most / 448)) */
DEVICE float e4m3_scale(uint32_t most)
{
    return float_of_bits((bits_of_float(float_of_bits(most) * (1.0f / 448.0f)) + 0x7fffff) & 0xff800000);
}

/* The code of x with this scale. */
DEVICE uint8_t e4m3_code(float x, float scale)
{
    float scaled = x / scale;
    scaled = scaled > 448.0f ? 448.0f : scaled;
    return float_to_e4m3(scaled < -448.0f ? -448.0f : scaled);
}

#endif
