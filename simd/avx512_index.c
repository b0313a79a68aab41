/* simd/avx512_index.c -- kernel `index_scores`. */
#include "simd/avx512_index.h"

#define vec_term(k, q, a) vec_fma(k, q, a)
#include "simd/index_tile.h"

/* Transposes 16 x 16 numbers. Rows of `in` are ld numbers apart, and rows of `out` KEYS numbers. */
static void transpose_16(float *out, const float *in, size_t ld)
{
    __m512 quads[16]; /* number 4i + m: in quarter c, column 4c + m of rows 4i .. 4i + 3 */
    for (size_t i = 0; i < 16; i += 4) {
        const float *row = in + i * ld;
        __m512 a = _mm512_loadu_ps(row), b = _mm512_loadu_ps(row + ld), c = _mm512_loadu_ps(row + 2 * ld),
               d = _mm512_loadu_ps(row + 3 * ld);
        __m512 ab = _mm512_unpacklo_ps(a, b), cd = _mm512_unpacklo_ps(c, d), ab_high = _mm512_unpackhi_ps(a, b),
               cd_high = _mm512_unpackhi_ps(c, d);
        quads[i] = _mm512_shuffle_ps(ab, cd, 0x44);
        quads[i + 1] = _mm512_shuffle_ps(ab, cd, 0xee);
        quads[i + 2] = _mm512_shuffle_ps(ab_high, cd_high, 0x44);
        quads[i + 3] = _mm512_shuffle_ps(ab_high, cd_high, 0xee);
    }
    for (size_t m = 0; m < 4; m++) {
        __m512 a = quads[m], b = quads[4 + m], c = quads[8 + m], d = quads[12 + m];
        __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), cd = _mm512_shuffle_f32x4(c, d, 0x44);
        __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xee), cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
        _mm512_storeu_ps(out + m * KEYS, _mm512_shuffle_f32x4(ab, cd, 0x88));
        _mm512_storeu_ps(out + (4 + m) * KEYS, _mm512_shuffle_f32x4(ab, cd, 0xdd));
        _mm512_storeu_ps(out + (8 + m) * KEYS, _mm512_shuffle_f32x4(ab_high, cd_high, 0x88));
        _mm512_storeu_ps(out + (12 + m) * KEYS, _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd));
    }
}

void avx512_transpose(float *out, const float *rows, size_t terms)
{
    for (size_t j = 0; j < KEYS; j += LANES)
        for (size_t i = 0; i < terms; i += LANES)
            transpose_16(out + i * KEYS + j, rows + j * terms + i, terms);
}

void avx512_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                         void *scratch)
{
    static const struct index_loops loops = {.keys = KEYS, .transpose = avx512_transpose, .sums = sums_of_tile};
    tiled_index_scores(&loops_avx512, &loops, score, keys, q, w, H, scratch);
}
