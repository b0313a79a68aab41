/* simd/avx512_bf16_index.c -- kernel `index_scores` with AVX512-BF16.
 *
 * BF16 can represent all numbers of E4M3. Numbers other than 0 are at least 2^-9 in magnitude, so vdpbf16ps gives the
 * bits of two fmas (avx512_bf16.c). */
#include "simd/avx512_index.h"

#define vec_term(k, q, a) _mm512_dpbf16_ps(a, (__m512bh)(k), (__m512bh)(q))
#include "simd/index_tile.h"

static void pairs(void *out, const void *codes, size_t chunks)
{
    for (size_t i = 0; i < chunks; i++)
        _mm512_storeu_si512((char *)out + 64 * i,
                            e4m3_to_bf16(_mm256_loadu_si256((const void *)((const char *)codes + 32 * i))));
}

void avx512_index_scores_bf16(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                              void *scratch)
{
    static const struct index_loops loops = {.keys = KEYS, .pairs = pairs, .transpose = avx512_transpose,
                                             .sums = sums_of_tile};
    if (keys->codes && !__builtin_cpu_is("intel")) /* on Intel CPUs, fma is faster (avx512_bf16.c) */
        tiled_index_scores(&loops_avx512, &loops, score, keys, q, w, H, scratch);
    else
        avx512_index_scores(score, keys, q, w, H, scratch);
}
