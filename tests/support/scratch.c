/* tests/support/scratch.c -- working memory for kernels. */
#include "tests/support/scratch.h"

#include "simd/kernels.h"

#include <string.h>

void *kernel_scratch(void)
{
    static _Alignas(64) char scratch[KERNEL_SCRATCH];
    static int filled;
    if (!filled)
        memset(scratch, 0xff, sizeof scratch);
    filled = 1;
    return scratch;
}
