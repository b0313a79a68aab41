/* simd/tiles.h -- the loops over a weight matrix that all vector instruction sets share (private to simd/).
 *
 * A tile multiplies TILE_ROWS rows of the matrix by a few tokens, over one block of K (DOT_BLOCK columns). Each pair of
 * a row and a token has its own sixteen sums, and all of them are in registers. A strip is 16 to STRIP columns
 * of the result of the kernels fma_rows, fma_rows_onto and fma_outer. Each instruction set supplies a tile function, a
 * strip function and a decoder (struct vector_loops). tiles.c cuts matrices into tiles, and strips.c into strips.
 *
 * Tile functions handle whole chunks only, and strip functions whole strips only. If K ends inside a chunk, or if
 * fewer than LEAST_STRIP columns are left, the weights are first decoded to f32 and padded with +0. F16, F8, I8, I4 and
 * F4 weights are always decoded to f32 first, in strips of STRIP or HALF_STRIP columns. If fewer than TILE_ROWS rows
 * are left, tiles.c repeats one of them in the tile and discards the extra sums. */
#ifndef VB_TILES_H
#define VB_TILES_H

#include "simd/decode.h"
#include "numbers/numbers.h"

#include <string.h>

#define TILE_ROWS 4
#define TILE_TOKENS 6 /* the largest number of tokens in a tile; an instruction set may handle fewer at once */
#define STRIP 64      /* columns */
#define HALF_STRIP 32
#define LEAST_STRIP 16

/* The format of the weights that a tile or strip function reads: BF16 as stored, f32 in natural order (stored or
 * decoded), or f32 in packed order (for tiles only). kernels.h explains the packed order at packed_length. */
enum tile_source { FROM_BF16, FROM_F32, FROM_PACKED };

/* A series of tiles that use the same tokens. One call computes the whole series, because a matrix with short rows has
 * thousands of tiles and the fixed cost of a call would be paid for each of them. */
struct tile {
    enum tile_source source;
    size_t count;             /* number of tiles in the series */
    const void *w[TILE_ROWS]; /* address of each row of the first tile, at the first weight of the block of K */
    size_t w_next;            /* bytes from a row of a tile to the same row of the next tile */
    const float *x;           /* the tokens' vectors in packed order, at the first number of the block (for `tile`) */
    const uint16_t *narrow;   /* the tokens' vectors as BF16 in natural order (for `tile_bf16`), else NULL */
    size_t ldx, step;         /* elements of x or `narrow`: ldx from a token to the next, step from a chunk to the
                                 next */
    size_t chunks;            /* number of chunks of 32 in this block; all of them are whole */
    size_t prefetch;          /* prefetch distance in bytes, which is added to the address of a weight */
    float *y;                 /* the sum of row r and token t of tile i belongs to y[i * y_next + r * y_row + t *
                                 ldy] */
    size_t y_next, y_row, ldy;
    int first;                /* nonzero: sums are assigned to y (first block of K); 0: they are added to y */
};

/* A strip of `columns` columns of fma_rows (a multiple of LEAST_STRIP, at most STRIP), over some rows of the matrix. */
struct strip {
    enum tile_source source;  /* FROM_BF16 or FROM_F32 */
    int first;                /* nonzero: every y starts at +0 */
    size_t columns, rows, pitch; /* pitch: bytes from a row of the matrix to the next */
    const void *w;
    const float *x;           /* x[t * ldx + n * step] for token t and row n */
    float *y;                 /* y[t * ldy + c] */
    size_t ldx, step, ldy;
    size_t prefetch;          /* a distance in bytes, which is added to the address of a weight; 0: no prefetching */
    const char *ahead;        /* prefetched with the first row, */
    size_t ahead_step;        /* and this many bytes further on with each row after it */
};

