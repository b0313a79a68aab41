/* simd/quantized_open.h -- unpacks the blocks of quantized weights of a GGUF file, with vectors (private to simd/).
 *
 * One file of each instruction set includes this header, after it has defined two macros:
 *
 *     #define LANES                the number of 128-bit lanes in a register; a lane has one 32-bit word of each of
 *                                  four rows
 *     #define TAKER                the tag of a struct in that file: the first argument of take() points to such a
 *                                  struct
 *
 * The file that includes this header also defines these five functions:
 *
 *     transpose(w, row, at)        sets w[i][r] to the four bytes at row[r] + at + 4i, for i < 4
 *     half_of(w)                   returns the f16 in the lower half of each word, as f32
 *     look_up(table, w)            returns byte b of the table for each byte b of w; b < 16, and all lanes of `table`
 *                                  are equal
 *     four_bits(w, j)              returns words: byte i of a word is 255 if bit 4j + i of that word of w is set, else
 *                                  0
 *     take(to, g, type, group)     receives group g of all rows: copies it to an open panel, or adds its products to
 *                                  sums
 *
 * In every block format, a row can be read in pieces of 16 bytes, and each piece is at the same offset in all rows.
 * The code loads one piece from each of SLICE rows and transposes these pieces. The result is four vectors, in which
 * word r belongs to row r. Codes in a panel have the same order. Scales and minimums are read in pieces of 16 bytes
 * too. No byte outside of the blocks is read. */
#ifndef VB_QUANTIZED_OPEN_H
#define VB_QUANTIZED_OPEN_H

#include "simd/quantized_open_grid.h"

/* --- types with 32 weights in a block --- */

/* One block of each of SLICE rows: its first 8 bytes, and the bytes from codes_at() on. */
struct small_block {
    words head[2], codes[8];
};

ALWAYS_INLINE int has_bytes(enum weight_type type)
{
    return type == WEIGHT_Q8_0 || type == WEIGHT_CACHE_Q8 || type == WEIGHT_Q8_F32;
}

ALWAYS_INLINE size_t codes_at(enum weight_type type)
{
    switch (type) {
    case WEIGHT_MXFP4: return 1;
    case WEIGHT_CACHE_Q8:
    case WEIGHT_Q8_F32:
    case WEIGHT_Q4_1: return 4;
    case WEIGHT_Q5_0: return 6;
    case WEIGHT_Q5_1: return 8;
    default: return 2;
    }
}

/* Q8_0; CACHE_Q8 and Q8_F32, which are alike */
ALWAYS_INLINE void take_q8(struct TAKER *to, enum weight_type type, const struct small_block *b, size_t g)
{
    struct open_group v;
    v.scale[0] = type == WEIGHT_Q8_0 ? half_of(b->head[0]) : (floats)b->head[0];
    UNROLL
    for (int j = 0; j < 8; j++)
        v.codes[j] = b->codes[j] ^ each(128);
    take(to, g, type, &v);
}

/* Q4_0, Q4_BF16, Q4_1, Q5_0, Q5_1 */
ALWAYS_INLINE void take_small(struct TAKER *to, enum weight_type type, const struct small_block *b, size_t g)
{
    struct open_group v;
    v.scale[0] = type == WEIGHT_Q4_BF16 ? (floats)(b->head[0] << 16) : half_of(b->head[0]);
    if (has_minimums(type))
        v.minimum[0] = -half_of(b->head[0] >> 16);
    words bits = has_minimums(type) ? b->head[1] : b->head[0] >> 16 | b->head[1] << 16;
    UNROLL
    for (int j = 0; j < 4; j++) {
        v.codes[j] = b->codes[j] & each(15);
        v.codes[j + 4] = b->codes[j] >> 4 & each(15);
    }
    UNROLL
    for (int j = 0; j < 8; j++)
        if (!is_q4(type) && type != WEIGHT_Q4_1)
            v.codes[j] |= four_bits(bits, j) & each(16);
    take(to, g, type, &v);
}

/* Returns the 16 integers q of a table, each plus code_above(type), in every lane. */
ALWAYS_INLINE words codes_of_table(enum weight_type type, const int8_t table[16])
{
    byte_vector t;
    UNROLL
    for (size_t lane = 0; lane < LANES; lane++)
        memcpy((char *)&t + 16 * lane, table, 16);
    return (words)(t + (uint8_t)code_above(type));
}

