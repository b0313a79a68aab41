/* tests/ops/checkops.c -- for tests of operators: memory, matrices, rules in plain C, and a table that records its
 * callers. */
#include "tests/ops/checkops.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/guard.h"
#include "tests/support/scratch.h"

const size_t some_rows[4] = {1, 2, 7, 64};
const int some_threads[3] = {1, 2, 3};
const char *const type_names[WEIGHT_TYPES] = {"f32", "f16", "bf16", "f8_e4m3", "i4", "f4", "i8"};

int in_bf16;
char case_name[256];
const char *case_table = "";

const struct kernels *scalar_table(void) { return kernels_select("scalar", NULL); }

/* ---- the case that is being checked ---- */

void __attribute__((format(printf, 1, 2))) CASE(const char *format, ...)
{
    va_list list;
    int n = snprintf(case_name, sizeof case_name, "%s%s%s", case_table, *case_table ? ": " : "",
                     in_bf16 ? "precision bf16, " : "");
    va_start(list, format);
    vsnprintf(case_name + n, sizeof case_name - (size_t)n, format, list);
    va_end(list);
}

/* ---- random numbers ---- */

float random_float(uint64_t *seed)
{
    return (float)((int)(next_random(seed) >> 40) - (1 << 23)) * 0x1p-23f;
}

/* ---- memory ---- */

struct guard {
    unsigned char *base, *data;
    size_t total;
};
static struct guard guards[4096];
size_t guard_count;

void *guarded(size_t bytes)
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

float *guarded_floats(size_t n) { return guarded(n * sizeof(float)); }

float *random_floats(size_t n, uint64_t *seed)
{
    float *x = guarded_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(seed);
    return x;
}

float *copy_of(const float *x, size_t n)
{
    float *copy = guarded_floats(n);
    memcpy(copy, x, n * sizeof *x);
    return copy;
}

void release_to(size_t mark)
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

#define MOST_DIFFERING 100 /* are printed */
static size_t differing; /* matrices of this test, while CHECK_ALL is set */

int release_all(void **state)
{
    size_t found = differing;
    differing = 0;
    in_bf16 = in_bf16 && !state;
    release_to(0);
    if (found)
        fail_msg("%zu comparisons differ", found);
    return 0;
}

const struct arithmetic precisions[2] = {{.bf16 = 0}, {.bf16 = 1}};

struct op_ctx context_of(const struct kernels *k, int threads, size_t bytes)
{
    struct op_ctx cx = {.k = k, .threads = threads, .thread_cost = 32768.0, .scratch_size = bytes,
                        .op = &operators_cpu, .arithmetic = &precisions[in_bf16]};
    cx.scratch = guarded(bytes);
    cx.kernel_scratch = guarded((size_t)threads * KERNEL_SCRATCH);
    return cx;
}

/* ---- comparisons ---- */

uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