/* The functions that an instruction set supplies. T is a number of tokens, from 1 to the member `tokens`. */
struct vector_loops {
    size_t tokens;
    /* From so many tokens on, `tile` reads a block of weights more than once, and each time prefetches a part of the
     * next tile; 0: never */
    size_t parts_from;
    /* Computes the sums of all tiles of the series for T tokens. */
    void (*tile)(size_t T, const struct tile *tile);
    /* Does what `tile` does, but multiplies tile->narrow by BF16 weights (FROM_BF16). Every nonzero weight must be
     * at least 2^-56 in magnitude. tile_bf16 is NULL if the instruction set has no such function; tiles.c then
     * widens the vectors to f32 and calls `tile`. */
    void (*tile_bf16)(size_t T, const struct tile *tile);
    /* Computes y[t][c] = fma(x of t and n, w[n][c], y[t][c]) for each token t, each column c of the strip, and each row
     * n of w in ascending order. T is from 1 to strip_tokens. */
    void (*strip)(size_t T, const struct strip *strip);
    size_t strip_tokens;
    /* Decodes whole chunks of 32 weights (F16, BF16, F8_E4M3 or I8) to f32, in natural order, or in packed order if
     * `packed` is nonzero. `scale` multiplies F8_E4M3 and I8 weights and is ignored for the other types. */
    void (*decode)(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed);
    /* Decodes whole groups of 32 weights of type I4. `scales` has a BF16 number for each group. `rounded`: struct
     * weight_view. */
    void (*decode_i4)(float *out, const unsigned char *codes, const unsigned char *scales, size_t groups, int rounded,
                      int packed);
    /* Decodes whole chunks of 32 weights of an F4 matrix. The first is weight `at` of the matrix: row at / stride,
     * column at % stride. It begins a group. */
    void (*decode_f4)(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed);
    /* Decodes groups of type CACHE_Q8 to f32, in natural order: `groups` groups of each of `rows` rows. Rows begin
     * `pitch` bytes apart at `blocks`, and ld floats apart at `out`. */
    void (*decode_cache_q8)(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows,
                            size_t groups);
    void (*pack)(float *packed, const float *x, size_t K);
};

void tiled_matmul(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                  const float *x, size_t ldx, size_t T, void *scratch);
void tiled_matmul_bf16(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                       size_t n1, const uint16_t *x, size_t ldx, size_t T, void *scratch);
/* Decodes weights (i, j) .. (i, j + n - 1) of w, of any type that follows rule 1, to f32, in natural order or
 * packed. */
void tiled_decode(const struct vector_loops *v, float *out, const struct weight_view *w, size_t i, size_t j, size_t n,
                  int packed);
/* Defined in strips.c; for types that follow rule 1 and for CACHE_Q8. onto: nonzero for kernel fma_rows_onto. */
void tiled_fma_rows(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t c0,
                    size_t c1, const float *x, size_t ldx, size_t T, void *scratch, int onto);
void tiled_fma_outer(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, const float *x,
                     size_t ldx, size_t T, void *scratch);

/* --- what tiles.c and strips.c share --- */


static inline size_t weight_size(enum weight_type type)
{
    return type == WEIGHT_F32 ? 4 : weight_is_byte(type) ? 1 : 2;
}

static inline const unsigned char *weight_at(const struct weight_view *w, size_t i, size_t j)
{
    return (const unsigned char *)w->data + (i * w->stride + j) * weight_size(w->type);
}

/* Returns where a loop of `times` rounds begins to prefetch, and sets *step to the distance of its prefetches: at most
 * a cache line. If there is nothing to prefetch, it is w, again and again: that costs less than to ask. */
static inline const char *take_ahead(struct weight_ahead *ahead, const void *w, size_t times, size_t *step)
{
    const char *at = ahead ? ahead->at : w;
    *step = ahead ? min_size((size_t)(ahead->end - at) / times, 64) : 0;
    if (*step)
        ahead->at += *step * times;
    return *step ? at : w;
}

/* Copies the n < DOT_CHUNK numbers of an incomplete chunk, fills the rest of the copy with +0, and returns the copy. */
static inline const float *copy_cut(float copy[DOT_CHUNK], const float *x, size_t n)
{
    memset(copy, 0, DOT_CHUNK * sizeof *x);
    return memcpy(copy, x, n * sizeof *x);
}

/* Accumulators stay in registers only if every loop over them is unrolled and inlined with constant bounds. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Stores a sum: assigns it to *y if `first` is nonzero, else adds it to *y. */
ALWAYS_INLINE void put_sum(float *y, float sum, int first) { *y = first ? sum : *y + sum; }