/* Sets the codes of a group to the table's numbers: low nibbles of w first. */
ALWAYS_INLINE void codes_from_table(words codes[8], const words w[4], words table)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        codes[j] = look_up(table, w[j] & each(15));
        codes[j + 4] = look_up(table, w[j] >> 4 & each(15));
    }
}

/* Returns half of the E4M3 number in the lowest byte of each word: as the exponent and the fraction of an f32 it is
 * 2^-119 times as large. */
ALWAYS_INLINE floats half_of_e4m3(words w)
{
    words magnitude = w & 127, nan = (words)(magnitude == 127);
    return (floats)((words)((floats)(magnitude << 20) * 0x1p119f) | (w & 128) << 24 | nan);
}

/* IQ4_NL, MXFP4, NVFP4 */
ALWAYS_INLINE void take_table(struct TAKER *to, enum weight_type type, const struct weight_view *m,
                              const struct small_block *b, size_t g)
{
    struct open_group v;
    words e = b->head[0] & 255, subnormal = (words)(e < 2);
    const int scales = type == WEIGHT_NVFP4 ? 2 : 1;
    UNROLL
    for (int half = 0; half < scales; half++) {
        floats s = half_of_e4m3(b->head[0] >> 8 * half);
        v.scale[half] = type == WEIGHT_IQ4_NL  ? half_of(b->head[0])
                        : type == WEIGHT_MXFP4 ? (floats)(((e + 1) << 21 & subnormal) | ((e - 1) << 23 & ~subnormal))
                        : m->divides           ? s / m->tensor_scale
                                               : s * m->tensor_scale;
    }
    codes_from_table(v.codes, b->codes, codes_of_table(type, type == WEIGHT_IQ4_NL ? quantized_iq4 : quantized_e2m1));
    take(to, g, type, &v);
}

ALWAYS_INLINE void take_block(struct TAKER *to, enum weight_type type, const struct weight_view *m,
                              const struct small_block *b, size_t g)
{
    if (has_bytes(type))
        take_q8(to, type, b, g);
    else if (type == WEIGHT_IQ4_NL || type == WEIGHT_MXFP4 || type == WEIGHT_NVFP4)
        take_table(to, type, m, b, g);
    else
        take_small(to, type, b, g);
}

/* Returns the four bytes from byte `at` on of pieces that follow one another; `at` is a constant. */
ALWAYS_INLINE words word_at(const words *pieces, size_t at)
{
    const unsigned shift = 8 * (at % 4);
    return shift ? pieces[at / 4] >> shift | pieces[at / 4 + 1] << (32 - shift) : pieces[at / 4];
}

/* So many blocks, with codes of four bits, are a multiple of 16 bytes. If they are read together, no byte is loaded
 * twice. */
ALWAYS_INLINE size_t blocks_at_once(enum weight_type type)
{
    if (LANES < 4) /* AVX2 has too few registers and became slower; NEON was not measured */
        return 1;
    return type == WEIGHT_IQ4_NL || type == WEIGHT_NVFP4 || is_q4(type) ? 8 : type == WEIGHT_Q4_1 ? 4 : 1;
}

ALWAYS_INLINE void take_blocks(struct TAKER *to, enum weight_type type, const struct weight_view *m,
                               const unsigned char *const *row, size_t g, size_t at, size_t ahead)
{
    const size_t bytes = codes_at(type) + 16, count = blocks_at_once(type);
    words pieces[36];
    UNROLL
    for (size_t i = 0; i < count; i++) {
        struct small_block b;
        prefetch_rows(row, at + i * bytes, bytes, ahead);
        UNROLL
        for (size_t p = 0; p < 9; p++) /* those that begin in block i */
            if (16 * p >= i * bytes && 16 * p < (i + 1) * bytes)
                transpose(pieces + 4 * p, row, at + 16 * p);
        b.head[0] = word_at(pieces, i * bytes);
        UNROLL
        for (size_t j = 0; j < 4; j++)
            b.codes[j] = word_at(pieces, i * bytes + codes_at(type) + 4 * j);
        take_block(to, type, m, &b, g + i);
    }
}

