/* simd/avx2_index.c -- kernel `index_scores`. */
#include "simd/avx2.h"

typedef __m256 vec;
#define LANES 8
#define VECTORS 2
#define HEADS 4
#define vec_zero() _mm256_setzero_ps()
#define vec_load(p) _mm256_loadu_ps(p)
#define vec_store(p, x) _mm256_storeu_ps(p, x)
#define vec_all(x) _mm256_set1_ps(x)
#define vec_add(a, b) _mm256_add_ps(a, b)
#define vec_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vec_relu(x) _mm256_max_ps(_mm256_setzero_ps(), x) /* the second operand if it is NaN, or if both are zeros */
#define vec_term(k, q, a) vec_fma(k, q, a)
#include "simd/index_tile.h"

/* Transposes 8 x 8 numbers. Rows of `in` are ld numbers apart, and rows of `out` KEYS numbers. */
static void transpose_8(float *out, const float *in, size_t ld)
{
    __m256 halves[8]; /* number i + m: in half c, column 4c + m of rows i .. i + 3 */
    for (size_t i = 0; i < 8; i += 4) {
        const float *row = in + i * ld;
        __m256 a = _mm256_loadu_ps(row), b = _mm256_loadu_ps(row + ld), c = _mm256_loadu_ps(row + 2 * ld),
               d = _mm256_loadu_ps(row + 3 * ld);
        __m256 ab = _mm256_unpacklo_ps(a, b), cd = _mm256_unpacklo_ps(c, d), ab_high = _mm256_unpackhi_ps(a, b),
               cd_high = _mm256_unpackhi_ps(c, d);
        halves[i] = _mm256_shuffle_ps(ab, cd, 0x44);
        halves[i + 1] = _mm256_shuffle_ps(ab, cd, 0xee);
        halves[i + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
        halves[i + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
    }
    for (size_t m = 0; m < 4; m++) {
        _mm256_storeu_ps(out + m * KEYS, _mm256_permute2f128_ps(halves[m], halves[4 + m], 0x20));
        _mm256_storeu_ps(out + (4 + m) * KEYS, _mm256_permute2f128_ps(halves[m], halves[4 + m], 0x31));
    }
}

static void transpose(float *out, const float *rows, size_t terms)
{
    for (size_t j = 0; j < KEYS; j += LANES)
        for (size_t i = 0; i < terms; i += LANES)
            transpose_8(out + i * KEYS + j, rows + j * terms + i, terms);
}

void avx2_index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                       void *scratch)
{
    static const struct index_loops loops = {.keys = KEYS, .transpose = transpose, .sums = sums_of_tile};
    tiled_index_scores(avx2_loops(), &loops, score, keys, q, w, H, scratch);
}
