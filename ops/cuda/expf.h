/* ops/cuda/expf.h -- exp (rule 5 of docs/ARITHMETIC.md) for kernels, with the bits of kernel_expf.
 *
 * This is the method of SLEEF's function expf (u10) in its version with fma, which the CPU calls. The constants are
 * those of SLEEF 3.5.1. x is q ln2 + s with an integer q; exp(s) is 1 + s + s^2 P(s), where P is a polynomial of degree
 * 5; and exp(x) is 2^q exp(s). The test checkcuda_exp compares it with the CPU. */
#ifndef VB_CUDA_EXPF_H
#define VB_CUDA_EXPF_H

#include "ops/cuda/lanes.h"

/* Returns 2^n for -126 <= n <= 127. */
DEVICE float power_of_two(int n) { return float_of_bits((uint32_t)(n + 127) << 23); }

DEVICE float device_expf(float x)
{
    if (!(x >= -104.0f)) /* or x is NaN */
        return x < -104.0f ? 0.0f : x;
    if (x > 100.0f)
        return float_of_bits(0x7f800000);
    float rounded = rintf(x * 1.442695040888963407f), s;
    int q = (int)rounded;
    s = fmaf(rounded, -0.693145751953125f, x); /* ln 2 has two parts, so that s has no error of q ln 2 */
    s = fmaf(rounded, -1.428606765330187045e-06f, s);
    float p = 0.000198527617612853646278381f;
    p = fmaf(p, s, 0.00139304355252534151077271f);
    p = fmaf(p, s, 0.00833336077630519866943359f);
    p = fmaf(p, s, 0.0416664853692054748535156f);
    p = fmaf(p, s, 0.166666671633720397949219f);
    p = fmaf(p, s, 0.5f);
    float e = 1.0f + fmaf(s * s, p, s);
    return e * power_of_two(q >> 1) * power_of_two(q - (q >> 1)); /* 2^q alone may be too large or too small for f32 */
}

#endif
