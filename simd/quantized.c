/* simd/quantized.c -- the blocks of quantized weights taken apart, clear rather than fast; and panels made of them. */
#include "simd/quantized_grid.h"

#include <assert.h>

/* d of a Q4_BF16 block */
static float bf16_at(const unsigned char *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bf16_to_f32(bits);
}

/* d of a CACHE_Q8 or Q8_F32 block */
static float f32_at(const unsigned char *at)
{
    float d;
    memcpy(&d, at, sizeof d);
    return d;
}

/* e of a MXFP4 block: 2^(e-128), which is subnormal if e < 2 */
static float exponent_at(const unsigned char *at)
{
    return bits_to_f32(*at < 2 ? (*at + 1u) << 21 : (*at - 1u) << 23);
}

/* f16 of a file, at any address */
static float half_at(const unsigned char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return f16_to_f32(half);
}

const struct quantized_format *quantized_format(enum weight_type type)
{
    static const struct quantized_format formats[] = {
        [WEIGHT_Q8_0 - WEIGHT_TYPES] = {"Q8_0", 32, 34, 0, 0},
        [WEIGHT_Q4_0 - WEIGHT_TYPES] = {"Q4_0", 32, 18, 0, 0},
        [WEIGHT_Q5_0 - WEIGHT_TYPES] = {"Q5_0", 32, 22, 0, 0},
        [WEIGHT_Q5_1 - WEIGHT_TYPES] = {"Q5_1", 32, 24, 0, 1},
        [WEIGHT_Q4_K - WEIGHT_TYPES] = {"Q4_K", 256, 144, 0, 1},
        [WEIGHT_Q5_K - WEIGHT_TYPES] = {"Q5_K", 256, 176, 0, 1},
        [WEIGHT_Q6_K - WEIGHT_TYPES] = {"Q6_K", 256, 210, 32, 0},
        [WEIGHT_MXFP4 - WEIGHT_TYPES] = {"MXFP4", 32, 17, 0, 0},
        [WEIGHT_IQ2_XXS - WEIGHT_TYPES] = {"IQ2_XXS", 256, 66, 0, 0},
        [WEIGHT_IQ2_XS - WEIGHT_TYPES] = {"IQ2_XS", 256, 74, 64, 0},
        [WEIGHT_IQ2_S - WEIGHT_TYPES] = {"IQ2_S", 256, 82, 64, 0},
        [WEIGHT_IQ3_XXS - WEIGHT_TYPES] = {"IQ3_XXS", 256, 98, 0, 0},
        [WEIGHT_IQ3_S - WEIGHT_TYPES] = {"IQ3_S", 256, 110, 0, 0},
        [WEIGHT_IQ1_S - WEIGHT_TYPES] = {"IQ1_S", 256, 50, 0, 0},
        [WEIGHT_IQ1_M - WEIGHT_TYPES] = {"IQ1_M", 256, 56, 32, 0},
        [WEIGHT_TQ1_0 - WEIGHT_TYPES] = {"TQ1_0", 256, 54, 0, 0},
        [WEIGHT_TQ2_0 - WEIGHT_TYPES] = {"TQ2_0", 256, 66, 0, 0},
        [WEIGHT_Q4_1 - WEIGHT_TYPES] = {"Q4_1", 32, 20, 0, 1},
        [WEIGHT_IQ4_NL - WEIGHT_TYPES] = {"IQ4_NL", 32, 18, 0, 0},
        [WEIGHT_IQ4_XS - WEIGHT_TYPES] = {"IQ4_XS", 256, 136, 0, 0},
        [WEIGHT_Q3_K - WEIGHT_TYPES] = {"Q3_K", 256, 110, 32, 0},
        [WEIGHT_Q2_K - WEIGHT_TYPES] = {"Q2_K", 256, 84, 32, 1},
        [WEIGHT_GGUF_NVFP4 - WEIGHT_TYPES] = {"NVFP4", 64, 36, 32, 0},
        [WEIGHT_CACHE_Q8 - WEIGHT_TYPES] = {"CACHE_Q8", 32, 36, 0, 0},
        [WEIGHT_Q4_BF16 - WEIGHT_TYPES] = {"Q4_BF16", 32, 18, 0, 0},
        [WEIGHT_NVFP4 - WEIGHT_TYPES] = {"NVFP4", 32, 18, 32, 0},
        [WEIGHT_Q8_F32 - WEIGHT_TYPES] = {"Q8_F32", 32, 36, 0, 0},
    };
    assert(weight_is_quantized(type));
    return &formats[type - WEIGHT_TYPES];
}