ALWAYS_INLINE void take_one_block(struct TAKER *to, enum weight_type type, const struct weight_view *m,
                                  const unsigned char *const *row, size_t g, size_t at)
{
    struct small_block b;
    words head[4];
    transpose(head, row, at);
    b.head[0] = head[0];
    b.head[1] = head[1];
    transpose(b.codes, row, at + codes_at(type));
    if (has_bytes(type))
        transpose(b.codes + 4, row, at + codes_at(type) + 16);
    take_block(to, type, m, &b, g);
}

/* Both groups of a block. */
ALWAYS_INLINE void take_gguf_nvfp4(struct TAKER *to, const struct weight_view *m, const unsigned char *const *row,
                                   size_t g, size_t at, size_t ahead)
{
    words head[4];
    prefetch_rows(row, at, 36, ahead);
    transpose(head, row, at);
    UNROLL
    for (size_t k = 0; k < 2; k++) {
        struct open_group v;
        words w[4], c[8];
        transpose(w, row, at + 4 + 16 * k);
        UNROLL
        for (int half = 0; half < 2; half++) {
            words s = head[0] >> (int)(16 * k + 8 * (size_t)half) & 127;
            v.scale[half] = half_of_e4m3(s & ~(words)(s == 127)) * m->tensor_scale;
        }
        codes_from_table(c, w, codes_of_table(WEIGHT_GGUF_NVFP4, quantized_e2m1)); /* low halves, then high halves */
        UNROLL
        for (int half = 0; half < 2; half++)
            UNROLL
            for (int j = 0; j < 2; j++) {
                v.codes[4 * half + j] = c[2 * half + j];
                v.codes[4 * half + 2 + j] = c[4 + 2 * half + j];
            }
        take(to, g + k, WEIGHT_GGUF_NVFP4, &v);
    }
}

/* --- types with 256 weights in a block --- */

/* Returns byte i of each word as an unsigned number, times d. */
ALWAYS_INLINE floats scaled_byte(words w, int i, floats d)
{
    return d * __builtin_convertvector((signed_words)(w >> 8 * i & 255), floats);
}

/* Q4_K and Q5_K. A block begins with 16 bytes: d, dmin, and for each of eight groups a six-bit scale and a six-bit
 * minimum. For groups 0..3, the low six bits of each byte of head[1] are a scale, and the low six bits of each byte of
 * head[2] are a minimum. For groups 4..7, the low nibble of each byte of head[3] has the low four bits of a scale, and
 * the high nibble has the low four bits of a minimum. The top two bits of each byte of head[1] are the upper two bits
 * of such a scale. The top two bits of each byte of head[2] are the upper two bits of such a minimum.
 *
 * In Q5_K, the next 32 bytes hold the fifth bits of all codes: bit n of byte l belongs to element l of group n. The low
 * four bits of the codes come last. Groups 2i and 2i + 1 are the low and the high nibbles of the same 32 bytes. */
ALWAYS_INLINE void take_k(struct TAKER *to, enum weight_type type, const unsigned char *const *row, size_t g, size_t at,
                          size_t ahead)
{
    words head[4], scale[2], minimum[2], fifth[8];
    transpose(head, row, at);
    floats d = half_of(head[0]), dmin = half_of(head[0] >> 16);
    scale[0] = head[1] & each(63);
    scale[1] = (head[3] & each(15)) | (head[1] >> 2 & each(48));
    minimum[0] = head[2] & each(63);
    minimum[1] = (head[3] >> 4 & each(15)) | (head[2] >> 2 & each(48));
    if (type == WEIGHT_Q5_K)
        transpose_32(fifth, row, at + 16);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        const size_t quarter = type == WEIGHT_Q5_K ? 44 : 36;
        words w[8];
        prefetch_rows(row, at + (size_t)i / 2 * quarter, quarter, ahead);
        transpose_32(w, row, at + (type == WEIGHT_Q5_K ? 48 : 16) + 16 * (size_t)i);
        UNROLL
        for (int upper = 0; upper < 2; upper++) {
            struct open_group v;
            int n = i + upper; /* number of this group; bit n of each byte of `fifth` belongs to it */
            v.scale[0] = scaled_byte(scale[i / 4], n % 4, d);
            v.minimum[0] = scaled_byte(minimum[i / 4], n % 4, dmin);
            UNROLL
            for (int j = 0; j < 8; j++) {
                v.codes[j] = w[j] >> 4 * upper & each(15);
                if (type == WEIGHT_Q5_K)
                    v.codes[j] |= (n < 4 ? fifth[j] << (4 - n) : fifth[j] >> (n - 4)) & each(16);
            }
            take(to, g + (size_t)n, type, &v);
        }
    }
}

