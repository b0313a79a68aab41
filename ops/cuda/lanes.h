/* ops/cuda/lanes.h -- the words in which kernels are written.
 *
 * The kernels (ops/cuda/X.cu) compile twice: with nvcc for a GPU, and with a C++ compiler for tests on the CPU. They use only
 * CUDA's words blockIdx, threadIdx, gridDim, __syncthreads, __syncwarp and __shfl_*_sync, and the words below. For the CPU,
 * tests/cuda/lanes.h defines all of these, and is included first.
 *
 * KERNEL(name) { ... }      defines a kernel. Its arguments are `a`, a struct name_args (ops/cuda/kernels.h).
 * DEVICE                    begins the definition of a function that kernels call.
 * SHARED(type, name, n);    declares an array that all threads of a block share. Its contents are undefined at first.
 *
 * Arithmetic is that of docs/ARITHMETIC.md. nvcc gets -fmad=false, -ftz=false, -prec-div=true and -prec-sqrt=true, so `*`, `+`,
 * `/` and sqrtf round once to nearest, keep subnormals, and are never merged. An fma is written as fmaf. */
#ifndef VB_CUDA_LANES_H
#define VB_CUDA_LANES_H

#include "ops/cuda/kernels.h"

#ifdef __CUDACC__
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS_##name) name(const struct name##_args a)
#define DEVICE static __device__ __forceinline__
#define SHARED(type, name, n) __shared__ type name[n]
#define bits_of_float(x) __float_as_uint(x)
#define float_of_bits(x) __uint_as_float(x)
#endif

/* The number of this thread in its warp. */
DEVICE unsigned lane_of_warp(void) { return threadIdx.x % 32; }

#define ALL_LANES 0xffffffffu

#endif
