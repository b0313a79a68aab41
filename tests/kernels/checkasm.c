/* tests/kernels/checkasm.c -- proves that every kernel table returns the bits of simd/scalar.c; with --bench, times
 * them.
 *
 *     checkasm [--seed N] [--filter PART-OF-A-NAME] [--quick] [--bench]
 *
 * The same seed gives the same run, and a difference is printed with all that is needed to find it again. Inputs end at
 * an unreadable page and their padding is NaN, so reading or trusting too much shows; outputs lie among canaries. */
#include "tests/kernels/checkasm.h"

#include "golden/sleef.h"
#include "tests/support/guard.h"
#include "tests/support/turn.h"
#include "numbers/numbers.h"

#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int quick;
uint64_t rng_state;
static uint64_t seed = 1;
static const char *filter = "";
static int failures[KERNELS + 1][MOST_KERNEL_TABLES]; /* by table, in the order of kernel_tables */

const char *const type_names[] = {"f32", "f16", "bf16", "f8_e4m3", "i4", "f4", "i8"};
const char *const kind_names[] = {"uniform", "wide", "subnormal", "underflow", "zeros", "cancelling", "huge",
                                  "vanishing"};
const char *const kernel_names[KERNELS] = {
    [MATMUL] = "matmul_f32",
    "matmul_f16",
    "matmul_bf16",
    "matmul_f8_e4m3",
    "matmul_i4",
    "matmul_f4",
    "matmul_i8",
    [FMA_ROWS] = "fma_rows_f32",
    "fma_rows_f16",
    "fma_rows_bf16",
    "fma_rows_f8_e4m3",
    "fma_rows_i4",
    "fma_rows_f4",
    "fma_rows_i8",
    [FMA_ROWS_ONTO] = "fma_rows_onto_f32",
    "fma_rows_onto_f16",
    "fma_rows_onto_bf16",
    "fma_rows_onto_f8_e4m3",
    "fma_rows_onto_i4",
    "fma_rows_onto_f4",
    "fma_rows_onto_i8",
    [MATMUL_NARROW] = "narrow_matmul",
    [MATMUL_QUANTIZED] = "matmul_q8_0",
    "matmul_q4_0",
    "matmul_q5_0",
    "matmul_q5_1",
    "matmul_q4_k",
    "matmul_q5_k",
    "matmul_q6_k",
    "matmul_mxfp4",
    "matmul_iq2_xxs",
    "matmul_iq2_xs",
    "matmul_iq2_s",
    "matmul_iq3_xxs",
    "matmul_iq3_s",
    "matmul_iq1_s",
    "matmul_iq1_m",
    "matmul_tq1_0",
    "matmul_tq2_0",
    "matmul_q4_1",
    "matmul_iq4_nl",
    "matmul_iq4_xs",
    "matmul_q3_k",
    "matmul_q2_k",
    "matmul_gguf_nvfp4",
    "matmul_cache_q8",
    "matmul_q4_bf16",
    "matmul_nvfp4",
    "matmul_q8_f32",
    [FMA_ROWS_CACHE_Q8] = "fma_rows_cache_q8",
    [FMA_OUTER] = "fma_outer",
    [DOT] = "dot",
    [PACK] = "pack",
    [NARROW] = "narrow",
    [QUANTIZE] = "quantize",
    [AXPY] = "axpy",
    [SCALE] = "scale",
    [DIVIDE] = "divide",
    [INDEX_SCORES] = "index_scores",
    [COUNT_FROM] = "count_from",
    [SOFTMAX] = "softmax_block",
    [EXP] = "exp",
    [SILU_MUL] = "silu_mul",
};

static int check_names(void)
{
    for (int kernel = 0; kernel < KERNELS; kernel++)
        if (!kernel_names[kernel]) {
            printf("checkasm: FAILED, number %d of enum kernel has no name in kernel_names\n", kernel);
            return 1;
        }
    return 0;
}

/* Under an emulator, half of the kernels take half a minute: `make test` tries the others at another commit. */
int wanted(enum kernel kernel) { return strstr(kernel_names[kernel], filter) && (!quick || has_turn(kernel, 2)); }

