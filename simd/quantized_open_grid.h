/* simd/quantized_open_grid.h -- unpacks blocks of types with a grid (IQ1 to IQ3) and of ternary types (TQ1_0, TQ2_0); a
 * part of quantized_open.h. The comment there lists what the including file must define first. */
#ifndef VB_QUANTIZED_OPEN_GRID_H
#define VB_QUANTIZED_OPEN_GRID_H

#include "simd/quantized_grid.h"
#include "simd/quantized_open_group.h"

/* Each byte of w has seven bits of signs. Returns them with bit 7 set so that the number of ones is even. */
ALWAYS_INLINE words signs_of_seven(words w)
{
    words odd = w ^ (w >> 4 & each(7));
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return w | (odd & each(1)) << 7;
}

/* The parts of a block of a type with a grid that are not indices of grid rows, as pieces of 16 bytes, in each of SLICE
 * rows. */
struct grid_pieces {
    words signs[2][4], ls[4];
};

ALWAYS_INLINE void grid_pieces(struct grid_pieces *p, enum weight_type type, const unsigned char *const *row, size_t at,
                               size_t n)
{
    const size_t signs = type == WEIGHT_IQ3_XXS ? 66
                         : type == WEIGHT_IQ2_S ? 34
                         : type == WEIGHT_IQ3_S ? 74
                         : type == WEIGHT_IQ1_S ? 34
                         : 32;
    if (type == WEIGHT_IQ2_XXS || type == WEIGHT_IQ2_XS) {
        if (n % 2 == 0)
            transpose(p->signs[0], row, at + 2 + 8 * n);
    } else if (n == 0) {
        transpose(p->signs[0], row, at + signs);
        if (!is_iq1(type))
            transpose(p->signs[1], row, at + signs + 16);
    }
    if (n == 0 && (has_halves(type) || type == WEIGHT_IQ3_S)) /* the last 8 of these 16 bytes; IQ3_S: the last four */
        transpose(p->ls, row,
                  at + (type == WEIGHT_IQ2_XS ? 58
                        : type == WEIGHT_IQ2_S ? 66
                        : type == WEIGHT_IQ3_S ? 94
                        : 40));
}

/* Rows of a grid are found one by one, in each of SLICE rows; the codes of a group are then transposed. Signs and
 * scales are in vectors from the beginning. */
ALWAYS_INLINE void take_grid(struct TAKER *to, enum weight_type type, const unsigned char *const *row, size_t g,
                             size_t at, size_t ahead)
{
    typedef uint64_t two_integers __attribute__((vector_size(16)));
    const size_t eighth = quantized_format(type)->bytes / 8 + 1;
    const int above = code_above(type), packed = type == WEIGHT_IQ2_XXS || type == WEIGHT_IQ3_XXS,
              halves = has_halves(type) ? 2 : 1;
    struct grid_pieces p;
    words bits;
    for (int r = 0; r < SLICE; r++)
        bits[r] = grid_scale(type, row[r] + at);
    floats d = half_of(bits) * grid_unit(type);
    for (size_t n = 0; n < 8; n++) {
        struct open_group v;
        two_integers codes[SLICE][2];
        const unsigned char *code[SLICE];
        words ls[2], signs = {0}, w;
        prefetch_rows(row, at + n * eighth, eighth, ahead);
        grid_pieces(&p, type, row, at, n);
        UNROLL
        for (int r = 0; r < SLICE; r++) {
            codes[r][0] = (two_integers){grid_row(type, row[r] + at, n, 0), grid_row(type, row[r] + at, n, 1)};
            codes[r][1] = (two_integers){grid_row(type, row[r] + at, n, 2), grid_row(type, row[r] + at, n, 3)};
            code[r] = (const unsigned char *)codes[r];
        }
        if (is_iq1(type))
            signs = p.signs[0][n / 2] >> 16 * (n % 2);
        else if (type == WEIGHT_IQ2_XS) {
            words low = p.signs[0][n % 2 * 2], high = p.signs[0][n % 2 * 2 + 1];
            signs = signs_of_seven((low >> 9 & 127) | (low >> 25) << 8 | (high >> 9 & 127) << 16 | (high >> 25) << 24);
        } else if (packed) {
            w = type == WEIGHT_IQ2_XXS ? p.signs[0][n % 2 * 2 + 1] : p.signs[n / 4][n % 4];
            signs = signs_of_seven((w & 0x7f) | (w << 1 & 0x7f00) | (w << 2 & 0x7f0000) | (w << 3 & 0x7f000000));
            ls[0] = w >> 28;
        } else
            signs = p.signs[n / 4][n % 4];
        if (type == WEIGHT_IQ1_S)
            ls[0] = signs >> 12 & 7;
        else if (type == WEIGHT_IQ3_S)
            ls[0] = p.ls[3] >> 4 * n & 15;
        else if (type == WEIGHT_IQ1_M) {
            w = p.ls[2 + n / 4] >> (16 * (n / 2 % 2) + 6 * (n % 2));
            ls[0] = w & 7;
            ls[1] = w >> 3 & 7;
        } else if (halves == 2) {
            w = p.ls[2 + n / 4] >> 8 * (n % 4);
            ls[0] = w & 15;
            ls[1] = w >> 4 & 15;
        }
        UNROLL
        for (int half = 0; half < halves; half++)
            v.scale[half] = d * __builtin_convertvector((signed_words)(2 * ls[half] + 1), floats);
        transpose_32(v.codes, code, 0);
        UNROLL
        for (int j = 0; j < 8; j++) { /* no byte carries: see with_signs */
            if (is_iq1(type)) {
                words minus = -(type == WEIGHT_IQ1_S ? signs >> 15 & 1 : signs >> (j / 2 * 4 + 3) & 1);
                v.codes[j] = (words)((byte_vector)v.codes[j] +
                                     (byte_vector)(each((unsigned)above + 1) - (minus & each(2))));
            } else
                v.codes[j] += each((unsigned)above) - 2 * (v.codes[j] & four_bits(signs, j));
        }
        take(to, g + n, type, &v);
    }
}

