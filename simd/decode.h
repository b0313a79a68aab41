/* simd/decode.h -- converts stored weights to f32, exactly, in scalar C.
 *
 * The scalar kernels use these functions, and so does code that reads single weights or rows. The vector kernels have
 * decoders of their own. */
#ifndef VB_DECODE_H
#define VB_DECODE_H

#include "simd/kernels.h"

#include <string.h>

static inline float bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t bits) { return bits_to_f32((uint32_t)bits << 16); }

/* Converts IEEE binary16; every value is exact in f32. A NaN keeps its payload and becomes quiet, as in hardware. */
static inline float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31)
        return bits_to_f32(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) /* zero or subnormal: fraction * 2^-24, an exact product */
        return bits_to_f32(sign | 0x3f800000) * ((float)fraction * 0x1p-24f);
    return bits_to_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Converts E4M3 in the variant of the OCP (E4M3FN): bias 7, no infinities, and codes 0x7f and 0xff are NaN. */
static inline float e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f)
        return bits_to_f32(sign | 0x7fc00000);
    if (exponent == 0)
        return bits_to_f32(sign | 0x3f800000) * ((float)fraction * 0x1p-9f);
    return bits_to_f32(sign | (exponent + 120) << 23 | fraction << 20);
}

/* Rounds x to E4M3, to nearest, ties to even; |x| is at most 448. It has no branch, so that compilers can vectorise
 * loops that call it. Numbers below 2^-6 are subnormal: adding 1.5 * 2^14 rounds them to multiples of 2^-9. */
static inline uint8_t f32_to_e4m3(float x)
{
    uint32_t bits = f32_to_bits(x), magnitude = bits & 0x7fffffff;
    uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
    uint32_t subnormal = f32_to_bits(bits_to_f32(magnitude) + 0x1.8p14f) - f32_to_bits(0x1.8p14f);
    return (uint8_t)((bits >> 24 & 0x80) | (magnitude < 121u << 23 ? subnormal : normal));
}

/* Returns the scale of the weight in row i and column j; w is an F8_E4M3 or I8 matrix. */
static inline float weight_scale(const struct weight_view *w, size_t i, size_t j)
{
    return w->scale[(i + w->scale_row) / w->block_rows * w->scale_stride + (j + w->scale_col) / w->block_cols];
}

/* Returns the scale of group `group` of an I4 matrix; the groups of all rows are numbered in one sequence. */
static inline float group_scale(const struct weight_view *w, size_t group)
{
    uint16_t bits;
    memcpy(&bits, (const char *)w->group_scale + group * sizeof bits, sizeof bits);
    return bf16_to_f32(bits);
}

/* Rounds x to BF16, to nearest, ties to even. A NaN stays a NaN. It has no branch, so that compilers can vectorise
 * loops that call it. */
