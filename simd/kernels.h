/* simd/kernels.h -- the kernels, and the order in which each of them adds.
 *
 * docs/ARITHMETIC.md defines the bits of every result by rules 1 to 10; this header repeats those that kernels
 * implement. A table is a struct kernels with the kernels of one instruction set: scalar, avx2, avx512 or neon. All
 * tables return the same bits for the same input. The plain C code in simd/scalar.c defines these bits, and the test
 * checkasm compares the other tables with it.
 *
 * Arithmetic is IEEE binary32: round to nearest even, subnormals kept. An fma rounds once. Everything is compiled with
 * -ffp-contract=off. The caller of a kernel has set the default floating-point environment (simd/fpenv.h);
 * ops/parallel.c does so in every worker thread.
 *
 * Rule 1 defines dot(w, x), the dot product of two vectors of length K. The vectors are cut into blocks at multiples of
 * 1024, and each block is cut into chunks of 32 elements. In each block, sixteen sums a[0..15] start at +0. Chunks are
 * processed in ascending order. For a chunk that begins at element k, and for each lane l:
 *
 *     a[l] = fma(w[k+2l+1], x[k+2l+1], a[l])        odd element first,
 *     a[l] = fma(w[k+2l],   x[k+2l],   a[l])        then the even one.
 *
 * At the end of a block, the fold adds up the sixteen sums: for h = 8, 4, 2, 1, a[l] = a[l] + a[l+h] for each l < h.
 * Then a[0] is the sum of the block. The dot product adds up the sums of all blocks, in ascending order. It starts with
 * the sum of the first block. It does not start with +0, because +0 plus -0 is +0. A dot product of length 0 is +0.
 *
 * If K ends inside a chunk, the elements of w and x beyond K count as +0. The fmas of these zeros are not skipped,
 * because they turn a sum of -0 into +0. No kernel reads beyond the end of a row of w, and the numbers of x beyond K
 * have no effect.
 *
 * Rule 4 defines fma_rows: y[c] starts at +0, and y[c] = fma(x[n], w[n,c], y[c]) for n ascending. Each c has one sum.
 * fma_rows_onto and fma_outer continue the sums that y holds. Gradients are such sums (ops/backward/backward.h).
 *
 * Weights are converted to f32 first. F32, F16 and BF16 are exact; F8_E4M3 is fl32(e4m3(code) * scale), and I8 is
 * fl32(code * scale), with one rounding; I4 is fl32((code - 8) * scale), which is exact unless it overflows. struct
 * weight_view defines F4.
 *
 * Rule 2 defines the dot product for quantized weights. x is quantized too, in groups of 32 (struct quantized_group). A
 * weight is an integer q_w; each group of 32 weights has a scale sw and, in some types, a minimum mw
 * (simd/quantized.h). q_x and sx are the integers and the scale of the group of x. K is a multiple of 32, and is cut
 * into blocks as in rule 1. In each block, a sum acc starts at +0. For each group, in ascending order:
 *
 *     acc = fma((float)sum(q_w * q_x), sw * sx, acc)           the integer sum is exact; sw * sx is rounded once
 *     acc = fma(-(float)sum(q_x), mw * sx, acc)                only for types with minimums
 *
 * If a type has a scale for each 16 weights, the fma or the two fmas are computed for the lower 16 weights and numbers
 * of the group, and then for the upper 16. The sums of the blocks are added as in rule 1.
 *
 * In precision bf16, kernel `narrow` first rounds x to BF16 and sets numbers smaller than 2^-56 in magnitude to +0.
 * The products are added in the order of rule 1. If, in addition, every nonzero weight of a matrix is at least 2^-56 in
 * magnitude, then no product and no sum is subnormal. For such a matrix, one instruction that adds two products of BF16
 * numbers (vdpbf16ps) may replace two fmas. The instruction flushes subnormals to zero, but here no number is
 * subnormal. It adds the odd product first, as rule 1 does. So the bits are the same. For a matrix that has a nonzero
 * weight below 2^-56 in magnitude, kernels use two fmas. */
