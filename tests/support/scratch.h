/* tests/support/scratch.h -- working memory for tests that call kernels directly. */
#ifndef VB_TEST_SCRATCH_H
#define VB_TEST_SCRATCH_H

/* Returns KERNEL_SCRATCH bytes of memory; every call returns the same memory. It contains NaN at first, so that a
 * kernel gives wrong results if it reads a byte before it writes it. */
void *kernel_scratch(void);

#endif
