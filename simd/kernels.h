/* simd/kernels.h -- the list of kernels, and the order of every sum: the kernels' share of docs/ARITHMETIC.md, whose rules it cites.
 *
 * Every table (scalar, avx2, avx512, neon) returns the same bits for the same input; simd/scalar.c says in plain C
 * what they compute, checkasm proves that the others agree. Arithmetic is IEEE binary32, round to nearest even,
 * subnormals kept; fma rounds once; everything is compiled with -ffp-contract=off. The caller has set the default
 * floating-point environment (ops/parallel.c does, in every worker).
 *
 * Rule 1, dot(w, x) over K. K is cut at multiples of 1024. In a block sixteen sums a[0..15] start at +0; for each
 * chunk of 32 at k, ascending, and each lane l:
 *
 *     a[l] = fma(w[k+2l+1], x[k+2l+1], a[l])        odd element first,
 *     a[l] = fma(w[k+2l],   x[k+2l],   a[l])        then the even one,
 *
 * then the fold, h = 8, 4, 2, 1:  a[l] = a[l] + a[l+h] for l < h.  The dot is the sum of the blocks' a[0], ascending;
 * the first is not added to 0; a dot of length 0 is +0. A chunk cut short by K is computed with both operands +0
 * beyond K: it is not skipped (an accumulator of -0 becomes +0), and nothing is read beyond w's row or trusted of x
 * beyond K.
 *
 * Rule 4, fma_rows: y[c] = fma(x[n], w[n,c], y[c]), n ascending, y from +0: every c is a sum of its own.
 *
 * Weights are decoded exactly: F32 as is, F16 and BF16 widened, F8_E4M3 as fl32(e4m3(code) * scale), one rounding.
 *
 * Rule 2, the same of quantised weights and of x in groups of 32 (struct quantised_group). A weight is an integer q in a group of
 * 32 that has a scale sw and perhaps a minimum mw (simd/quantised.h). K is a multiple of 32, cut at multiples of 1024 as above; in a
 * block, from +0, for each group, ascending:
 *
 *     acc = fma((float)sum of q_w * q_x, sw * sx, acc)         the sum exact, sw * sx rounded once;
 *                                                              types with a scale for each 16 weights: two fmas, the lower half first
 *     acc = fma(-(float)sum of q_x, mw * sx, acc)              types with minimums only
 *
 * and block sums are added as above.
 *
 * Precision bf16: x is rounded to bf16 first, and what is then below 2^-56 becomes +0 (narrow); the sum is rule 1's. With
 * weights as large, no product or sum of a dot is subnormal, so that instructions on pairs of bf16 that take the odd
 * product first and flush subnormals give the same bits as two fmas; other weights take the fmas. */
#ifndef VB_KERNELS_H
#define VB_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define DOT_BLOCK 1024 /* numbers in a block of a sum */
#define DOT_CHUNK 32   /* numbers in a chunk: 16 lanes of an odd and an even one */
#define QUANTISED_GROUP 32 /* numbers of x that share a scale */

enum weight_type {
    WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F8_E4M3,
    WEIGHT_TYPES, /* of rule 1; the others are quantised, of rule 2: */
    WEIGHT_Q8_0 = WEIGHT_TYPES, WEIGHT_Q4_0, WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q6_K,
    WEIGHT_ALL_TYPES
};

static inline int weight_is_quantised(enum weight_type type) { return type >= WEIGHT_TYPES; }

/* A matrix [rows, cols] as the checkpoint stores it, row-major, at any address (a mapped file promises no alignment:
 * kernels load unaligned). For F8_E4M3 the weight at (i, j) is
 * data[i*stride+j] * scale[(i + scale_row)/block_rows * scale_stride + (j + scale_col)/block_cols]: scale_row and
 * scale_col are where this view begins inside the stored tensor. block_cols and scale_col are multiples of 32.
 * Quantised rows are blocks as a GGUF file has them (quantised.h), cols and stride whole blocks; or, of Q8_0 and Q4_0, panels. */
struct weight_view {
    enum weight_type type;
    const void *data;
    size_t rows, cols, stride; /* stride: elements from one row to the next */
    const float *scale;        /* F8_E4M3 only, else NULL */
    size_t scale_stride, scale_row, scale_col, block_rows, block_cols;
    int packed;                /* F32 only: rows are packed like x, padded with +0 (rows of the cache) */
    int panels;                /* Q8_0, Q4_0 only: data is panels (quantised.h), 64-byte aligned; */
    size_t panel_row;          /* row 0 of this view is that row of them */
    unsigned char *magnitudes; /* BF16: what matmul_bf16 has learnt of all rows, an enum; NULL: nothing is kept */
};

/* The smallest magnitude of weights but 0. Read and written as atomics; one that is known never changes. */
enum magnitudes { MAGNITUDES_UNKNOWN, MAGNITUDES_ORDINARY /* >= 2^-56 */, MAGNITUDES_TINY };