uint64_t rng(void)
{
    uint64_t z = splitmix64_next(&rng_state);
    return z;
}

size_t type_size(enum weight_type type) { return type == WEIGHT_F32 ? 4 : weight_is_byte(type) ? 1 : 2; }

/* Lowest and highest exponent field per type and kind. Two factors of UNDERFLOW multiply to subnormals or to zeros of
 * either sign, the case in which a skipped tail shows (-0 + 0*0 is +0). */
static const struct { uint8_t low, high; } exponents[WEIGHT_TYPES][KINDS] = {
    [WEIGHT_F32] = {{118, 127}, {60, 180}, {0, 2}, {44, 62}, {0, 0}, {110, 135}, {185, 254}, {100, 116}},
    [WEIGHT_F16] = {{8, 15}, {0, 30}, {0, 0}, {0, 1}, {0, 0}, {5, 25}, {28, 30}, {1, 4}},
    [WEIGHT_BF16] = {{118, 127}, {60, 180}, {0, 2}, {44, 62}, {0, 0}, {110, 135}, {185, 254}, {100, 116}},
    [WEIGHT_F8_E4M3] = {{3, 8}, {0, 14}, {0, 0}, {0, 1}, {0, 0}, {0, 14}, {14, 15}, {0, 0}},
};

void random_numbers(void *out, enum weight_type type, enum kind kind, size_t n)
{
    static const int fraction_bits[] = {23, 10, 7, 3};
    int bits = type == WEIGHT_I8 ? 0 : fraction_bits[type], size = (int)type_size(type);
    uint32_t code = 0, sign = 1u << (8 * size - 1);
    for (size_t i = 0; type == WEIGHT_I8 && i < n; i++) { /* integers: no exponents, no NaN */
        int8_t *q = (int8_t *)out + i;
        *q = (int8_t)(kind == ZEROS ? 0 : kind == CANCEL && i % 2 ? -q[-1] : (int)below(256) - 128);
        if (kind == VANISH || (kind == CANCEL && *q == -128))
            *q = 1;
    }
    for (size_t i = 0; type != WEIGHT_I8 && i < n; i++) {
        uint64_t r = rng();
        if (kind == CANCEL && i % 2) { /* w after -w: with x alike, sums of exactly zero */
            code ^= sign;
        } else {
            uint32_t low = exponents[type][kind].low, high = exponents[type][kind].high;
            uint32_t fraction = kind == ZEROS ? 0 : (uint32_t)(r >> 40) & ((1u << bits) - 1);
            code = (low + (uint32_t)(r >> 8) % (high - low + 1)) << bits | fraction | ((r & 1) ? sign : 0);
            if (kind == WIDE && r % 64 < 2)
                code &= sign; /* zeros among large numbers */
            if (kind == VANISH)
                code |= sign | 1; /* not a zero */
            if (type == WEIGHT_F8_E4M3 && (code & 0x7f) == 0x7f)
                code ^= 1; /* NaN codes have their own test */
        }
        memcpy((char *)out + i * (size_t)size, &code, (size_t)size); /* little endian */
    }
}

void random_factors(float *x, enum kind kind, size_t n, size_t apart)
{
    random_numbers(x, WEIGHT_F32, kind == SUBNORMAL ? UNIFORM : kind, n);
    for (size_t k = 0; k < n; k++) {
        if (kind == CANCEL && k / apart % 2)
            x[k] = x[k - apart];
        if (kind == VANISH)
            memcpy(x + k, &(uint32_t){(uint32_t)(1 + below(255))}, sizeof *x);
    }
}

void *ending_at_a_page(enum slot slot, size_t bytes, size_t slack)
{
    enum { CAPACITY = 64 << 20 };
    static unsigned char *base[SLOTS];
    if (!base[slot]) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        base[slot] = mmap(NULL, CAPACITY + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1, 0);
        if (base[slot] == MAP_FAILED || mprotect(base[slot] + CAPACITY, page, guard_protection())) {
            perror("checkasm: mmap");
            exit(1);
        }
    }
    unsigned char *p = base[slot] + CAPACITY - slack - bytes, *before = p - 64;
    if (bytes + slack + 64 > CAPACITY) {
        fprintf(stderr, "checkasm: a buffer of %zu bytes is too small for %zu\n", (size_t)CAPACITY, bytes);
        exit(1);
    }
    memset(before, 0xff, bytes + slack + 64);
    return p;
}