/* Returns byte i of each word as a signed number, times d. */
ALWAYS_INLINE floats scaled_signed(words w, int i, floats d)
{
    return d * __builtin_convertvector((signed_words)(w << (24 - 8 * i)) >> 24, floats);
}

/* Passes four groups (128 weights) of a Q6_K block to take(). The 64 bytes at `low` hold the low four bits of each
 * weight, and the 32 bytes at `high` hold the upper two bits. */
ALWAYS_INLINE void take_128(struct TAKER *to, const unsigned char *const *row, size_t g, size_t low, size_t high,
                            const words scale[2], floats d)
{
    words w[2][8], h[8];
    transpose_32(h, row, high);
    transpose_32(w[0], row, low);
    transpose_32(w[1], row, low + 32);
    UNROLL
    for (int i = 0; i < 4; i++) {
        struct open_group v;
        v.scale[0] = scaled_signed(scale[i / 2], i % 2 * 2, d);
        v.scale[1] = scaled_signed(scale[i / 2], i % 2 * 2 + 1, d);
        UNROLL
        for (int j = 0; j < 8; j++)
            v.codes[j] = (w[i % 2][j] >> i / 2 * 4 & each(15)) |
                         ((i < 2 ? h[j] << (4 - 2 * i) : h[j] >> (2 * i - 4)) & each(48));
        take(to, g + (size_t)i, WEIGHT_Q6_K, &v);
    }
}

ALWAYS_INLINE void take_q6_k(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at, size_t ahead)
{
    words scale[4], end[4];
    transpose(scale, row, at + 192);
    transpose(end, row, at + 194); /* the last two of these 16 bytes are d */
    floats d = half_of(end[3] >> 16);
    prefetch_rows(row, at, 53, ahead);
    prefetch_rows(row, at + 53, 53, ahead);
    take_128(to, row, g, at, at + 128, scale, d);
    prefetch_rows(row, at + 106, 53, ahead);
    prefetch_rows(row, at + 159, 51, ahead);
    take_128(to, row, g + 4, at + 64, at + 160, scale + 2, d);
}

ALWAYS_INLINE void take_iq4_xs(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at, size_t ahead)
{
    words head[4], table = codes_of_table(WEIGHT_IQ4_XS, quantized_iq4);
    transpose(head, row, at);
    floats d = half_of(head[0]);
    UNROLL
    for (int n = 0; n < 8; n++) {
        struct open_group v;
        words w[4], sc = (head[1] >> 4 * n & 15) | (head[0] >> (16 + 2 * n) & 3) << 4;
        prefetch_rows(row, at + 17 * (size_t)n, 17, ahead);
        transpose(w, row, at + 8 + 16 * (size_t)n);
        v.scale[0] = d * __builtin_convertvector((signed_words)(sc - 32), floats);
        codes_from_table(v.codes, w, table);
        take(to, g + (size_t)n, WEIGHT_IQ4_XS, &v);
    }
}

/* Q3_K: the 12 bytes with the scales are read with the four bytes around them, so the words are put together first. */
ALWAYS_INLINE void take_q3_k(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at, size_t ahead)
{
    words third[8], end[4], scale[4];
    transpose_32(third, row, at);
    transpose(end, row, at + 94);
    floats d = half_of(end[3] >> 16);
    words low[2] = {end[0] >> 16 | end[1] << 16, end[1] >> 16 | end[2] << 16}, high = end[2] >> 16 | end[3] << 16;
    UNROLL
    for (int k = 0; k < 4; k++) {
        words sc = (low[k % 2] >> k / 2 * 4 & each(15)) |
                   ((k < 2 ? high << (4 - 2 * k) : high >> (2 * k - 4)) & each(48));
        scale[k] = (words)((byte_vector)sc - (uint8_t)32);
    }
    UNROLL
    for (int n = 0; n < 8; n += 4) {
        words w[8];
        prefetch_rows(row, at + 55 * (size_t)n / 4, 55, ahead);
        transpose_32(w, row, at + 32 + 8 * (size_t)n);
        UNROLL
        for (int i = n; i < n + 4; i++) {
            struct open_group v;
            v.scale[0] = scaled_signed(scale[i / 2], i % 2 * 2, d);
            v.scale[1] = scaled_signed(scale[i / 2], i % 2 * 2 + 1, d);
            UNROLL
            for (int j = 0; j < 8; j++)
                v.codes[j] = (w[j] >> 2 * (i - n) & each(3)) |
                             ((i < 2 ? third[j] << (2 - i) : third[j] >> (i - 2)) & each(4));
            take(to, g + (size_t)i, WEIGHT_Q3_K, &v);
        }
    }
}

