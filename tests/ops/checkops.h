/* tests/ops/checkops.h -- helpers for all tests of operators: guarded memory, matrices of every stored type with their values
 * as f32, the dot product of rule 1 in plain C, error bounds, and a kernel table that records from which threads it is called.
 *
 * Each operator must pass two kinds of tests. Bits: it returns the same bits as plain C code that adds in the order which the
 * operator's header states. These bits must not depend on other rows in the call, on the number of threads, or on the kernel
 * table. Values: the results are within a bound of the formula computed in double. The bound follows from the operands by the
 * usual forward error analysis; a comment beside each bound derives it. */
#ifndef VB_CHECKOPS_H
#define VB_CHECKOPS_H

#include "ops/op.h"

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/guard.h"
#include "tests/support/scratch.h"

#define TEST(name) static void name(__attribute__((unused)) void **state)
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Loops over all kernel tables that this CPU can run. */
#define FOR_EACH_TABLE(k)                                                                                              \
    for (const struct kernels *const *k##_ = kernel_tables, *k; (k = *k##_); k##_++)                                   \
        if (kernels_runs_here(k))

/* Loops over all types of stored weights, and at last BF16 a second time with in_bf16 set (precision bf16). */
#define FOR_EACH_TYPE(type)                                                                                            \
    for (int type##_ = 0, type = 0; in_bf16 = type##_ == WEIGHT_TYPES, type = in_bf16 ? (int)WEIGHT_BF16 : type##_,    \
             type##_ <= WEIGHT_TYPES;                                                                                  \
         type##_++)

static const size_t some_rows[] = {1, 2, 7, 64};
static const int some_threads[] = {1, 2, 3};
static const char *const type_names[WEIGHT_TYPES] = {"f32", "f16", "bf16", "f8_e4m3"};

static inline const struct kernels *scalar_table(void) { return kernels_select("scalar", NULL); }

/* ---- a description of the case being checked, with which every message begins ---- */

static int in_bf16; /* whether operators and the functions contract_... below compute in precision bf16 */
static char case_name[256];
static inline void __attribute__((format(printf, 1, 2))) CASE(const char *format, ...)
{
    va_list list;
    int n = snprintf(case_name, sizeof case_name, "%s", in_bf16 ? "precision bf16, " : "");
    va_start(list, format);
    vsnprintf(case_name + n, sizeof case_name - (size_t)n, format, list);
    va_end(list);
}

/* ---- random numbers that are the same in every run ---- */

static inline uint64_t next_random(uint64_t *seed) /* splitmix64 */
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline size_t random_below(uint64_t *seed, size_t n) { return (size_t)(next_random(seed) >> 33) % n; }

/* A random number in [-1, 1), a multiple of 2^-23. */
static inline float random_float(uint64_t *seed)
{
    return (float)((int)(next_random(seed) >> 40) - (1 << 23)) * 0x1p-23f;
}

/* ---- memory that ends where an inaccessible page begins, filled with NaN ---- */

struct guard {
    unsigned char *base, *data;
    size_t total;
};
static struct guard guards[4096];
static size_t guard_count;

static inline void *guarded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + 64 + page - 1) / page * page;
    struct guard g = {.total = inside + 2 * page};
    g.base = mmap(NULL, g.total, guard_protection(), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.base == MAP_FAILED || guard_count == COUNT(guards) || mprotect(g.base + page, inside, PROT_READ | PROT_WRITE))
        fail_msg("no memory for the test");
    memset(g.base + page, 0xff, inside);
    g.data = g.base + page + inside - bytes;
    guards[guard_count++] = g;
    return g.data;
}

static inline float *guarded_floats(size_t n) { return guarded(n * sizeof(float)); }

static inline float *random_floats(size_t n, uint64_t *seed)
{
    float *x = guarded_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(seed);
    return x;
}

static inline float *copy_of(const float *x, size_t n)
{
    float *copy = guarded_floats(n);
    memcpy(copy, x, n * sizeof *x);
    return copy;
}

/* Frees all buffers except the oldest `mark` ones. Fails if a byte before a buffer was changed. (A write after a buffer would
 * have crashed.) */
static inline void release_to(size_t mark)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    while (guard_count > mark) {
        struct guard g = guards[--guard_count];
        for (unsigned char *p = g.base + page; p < g.data; p++)
            if (*p != 0xff)
                fail_msg("%s: wrote %zu bytes before a buffer", case_name, (size_t)(g.data - p));
        munmap(g.base, g.total);
    }
}

/* Frees all buffers. Tests call it with NULL. cmocka calls it after a test; it then also resets in_bf16. */
static inline int release_all(void **state)
{
    in_bf16 = in_bf16 && !state;
    release_to(0);
    return 0;
}

