/* tests/cuda/emulator.h -- a device (ops/cuda/device.h) that computes on the CPU, for tests.
 *
 * Each thread of a block is a fiber: a stack of its own, on one thread of the operating system. A fiber runs until it
 * ends, or waits at a barrier; then the next one runs. The blocks of a launch run one after the other. The order of
 * blocks, of the warps of a block, and of the lanes of a warp is ascending, descending, or random with a seed. If a
 * barrier is missing in a kernel, then some orders give other results than others, and the tests see it.
 *
 * Shared memory contains garbage, or what earlier blocks left, when a block begins. Memory of the device contains
 * garbage when it is allocated, and an inaccessible page follows it. A kernel that crashes, or whose threads wait for
 * each other in vain, ends the program with a message that names the kernel, the block and the thread. No handler that
 * a test framework has set is called.
 *
 * What this cannot show: what nvcc makes of a kernel, and how threads of a real device see each other's writes without
 * a barrier. */
#ifndef VB_TEST_CUDA_EMULATOR_H
#define VB_TEST_CUDA_EMULATOR_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/cuda/device.h"

enum emulator_order { EMULATOR_ASCENDING, EMULATOR_DESCENDING, EMULATOR_RANDOM };

/* Opens an emulated device with `bytes` of memory. The caller closes it with device_close. Returns NULL if there is no
 * memory. */
struct device *emulator_open(size_t bytes);
/* Sets the order of blocks and lanes for all later launches. `seed` counts for EMULATOR_RANDOM only. */
void emulator_order(struct device *d, enum emulator_order order, uint64_t seed);
/* Returns how many kernels were launched since the device was opened. */
size_t emulator_launches(const struct device *d);
/* Returns how many recordings were replayed. */
size_t emulator_replays(const struct device *d);

#ifdef __cplusplus
}
#endif
#endif
