/* simd/quantized_tiles.c -- how a quantized matrix is cut into tiles, once for all vector instruction sets. As in
 * tiles.c no choice made here can reach the bits: few rows of x want panels that are streams, each read front to back;
 * many want panels that stay in L2 while tiles of x pass over them. */
#include "simd/quantized_tiles.h"

#define PREFETCH 2048 /* bytes ahead in a panel that is read once, from memory */
#define PREFETCH_L2 1024 /* the same of one that is read for every tile of x */

_Static_assert(MANY_PANELS * sizeof(struct open_panel) + TILE_READY <= KERNEL_SCRATCH, "kernels.h promises too little");

struct quantized_product {
    const struct quantized_loops *v;
    const struct weight_view *w;
    float *y;
    size_t ldy, n0, n1, ldx, T; /* rows [n0, n1) of the panels, those that w begins with counted */
    const struct quantized_group *x;
    enum panel_kind kind;
    void *ready; /* TILE_READY bytes, for struct quantized_tile */
};

/* the rows of panel i that are asked for: y[t][n..n + count) */
static size_t rows_of_panel(const struct quantized_product *p, size_t i, size_t *n)
{
    size_t first = i * PANEL_ROWS, end = min_size(first + PANEL_ROWS, p->n1);
    *n = first > p->n0 ? first : p->n0;
    return end - *n;
}

/* += the sums of a block; of the first block: = */
static inline void add_sums(float *restrict y, const float *restrict sums, size_t count, int first)
{
    if (first && count == PANEL_ROWS) /* all of them nearly always: vectors, not calls */
        memcpy(y, sums, PANEL_ROWS * sizeof *y);
    else if (first)
        memcpy(y, sums, count * sizeof *y);
    else if (count == PANEL_ROWS)
        for (size_t r = 0; r < PANEL_ROWS; r++)
            y[r] = y[r] + sums[r];
    else
        for (size_t r = 0; r < count; r++)
            y[r] = y[r] + sums[r];
}

/* Rows t0..t1 of x times `count` panels from `first` on, `step` apart, in the block of groups [g, g + groups). */
static void multiply_block(const struct quantized_product *p, size_t first, size_t count, size_t step, size_t g,
                           size_t groups, const struct open_panel *opened)
{
    const size_t bytes = panel_bytes(p->w->type, p->w->cols);
    struct quantized_tile tile = {.kind = p->kind, .groups = groups, .ldx = p->ldx};
    tile.ready = p->ready;
    tile.prefetch = opened ? 0 : step > 1 || count <= TILE_PANELS ? PREFETCH : PREFETCH_L2;
    for (size_t t = 0, T; t < p->T; t += T) {
        size_t left = (p->T - t + TILE_ROWS_OF_X - 1) / TILE_ROWS_OF_X, P;
        T = (p->T - t + left - 1) / left;
        tile.x = p->x + t * p->ldx + g;
        if (p->v->prepare)
            p->v->prepare(p->ready, T, &tile);
        for (size_t at = 0; at < count; at += P) {
            float sums[TILE_SUMS][PANEL_ROWS] __attribute__((aligned(64)));
            P = count - at == 1 ? 1 : count - at > 2 && 4 * T <= p->v->most_sums ? 4 : 2;
            for (size_t i = 0; i < P; i++) {
                size_t there = at + (at + i < count ? i : 0);
                tile.w[i] = opened ? (const void *)&opened[there]
                                   : panel_scales((const unsigned char *)p->w->data + (first + there * step) * bytes,
                                                  p->w->type, g);
            }
            p->v->tile(sums, P, T, &tile);
            for (size_t i = 0; i < P && at + i < count; i++) {
                size_t n, panel = first + (at + i) * step, rows = rows_of_panel(p, panel, &n);
                for (size_t s = 0; s < T; s++)
                    add_sums(p->y + (t + s) * p->ldy + n - p->w->panel_row, sums[i * T + s] + n % PANEL_ROWS, rows,
                             g == 0);
            }
        }
    }
}