int same_bits(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

void check_same_bits(const float *got, size_t ld_got, const float *want, size_t ld_want, size_t rows, size_t cols)
{
    const char *goes_on = getenv("CHECK_ALL");
    for (size_t s = 0; s < rows; s++)
        for (size_t i = 0; i < cols; i++) {
            float a = got[s * ld_got + i], b = want[s * ld_want + i];
            if (same_bits(a, b))
                continue;
            if (!goes_on)
                fail_msg("%s: row %zu, index %zu is %a (%08x), should be %a (%08x)", case_name, s, i, (double)a,
                         bits_of(a), (double)b, bits_of(b));
            if (differing++ < MOST_DIFFERING)
                print_message("%s: row %zu of %zu, index %zu of %zu is %a (%08x), should be %a (%08x)\n", case_name, s,
                              rows, i, cols, (double)a, bits_of(a), (double)b, bits_of(b));
            return;
        }
}

void check_within(float got, double want, double bound, size_t row, size_t index)
{
    if (!(fabs((double)got - want) <= bound))
        fail_msg("%s: row %zu, index %zu is %.9g, the formula says %.12g, off by %.3g, bound %.3g", case_name, row,
                 index, (double)got, want, fabs((double)got - want), bound);
}

void check_untouched(const float *y, size_t ld, size_t rows, size_t cols)
{
    for (size_t s = 0; s + 1 < rows; s++)
        for (size_t i = cols; i < ld; i++)
            if (bits_of(y[s * ld + i]) != 0xffffffff)
                fail_msg("%s: wrote behind row %zu, at index %zu of %zu", case_name, s, i, cols);
}

/* ---- bounds. u = 2^-24 is the largest relative error of one rounding to nearest of a normal number. ---- */

double rounding_gamma(double k) { return k * 0x1p-24 / (1.0 - k * 0x1p-24); }

double dot_depth(size_t K)
{
    size_t block = K < DOT_BLOCK ? K : DOT_BLOCK;
    return (double)(2 * ((block + DOT_CHUNK - 1) / DOT_CHUNK) + 4 + (K + DOT_BLOCK - 1) / DOT_BLOCK);
}

double dot_bound(size_t K, double sum_abs)
{
    return (rounding_gamma(dot_depth(K)) + (double)K * 0x1p-53) * sum_abs + (double)K * 0x1p-150;
}

/* ---- rules of docs/ARITHMETIC.md in plain C ---- */

float contract_dot(const float *w, const float *x, size_t K)
{
    float total = 0.0f;
    for (size_t block = 0; block < K; block += 1024) {
        float a[16] = {0};
        for (size_t k = block; k < block + 1024 && k < K; k += 32)
            for (size_t l = 0; l < 16; l++)
                for (size_t i = k + 2 * l + 2; i-- > k + 2 * l;) /* the odd one first */
                    a[l] = fmaf(i < K ? w[i] : 0.0f, i < K ? x[i] : 0.0f, a[l]);
        for (size_t h = 8; h; h /= 2)
            for (size_t l = 0; l < h; l++)
                a[l] = a[l] + a[l + h];
        total = block ? total + a[0] : a[0];
    }
    return total;
}

void contract_x(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int exponent;
        float fraction = frexpf(x[i], &exponent); /* in [0.5, 1) */
        y[i] = in_bf16 ? ldexpf(nearbyintf(fraction * 256.0f), exponent - 8) : x[i];
        y[i] = in_bf16 && fabsf(y[i]) < 0x1p-56f ? 0.0f : y[i];
    }
}

float contract_softmax_block(float *p, const float *s, size_t n, float *sum)
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

static float store_weight(enum weight_type type, unsigned char *at, float scale, uint64_t *seed)
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
    case WEIGHT_F16: { /* exponents 0 (subnormal) to 14: less than 1 */
        unsigned exponent = 14 - (unsigned)(r >> 1 & 15) % 15, fraction = r >> 8 & 1023;
        uint16_t code = (uint16_t)((r & 1) << 15 | exponent << 10 | fraction);
        memcpy(at, &code, 2);
        return (float)(sign * (exponent ? ldexp(1024.0 + fraction, (int)exponent - 25) : ldexp(fraction, -24)));
    }
    case WEIGHT_I8: /* one rounding */
        *at = (unsigned char)r;
        return (float)((*at - (*at > 127 ? 256.0 : 0.0)) * (double)scale);
    default: { /* every code but the two NaNs; one rounding */
        unsigned code = (unsigned)(r >> 1 & 127) % 127, exponent = code >> 3, fraction = code & 7;
        *at = (unsigned char)((r & 1) << 7 | code);
        return (float)(sign * (exponent ? ldexp(8.0 + fraction, (int)exponent - 10) : ldexp(fraction, -9)) *
                       (double)scale);
    }
    }
}

