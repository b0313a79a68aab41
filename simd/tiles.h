/* simd/tiles.h -- the loops around a matrix that every vector instruction set shares (private to simd/).
 *
 * A tile is TILE_ROWS rows of one block of K times a few tokens, each pair with its own sixteen sums in registers; a
 * strip is STRIP columns of fma_rows. The instruction sets supply those two and a decoder; tiles.c cuts matrices into
 * them. Neither tile nor strip sees an end: what is cut short by K, by the last column, or stored as F16 or F8 is
 * decoded to f32 first, padded with +0, and a row that is missing repeats another one and is not written. */
#ifndef VB_TILES_H
#define VB_TILES_H

#include "simd/decode.h"

#include <string.h>

#define TILE_ROWS 4
#define TILE_TOKENS 6 /* at most; an instruction set may take fewer at once */
#define STRIP 64      /* columns */

/* How a tile or strip finds its weights: as stored, or decoded to f32 and (tiles only) packed like x. */
enum tile_source { FROM_BF16, FROM_F32, FROM_PACKED };

/* Tiles of the same tokens, one after another: a matrix of short rows takes thousands, so what a tile costs besides its
 * sums is what such a matrix costs. */
struct tile {
    enum tile_source source;
    size_t count;             /* tiles */
    const void *w[TILE_ROWS]; /* each row of the first tile at the first weight of the block */
    size_t w_next;            /* bytes from a row to the same row of the next tile */
    const float *x;           /* packed vectors, at the first number of the block; */
    const uint16_t *narrow;   /* or, for tile_bf16, narrow ones */
    size_t ldx, step;         /* numbers from one vector to the next, and from one chunk to the next */
    size_t chunks;            /* of 32 in this block, all whole */
    size_t prefetch;          /* how many bytes ahead of a row's weights the next useful ones lie */
    float *y;                 /* the sum of row r and token t of tile i goes to y[i * y_next + r * y_row + t * ldy]: */
    size_t y_next, y_row, ldy;
    int first;                /* it is assigned; else added */
};

/* What an instruction set supplies. T = 1..tokens. */
struct vector_loops {
    size_t tokens;
    /* the block's sums of all the tiles, for T tokens */
    void (*tile)(size_t T, const struct tile *tile);
    /* the same of narrow vectors, FROM_BF16; weights are not tiny. NULL: they are widened for `tile` */
    void (*tile_bf16)(size_t T, const struct tile *tile);
    /* y[t][c] = x[t][n] * w[n][c] fused into y (into +0 if first), n ascending, for STRIP columns; w natural,
     * `pitch` bytes from row to row; source FROM_BF16 or FROM_F32 */
    void (*strip)(float *y, size_t ldy, size_t T, enum tile_source source, const void *w, size_t pitch, size_t rows,
                  const float *x, size_t ldx, int first, size_t prefetch);
    /* whole chunks of 32 weights (F16, BF16, F8_E4M3), natural or packed; the scale is for F8_E4M3 */
    void (*decode)(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed);
    void (*pack)(float *packed, const float *x, size_t K);
};

void tiled_matmul(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                  const float *x, size_t ldx, size_t T, void *scratch);
void tiled_matmul_bf16(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                       size_t n1, const uint16_t *x, size_t ldx, size_t T, void *scratch);
void tiled_fma_rows(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t c0,
                    size_t c1, const float *x, size_t ldx, size_t T, void *scratch);

/* the n < DOT_CHUNK numbers of a chunk that is cut short, +0 behind them */
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

/* One sum to its place in y. */
ALWAYS_INLINE void put_sum(float *y, float sum, int first) { *y = first ? sum : *y + sum; }

/* Tile i's sums, sums[t][r], to their places. */
ALWAYS_INLINE void put_tile(const struct tile *p, size_t i, int T, float (*sums)[TILE_ROWS])
{
    float *y = p->y + i * p->y_next;
    UNROLL
    for (int t = 0; t < T; t++, y += p->ldy)
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            put_sum(y + (size_t)r * p->y_row, sums[t][r], p->first);
}

/* An odd element is the upper half of a pair, an even one the lower: words of 32 bits, which the
 * compiler makes vectors of, once for each instruction set. */
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

#endif
