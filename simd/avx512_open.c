/* simd/avx512_open.c -- blocks of quantised weights to open panels, sixteen rows at a time. */
#include "avx512.h"

#define LANES 4
#include "quantised_open.h"

/* 16 bytes of rows r, r + 4, r + 8, r + 12 */
ALWAYS_INLINE __m512i four_rows(const unsigned char *const *row, int r, size_t at)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row[r] + at)));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, _mm_loadu_si128((const void *)(row[r + 4] + at)));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, _mm_loadu_si128((const void *)(row[r + 8] + at)));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, _mm_loadu_si128((const void *)(row[r + 12] + at)));
}

ALWAYS_INLINE void transpose(words w[4], const unsigned char *const *row, size_t at)
{
    __m512i a = four_rows(row, 0, at), b = four_rows(row, 1, at), c = four_rows(row, 2, at), d = four_rows(row, 3, at);
    __m512i ab_01 = _mm512_unpacklo_epi32(a, b), ab_23 = _mm512_unpackhi_epi32(a, b);
    __m512i cd_01 = _mm512_unpacklo_epi32(c, d), cd_23 = _mm512_unpackhi_epi32(c, d);
    w[0] = (words)_mm512_unpacklo_epi64(ab_01, cd_01);
    w[1] = (words)_mm512_unpackhi_epi64(ab_01, cd_01);
    w[2] = (words)_mm512_unpacklo_epi64(ab_23, cd_23);
    w[3] = (words)_mm512_unpackhi_epi64(ab_23, cd_23);
}

ALWAYS_INLINE floats half_of(words w) { return (floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)w)); }

void avx512_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups)
{
    open_rows(panel, w, row, rows, group, groups);
}