ALWAYS_INLINE void take_q2_k(struct TAKER *to, const unsigned char *const *row, size_t g, size_t at, size_t ahead)
{
    words head[4], end[4];
    transpose(head, row, at);
    transpose(end, row, at + 68); /* the last four of these 16 bytes are d and dmin */
    floats d = half_of(end[3]), dmin = half_of(end[3] >> 16);
    UNROLL
    for (int n = 0; n < 8; n += 4) {
        words w[8];
        prefetch_rows(row, at + 42 * (size_t)n / 4, 42, ahead);
        transpose_32(w, row, at + 16 + 8 * (size_t)n);
        UNROLL
        for (int i = n; i < n + 4; i++) {
            struct open_group v;
            words scale = head[i / 2] & each(15), minimum = head[i / 2] >> 4 & each(15);
            UNROLL
            for (int half = 0; half < 2; half++) {
                v.scale[half] = scaled_byte(scale, i % 2 * 2 + half, d);
                v.minimum[half] = scaled_byte(minimum, i % 2 * 2 + half, dmin);
            }
            UNROLL
            for (int j = 0; j < 8; j++)
                v.codes[j] = w[j] >> 2 * (i - n) & each(3);
            take(to, g + (size_t)i, WEIGHT_Q2_K, &v);
        }
    }
}

/* --- all types --- */

/* Calls take() for `groups` groups of each row, in ascending order. row[r] points to the block with the first group. */
ALWAYS_INLINE void take_groups(struct TAKER *to, enum weight_type type, const struct weight_view *w,
                               const unsigned char *const *row, size_t groups, size_t ahead)
{
    const struct quantized_format *f = quantized_format(type);
    const size_t at_once = blocks_at_once(type);
    size_t g = 0, at = 0;
    for (; at_once > 1 && g + at_once <= groups; g += at_once, at += at_once * f->bytes)
        take_blocks(to, type, w, row, g, at, ahead);
    for (; g < groups; g += f->numbers / QUANTIZED_GROUP, at += f->bytes) {
        if (type == WEIGHT_Q4_K || type == WEIGHT_Q5_K)
            take_k(to, type, row, g, at, ahead);
        else if (type == WEIGHT_Q6_K)
            take_q6_k(to, row, g, at, ahead);
        else if (type == WEIGHT_GGUF_NVFP4)
            take_gguf_nvfp4(to, w, row, g, at, ahead);
        else if (has_grid(type))
            take_grid(to, type, row, g, at, ahead);
        else if (type == WEIGHT_TQ1_0)
            take_tq1_0(to, row, g, at);
        else if (type == WEIGHT_TQ2_0)
            take_tq2_0(to, row, g, at);
        else if (type == WEIGHT_IQ4_XS)
            take_iq4_xs(to, row, g, at, ahead);
        else if (type == WEIGHT_Q3_K)
            take_q3_k(to, row, g, at, ahead);
        else if (type == WEIGHT_Q2_K)
            take_q2_k(to, row, g, at, ahead);
        else {
            prefetch_rows(row, at, f->bytes, ahead);
            take_one_block(to, type, w, row, g, at);
        }
    }
}

