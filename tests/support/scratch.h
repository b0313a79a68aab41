/* tests/support/scratch.h -- working memory for tests that call kernels directly. */
#ifndef VB_TEST_SCRATCH_H
#define VB_TEST_SCRATCH_H

/* KERNEL_SCRATCH bytes, the same at each call. They start as NaN, so that a kernel that reads them before it writes them
 * gives wrong results. */
void *kernel_scratch(void);

#endif