void fill_canary(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(y + i, &(uint32_t){CANARY}, sizeof *y);
}

static uint32_t bits_of(const float *f)
{
    uint32_t bits;
    memcpy(&bits, f, sizeof bits);
    return bits;
}

static struct {
    enum kernel kernel;
    const struct kernels *k;
    const char *what;
} running;

void about_to_run(enum kernel kernel, const struct kernels *k, const char *what)
{
    running.kernel = kernel;
    running.k = k;
    running.what = what;
}

/* A kernel that reads or writes where it must not ends the run: what comes after would prove nothing. */
static void crashed(int signal)
{
    static const char *const why[] = {"touched memory that is not its own", "ran an illegal instruction"};
    fflush(stdout);
    dprintf(1, "%s %s: seed %" PRIu64 ", %s: %s\ncheckasm: FAILED\n", running.k ? running.k->name : "scalar",
            kernel_names[running.kernel], seed, running.what ? running.what : "", why[signal == SIGILL]);
    _exit(1);
}

static int is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

static int *failures_of(enum kernel kernel, const struct kernels *k)
{
    size_t i = 0;
    while (kernel_tables[i] != k)
        i++;
    return &failures[kernel][i];
}

void failed(enum kernel kernel, const struct kernels *k, const char *what, const char *why)
{
    if ((*failures_of(kernel, k))++ == 0)
        printf("%s %s: seed %" PRIu64 ", %s: %s\n", k->name, kernel_names[kernel], seed, what, why);
}

int same_bits(enum kernel kernel, const struct kernels *k, const char *what, const float *got, const float *want,
              size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = bits_of(got + i), b = bits_of(want + i);
        if (a == b || (is_nan(a) && is_nan(b)))
            continue;
        char why[160];
        snprintf(why, sizeof why, "number %zu of %zu is 0x%08x (%g), scalar's is 0x%08x (%g)%s", i, n, a, got[i], b,
                 want[i], b == CANARY ? ", a canary" : "");
        failed(kernel, k, what, why);
        return 0;
    }
    return 1;
}

const struct kernels *next_table(const struct kernels *k)
{
    size_t i = 0;
    while (k && kernel_tables[i++] != k)
        ;
    while (kernel_tables[i] && (kernel_tables[i] == &kernels_scalar || !kernels_runs_here(kernel_tables[i])))
        i++;
    return kernel_tables[i];
}

#define FOR_EACH_TABLE(k) for (const struct kernels *k = next_table(NULL); k; k = next_table(k))

/* --- kernels on vectors --- */

static void check_dot(size_t K, enum kind kind, size_t slack)
{
    float *a = ending_at_a_page(SLOT_X, K * sizeof *a, slack * 4), *b = ending_at_a_page(SLOT_X2, K * sizeof *b, 0);
    random_numbers(a, WEIGHT_F32, kind, K);
    random_factors(b, kind, K, 1);
    float want = kernels_scalar.dot(a, b, K);
    char what[120];
    snprintf(what, sizeof what, "K=%zu %s", K, kind_names[kind]);
    FOR_EACH_TABLE(k)
    {
        about_to_run(DOT, k, what);
        float got = k->dot(a, b, K);
        same_bits(DOT, k, what, &got, &want, 1);
    }
}

static void check_pack(size_t K, enum kind kind, size_t slack)
{
    size_t n = packed_length(K) + 32;
    float *x = ending_at_a_page(SLOT_X, K * sizeof *x, slack * 4);
    float *want = ending_at_a_page(SLOT_WANT, n * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, n * sizeof *got, 0);
    random_numbers(x, WEIGHT_F32, kind, K);
    fill_canary(want, n);
    kernels_scalar.pack(want + 16, x, K);
    char what[120];
    snprintf(what, sizeof what, "K=%zu %s", K, kind_names[kind]);
    FOR_EACH_TABLE(k)
    {
        fill_canary(got, n);
        about_to_run(PACK, k, what);
        k->pack(got + 16, x, K);
        same_bits(PACK, k, what, got, want, n);
    }
}