/* Makes an operator context with exactly `bytes` bytes of scratch memory. */
static inline struct op_ctx context_of(const struct kernels *k, int threads, size_t bytes)
{
    struct op_ctx cx = {.k = k, .threads = threads, .thread_cost = 32768.0, .scratch_size = bytes, .bf16 = in_bf16};
    cx.scratch = guarded(bytes);
    cx.kernel_scratch = guarded((size_t)threads * KERNEL_SCRATCH);
    return cx;
}

/* ---- comparisons ---- */

static inline uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Whether two numbers have the same bits. NaN equals NaN: its payload bits are not part of the contract. */
static inline int same_bits(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

static inline void check_same_bits(const float *got, size_t ld_got, const float *want, size_t ld_want, size_t rows,
                                   size_t cols)
{
    for (size_t s = 0; s < rows; s++)
        for (size_t i = 0; i < cols; i++) {
            float a = got[s * ld_got + i], b = want[s * ld_want + i];
            if (!same_bits(a, b))
                fail_msg("%s: row %zu, index %zu is %a (%08x), should be %a (%08x)", case_name, s, i, (double)a,
                         bits_of(a), (double)b, bits_of(b));
        }
}

static inline void check_within(float got, double want, double bound, size_t row, size_t index)
{
    if (!(fabs((double)got - want) <= bound))
        fail_msg("%s: row %zu, index %zu is %.9g, the formula says %.12g, off by %.3g, bound %.3g", case_name, row,
                 index, (double)got, want, fabs((double)got - want), bound);
}

/* Checks that the numbers between the rows were not written: those from column `cols` to the next row. */
static inline void check_untouched(const float *y, size_t ld, size_t rows, size_t cols)
{
    for (size_t s = 0; s + 1 < rows; s++)
        for (size_t i = cols; i < ld; i++)
            if (bits_of(y[s * ld + i]) != 0xffffffff)
                fail_msg("%s: wrote behind row %zu, at index %zu of %zu", case_name, s, i, cols);
}

/* ---- error bounds; u = 2^-24 is the largest relative error when a normal number is rounded to nearest ---- */

/* gamma(k): if an operand passes through k roundings on its way to the result, then |error| <= gamma(k) |operand| (Higham 2002,
 * lemma 3.1). */
static inline double rounding_gamma(double k) { return k * 0x1p-24 / (1.0 - k * 0x1p-24); }

/* How many roundings a product passes through in a dot product by rule 1. Each chunk of its block has two fma, the fold has
 * four additions, and each block after the first has one addition. (The product itself is not rounded, because fma rounds only
 * the sum.) */
static inline double dot_depth(size_t K)
{
    size_t block = K < DOT_BLOCK ? K : DOT_BLOCK;
    return (double)(2 * ((block + DOT_CHUNK - 1) / DOT_CHUNK) + 4 + (K + DOT_BLOCK - 1) / DOT_BLOCK);
}

/* The bound of a dot product: |dot - sum w x| <= gamma(depth) sum|w x|. An fma with a result below 2^-126 adds at most half of
 * 2^-149 to the error. The sum in double with which the test compares has an error of at most K 2^-53 sum|w x|. */
static inline double dot_bound(size_t K, double sum_abs)
{
    return (rounding_gamma(dot_depth(K)) + (double)K * 0x1p-53) * sum_abs + (double)K * 0x1p-150;
}

/* ---- the contract in plain C ---- */

/* The dot product by rule 1 (docs/ARITHMETIC.md), on vectors in natural order. */
static inline float contract_dot(const float *w, const float *x, size_t K)
{
    float total = 0.0f;
    for (size_t block = 0; block < K; block += 1024) {
        float a[16] = {0};
        for (size_t k = block; k < block + 1024 && k < K; k += 32)
            for (size_t l = 0; l < 16; l++)
                for (size_t i = k + 2 * l + 2; i-- > k + 2 * l;) /* of each pair, the number with the odd index first */
                    a[l] = fmaf(i < K ? w[i] : 0.0f, i < K ? x[i] : 0.0f, a[l]);
        for (size_t h = 8; h; h /= 2)
            for (size_t l = 0; l < h; l++)
                a[l] = a[l] + a[l + h];
        total = block ? total + a[0] : a[0];
    }
    return total;
}

/* Rounds the input x of a linear layer. In precision bf16, each number is rounded to 8 significant bits (ties to even), and
 * becomes 0 if it is then below 2^-56 in magnitude. Otherwise x is only copied. */
static inline void contract_x(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int exponent;
        float fraction = frexpf(x[i], &exponent); /* in [0.5, 1) */
        y[i] = in_bf16 ? ldexpf(nearbyintf(fraction * 256.0f), exponent - 8) : x[i];
        y[i] = in_bf16 && fabsf(y[i]) < 0x1p-56f ? 0.0f : y[i];
    }
}

