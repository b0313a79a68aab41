/* simd/avx2_open.c -- quantized matrices as a file has them: eight rows at a time are taken apart, into an open panel
 * or, for few rows of x, straight into their sums (as avx2_quantized.c makes them). */
#include "simd/avx2.h"

#define LANES 2
#define TAKER avx2_taker
#include "simd/quantized_open.h"

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

ALWAYS_INLINE words look_up(words table, words w) { return (words)_mm256_shuffle_epi8((__m256i)table, (__m256i)w); }

ALWAYS_INLINE words four_bits(words bits, int j)
{
    const __m256i one_each = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    const __m128i byte_of_word = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    __m256i index = _mm256_add_epi8(_mm256_broadcastsi128_si256(byte_of_word), _mm256_set1_epi8((char)(j / 2)));
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8((__m256i)bits, index), one_each);
    return (words)_mm256_cmpeq_epi8(set, one_each);
}

/* --- what becomes of a group --- */

struct avx2_taker {
    struct open_panel *panel; /* or NULL: */
    size_t first;             /* row of the panel */
    const struct quantized_group *x;
    size_t T, ldx;
    __m256 acc[FEW_ROWS_OF_X];
};

/* so many products of a code and x have room in 16 bits, twice */
ALWAYS_INLINE int room_for(enum weight_type type)
{
    return code_above(type) == 128 ? 1 : type == WEIGHT_Q6_K || type == WEIGHT_IQ1_M ? 2
           : code_above(type) == 64 ? 1
           : is_q4(type) || type == WEIGHT_Q4_1 || type == WEIGHT_Q4_K ? 8 : 4;
}

/* s + the products of elements 4j..4(j + count) */
ALWAYS_INLINE __m256i sum_of(__m256i s, enum weight_type type, const struct open_group *group,
                             const struct quantized_group *x, int j, int count)
{
    const int room = room_for(type);
    UNROLL
    for (int i = j; i < j + count; i += room) {
        __m256i s16 = _mm256_setzero_si256();
        UNROLL
        for (int k = i; k < i + room; k++) {
            int32_t q;
            memcpy(&q, x->q + 4 * k, sizeof q);
            __m256i u = _mm256_set1_epi32(q), w = (__m256i)group->codes[k];
            if (code_above(type) == 128) { /* use |q|, and x times the sign of q; 2 * 128 * 127 fits into 16 bits */
                w = _mm256_xor_si256(w, _mm256_set1_epi8((char)128));
                u = _mm256_sign_epi8(u, w);
                w = _mm256_abs_epi8(w);
            }
            s16 = _mm256_add_epi16(s16, _mm256_maddubs_epi16(w, u));
        }
        s = _mm256_add_epi32(s, _mm256_madd_epi16(s16, _mm256_set1_epi16(1)));
    }
    return s;
}

ALWAYS_INLINE __m256 add_scaled(__m256 acc, __m256i s, floats scale, const struct quantized_group *x)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_mul_ps((__m256)scale, _mm256_set1_ps(x->d)), acc);
}

ALWAYS_INLINE void take(struct avx2_taker *to, size_t g, enum weight_type type, const struct open_group *group)
{
    if (to->panel) {
        put_group(to->panel, to->first, g, type, group);
        return;
    }
    for (size_t t = 0; t < to->T; t++) {
        const struct quantized_group *x = to->x + t * to->ldx + g;
        __m256 acc = to->acc[t];
        const int halves = has_halves(type) ? 2 : 1;
        UNROLL
        for (int half = 0; half < halves; half++) {
            int32_t less = code_above(type) == 128 ? 0
                           : has_halves(type) ? -code_above(type) * sum_of_half(x, half)
                           : above_times_x(type, x);
            __m256i s = sum_of(_mm256_set1_epi32(less), type, group, x, 4 * half, 8 / halves);
            acc = add_scaled(acc, s, group->scale[half], x);
            if (has_minimums(type)) {
                __m256 minimum = _mm256_mul_ps((__m256)group->minimum[half], _mm256_set1_ps(x->d));
                int32_t sum = halves == 2 ? sum_of_half(x, half) : x->sum;
                acc = _mm256_fmadd_ps(_mm256_set1_ps(-(float)sum), minimum, acc);
            }
        }
        to->acc[t] = acc;
    }
}

/* --- every type --- */

/* The numbers of an IQ4_NL panel are looked up once for many rows of x. */
static void open_iq4_nl(struct open_panel *panel, const struct weight_view *w, size_t row, size_t group, size_t groups)
{
    const unsigned char *from = (const unsigned char *)w->data + row / PANEL_ROWS * panel_bytes(w->type, w->cols);
    const __m128i above = _mm_xor_si128(_mm_loadu_si128((const void *)quantized_iq4), _mm_set1_epi8((char)128));
    const __m256i table = _mm256_broadcastsi128_si256(above);
    for (size_t g = 0; g < groups; g++) {
        const unsigned char *codes = panel_codes(from, w->type, group + g),
                            *scales = panel_scales(from, w->type, group + g);
        for (size_t at = 0; at < 256; at += 32) {
            __m256i v = _mm256_load_si256((const void *)(codes + at)), low_nibble = _mm256_set1_epi8(15);
            __m256i low = _mm256_and_si256(v, low_nibble), high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low_nibble);
            _mm256_store_si256((void *)(panel->codes[g] + at), _mm256_shuffle_epi8(table, low));
            _mm256_store_si256((void *)(panel->codes[g] + 256 + at), _mm256_shuffle_epi8(table, high));
        }
        for (size_t r = 0; r < PANEL_ROWS; r += 8)
            _mm256_storeu_ps(panel->scale[g][0] + r, _mm256_cvtph_ps(_mm_load_si128((const void *)(scales + 2 * r))));
    }
}

void avx2_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
               size_t groups)
{
    struct avx2_taker to = {.panel = panel};
    if (w->panels) {
        open_iq4_nl(panel, w, row, group, groups);
        return;
    }
    for (; to.first < rows; to.first += SLICE) {
        const unsigned char *at[SLICE];
        find_rows(at, w, row + to.first, rows - to.first, group);
        take_any(&to, w, at, groups, bytes_ahead(w, group, groups, MANY_PANELS * PANEL_ROWS));
    }
}

void avx2_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
              size_t groups, const struct quantized_group *x, size_t ldx, size_t T)
{
    struct avx2_taker to = {.x = x, .T = T, .ldx = ldx};
    for (size_t first = 0; first < rows; first += SLICE) {
        const unsigned char *at[SLICE];
        find_rows(at, w, row + first, rows - first, group);
        for (size_t t = 0; t < T; t++)
            to.acc[t] = _mm256_setzero_ps();
        take_any(&to, w, at, groups, bytes_ahead(w, group, groups, PANEL_ROWS));
        for (size_t t = 0; t < T; t++)
            _mm256_storeu_ps(sums[t] + first, to.acc[t]);
    }
}
