/* simd/machine.h -- what the machine can do at most: work to be timed beside ours. Whoever calls holds the clock. */
#ifndef VB_MACHINE_H
#define VB_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Reads every byte, four streams at a time, and returns a sum, which proves it. bytes is a multiple of 256. */
uint64_t machine_read(const void *data, size_t bytes);

/* `steps` times twelve independent fmas of the widest registers that the table `isa` uses. Returns the floating-point
 * operations done (an fma is two), 0 on a machine it does not know. */
double machine_fma(const char *isa, size_t steps);

/* The same for AVX512-BF16's pairs of products; 0 where the CPU lacks it. */
double machine_bf16(size_t steps);

/* The same for sums of products of bytes: AVX512-VNNI's or AVX-VNNI's vpdpbusd, Arm's sdot. 0 where the CPU lacks them. */
double machine_int8(size_t steps);

#endif
