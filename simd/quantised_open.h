/* simd/quantised_open.h -- blocks of a file to open panels, for each vector instruction set: included by its file, behind
 *
 *     #define LANES                                          128-bit lanes of a register, each for four rows
 *     void transpose(words w[4], const unsigned char *const *row, size_t at)
 *                                                            w[i][r] = the four bytes at row[r] + at + 4i
 *     floats half_of(words w)                                f16 in the lower half of each word
 *
 * which find the types below. All formats are pieces of 16 bytes at the same places of each row: four words of them, transposed,
 * are vectors with a word per row, as panels want codes; the scales and minimums of a block are such a piece too. Nothing
 * outside the blocks is read. */
#ifndef VB_QUANTISED_OPEN_H
#define VB_QUANTISED_OPEN_H

#include "quantised_tiles.h"

#define SLICE (4 * LANES) /* rows at once */

typedef uint32_t words __attribute__((vector_size(16 * LANES)));
typedef int32_t integers __attribute__((vector_size(16 * LANES)));
typedef float floats __attribute__((vector_size(16 * LANES)));

ALWAYS_INLINE void transpose(words w[4], const unsigned char *const *row, size_t at);
ALWAYS_INLINE floats half_of(words w);

/* A slice of a panel at one group: the codes, scales and minimums of its rows. */
struct place {
    unsigned char *codes;
    float *scale[2], *minimum;
};

ALWAYS_INLINE struct place place_of(struct open_panel *panel, size_t first, size_t g)
{
    return (struct place){panel->codes[g] + 4 * first, {panel->scale[g][0] + first, panel->scale[g][1] + first}, panel->minimum[g] + first};
}

/* elements 4j..4j+3 */
ALWAYS_INLINE void put(struct place to, int j, words codes) { memcpy(to.codes + 64 * j, &codes, sizeof codes); }
ALWAYS_INLINE void put_floats(float *to, floats f) { memcpy(to, &f, sizeof f); }

/* the same four bytes in every row */
ALWAYS_INLINE words each(uint8_t byte) { return (words){0} + byte * 0x01010101u; }
/* in every byte; no sum is above 255 */
ALWAYS_INLINE words plus(words w, uint8_t byte) { return w + each(byte); }

/* --- 32 weights in a block --- */

static void open_q8_0(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    for (size_t g = 0, at = 0; g < groups; g++, at += 34) {
        struct place to = place_of(panel, first, g);
        words head[4], w[8];
        transpose(head, row, at);
        transpose(w, row, at + 2);
        transpose(w + 4, row, at + 18);
        put_floats(to.scale[0], half_of(head[0]));
        UNROLL
        for (int j = 0; j < 8; j++)
            put(to, j, w[j] ^ each(128));
    }
}

/* bits 4j..4j+3 of each word to bit 4 of its bytes: the product has each bit four times and none on another */
ALWAYS_INLINE words fifth_bits(words bits, int j) { return (bits >> 4 * j & 15) * 0x02040810u & each(16); }

/* Q4_0, Q5_0, Q5_1, whose codes as integers stand `above` too high; 128 more is what a panel wants. */
ALWAYS_INLINE void open_small(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups, size_t bytes,
                              int fifth, int minimums, uint8_t above)
{
    for (size_t g = 0, at = 0; g < groups; g++, at += bytes) {
        struct place to = place_of(panel, first, g);
        words head[4], w[4];
        transpose(head, row, at);
        transpose(w, row, at + bytes - 16);
        put_floats(to.scale[0], half_of(head[0]));
        if (minimums)
            put_floats(to.minimum, -half_of(head[0] >> 16));
        words bits = minimums ? head[1] : head[0] >> 16 | head[1] << 16;
        UNROLL
        for (int j = 0; j < 4; j++) {
            words low = w[j] & each(15), high = w[j] >> 4 & each(15);
            put(to, j, plus(fifth ? low | fifth_bits(bits, j) : low, 128 - above));
            put(to, j + 4, plus(fifth ? high | fifth_bits(bits, j + 4) : high, 128 - above));
        }
    }
}

static void open_q4_0(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    open_small(panel, first, row, groups, 18, 0, 0, 8);
}

static void open_q5_0(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    open_small(panel, first, row, groups, 22, 1, 0, 16);
}

static void open_q5_1(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    open_small(panel, first, row, groups, 24, 1, 1, 0);
}

/* --- 256 weights in a block --- */

/* byte i of each word, times d */
ALWAYS_INLINE floats scaled_byte(words w, int i, floats d)
{
    return d * __builtin_convertvector((integers)(w >> 8 * i & 255), floats);
}

/* Q4_K and Q5_K: a piece of d, dmin, and the scales and minimums of eight groups, of six bits: a word has four of them, or of the
 * last four the upper two bits of each byte. */
ALWAYS_INLINE void six_bits(struct open_panel *panel, size_t first, size_t g, const unsigned char *const *row, size_t at)
{
    words head[4], scale[2], minimum[2];
    transpose(head, row, at);
    floats d = half_of(head[0]), dmin = half_of(head[0] >> 16);
    scale[0] = head[1] & each(63);
    scale[1] = (head[3] & each(15)) | (head[1] >> 2 & each(48));
    minimum[0] = head[2] & each(63);
    minimum[1] = (head[3] >> 4 & each(15)) | (head[2] >> 2 & each(48));
    UNROLL
    for (int i = 0; i < 8; i++) {
        struct place to = place_of(panel, first, g + (size_t)i);
        put_floats(to.scale[0], scaled_byte(scale[i / 4], i % 4, d));
        put_floats(to.minimum, scaled_byte(minimum[i / 4], i % 4, dmin));
    }
}