#ifndef VB_KERNELS_H
#define VB_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define DOT_BLOCK 1024 /* numbers in a block of a sum */
#define DOT_CHUNK 32   /* numbers in a chunk: an odd and an even one for each of 16 lanes */
#define QUANTIZED_GROUP 32 /* numbers of x that share a scale */

enum weight_type {
    WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F8_E4M3, WEIGHT_I4, WEIGHT_F4, WEIGHT_I8,
    WEIGHT_TYPES, /* the number of types that follow rule 1; the types below are quantized and follow rule 2 */
    WEIGHT_Q8_0 = WEIGHT_TYPES, WEIGHT_Q4_0, WEIGHT_Q5_0, WEIGHT_Q5_1, WEIGHT_Q4_K, WEIGHT_Q5_K, WEIGHT_Q6_K,
    WEIGHT_MXFP4,
    WEIGHT_IQ2_XXS, WEIGHT_IQ2_XS, WEIGHT_IQ2_S, WEIGHT_IQ3_XXS, WEIGHT_IQ3_S,
    WEIGHT_IQ1_S, WEIGHT_IQ1_M, WEIGHT_TQ1_0, WEIGHT_TQ2_0,
    WEIGHT_Q4_1, WEIGHT_IQ4_NL, WEIGHT_IQ4_XS, WEIGHT_Q3_K, WEIGHT_Q2_K, WEIGHT_GGUF_NVFP4,
    WEIGHT_ALL_TYPES, /* the number of types that files can have */
    WEIGHT_CACHE_Q8 = WEIGHT_ALL_TYPES, /* latents in the KV cache with cache type q8 (quantized.h); follows rule 2 */
    WEIGHT_Q4_BF16, /* I4 weights in precision q8 or q4 (quantized.h); follows rule 2 */
    WEIGHT_NVFP4, /* F4 weights with groups of 16 in precision q8 or q4 (quantized.h); follows rule 2 */
    WEIGHT_Q8_F32,  /* I8 weights in precision q8 (quantized.h); follows rule 2 */
    WEIGHT_KINDS
};

/* Codes of 4 bits that follow rule 1. */
static inline int weight_is_packed(enum weight_type type) { return type == WEIGHT_I4 || type == WEIGHT_F4; }
/* Codes of one byte that follow rule 1. Their scales are f32 numbers. */
static inline int weight_is_byte(enum weight_type type) { return type == WEIGHT_F8_E4M3 || type == WEIGHT_I8; }
static inline int weight_is_quantized(enum weight_type type) { return type >= WEIGHT_TYPES; }

/* A matrix [rows, cols] in the row-major layout of the checkpoint. `data` need not be aligned, because it may point
 * into a mapped file; kernels use unaligned loads.
 *
 * An F8_E4M3 matrix has one scale for each block of block_rows x block_cols weights. The weight in row i and column j
 * is data[i*stride+j] * scale[(i + scale_row)/block_rows * scale_stride + (j + scale_col)/block_cols]. This view begins
 * at row scale_row and column scale_col of the stored tensor. block_cols and scale_col are multiples of 32.
 *
 * An I8 matrix has codes from -128 to 127. Its scales are found like those of an F8_E4M3 matrix.
 *
 * An I4 matrix has codes of 4 bits. Byte b of a row has the code of column 2b in its low half, and the code of column
 * 2b+1 in its high half. There is one scale for each 32 weights of a row. `stride` is a multiple of 32.
 *
 * An F4 matrix has codes of E2M1, two in a byte as in I4: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and from 8 on the same with a
 * minus sign. MXFP4 has group_size 32: the scale of a group is 2^(e-127), where e is a byte and 255 is NaN, and a
 * weight is the product e2m1 * scale. NVFP4 has group_size 16: the scale is E4M3, and there is one f32 number t for the
 * whole matrix (tensor_scale). If `divides` is 0, a weight is fl32((e2m1 * scale) * t), where the first product is
 * exact. If `divides` is 1, it is fl32(e2m1 * fl32(scale / t)).
 *
 * The rows of a quantized matrix consist of GGUF blocks (quantized.h); `cols` and `stride` are then multiples of the
 * number of weights in a block. Q8_0, Q4_0, IQ4_NL, Q4_BF16 and Q8_F32 matrices may consist of panels instead. */
