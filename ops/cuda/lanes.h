/* ops/cuda/lanes.h -- the words in which kernels are written.
 *
 * The kernels (ops/cuda/X.cu) compile twice: with nvcc for a GPU, and with a C++ compiler for tests on the CPU. They
 * use only CUDA's words blockIdx, threadIdx, gridDim, __syncthreads, __syncwarp, __shfl_*_sync, __dp4a, __byte_perm and
 * __funnelshift_r, and the words below. For the CPU, tests/cuda/lanes.h defines all of these, and is included first.
 *
 * KERNEL(name) { ... }      defines a kernel. Its arguments are `a`, a struct name_args (ops/cuda/kernels.h).
 * DEVICE                    begins the definition of a function that kernels call.
 * SHARED(type, name, n);    declares an array that all threads of a block share. Its contents are undefined at first.
 * UNROLL                    before a loop: the compiler writes out all its steps, so that arrays can be registers.
 * ROLL                      before a loop: the compiler does not repeat its steps, so that fewer registers are needed.
 * read_once(p)              *p, which no kernel writes meanwhile, and which this thread block will hardly read again.
 *                           It is aligned.
 * half_to_float(bits)       an f16 number, exactly.
 * multiply_16_8_16(c, a, b) c [16,8] += a [16,16] b [16,8], where a and b are BF16 and c is f32, by a tensor core: in
 * an order, and with a precision, of its
 *                           own. Since sm_80. The lanes of a warp call it together, and have the matrices together.
 *                           Lane 4g + t has rows g and g + 8 of a and c, and column g of b. a: columns 2t, 2t + 1 of
 *                           row g, then of row g + 8, then 2t + 8, 2t + 9 of both. b: rows 2t, 2t + 1; 2t + 8, 2t + 9.
 *                           c: columns 2t, 2t + 1 of row g, then of row g + 8.
 * multiply_bytes_16_8_32    the same for signed bytes, exactly: c [16,8] += a [16,32] b [32,8], where c is int32. a:
 *                           columns 4t .. 4t + 3 of row g, then of row g + 8, then 4t + 16 .. 4t + 19 of both. b: rows
 *                           4t .. 4t + 3; 4t + 16 .. 4t + 19.
 *
 * Arithmetic is that of docs/ARITHMETIC.md. nvcc gets -fmad=false, -ftz=false, -prec-div=true and -prec-sqrt=true, so
 * `*`, `+`, `/` and sqrtf round once to nearest, keep subnormals, and are never merged. An fma is written as fmaf. */
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
DEVICE void multiply_16_8_16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
    __trap(); /* others do not get this far: device.tensor_cores */
#elif defined __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
DEVICE void multiply_bytes_16_8_32(int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
    __trap();
#elif defined __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
DEVICE uint4 read_once(const uint4 *p)
{
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
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
