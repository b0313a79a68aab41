/* simd/machine.h -- loops that show the machine's peak memory bandwidth and peak arithmetic speed when they are timed.
 *
 * `verbatim bench` compares these peaks with the speed of the engine. The caller measures the time that a function
 * takes. */
#ifndef VB_MACHINE_H
#define VB_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Reads all bytes, as four streams side by side. Returns a sum of the data, so that the compiler cannot remove the
 * reads. bytes is a multiple of 256. */
uint64_t machine_read(const void *data, size_t bytes);

/* Runs a loop of `steps` rounds with twelve independent fmas in each round. The fmas use the widest registers that the
 * kernels named `isa` use. Returns the number of floating-point operations (an fma counts as two), or 0 on an unknown
 * architecture. */
double machine_fma(const char *isa, size_t steps);

/* Does what machine_fma does, with the AVX512-BF16 instruction that adds two products (vdpbf16ps). Returns 0 if the
 * CPU lacks this instruction. */
double machine_bf16(size_t steps);

/* Does what machine_fma does, with the instructions by which the kernels named `isa` add products of integer codes of
 * `bits` bits, 8 or 4, with x: vpdpbusd (avx512 with VNNI), sdot (Arm); on avx2 and on avx512 without VNNI vpmaddwd and
 * vpaddd (8 bits) or vpmaddubsw and vpaddw (4 bits). Returns 0 for other kernels. */
double machine_integers(const char *isa, int bits, size_t steps);

#endif
