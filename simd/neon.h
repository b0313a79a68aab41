/* simd/neon.h -- converts weights to f32, and rearranges numbers from natural to packed order (see packed_length in
 * simd/kernels.h). The neon*.c files use it.
 *
 * A register has four lanes. So the sixteen sums of rule 1 need four registers, called quads: quad i has sums 4i..4i+3,
 * and numbers 8i..8i+7 of each chunk are added to it. Weights are loaded as bytes, because the addresses in a mapped
 * file may not be aligned. */
#ifndef VB_NEON_H
#define VB_NEON_H

#include "simd/tiles.h"

#include <arm_neon.h>

ALWAYS_INLINE float32x4_t load_f32(const void *p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }

ALWAYS_INLINE uint16x8_t load_words(const void *p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }

/* Returns the odd elements of a vector of 8 BF16 numbers, as f32; even_bf16 returns the even elements. */
ALWAYS_INLINE float32x4_t odd_bf16(uint16x8_t words)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(words), vdupq_n_u32(0xffff0000)));
}

ALWAYS_INLINE float32x4_t even_bf16(uint16x8_t words)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(words), 16));
}

/* Converts four BF16 numbers to f32, in natural order. */
ALWAYS_INLINE float32x4_t widen_bf16(uint16x4_t words) { return vreinterpretq_f32_u32(vshll_n_u16(words, 16)); }

/* f[1], f[3], f[5], f[7]; even_f32 returns f[0], f[2], f[4], f[6]. */
ALWAYS_INLINE float32x4_t odd_f32(const float *f) { return vuzp2q_f32(load_f32(f), load_f32(f + 4)); }

ALWAYS_INLINE float32x4_t even_f32(const float *f) { return vuzp1q_f32(load_f32(f), load_f32(f + 4)); }

/* Converts 8 E4M3 codes to BF16: sign s, exponent e and mantissa m of a code s.eeee.mmm become s.(eeee+120).mmm0000. If
 * e is 0, the magnitude is m * 2^-9. Two tables, indexed by m, hold the high byte and the low byte of the BF16 number
 * with this magnitude. */
ALWAYS_INLINE uint16x8_t e4m3_to_bf16(uint8x8_t codes)
{
    static const uint8_t high[8] = {0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
    static const uint8_t low[8] = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60};
    uint8x8_t magnitude = vand_u8(codes, vdup_n_u8(0x7f));
    uint16x8_t wide = vmovl_u8(magnitude);
    uint16x8_t normal = vaddq_u16(vshlq_n_u16(wide, 4), vdupq_n_u16(120 << 7));
    uint16x8_t small = vorrq_u16(vshll_n_u8(vtbl1_u8(vld1_u8(high), magnitude), 8),
                                 vmovl_u8(vtbl1_u8(vld1_u8(low), magnitude)));
    uint16x8_t words = vbslq_u16(vcltq_u16(wide, vdupq_n_u16(8)), small, normal);
    words = vorrq_u16(words, vceqq_u16(wide, vdupq_n_u16(0x7f))); /* 0x7f is the NaN: set all bits */
    return vorrq_u16(words, vshll_n_u8(vand_u8(codes, vdup_n_u8(0x80)), 8));
}

/* Adds up sixteen lanes, given as four quads, by the fold of rule 1: h = 8, 4, 2, 1. */
ALWAYS_INLINE float fold16(const float32x4_t a[4])
{
    float32x4_t b = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
    float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}

extern const struct vector_loops loops_neon;

/* The strip function of these loops; defined in neon_strips.c. */
void neon_strip(size_t T, const struct strip *s);

/* Kernel `index_scores`; defined in neon_index.c. */
void neon_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                       void *scratch);

/* The functions are in neon_quantized.c, neon_dotprod.c and neon_i8mm.c. The second is for CPUs with dot products of
 * bytes, and the third for CPUs that have matrix products of bytes too. */
void neon_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantized_group *x, size_t ldx, size_t T, void *scratch);
void neon_dotprod_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                   const struct quantized_group *x, size_t ldx, size_t T, void *scratch);
void neon_i8mm_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                const struct quantized_group *x, size_t ldx, size_t T, void *scratch);

#endif
