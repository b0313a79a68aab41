/* simd/avx512.h -- weights to f32 and the shuffles between natural and packed order, for the avx512*.c files.
 *
 * A BF16 is the upper half of an f32, so sixteen pairs of BF16 give their odd elements by a mask and their even ones by
 * a shift. Every E4M3 code is exactly a BF16 too: F8 is decoded in sixteen-bit lanes. */
#ifndef VB_AVX512_H
#define VB_AVX512_H

#include "tiles.h"

#include <immintrin.h>

/* the odd and the even ones of 32 BF16 */
ALWAYS_INLINE __m512 odd_bf16(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}

ALWAYS_INLINE __m512 even_bf16(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }

/* sixteen BF16 in natural order */
ALWAYS_INLINE __m512 widen_bf16(__m256i words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* elements 1, 3, .. 31 and 0, 2, .. 30 of the 32 numbers in (low, high) */
ALWAYS_INLINE __m512 odd_f32(__m512 low, __m512 high)
{
    const __m512i index = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(low, index, high);
}

ALWAYS_INLINE __m512 even_f32(__m512 low, __m512 high)
{
    const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(low, index, high);
}

/* 32 codes s.eeee.mmm to BF16 s.(eeee+120).mmm0000. The eight magnitudes with e = 0 (m * 2^-9) and the NaN come from a
 * table that is indexed by the code's low five bits: 0..7 and, for 0x7f, 31. */
ALWAYS_INLINE __m512i e4m3_to_bf16(__m256i codes)
{
    const __m512i table = _mm512_setr_epi32(0x3b000000, 0x3bc03b80, 0x3c203c00, 0x3c603c40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                            0, 0x7fc00000);
    const __m512i seven_bits = _mm512_set1_epi16(0x7f);
    __m512i code = _mm512_cvtepu8_epi16(codes);
    __m512i magnitude = _mm512_and_si512(code, seven_bits);
    __m512i words = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    __m512i after = _mm512_and_si512(_mm512_add_epi16(code, _mm512_set1_epi16(1)), seven_bits); /* 0x7f becomes 0 */
    __mmask32 special = _mm512_cmplt_epu16_mask(after, _mm512_set1_epi16(9));
    words = _mm512_mask_permutexvar_epi16(words, special, code, table);
    __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16((short)0x8000));
    return _mm512_or_si512(words, sign);
}

/* the lanes below n */
ALWAYS_INLINE __mmask16 below(size_t n) { return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff; }

/* The fold of rule 1 for one vector: h = 8, 4, 2, 1. */
ALWAYS_INLINE float fold16(__m512 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

extern const struct vector_loops loops_avx512;

#endif