/* --- one group of each type --- */

/* 32 codes of four bits, low nibbles first, each minus `above` */
static void nibbles(int8_t q[32], const unsigned char *bytes, int above)
{
    for (int l = 0; l < 16; l++) {
        q[l] = (int8_t)((bytes[l] & 15) - above);
        q[l + 16] = (int8_t)((bytes[l] >> 4) - above);
    }
}

/* the same with a fifth bit each */
static void five_bits(int8_t q[32], const unsigned char *high, const unsigned char *bytes, int above)
{
    uint32_t bits;
    memcpy(&bits, high, sizeof bits);
    nibbles(q, bytes, 0);
    for (int l = 0; l < 32; l++)
        q[l] = (int8_t)(q[l] + (int)(bits >> l & 1) * 16 - above);
}

const int8_t quantized_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t quantized_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* 32 codes of four bits, low nibbles first, each of which stands for a number of the table */
static void from_table(int8_t q[32], const unsigned char *bytes, const int8_t table[16])
{
    nibbles(q, bytes, 0);
    for (int l = 0; l < 32; l++)
        q[l] = table[q[l]];
}

/* sc and m of group g of eight: six bits each; those of the last four in two pieces */
static void six_bits(int *sc, int *m, const unsigned char s[12], size_t g)
{
    if (g < 4) {
        *sc = s[g] & 63;
        *m = s[g + 4] & 63;
    } else {
        *sc = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *m = s[g + 4] >> 4 | (s[g] >> 6) << 4;
    }
}

/* Q4_K; Q5_K when there are high bits, 32 bytes with a bit for each group */
static void codes_of_k(struct quantized_codes *out, const unsigned char *block, const unsigned char *high,
                       const unsigned char *bytes, size_t g)
{
    int sc, m;
    six_bits(&sc, &m, block + 4, g);
    out->scale[0] = out->scale[1] = half_at(block) * (float)sc;
    out->minimum[0] = out->minimum[1] = half_at(block + 2) * (float)m;
    for (size_t l = 0; l < 32; l++) {
        unsigned byte = bytes[g / 2 * 32 + l], q = g % 2 ? byte >> 4 : byte & 15;
        out->q[l] = (int8_t)(high ? q | (high[l] >> g & 1u) << 4 : q);
    }
}

static void codes_of_q6_k(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    const unsigned char *low = block + g / 4 * 64 + g % 2 * 32, *high = block + 128 + g / 4 * 32;
    const unsigned char *sc = block + 192 + 2 * g;
    float d = half_at(block + 208);
    for (size_t l = 0; l < 32; l++) {
        unsigned q = g % 4 < 2 ? low[l] & 15u : low[l] >> 4;
        out->q[l] = (int8_t)((int)(q | (high[l] >> 2 * (g % 4) & 3u) << 4) - 32);
    }
    for (int half = 0; half < 2; half++)
        out->scale[half] = d * (float)(int8_t)sc[half];
}

static void codes_of_grid(struct quantized_codes *out, enum weight_type type, const unsigned char *block, size_t g)
{
    struct grid_group v = grid_group(type, block, g, 64);
    for (size_t l = 0; l < 32; l++)
        out->q[l] = (int8_t)((int)(v.codes[l / 8] >> 8 * (l % 8) & 255) - 64);
    for (int half = 0; half < 2; half++)
        out->scale[half] = f16_to_f32(grid_scale(type, block)) * (float)(2 * v.ls[half] + 1) * grid_unit(type);
}

/* TQ1_0: a byte b holds five numbers t of 0, 1 and 2 (the last four bytes: four) as the fraction b / 256 in base 3.
 * Groups 0..4 are in the first 32 bytes, one digit after the other. Then 16 bytes hold 80 numbers, and four bytes the
 * last 16. */
static void codes_of_tq1_0(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    static const unsigned char powers[] = {1, 3, 9, 27, 81};
    for (size_t l = 0; l < 32; l++) {
        size_t i = g * 32 + l;
        unsigned b = i < 160 ? block[l] * powers[g]
                     : i < 240 ? block[32 + i % 16] * powers[(i - 160) / 16]
                     : block[48 + i % 4] * powers[(i - 240) / 4];
        out->q[l] = (int8_t)((int)((b & 255) * 3 >> 8) - 1);
    }
    out->scale[0] = out->scale[1] = half_at(block + 52);
}