/* x [K] in natural order -> [16 odd][16 even] per chunk of 32, padded with +0 to packed_length(K) numbers. */
static inline size_t packed_length(size_t K) { return (K + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK; }

/* 32 numbers of x, quantised (rule 2). m is the largest |x|. Not finite, one of them: d = NaN, q = 0, so that every sum is NaN.
 * m < 2^-100: all 0. Else d = m / 127 and q = x * (127 / m), rounded to nearest, ties to even. */
struct quantised_group {
    float d;
    int32_t sum;       /* of q; and the same times -8 and -128, for weights whose codes stand that much too high */
    int32_t offset8, offset128;
    int8_t q[32];
};

/* What a kernel works in besides its operands, in bytes: decoded weights, widened vectors. Each thread has its own, 64-byte
 * aligned; nothing in it lasts from one call to the next. It is not on the stack, which may be small (engine/verbatim.h). */
#define KERNEL_SCRATCH ((size_t)336 << 10)

struct kernels {
    const char *name; /* scalar, avx2, avx512, neon */
    const char *variant; /* of a table that wants more of the CPU: "bf16", AVX512-BF16 and VNNI; "vnni"; "dotprod"; else NULL */
    int learns_magnitudes; /* whether matmul_bf16 does */

    /* From here on functions only. No table leaves one out: an instruction set without a version of its own has that of the
     * next lower table, or the scalar one. checkasm sees to it. */

    /* y[t*ldy + n] = dot(w[n, 0..K), x[t])   for n in [n0, n1), t in [0, T);   K = w->cols          (rule 1)
     * x: T packed vectors, ldx floats apart (ldx >= packed_length(K)); y is written only at those (t, n).
     * scratch, here and below: KERNEL_SCRATCH bytes. */
    void (*matmul[WEIGHT_TYPES])(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                 const float *x, size_t ldx, size_t T, void *scratch);

    /* The same in precision bf16, of BF16 weights: x holds bf16 in natural order, as narrow writes it; ldx counts them.
     * With learns_magnitudes it looks at w->magnitudes, and writes MAGNITUDES_TINY when rows [n0, n1) are the first to show it;
     * who has had all rows multiplied may then replace MAGNITUDES_UNKNOWN by MAGNITUDES_ORDINARY. */
    void (*matmul_bf16)(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch);

    /* y[t*ldy + n] = dot(w[n, 0..K), x[t])   of quantised weights (rule 2). x: T rows of groups, ldx groups apart. */
    void (*matmul_quantised)(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                             const struct quantised_group *x, size_t ldx, size_t T, void *scratch);

    /* y[t*ldy + c] = sum_n x[t*ldx + n] * w[n, c]   for c in [c0, c1), t in [0, T), n over w->rows  (rule 4a)
     * x in natural order; n ascending from +0, one fma each. c0 is a multiple of 32. w->rows = 0 gives +0. */
    void (*fma_rows[WEIGHT_TYPES])(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1,
                                   const float *x, size_t ldx, size_t T, void *scratch);

    /* dot of two natural vectors (rule 1). */
    float (*dot)(const float *a, const float *b, size_t K);

    /* Packing, see packed_length. Nothing but moves. */
    void (*pack)(float *packed, const float *x, size_t K);

    /* A packed x to bf16 in natural order, padded with +0 to packed_length(K): to nearest, ties to even, a NaN stays one,
     * magnitudes below 2^-56 become +0. */
    void (*narrow)(uint16_t *y, const float *packed, size_t K);

    /* A packed x to groups of 32; K is a multiple of 32. */
    void (*quantise)(struct quantised_group *y, const float *packed, size_t K);

    /* y[i] = fma(a, x[i], y[i]);  y[i] = y[i] * a;  y[i] = y[i] / a. x and y do not overlap. */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    void (*scale)(float *y, float a, size_t n);
    void (*divide)(float *y, float a, size_t n);

    /* One block of attention or softmax, n <= 256 numbers (rule 4c): p[j] = exp(s[j] - m), m = max s[j] + 0 (so that a
     * maximum of -0 is +0; a NaN is never the larger one, it stays m only as s[0], but always reaches *sum); returns m;
     * *sum = lanes j mod 16 from +0, ascending, then the fold. p may be s. n >= 1. */
    float (*softmax_block)(float *p, const float *s, size_t n, float *sum);

    /* y[i] = exp(x[i]), SLEEF's bit-identical finz_expf u10. y may be x. */
    void (*exp)(float *y, const float *x, size_t n);

    /* y[i] = (g[i] / (1 + exp(-g[i]))) * u[i]: SiLU by IEEE division, then one product. y may be g or u. */
    void (*silu_mul)(float *y, const float *g, const float *u, size_t n);
};

/* The tables that this program was built with, best first; NULL ends the list. */
extern const struct kernels *const kernel_tables[];

/* The best table this CPU can run, or the one of this name ("best" or NULL: the best). NULL: no table has the name,
 * or the CPU lacks it (*known then says whether the name is one of scalar, avx2, avx512, neon). */
const struct kernels *kernels_select(const char *name, int *known);
/* Whether this CPU can run that table. */
int kernels_runs_here(const struct kernels *k);

/* The functions of SLEEF that are called directly, in double (rule 6), the same on every instruction set. They need fma on
 * x86. kernel_log alone works without it too, by libm, whose last bit may differ: config.json is read on such a CPU,
 * and nothing is computed. */
double kernel_sin(double x);
double kernel_cos(double x);
double kernel_log(double x);
double kernel_pow(double x, double y);
/* exp of one float and of one double (the sampler's weights are (double)exp(float)). */
float kernel_expf(float x);

/* FNV-1a over the bits of 65,536 outputs of each SLEEF function used: another library is refused (golden/sleef.h). */
uint64_t kernels_sleef_hash(void);

#endif
