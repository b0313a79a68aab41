/* simd/avx512_vnni_open.c -- quantized matrices as a file has them, with VNNI: sixteen rows at a time are taken apart,
 * into an open panel or, for few rows of x, straight into their sums. */
#include "simd/avx512.h"

#define LANES 4
#define TAKER avx512_taker
#include "simd/quantized_open.h"

/* 16 bytes of rows r, r + 4, r + 8, r + 12 */
ALWAYS_INLINE __m512i four_rows(const unsigned char *const *row, int r, size_t at)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row[r] + at)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row[r + 4] + at)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row[r + 8] + at)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(row[r + 12] + at)), 3);
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

ALWAYS_INLINE words look_up(words table, words w) { return (words)_mm512_shuffle_epi8((__m512i)table, (__m512i)w); }

ALWAYS_INLINE words four_bits(words bits, int j)
{
    const __m512i one_each = _mm512_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    const __m128i byte_of_word = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    __m512i index = _mm512_add_epi8(_mm512_broadcast_i32x4(byte_of_word), _mm512_set1_epi8((char)(j / 2)));
    return (words)_mm512_movm_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8((__m512i)bits, index), one_each));
}

/* --- what becomes of a group --- */

struct avx512_taker {
    struct open_panel *panel; /* or NULL: */
    const struct quantized_group *x;
    size_t T, ldx;
    __m512 acc[FEW_ROWS_OF_X];
};

ALWAYS_INLINE __m512i sum_of(__m512i s, const struct open_group *group, const struct quantized_group *x, int j,
                             int count)
{
    UNROLL
    for (int i = j; i < j + count; i++) {
        int32_t q;
        memcpy(&q, x->q + 4 * i, sizeof q);
        s = _mm512_dpbusd_epi32(s, (__m512i)group->codes[i], _mm512_set1_epi32(q));
    }
    return s;
}

ALWAYS_INLINE __m512 add_scaled(__m512 acc, __m512i s, floats scale, const struct quantized_group *x)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps((__m512)scale, _mm512_set1_ps(x->d)), acc);
}

ALWAYS_INLINE void take(struct avx512_taker *to, size_t g, enum weight_type type, const struct open_group *group)
{
    if (to->panel) {
        put_group(to->panel, 0, g, type, group);
        return;
    }
    for (size_t t = 0; t < to->T; t++) {
        const struct quantized_group *x = to->x + t * to->ldx + g;
        __m512 acc = to->acc[t];
        const int halves = has_halves(type) ? 2 : 1;
        UNROLL
        for (int half = 0; half < halves; half++) {
            int32_t less = has_halves(type) ? -code_above(type) * sum_of_half(x, half) : above_times_x(type, x);
            __m512i s = sum_of(_mm512_set1_epi32(less), group, x, 4 * half, 8 / halves);
            acc = add_scaled(acc, s, group->scale[half], x);
            if (has_minimums(type)) {
                __m512 minimum = _mm512_mul_ps((__m512)group->minimum[half], _mm512_set1_ps(x->d));
                int32_t sum = halves == 2 ? sum_of_half(x, half) : x->sum;
                acc = _mm512_fmadd_ps(_mm512_set1_ps(-(float)sum), minimum, acc);
            }
        }
        to->acc[t] = acc;
    }
}

/* --- every type --- */

void avx512_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
                 size_t groups)
{
    const unsigned char *at[SLICE];
    struct avx512_taker to = {.panel = panel};
    find_rows(at, w, row, rows, group);
    take_any(&to, w, at, groups, bytes_ahead(w, group, groups, MANY_PANELS * PANEL_ROWS));
}

void avx512_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
                size_t groups, const struct quantized_group *x, size_t ldx, size_t T)
{
    const unsigned char *at[SLICE];
    struct avx512_taker to = {.x = x, .T = T, .ldx = ldx};
    find_rows(at, w, row, rows, group);
    for (size_t t = 0; t < T; t++)
        to.acc[t] = _mm512_setzero_ps();
    take_any(&to, w, at, groups, bytes_ahead(w, group, groups, PANEL_ROWS));
    for (size_t t = 0; t < T; t++)
        _mm512_storeu_ps(sums[t], to.acc[t]);
}