/* The softmax of one block by rule 4c: p[j] = exp(s[j] - m), where m is the largest s[j]. Returns m. */
static inline float contract_softmax_block(float *p, const float *s, size_t n, float *sum)
{
    float m = s[0], lane[16] = {0};
    for (size_t j = 1; j < n; j++)
        m = s[j] > m ? s[j] : m;
    for (size_t j = 0; j < n; j++) {
        p[j] = kernel_expf(s[j] - m);
        lane[j % 16] = lane[j % 16] + p[j];
    }
    for (size_t h = 8; h; h /= 2)
        for (size_t l = 0; l < h; l++)
            lane[l] = lane[l] + lane[l + h];
    *sum = lane[0];
    return m;
}

/* ---- matrices ---- */

/* A random matrix in stored form (view), and its values as f32 numbers (value [rows, cols]), which the code below computes
 * without the kernels. In memory, there are unused numbers between the rows of the view, and its data starts at an odd address.
 * With F8, its first row and column are inside a block of scales. */
struct matrix {
    struct weight_view view;
    float *value;
};

static inline float store_weight(enum weight_type type, unsigned char *at, float scale, uint64_t *seed)
{
    uint64_t r = next_random(seed);
    float f = random_float(seed);
    uint32_t bits = bits_of(f);
    double sign = r & 1 ? -1.0 : 1.0;
    switch (type) {
    case WEIGHT_F32:
        memcpy(at, &f, 4);
        return f;
    case WEIGHT_BF16:
        memcpy(at, (unsigned char *)&bits + 2, 2);
        bits &= 0xffff0000;
        memcpy(&f, &bits, 4);
        return f;
    case WEIGHT_F16: { /* F16 with exponent fields 0 (subnormal) to 14, so that magnitudes are below 1 */
        unsigned exponent = 14 - (unsigned)(r >> 1 & 15) % 15, fraction = r >> 8 & 1023;
        uint16_t code = (uint16_t)((r & 1) << 15 | exponent << 10 | fraction);
        memcpy(at, &code, 2);
        return (float)(sign * (exponent ? ldexp(1024.0 + fraction, (int)exponent - 25) : ldexp(fraction, -24)));
    }
    default: { /* F8: every code except the two NaNs; only the product with the scale is rounded */
        unsigned code = (unsigned)(r >> 1 & 127) % 127, exponent = code >> 3, fraction = code & 7;
        *at = (unsigned char)((r & 1) << 7 | code);
        return (float)(sign * (exponent ? ldexp(8.0 + fraction, (int)exponent - 10) : ldexp(fraction, -9)) *
                       (double)scale);
    }
    }
}

static inline struct matrix random_matrix(enum weight_type type, size_t rows, size_t cols, uint64_t *seed)
{
    static const size_t sizes[WEIGHT_TYPES] = {4, 2, 2, 1};
    struct matrix m = {.view = {.type = type, .rows = rows, .cols = cols, .stride = cols + 3}};
    size_t block_rows = 5, block_cols = 64, scale_row = 2, scale_col = 32, size = sizes[type];
    size_t scale_stride = (cols + scale_col + block_cols - 1) / block_cols + 1;
    unsigned char *data = guarded(((rows ? rows - 1 : 0) * m.view.stride + cols) * size + 1);
    float *scale = NULL;
    if (type == WEIGHT_F8_E4M3) {
        size_t count = (rows + scale_row + block_rows - 1) / block_rows * scale_stride;
        scale = guarded_floats(count);
        for (size_t i = 0; i < count; i++)
            scale[i] = 0x1p-9f * (1.25f + random_float(seed));
        m.view.scale = scale;
        m.view.scale_stride = scale_stride;
        m.view.scale_row = scale_row;
        m.view.scale_col = scale_col;
        m.view.block_rows = block_rows;
        m.view.block_cols = block_cols;
    }
    m.view.data = data;
    m.value = guarded_floats(rows * cols);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            m.value[i * cols + j] = store_weight(
                type, data + (i * m.view.stride + j) * size,
                scale ? scale[(i + scale_row) / block_rows * scale_stride + (j + scale_col) / block_cols] : 1.0f, seed);
    return m;
}

/* ---- a kernel table that records which threads call it ----
 *
 * The first call of each thread waits until all threads of its parallel region have made a call. This proves that they all ran
 * at the same time; it also makes tasks run in another order than on a single thread. The first parallel region of the operator
 * must therefore be large enough to use all threads. */
