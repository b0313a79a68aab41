/* simd/avx512_bf16.c -- precision bf16 with AVX512-BF16.
 *
 * vdpbf16ps takes a pair of products into a sum as two fmas, the odd element's first, each rounded to nearest even:
 * rule 1's order (measured on 120 million random cases; the manual's description agrees). It flushes subnormals
 * whatever MXCSR says, which cannot act while every |w| and |x| that is not 0 is 2^-56 or more: then each product, and
 * so each sum, is a multiple of 2^-126. Rows with a smaller weight take the fmas of avx512_tiles.c. */
#include "simd/avx512.h"

/* On Intel's Sapphire Rapids, vdpbf16ps computes half as many products as fma in the same time (measured with
 * machine_bf16); on AMD's CPU of the prototypes, 1.8 times as many. Up to FEW tokens, both wait for the weights. */
#define FEW 12

/* the tile whose weights are `at` bytes behind those of the first */
ALWAYS_INLINE void tile_of(int T, float (*sums)[TILE_ROWS], const struct tile *p, size_t at)
{
    const char *w[TILE_ROWS];
    const uint16_t *x = p->narrow;
    size_t ldx = p->ldx, step = p->step, prefetch = p->prefetch;
    __m512 a[TILE_ROWS][TILE_TOKENS];
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        w[r] = (const char *)p->w[r] + at;
        UNROLL
        for (int t = 0; t < T; t++)
            a[r][t] = _mm512_setzero_ps();
    }

    for (size_t chunk = p->chunks; chunk; chunk--, x += step) {
        __m512i h[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            h[r] = _mm512_loadu_si512(w[r]);
            _mm_prefetch(w[r] + prefetch, _MM_HINT_T0);
            w[r] += 64;
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m512i u = _mm512_loadu_si512(x + (size_t)t * ldx);
            in_register(u);
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                a[r][t] = _mm512_dpbf16_ps(a[r][t], (__m512bh)h[r], (__m512bh)u);
        }
    }
    fold_tile(sums, a, T);
}

ALWAYS_INLINE void tiles_of(int T, const struct tile *p)
{
    for (size_t i = 0; i < p->count; i++) {
        float sums[8][TILE_ROWS];
        tile_of(T, sums, p, i * p->w_next);
        put_tile(p, i, T, sums);
    }
}

static void tile_bf16(size_t T, const struct tile *p)
{
    switch (T) {
    case 1: tiles_of(1, p); break;
    case 2: tiles_of(2, p); break;
    case 3: tiles_of(3, p); break;
    case 4: tiles_of(4, p); break;
    case 5: tiles_of(5, p); break;
    default: tiles_of(6, p);
    }
}

/* whether one of rows [n0, n1) has a weight that is not 0 and below 2^-56 */
static int has_tiny(const struct weight_view *w, size_t n0, size_t n1)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
    const __m512i least = _mm512_set1_epi16(((127 - 56) << 7) - 1);
    for (size_t n = n0; n < n1; n++) {
        const uint16_t *row = (const uint16_t *)w->data + n * w->stride;
        __mmask32 tiny = 0;
        for (size_t k = 0; k < w->cols; k += 32) {
            __mmask32 there = w->cols - k < 32 ? ((__mmask32)1 << (w->cols - k)) - 1 : ~(__mmask32)0;
            __m512i words = _mm512_and_si512(_mm512_maskz_loadu_epi16(there, row + k), magnitude);
            tiny |= _mm512_cmplt_epu16_mask(_mm512_sub_epi16(words, one), least); /* 0 becomes the largest */
        }
        if (tiny)
            return 1;
    }
    return 0;
}

void avx512_matmul_bf16_pairs(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                              const uint16_t *x, size_t ldx, size_t T, void *scratch)
{
    struct vector_loops loops = loops_avx512;
    if (w->type != WEIGHT_BF16) { /* I4 */
        tiled_matmul_bf16(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
        return;
    }
    int known = w->magnitudes ? __atomic_load_n(w->magnitudes, __ATOMIC_RELAXED) : MAGNITUDES_UNKNOWN;
    if (known == MAGNITUDES_UNKNOWN && has_tiny(w, n0, n1)) {
        known = MAGNITUDES_TINY;
        if (w->magnitudes)
            __atomic_store_n(w->magnitudes, MAGNITUDES_TINY, __ATOMIC_RELAXED);
    }
    if (known != MAGNITUDES_TINY && !(T > FEW && __builtin_cpu_is("intel")))
        loops.tile_bf16 = tile_bf16;
    tiled_matmul_bf16(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
