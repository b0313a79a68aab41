/* simd/strips.c -- how the columns of the kernels fma_rows, fma_rows_onto and fma_outer are cut into strips, once for
 * all vector instruction sets.
 *
 * As in tiles.c, no choice made here can reach the bits: each column has one sum, which is computed row by row. */
#include "simd/quantized.h"
#include "simd/tiles.h"

#define STRIP_ROWS 128 /* rows x STRIP weights that stay in L1 while many tokens pass */
#define AHEAD 8        /* rows, of the first tokens among many: the others find the strip in L1 */
#define FEW_ROWS 16    /* of a wide matrix with few tokens: rows that are read side by side, each front to back */

struct strip_work {
    float decoded[STRIP_ROWS][STRIP], cut[TILE_TOKENS][HALF_STRIP];
};
_Static_assert(sizeof(struct strip_work) <= KERNEL_SCRATCH, "kernels.h promises too little");

/* One strip of some rows for T tokens, `s` without the tokens' fields. If fewer columns than those of a strip are left,
 * it is computed in work->cut. */
static void strip_of_tokens(const struct vector_loops *v, struct strip s, float *y, size_t ldy, size_t count,
                            const float *x, size_t T, struct strip_work *work, struct weight_ahead *ahead)
{
    int whole = count == s.columns;
    for (size_t t = 0, tokens, tiles; t < T; t += tokens, s.prefetch = 0) {
        tiles = (T - t + v->strip_tokens - 1) / v->strip_tokens;
        tokens = (T - t + tiles - 1) / tiles;
        float *to = y + t * ldy;
        for (size_t i = 0; !whole && !s.first && i < tokens; i++)
            memcpy(work->cut[i], to + i * ldy, count * sizeof *y);
        s.y = whole ? to : work->cut[0];
        s.ldy = whole ? ldy : HALF_STRIP;
        s.x = x + t * s.ldx;
        s.ahead = take_ahead(ahead, s.w, s.rows, &s.ahead_step);
        v->strip(tokens, &s);
        for (size_t i = 0; !whole && i < tokens; i++)
            memcpy(to + i * ldy, work->cut[i], count * sizeof *y);
    }
}

/* Decodes `count` columns of some rows, and pads them with +0 to `width` columns. */
static void decode_strip(const struct vector_loops *v, float (*decoded)[STRIP], const struct weight_view *w, size_t n,
                         size_t rows, size_t c, size_t count, size_t width)
{
    if (w->type == WEIGHT_CACHE_Q8) {
        const struct quantized_format *f = quantized_format(w->type);
        size_t pitch = w->stride / QUANTIZED_GROUP * f->bytes, groups = (count + QUANTIZED_GROUP - 1) / QUANTIZED_GROUP;
        v->decode_cache_q8(decoded[0], STRIP,
                           (const unsigned char *)w->data + n * pitch + c / QUANTIZED_GROUP * f->bytes, pitch, rows,
                           groups);
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        tiled_decode(v, decoded[r], w, n + r, c, count, 0);
        memset(decoded[r] + count, 0, (width - count) * sizeof(float));
    }
}

/* Returns the columns of the next strip. Weights that are decoded come in groups of 32. */
static size_t width_of(size_t left, int stored)
{
    if (left >= STRIP)
        return STRIP;
    return !stored ? HALF_STRIP : left < LEAST_STRIP ? LEAST_STRIP : left / LEAST_STRIP * LEAST_STRIP;
}

/* x[t * ldx + n * step]: the factor of token t and row n */
static void fma_strips(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t c0,
                       size_t c1, const float *x, size_t ldx, size_t step, size_t T, void *scratch, int onto)
{
    struct strip_work *work = scratch;
    int stored = w->type == WEIGHT_BF16 || w->type == WEIGHT_F32,
        side_by_side = T <= v->strip_tokens && c1 - c0 > 2 * STRIP;
    size_t pitch = w->stride * weight_size(w->type), rows = side_by_side ? FEW_ROWS : STRIP_ROWS, width;

    for (size_t t = 0; !onto && w->rows == 0 && t < T; t++)
        for (size_t c = c0; c < c1; c++)
            y[t * ldy + c] = 0.0f;
    for (size_t n = 0; n < w->rows; n += rows)
        for (size_t c = c0; c < c1; c += width) {
            width = width_of(c1 - c, stored);
            size_t count = min_size(c1 - c, width);
            int direct = stored && count == width;
            struct strip s = {.source = direct && w->type == WEIGHT_BF16 ? FROM_BF16 : FROM_F32, .columns = width,
                              .first = !onto && n == 0, .rows = min_size(w->rows - n, rows),
                              .w = direct ? (const void *)weight_at(w, n, c) : work->decoded,
                              .pitch = direct ? pitch : sizeof work->decoded[0], .ldx = ldx, .step = step,
                              .prefetch = !direct ? 0
                                          : side_by_side ? rows * pitch
                                          : AHEAD * pitch};
            if (!direct)
                decode_strip(v, work->decoded, w, n, s.rows, c, count, width);
            strip_of_tokens(v, s, y + c, ldy, count, x + n * step, T, work, w->ahead);
        }
}

void tiled_fma_rows(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, size_t c0,
                    size_t c1, const float *x, size_t ldx, size_t T, void *scratch, int onto)
{
    fma_strips(v, y, ldy, w, c0, c1, x, ldx, 1, T, scratch, onto);
}

void tiled_fma_outer(const struct vector_loops *v, float *y, size_t ldy, const struct weight_view *w, const float *x,
                     size_t ldx, size_t T, void *scratch)
{
    fma_strips(v, y, ldy, w, 0, w->cols, x, 1, ldx, T, scratch, 1);
}
