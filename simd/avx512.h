/* simd/avx512.h -- converts weights to f32, and rearranges numbers from natural to packed order (see packed_length in
 * simd/kernels.h). The avx512*.c files use it.
 *
 * A BF16 is the upper half of an f32. A register holds sixteen pairs of BF16. A mask turns it into the odd elements as
 * f32, and a shift turns it into the even elements. Every E4M3 value is also exactly a BF16 value, so F8 is decoded in
 * 16-bit lanes. */
#ifndef VB_AVX512_H
#define VB_AVX512_H

#include "simd/tiles.h"

#include <immintrin.h>

/* Returns the odd elements of a vector of 32 BF16 numbers, as f32; even_bf16 returns the even elements. */
ALWAYS_INLINE __m512 odd_bf16(__m512i words)
{
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
}

ALWAYS_INLINE __m512 even_bf16(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }

/* Converts sixteen BF16 numbers to f32, in natural order. */
ALWAYS_INLINE __m512 widen_bf16(__m256i words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

/* Returns elements 1, 3, .. 31 of the 32 numbers in (low, high); even_f32 returns elements 0, 2, .. 30. */
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

/* Converts 32 E4M3 codes to BF16: sign s, exponent e and mantissa m of a code s.eeee.mmm become s.(eeee+120).mmm0000.
 * If e is 0, the magnitude is m * 2^-9. A table holds the BF16 numbers with these eight magnitudes, and the NaN. The
 * index into the table is the low five bits of the code: 0..7 if e is 0, and 31 for the NaN, 0x7f. */
ALWAYS_INLINE __m512i e4m3_to_bf16(__m256i codes)
{
    const __m512i table = _mm512_setr_epi32(0x3b000000, 0x3bc03b80, 0x3c203c00, 0x3c603c40, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                            0, 0, 0x7fc00000);
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

/* Returns the mask of the lanes whose number is below n. */
ALWAYS_INLINE __mmask16 below(size_t n) { return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff; }

/* Adds up the sixteen lanes of one vector by the fold of rule 1: h = 8, 4, 2, 1. */
ALWAYS_INLINE float fold16(__m512 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* --- tiles: arrays of accumulators a[row][token] --- */

/* Without this macro, the compiler would load x again for every row. In addition, each array of accumulators has a
 * fixed size, so that UNROLL can turn the array into registers. If neither were done, a tile would run at two thirds of
 * its speed. */
#define in_register(v) __asm__("" : "+v"(v))

/* Hides how a pointer is related to others: compilers would make more pointers of them than there are registers. */
#define opaque(p) __asm__("" : "+r"(p))

/* Each addition folds several vectors of sums at once, in the order of rule 1. With one vector per addition, folding
 * would be slow: it would take a tenth of the time that a tile takes. fold_8 and fold_4 add whole 128-bit quarters of
 * registers: lanes l and l+8, then lanes l and l+4. fold_2 and fold_1 add lanes inside of the quarters: lanes l and
 * l+2, then lanes l and l+1. */
ALWAYS_INLINE __m512 fold_8(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

ALWAYS_INLINE __m512 fold_4(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

ALWAYS_INLINE __m512 fold_2(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

ALWAYS_INLINE __m512 fold_1(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Folds the sums of four rows for tokens t..t+3 into sums[0..3]. If there are fewer than four tokens, the sums of
 * token `last` take the places of the missing tokens. */
ALWAYS_INLINE void fold_four_tokens(float (*sums)[TILE_ROWS], __m512 a[TILE_ROWS][TILE_TOKENS], int t, int last)
{
    int t1 = t + 1 < last ? t + 1 : last, t2 = t + 2 < last ? t + 2 : last, t3 = t + 3 < last ? t + 3 : last;
    __m512 row[TILE_ROWS]; /* each holds four partial sums for each of four tokens */
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++)
        row[r] = fold_4(fold_8(a[r][t], a[r][t1]), fold_8(a[r][t2], a[r][t3]));
    _mm512_storeu_ps(sums[0], fold_1(fold_2(row[0], row[1]), fold_2(row[2], row[3])));
}

/* Folds the sums of four rows for tokens t and t+1 into sums[0..1]. Rows 0 and 1 share a register, and so do rows 2 and
 * 3. */
ALWAYS_INLINE void fold_two_tokens(float (*sums)[TILE_ROWS], __m512 a[TILE_ROWS][TILE_TOKENS], int t, int last)
{
    int t1 = t + 1 < last ? t + 1 : last;
    __m512 rows_01 = fold_4(fold_8(a[0][t], a[0][t1]), fold_8(a[1][t], a[1][t1]));
    __m512 rows_23 = fold_4(fold_8(a[2][t], a[2][t1]), fold_8(a[3][t], a[3][t1]));
    __m512 both = fold_2(rows_01, rows_23);
    /* `both` now has four quarters of four numbers. The quarters belong to rows 0 and 2 for t, rows 0 and 2 for t1,
     * rows 1 and 3 for t, rows 1 and 3 for t1. In each quarter, fold_1 leaves the two sums, and then the same two sums
     * again. */
    both = fold_1(both, both);
    const __m512i index = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(sums[0], _mm512_castps512_ps256(_mm512_permutexvar_ps(index, both)));
}

ALWAYS_INLINE void fold_tile(float (*sums)[TILE_ROWS], __m512 a[TILE_ROWS][TILE_TOKENS], int T)
{
    if (T > 2)
        fold_four_tokens(sums, a, 0, T - 1);
    else
        fold_two_tokens(sums, a, 0, T - 1);
    if (T > 4)
        fold_two_tokens(sums + 4, a, 4, T - 1);
}

extern const struct vector_loops loops_avx512;

/* The strip function of these loops; defined in avx512_strips.c. */
void avx512_strip(size_t T, const struct strip *s);

/* For CPUs with AVX512-BF16; defined in avx512_bf16.c. */
void avx512_matmul_bf16_pairs(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                              const uint16_t *x, size_t ldx, size_t T, void *scratch);
/* Kernel `index_scores`; defined in avx512_index.c and, for CPUs with AVX512-BF16, in avx512_bf16_index.c. */
void avx512_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                         void *scratch);
void avx512_index_scores_bf16(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                              void *scratch);
/* index_loops.transpose for 32 keys; defined in avx512_index.c. */
void avx512_transpose(float *out, const float *rows, size_t terms);
/* For CPUs with VNNI; defined in avx512_vnni.c. AVX-512 CPUs without VNNI use avx2_matmul_quantized. */
void avx512_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                             const struct quantized_group *x, size_t ldx, size_t T, void *scratch);
void avx2_quantize(struct quantized_group *y, const float *packed, size_t K); /* on every CPU with AVX-512 */
void avx2_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantized_group *x, size_t ldx, size_t T, void *scratch);

#endif
