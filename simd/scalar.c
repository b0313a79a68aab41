/* simd/scalar.c -- the kernels in plain C: the bits that every vector file must return. Clear, not fast. */
#include "simd/decode.h"
#include "simd/elementwise.h"
#include "simd/quantized.h"

#include <math.h>

float Sleef_finz_expf1_u10purecfma(float);

static float fold16(float a[16])
{
    for (size_t h = 8; h; h >>= 1)
        for (size_t l = 0; l < h; l++)
            a[l] = a[l] + a[l + h];
    return a[0];
}

/* a[l] += one chunk of 32; w natural, x packed; elements at and beyond n (the numbers left, if fewer than 32) are +0 */
static void dot_chunk(float a[16], const float w[32], const float x[32], size_t n)
{
    for (size_t l = 0; l < 16; l++) {
        float w_odd = 2 * l + 1 < n ? w[2 * l + 1] : 0.0f, x_odd = 2 * l + 1 < n ? x[l] : 0.0f;
        float w_even = 2 * l < n ? w[2 * l] : 0.0f, x_even = 2 * l < n ? x[16 + l] : 0.0f;
        a[l] = fmaf(w_odd, x_odd, a[l]);
        a[l] = fmaf(w_even, x_even, a[l]);
    }
}

static void unpack_chunk(float natural[32], const float packed[32])
{
    for (size_t l = 0; l < 16; l++) {
        natural[2 * l + 1] = packed[l];
        natural[2 * l] = packed[16 + l];
    }
}

static void widen_chunk(float packed[32], const uint16_t natural[32])
{
    for (size_t l = 0; l < 16; l++) {
        packed[l] = bf16_to_f32(natural[2 * l + 1]);
        packed[16 + l] = bf16_to_f32(natural[2 * l]);
    }
}

/* dot of row i of w with a packed x, or with a narrow one */
static float dot_row(const struct weight_view *w, size_t i, const float *x, const uint16_t *x_narrow)
{
    float total = 0.0f;
    for (size_t block = 0; block < w->cols; block += DOT_BLOCK) {
        size_t end = w->cols - block < DOT_BLOCK ? w->cols : block + DOT_BLOCK;
        float a[16] = {0};
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            float chunk[DOT_CHUNK], wide[DOT_CHUNK];
            size_t n = end - k < DOT_CHUNK ? end - k : DOT_CHUNK;
            if (x_narrow)
                widen_chunk(wide, x_narrow + k);
            if (w->packed)
                unpack_chunk(chunk, (const float *)w->data + i * w->stride + k);
            else
                decode_weights(chunk, w, i, k, n);
            dot_chunk(a, chunk, x_narrow ? wide : x + k, n);
        }
        float sum = fold16(a);
        total = block ? total + sum : sum;
    }
    return total;
}

static void matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x, size_t ldx,
                   size_t T, void *scratch)
{
    (void)scratch;
    for (size_t t = 0; t < T; t++)
        for (size_t n = n0; n < n1; n++)
            y[t * ldy + n] = dot_row(w, n, x + t * ldx, NULL);
}

static void matmul_bf16(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch)
{
    (void)scratch;
    for (size_t t = 0; t < T; t++)
        for (size_t n = n0; n < n1; n++)
            y[t * ldy + n] = dot_row(w, n, NULL, x + t * ldx);
}

static void index_scores(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                         void *scratch)
{
    static const float one = 1.0f;
    size_t D = keys->dim;
    (void)scratch;
    for (size_t i = 0; i < keys->count; i++) {
        struct weight_view key = {.type = keys->codes ? WEIGHT_F8_E4M3 : WEIGHT_F32, .data = index_key(keys, i),
                                  .rows = 1, .cols = D, .stride = D, .scale = &one, .scale_stride = 1, .block_rows = 1,
                                  .block_cols = INDEX_MAX_DIM};
        float acc = 0.0f;
        for (size_t h = 0; h < H; h++) {
            float dot = dot_row(&key, 0, q + h * D, NULL);
            acc = fmaf(w[h], 0.0f > dot ? 0.0f : dot, acc);
        }
        score[i] = index_scale(keys, i) * acc;
    }
}

static void fma_rows_onto(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                          size_t ldx, size_t T, void *scratch)
{
    (void)scratch;
    for (size_t n = 0; n < w->rows; n++)
        for (size_t c = c0; c < c1; c += DOT_CHUNK) {
            float chunk[DOT_CHUNK];
            size_t count = c1 - c < DOT_CHUNK ? c1 - c : DOT_CHUNK;
            decode_weights(chunk, w, n, c, count);
            for (size_t t = 0; t < T; t++)
                for (size_t l = 0; l < count; l++)
                    y[t * ldy + c + l] = fmaf(x[t * ldx + n], chunk[l], y[t * ldy + c + l]);
        }
}

static void fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                     size_t ldx, size_t T, void *scratch)
{
    for (size_t t = 0; t < T; t++)
        for (size_t c = c0; c < c1; c++)
            y[t * ldy + c] = 0.0f;
    fma_rows_onto(y, ldy, w, c0, c1, x, ldx, T, scratch);
}

static void fma_outer(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                      void *scratch)
{
    (void)scratch;
    const float *row = w->data;
    for (size_t n = 0; n < w->rows; n++, row += w->stride, x += ldx)
        for (size_t t = 0; t < T; t++)
            for (size_t c = 0; c < w->cols; c++)
                y[t * ldy + c] = fmaf(x[t], row[c], y[t * ldy + c]);
}

