/* simd/select.c -- which tables this program has and this CPU can run; the scalar functions of SLEEF. */
#include "simd/kernels.h"
#include "numbers/numbers.h"

#include <math.h>
#include <string.h>

extern const struct kernels kernels_scalar;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512, kernels_avx512_vnni, kernels_avx512_bf16;
const struct kernels *const kernel_tables[] = {&kernels_avx512_bf16, &kernels_avx512_vnni, &kernels_avx512,
                                               &kernels_avx2, &kernels_scalar, NULL};
#elif defined(__aarch64__)
extern const struct kernels kernels_neon, kernels_neon_dotprod, kernels_neon_i8mm;
const struct kernels *const kernel_tables[] = {&kernels_neon_i8mm, &kernels_neon_dotprod, &kernels_neon,
                                               &kernels_scalar, NULL};
#else
const struct kernels *const kernel_tables[] = {&kernels_scalar, NULL};
#endif

_Static_assert(sizeof kernel_tables / sizeof *kernel_tables <= MOST_KERNEL_TABLES + 1, "kernels.h promises too little");

#if defined(__x86_64__)
#include <cpuid.h>

/* clang 14's __builtin_cpu_supports does not know the name */
static int cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int cpu_has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 5);
}

static int cpu_has_avx512_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1 << 11);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static int cpu_has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */ }
static int cpu_has_i8mm(void) { return cpu_has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1); /* HWCAP2_I8MM */ }
#endif

static int cpu_has_fma(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("fma") != 0;
#else
    return 1;
#endif
}

/* SLEEF's functions want hardware fma on x86, so the scalar table does too. */
int kernels_runs_here(const struct kernels *k)
{
    if (!cpu_has_fma())
        return 0;
#if defined(__x86_64__)
    if (!strcmp(k->name, "avx2"))
        return __builtin_cpu_supports("avx2") && cpu_has_f16c();
    if (!strcmp(k->name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               (!k->variant || cpu_has_avx512_vnni()) &&
               (!k->variant || strcmp(k->variant, "bf16") || cpu_has_avx512_bf16());
#elif defined(__aarch64__)
    if (!strcmp(k->name, "neon"))
        return !k->variant || (strcmp(k->variant, "i8mm") ? cpu_has_dotprod() : cpu_has_i8mm());
#endif
    return k == &kernels_scalar;
}

static int is_instruction_set(const char *name)
{
    size_t n = strlen(name), length;
    for (const char *at = INSTRUCTION_SETS; *at; at += length + strspn(at + length, ", ")) {
        length = strcspn(at, ",");
        if (length == n && !strncmp(at, name, n))
            return 1;
    }
    return 0;
}

const struct kernels *kernels_select(const char *name, int *known)
{
    int best = !name || !strcmp(name, "best");
    if (known)
        *known = best || is_instruction_set(name);
    for (const struct kernels *const *k = kernel_tables; *k; k++)
        if ((best || !strcmp((*k)->name, name)) && kernels_runs_here(*k))
            return *k;
    return NULL;
}

double Sleef_finz_sind1_u10purecfma(double);
double Sleef_finz_cosd1_u10purecfma(double);
double Sleef_finz_logd1_u10purecfma(double);
double Sleef_finz_powd1_u10purecfma(double, double);
float Sleef_finz_expf1_u10purecfma(float);

double kernel_sin(double x) { return Sleef_finz_sind1_u10purecfma(x); }
double kernel_cos(double x) { return Sleef_finz_cosd1_u10purecfma(x); }
double kernel_log(double x) { return cpu_has_fma() ? Sleef_finz_logd1_u10purecfma(x) : log(x); }
double kernel_pow(double x, double y) { return Sleef_finz_powd1_u10purecfma(x, y); }
float kernel_expf(float x) { return Sleef_finz_expf1_u10purecfma(x); }

/* Arguments as the engine uses them: exp over all exponents, angles to a few hundred thousand, log of ratios, powers
 * with negative exponents between 0 and 1. NaN is written as one value: its payload is not part of the contract. */
uint64_t kernels_sleef_hash(void)
{
    uint64_t h = FNV1A_START;
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits = i << 16 | i;
        float f, e;
        memcpy(&f, &bits, sizeof f);
        e = kernel_expf(f);
        if (e != e)
            memcpy(&e, &(uint32_t){0x7fc00000}, sizeof e);
        double x = (double)i * 3.0517578125, u = ((double)i + 1.0) / 65536.0;
        double d[4] = {kernel_sin(x), kernel_cos(x), kernel_log(u * 128.0), kernel_pow(10000.0, -u)};
        h = fnv1a_bytes(fnv1a_bytes(h, &e, sizeof e), d, sizeof d);
    }
    return h;
}
