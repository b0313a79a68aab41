/* reference/blocks.c -- decodes the quantised types of GGUF files, one number at a time. The layouts are those of ggml's
 * structs.
 *
 * A block encodes 32 numbers of a row, or 256 in the types whose names end in _K. q is the integer code of a number. d,
 * dmin and m are F16. Below, e is the index of a number in its block, g = e / 32, and |..| are the fields of a block,
 * with their sizes in bytes:
 *
 *     Q8_0  |2 d|32 q|                         w = d q[e],  q signed
 *     Q4_0  |2 d|16 q|                         w = d (q - 8)
 *     Q5_0  |2 d|4 h|16 q|                     w = d (q - 16);  bit e of h is the fifth bit of q
 *     Q5_1  |2 d|2 m|4 h|16 q|                 w = d q + m;  bit e of h is the fifth bit of q
 *     Q4_K  |2 d|2 dmin|12 s|128 q|            w = d sc q - dmin mn
 *     Q5_K  |2 d|2 dmin|12 s|32 h|128 q|       the same;  bit g of h[e % 32] is the fifth bit of q
 *     Q6_K  |128 q|64 h|16 sc|2 d|             w = d sc[e / 16] (q - 32),  sc signed
 *     MXFP4 |1 x|16 q|                         w = 2^(x - 128) e2m1(q)
 *
 * The low four bits of q are half of a byte of the field q. For Q4_0, Q5_0, Q5_1 and MXFP4 this is byte e % 16: the low half if
 * e < 16, else the high half. For Q4_K and Q5_K it is byte 32 (g / 2) + e % 32: the low half if g is even, else the high
 * half. For Q6_K it is byte 64 (e / 128) + e % 64: the low half if e % 128 < 64, else the high half. The two upper bits
 * of q in Q6_K are bits 2 (g % 4) and 2 (g % 4) + 1 of byte 32 (e / 128) + e % 32 of h.
 *
 * e2m1(q) is twice the number of the format E2M1 whose bits are q: bit 3 is its sign, bits 1 and 2 its exponent, bit 0 its
 * fraction.
 *
 * s holds sc and mn for eight groups, six bits each. For g < 4, sc is the low six bits of s[g], and mn is the low six
 * bits of s[g + 4]. For g >= 4, the low four bits of sc are the low half of s[g + 4], and its upper two bits are the
 * upper two bits of s[g - 4]. The low four bits of mn are the high half of s[g + 4], and its upper two bits are the
 * upper two bits of s[g]. */
#include "reference/weights.h"

#include <math.h>
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

/* twice the number: (1 + f/2) 2^(x-1), or f/2 if x is 0 */
static int e2m1(int code)
{
    int x = code / 2 % 4, f = code % 2, magnitude = x ? (2 + f) << (x - 1) : f;
    return code < 8 ? magnitude : -magnitude;
}

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
    case DTYPE_MXFP4: return (struct number){ldexp(1, block[0] - 128), 0, e2m1(half(block[1 + e % 16], e >= 16))};
    default: return q6_k(block, e);
    }
}

static struct number at(const struct tensor *t, size_t i)
{
    static const struct { size_t numbers, bytes; } sizes[] = {
        [DTYPE_Q8_0] = {32, 34},    [DTYPE_Q4_0] = {32, 18},    [DTYPE_Q5_0] = {32, 22},    [DTYPE_Q5_1] = {32, 24},
        [DTYPE_Q4_K] = {256, 144}, [DTYPE_Q5_K] = {256, 176}, [DTYPE_Q6_K] = {256, 210},
        [DTYPE_MXFP4] = {32, 17},
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
