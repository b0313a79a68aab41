/* ops/cuda/exp.cu -- exp of many numbers, by which tests compare a device with the CPU. */
#include "ops/cuda/expf.h"

KERNEL(exp_of_bits)
{
    for (size_t i = (size_t)blockIdx.x * THREADS_exp_of_bits + threadIdx.x; i < a.n;
         i += (size_t)gridDim.x * THREADS_exp_of_bits)
        a.y[i] = device_expf(float_of_bits(a.first + (uint32_t)i * a.step));
}
