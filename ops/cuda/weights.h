/* ops/cuda/weights.h -- weights that follow rule 1, as f32: the values of simd/decode.h.
 *
 * A thread reads four neighbouring weights at once, whose first column is a multiple of 4. They share their scale. */
#ifndef VB_CUDA_WEIGHTS_H
#define VB_CUDA_WEIGHTS_H

#include "ops/cuda/lanes.h"

/* What holds four weights of a type. */
template <int TYPE> struct stored {};
template <> struct stored<WEIGHT_F32> { typedef uint4 word; };
template <> struct stored<WEIGHT_F16> { typedef uint2 word; };
template <> struct stored<WEIGHT_BF16> { typedef uint2 word; };
template <> struct stored<WEIGHT_F8_E4M3> { typedef uint32_t word; };
template <> struct stored<WEIGHT_I8> { typedef uint32_t word; };
template <> struct stored<WEIGHT_I4> { typedef uint16_t word; };
template <> struct stored<WEIGHT_F4> { typedef uint16_t word; };

DEVICE uint32_t u16_at(const unsigned char *at) { return at[0] | (uint32_t)at[1] << 8; }

DEVICE float not_a_number(void) { return float_of_bits(0x7fc00000); }

/* E4M3, exactly. Its bits are moved to where f32 has exponent and fraction, also those of subnormal numbers; the
 * product corrects the exponent. */
DEVICE float e4m3_to_float(uint32_t code)
{
    float f = float_of_bits((uint32_t)((int32_t)(code << 24) >> 4) & 0x87f00000) * 0x1p120f;
    return (code & 0x7f) == 0x7f ? not_a_number() : f;
}

/* the same for E2M1 */
DEVICE float e2m1_to_float(uint32_t code) { return float_of_bits((code & 8) << 28 | (code & 7) << 22) * 0x1p126f; }

DEVICE void four_e4m3(float f[4], uint32_t codes)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
    uint32_t low, high; /* two f16 numbers each */
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
    f[0] = half_to_float((uint16_t)low), f[1] = half_to_float((uint16_t)(low >> 16));
    f[2] = half_to_float((uint16_t)high), f[3] = half_to_float((uint16_t)(high >> 16));
#else
    UNROLL for (int i = 0; i < 4; i++)
        f[i] = e4m3_to_float(codes >> 8 * i & 255);
#endif
}

/* Rounds x to BF16, to nearest, ties to even. */
DEVICE float round_to_bf16(float x)
{
    uint32_t bits = bits_of_float(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return float_of_bits(((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) & 0xffff0000);
}

/* Rounds a number of x as op_round_x does. */
DEVICE float round_input(float x)
{
    float y = round_to_bf16(x);
    return fabsf(y) < 0x1p-56f ? 0.0f : y;
}

/* Returns the scale of columns j, j + 1, ... of row n that share it; 1 for types without scales. For F4, *factor is
 * what is multiplied after it. */
template <int TYPE> DEVICE float scale_of(const struct weight_view &w, size_t n, size_t j, float *factor)
{
    *factor = 1.0f;
    if (TYPE == WEIGHT_F8_E4M3 || TYPE == WEIGHT_I8)
        return w.scale[(unsigned)(n + w.scale_row) / (unsigned)w.block_rows * w.scale_stride +
                       (unsigned)(j + w.scale_col) / (unsigned)w.block_cols];
    if (TYPE == WEIGHT_I4)
        return float_of_bits(u16_at((const unsigned char *)w.group_scale + (n * w.stride + j) / 32 * 2) << 16);
    if (TYPE == WEIGHT_F4 && w.group_size == 32) {
        uint32_t e = ((const unsigned char *)w.group_scale)[(n * w.stride + j) / 32];
        return e == 255 ? not_a_number() : float_of_bits(e ? e << 23 : 0x400000);
    }
    if (TYPE == WEIGHT_F4) {
        float s = e4m3_to_float(((const unsigned char *)w.group_scale)[(n * w.stride + j) / 16]);
        *factor = w.divides ? 1.0f : w.tensor_scale;
        return w.divides ? s / w.tensor_scale : s;
    }
    return 1.0f;
}

DEVICE void decode(float f[4], uint4 v)
{
    f[0] = float_of_bits(v.x), f[1] = float_of_bits(v.y), f[2] = float_of_bits(v.z), f[3] = float_of_bits(v.w);
}

/* Returns f[0..3], four weights. `scale` and `factor` come from scale_of. */
template <int TYPE>
DEVICE void decode(float f[4], typename stored<TYPE>::word v, float scale, float factor, int rounded)
{
    if constexpr (TYPE == WEIGHT_F32) {
        decode(f, v);
    } else if constexpr (TYPE == WEIGHT_BF16) {
        f[0] = float_of_bits(v.x << 16), f[1] = float_of_bits(v.x & 0xffff0000);
        f[2] = float_of_bits(v.y << 16), f[3] = float_of_bits(v.y & 0xffff0000);
    } else if constexpr (TYPE == WEIGHT_F16) {
        f[0] = half_to_float((uint16_t)v.x), f[1] = half_to_float((uint16_t)(v.x >> 16));
        f[2] = half_to_float((uint16_t)v.y), f[3] = half_to_float((uint16_t)(v.y >> 16));
    } else if constexpr (TYPE == WEIGHT_F8_E4M3) {
        four_e4m3(f, v);
        UNROLL for (int i = 0; i < 4; i++)
            f[i] = f[i] * scale;
    } else if constexpr (TYPE == WEIGHT_I8) { /* 2^23 + code + 128 is exact */
        UNROLL for (int i = 0; i < 4; i++)
            f[i] = (float_of_bits(0x4b000000 | ((v ^ 0x80808080) >> 8 * i & 255)) - 8388736.0f) * scale;
    } else if constexpr (TYPE == WEIGHT_I4) { /* 2^23 + code */
        UNROLL for (int i = 0; i < 4; i++) {
            f[i] = (float_of_bits(0x4b000000 | ((uint32_t)v >> 4 * i & 15)) - 8388616.0f) * scale;
            f[i] = rounded ? round_to_bf16(f[i]) : f[i];
        }
    } else {
        UNROLL for (int i = 0; i < 4; i++) {
            f[i] = e2m1_to_float((uint32_t)v >> 4 * i & 15) * scale * factor;
            f[i] = rounded ? round_to_bf16(f[i]) : f[i];
        }
    }
}

/* Returns the weight in row n and column j. */
template <int TYPE> DEVICE float weight_at(const struct weight_view &w, size_t n, size_t j)
{
    typedef typename stored<TYPE>::word word;
    const unsigned char *data = (const unsigned char *)w.data;
    size_t bits = sizeof(word) * 8 / 4, at = n * w.stride + j; /* bits of one weight */
    float f[4], factor, scale = scale_of<TYPE>(w, n, j, &factor);
    union {
        word v;
        unsigned char byte[sizeof(word)];
    } one = {};
    UNROLL for (size_t i = 0; i < (bits + 7) / 8; i++)
        one.byte[i] = data[at * bits / 8 + i];
    if (bits == 4)
        one.byte[0] = (unsigned char)(one.byte[0] >> 4 * (at % 2));
    decode<TYPE>(f, one.v, scale, factor, w.rounded);
    return f[0];
}

#endif
