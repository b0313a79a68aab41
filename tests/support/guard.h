/* tests/support/guard.h -- how to protect a page that the code under test must not touch.
 *
 * A processor does not read what the mask of a vector load leaves out, and our kernels end arrays with such loads. The
 * emulator qemu, up to version 7.2 at least, reads the whole vector. There the pages are readable, so that only writes to
 * them are noticed, and one line says so. */
#ifndef VB_TEST_GUARD_H
#define VB_TEST_GUARD_H

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>

static inline void guard_fault(int signal) { _exit(signal == SIGSEGV); }

__attribute__((target("avx"))) static inline float masked_load(const float *one)
{
    return _mm256_cvtss_f32(_mm256_maskload_ps(one, _mm256_setr_epi32(-1, 0, 0, 0, 0, 0, 0, 0)));
}

/* Tries it in a process of its own. */
static inline int masked_loads_read_everything(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int status = 0;
    if (!__builtin_cpu_supports("avx"))
        return 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        signal(SIGSEGV, guard_fault);
        if (p == MAP_FAILED || mprotect(p + page, page, PROT_NONE))
            _exit(0);
        _exit(masked_load((const float *)(const void *)(p + page) - 1) != 0.0f);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}
#else
static inline int masked_loads_read_everything(void) { return 0; }
#endif

/* The protection of such a page: PROT_NONE, or PROT_READ where PROT_NONE would prove nothing. */
static inline int guard_protection(void)
{
    static int protection = -1;
    if (protection < 0) {
        protection = masked_loads_read_everything() ? PROT_READ : PROT_NONE;
        if (protection == PROT_READ)
            printf("skipped: that nothing is read outside of an array: this emulator reads what the mask of a load leaves out\n");
    }
    return protection;
}

#endif
