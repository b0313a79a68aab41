/* simd/neon_quantised.h -- the tile of quantised matrices for NEON, with and without dot product instructions.
 *
 * neon_quantised.c and neon_dotprod.c include this header. Before the #include, each of them defines
 *
 *     int32x4_t add_four(int32x4_t s, int8x16_t codes, int8x16_t x)      s[r] += sum of codes[4r + i] * x[4r + i], i < 4
 *
 * The argument x of add_four holds the same four numbers four times. Panels store a code of eight bits as q + 128;
 * flipping its highest bit gives the signed q. Q4_0 stores q + 8, and the stored codes are multiplied as they are. To
 * subtract the products of 8 and x, the sum starts at -8 times the sum of x. */
#ifndef VB_NEON_QUANTISED_H
#define VB_NEON_QUANTISED_H

#include "simd/neon.h"
#include "simd/quantised_tiles.h"

#define ROWS_OF_X 3 /* rows of x that are multiplied at once; each needs four registers for its sums */

typedef int32x4_t integers[4][ROWS_OF_X]; /* [r][t] holds the sums of rows 4r..4r+3 of the panel with row t of x */

#define FOR_QUADS UNROLL for (int r = 0; r < 4; r++)
#define FOR_ROWS UNROLL for (int t = 0; t < T; t++)

/* Makes gcc compute all products of four numbers of x before it loads the next four. Without this macro, gcc would
 * first load all of x and all codes, which do not fit into the registers. */
#define in_register(v) __asm__ volatile("" : "+w"(v))

/* Returns elements 4j..4j+3 of x, repeated for each of four rows of a panel. */
ALWAYS_INLINE int8x16_t four(const struct quantised_group *x, int j)
{
    return vreinterpretq_s8_s32(vld1q_dup_s32((const void *)(x->q + 4 * j)));
}

/* Adds the products of 8-bit codes and numbers of x to s, for elements [4j, 4(j + count)) of the group. */
ALWAYS_INLINE void add_bytes(integers s, int T, const unsigned char *codes, const struct quantised_group *const *x, int j, int count,
                             size_t prefetch)
{
    UNROLL
    for (int i = j; i < j + count; i++) {
        int8x16_t w[4];
        FOR_QUADS w[r] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes + 64 * i + 16 * r), vdupq_n_u8(128)));
        __builtin_prefetch(codes + 64 * i + prefetch);
        FOR_ROWS
        {
            int8x16_t u = four(x[t], i);
            FOR_QUADS s[r][t] = add_four(s[r][t], w[r], u);
            FOR_QUADS in_register(s[r][t]);
        }
    }
}

ALWAYS_INLINE void add_nibbles(integers s, int T, const unsigned char *codes, const struct quantised_group *const *x, size_t prefetch)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        int8x16_t low[4], high[4];
        FOR_QUADS
        {
            uint8x16_t w = vld1q_u8(codes + 64 * i + 16 * r);
            low[r] = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
            high[r] = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
        }
        __builtin_prefetch(codes + 64 * i + prefetch);
        FOR_ROWS
        {
            int8x16_t u = four(x[t], i), v = four(x[t], i + 4);
            FOR_QUADS s[r][t] = add_four(s[r][t], low[r], u);
            FOR_QUADS s[r][t] = add_four(s[r][t], high[r], v);
            FOR_QUADS in_register(s[r][t]);
        }
    }
}

/* sums[t][r] = fma(s, scale * d, sums[t][r]), where s and scale belong to row r of the panel, and d to row t of x. */
ALWAYS_INLINE void add_scaled(float (*sums)[PANEL_ROWS], int T, integers s, const float32x4_t scale[4],
                              const struct quantised_group *const *x)
{
    FOR_ROWS FOR_QUADS
    {
        float32x4_t acc = vld1q_f32(sums[t] + 4 * r);
        vst1q_f32(sums[t] + 4 * r, vfmaq_f32(acc, vcvtq_f32_s32(s[r][t]), vmulq_n_f32(scale[r], x[t]->d)));
    }
}

