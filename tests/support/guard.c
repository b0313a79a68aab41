/* tests/support/guard.c -- finds out whether masked loads read elements that their mask leaves out. */
#include "tests/support/guard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>

static void guard_fault(int signal) { _exit(signal == SIGSEGV); }

__attribute__((target("avx"))) static float masked_load(const float *one)
{
    return _mm256_cvtss_f32(_mm256_maskload_ps(one, _mm256_setr_epi32(-1, 0, 0, 0, 0, 0, 0, 0)));
}

/* Tries a masked load beside an unreadable page, in a child process. */
static int masked_loads_read_everything(void)
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
static int masked_loads_read_everything(void) { return 0; }
#endif

int guard_protection(void)
{
    static int protection = -1;
    if (protection < 0) {
        protection = masked_loads_read_everything() ? PROT_READ : PROT_NONE;
        if (protection == PROT_READ)
            printf("skipped: that nothing is read outside of an array: this emulator reads what the mask of a load "
                   "leaves out\n");
    }
    return protection;
}