/* TQ2_0: four groups share 32 bytes, two bits each. TQ1_0: a byte times a power of 3, of which only the low eight bits
 * are kept, times 3 has its next digit in bits 8 and 9. */
ALWAYS_INLINE words times_in_bytes(words w, unsigned factor)
{
    words even = w & 0x00ff00ff, odd = w >> 8 & 0x00ff00ff;
    return (even * factor & 0x00ff00ff) | (odd * factor & 0x00ff00ff) << 8;
}

ALWAYS_INLINE words digit_of(words w)
{
    words even = w & 0x00ff00ff, odd = w >> 8 & 0x00ff00ff;
    return (even * 3 >> 8 & 0x00030003) | (odd * 3 & 0x03000300);
}

ALWAYS_INLINE void take_tq2_0(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at)
{
    struct open_group v;
    words end[4], w[8];
    transpose(end, row, at + 50); /* the last two of these 16 bytes are d */
    v.scale[0] = half_of(end[3] >> 16);
    for (size_t half = 0; half < 2; half++) {
        transpose_32(w, row, at + 32 * half);
        for (size_t n = 0; n < 4; n++) {
            for (int j = 0; j < 8; j++)
                v.codes[j] = w[j] >> 2 * n & each(3);
            take(to, g + 4 * half + n, WEIGHT_TQ2_0, &v);
        }
    }
}

ALWAYS_INLINE void take_tq1_0(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at)
{
    static const unsigned powers[] = {1, 3, 9, 27, 81};
    struct open_group v;
    words end[4], w[8], middle[4];
    transpose_32(w, row, at);
    transpose(middle, row, at + 32);
    transpose(end, row, at + 38); /* 10 bytes of `middle`, the last four bytes of digits, d */
    words last = end[2] >> 16 | end[3] << 16;
    v.scale[0] = half_of(end[3] >> 16);
    for (size_t n = 0; n < 8; n++) {
        for (size_t j = 0; j < 8; j++) {
            size_t quad = 8 * n + j; /* four numbers of the 256 */
            v.codes[j] = digit_of(quad < 40   ? times_in_bytes(w[j], powers[n])
                                  : quad < 60 ? times_in_bytes(middle[j % 4], powers[(quad - 40) / 4])
                                              : times_in_bytes(last, powers[quad - 60]));
        }
        take(to, g + n, WEIGHT_TQ1_0, &v);
    }
}

#endif