struct weight_view {
    enum weight_type type;
    const void *data;
    size_t rows, cols, stride; /* stride: elements from one row to the next */
    const float *scale;        /* F8_E4M3 and I8 only, else NULL */
    size_t scale_stride, scale_row, scale_col, block_rows, block_cols;
    const void *group_scale;   /* I4: BF16 numbers, stride/32 for each row of this view; need not be aligned. F4: bytes,
                                  stride/group_size for each row */
    size_t group_size;         /* F4 only: 16 (NVFP4) or 32 (MXFP4) */
    float tensor_scale;        /* NVFP4, GGUF_NVFP4, and F4 with group_size 16 only */
    int divides;               /* NVFP4, and F4 with group_size 16 only: nonzero if scales are divided by
                                  tensor_scale */
    int rounded;               /* I4 and F4 only: nonzero if weights are rounded to BF16, to nearest, ties to even */
    int packed;                /* F32 only: rows are in packed order, padded with +0 (as the rows of the KV cache
                                  are) */
    int panels;                /* types with panels only (weight_has_panels): nonzero if `data` points to panels
                                  (quantized.h), which are 64-byte aligned */
    size_t panel_row;          /* used if `panels` is nonzero: row 0 of this view is row panel_row of the panels */
    struct weight_ahead *ahead; /* what is read after this matrix, or NULL; no bit depends on it */
    unsigned char *magnitudes; /* BF16 only: points to a value of enum magnitudes; matmul_bf16 sets the value. May be
                                  NULL */
};

/* Keys of an indexer (rule 9): rows of an index cache (ops/indexer.h). Key i is row number slots[i]. */
struct index_view {
    const void *rows;
    const int32_t *slots;
    size_t count, dim; /* dim: D, a multiple of 32, at most INDEX_MAX_DIM */
    int codes;         /* 1: a row has D codes of E4M3, and then their scale as f32. 0: D numbers of type f32, in
                          natural order */
};
#define INDEX_MAX_DIM 128

/* Memory [at, end) that the caller will read soon. fma_rows may prefetch it, evenly while it computes, so that the
 * memory is busy meanwhile. It advances `at` behind what it has prefetched. */
struct weight_ahead {
    const char *at, *end;
};

/* Whether a nonzero weight of a matrix is smaller than 2^-56 in magnitude: not known yet, no, or yes. Threads read
 * and write such a value with atomic operations. Once the value is no or yes, it does not change. */
enum magnitudes { MAGNITUDES_UNKNOWN, MAGNITUDES_ORDINARY /* no: all are >= 2^-56 */, MAGNITUDES_TINY };

/* Returns the length of x [K] in packed order. In packed order, each chunk of 32 numbers has first its 16 odd elements
 * and then its 16 even elements, and x is padded with +0 to whole chunks. The order without packing is called
 * natural. */
static inline size_t packed_length(size_t K) { return (K + DOT_CHUNK - 1) / DOT_CHUNK * DOT_CHUNK; }
/* Returns where number k of x is in packed order. */
static inline size_t packed_place(size_t k)
{
    return k / DOT_CHUNK * DOT_CHUNK + (k % 2 ? 0 : DOT_CHUNK / 2) + k % DOT_CHUNK / 2;
}

/* 32 quantized numbers of x (rule 2). Let m be the largest |x|. Normally d = m / 127 and q = x * (127 / m), rounded to
 * nearest, ties to even. If m < 2^-100, d and all q are 0. If one of the numbers is not finite, d is NaN and all q are
 * 0, so that every sum with this group is NaN. */
struct quantized_group {
    float d;
    int32_t sum, upper; /* the sum of q, and the sum of q[16..31] for types with a scale for each 16 weights */
    int32_t offset8, offset128; /* -8 * sum, -128 * sum: corrections for weights that are stored as q + 8 or q + 128 */
    int8_t q[32];
};

/* Sets the four sums of a group from q. */
static inline void quantized_group_sums(struct quantized_group *g)
{
    g->sum = g->upper = 0;
    for (int i = 0; i < QUANTIZED_GROUP; i++) {
        g->sum += g->q[i];
        g->upper += i < QUANTIZED_GROUP / 2 ? 0 : g->q[i];
    }
    g->offset8 = -8 * g->sum;
    g->offset128 = -128 * g->sum;
}

