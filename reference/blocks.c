/* reference/blocks.c -- decodes the quantized types of GGUF files, one number at a time. The layouts are those of
 * ggml's structs.
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
 *     NVFP4 |4 x|32 q|                         w = (u t) e2m1(q); u is half of the E4M3 number x[e / 16] without its
 *                                              sign, 0 if x is 127
 *     Q4_1  |2 d|2 m|16 q|                     w = d q + m
 *     IQ4_NL |2 d|16 q|                        w = d iq4[q]
 *     IQ4_XS |2 d|2 sh|4 sl|128 q|             w = d (sc - 32) iq4[q]
 *     Q3_K  |32 h|64 q|12 s|2 d|               w = d (sc - 32) (q - 4)
 *     Q2_K  |16 s|64 q|2 d|2 dmin|             w = d sc q - dmin mn
 *     TQ1_0 |52 q|2 d|                         w = d (t - 1), t a digit of 0..2
 *     TQ2_0 |64 q|2 d|                         w = d (q - 1), q bits 2 (g % 4) and 2 (g % 4) + 1 of byte 32 (e / 128) +
 *                                              e % 32
 *
 * The IQ types store eight numbers (IQ3: four) as the number i of a row of a grid. In IQ2 and IQ3, the numbers of a
 * grid are magnitudes v, and a bit of `s` is 1 for minus; in IQ1 they are -1, 0 or 1, and `a` is 1 or -1:
 *
 *     IQ2_XXS |2 d|8 (4 i|4 sx)|                 w = d (x + 1/2) / 4 v         d, x, v are numbers of their formulas
 *     IQ2_XS  |2 d|64 is|8 x|                    w = d (x + 1/2) / 4 v
 *     IQ2_S   |2 d|32 i|32 s|8 h|8 x|            w = d (x + 1/2) / 4 v
 *     IQ3_XXS |2 d|64 i|8 (4 sx)|                w = d (x + 1/2) / 2 v
 *     IQ3_S   |2 d|64 i|8 h|32 s|4 x|            w = d (2 x + 1) v
 *     IQ1_S   |2 d|32 i|16 hxa|                  w = d (2 x + 1) (v + a / 8)
 *     IQ1_M   |32 i|16 ha|8 dx|                  w = d (2 x + 1) (v + a / 8)
 *
 * The low four bits of q are half of a byte of the field q. For Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4 this is byte e
 * % 16: the low half if e < 16, else the high half. For Q4_K and Q5_K it is byte 32 (g / 2) + e % 32: the low half if g
 * is even, else the high half. For Q6_K it is byte 64 (e / 128) + e % 64: the low half if e % 128 < 64, else the high
 * half. The two upper bits of q in Q6_K are bits 2 (g % 4) and 2 (g % 4) + 1 of byte 32 (e / 128) + e % 32 of h.
 *
 * e2m1(q) is twice the number of the format E2M1 whose bits are q: bit 3 is its sign, bits 1 and 2 its exponent, bit 0
 * its fraction.
 *
 * In IQ4_XS this is byte 16 g + e % 16, the low half if e % 32 < 16. sc has six bits: its low four are half g % 2 of
 * sl[g / 2], and its upper two are bits 2 g and 2 g + 1 of sh.
 *
 * In Q2_K and Q3_K the low two bits of q are bits 2 (g % 4) and 2 (g % 4) + 1 of byte 32 (g / 4) + e % 32 of the field
 * q. In Q3_K, bit g of h[e % 32] is the third bit of q. Let i be e / 16. In Q2_K the low half of s[i] is sc, and the
 *    high half is
 * mn. In Q3_K the low four bits of sc are half i / 8 of s[i % 8], and the upper two are bits 2 (i / 4) and 2 (i / 4) +
 * 1 of s[8 + i % 4].
 *
 * In Q4_K and Q5_K s holds sc and mn for eight groups, six bits each. For g < 4, sc is the low six bits of s[g], and mn
 * is the low six bits of s[g + 4]. For g >= 4, the low four bits of sc are the low half of s[g + 4], and its upper two
 * bits are the upper two bits of s[g - 4]. The low four bits of mn are the high half of s[g + 4], and its upper two
 * bits are the upper two bits of s[g]. */
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

