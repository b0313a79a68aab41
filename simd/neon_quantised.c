/* simd/neon_quantised.c -- quantised matrices. */
#include "neon.h"
#include "quantised_tiles.h"

#include <math.h>

/* One panel and one row of x at a time, in plain C. */
static void tile_one(float sums[PANEL_ROWS], const struct quantised_tile *tile, const void *w, const struct quantised_group *x)
{
    const struct open_panel *open = w;
    for (size_t r = 0; r < PANEL_ROWS; r++) {
        float acc = 0.0f;
        for (size_t g = 0; g < tile->groups; g++) {
            int32_t sum[2] = {0, 0};
            enum weight_type type = tile->kind == PANEL_Q4_0 ? WEIGHT_Q4_0 : WEIGHT_Q8_0;
            const unsigned char *codes = tile->kind < PANEL_OPEN ? panel_codes(w, type, g) : open->codes[g];
            float scale[2];
            uint16_t half;
            if (tile->kind < PANEL_OPEN) {
                memcpy(&half, panel_scales(w, type, g) + 2 * r, sizeof half);
                scale[0] = f16_to_f32(half);
            } else {
                scale[0] = open->scale[g][0][r];
                scale[1] = open->scale[g][1][r];
            }
            for (size_t l = 0; l < 32; l++)
                sum[tile->kind == PANEL_OPEN_HALVES ? l / 16 : 0] +=
                    x[g].q[l] * (tile->kind == PANEL_Q4_0 ? (codes[l % 16 / 4 * 64 + r * 4 + l % 4] >> l / 16 * 4 & 15) - 8
                                                         : codes[l / 4 * 64 + r * 4 + l % 4] - 128);
            acc = fmaf((float)sum[0], scale[0] * x[g].d, acc);
            if (tile->kind == PANEL_OPEN_HALVES)
                acc = fmaf((float)sum[1], scale[1] * x[g].d, acc);
            if (tile->kind == PANEL_OPEN_MINIMUMS)
                acc = fmaf(-(float)x[g].sum, open->minimum[g][r] * x[g].d, acc);
        }
        sums[r] = acc;
    }
}

static void tile_any(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantised_tile *tile)
{
    for (size_t p = 0; p < P; p++)
        for (size_t t = 0; t < T; t++)
            tile_one(sums[p * T + t], tile, tile->w[p], tile->x + t * tile->ldx);
}

void neon_matmul_quantised(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantised_group *x, size_t ldx, size_t T)
{
    const struct quantised_loops loops = {.tile = tile_any, .open = open_panel_of};
    tiled_matmul_quantised(&loops, y, ldy, w, n0, n1, x, ldx, T);
}