static void pack(float *packed, const float *x, size_t K)
{
    for (size_t k = 0; k < packed_length(K); k += DOT_CHUNK)
        for (size_t l = 0; l < 16; l++) {
            packed[k + l] = k + 2 * l + 1 < K ? x[k + 2 * l + 1] : 0.0f;
            packed[k + 16 + l] = k + 2 * l < K ? x[k + 2 * l] : 0.0f;
        }
}

static void narrow(uint16_t *y, const float *packed, size_t K)
{
    for (size_t k = 0; k < packed_length(K); k += DOT_CHUNK)
        for (size_t l = 0; l < 16; l++) {
            y[k + 2 * l + 1] = k + 2 * l + 1 < K ? f32_to_bf16_x(packed[k + l]) : 0;
            y[k + 2 * l] = k + 2 * l < K ? f32_to_bf16_x(packed[k + 16 + l]) : 0;
        }
}

/* Rule 2 for one row and one row of x. */
static float dot_quantized(const struct weight_view *w, size_t n, const struct quantized_group *x)
{
    const struct quantized_format *f = quantized_format(w->type);
    size_t groups = w->cols / QUANTIZED_GROUP;
    float total = 0.0f, acc = 0.0f;
    for (size_t g = 0; g < groups; g++) {
        struct quantized_codes c;
        int32_t sum[2] = {0, 0}, of_x[2] = {0, 0};
        quantized_codes(&c, w, n, g);
        for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
            sum[f->halves ? l / 16 : 0] += c.q[l] * x[g].q[l];
            of_x[f->halves ? l / 16 : 0] += x[g].q[l];
        }
        for (int half = 0; half < (f->halves ? 2 : 1); half++) {
            acc = fmaf((float)sum[half], c.scale[half] * x[g].d, acc);
            if (f->minimums)
                acc = fmaf(-(float)of_x[half], c.minimum[half] * x[g].d, acc);
        }
        if ((g + 1) * QUANTIZED_GROUP % DOT_BLOCK == 0 || g + 1 == groups) {
            total = g * QUANTIZED_GROUP < DOT_BLOCK ? acc : total + acc;
            acc = 0.0f;
        }
    }
    return total;
}

static void matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                             const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    (void)scratch;
    for (size_t t = 0; t < T; t++)
        for (size_t n = n0; n < n1; n++)
            y[t * ldy + n] = dot_quantized(w, n, x + t * ldx);
}

static void quantize(struct quantized_group *y, const float *packed, size_t K)
{
    for (size_t g = 0; g < K / QUANTIZED_GROUP; g++, y++) {
        float x[QUANTIZED_GROUP], m = 0.0f;
        int finite = 1;
        unpack_chunk(x, packed + g * QUANTIZED_GROUP);
        for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
            finite = finite && isfinite(x[l]);
            m = fabsf(x[l]) > m ? fabsf(x[l]) : m;
        }
        *y = (struct quantized_group){.d = finite ? 0.0f : NAN};
        if (!finite || m < 0x1p-100f)
            continue;
        y->d = m / 127.0f;
        for (size_t l = 0; l < QUANTIZED_GROUP; l++) {
            y->q[l] = (int8_t)rintf(x[l] * (127.0f / m));
            y->sum += y->q[l];
            y->upper += l < 16 ? 0 : y->q[l];
        }
        y->offset8 = -8 * y->sum;
        y->offset128 = -128 * y->sum;
    }
}

static float dot(const float *a, const float *b, size_t K)
{
    float total = 0.0f;
    for (size_t block = 0; block < K; block += DOT_BLOCK) {
        size_t end = K - block < DOT_BLOCK ? K : block + DOT_BLOCK;
        float s[16] = {0};
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            size_t n = end - k < DOT_CHUNK ? end - k : DOT_CHUNK;
            float packed[DOT_CHUNK];
            pack(packed, b + k, n);
            dot_chunk(s, a + k, packed, n);
        }
        float sum = fold16(s);
        total = block ? total + sum : sum;
    }
    return total;
}

static float softmax_block(float *p, const float *s, size_t n, float *sum)
{
    float m = s[0], lanes[16] = {0};
    for (size_t j = 1; j < n; j++)
        m = s[j] > m ? s[j] : m;
    m = m + 0.0f; /* a maximum of -0 becomes +0: which zero came first is no matter of width */
    for (size_t j = 0; j < n; j++) {
        p[j] = Sleef_finz_expf1_u10purecfma(s[j] - m);
        lanes[j % 16] = lanes[j % 16] + p[j];
    }
    *sum = fold16(lanes);
    return m;
}

static void exp_f32(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = Sleef_finz_expf1_u10purecfma(x[i]);
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = g[i] / (1.0f + Sleef_finz_expf1_u10purecfma(-g[i])) * u[i];
}

const struct kernels kernels_scalar = {
    .name = "scalar",
    .matmul = {matmul, matmul, matmul, matmul, matmul, matmul, matmul},
    .fma_rows = {fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows, fma_rows},
    .fma_rows_onto = {fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto, fma_rows_onto,
                      fma_rows_onto},
    .fma_rows_cache_q8 = fma_rows,
    .fma_outer = fma_outer,
    .matmul_bf16 = matmul_bf16,
    .matmul_quantized = matmul_quantized,
    .index_scores = index_scores,
    .dot = dot,
    .pack = pack,
    .narrow = narrow,
    .quantize = quantize,
    .count_from = count_from,
    .axpy = axpy,
    .scale = scale,
    .divide = divide,
    .softmax_block = softmax_block,
    .exp = exp_f32,
    .silu_mul = silu_mul,
};
