/* tests/cuda/lanes.h -- the words of ops/cuda/lanes.h for the CPU. This header is included before the source of a
 * kernel. See tests/cuda/emulator.h. */
#ifndef VB_TEST_CUDA_LANES_H
#define VB_TEST_CUDA_LANES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct lanes_index {
    unsigned x, y, z;
};
extern struct lanes_index threadIdx, blockIdx, gridDim;

/* A thread that calls one of these waits until all threads of its block, or all of `mask` in its warp, have called
 * it. */
void lanes_block_barrier(void);
void lanes_warp_barrier(unsigned mask);
/* Returns what lane `from` of the warp passed as `bits`. Every lane in `mask` calls this together. */
uint64_t lanes_exchange(unsigned mask, uint64_t bits, unsigned from);

/* What all lanes pass: the array has their 32 numbers, until this lane meets the others again. */
const uint64_t *lanes_gather(uint64_t bits);

#define __syncthreads() lanes_block_barrier()
static inline void __syncwarp(unsigned mask = 0xffffffffu) { lanes_warp_barrier(mask); }

template <class T> static inline T lanes_shuffle(unsigned mask, T value, unsigned from)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a lane exchanges at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = lanes_exchange(mask, bits, from);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from)
{
    return lanes_shuffle(mask, value, (unsigned)from % 32);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int with)
{
    return lanes_shuffle(mask, value, (threadIdx.x % 32) ^ (unsigned)with);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by)
{
    unsigned lane = threadIdx.x % 32;
    return lanes_shuffle(mask, value, lane + by < 32 ? lane + by : lane);
}

#define KERNEL(name)                                                                    \
    static void lanes_##name(const struct name##_args &a);                              \
    extern "C" void kernel_##name(const void *args) { lanes_##name(*(const struct name##_args *)args); } \
    static void lanes_##name(const struct name##_args &a)
#define DEVICE static inline
#define UNROLL
#define ROLL
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
/* One block runs at a time. The emulator fills the section with garbage before each block. */
#define SHARED(type, name, n) static type name[n] __attribute__((section("lanes_shared")))

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}


/* Aborts if the address is not aligned, as a device would, or if kernels that are watched (tests/cuda/watch.h) must not
 * read there. */
void lanes_check_read_once(const void *p, size_t bytes);
template <class T> static inline T read_once(const T *p)
{
    lanes_check_read_once(p, sizeof(T));
    return *p;
}
static inline float half_to_float(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float f = exponent == 31 ? (fraction ? NAN : INFINITY)
              : exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
              : ldexpf((float)fraction, -24);
    return bits >> 15 ? -f : f;
}

/* c + the dot product of two vectors of four signed bytes */
static inline int32_t __dp4a(int32_t a, int32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
static inline float lanes_bf16(uint64_t pair, unsigned i)
{
    return float_of_bits((uint32_t)(pair >> 16 * i) << 16);
}
/* The words of a and b of all lanes. */
struct lanes_operands {
    uint64_t a[2][32], b[32];
};
static inline void lanes_operands_gather(struct lanes_operands *o, const uint32_t a[4], const uint32_t b[2])
{
    memcpy(o->a[0], lanes_gather(a[0] | (uint64_t)a[1] << 32), sizeof o->a[0]);
    memcpy(o->a[1], lanes_gather(a[2] | (uint64_t)a[3] << 32), sizeof o->a[1]);
    memcpy(o->b, lanes_gather(b[0] | (uint64_t)b[1] << 32), sizeof o->b);
}
/* One of the orders in which a tensor core might add: ascending, each sum rounded. */
static inline void multiply_16_8_16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    struct lanes_operands o;
    lanes_operands_gather(&o, a, b);
    for (unsigned k = 0; k < 16; k++)
        for (unsigned r = 0; r < 4; r++) {
            unsigned lane = k % 8 / 2;
            c[r] = fmaf(lanes_bf16(o.a[k / 8][4 * g + lane], r / 2 * 2 + k % 2),
                        lanes_bf16(o.b[4 * (2 * t + r % 2) + lane], k / 8 * 2 + k % 2), c[r]);
        }
}
static inline void multiply_bytes_16_8_32(int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
    unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    struct lanes_operands o;
    lanes_operands_gather(&o, a, b);
    for (unsigned k = 0; k < 32; k++)
        for (unsigned r = 0; r < 4; r++) {
            unsigned lane = k % 16 / 4;                                           /* whose words have column k of a and
                                                                                     row k of b */
            unsigned in_a = r / 2 * 4 + k % 4, in_b = k / 16 * 4 + k % 4; /* which byte of the two words */
            c[r] += (int8_t)(o.a[k / 16][4 * g + lane] >> 8 * in_a) *
                    (int8_t)(o.b[4 * (2 * t + r % 2) + lane] >> 8 * in_b);
        }
}
/* Each nibble of `which` chooses one of the eight bytes of low and high. */
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which)
{
    uint64_t bytes = low | (uint64_t)high << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(bytes >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)((low | (uint64_t)high << 32) >> by % 32);
}

#endif