/* x for exp and its relatives: where it is ordinary, where its results are subnormal, overflow or vanish, and
 * anything */
static void random_arguments(float *x, size_t n, int choice)
{
    static const float special[] = {0.0f, -0.0f, 1.0f / 0.0f, -1.0f / 0.0f, 88.7228f, 88.7229f, -87.3365f, -103.972f,
                                    -103.973f, -104.0f, 0x1p-149f, -0x1p-149f};
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng();
        float unit = (float)(r >> 40) * 0x1p-24f;
        uint32_t any = (uint32_t)r;
        switch (choice) {
        case 0: x[i] = unit * 20 - 10; break;
        case 1: x[i] = -unit * 20 - 86; break; /* exp is subnormal or zero */
        case 2: x[i] = unit * 240 - 120; break;
        case 3: x[i] = special[r % (sizeof special / sizeof *special)]; break;
        case 4: x[i] = r % 3 ? (r % 3 == 1 ? 0.0f : -0.0f) : -unit; break; /* the largest is a zero */
        default: memcpy(x + i, &any, sizeof any);                          /* any bits, NaN too */
        }
    }
}

/* y = f(x) or f(x, u), into another place or in place */
static void check_elementwise(enum kernel kernel, size_t n, int choice, size_t slack)
{
    float *x = ending_at_a_page(SLOT_X, n * sizeof *x, slack * 4), *u = ending_at_a_page(SLOT_X2, n * sizeof *u, 0);
    float *want = ending_at_a_page(SLOT_WANT, (n + 32) * sizeof *want, 0);
    float *got = ending_at_a_page(SLOT_GOT, (n + 32) * sizeof *got, 0);
    random_arguments(x, n, choice);
    random_numbers(u, WEIGHT_F32, (enum kind)below(KINDS), n);
    fill_canary(want, n + 32);
    if (kernel == EXP)
        kernels_scalar.exp(want + 16, x, n);
    else
        kernels_scalar.silu_mul(want + 16, x, u, n);
    FOR_EACH_TABLE(k)
    {
        for (int place = 0; place < (kernel == EXP ? 2 : 3); place++) { /* y apart, y is x, y is u */
            char what[120];
            snprintf(what, sizeof what, "n=%zu data %d%s", n, choice, place ? " in place" : "");
            fill_canary(got, n + 32);
            if (place)
                memcpy(got + 16, place == 1 ? x : u, n * sizeof *got);
            about_to_run(kernel, k, what);
            if (kernel == EXP)
                k->exp(got + 16, place ? got + 16 : x, n);
            else
                k->silu_mul(got + 16, place == 1 ? got + 16 : x, place == 2 ? got + 16 : u, n);
            same_bits(kernel, k, what, got, want, n + 32);
        }
    }
}

/* y += a x, y *= a, y /= a */
static void run_with_scalar(const struct kernels *k, enum kernel kernel, float *y, float a, const float *x, size_t n)
{
    if (kernel == AXPY)
        k->axpy(y, a, x, n);
    else
        (kernel == SCALE ? k->scale : k->divide)(y, a, n);
}

static void check_with_scalar(enum kernel kernel, size_t n, enum kind kind, size_t slack)
{
    float *x = ending_at_a_page(SLOT_X, n * sizeof *x, slack * 4), *y = ending_at_a_page(SLOT_X2, n * sizeof *y, 0), a;
    float *want = ending_at_a_page(SLOT_WANT, (n + 32) * sizeof *want, 0),
          *got = ending_at_a_page(SLOT_GOT, (n + 32) * sizeof *got, 0);
    random_numbers(x, WEIGHT_F32, kind, n);
    random_numbers(y, WEIGHT_F32, kind, n);
    random_numbers(&a, WEIGHT_F32, kind, 1);
    fill_canary(want, n + 32);
    memcpy(want + 16, y, n * sizeof *y);
    run_with_scalar(&kernels_scalar, kernel, want + 16, a, x, n);
    char what[120];
    snprintf(what, sizeof what, "n=%zu %s", n, kind_names[kind]);
    FOR_EACH_TABLE(k)
    {
        fill_canary(got, n + 32);
        memcpy(got + 16, y, n * sizeof *y);
        about_to_run(kernel, k, what);
        run_with_scalar(k, kernel, got + 16, a, x, n);
        same_bits(kernel, k, what, got, want, n + 32);
    }
}

