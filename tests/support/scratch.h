/* tests/support/scratch.h -- the memory that a kernel works in, for tests that call kernels themselves. */
#ifndef VB_TEST_SCRATCH_H
#define VB_TEST_SCRATCH_H

#include "simd/kernels.h"

#include <string.h>

/* Its first content is NaN: a kernel that reads before it writes shows it. */
static inline void *kernel_scratch(void)
{
    static _Alignas(64) char scratch[KERNEL_SCRATCH];
    static int filled;
    if (!filled)
        memset(scratch, 0xff, sizeof scratch);
    filled = 1;
    return scratch;
}

#endif