/* ---- types with grids ---- */

static unsigned u16_at(const uint8_t *at) { return at[0] + 256u * at[1]; }
static uint32_t u32_at(const uint8_t *at) { return u16_at(at) + 65536u * u16_at(at + 2); }

/* bit n of eight that stand for themselves, or of seven and the one that makes the sum of all eight even */
static int sign(unsigned seven, int n)
{
    int sum = 0;
    if (n < 7)
        return seven >> n & 1 ? -1 : 1;
    for (int i = 0; i < 7; i++)
        sum += seven >> i & 1;
    return sum % 2 ? -1 : 1;
}

static int iq2_value(const uint16_t *grid, unsigned row, int e)
{
    static const int values[] = {8, 25, 43, 0};
    return values[grid[row] >> 2 * (e % 8) & 3];
}

static int iq3_xxs_value(unsigned row, int e)
{
    static const int values[] = {4, 12, 20, 28, 36, 44, 52, 62};
    return values[ref_grid_iq3_xxs[row] >> 4 * (e % 4) & 7];
}

/* Number e of a block. Group g = e / 32 has four parts n of eight numbers. */
static struct number iq2_xxs(const uint8_t *block, int e)
{
    const uint8_t *group = block + 2 + e / 32 * 8;
    uint32_t sx = u32_at(group + 4);
    int n = e % 32 / 8;
    return (struct number){f16_at(block) * ((sx >> 28) + 0.5) / 4, 0,
                           sign(sx >> 7 * n & 127, e % 8) * iq2_value(ref_grid_iq2_xxs, group[n], e)};
}

static struct number iq2_xs(const uint8_t *block, int e)
{
    unsigned is = u16_at(block + 2 + e / 8 * 2);
    int x = half(block[66 + e / 32], e % 32 >= 16);
    return (struct number){f16_at(block) * (x + 0.5) / 4, 0,
                           sign(is / 512, e % 8) * iq2_value(ref_grid_iq2_xs, is % 512, e)};
}

static struct number iq2_s(const uint8_t *block, int e)
{
    unsigned h = block[66 + e / 32] >> e % 32 / 8 * 2 & 3;
    int x = half(block[74 + e / 32], e % 32 >= 16);
    int v = iq2_value(ref_grid_iq2_s, block[2 + e / 8] + 256 * h, e);
    return (struct number){f16_at(block) * (x + 0.5) / 4, 0, bit(block + 34, e) ? -v : v};
}

static struct number iq3_xxs(const uint8_t *block, int e)
{
    uint32_t sx = u32_at(block + 66 + e / 32 * 4);
    int s = sign(sx >> e % 32 / 8 * 7 & 127, e % 8);
    return (struct number){f16_at(block) * ((sx >> 28) + 0.5) / 2, 0, s * iq3_xxs_value(block[2 + e / 4], e)};
}

static struct number iq3_s(const uint8_t *block, int e)
{
    unsigned row = block[2 + e / 4] + 256u * (unsigned)bit(block + 66, e / 4);
    int v = 2 * (ref_grid_iq3_s[row] >> 4 * (e % 4) & 7) + 1;
    return (struct number){f16_at(block) * (2 * half(block[106 + e / 64], e % 64 >= 32) + 1), 0,
                           bit(block + 74, e) ? -v : v};
}

/* 8 (v + a / 8) */
static int iq1_code(unsigned row, int e, int minus)
{
    return 8 * ((ref_grid_iq1[row] >> 2 * (e % 8) & 3) - 1) + (minus ? -1 : 1);
}