/* The size in bytes of a kernel's working memory, for decoded weights and widened vectors. The caller provides this
 * memory, 64-byte aligned. Each thread needs its own. Kernels keep no data in it between calls. The memory is not on
 * the stack, because the stack may be small (engine/verbatim.h). */
#define KERNEL_SCRATCH ((size_t)336 << 10)

struct kernels {
    const char *name; /* scalar, avx2, avx512, neon */
    const char *variant; /* names the extra CPU feature that this table needs: "bf16" (AVX512-BF16 and VNNI), "vnni",
                            "dotprod", "i8mm"; or NULL */
    int learns_magnitudes; /* nonzero if matmul_bf16 reads and sets weight_view.magnitudes */

    /* All members from here on are pointers to functions, and none of them is NULL in any table, as the test checkasm
     * verifies. If a kernel has no version for an instruction set, the table of this instruction set has the function
     * of a lower instruction set or the scalar function. */

    /* y[t*ldy + n] = dot(w[n, 0..K), x[t])   for n in [n0, n1), t in [0, T);   K = w->cols          (rule 1)
     * x has T packed vectors, ldx floats apart (ldx >= packed_length(K)). y is written for these t and n only.
     * scratch is KERNEL_SCRATCH bytes of working memory, here and in the functions below. */
    void (*matmul[WEIGHT_TYPES])(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                 const float *x, size_t ldx, size_t T, void *scratch);

    /* Does what matmul does, for BF16, I4 and F4 weights in precision bf16. x holds BF16 numbers in natural order, as
     * `narrow` writes them, and ldx counts these numbers. If learns_magnitudes is nonzero and *w->magnitudes is
     * MAGNITUDES_UNKNOWN, the function looks for a nonzero weight smaller than 2^-56 in magnitude in rows [n0, n1). If
     * it finds such a weight, it sets *w->magnitudes to MAGNITUDES_TINY. If the value is still MAGNITUDES_UNKNOWN after
     * all rows of w have been multiplied, the caller may set it to MAGNITUDES_ORDINARY. */
    void (*matmul_bf16)(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const uint16_t *x,
                        size_t ldx, size_t T, void *scratch);

    /* y[t*ldy + n] = dot(w[n, 0..K), x[t])   for quantized weights (rule 2). x has T rows of groups, ldx groups
     *                                        apart. */
    void (*matmul_quantized)(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                             const struct quantized_group *x, size_t ldx, size_t T, void *scratch);

    /* y[t*ldy + c] = sum_n x[t*ldx + n] * w[n, c]   for c in [c0, c1), t in [0, T), n over w->rows  (rule 4a)
     * x is in natural order. Each sum starts at +0 and adds one fma for each n, in ascending order. c0 is a multiple of
     * 32. If w->rows is 0, y is +0. */
    void (*fma_rows[WEIGHT_TYPES])(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1,
                                   const float *x, size_t ldx, size_t T, void *scratch);

    /* Does what fma_rows does, except that each sum starts at the number that y holds. If w->rows is 0, y does not
     * change. */
    void (*fma_rows_onto[WEIGHT_TYPES])(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1,
                                        const float *x, size_t ldx, size_t T, void *scratch);

    /* y[t*ldy + c] += sum_n x[n*ldx + t] * w[n, c]   for all columns c of w, t in [0, T), n over w->rows
     * Does what fma_rows_onto does, for F32 weights, but row n of x has the factors of row n of w: so y becomes y + x^T
     * w. */
    void (*fma_outer)(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                      void *scratch);

    /* Does what fma_rows does, for weights of type CACHE_Q8. Each weight is first decoded to fl32(d * q). */
    void (*fma_rows_cache_q8)(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1,
                              const float *x, size_t ldx, size_t T, void *scratch);

    /* Returns the dot product of two vectors in natural order (rule 1). */
    float (*dot)(const float *a, const float *b, size_t K);

