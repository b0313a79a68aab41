/* simd/avx2.c -- the AVX2+FMA table and the kernels on one vector. Tails are copied, with +0 behind them. */
#include "simd/avx2.h"
#include "simd/elementwise.h"

__m256 Sleef_finz_expf8_u10avx2(__m256);

static void matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x, size_t ldx,
                   size_t T, void *scratch)
{
    tiled_matmul(avx2_loops(), y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                     size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(avx2_loops(), y, ldy, w, c0, c1, x, ldx, T, scratch, 0);
}

static void fma_rows_onto(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                          size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(avx2_loops(), y, ldy, w, c0, c1, x, ldx, T, scratch, 1);
}

static void fma_outer(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                      void *scratch)
{
    tiled_fma_outer(avx2_loops(), y, ldy, w, x, ldx, T, scratch);
}

static void matmul_bf16(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch)
{
    tiled_matmul_bf16(avx2_loops(), y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void pack(float *packed, const float *x, size_t K) { avx2_loops()->pack(packed, x, K); }
static void narrow(uint16_t *y, const float *packed, size_t K) { narrow_chunks(y, packed, K); }

/* odd_f32 and even_f32 with lanes 0 1 4 5 2 3 6 7, which costs no loads of half a register; and sums of those in order
 * again */
ALWAYS_INLINE __m256 odd_mixed(const float *p)
{
    return _mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), 0xdd);
}
ALWAYS_INLINE __m256 even_mixed(const float *p)
{
    return _mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), 0x88);
}
ALWAYS_INLINE __m256 in_order(__m256 s) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8)); }

static float dot(const float *a, const float *b, size_t K)
{
    float total = 0.0f, a_cut[DOT_CHUNK], b_cut[DOT_CHUNK];
    for (size_t block = 0; block < K; block += DOT_BLOCK) {
        size_t end = K - block < DOT_BLOCK ? K : block + DOT_BLOCK;
        __m256 s[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            const float *p = a + k, *q = b + k;
            if (end - k < DOT_CHUNK) {
                p = copy_cut(a_cut, p, end - k);
                q = copy_cut(b_cut, q, end - k);
            }
            for (int half = 0; half < 2; half++, p += 16, q += 16) {
                s[half] = _mm256_fmadd_ps(odd_mixed(p), odd_mixed(q), s[half]);
                s[half] = _mm256_fmadd_ps(even_mixed(p), even_mixed(q), s[half]);
            }
        }
        float sum = fold16(in_order(s[0]), in_order(s[1]));
        total = block ? total + sum : sum;
    }
    return total;
}

/* The larger, where a NaN never wins (it only stays as the start value): as scalar.c compares. */
ALWAYS_INLINE __m256 larger(__m256 m, __m256 x) { return _mm256_blendv_ps(m, x, _mm256_cmp_ps(x, m, _CMP_GT_OQ)); }

/* the lanes below n */
ALWAYS_INLINE __m256i below(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static float softmax_block(float *p, const float *s, size_t n, float *sum)
{
    __m256 most = _mm256_set1_ps(s[0]), lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    float eight[8], m = s[0];
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        most = larger(most, _mm256_loadu_ps(s + j));
    _mm256_storeu_ps(eight, most);
    for (size_t l = 0; l < 8; l++)
        m = eight[l] > m ? eight[l] : m;
    for (; j < n; j++)
        m = s[j] > m ? s[j] : m;
    m = m + 0.0f; /* a maximum of -0 becomes +0 */
    most = _mm256_set1_ps(m);
    for (j = 0; j < n; j += 8) {
        __m256i mask = below(n - j);
        __m256 v = _mm256_and_ps(_mm256_sub_ps(_mm256_maskload_ps(s + j, mask), most), _mm256_castsi256_ps(mask));
        __m256 e = Sleef_finz_expf8_u10avx2(v);
        _mm256_maskstore_ps(p + j, mask, e);
        /* a sum is never -0, so lanes that are left out may take +0 */
        lanes[j / 8 % 2] = _mm256_add_ps(lanes[j / 8 % 2], _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    *sum = fold16(lanes[0], lanes[1]);
    return m;
}

static void exp_f32(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256i mask = below(n - i);
        _mm256_maskstore_ps(y + i, mask, Sleef_finz_expf8_u10avx2(_mm256_maskload_ps(x + i, mask)));
    }
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        __m256i mask = below(n - i);
        __m256 gate = _mm256_maskload_ps(g + i, mask), up = _mm256_maskload_ps(u + i, mask);
        __m256 e = Sleef_finz_expf8_u10avx2(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
        __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(silu, up));
    }
}

const struct kernels kernels_avx2 = {
    .name = "avx2",
    .matmul = {matmul, matmul, matmul, matmul, matmul, matmul, matmul},
    .fma_rows = {fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows},
    .fma_rows_onto = {fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto,
                      fma_rows_onto},
    .fma_rows_cache_q8 = fma_rows, .fma_outer = fma_outer,
    .matmul_bf16 = matmul_bf16,
    .matmul_quantized = avx2_matmul_quantized,
    .index_scores = avx2_index_scores,
    .dot = dot,
    .pack = pack,
    .narrow = narrow,
    .quantize = avx2_quantize,
    .count_from = count_from,
    .axpy = axpy,
    .scale = scale,
    .divide = divide,
    .softmax_block = softmax_block,
    .exp = exp_f32,
    .silu_mul = silu_mul,
};
