/* simd/fpenv.h -- sets and restores the floating-point environment.
 *
 * The program that calls the library may have set flush-to-zero, another rounding mode, or traps, which would change
 * the bits of results. So every public function and every worker thread enters the default environment first: round to
 * nearest even, subnormals kept, no traps. Before it returns, it restores the environment of its caller. */
#ifndef VB_FPENV_H
#define VB_FPENV_H

#include <stdint.h>

struct fpenv {
    uint64_t saved;
};

static inline struct fpenv fpenv_enter(void)
{
    struct fpenv e = {0};
#if defined(__x86_64__)
    e.saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(e.saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
#endif
    return e;
}

static inline void fpenv_leave(struct fpenv e)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)e.saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(e.saved));
#endif
    (void)e;
}

/* The CPU's pause instruction, for loops that wait for another thread. */
static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