static void check_softmax(size_t n, int choice, size_t slack)
{
    float *s = ending_at_a_page(SLOT_X, n * sizeof *s, slack * 4);
    float *want = ending_at_a_page(SLOT_WANT, (n + 32) * sizeof *want, 0);
    float *got = ending_at_a_page(SLOT_GOT, (n + 32) * sizeof *got, 0);
    random_arguments(s, n, choice);
    fill_canary(want, n + 32);
    want[1] = kernels_scalar.softmax_block(want + 16, s, n, want);
    FOR_EACH_TABLE(k)
    {
        for (int in_place = 0; in_place < 2; in_place++) {
            char what[120];
            snprintf(what, sizeof what, "n=%zu data %d%s (numbers 0 and 1: sum and maximum)", n, choice,
                     in_place ? " in place" : "");
            fill_canary(got, n + 32);
            if (in_place)
                memcpy(got + 16, s, n * sizeof *got);
            about_to_run(SOFTMAX, k, what);
            got[1] = k->softmax_block(got + 16, in_place ? got + 16 : s, n, got);
            same_bits(SOFTMAX, k, what, got, want, n + 32);
        }
    }
}

static void check_vector_kernels(void)
{
    static const size_t long_lengths[] = {511, 1000, 1023, 1024, 1025, 2047, 2048, 2080, 4099, 7168, 7999};
    size_t n_long = sizeof long_lengths / sizeof *long_lengths, n_random = quick ? 4 : 40;
    for (size_t i = 0; i <= 300 + n_long + n_random; i++) {
        size_t n = i <= 300 ? i : i - 301 < n_long ? long_lengths[i - 301] : 301 + below(7700);
        for (int kind = 0; kind < KINDS; kind++) {
            if (wanted(DOT))
                check_dot(n, (enum kind)kind, below(4));
            for (enum kernel kernel = AXPY; kernel <= DIVIDE; kernel++)
                if (wanted(kernel))
                    check_with_scalar(kernel, n, (enum kind)kind, below(4));
            if (wanted(PACK) && kind < 2)
                check_pack(n, (enum kind)kind, below(4));
        }
        for (int choice = 0; choice < 6; choice++) {
            if (wanted(SOFTMAX) && n)
                check_softmax(n, choice, below(4));
            if (wanted(EXP))
                check_elementwise(EXP, n, choice, below(4));
            if (wanted(SILU_MUL))
                check_elementwise(SILU_MUL, n, choice, below(4));
        }
    }
}

/* --- the tables --- */

/* All that follows name, variant and learns_magnitudes are functions. A call of a missing one would crash in the field,
 * on the machines that choose this table, so each table is read, also those that this CPU cannot run. */
static int check_no_holes(void)
{
    size_t first = offsetof(struct kernels, matmul), size = sizeof(void (*)(void));
    int bad = 0;
    for (const struct kernels *const *k = kernel_tables; *k; k++)
        for (size_t at = first; at < sizeof(struct kernels); at += size) {
            void (*function)(void);
            memcpy(&function, (const char *)*k + at, size);
            if (!function) {
                printf("%s %s: FAILED, function %zu of struct kernels is NULL\n", (*k)->name,
                       (*k)->variant ? (*k)->variant : "", (at - first) / size);
                bad = 1;
            }
        }
    return bad;
}

/* --isa finds a table by its name. */
static int check_table_names(void)
{
    int bad = 0, known;
    for (const struct kernels *const *k = kernel_tables; *k; k++) {
        kernels_select((*k)->name, &known);
        if (!known) {
            printf("%s: FAILED, INSTRUCTION_SETS of simd/kernels.h does not have this name\n", (*k)->name);
            bad = 1;
        }
    }
    return bad;
}

/* --- the environment --- */

