#include "ops/round.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ops/op.h"
#include "simd/decode.h"

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

void op_round(const struct op_ctx *cx, float *y, const float *x, size_t n)
{
    (void)cx;
    op_round_bf16(y, x, n);
}

void op_round_x(float *y, const float *x, size_t n)
{
    op_round_bf16(y, x, n);
    for (size_t i = 0; i < n; i++)
        y[i] = fabsf(y[i]) < 0x1p-56f ? 0.0f : y[i];
}

/* Returns 2^ceil(log2(x)) for a normal x. */
static float power_of_two_from(float x) { return bits_to_f32((f32_to_bits(x) + 0x7fffff) & 0xff800000); }

float op_encode_e4m3(uint8_t *code, const float *x, size_t n)
{
    float most = 1e-4f, zero = 0.0f;
    for (size_t i = 0; i < n; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        zero += x[i] * 0.0f;
    }
    if (zero != 0.0f) { /* a number is not finite */
        memset(code, 0x7f, n);
        return 1.0f;
    }
    float s = power_of_two_from(most * (1.0f / 448.0f));
    for (size_t i = 0; i < n; i++) {
        float scaled = x[i] / s;
        scaled = scaled > 448.0f ? 448.0f : scaled;
        code[i] = f32_to_e4m3(scaled < -448.0f ? -448.0f : scaled);
    }
    return s;
}

void op_round_e4m3(float *x, size_t n)
{
    uint8_t code[128];
    float s = op_encode_e4m3(code, x, n);
    for (size_t i = 0; i < n; i++)
        x[i] = e4m3_to_f32(code[i]) * s;
}
