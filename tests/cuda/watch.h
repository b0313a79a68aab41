/* tests/cuda/watch.h -- looks at every access of a kernel to memory, when the emulator (tests/cuda/emulator.h) runs it.
 *
 * Kernels that are watched are compiled with -fsanitize=thread: the compiler then calls a function before each access.
 * These functions are not those of a sanitizer, but our own (tests/cuda/watch.cc). They end the program if a thread
 *
 *   - touches memory that is neither the device's, nor shared, nor its own: the CPU's memory, or what is before or
 *     behind an array of the device;
 *   - reads shared memory that no thread of its block has written;
 *   - reads or writes what another thread of the same launch writes, or writes what another thread reads, and no
 *     barrier is between the two. Only __syncthreads is a barrier for threads of different warps. __syncwarp is one for
 *     the lanes of a warp, and a shuffle is none. Between threads of different blocks there is no barrier;
 *   - reads by read_once what any thread of the same launch writes.
 *
 * So a missing barrier is found even if no order of threads that the emulator tries gives another result. */
#ifndef VB_TEST_CUDA_WATCH_H
#define VB_TEST_CUDA_WATCH_H

#include <stddef.h>

/* The emulator tells what happens. Programs whose kernels are not watched do not have these functions. */
#define WATCH extern "C" __attribute__((weak))
WATCH void watch_allocated(const void *at, size_t bytes); /* kernels may read up to the next multiple of 16 bytes */
WATCH void watch_released(const void *at);
/* A launch begins. Its threads may read the arguments, and use the stacks. */
WATCH void watch_launch(const void *arguments, size_t bytes, const void *stacks, size_t stack_bytes);
WATCH void watch_block(void);            /* a block begins */
WATCH void watch_thread(unsigned thread); /* the thread that runs from now on, in its block */
WATCH void watch_block_barrier(void);    /* all threads of the block have met */
WATCH void watch_warp_barrier(unsigned warp);
/* A kernel reads by read_once. */
WATCH void watch_read_once(const void *at, size_t bytes);

#endif
