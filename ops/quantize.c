#include "ops/quantize.h"
#include "ops/round.h"

#include "simd/decode.h"

#include <assert.h>
#include <math.h>

#define F16_INFINITE 0x477ff000 /* the f32 bits of 65520, halfway between the largest f16 number and the next power of
                                   two; from here on, numbers round to infinity */
#define F16_NORMAL 0x38800000   /* 2^-14 */

/* Rounds to nearest, ties to even. A number that is subnormal in f16 is rounded by adding 0.5: the last bit of the sum
 * is worth 2^-24, as in a subnormal f16 number. */
static uint16_t f32_to_f16(float f)
{
    uint32_t bits = f32_to_bits(f), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) /* NaN */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= F16_INFINITE)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < F16_NORMAL)
        return (uint16_t)(sign | (f32_to_bits(bits_to_f32(magnitude) + 0.5f) - f32_to_bits(0.5f)));
    return (uint16_t)(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10)));
}

static int store_scale(unsigned char *block, float d)
{
    uint16_t half = f32_to_f16(d);
    memcpy(block, &half, sizeof half);
    return (half & 0x7c00) == 0x7c00 ? -1 : 0;
}

/* Returns the bits of the largest |w| of a block. The bits of positive numbers are ordered like the numbers; infinity
 * and NaN are the largest. */
static uint32_t largest(const float *w)
{
    uint32_t m = 0;
    for (int i = 0; i < QUANTIZE_BLOCK; i++) {
        uint32_t magnitude = f32_to_bits(w[i]) & 0x7fffffff;
        m = magnitude > m ? magnitude : m;
    }
    return m;
}

static int is_finite(uint32_t magnitude) { return magnitude < 0x7f800000; }

static float inverse(float d)
{
    float id = d != 0.0f ? 1.0f / d : 0.0f;
    return isinf(id) ? 0.0f : id;
}

/* Rounds x with |x| < 2^31 to an integer, halves away from 0. The part that is cut off is computed exactly, so x is
 * rounded only once. */
static int round_away(float x)
{
    int q = (int)x;
    float rest = x - (float)q;
    return q + (rest >= 0.5f) - (rest <= -0.5f);
}

static int block_q8_0(unsigned char *block, const float *w)
{
    uint32_t m = largest(w);
    if (!is_finite(m))
        return -1;
    float d = bits_to_f32(m) / 127.0f, id = inverse(d);
    for (int i = 0; i < QUANTIZE_BLOCK; i++)
        block[2 + i] = (unsigned char)round_away(w[i] * id);
    return store_scale(block, d);
}

static int nibble(float w, float id)
{
    int q = (int)(w * id + 8.5f);
    return q < 15 ? q : 15;
}

static int block_q4_0(unsigned char *block, const float *w)
{
    uint32_t m = largest(w);
    size_t first = 0;
    if (!is_finite(m))
        return -1;
    while ((f32_to_bits(w[first]) & 0x7fffffff) != m)
        first++;
    float d = (m ? w[first] : 0.0f) / -8.0f, id = inverse(d); /* if all weights are zeros of either sign, d is -0, as in
                                                                 ggml */
    for (int i = 0; i < QUANTIZE_BLOCK / 2; i++)
        block[2 + i] = (unsigned char)(nibble(w[i], id) | nibble(w[QUANTIZE_BLOCK / 2 + i], id) << 4);
    return store_scale(block, d);
}

static int each_block(void *blocks, size_t bytes, const float *w, size_t K,
                      int (*quantize)(unsigned char *, const float *))
{
    int bad = 0;
    assert(K % QUANTIZE_BLOCK == 0);
    for (size_t i = 0; i < K / QUANTIZE_BLOCK; i++)
        bad |= quantize((unsigned char *)blocks + i * bytes, w + i * QUANTIZE_BLOCK);
    return bad;
}

int op_quantize_q8_0(void *blocks, const float *w, size_t K)
{
    return each_block(blocks, QUANTIZE_Q8_0_BYTES, w, K, block_q8_0);
}

int op_quantize_q4_0(void *blocks, const float *w, size_t K)
{
    return each_block(blocks, QUANTIZE_Q4_0_BYTES, w, K, block_q4_0);
}

void op_reorder_i4(unsigned char *codes, const unsigned char *i4)
{
    for (size_t l = 0; l < 16; l += 2) {
        unsigned low = i4[l / 2], high = i4[8 + l / 2];
        codes[l] = (unsigned char)((low & 15) | (high & 15) << 4);
        codes[l + 1] = (unsigned char)(low >> 4 | (high & 0xf0));
    }
}

void op_store_f16(void *numbers, const float *w, size_t K)
{
    for (size_t i = 0; i < K; i++) {
        uint16_t half = f32_to_f16(w[i]);
        memcpy((unsigned char *)numbers + i * sizeof half, &half, sizeof half);
    }
}

void op_store_bf16(void *numbers, const float *w, size_t K)
{
    float rounded[64];
    for (size_t done = 0, n; done < K; done += n) {
        n = K - done < 64 ? K - done : 64;
        op_round_bf16(rounded, w + done, n);
        for (size_t i = 0; i < n; i++) {
            uint16_t half = (uint16_t)(f32_to_bits(rounded[i]) >> 16);
            memcpy((unsigned char *)numbers + (done + i) * sizeof half, &half, sizeof half);
        }
    }
}