/* Multiplies group g of a Q8_0 or Q4_0 panel by T rows of x, and adds the results to sums[t][row]. */
ALWAYS_INLINE void group_of_panel(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const unsigned char *w, size_t g,
                                  const struct quantised_group *const *x, size_t prefetch)
{
    const enum weight_type type = kind == PANEL_Q4_0 ? WEIGHT_Q4_0 : WEIGHT_Q8_0;
    const unsigned char *codes = panel_codes(w, type, g), *scales = panel_scales(w, type, g);
    integers s;
    float32x4_t scale[4];
    FOR_QUADS FOR_ROWS s[r][t] = vdupq_n_s32(kind == PANEL_Q4_0 ? x[t]->offset8 : 0);
    if (g % 2 == 0)
        __builtin_prefetch(scales + prefetch);
    if (kind == PANEL_Q4_0)
        add_nibbles(s, T, codes, x, prefetch);
    else
        add_bytes(s, T, codes, x, 0, 8, prefetch);
    FOR_QUADS scale[r] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(scales + 8 * r)));
    add_scaled(sums, T, s, scale, x);
}

/* Multiplies group g of an open panel by T rows of x, and adds the results to sums[t][row]. */
ALWAYS_INLINE void group_of_open(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const struct open_panel *w, size_t g,
                                 const struct quantised_group *const *x)
{
    const int halves = kind == PANEL_OPEN_HALVES ? 2 : 1;
    UNROLL
    for (int half = 0; half < halves; half++) {
        integers s;
        float32x4_t scale[4];
        FOR_QUADS FOR_ROWS s[r][t] = vdupq_n_s32(0);
        add_bytes(s, T, w->codes[g], x, 4 * half, 8 / halves, 0);
        FOR_QUADS scale[r] = vld1q_f32(w->scale[g][half] + 4 * r);
        add_scaled(sums, T, s, scale, x);
    }
    if (kind == PANEL_OPEN_MINIMUMS)
        FOR_ROWS FOR_QUADS
        {
            float32x4_t acc = vld1q_f32(sums[t] + 4 * r), minimum = vmulq_n_f32(vld1q_f32(w->minimum[g] + 4 * r), x[t]->d);
            vst1q_f32(sums[t] + 4 * r, vfmaq_n_f32(acc, minimum, -(float)x[t]->sum));
        }
}

/* Multiplies group g of a panel of any kind by T rows of x, at most ROWS_OF_X, and adds the results to the sums. */
ALWAYS_INLINE void group_of(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const void *w, size_t g,
                            const struct quantised_group *first, const struct quantised_tile *tile)
{
    const struct quantised_group *x[ROWS_OF_X];
    FOR_ROWS x[t] = first + (size_t)t * tile->ldx + g;
    if (kind == PANEL_Q8_0 || kind == PANEL_Q4_0)
        group_of_panel(kind, T, sums, w, g, x, tile->prefetch);
    else
        group_of_open(kind, T, sums, w, g, x);
}

/* All P panels advance together, group by group, so that P streams are read from memory at once. */
ALWAYS_INLINE void tile_from(enum panel_kind kind, float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantised_tile *tile)
{
    memset(sums, 0, P * T * sizeof *sums);
    for (size_t g = 0; g < tile->groups; g++)
        for (size_t p = 0; p < P; p++)
            for (size_t t = 0, n; t < T; t += n) {
                const struct quantised_group *x = tile->x + t * tile->ldx;
                n = T - t == 4 ? 2 : T - t < ROWS_OF_X ? T - t : ROWS_OF_X;
                switch (n) {
                case 1: group_of(kind, 1, sums + p * T + t, tile->w[p], g, x, tile); break;
                case 2: group_of(kind, 2, sums + p * T + t, tile->w[p], g, x, tile); break;
                default: group_of(kind, 3, sums + p * T + t, tile->w[p], g, x, tile);
                }
            }
}

static void tile_any(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantised_tile *tile)
{
    switch (tile->kind) {
    case PANEL_Q8_0: tile_from(PANEL_Q8_0, sums, P, T, tile); break;
    case PANEL_Q4_0: tile_from(PANEL_Q4_0, sums, P, T, tile); break;
    case PANEL_OPEN: tile_from(PANEL_OPEN, sums, P, T, tile); break;
    case PANEL_OPEN_HALVES: tile_from(PANEL_OPEN_HALVES, sums, P, T, tile); break;
    default: tile_from(PANEL_OPEN_MINIMUMS, sums, P, T, tile);
    }
}

#endif