/* Stores the sums of tile i, sums[token][row], in y (see struct tile). */
ALWAYS_INLINE void put_tile(const struct tile *p, size_t i, int T, float (*sums)[TILE_ROWS])
{
    float *y = p->y + i * p->y_next;
    UNROLL
    for (int t = 0; t < T; t++, y += p->ldy)
        if (p->first && p->y_row == 1)
            memcpy(y, sums[t], sizeof sums[t]);
        else
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                put_sum(y + (size_t)r * p->y_row, sums[t][r], p->first);
}

/* Kernel `narrow`: rounds K packed numbers to BF16 in natural order. Two neighbouring BF16 numbers form a 32-bit word:
 * the odd element is its upper half, and the even one its lower half. The loop writes one 32-bit word in each
 * iteration. It is compiled once for each instruction set, and the compiler vectorises it. */
ALWAYS_INLINE void narrow_chunks(uint16_t *y, const float *packed, size_t K)
{
    for (size_t k = 0; k < K; k += DOT_CHUNK, packed += DOT_CHUNK, y += DOT_CHUNK) {
        uint32_t pairs[16];
        float cut[DOT_CHUNK];
        const float *x = packed;
        if (K - k < DOT_CHUNK) {
            size_t n = K - k;
            memset(cut, 0, sizeof cut);
            memcpy(cut, x, n / 2 * sizeof *x);
            memcpy(cut + 16, x + 16, (n + 1) / 2 * sizeof *x);
            x = cut;
        }
        for (size_t l = 0; l < 16; l++)
            pairs[l] = (uint32_t)f32_to_bf16_x(x[l]) << 16 | f32_to_bf16_x(x[16 + l]);
        memcpy(y, pairs, sizeof pairs);
    }
}

/* For vector_loops.decode_f4: the scales of so many chunks are converted at once. */
#define F4_CHUNKS (DOT_BLOCK / DOT_CHUNK)

ALWAYS_INLINE size_t f4_scales_of_a_chunk(const struct weight_view *w) { return w->group_size == 16 ? 2 : 1; }

/* Converts the scales of some chunks of an F4 matrix to f32; the first chunk begins at weight `at`. The E2M1 numbers
 * are multiplied by them, and then by f4_factor(w). Each loop is for the compiler to vectorise. */
ALWAYS_INLINE void f4_scales(float *restrict out, const struct weight_view *w, size_t at, size_t chunks)
{
    const size_t count = f4_scales_of_a_chunk(w) * chunks;
    const uint8_t *restrict codes = (const uint8_t *)w->group_scale + (w->group_size == 16 ? at / 16 : at / 32);
    if (w->group_size == 32) {
        for (size_t i = 0; i < count; i++)
            out[i] = bits_to_f32(codes[i] == 255 ? 0x7fc00000 : codes[i] ? (uint32_t)codes[i] << 23 : 0x400000);
        return;
    }
    for (size_t i = 0; i < count; i++) { /* as the exponent and the fraction of an f32, E4M3 is 2^-120 times as large */
        uint32_t magnitude = codes[i] & 127u, sign = (codes[i] & 128u) << 24;
        uint32_t bits = f32_to_bits(bits_to_f32(magnitude << 20) * 0x1p120f);
        out[i] = bits_to_f32((magnitude == 127 ? 0x7fc00000 : bits) | sign);
    }
    for (size_t i = 0; w->divides && i < count; i++)
        out[i] /= w->tensor_scale;
}

ALWAYS_INLINE float f4_factor(const struct weight_view *w)
{
    return w->group_size == 16 && !w->divides ? w->tensor_scale : 1.0f;
}

/* vector_loops.decode_cache_q8, for the compiler to vectorise as it does narrow_chunks. */
ALWAYS_INLINE void decode_groups(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows,
                                 size_t groups)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t g = 0; g < groups; g++) {
            const unsigned char *block = blocks + r * pitch + g * 36;
            const int8_t *restrict q = (const int8_t *)block + 4;
            float d, *restrict y = out + r * ld + g * DOT_CHUNK;
            memcpy(&d, block, sizeof d);
            for (size_t l = 0; l < 32; l++)
                y[l] = d * (float)q[l];
        }
}

#endif
