/* simd/avx512.c -- the AVX-512 table (F, BW, DQ, VL) and the kernels on one vector. Tails are masked: a masked load
 * does not touch what it leaves out, so rows may end at an unreadable page. */
#include "simd/avx512.h"
#include "simd/elementwise.h"

__m512 Sleef_finz_expf16_u10avx512f(__m512);

static void matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x, size_t ldx,
                   size_t T, void *scratch)
{
    tiled_matmul(&loops_avx512, y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                     size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(&loops_avx512, y, ldy, w, c0, c1, x, ldx, T, scratch, 0);
}

static void fma_rows_onto(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                          size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(&loops_avx512, y, ldy, w, c0, c1, x, ldx, T, scratch, 1);
}

static void fma_outer(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                      void *scratch)
{
    tiled_fma_outer(&loops_avx512, y, ldy, w, x, ldx, T, scratch);
}

static void matmul_bf16(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch)
{
    tiled_matmul_bf16(&loops_avx512, y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void pack(float *packed, const float *x, size_t K) { loops_avx512.pack(packed, x, K); }
static void narrow(uint16_t *y, const float *packed, size_t K) { narrow_chunks(y, packed, K); }

static float dot(const float *a, const float *b, size_t K)
{
    float total = 0.0f;
    for (size_t block = 0; block < K; block += DOT_BLOCK) {
        size_t end = K - block < DOT_BLOCK ? K : block + DOT_BLOCK;
        __m512 s = _mm512_setzero_ps();
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            size_t n = end - k;
            __mmask16 m0 = below(n), m1 = n > 16 ? below(n - 16) : 0;
            __m512 a0 = _mm512_maskz_loadu_ps(m0, a + k), a1 = _mm512_maskz_loadu_ps(m1, a + k + 16);
            __m512 b0 = _mm512_maskz_loadu_ps(m0, b + k), b1 = _mm512_maskz_loadu_ps(m1, b + k + 16);
            s = _mm512_fmadd_ps(odd_f32(a0, a1), odd_f32(b0, b1), s);
            s = _mm512_fmadd_ps(even_f32(a0, a1), even_f32(b0, b1), s);
        }
        total = block ? total + fold16(s) : fold16(s);
    }
    return total;
}

/* The larger, where a NaN never wins (it only stays as the start value): as scalar.c compares. */
ALWAYS_INLINE __m512 larger(__m512 m, __m512 x)
{
    return _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(x, m, _CMP_GT_OQ), x);
}

static float softmax_block(float *p, const float *s, size_t n, float *sum)
{
    __m512 first = _mm512_set1_ps(s[0]), m = first, lanes = _mm512_setzero_ps();
    for (size_t j = 0; j < n; j += 16)
        m = larger(m, _mm512_mask_loadu_ps(first, below(n - j), s + j));
    for (int h = 8; h; h >>= 1) {
        __m512i other = _mm512_xor_si512(_mm512_set1_epi32(h),
                                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        m = larger(m, _mm512_permutexvar_ps(other, m));
    }
    m = _mm512_add_ps(m, _mm512_setzero_ps()); /* a maximum of -0 becomes +0 */
    for (size_t j = 0; j < n; j += 16) {
        __mmask16 mask = below(n - j);
        __m512 e = Sleef_finz_expf16_u10avx512f(_mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, s + j), m));
        _mm512_mask_storeu_ps(p + j, mask, e);
        lanes = _mm512_mask_add_ps(lanes, mask, lanes, e);
    }
    *sum = fold16(lanes);
    return _mm512_cvtss_f32(m);
}

static void exp_f32(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = below(n - i);
        _mm512_mask_storeu_ps(y + i, mask, Sleef_finz_expf16_u10avx512f(_mm512_maskz_loadu_ps(mask, x + i)));
    }
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = below(n - i);
        __m512 gate = _mm512_maskz_loadu_ps(mask, g + i), up = _mm512_maskz_loadu_ps(mask, u + i);
        __m512 e = Sleef_finz_expf16_u10avx512f(_mm512_xor_ps(gate, _mm512_set1_ps(-0.0f)));
        __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(silu, up));
    }
}

#define TABLE(product_of_bf16, product_of_quantized, scores_of_index, that_variant) \
    { \
        .name = "avx512", \
        .variant = that_variant, \
        .matmul = {matmul, matmul, matmul, matmul, matmul, matmul, matmul}, \
        .fma_rows_onto = {fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, \
                          fma_rows_onto}, \
        .fma_rows = {fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows}, \
        .fma_rows_cache_q8 = fma_rows, \
        .fma_outer = fma_outer, \
        .matmul_bf16 = product_of_bf16, \
        .learns_magnitudes = product_of_bf16 != matmul_bf16, \
        .matmul_quantized = product_of_quantized, \
        .index_scores = scores_of_index, \
        .dot = dot, \
        .pack = pack, \
        .narrow = narrow, \
        .quantize = avx2_quantize, \
        .count_from = count_from, \
        .axpy = axpy, \
        .scale = scale, \
        .divide = divide, \
        .softmax_block = softmax_block, \
        .exp = exp_f32, \
        .silu_mul = silu_mul, \
    }

const struct kernels kernels_avx512 = TABLE(matmul_bf16, avx2_matmul_quantized, avx512_index_scores, NULL);
const struct kernels kernels_avx512_vnni = TABLE(matmul_bf16, avx512_matmul_quantized, avx512_index_scores, "vnni");
const struct kernels kernels_avx512_bf16 = TABLE(avx512_matmul_bf16_pairs, avx512_matmul_quantized,
                                                 avx512_index_scores_bf16, "bf16");