    /* Copies x to packed order (see packed_length). No bit of a number changes. */
    void (*pack)(float *packed, const float *x, size_t K);

    /* Rounds a packed x to BF16 in natural order, padded with +0 to packed_length(K). It rounds to nearest, ties to
     * even. A NaN stays a NaN. Numbers smaller than 2^-56 in magnitude become +0. */
    void (*narrow)(uint16_t *y, const float *packed, size_t K);

    /* Quantizes a packed x in groups of 32 (see struct quantized_group). K is a multiple of 32. */
    void (*quantize)(struct quantized_group *y, const float *packed, size_t K);

    /* score[i] = s * acc for each key i, where s is the scale of the key, or 1 if it has no codes. acc starts at +0;
     * for each head h, ascending, acc = fma(w[h], max(dot(q[h], key), 0), acc). The dot follows rule 1. If it is NaN or
     * -0, max leaves it as it is. q is [H, D], each query in packed order. If the keys have codes, so have the queries:
     * their numbers are numbers of E4M3. */
    void (*index_scores)(float *score, const struct index_view *keys, const float *q, const float *w, size_t H,
                         void *scratch);

    /* Returns how many of the n numbers are at least `least`. */
    size_t (*count_from)(const uint32_t *x, size_t n, uint32_t least);

    /* axpy: y[i] = fma(a, x[i], y[i]). scale: y[i] = y[i] * a. divide: y[i] = y[i] / a. x and y do not overlap. */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    void (*scale)(float *y, float a, size_t n);
    void (*divide)(float *y, float a, size_t n);

    /* One block of a softmax over the scores s, with 1 <= n <= 256 (rule 4c). It returns m = max s[j] + 0, so that m is
     * +0 if the maximum is -0. It sets p[j] = exp(s[j] - m). For *sum, sixteen sums start at +0, p[j] is added to sum j
     * mod 16 for j ascending, and the fold of rule 1 adds up the sixteen. p may be s.
     *
     * A comparison with NaN is false, so m is NaN only if s[0] is NaN. Any NaN in s makes *sum NaN. */
    float (*softmax_block)(float *p, const float *s, size_t n, float *sum);

    /* y[i] = exp(x[i]), by SLEEF's finz_expf u10, which has the same bits on every instruction set. y may be x. */
    void (*exp)(float *y, const float *x, size_t n);

    /* y[i] = (g[i] / (1 + exp(-g[i]))) * u[i]: SiLU by an IEEE division, then one product. y may be g or u. */
    void (*silu_mul)(float *y, const float *g, const float *u, size_t n);
};

/* The tables in this program, in order of preference. NULL ends the list. */
extern const struct kernels *const kernel_tables[];
#define MOST_KERNEL_TABLES 8

/* The names of all tables, including those of other architectures. */
#define INSTRUCTION_SETS "scalar, avx2, avx512, neon"

/* Returns the first table in kernel_tables that is called `name` and whose kernels this CPU can run. If `name` is
 * "best" or NULL, the table may have any name. Returns NULL if there is no such table. Sets *known to 1 if `name` is
 * "best", NULL or in INSTRUCTION_SETS, else to 0. `known` itself may be NULL. */
const struct kernels *kernels_select(const char *name, int *known);
/* Returns 1 if this CPU can run the kernels of the table, else 0. */
int kernels_runs_here(const struct kernels *k);

/* These functions call SLEEF's functions, in double (rule 6). Their results have the same bits on every instruction
 * set. On x86 they need a CPU with fma. An x86 CPU without fma cannot run any table of kernels, so Verbatim computes
 * no results there. But Verbatim can read a config.json on such a CPU. Reading it needs a logarithm, so kernel_log then
 * calls libm's log, and the last bit of the result may differ. */
double kernel_sin(double x);
double kernel_cos(double x);
double kernel_log(double x);
double kernel_pow(double x, double y);
/* Returns exp(x), with the bits of kernel `exp`. */
float kernel_expf(float x);

/* Returns an FNV-1a hash over the bits of 65,536 outputs of each SLEEF function that is used. A SLEEF library whose
 * hash differs from golden/sleef.h is refused, because it would change bits. */
uint64_t kernels_sleef_hash(void);

#endif