/* TQ2_0: two bits for each number */
static void codes_of_tq2_0(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    for (size_t l = 0; l < 32; l++)
        out->q[l] = (int8_t)((block[g / 4 * 32 + l] >> 2 * (g % 4) & 3) - 1);
    out->scale[0] = out->scale[1] = half_at(block + 64);
}

static void codes_of_nvfp4(struct quantized_codes *out, const struct weight_view *w, const unsigned char *block)
{
    for (int half = 0; half < 2; half++) {
        float s = 0.5f * e4m3_to_f32(block[half]);
        out->scale[half] = w->divides ? s / w->tensor_scale : s * w->tensor_scale;
    }
    from_table(out->q, block + 2, quantized_e2m1);
}

/* group g of two */
static void codes_of_gguf_nvfp4(struct quantized_codes *out, const struct weight_view *w, const unsigned char *block,
                                size_t g)
{
    for (size_t half = 0; half < 2; half++) {
        uint8_t s = block[2 * g + half] & 127;
        const unsigned char *bytes = block + 4 + 16 * g + 8 * half;
        out->scale[half] = (s == 127 ? 0.0f : 0.5f * e4m3_to_f32(s)) * w->tensor_scale;
        for (size_t j = 0; j < 8; j++) {
            out->q[16 * half + j] = quantized_e2m1[bytes[j] & 15];
            out->q[16 * half + 8 + j] = quantized_e2m1[bytes[j] >> 4];
        }
    }
}

static void codes_of_iq4_xs(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    unsigned high = block[2 + g / 4] >> 2 * (g % 4) & 3u, low = block[4 + g / 2] >> 4 * (g % 2) & 15u;
    out->scale[0] = out->scale[1] = half_at(block) * (float)((int)(high << 4 | low) - 32);
    from_table(out->q, block + 8 + 16 * g, quantized_iq4);
}

/* the low two bits of code l of group g */
static int two_bits(const unsigned char bytes[64], size_t g, size_t l)
{
    return bytes[g / 4 * 32 + l] >> 2 * (g % 4) & 3;
}

