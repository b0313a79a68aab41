/* simd/avx2.h -- converts weights to f32, and rearranges numbers from natural to packed order (see packed_length in
 * simd/kernels.h). The avx2*.c files use it.
 *
 * A register has eight lanes. So the sixteen sums of rule 1 need two registers: the low half has sums 0..7, and the
 * high half has sums 8..15. The first sixteen numbers of a chunk are added to the low half, and the last sixteen to the
 * high half. */
#ifndef VB_AVX2_H
#define VB_AVX2_H

#include "simd/tiles.h"

#include <immintrin.h>

/* Returns the odd elements of a vector of 16 BF16 numbers, as f32; even_bf16 returns the even elements. */
ALWAYS_INLINE __m256 odd_bf16(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

ALWAYS_INLINE __m256 even_bf16(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }

/* Converts eight BF16 numbers to f32, in natural order. */
ALWAYS_INLINE __m256 widen_bf16(__m128i words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

/* p[0..3] in the lower 128 bits and p[8..11] in the upper, because shuffles work inside of 128 bits. */
ALWAYS_INLINE __m256 load_0_8(const float *p)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 8), 1);
}

/* p[1], p[3], .. p[15]; even_f32 returns p[0], p[2], .. p[14]. */
ALWAYS_INLINE __m256 odd_f32(const float *p) { return _mm256_shuffle_ps(load_0_8(p), load_0_8(p + 4), 0xdd); }

ALWAYS_INLINE __m256 even_f32(const float *p) { return _mm256_shuffle_ps(load_0_8(p), load_0_8(p + 4), 0x88); }

/* Converts 16 E4M3 codes to BF16: sign s, exponent e and mantissa m of a code s.eeee.mmm become s.(eeee+120).mmm0000.
 * If e is 0, the magnitude is m * 2^-9. Two tables, indexed by m, hold the high byte and the low byte of the BF16
 * number with this magnitude. */
ALWAYS_INLINE __m256i e4m3_to_bf16(__m128i codes)
{
    const __m256i high = _mm256_setr_epi32(0x3b3b3b00, 0x3c3c3c3c, 0, 0, 0x3b3b3b00, 0x3c3c3c3c, 0, 0);
    const __m256i low = _mm256_setr_epi32((int)0xc0800000, 0x60402000, 0, 0, (int)0xc0800000, 0x60402000, 0, 0);
    __m256i code = _mm256_cvtepu8_epi16(codes);
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16(120 << 7));
    __m256i small = _mm256_or_si256(_mm256_slli_epi16(_mm256_shuffle_epi8(high, magnitude), 8),
                                    _mm256_shuffle_epi8(low, magnitude));
    __m256i words = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude));
    words = _mm256_or_si256(words, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f))); /* 0x7f is the NaN: set all
                                                                                               bits */
    return _mm256_or_si256(words, _mm256_and_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16((short)0x8000)));
}

/* Adds up sixteen lanes, given as two halves, by the fold of rule 1: h = 8, 4, 2, 1. */
ALWAYS_INLINE float fold16(__m256 low, __m256 high)
{
    __m256 b = _mm256_add_ps(low, high);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* Returns the loops of these files. A tile has up to six tokens on CPUs of Intel with GFNI, else up to four: six
 * vectors of 4 KB leave room for the weights of a tile in an L1 of 48 KB, which Intel's CPUs have since GFNI, but not
 * in 32 KB. */
const struct vector_loops *avx2_loops(void);

/* The strip function of these loops; defined in avx2_strips.c. */
void avx2_strip(size_t T, const struct strip *s);

/* The decoders of these loops (struct vector_loops); defined in avx2_decode.c. */
void avx2_decode(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed);
void avx2_pack(float *packed, const float *x, size_t K);
void avx2_decode_i4(float *out, const unsigned char *codes, const unsigned char *scales, size_t groups, int rounded,
                    int packed);
void avx2_decode_f4(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed);
void avx2_decode_cache_q8(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows, size_t groups);

/* Kernel `index_scores`; defined in avx2_index.c. */
void avx2_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                       void *scratch);

/* Defined in avx2_quantized.c, with kernel `quantize`. */
void avx2_quantize(struct quantized_group *y, const float *packed, size_t K);
void avx2_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantized_group *x, size_t ldx, size_t T, void *scratch);

#endif