static uint32_t fp_control(void)
{
#if defined(__x86_64__)
    uint32_t csr;
    __asm__ volatile("stmxcsr %0" : "=m"(csr));
    return csr & ~0x3fu; /* without the sticky flags */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return (uint32_t)fpcr;
#else
    return 0;
#endif
}

static void set_fp_control(uint32_t value)
{
#if defined(__x86_64__)
    __asm__ volatile("ldmxcsr %0" : : "m"(value));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)value));
#else
    (void)value;
#endif
}

#if defined(__aarch64__)
#define FP_DEFAULT 0u
#define FP_FLUSH (1u << 24) /* FZ */
#else
#define FP_DEFAULT 0x1f80u
#define FP_FLUSH 0x8040u /* FTZ, DAZ */
#endif

/* Default rounding and subnormals kept, here; and that it matters: with flush-to-zero set the same call differs. */
static int check_environment(void)
{
    int bad = 0;
    if (fp_control() != FP_DEFAULT) {
        printf("environment: FAILED, the floating-point control word is 0x%x, not 0x%x\n", fp_control(), FP_DEFAULT);
        bad = 1;
    }
    volatile float tiny = 0x1p-140f;
    float a[2] = {tiny, tiny}, one[2] = {1.0f, 1.0f}, kept = kernels_scalar.dot(a, one, 2);
    set_fp_control(FP_DEFAULT | FP_FLUSH);
    float flushed = kernels_scalar.dot(a, one, 2);
    set_fp_control(FP_DEFAULT);
    if (bits_of(&kept) == bits_of(&flushed)) {
        printf("environment: FAILED, flush-to-zero changes nothing here, so this program cannot tell whether it is "
               "set\n");
        bad = 1;
    }
    uint64_t hash = kernels_sleef_hash();
    if (hash != SLEEF_HASH) {
        printf("sleef: FAILED, its outputs hash to 0x%016" PRIx64 ", golden/sleef.h says 0x%016" PRIx64 "\n", hash,
               (uint64_t)SLEEF_HASH);
        bad = 1;
    }
    return bad;
}

static int report(void)
{
    int bad = 0;
    for (const struct kernels *const *k = kernel_tables; *k; k++) {
        int scalar = *k == &kernels_scalar; /* held against definitions, where there are some */
        if (!kernels_runs_here(*k)) {
            printf("skipped: %s%s%s (this CPU lacks it)\n", (*k)->name, (*k)->variant ? " " : "",
                   (*k)->variant ? (*k)->variant : "");
            continue;
        }
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            int count = failures[kernel][k - kernel_tables];
            if (!wanted((enum kernel)kernel) || (scalar && !count))
                continue;
            printf("%-8s%-8s%-23s%s", (*k)->name, (*k)->variant ? (*k)->variant : "", kernel_names[kernel],
                   count ? "FAILED" : "OK\n");
            if (count)
                printf(" (%d cases)\n", count);
            bad |= count != 0;
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    int timing = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick"))
            quick = 1;
        else if (!strcmp(argv[i], "--bench"))
            timing = 1;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--filter") && i + 1 < argc)
            filter = argv[++i];
        else {
            fprintf(stderr, "usage: checkasm [--seed N] [--filter PART-OF-A-NAME] [--quick] [--bench]\n");
            return 2;
        }
    }
    if (check_names())
        return 1;
    if (timing)
        return bench();
    if (!kernels_runs_here(&kernels_scalar)) {
        printf("checkasm: FAILED, this CPU lacks fused multiply-add (FMA)\n");
        return 1;
    }
    printf("checkasm: seed %" PRIu64 "\n", seed);
    rng_state = seed;
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGILL, crashed);
    int bad = check_no_holes() | check_table_names();
    if (bad)
        return bad;
    bad = check_environment();
    check_vector_kernels();
    check_matrix_kernels();
    check_every_code();
    check_bf16_kernels();
    check_quantized_kernels();
    check_index_kernels();
    if (fp_control() != FP_DEFAULT) {
        printf("environment: FAILED, a kernel left the floating-point control word at 0x%x\n", fp_control());
        bad = 1;
    }
    bad |= report();
    printf("checkasm: %s\n", bad ? "FAILED" : "every table has the bits of scalar");
    return bad;
}