ALWAYS_INLINE void take_any(struct TAKER *to, const struct weight_view *w, const unsigned char *const *row,
                            size_t groups, size_t ahead)
{
    switch (w->type) {
    case WEIGHT_Q8_0: take_groups(to, WEIGHT_Q8_0, w, row, groups, ahead); break;
    case WEIGHT_Q4_0: take_groups(to, WEIGHT_Q4_0, w, row, groups, ahead); break;
    case WEIGHT_Q5_0: take_groups(to, WEIGHT_Q5_0, w, row, groups, ahead); break;
    case WEIGHT_Q5_1: take_groups(to, WEIGHT_Q5_1, w, row, groups, ahead); break;
    case WEIGHT_Q4_K: take_groups(to, WEIGHT_Q4_K, w, row, groups, ahead); break;
    case WEIGHT_Q5_K: take_groups(to, WEIGHT_Q5_K, w, row, groups, ahead); break;
    case WEIGHT_Q8_F32:
    case WEIGHT_CACHE_Q8: take_groups(to, WEIGHT_CACHE_Q8, w, row, groups, ahead); break;
    case WEIGHT_Q4_BF16: take_groups(to, WEIGHT_Q4_BF16, w, row, groups, ahead); break;
    case WEIGHT_MXFP4: take_groups(to, WEIGHT_MXFP4, w, row, groups, ahead); break;
    case WEIGHT_IQ2_XXS: take_groups(to, WEIGHT_IQ2_XXS, w, row, groups, ahead); break;
    case WEIGHT_IQ2_XS: take_groups(to, WEIGHT_IQ2_XS, w, row, groups, ahead); break;
    case WEIGHT_IQ2_S: take_groups(to, WEIGHT_IQ2_S, w, row, groups, ahead); break;
    case WEIGHT_IQ3_XXS: take_groups(to, WEIGHT_IQ3_XXS, w, row, groups, ahead); break;
    case WEIGHT_IQ3_S: take_groups(to, WEIGHT_IQ3_S, w, row, groups, ahead); break;
    case WEIGHT_IQ1_S: take_groups(to, WEIGHT_IQ1_S, w, row, groups, ahead); break;
    case WEIGHT_IQ1_M: take_groups(to, WEIGHT_IQ1_M, w, row, groups, ahead); break;
    case WEIGHT_TQ1_0: take_groups(to, WEIGHT_TQ1_0, w, row, groups, ahead); break;
    case WEIGHT_TQ2_0: take_groups(to, WEIGHT_TQ2_0, w, row, groups, ahead); break;
    case WEIGHT_Q4_1: take_groups(to, WEIGHT_Q4_1, w, row, groups, ahead); break;
    case WEIGHT_IQ4_NL: take_groups(to, WEIGHT_IQ4_NL, w, row, groups, ahead); break;
    case WEIGHT_IQ4_XS: take_groups(to, WEIGHT_IQ4_XS, w, row, groups, ahead); break;
    case WEIGHT_Q3_K: take_groups(to, WEIGHT_Q3_K, w, row, groups, ahead); break;
    case WEIGHT_NVFP4: take_groups(to, WEIGHT_NVFP4, w, row, groups, ahead); break;
    case WEIGHT_GGUF_NVFP4: take_groups(to, WEIGHT_GGUF_NVFP4, w, row, groups, ahead); break;
    case WEIGHT_Q2_K: take_groups(to, WEIGHT_Q2_K, w, row, groups, ahead); break;
    default: take_groups(to, WEIGHT_Q6_K, w, row, groups, ahead);
    }
}

/* Sets at[r] to the block that begins with group `group` of row `row` + r of w, for r < SLICE. Only the first `rows` of
 * these SLICE rows exist in w. For each of the other rows, at[r] is the block of the last row that exists. */
ALWAYS_INLINE void find_rows(const unsigned char *at[SLICE], const struct weight_view *w, size_t row, size_t rows,
                             size_t group)
{
    const struct quantized_format *f = quantized_format(w->type);
    size_t pitch = w->stride / f->numbers * f->bytes;
    const unsigned char *start = (const unsigned char *)w->data + row * pitch +
                                 group * QUANTIZED_GROUP / f->numbers * f->bytes;
    for (size_t r = 0; r < SLICE; r++)
        at[r] = start + (r < rows ? r : rows - 1) * pitch;
}

/* Returns the prefetch distance in bytes, from groups [group, group + groups) of a row to the data that is needed
 * next. This data is the group that follows in the same row. After the last group of a row, the data that is needed
 * next is the first group of the row that is `rows` rows further down. */
static inline size_t bytes_ahead(const struct weight_view *w, size_t group, size_t groups, size_t rows)
{
    const struct quantized_format *f = quantized_format(w->type);
    size_t blocks = f->numbers / QUANTIZED_GROUP;
    if (group + groups < w->cols / QUANTIZED_GROUP)
        return groups / blocks * f->bytes;
    return rows * (w->stride / f->numbers * f->bytes) - group / blocks * f->bytes;
}

#endif