static struct number iq1_s(const uint8_t *block, int e)
{
    unsigned hxa = u16_at(block + 34 + e / 32 * 2);
    unsigned h = hxa >> e % 32 / 8 * 3 & 7, x = hxa >> 12 & 7;
    return (struct number){f16_at(block) * (2 * x + 1) / 8, 0, iq1_code(block[2 + e / 8] + 256 * h, e, hxa >> 15 & 1)};
}

static struct number iq1_m(const uint8_t *block, int e)
{
    const uint8_t *dx = block + 48;
    int ha = half(block[32 + e / 16], e % 16 >= 8);
    unsigned x = u16_at(dx + e / 64 * 2) >> e % 64 / 16 * 3 & 7;
    uint8_t d[2] = {(uint8_t)(dx[1] / 16 + dx[3] / 16 * 16), (uint8_t)(dx[5] / 16 + dx[7] / 16 * 16)};
    return (struct number){f16_at(d) * (2 * x + 1) / 8, 0,
                           iq1_code(block[e / 8] + 256u * (unsigned)(ha & 7), e, ha & 8)};
}

/* The digit of a byte in base 3, the most significant one first: q / 256 is about the fraction 0.ttttt in base 3. */
static struct number tq1_0(const uint8_t *block, int e)
{
    int byte = e < 160 ? e % 32
               : e < 240 ? 32 + e % 16
               : 48 + e % 4,
        digit = e < 160 ? e / 32
                : e < 240 ? (e - 160) / 16
                : (e - 240) / 4;
    int q = block[byte];
    while (digit--)
        q = q * 3 % 256;
    return (struct number){f16_at(block + 52), 0, q * 3 / 256 - 1};
}

static struct number with_six_bits(const uint8_t *block, int g, int code)
{
    const uint8_t *s = block + 4;
    int sc = g < 4 ? s[g] % 64 : s[g + 4] % 16 + s[g - 4] / 64 * 16;
    int mn = g < 4 ? s[g + 4] % 64 : s[g + 4] / 16 + s[g] / 64 * 16;
    return (struct number){f16_at(block) * sc, f16_at(block + 2) * mn, code};
}

/* kvalues_iq4nl of ggml-common.h */
static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static struct number iq4_xs(const uint8_t *block, int e)
{
    int g = e / 32, sc = half(block[4 + g / 2], g % 2) + 16 * (bit(block + 2, 2 * g) + 2 * bit(block + 2, 2 * g + 1));
    return (struct number){f16_at(block) * (sc - 32), 0, iq4[half(block[8 + 16 * g + e % 16], e % 32 >= 16)]};
}

static int two_bits(uint8_t byte, int i) { return byte >> 2 * i & 3; }

static struct number q3_k(const uint8_t *block, int e)
{
    const uint8_t *s = block + 96;
    int g = e / 32, i = e / 16, sc = half(s[i % 8], i / 8) + 16 * two_bits(s[8 + i % 4], i / 4);
    int code = two_bits(block[32 + 32 * (g / 4) + e % 32], g % 4) + 4 * (block[e % 32] >> g & 1);
    return (struct number){f16_at(block + 108) * (sc - 32), 0, code - 4};
}

