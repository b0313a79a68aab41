/* simd/quantised_tiles.h -- the loops around a quantised matrix that every vector instruction set shares (private to simd/).
 *
 * A tile is a few panels of one block of K times a few rows of x: lanes are rows of the matrix, so that x is a broadcast of
 * four numbers and nothing is folded. Blocks of a file are taken apart into such panels as they come, a block of K at a time, or
 * for few rows of x into registers (quantised_open.h). */
#ifndef VB_QUANTISED_TILES_H
#define VB_QUANTISED_TILES_H

#include "simd/quantised.h"
#include "simd/tiles.h"

#define BLOCK_GROUPS (DOT_BLOCK / QUANTISED_GROUP)
#define TILE_PANELS 4  /* at most, */
#define TILE_ROWS_OF_X 6 /* at most, */
#define TILE_SUMS 12   /* and their product */
#define FEW_ROWS_OF_X 12 /* at most: panels are streams then, and blocks are not worth an open panel */
#define MANY_PANELS 8    /* x BLOCK_GROUPS that stay in L2 while more rows of x pass */

/* 16 rows of one block taken apart: codes + 128 as in a panel of Q8_0, scales of both halves */
struct open_panel {
    _Alignas(64) unsigned char codes[BLOCK_GROUPS][512];
    float scale[BLOCK_GROUPS][2][PANEL_ROWS], minimum[BLOCK_GROUPS][PANEL_ROWS];
};

enum panel_kind { PANEL_Q8_0, PANEL_Q4_0, PANEL_OPEN, PANEL_OPEN_HALVES, PANEL_OPEN_MINIMUMS };

struct quantised_tile {
    enum panel_kind kind;
    const void *w[TILE_PANELS];      /* each panel at the block; of open ones, a struct open_panel */
    const struct quantised_group *x; /* at the block */
    size_t ldx, groups;              /* groups in this block */
    size_t prefetch;                 /* how many bytes ahead of a panel's codes the next useful ones lie */
};

struct quantised_loops {
    /* sums[p*T + t][r] = the block's sum for row r of panel p and row t of x; P is 1, 2 or 4, T <= 6, P * T <= 12 */
    void (*tile)(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantised_tile *tile);
    /* takes apart rows [row, row + rows), rows <= 16, `groups` groups from `group` on; the other rows are of no matter */
    void (*open)(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups);
    /* sums[t][r] = the sum of these groups for row `row + r` and row t of x, T <= FEW_ROWS_OF_X, from blocks */
    void (*few)(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups,
                const struct quantised_group *x, size_t ldx, size_t T);
};

/* Codes of six bits with a scale for each half stand 32 too high: less[t][g][half] = -32 times the sum of that half of x */
static inline void sums_of_halves(int32_t (*less)[BLOCK_GROUPS][2], const struct quantised_group *x, size_t ldx, size_t T, size_t groups)
{
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < groups; g++) {
            const struct quantised_group *v = x + t * ldx + g;
            int32_t upper = 0;
            for (size_t l = 16; l < 32; l++)
                upper += v->q[l];
            less[t][g][0] = -32 * (v->sum - upper);
            less[t][g][1] = -32 * upper;
        }
}

void tiled_matmul_quantised(const struct quantised_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                            size_t n1, const struct quantised_group *x, size_t ldx, size_t T, void *scratch);

void avx512_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups);
void avx512_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups,
                const struct quantised_group *x, size_t ldx, size_t T);
void avx2_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups);
void avx2_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group, size_t groups,
              const struct quantised_group *x, size_t ldx, size_t T);

#endif