/* `count` panels, over the whole of K */
static void multiply_panels(const struct quantized_product *p, size_t first, size_t count, size_t step,
                            struct open_panel *opened)
{
    size_t G = p->w->cols / QUANTIZED_GROUP;
    for (size_t g = 0, groups; g < G; g += groups) {
        groups = min_size(G - g, BLOCK_GROUPS);
        for (size_t i = 0; opened && i < count; i++) {
            size_t row = (first + i * step) * PANEL_ROWS;
            p->v->open(&opened[i], p->w, row, min_size(p->n1 - row, PANEL_ROWS), g, groups);
        }
        multiply_block(p, first, count, step, g, groups, opened);
    }
}

/* Panel i, which is blocks, times few rows of x: nothing of it is kept. */
static void multiply_few(const struct quantized_product *p, size_t i)
{
    size_t G = p->w->cols / QUANTIZED_GROUP, n, rows = rows_of_panel(p, i, &n), first = i * PANEL_ROWS;
    for (size_t g = 0, groups; g < G; g += groups) {
        float sums[FEW_ROWS_OF_X][PANEL_ROWS] __attribute__((aligned(64)));
        groups = min_size(G - g, BLOCK_GROUPS);
        p->v->few(sums, p->w, first, min_size(p->n1 - first, PANEL_ROWS), g, groups, p->x + g, p->ldx, p->T);
        for (size_t t = 0; t < p->T; t++)
            add_sums(p->y + t * p->ldy + n, sums[t] + n % PANEL_ROWS, rows, g == 0);
    }
}

static enum panel_kind kind_of(const struct weight_view *w)
{
    const struct quantized_format *f = quantized_format(w->type);
    if (w->panels && weight_is_q8(w->type))
        return w->type == WEIGHT_Q8_0 ? PANEL_Q8_0 : PANEL_Q8_F32;
    if (w->panels)
        return w->type == WEIGHT_Q4_0 ? PANEL_Q4_0 : w->type == WEIGHT_IQ4_NL ? PANEL_IQ4_NL : PANEL_Q4_BF16;
    if (f->halves)
        return f->minimums ? PANEL_OPEN_HALVES_MINIMUMS : f->halves == 64 ? PANEL_OPEN_WIDE_HALVES : PANEL_OPEN_HALVES;
    return f->minimums ? PANEL_OPEN_MINIMUMS : PANEL_OPEN;
}

void tiled_matmul_quantized(const struct quantized_loops *v, float *y, size_t ldy, const struct weight_view *w,
                            size_t n0, size_t n1, const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    struct quantized_product p = {v, w, y, ldy, n0 + w->panel_row, n1 + w->panel_row, ldx, T, x, kind_of(w),
                                 (struct open_panel *)scratch + MANY_PANELS};
    size_t first = p.n0 / PANEL_ROWS, end = (p.n1 + PANEL_ROWS - 1) / PANEL_ROWS;
    struct open_panel *opened = scratch; /* MANY_PANELS */
    if (p.kind == PANEL_IQ4_NL && v->opens_panels && T > FEW_ROWS_OF_X)
        p.kind = PANEL_OPEN;
    if (w->cols == 0) {
        for (size_t t = 0; t < T; t++)
            for (size_t n = n0; n < n1; n++)
                y[t * ldy + n] = 0.0f;
    } else if (T > FEW_ROWS_OF_X || w->type == WEIGHT_CACHE_Q8 ||
               (w->type == WEIGHT_Q8_F32 && !w->panels)) { /* `few` does not support these */
        for (size_t i = first; i < end; i += MANY_PANELS)
            multiply_panels(&p, i, min_size(MANY_PANELS, end - i), 1, panel_is_open(p.kind) ? opened : NULL);
    } else if (!w->panels) {
        for (size_t i = first; i < end; i++)
            multiply_few(&p, i);
    } else {
        size_t streams = (end - first + TILE_PANELS - 1) / TILE_PANELS; /* panels in each of four streams */
        for (size_t i = 0; i < streams && first + i < end; i++)
            multiply_panels(&p, first + i, (end - first - i + streams - 1) / streams, streams, NULL);
    }
}