static void open_q4_k(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    for (size_t g = 0, at = 0; g < groups; g += 8, at += 144) {
        six_bits(panel, first, g, row, at);
        for (size_t two = 0; two < 8; two += 2) { /* groups that share their bytes */
            struct place to = place_of(panel, first, g + two), upper = place_of(panel, first, g + two + 1);
            UNROLL
            for (int j = 0; j < 8; j += 4) {
                words w[4];
                transpose(w, row, at + 16 + two * 16 + (size_t)j * 4);
                UNROLL
                for (int i = 0; i < 4; i++) {
                    put(to, j + i, (w[i] & each(15)) | each(128));
                    put(upper, j + i, (w[i] >> 4 & each(15)) | each(128));
                }
            }
        }
    }
}

/* bit n of every byte, as bit 4 */
ALWAYS_INLINE words bit_as_fifth(words w, int n) { return (n < 4 ? w << (4 - n) : w >> (n - 4)) & each(16); }

static void open_q5_k(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    for (size_t g = 0, at = 0; g < groups; g += 8, at += 176) {
        six_bits(panel, first, g, row, at);
        UNROLL
        for (int j = 0; j < 8; j += 4) {
            words high[4]; /* of all eight groups */
            transpose(high, row, at + 16 + (size_t)j * 4);
            UNROLL
            for (int two = 0; two < 8; two += 2) {
                struct place to = place_of(panel, first, g + (size_t)two), upper = place_of(panel, first, g + (size_t)two + 1);
                words w[4];
                transpose(w, row, at + 48 + (size_t)two * 16 + (size_t)j * 4);
                UNROLL
                for (int i = 0; i < 4; i++) {
                    put(to, j + i, (w[i] & each(15)) | bit_as_fifth(high[i], two) | each(128));
                    put(upper, j + i, (w[i] >> 4 & each(15)) | bit_as_fifth(high[i], two + 1) | each(128));
                }
            }
        }
    }
}

/* a signed byte of each word, times d */
ALWAYS_INLINE floats scaled_signed(words w, int i, floats d)
{
    return d * __builtin_convertvector((integers)(w << (24 - 8 * i)) >> 24, floats);
}

/* Four groups of 128 weights: two of them share 32 bytes of low bits, all four the bytes of high ones. */
ALWAYS_INLINE void open_128(struct open_panel *panel, size_t first, size_t g, const unsigned char *const *row, size_t low, size_t high)
{
    UNROLL
    for (int j = 0; j < 8; j += 4) {
        words h[4];
        transpose(h, row, high + (size_t)j * 4);
        UNROLL
        for (int k = 0; k < 2; k++) {
            struct place to = place_of(panel, first, g + (size_t)k), upper = place_of(panel, first, g + (size_t)k + 2);
            words w[4];
            transpose(w, row, low + (size_t)k * 32 + (size_t)j * 4);
            UNROLL
            for (int i = 0; i < 4; i++) {
                words two = h[i] >> 2 * k, upper_two = h[i] >> (2 * k + 4);
                put(to, j + i, plus((w[i] & each(15)) | (two << 4 & each(48)), 128 - 32));
                put(upper, j + i, plus((w[i] >> 4 & each(15)) | (upper_two << 4 & each(48)), 128 - 32));
            }
        }
    }
}

static void open_q6_k(struct open_panel *panel, size_t first, const unsigned char *const *row, size_t groups)
{
    for (size_t g = 0, at = 0; g < groups; g += 8, at += 210) {
        words scale[4], end[4];
        transpose(scale, row, at + 192);
        transpose(end, row, at + 194); /* d is the last of its bytes */
        floats d = half_of(end[3] >> 16);
        UNROLL
        for (int i = 0; i < 8; i++) {
            struct place to = place_of(panel, first, g + (size_t)i);
            put_floats(to.scale[0], scaled_signed(scale[i / 2], i % 2 * 2, d));
            put_floats(to.scale[1], scaled_signed(scale[i / 2], i % 2 * 2 + 1, d));
        }
        open_128(panel, first, g, row, at, at + 128);
        open_128(panel, first, g + 4, row, at + 64, at + 160);
    }
}

/* struct quantised_loops.open */
ALWAYS_INLINE void open_rows(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups)
{
    const struct quantised_format *f = quantised_format(w->type);
    size_t pitch = w->stride / f->numbers * f->bytes;
    const unsigned char *start = (const unsigned char *)w->data + row * pitch + group * QUANTISED_GROUP / f->numbers * f->bytes;
    for (size_t first = 0; first < rows; first += SLICE) {
        const unsigned char *at[SLICE];
        for (size_t r = 0; r < SLICE; r++) /* a row that is missing repeats the last */
            at[r] = start + (first + r < rows ? first + r : rows - 1) * pitch;
        switch (w->type) {
        case WEIGHT_Q8_0: open_q8_0(panel, first, at, groups); break;
        case WEIGHT_Q4_0: open_q4_0(panel, first, at, groups); break;
        case WEIGHT_Q5_0: open_q5_0(panel, first, at, groups); break;
        case WEIGHT_Q5_1: open_q5_1(panel, first, at, groups); break;
        case WEIGHT_Q4_K: open_q4_k(panel, first, at, groups); break;
        case WEIGHT_Q5_K: open_q5_k(panel, first, at, groups); break;
        default: open_q6_k(panel, first, at, groups);
        }
    }
}

#endif