static inline float round_to_bf16(float x)
{
    uint32_t bits = f32_to_bits(x), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return bits_to_f32(((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) & 0xffff0000);
}

/* Returns weight `at` of an I4 matrix: row at / stride, column at % stride. */
static inline float weight_i4(const struct weight_view *w, size_t at)
{
    int code = ((const uint8_t *)w->data)[at / 2] >> at % 2 * 4 & 15;
    float weight = (float)(code - 8) * group_scale(w, at / 32);
    return w->rounded ? round_to_bf16(weight) : weight;
}

/* Sets weights[code] to the weight of each code in group `group` of an F4 matrix; the groups of all rows are numbered
 * in one sequence. */
static inline void f4_weights(float weights[16], const struct weight_view *w, size_t group)
{
    static const float e2m1[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                   -3.0f, -4.0f, -6.0f};
    unsigned code = ((const uint8_t *)w->group_scale)[group];
    float scale, factor = 1.0f;
    if (w->group_size == 32) {
        scale = bits_to_f32(code == 255 ? 0x7fc00000 : code ? code << 23 : 0x400000); /* 2^-127 is subnormal */
    } else {
        scale = w->divides ? e4m3_to_f32((uint8_t)code) / w->tensor_scale : e4m3_to_f32((uint8_t)code);
        factor = w->divides ? 1.0f : w->tensor_scale;
    }
    for (int c = 0; c < 16; c++) {
        float weight = e2m1[c] * scale * factor;
        weights[c] = w->rounded ? round_to_bf16(weight) : weight;
    }
}

/* Decodes columns [j, j + count) of row i of an F4 matrix. */
static inline void decode_f4(float *out, const struct weight_view *w, size_t i, size_t j, size_t count)
{
    float weights[16];
    const uint8_t *codes = w->data;
    for (size_t at = i * w->stride + j, end = at + count, first = at; at < end; at++) {
        if (at == first || at % w->group_size == 0)
            f4_weights(weights, w, at / w->group_size);
        *out++ = weights[codes[at / 2] >> at % 2 * 4 & 15];
    }
}

/* Returns the address of key i of an indexer; index_scale returns the scale of its codes. */
static inline const char *index_key(const struct index_view *keys, size_t i)
{
    size_t size = keys->codes ? keys->dim + sizeof(float) : keys->dim * sizeof(float);
    return (const char *)keys->rows + (size_t)keys->slots[i] * size;
}

static inline float index_scale(const struct index_view *keys, size_t i)
{
    float s = 1.0f;
    if (keys->codes)
        memcpy(&s, index_key(keys, i) + keys->dim, sizeof s);
    return s;
}

/* Rounds x to BF16 as kernel `narrow` does (kernels.h). It has no branch, so that compilers can vectorise loops that
 * call it. */
static inline uint16_t f32_to_bf16_x(float f)
{
    uint32_t bits = f32_to_bits(f), magnitude = bits & 0x7fffffff;
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    rounded = magnitude > 0x7f800000 ? bits | 0x400000 : rounded;
    return (rounded & 0x7fffffff) < (127u - 56) << 23 ? 0 : (uint16_t)(rounded >> 16);
}

/* Decodes columns [j, j + count) of row i of a quantized matrix to f32. A weight is fl32(fl32(sw * q) - mw)
 * (quantized.h). */
void decode_quantized(float *out, const struct weight_view *w, size_t i, size_t j, size_t count);

/* Decodes columns [j, j + count) of row i of a matrix of any type to f32. */
static inline void decode_weights(float *out, const struct weight_view *w, size_t i, size_t j, size_t count)
{
    size_t at = i * w->stride + j;
    uint16_t half;
    switch (w->type) {
    case WEIGHT_F32:
        memcpy(out, (const char *)w->data + at * sizeof *out, count * sizeof *out);
        break;
    case WEIGHT_F16:
        for (size_t k = 0; k < count; k++) {
            memcpy(&half, (const char *)w->data + (at + k) * sizeof half, sizeof half);
            out[k] = f16_to_f32(half);
        }
        break;
    case WEIGHT_BF16:
        for (size_t k = 0; k < count; k++) {
            memcpy(&half, (const char *)w->data + (at + k) * sizeof half, sizeof half);
            out[k] = bf16_to_f32(half);
        }
        break;
    case WEIGHT_F8_E4M3:
        for (size_t k = 0; k < count; k++)
            out[k] = e4m3_to_f32(((const uint8_t *)w->data)[at + k]) * weight_scale(w, i, j + k);
        break;
    case WEIGHT_I8:
        for (size_t k = 0; k < count; k++)
            out[k] = (float)((const int8_t *)w->data)[at + k] * weight_scale(w, i, j + k);
        break;
    case WEIGHT_I4:
        for (size_t k = 0; k < count; k++)
            out[k] = weight_i4(w, at + k);
        break;
    case WEIGHT_F4:
        decode_f4(out, w, i, j, count);
        break;
    default:
        decode_quantized(out, w, i, j, count);
    }
}

#endif