static void codes_of_q3_k(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    const unsigned char *s = block + 96;
    for (size_t l = 0; l < 32; l++)
        out->q[l] = (int8_t)(two_bits(block + 32, g, l) + (block[l] >> g & 1) * 4 - 4);
    for (size_t half = 0; half < 2; half++) {
        size_t i = 2 * g + half;
        int sc = (s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4;
        out->scale[half] = half_at(block + 108) * (float)(sc - 32);
    }
}

static void codes_of_q2_k(struct quantized_codes *out, const unsigned char *block, size_t g)
{
    for (size_t l = 0; l < 32; l++)
        out->q[l] = (int8_t)two_bits(block + 16, g, l);
    for (size_t half = 0; half < 2; half++) {
        out->scale[half] = half_at(block + 80) * (float)(block[2 * g + half] & 15);
        out->minimum[half] = half_at(block + 82) * (float)(block[2 * g + half] >> 4);
    }
}

static void codes_of_panel(struct quantized_codes *out, const struct weight_view *w, size_t row, size_t group)
{
    row += w->panel_row;
    const unsigned char *panel = (const unsigned char *)w->data + row / PANEL_ROWS * panel_bytes(w->type, w->cols);
    const unsigned char *codes = panel_codes(panel, w->type, group) + row % PANEL_ROWS * 4;
    const unsigned char *scales = panel_scales(panel, w->type, group), *scale = scales + row % PANEL_ROWS * 2;
    out->scale[0] = w->type == WEIGHT_Q4_BF16 ? bf16_at(scale)
                    : w->type == WEIGHT_Q8_F32 ? f32_at(scales + row % PANEL_ROWS * 4)
                    : half_at(scale);
    out->scale[1] = out->scale[0];
    out->minimum[0] = out->minimum[1] = 0.0f;
    for (size_t l = 0; l < 32; l++)
        if (weight_is_q8(w->type)) {
            out->q[l] = (int8_t)(codes[l / 4 * 64 + l % 4] - 128);
        } else {
            int code = codes[l % 16 / 4 * 64 + l % 4] >> l / 16 * 4 & 15;
            out->q[l] = w->type == WEIGHT_IQ4_NL ? quantized_iq4[code] : (int8_t)(code - 8);
        }
}

void quantized_codes(struct quantized_codes *out, const struct weight_view *w, size_t row, size_t group)
{
    const struct quantized_format *f = quantized_format(w->type);
    if (w->panels) {
        codes_of_panel(out, w, row, group);
        return;
    }
    size_t at = row * w->stride + group * QUANTIZED_GROUP, g = at % f->numbers / QUANTIZED_GROUP;
    const unsigned char *block = (const unsigned char *)w->data + at / f->numbers * f->bytes;
    if (w->type == WEIGHT_CACHE_Q8 || w->type == WEIGHT_Q8_F32)
        out->scale[0] = f32_at(block);
    else if (w->type == WEIGHT_Q4_BF16)
        out->scale[0] = bf16_at(block);
    else if (w->type == WEIGHT_MXFP4)
        out->scale[0] = exponent_at(block);
    else if (f->numbers == 32)
        out->scale[0] = half_at(block);
    out->scale[1] = out->scale[0];
    out->minimum[0] = out->minimum[1] = 0.0f;
    switch (w->type) {
    case WEIGHT_Q8_0: memcpy(out->q, block + 2, 32); break;
    case WEIGHT_Q8_F32:
    case WEIGHT_CACHE_Q8: memcpy(out->q, block + 4, 32); break;
    case WEIGHT_Q4_BF16:
    case WEIGHT_Q4_0: nibbles(out->q, block + 2, 8); break;
    case WEIGHT_Q5_0: five_bits(out->q, block + 2, block + 6, 16); break;
    case WEIGHT_Q5_1:
        five_bits(out->q, block + 4, block + 8, 0);
        out->minimum[0] = out->minimum[1] = -half_at(block + 2);
        break;
    case WEIGHT_Q4_K: codes_of_k(out, block, NULL, block + 16, g); break;
    case WEIGHT_Q5_K: codes_of_k(out, block, block + 16, block + 48, g); break;
    case WEIGHT_Q6_K: codes_of_q6_k(out, block, g); break;
    case WEIGHT_MXFP4: from_table(out->q, block + 1, quantized_e2m1); break;
    case WEIGHT_NVFP4: codes_of_nvfp4(out, w, block); break;
    case WEIGHT_GGUF_NVFP4: codes_of_gguf_nvfp4(out, w, block, g); break;
    case WEIGHT_IQ2_XXS: codes_of_grid(out, WEIGHT_IQ2_XXS, block, g); break;
    case WEIGHT_IQ2_XS: codes_of_grid(out, WEIGHT_IQ2_XS, block, g); break;
    case WEIGHT_IQ2_S: codes_of_grid(out, WEIGHT_IQ2_S, block, g); break;
    case WEIGHT_IQ3_XXS: codes_of_grid(out, WEIGHT_IQ3_XXS, block, g); break;
    case WEIGHT_IQ3_S: codes_of_grid(out, WEIGHT_IQ3_S, block, g); break;
    case WEIGHT_IQ1_S: codes_of_grid(out, WEIGHT_IQ1_S, block, g); break;
    case WEIGHT_IQ1_M: codes_of_grid(out, WEIGHT_IQ1_M, block, g); break;
    case WEIGHT_TQ1_0: codes_of_tq1_0(out, block, g); break;
    case WEIGHT_TQ2_0: codes_of_tq2_0(out, block, g); break;
    case WEIGHT_Q4_1:
        nibbles(out->q, block + 4, 0);
        out->minimum[0] = out->minimum[1] = -half_at(block + 2);
        break;
    case WEIGHT_IQ4_NL: from_table(out->q, block + 2, quantized_iq4); break;
    case WEIGHT_IQ4_XS: codes_of_iq4_xs(out, block, g); break;
    case WEIGHT_Q3_K: codes_of_q3_k(out, block, g); break;
    default: codes_of_q2_k(out, block, g);
    }
}

void decode_quantized(float *out, const struct weight_view *w, size_t i, size_t j, size_t count)
{
    struct quantized_codes c;
    for (size_t k = j; k < j + count; k++) {
        if (k == j || k % QUANTIZED_GROUP == 0)
            quantized_codes(&c, w, i, k / QUANTIZED_GROUP);
        size_t l = k % QUANTIZED_GROUP;
        out[k - j] = c.scale[l / 16] * (float)c.q[l] - c.minimum[l / 16];
    }
}