/* Rows of codes of 4 bits, a group longer than they need to be. */
static struct stored_matrix random_i4_matrix(size_t rows, size_t cols, uint64_t *seed)
{
    size_t stride = packed_length(cols) + 32, count = rows * stride;
    unsigned char *codes = guarded(count / 2 + 1);
    uint16_t *scale = guarded(count / 32 * sizeof *scale + sizeof *scale);
    struct stored_matrix m = {.view = {.type = WEIGHT_I4, .data = codes, .group_scale = scale, .rows = rows,
                                       .cols = cols, .stride = stride}};
    m.value = guarded_floats(rows * cols);
    for (size_t i = 0; i < count; i++)
        codes[i / 2] = (unsigned char)(i % 2 ? codes[i / 2] | (next_random(seed) & 15) << 4 : next_random(seed) & 15);
    for (size_t i = 0; i < count / 32; i++)
        scale[i] = (uint16_t)(bits_of(0.125f * random_float(seed)) >> 16);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            uint32_t at = (uint32_t)(i * stride + j), bits = (uint32_t)scale[at / 32] << 16, word;
            float f;
            memcpy(&f, &bits, sizeof f);
            memcpy(&word, codes + at / 8 * 4, sizeof word);
            m.value[i * cols + j] = (float)(((double)(word >> at % 8 * 4 & 15) - 8) * (double)f);
        }
    return m;
}

/* The same with codes of E2M1, as NVFP4 or as MXFP4. */
static struct stored_matrix random_f4_matrix(size_t rows, size_t cols, uint64_t *seed)
{
    static const double numbers[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    struct stored_matrix m = random_i4_matrix(rows, cols, seed);
    struct weight_view *w = &m.view;
    int mx = (int)(next_random(seed) & 1);
    w->type = WEIGHT_F4;
    w->group_size = mx ? 32 : 16;
    w->tensor_scale = 0.375f + 0.125f * random_float(seed);
    w->divides = (int)(next_random(seed) & 1);
    size_t groups = rows * w->stride / w->group_size;
    unsigned char *scale = guarded(groups + 1);
    for (size_t i = 0; i < groups; i++)
        scale[i] = (unsigned char)(mx ? 120 + next_random(seed) % 5 : 30 + next_random(seed) % 16);
    w->group_scale = scale;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            size_t at = i * w->stride + j;
            unsigned code = ((const unsigned char *)w->data)[at / 2] >> at % 2 * 4 & 15, s = scale[at / w->group_size];
            double number = code & 8 ? -numbers[code & 7] : numbers[code & 7], t = (double)w->tensor_scale;
            double group = mx ? ldexp(1, (int)s - 127) : (1 + (s & 7) / 8.0) * ldexp(1, (int)(s >> 3) - 7);
            m.value[i * cols + j] = (float)(mx ? number * group
                                            : w->divides ? number * (float)(group / t)
                                            : number * group * t);
        }
    return m;
}