static struct {
    const struct kernels *real;
    atomic_int arrived, most_threads, spoiled, late;
    int round;
} spy;
static _Thread_local int spy_round;
static int environment_is_spoiled(void);

static inline void spy_on_caller(void)
{
    int threads = omp_get_num_threads(), most = atomic_load(&spy.most_threads);
    while (threads > most && !atomic_compare_exchange_weak(&spy.most_threads, &most, threads))
        ;
    if (environment_is_spoiled())
        atomic_store(&spy.spoiled, 1);
    if (threads == 1 || spy_round == spy.round)
        return;
    spy_round = spy.round;
    atomic_fetch_add(&spy.arrived, 1);
    for (double since = omp_get_wtime(); atomic_load(&spy.arrived) < threads; sched_yield())
        if (omp_get_wtime() - since > 600.0) { /* the other threads never come */
            atomic_store(&spy.late, 1);
            return;
        }
}

static inline void spy_matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x,
                              size_t ldx, size_t T, void *scratch)
{
    spy_on_caller();
    spy.real->matmul[w->type](y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static inline void spy_fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                                size_t ldx, size_t T, void *scratch)
{
    spy_on_caller();
    spy.real->fma_rows[w->type](y, ldy, w, c0, c1, x, ldx, T, scratch);
}

static inline struct kernels spy_begin(const struct kernels *real)
{
    struct kernels k = *real;
    spy.real = real;
    spy.round++;
    atomic_store(&spy.arrived, 0);
    atomic_store(&spy.most_threads, 0);
    atomic_store(&spy.spoiled, 0);
    for (size_t i = 0; i < WEIGHT_TYPES; i++) {
        k.matmul[i] = spy_matmul;
        k.fma_rows[i] = spy_fma_rows;
    }
    return k;
}

static inline void check_threads_ran(int threads)
{
    if (spy.most_threads != threads || spy.late || (threads > 1 && spy.arrived != threads))
        fail_msg("%s: wanted %d threads, a region had %d, %d came", case_name, threads, spy.most_threads, spy.arrived);
}

/* ---- a spoiled floating-point environment, on which no result may depend: flush to zero, round towards zero ---- */

#if defined(__x86_64__)
#define SPOILED_ENVIRONMENT 0xffc0u /* the default 0x1f80, and: flush to zero, denormals are zero, round towards zero */
static inline uint64_t get_environment(void) { return __builtin_ia32_stmxcsr() & 0xffc0u; } /* without the exception flags */
static inline void set_environment(uint64_t e) { __builtin_ia32_ldmxcsr((uint32_t)e); }
#elif defined(__aarch64__)
#define SPOILED_ENVIRONMENT (3u << 22 | 1u << 24)
static inline uint64_t get_environment(void)
{
    uint64_t e;
    __asm__ volatile("mrs %0, fpcr" : "=r"(e));
    return e;
}
static inline void set_environment(uint64_t e) { __asm__ volatile("msr fpcr, %0" : : "r"(e)); }
#else
#define SPOILED_ENVIRONMENT 0
static inline uint64_t get_environment(void) { return 0; }
static inline void set_environment(uint64_t e) { (void)e; }
#endif

static inline int environment_is_spoiled(void)
{
    return SPOILED_ENVIRONMENT && get_environment() == SPOILED_ENVIRONMENT;
}

/* Sets the environment of `threads` threads, the caller included, to e. */
static inline void set_environment_of_threads(int threads, uint64_t e)
{
#pragma omp parallel num_threads(threads)
    set_environment(e);
    /* Set it again: LLVM's OpenMP restores it at the end of a region, and gives the caller's environment to the next workers. */
    set_environment(e);
}

static inline int spoiled_threads(int threads)
{
    int count = 0;
#pragma omp parallel num_threads(threads) reduction(+ : count)
    count += environment_is_spoiled();
    return count;
}

/* Runs `call` on `threads` threads in a spoiled environment. No kernel may run in it, and afterwards every thread must still
 * have it. */
#define IN_SPOILED_ENVIRONMENT(threads, call)                                                                          \
    do {                                                                                                               \
        uint64_t default_environment = get_environment();                                                              \
        int left;                                                                                                      \
        set_environment_of_threads(threads, SPOILED_ENVIRONMENT);                                                      \
        call;                                                                                                          \
        left = spoiled_threads(threads);                                                                               \
        set_environment_of_threads(threads, default_environment);                                                      \
        if (SPOILED_ENVIRONMENT && left != (threads))                                                                  \
            fail_msg("%s: %d of %d threads got their environment back", case_name, left, threads);                     \
        if (spy.spoiled)                                                                                               \
            fail_msg("%s: a kernel ran in the environment of the caller", case_name);                                  \
    } while (0)

#endif
