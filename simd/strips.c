/* simd/strips.c -- how the columns of kernel fma_rows are cut into strips, once for all vector instruction sets.
 *
 * As in tiles.c, no choice made here can reach the bits: each column has one sum, which is computed row by row. */
#include "simd/tiles.h"

#define STRIP_ROWS 128 /* rows x STRIP weights that stay in L1 while many tokens pass */
#define AHEAD 8        /* rows, of the first tokens among many: the others find the strip in L1 */
#define FEW_ROWS 16    /* of a wide matrix with few tokens: rows that are read side by side, each front to back */

void tiled_fma_rows(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t c0,
                    size_t c1, const float *x, size_t ldx, size_t T, void *scratch)
{
    struct strips {
        float decoded[STRIP_ROWS][STRIP], cut[TILE_TOKENS][HALF_STRIP];
    } *work = scratch;
    float (*cut)[HALF_STRIP] = work->cut;
    int stored = w->type == WEIGHT_BF16 || w->type == WEIGHT_F32, side_by_side = T <= v->tokens && c1 - c0 > 2 * STRIP;
    size_t pitch = w->stride * weight_size(w->type), rows = side_by_side ? FEW_ROWS : STRIP_ROWS, width;

    for (size_t t = 0; w->rows == 0 && t < T; t++)
        for (size_t c = c0; c < c1; c++)
            y[t * ldy + c] = 0.0f;
    for (size_t n = 0; n < w->rows; n += rows)
        for (size_t c = c0; c < c1; c += width) {
            size_t block = min_size(w->rows - n, rows);
            width = c1 - c < STRIP ? HALF_STRIP : STRIP;
            size_t count = min_size(c1 - c, width);
            int whole = count == width, direct = stored && whole;
            for (size_t r = 0; !direct && r < block; r++) {
                tiled_decode(v, work->decoded[r], w, n + r, c, count, 0);
                memset(work->decoded[r] + count, 0, (width - count) * sizeof(float));
            }
            enum tile_source source = direct && w->type == WEIGHT_BF16 ? FROM_BF16 : FROM_F32;
            const void *weights = direct ? (const void *)weight_at(w, n, c) : work->decoded;
            for (size_t t = 0, tokens; t < T; t += tokens) {
                tokens = min_size(T - t, v->tokens);
                float *to = y + t * ldy + c;
                for (size_t i = 0; !whole && n && i < tokens; i++)
                    memcpy(cut[i], to + i * ldy, count * sizeof *y);
                v->strip(whole ? to : cut[0], whole ? ldy : HALF_STRIP, tokens, width, source, weights,
                         direct ? pitch : sizeof work->decoded[0], block, x + t * ldx + n, ldx, n == 0,
                         !direct || t ? 0 : side_by_side ? rows * pitch : AHEAD * pitch);
                for (size_t i = 0; !whole && i < tokens; i++)
                    memcpy(to + i * ldy, cut[i], count * sizeof *y);
            }
        }
}
