/* reference/blocks.c -- the quantised types of GGUF files, one number at a time, as ggml's structures say.
 *
 * A block is some numbers of a row, each an integer code; d, dmin and m are F16. Below e counts the numbers of a block,
 * g = e / 32, and |..| are the block's parts, in bytes:
 *
 *     Q8_0  |2 d|32 q|                         w = d q[e],  q signed
 *     Q4_0  |2 d|16 q|                         w = d (q - 8),  q: low half of byte e; from 16 on the high half of byte e - 16
 *     Q5_0  |2 d|4 h|16 q|                     w = d (q - 16),  bit e of h is the fifth
 *     Q5_1  |2 d|2 m|4 h|16 q|                 w = d q + m
 *     Q4_K  |2 d|2 dmin|12 s|128 q|            w = d sc q - dmin mn,  q: byte 32 (g / 2) + e % 32, the high half where g is odd
 *     Q5_K  |2 d|2 dmin|12 s|32 h|128 q|       the same; bit g of h[e % 32] is the fifth
 *     Q6_K  |128 q|64 h|16 sc|2 d|             w = d sc[e / 16] (q - 32),  sc signed; q: of each 128 numbers' 64 bytes one half
 *                                              of byte e % 64, the high one for the last 64; two more bits from h
 *
 * s packs the six bits of sc and mn of eight groups: of the first four in bytes g and g + 4; of the others the low four bits
 * side by side in byte g + 4, the high two on top of bytes g - 4 and g. */
#include "reference/weights.h"

#include <string.h>

struct number {
    double scale, minimum;
    int code;
};

static double f16_at(const uint8_t *at)
{
    uint16_t code;
    memcpy(&code, at, sizeof code);
    return ref_f16(code);
}

static int bit(const uint8_t *bytes, int i) { return bytes[i / 8] >> i % 8 & 1; }
static int half(uint8_t byte, int high) { return high ? byte >> 4 : byte & 15; }

static struct number with_six_bits(const uint8_t *block, int g, int code)
{
    const uint8_t *s = block + 4;
    int sc = g < 4 ? s[g] % 64 : s[g + 4] % 16 + s[g - 4] / 64 * 16;
    int mn = g < 4 ? s[g + 4] % 64 : s[g + 4] / 16 + s[g] / 64 * 16;
    return (struct number){f16_at(block) * sc, f16_at(block + 2) * mn, code};
}

static struct number q6_k(const uint8_t *block, int e)
{
    int part = e / 128, quarter = e % 128 / 32;
    int low = half(block[part * 64 + e % 64], quarter >= 2);
    int high = block[128 + part * 32 + e % 32] >> 2 * quarter & 3;
    return (struct number){f16_at(block + 208) * (int8_t)block[192 + e / 16], 0, 16 * high + low - 32};
}

static struct number number_of(enum dtype dtype, const uint8_t *block, int e)
{
    int g = e / 32, l = e % 32;
    switch (dtype) {
    case DTYPE_Q8_0: return (struct number){f16_at(block), 0, (int8_t)block[2 + e]};
    case DTYPE_Q4_0: return (struct number){f16_at(block), 0, half(block[2 + e % 16], e >= 16) - 8};
    case DTYPE_Q5_0: return (struct number){f16_at(block), 0, half(block[6 + e % 16], e >= 16) + 16 * bit(block + 2, e) - 16};
    case DTYPE_Q5_1:
        return (struct number){f16_at(block), -f16_at(block + 2), half(block[8 + e % 16], e >= 16) + 16 * bit(block + 4, e)};
    case DTYPE_Q4_K: return with_six_bits(block, g, half(block[16 + g / 2 * 32 + l], g % 2));
    case DTYPE_Q5_K: return with_six_bits(block, g, half(block[48 + g / 2 * 32 + l], g % 2) + 16 * (block[16 + l] >> g & 1));
    default: return q6_k(block, e);
    }
}

static struct number at(const struct tensor *t, size_t i)
{
    static const struct { size_t numbers, bytes; } sizes[] = {
        [DTYPE_Q8_0] = {32, 34},    [DTYPE_Q4_0] = {32, 18},    [DTYPE_Q5_0] = {32, 22},    [DTYPE_Q5_1] = {32, 24},
        [DTYPE_Q4_K] = {256, 144}, [DTYPE_Q5_K] = {256, 176}, [DTYPE_Q6_K] = {256, 210},
    };
    size_t numbers = sizes[t->dtype].numbers;
    return number_of(t->dtype, (const uint8_t *)t->data + i / numbers * sizes[t->dtype].bytes, (int)(i % numbers));
}

double ref_quantised(const struct tensor *t, size_t i)
{
    struct number n = at(t, i);
    return n.scale * n.code - n.minimum;
}

float ref_decoded(const struct tensor *t, size_t i)
{
    struct number n = at(t, i);
    return (float)(n.scale * n.code) - (float)n.minimum;
}
