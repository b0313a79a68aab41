/* simd/quantized_open_group.h -- one group (32 weights) of each of several rows, unpacked; a part of quantized_open.h.
 * The comment there lists what the including file must define first. */
#ifndef VB_QUANTIZED_OPEN_GROUP_H
#define VB_QUANTIZED_OPEN_GROUP_H

#include "simd/quantized_tiles.h"

#define SLICE (4 * LANES) /* number of rows that are unpacked together: one 32-bit word of a register for each */

typedef uint32_t words __attribute__((vector_size(16 * LANES)));
typedef uint8_t byte_vector __attribute__((vector_size(16 * LANES)));
typedef int32_t signed_words __attribute__((vector_size(16 * LANES)));
typedef float floats __attribute__((vector_size(16 * LANES)));

/* One group (32 weights) of each of SLICE rows. Codes are unsigned bytes: each is the signed integer q of its weight
 * (quantized.h) plus code_above(type). */
struct open_group {
    words codes[8]; /* codes[j] holds elements 4j..4j+3 of each row */
    floats scale[2], minimum[2];
};

struct TAKER;
ALWAYS_INLINE void transpose(words w[4], const unsigned char *const *row, size_t at);
ALWAYS_INLINE floats half_of(words w);
ALWAYS_INLINE words look_up(words table, words w);
ALWAYS_INLINE words four_bits(words w, int j);
ALWAYS_INLINE void take(struct TAKER *to, size_t g, enum weight_type type, const struct open_group *group);

ALWAYS_INLINE int is_q4(enum weight_type type) { return type == WEIGHT_Q4_0 || type == WEIGHT_Q4_BF16; }

ALWAYS_INLINE int code_above(enum weight_type type)
{
    switch (type) {
    case WEIGHT_Q8_0:
    case WEIGHT_Q8_F32:
    case WEIGHT_CACHE_Q8:
    case WEIGHT_IQ4_NL:
    case WEIGHT_IQ4_XS: return 128;
    case WEIGHT_IQ2_XXS:
    case WEIGHT_IQ2_XS:
    case WEIGHT_IQ2_S:
    case WEIGHT_IQ3_XXS: return 64;
    case WEIGHT_Q6_K:
    case WEIGHT_IQ1_M: return 32;
    case WEIGHT_Q5_0:
    case WEIGHT_IQ1_S:
    case WEIGHT_IQ3_S: return 16;
    case WEIGHT_MXFP4:
    case WEIGHT_GGUF_NVFP4:
    case WEIGHT_NVFP4: return 12;
    case WEIGHT_Q4_0:
    case WEIGHT_Q4_BF16: return 8;
    case WEIGHT_Q3_K: return 4;
    case WEIGHT_TQ1_0:
    case WEIGHT_TQ2_0: return 1;
    default: return 0;
    }
}

/* Returns -code_above(type) times the sum of x. */
ALWAYS_INLINE int32_t above_times_x(enum weight_type type, const struct quantized_group *x)
{
    const int above = code_above(type);
    return above == 128 ? x->offset128 : above % 8 == 0 ? above / 8 * x->offset8 : -above * x->sum;
}

ALWAYS_INLINE int has_halves(enum weight_type type)
{
    return type == WEIGHT_Q6_K || type == WEIGHT_IQ2_XS || type == WEIGHT_IQ2_S || type == WEIGHT_IQ1_M ||
           type == WEIGHT_Q3_K || type == WEIGHT_Q2_K || type == WEIGHT_NVFP4 || type == WEIGHT_GGUF_NVFP4;
}
ALWAYS_INLINE int has_minimums(enum weight_type type)
{
    return type == WEIGHT_Q4_1 || type == WEIGHT_Q5_1 || type == WEIGHT_Q4_K || type == WEIGHT_Q5_K ||
           type == WEIGHT_Q2_K;
}

/* Returns a vector in which every byte is `byte`. */
ALWAYS_INLINE words each(unsigned byte) { return (words){0} + byte * 0x01010101u; }

/* Copies group g of SLICE rows to an open panel. The SLICE rows become the rows of the panel from row `first` on. */
ALWAYS_INLINE void put_group(struct open_panel *panel, size_t first, size_t g, enum weight_type type,
                             const struct open_group *group)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        words codes = group->codes[j] + each(128u - (unsigned)code_above(type)); /* no byte overflows */
        memcpy(panel->codes[g] + 64 * j + 4 * first, &codes, sizeof codes);
    }
    memcpy(panel->scale[g][0] + first, &group->scale[0], sizeof group->scale[0]);
    if (has_halves(type))
        memcpy(panel->scale[g][1] + first, &group->scale[1], sizeof group->scale[1]);
    if (has_minimums(type))
        memcpy(panel->minimum[g][0] + first, &group->minimum[0], sizeof group->minimum[0]);
    if (has_minimums(type) && has_halves(type))
        memcpy(panel->minimum[g][1] + first, &group->minimum[1], sizeof group->minimum[1]);
}

/* Prefetches data that is needed later. In each row, this data lies `ahead` bytes after the range [at, at + bytes).
 * `bytes` is at most 64. The function prefetches only if a multiple of 64 lies in the range, so that successive ranges
 * request each cache line once. It prefetches to L2, because L1 is too small for all rows. */
ALWAYS_INLINE void prefetch_rows(const unsigned char *const *row, size_t at, size_t bytes, size_t ahead)
{
    size_t line = (at + 63) / 64 * 64;
    if (line < at + bytes)
        UNROLL
        for (int r = 0; r < SLICE; r++)
            __builtin_prefetch(row[r] + line + ahead, 0, 2);
}

ALWAYS_INLINE void transpose_32(words w[8], const unsigned char *const *row, size_t at)
{
    transpose(w, row, at);
    transpose(w + 4, row, at + 16);
}

#endif
