/* simd/neon.c -- the NEON table (any armv8-a) and the kernels on one vector. Tails are copied, with +0 behind them. */
#include "simd/neon.h"
#include "simd/elementwise.h"

float32x4_t Sleef_finz_expf4_u10advsimd(float32x4_t);

static void matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x, size_t ldx,
                   size_t T, void *scratch)
{
    tiled_matmul(&loops_neon, y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                     size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(&loops_neon, y, ldy, w, c0, c1, x, ldx, T, scratch, 0);
}

static void fma_rows_onto(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                          size_t ldx, size_t T, void *scratch)
{
    tiled_fma_rows(&loops_neon, y, ldy, w, c0, c1, x, ldx, T, scratch, 1);
}

static void fma_outer(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                      void *scratch)
{
    tiled_fma_outer(&loops_neon, y, ldy, w, x, ldx, T, scratch);
}

static void matmul_bf16(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch)
{
    tiled_matmul_bf16(&loops_neon, y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void pack(float *packed, const float *x, size_t K) { loops_neon.pack(packed, x, K); }
static void narrow(uint16_t *y, const float *packed, size_t K) { narrow_chunks(y, packed, K); }
static void quantize(struct quantized_group *y, const float *packed, size_t K) { quantize_groups(y, packed, K); }

static float dot(const float *a, const float *b, size_t K)
{
    float total = 0.0f, a_cut[DOT_CHUNK], b_cut[DOT_CHUNK];
    for (size_t block = 0; block < K; block += DOT_BLOCK) {
        size_t end = K - block < DOT_BLOCK ? K : block + DOT_BLOCK;
        float32x4_t s[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            const float *p = a + k, *q = b + k;
            if (end - k < DOT_CHUNK) {
                p = copy_cut(a_cut, p, end - k);
                q = copy_cut(b_cut, q, end - k);
            }
            UNROLL
            for (int quad = 0; quad < 4; quad++) {
                s[quad] = vfmaq_f32(s[quad], odd_f32(p + 8 * quad), odd_f32(q + 8 * quad));
                s[quad] = vfmaq_f32(s[quad], even_f32(p + 8 * quad), even_f32(q + 8 * quad));
            }
        }
        total = block ? total + fold16(s) : fold16(s);
    }
    return total;
}

/* up to four numbers, +0 for those at and beyond n */
ALWAYS_INLINE float32x4_t load_some(const float *x, size_t n)
{
    float cut[4] = {0};
    if (n >= 4)
        return vld1q_f32(x);
    memcpy(cut, x, n * sizeof *x);
    return vld1q_f32(cut);
}

ALWAYS_INLINE void store_some(float *y, float32x4_t v, size_t n)
{
    float cut[4];
    if (n >= 4) {
        vst1q_f32(y, v);
        return;
    }
    vst1q_f32(cut, v);
    memcpy(y, cut, n * sizeof *y);
}

/* The larger, where a NaN never wins (it only stays as the start value): as scalar.c compares. */
ALWAYS_INLINE float32x4_t larger(float32x4_t m, float32x4_t x) { return vbslq_f32(vcgtq_f32(x, m), x, m); }

static float softmax_block(float *p, const float *s, size_t n, float *sum)
{
    float32x4_t most = vdupq_n_f32(s[0]);
    float lanes[16] = {0}, four[4], m = s[0];
    size_t j = 0;
    for (; j + 4 <= n; j += 4)
        most = larger(most, vld1q_f32(s + j));
    vst1q_f32(four, most);
    for (size_t l = 0; l < 4; l++)
        m = four[l] > m ? four[l] : m;
    for (; j < n; j++)
        m = s[j] > m ? s[j] : m;
    m = m + 0.0f; /* a maximum of -0 becomes +0 */
    most = vdupq_n_f32(m);
    for (j = 0; j < n; j += 4) {
        float32x4_t e = Sleef_finz_expf4_u10advsimd(vsubq_f32(load_some(s + j, n - j), most));
        store_some(p + j, e, n - j);
        store_some(lanes + j % 16, vaddq_f32(vld1q_f32(lanes + j % 16), e), n - j);
    }
    float32x4_t quads[4] = {vld1q_f32(lanes), vld1q_f32(lanes + 4), vld1q_f32(lanes + 8), vld1q_f32(lanes + 12)};
    *sum = fold16(quads);
    return m;
}

static void exp_f32(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        store_some(y + i, Sleef_finz_expf4_u10advsimd(load_some(x + i, n - i)), n - i);
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        float32x4_t gate = load_some(g + i, n - i), up = load_some(u + i, n - i);
        float32x4_t below_line = vaddq_f32(vdupq_n_f32(1.0f), Sleef_finz_expf4_u10advsimd(vnegq_f32(gate)));
        store_some(y + i, vmulq_f32(vdivq_f32(gate, below_line), up), n - i);
    }
}

#define TABLE(product_of_quantized, that_variant) \
    { \
        .name = "neon", \
        .variant = that_variant, \
        .matmul = {matmul, matmul, matmul, matmul, matmul, matmul, matmul}, \
        .fma_rows_onto = {fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, \
                          fma_rows_onto}, \
        .fma_rows = {fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows}, \
        .fma_rows_cache_q8 = fma_rows, \
        .fma_outer = fma_outer, \
        .matmul_bf16 = matmul_bf16, \
        .matmul_quantized = product_of_quantized, \
        .index_scores = neon_index_scores, \
        .dot = dot, \
        .pack = pack, \
        .narrow = narrow, \
        .quantize = quantize, \
        .count_from = count_from, \
        .axpy = axpy, \
        .scale = scale, \
        .divide = divide, \
        .softmax_block = softmax_block, \
        .exp = exp_f32, \
        .silu_mul = silu_mul, \
    }

const struct kernels kernels_neon = TABLE(neon_matmul_quantized, NULL);
const struct kernels kernels_neon_dotprod = TABLE(neon_dotprod_matmul_quantized, "dotprod");
const struct kernels kernels_neon_i8mm = TABLE(neon_i8mm_matmul_quantized, "i8mm");
