#include "ops/round.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

void op_round_bf16(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            bits |= 0x400000; /* NaN: keep the upper half */
        else
            bits += 0x7fff + (bits >> 16 & 1); /* half an ulp of bf16; a tie only when the kept part is odd */
        bits &= 0xffff0000;
        memcpy(&y[i], &bits, sizeof bits);
    }
}

void op_round_x(float *y, const float *x, size_t n)
{
    op_round_bf16(y, x, n);
    for (size_t i = 0; i < n; i++)
        y[i] = fabsf(y[i]) < 0x1p-56f ? 0.0f : y[i];
}