static struct number q2_k(const uint8_t *block, int e)
{
    int g = e / 32, s = block[e / 16];
    return (struct number){f16_at(block + 80) * (s % 16), f16_at(block + 82) * (s / 16),
                           two_bits(block[16 + 32 * (g / 4) + e % 32], g % 4)};
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
    case DTYPE_Q5_0:
        return (struct number){f16_at(block), 0, half(block[6 + e % 16], e >= 16) + 16 * bit(block + 2, e) - 16};
    case DTYPE_Q5_1:
        return (struct number){f16_at(block), -f16_at(block + 2),
                               half(block[8 + e % 16], e >= 16) + 16 * bit(block + 4, e)};
    case DTYPE_Q4_K: return with_six_bits(block, g, half(block[16 + g / 2 * 32 + l], g % 2));
    case DTYPE_Q5_K:
        return with_six_bits(block, g, half(block[48 + g / 2 * 32 + l], g % 2) + 16 * (block[16 + l] >> g & 1));
    case DTYPE_MXFP4: return (struct number){ldexp(1, block[0] - 128), 0, e2m1(half(block[1 + e % 16], e >= 16))};
    case DTYPE_GGUF_NVFP4: { /* 64 numbers; byte 8 (e / 16) + e % 8 has element e in its low half if e % 16 < 8 */
        int s = block[e / 16] & 127;
        return (struct number){s == 127 ? 0 : ref_e4m3((uint8_t)s) / 2, 0,
                               e2m1(half(block[4 + e / 16 * 8 + e % 8], e % 16 >= 8))};
    }
    case DTYPE_Q6_K: return q6_k(block, e);
    case DTYPE_IQ2_XXS: return iq2_xxs(block, e);
    case DTYPE_IQ2_XS: return iq2_xs(block, e);
    case DTYPE_IQ2_S: return iq2_s(block, e);
    case DTYPE_IQ3_XXS: return iq3_xxs(block, e);
    case DTYPE_IQ3_S: return iq3_s(block, e);
    case DTYPE_IQ1_S: return iq1_s(block, e);
    case DTYPE_IQ1_M: return iq1_m(block, e);
    case DTYPE_TQ1_0: return tq1_0(block, e);
    case DTYPE_TQ2_0:
        return (struct number){f16_at(block + 64), 0, (block[e / 128 * 32 + e % 32] >> 2 * (g % 4) & 3) - 1};
    case DTYPE_Q4_1: return (struct number){f16_at(block), -f16_at(block + 2), half(block[4 + e % 16], e >= 16)};
    case DTYPE_IQ4_NL: return (struct number){f16_at(block), 0, iq4[half(block[2 + e % 16], e >= 16)]};
    case DTYPE_IQ4_XS: return iq4_xs(block, e);
    case DTYPE_Q3_K: return q3_k(block, e);
    default: return q2_k(block, e);
    }
}

static struct number at(const struct tensor *t, size_t i)
{
    static const struct { size_t numbers, bytes;
    } sizes[] = {
        [DTYPE_Q8_0] = {32, 34}, [DTYPE_Q4_0] = {32, 18}, [DTYPE_Q5_0] = {32, 22},
        [DTYPE_Q5_1] = {32, 24},
        [DTYPE_Q4_K] = {256, 144}, [DTYPE_Q5_K] = {256, 176}, [DTYPE_Q6_K] = {256, 210},
        [DTYPE_MXFP4] = {32, 17},
        [DTYPE_IQ2_XXS] = {256, 66}, [DTYPE_IQ2_XS] = {256, 74}, [DTYPE_IQ2_S] = {256, 82},
        [DTYPE_IQ3_XXS] = {256, 98}, [DTYPE_IQ3_S] = {256, 110},
        [DTYPE_IQ1_S] = {256, 50}, [DTYPE_IQ1_M] = {256, 56}, [DTYPE_TQ1_0] = {256, 54},
        [DTYPE_TQ2_0] = {256, 66},
        [DTYPE_Q4_1] = {32, 20}, [DTYPE_IQ4_NL] = {32, 18}, [DTYPE_IQ4_XS] = {256, 136},
        [DTYPE_Q3_K] = {256, 110}, [DTYPE_Q2_K] = {256, 84}, [DTYPE_GGUF_NVFP4] = {64, 36},
    };
    size_t numbers = sizes[t->dtype].numbers;
    return number_of(t->dtype, (const uint8_t *)t->data + i / numbers * sizes[t->dtype].bytes, (int)(i % numbers));
}

double ref_quantized(const struct tensor *t, size_t i)
{
    struct number n = at(t, i);
    return n.scale * n.code - n.minimum;
}

double ref_scaled(const struct tensor *t, size_t i, double total)
{
    struct number n = at(t, i);
    return (double)(float)(n.scale * total) * n.code;
}

float ref_decoded(const struct tensor *t, size_t i)
{
    struct number n = at(t, i);
    return (float)(n.scale * n.code) - (float)n.minimum;
}
