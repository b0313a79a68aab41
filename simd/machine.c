#include "simd/machine.h"

#include <string.h>

#define TWELVE(one) \
    one("0") one("1") one("2") one("3") one("4") one("5") one("6") one("7") one("8") one("9") one("10") one("11")

uint64_t machine_read(const void *data, size_t bytes)
{
    const uint64_t *p = data;
    size_t quarter = bytes / 8 / 4;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < quarter; i += 8) {
        for (size_t s = 0; s < 4; s++)
            __builtin_prefetch(p + s * quarter + i + 256);
        for (size_t s = 0; s < 4; s++) {
            const uint64_t *q = p + s * quarter + i;
            a += q[0] + q[1];
            b += q[2] + q[3];
            c += q[4] + q[5];
            d += q[6] + q[7];
        }
    }
    return a + b + c + d;
}

#if defined(__x86_64__)

#define CLOBBERS \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
        "xmm13", "xmm14"
#define ZMM(i) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" i "\n\t"
#define YMM(i) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" i "\n\t"
#define XMM(i) "vfmadd231ss %%xmm12, %%xmm13, %%xmm" i "\n\t"
#define DOTS(i) "vpdpbusd %%zmm12, %%zmm13, %%zmm" i "\n\t"
#define WORDS(i) "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n\tvpaddd %%ymm14, %%ymm" i ", %%ymm" i "\n\t"
#define BYTES(i) "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\tvpaddw %%ymm14, %%ymm" i ", %%ymm" i "\n\t"
#define CLEAR(i) "vpxor %%xmm" i ", %%xmm" i ", %%xmm" i "\n\t"
#define PAIRS(i) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" i "\n\t"

/* Sets all registers of the loops below to ordinary numbers. Subnormals, which other code may have left there, would
 * make an fma a hundred times slower. */
static void clear_registers(size_t lanes)
{
    const float one = 1.0f;
    __asm__ volatile(TWELVE(CLEAR) : : : CLOBBERS);
    if (lanes == 16)
        __asm__ volatile("vbroadcastss %0, %%zmm12\n\tvbroadcastss %0, %%zmm13" : : "m"(one) : CLOBBERS);
    else
        __asm__ volatile("vbroadcastss %0, %%ymm12\n\tvbroadcastss %0, %%ymm13" : : "m"(one) : CLOBBERS);
}

double machine_fma(const char *isa, size_t steps)
{
    size_t lanes = !strcmp(isa, "avx512") ? 16 : !strcmp(isa, "avx2") ? 8 : 1;
    clear_registers(lanes);
    for (size_t i = 0; i < steps; i++)
        if (lanes == 16)
            __asm__ volatile(TWELVE(ZMM) : : : CLOBBERS);
        else if (lanes == 8)
            __asm__ volatile(TWELVE(YMM) : : : CLOBBERS);
        else
            __asm__ volatile(TWELVE(XMM) : : : CLOBBERS);
    if (lanes > 1)
        __asm__ volatile("vzeroupper" : : : CLOBBERS);
    return 2.0 * 12.0 * (double)(lanes * steps);
}

#include <cpuid.h>

double machine_bf16(size_t steps)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f") || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1))
        return 0;
    clear_registers(16);
    for (size_t i = 0; i < steps; i++)
        __asm__ volatile(TWELVE(PAIRS) : : : CLOBBERS);
    __asm__ volatile("vzeroupper" : : : CLOBBERS);
    return 2.0 * 2.0 * 12.0 * 16.0 * (double)steps;
}

double machine_integers(const char *isa, int bits, size_t steps)
{
    int vnni = !strcmp(isa, "avx512") && __builtin_cpu_supports("avx512vnni");
    if (!vnni && strcmp(isa, "avx512") && strcmp(isa, "avx2"))
        return 0;
    for (size_t i = 0; i < steps; i++)
        if (vnni)
            __asm__ volatile(TWELVE(DOTS) : : : CLOBBERS);
        else if (bits == 8)
            __asm__ volatile(TWELVE(WORDS) : : : CLOBBERS);
        else
            __asm__ volatile(TWELVE(BYTES) : : : CLOBBERS);
    __asm__ volatile("vzeroupper" : : : CLOBBERS);
    return 2.0 * 12.0 * (vnni ? 64.0 : bits == 8 ? 16.0 : 32.0) * (double)steps;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

#define CLOBBERS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11"
#define QUAD(i) "fmla v" i ".4s, v12.4s, v13.4s\n\t"
#define BYTES(i) ".inst 0x4e8d9580 + " i "\n\t" /* sdot v<i>.4s, v12.16b, v13.16b: the assembler is told of no
                                                   ARMv8.2 */
#define CLEAR(i) "movi v" i ".4s, #0\n\t"
#define MATRICES(i) ".inst 0x4e8da580 + " i "\n\t" /* smmla v<i>.4s, v12.16b, v13.16b */

double machine_fma(const char *isa, size_t steps)
{
    (void)isa;
    __asm__ volatile(TWELVE(CLEAR) CLEAR("12") CLEAR("13") : : : CLOBBERS, "v12", "v13"); /* not subnormals that other
                                                                                             code left */
    for (size_t i = 0; i < steps; i++)
        __asm__ volatile(TWELVE(QUAD) : : : CLOBBERS);
    return 2.0 * 12.0 * 4.0 * (double)steps;
}

double machine_bf16(size_t steps)
{
    (void)steps;
    return 0;
}

double machine_integers(const char *isa, int bits, size_t steps)
{
    int matrices = getauxval(AT_HWCAP2) >> 13 & 1; /* HWCAP2_I8MM */
    (void)bits;
    if (strcmp(isa, "neon") || !(getauxval(AT_HWCAP) >> 20 & 1)) /* HWCAP_ASIMDDP */
        return 0;
    for (size_t i = 0; i < steps; i++)
        if (matrices)
            __asm__ volatile(TWELVE(MATRICES) : : : CLOBBERS);
        else
            __asm__ volatile(TWELVE(BYTES) : : : CLOBBERS);
    return 2.0 * 12.0 * (matrices ? 32.0 : 16.0) * (double)steps;
}

#else

double machine_fma(const char *isa, size_t steps) { return (void)isa, (void)steps, 0; }
double machine_bf16(size_t steps) { return (void)steps, 0; }
double machine_integers(const char *isa, int bits, size_t steps) { return (void)isa, (void)bits, (void)steps, 0; }

#endif
