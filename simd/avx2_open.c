/* simd/avx2_open.c -- blocks of quantised weights to open panels, eight rows at a time. */
#include "avx2.h"

#define LANES 2
#include "quantised_open.h"

/* 16 bytes of rows r and r + 4 */
ALWAYS_INLINE __m256i two_rows(const unsigned char *const *row, int r, size_t at)
{
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)(row[r] + at)));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(row[r + 4] + at)), 1);
}

ALWAYS_INLINE void transpose(words w[4], const unsigned char *const *row, size_t at)
{
    __m256i a = two_rows(row, 0, at), b = two_rows(row, 1, at), c = two_rows(row, 2, at), d = two_rows(row, 3, at);
    __m256i ab_01 = _mm256_unpacklo_epi32(a, b), ab_23 = _mm256_unpackhi_epi32(a, b);
    __m256i cd_01 = _mm256_unpacklo_epi32(c, d), cd_23 = _mm256_unpackhi_epi32(c, d);
    w[0] = (words)_mm256_unpacklo_epi64(ab_01, cd_01);
    w[1] = (words)_mm256_unpackhi_epi64(ab_01, cd_01);
    w[2] = (words)_mm256_unpacklo_epi64(ab_23, cd_23);
    w[3] = (words)_mm256_unpackhi_epi64(ab_23, cd_23);
}

ALWAYS_INLINE floats half_of(words w)
{
    __m256i low = _mm256_and_si256((__m256i)w, _mm256_set1_epi32(0xffff));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 8);
    return (floats)_mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

void avx2_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups)
{
    open_rows(panel, w, row, rows, group, groups);
}
