/* simd/quantized_tiles.h -- the loops over a quantized matrix that all vector instruction sets share (private to
 * simd/).
 *
 * A tile multiplies a few panels by a few rows of x, over one block of K (DOT_BLOCK columns). Each lane of a vector
 * works on one row of the matrix. So the code broadcasts four numbers of x to all lanes, and no sum has to be folded
 * across lanes.
 *
 * A matrix that consists of GGUF blocks is unpacked first, one block of K at a time, into temporary panels (struct
 * open_panel). If x has few rows, the groups are multiplied as soon as they are in registers (quantized_open.h). */
#ifndef VB_QUANTIZED_TILES_H
#define VB_QUANTIZED_TILES_H

#include "simd/quantized.h"
#include "simd/tiles.h"

#define BLOCK_GROUPS (DOT_BLOCK / QUANTIZED_GROUP)
#define TILE_PANELS 4  /* largest number of panels in a tile */
#define TILE_ROWS_OF_X 6 /* largest number of rows of x in a tile */
#define TILE_SUMS (TILE_PANELS * TILE_ROWS_OF_X) /* the most (panel, row of x) pairs in a tile; an instruction set may
                                                    want fewer */
#define TILE_READY ((size_t)TILE_ROWS_OF_X * BLOCK_GROUPS * 96) /* room for the rows of x of a tile in another form */
#define FEW_ROWS_OF_X 12 /* with at most this many rows of x, GGUF blocks are multiplied without open panels */
#define MANY_PANELS 12    /* number of panels, each of BLOCK_GROUPS groups, that stay in the L2 cache while they are
                          multiplied with several tiles of x */

/* 16 rows of one block of K, unpacked. Codes are stored as in a Q8_0 panel: q + 128. scale[g] has a scale for each half
 * of group g; minimum[g] has one for each half, or [0] for the group. */
struct open_panel {
    _Alignas(64) unsigned char codes[BLOCK_GROUPS][512];
    float scale[BLOCK_GROUPS][2][PANEL_ROWS], minimum[BLOCK_GROUPS][2][PANEL_ROWS];
};

enum panel_kind {
    PANEL_Q8_0,
    PANEL_Q4_0,
    PANEL_Q4_BF16,
    PANEL_IQ4_NL,
    PANEL_Q8_F32,
    PANEL_OPEN,
    PANEL_OPEN_HALVES,
    PANEL_OPEN_WIDE_HALVES,
    PANEL_OPEN_MINIMUMS,
    PANEL_OPEN_HALVES_MINIMUMS
};

static inline int panel_is_open(enum panel_kind kind) { return kind >= PANEL_OPEN; }
static inline int panel_has_4_bits(enum panel_kind kind)
{
    return kind == PANEL_Q4_0 || kind == PANEL_Q4_BF16 || kind == PANEL_IQ4_NL;
}

static inline int panel_has_halves(enum panel_kind kind)
{
    return kind == PANEL_OPEN_HALVES || kind == PANEL_OPEN_WIDE_HALVES || kind == PANEL_OPEN_HALVES_MINIMUMS;
}
static inline int panel_has_minimums(enum panel_kind kind)
{
    return kind == PANEL_OPEN_MINIMUMS || kind == PANEL_OPEN_HALVES_MINIMUMS;
}

struct quantized_tile {
    enum panel_kind kind;
    const void *w[TILE_PANELS];      /* the address of each panel at this block of K; kinds PANEL_OPEN...: of a struct
                                        open_panel */
    const struct quantized_group *x; /* the first row of x, at the start of this block of K */
    size_t ldx, groups;              /* ldx: groups from a row of x to the next; groups: groups in this block of K */
    const void *ready;               /* the same rows of x, as `prepare` has written them */
    size_t prefetch;                 /* prefetch distance in bytes, which is added to the address of a panel's codes */
};

struct quantized_loops {
    size_t most_sums; /* the most (panel, row of x) pairs in a tile, at most TILE_SUMS */
    int opens_panels; /* nonzero if `open` also takes IQ4_NL panels: it is then called if x has more than FEW_ROWS_OF_X
                         rows */
    /* Copies the T rows of x of a tile (members x, ldx and groups) to `ready`, in a form that `tile` reads faster. It
     * is called before the tiles that share these rows, and writes at most TILE_READY bytes. NULL: `tile` reads x
     * itself. */
    void (*prepare)(void *ready, size_t T, const struct quantized_tile *tile);
    /* Sets sums[p*T + t][r] to the block's sum for row r of panel p and row t of x. P, the number of panels, is 1, 2 or
     * 4; T, the number of rows of x, is at most 6; P * T is at most most_sums. */
    void (*tile)(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantized_tile *tile);
    /* Unpacks groups [group, group + groups) of rows [row, row + rows) of w; rows <= 16. If rows < 16, the remaining
     * rows of the panel are undefined. */
    void (*open)(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
                 size_t groups);
    /* Sets sums[t][r] to the sum over groups [group, group + groups) for row `row` + r of w and row t of x. T is at
     * most FEW_ROWS_OF_X. w consists of GGUF blocks; its type is neither CACHE_Q8 nor Q8_F32. */
    void (*few)(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
                size_t groups, const struct quantized_group *x, size_t ldx, size_t T);
};

static inline int32_t sum_of_half(const struct quantized_group *x, int half)
{
    return half ? x->upper : x->sum - x->upper;
}

void tiled_matmul_quantized(const struct quantized_loops *v, float *y, size_t ldy, const struct weight_view *w,
                            size_t n0, size_t n1, const struct quantized_group *x, size_t ldx, size_t T, void *scratch);

void avx512_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
                 size_t groups);
void avx512_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
                size_t groups, const struct quantized_group *x, size_t ldx, size_t T);
void avx2_open(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
               size_t groups);
void avx2_few(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
              size_t groups, const struct quantized_group *x, size_t ldx, size_t T);

#endif