struct stored_matrix random_matrix(enum weight_type type, size_t rows, size_t cols, uint64_t *seed)
{
    static const size_t sizes[WEIGHT_TYPES] = {4, 2, 2, 1, 0, 0, 1};
    if (type == WEIGHT_I4)
        return random_i4_matrix(rows, cols, seed);
    if (type == WEIGHT_F4)
        return random_f4_matrix(rows, cols, seed);
    struct stored_matrix m = {.view = {.type = type, .rows = rows, .cols = cols, .stride = cols + 3}};
    size_t block_rows = 5, block_cols = 64, scale_row = 2, scale_col = 32, size = sizes[type];
    size_t scale_stride = (cols + scale_col + block_cols - 1) / block_cols + 1;
    unsigned char *data = guarded(((rows ? rows - 1 : 0) * m.view.stride + cols) * size + 1);
    float *scale = NULL;
    if (weight_is_byte(type)) {
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

/* ---- a floating-point environment that no bit may depend on: flush to zero, round towards zero ---- */

#if defined(__x86_64__)
#define SPOILED_ENVIRONMENT 0xffc0u /* 0x1f80 | flush to zero | denormals are zero | towards zero */
static uint64_t get_environment(void) { return __builtin_ia32_stmxcsr() & 0xffc0u; } /* without the flags of past
                                                                                        exceptions */
static void set_environment(uint64_t e) { __builtin_ia32_ldmxcsr((uint32_t)e); }
#elif defined(__aarch64__)
#define SPOILED_ENVIRONMENT (3u << 22 | 1u << 24)
static uint64_t get_environment(void)
{
    uint64_t e;
    __asm__ volatile("mrs %0, fpcr" : "=r"(e));
    return e;
}
static void set_environment(uint64_t e) { __asm__ volatile("msr fpcr, %0" : : "r"(e)); }
#else
#define SPOILED_ENVIRONMENT 0
static uint64_t get_environment(void) { return 0; }
static void set_environment(uint64_t e) { (void)e; }
#endif

static int environment_is_spoiled(void)
{
    return SPOILED_ENVIRONMENT && get_environment() == SPOILED_ENVIRONMENT;
}

static void set_environment_of_threads(int threads, uint64_t e)
{
#pragma omp parallel num_threads(threads)
    set_environment(e);
    set_environment(e); /* LLVM's OpenMP undoes it at the end of a region, and gives workers the caller's at the next */
}

static int spoiled_threads(int threads)
{
    int count = 0;
#pragma omp parallel num_threads(threads) reduction(+ : count)
    count += environment_is_spoiled();
    return count;
}

/* ---- a table that records its callers ---- */

static struct {
    const struct kernels *real;
    atomic_int arrived, most_threads, spoiled, late;
    int round;
} spy;
static _Thread_local int spy_round;

static void spy_on_caller(void)
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
        if (omp_get_wtime() - since > 600.0) { /* the others will not come any more */
            atomic_store(&spy.late, 1);
            return;
        }
}

static void spy_matmul(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1, const float *x,
                       size_t ldx, size_t T, void *scratch)
{
    spy_on_caller();
    spy.real->matmul[w->type](y, ldy, w, n0, n1, x, ldx, T, scratch);
}

static void spy_fma_rows(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                         size_t ldx, size_t T, void *scratch)
{
    spy_on_caller();
    spy.real->fma_rows[w->type](y, ldy, w, c0, c1, x, ldx, T, scratch);
}

static void spy_fma_rows_onto(float *y, size_t ldy, const struct weight_view *w, size_t c0, size_t c1, const float *x,
                              size_t ldx, size_t T, void *scratch)
{
    spy_on_caller();
    spy.real->fma_rows_onto[w->type](y, ldy, w, c0, c1, x, ldx, T, scratch);
}

static void spy_fma_outer(float *y, size_t ldy, const struct weight_view *w, const float *x, size_t ldx, size_t T,
                          void *scratch)
{
    spy_on_caller();
    spy.real->fma_outer(y, ldy, w, x, ldx, T, scratch);
}

struct kernels spy_begin(const struct kernels *real)
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
        k.fma_rows_onto[i] = spy_fma_rows_onto;
    }
    k.fma_outer = spy_fma_outer;
    return k;
}

void check_threads_ran(int threads)
{
    if (spy.most_threads != threads || spy.late || (threads > 1 && spy.arrived != threads))
        fail_msg("%s: wanted %d threads, a region had %d, %d came", case_name, threads, spy.most_threads, spy.arrived);
}

uint64_t spoil_environment(int threads)
{
    uint64_t before = get_environment();
    set_environment_of_threads(threads, SPOILED_ENVIRONMENT);
    return before;
}

void restore_environment(int threads, uint64_t before)
{
    int left = spoiled_threads(threads);
    set_environment_of_threads(threads, before);
    if (SPOILED_ENVIRONMENT && left != threads)
        fail_msg("%s: %d of %d threads got their environment back", case_name, left, threads);
    if (spy.spoiled)
        fail_msg("%s: a kernel ran in the environment of the caller", case_name);
}
