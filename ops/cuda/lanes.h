/* ops/cuda/lanes.h -- the words in which kernels are written.
 *
 * The kernels (ops/cuda/X.cu) compile twice: with nvcc for a GPU, and with a C++ compiler for tests on the CPU. They use only
 * CUDA's words blockIdx, threadIdx, gridDim, __syncthreads, __syncwarp, __shfl_*_sync, __dp4a, __byte_perm and __funnelshift_r, and the words
 * below. For the CPU, tests/cuda/lanes.h defines all of these, and is included first.
 *
 * KERNEL(name) { ... }      defines a kernel. Its arguments are `a`, a struct name_args (ops/cuda/kernels.h).
 * DEVICE                    begins the definition of a function that kernels call.
 * SHARED(type, name, n);    declares an array that all threads of a block share. Its contents are undefined at first.
 * UNROLL                    before a loop: the compiler writes out all its steps, so that arrays can be registers.
 * ROLL                      before a loop: the compiler does not repeat its steps, so that fewer registers are needed.
 * read_once(p)              *p, which no kernel writes meanwhile, and which this thread block will hardly read again. It is aligned.
 * half_to_float(bits)       an f16 number, exactly.
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
#define UNROLL _Pragma("unroll")
#define ROLL _Pragma("unroll 1")
#define bits_of_float(x) __float_as_uint(x)
#define float_of_bits(x) __uint_as_float(x)
DEVICE float half_to_float(uint16_t bits)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}
DEVICE uint4 read_once(const uint4 *p)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE uint2 read_once(const uint2 *p)
{
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE uint32_t read_once(const uint32_t *p)
{
    uint32_t v;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE uint16_t read_once(const uint16_t *p)
{
    uint16_t v;
    asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
#endif

/* The number of this thread in its warp. */
DEVICE unsigned lane_of_warp(void) { return threadIdx.x % 32; }

#define ALL_LANES 0xffffffffu

#endif
