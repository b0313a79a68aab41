/* simd/neon_quantized.h -- tiles of quantized matrices, with NEON. Three files include this header: neon_quantized.c
 * for any armv8-a, neon_dotprod.c and neon_i8mm.c for CPUs that have these options. Before that, each file defines how
 * bytes are multiplied:
 *
 *     #define MOST_INTEGERS            the most integer sums (a quad of rows times a row of x) that registers hold at
 *                                      once
 *     multiply_bytes(kind, s, R, T, codes, x, ready, j, count)
 *                                      s = products of codes q + 128 or, of an IQ4_NL panel, of the numbers that its
 *                                      codes stand for; for elements [4j, 4(j + count)) of a group
 *     multiply_nibbles(s, R, T, codes, x, ready)
 *                                      s = products of the codes of a Q4_0 or Q4_BF16 panel, minus 8, for a whole group
 *     multiply_few(q, x, j, count)     returns the products of signed codes q[i], for elements [4j, 4(j + count)) of a
 *                                      group
 *     #define READY_BYTES(T)           the size of what `prepare` writes for T rows of x and a group; 0 if there is no
 *                                      `prepare`
 *
 * s[r][t] has the sums of rows 4r..4r+3 (a quad) with row t of x. Up to three rows of x (two without dotprod) are
 * multiplied by a whole panel at once. More rows of x are multiplied by one half of a panel, then by the other: so each
 * code is taken apart once for up to six rows of x (four without dotprod), and no sum is on the stack
 * (tests/kernels/stack_access.py). */
#ifndef VB_NEON_QUANTIZED_H
#define VB_NEON_QUANTIZED_H

#include "simd/neon.h"
#include "simd/quantized_tiles.h"

typedef int32x4_t integers[4][TILE_ROWS_OF_X];

#define FOR_QUADS UNROLL for (int r = 0; r < R; r++)
#define FOR_ROWS UNROLL for (int t = 0; t < T; t++)

/* Makes compilers use a vector before they load more of them than there are registers. */
#define in_register(v) __asm__ volatile("" : "+w"(v))

/* Returns the signed codes of a quad. */
ALWAYS_INLINE int8x16_t signed_codes(const unsigned char *codes)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(codes), vdupq_n_u8(128)));
}

/* Returns the signed numbers of a quad that multiply_bytes multiplies: elements 4i..4i+3 of a group. `codes` is the
 * address of the quad's first codes in the group. */
ALWAYS_INLINE int8x16_t numbers_of(enum panel_kind kind, const unsigned char *codes, int i)
{
    if (kind != PANEL_IQ4_NL)
        return signed_codes(codes + 64 * i);
    __asm__ volatile("" : "+r"(codes)); /* compilers would keep the high nibbles in registers until they are needed */
    uint8x16_t w = vld1q_u8(codes + 64 * (i % 4));
    in_register(w);
    return vqtbl1q_s8(vld1q_s8(quantized_iq4), i < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4));
}

/* Returns whether codes have at most six bits. */
ALWAYS_INLINE int has_small_codes(enum panel_kind kind) { return panel_is_open(kind) && kind != PANEL_OPEN; }

ALWAYS_INLINE void multiply_bytes(enum panel_kind kind, integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, const void *ready, int j, int count);
ALWAYS_INLINE void multiply_nibbles(integers s, int R, int T, const unsigned char *codes,
                                    const struct quantized_group *const *x, const void *ready);
ALWAYS_INLINE int32x4_t multiply_few(const int8x16_t *q, const struct quantized_group *x, int j, int count);

/* sums[t][r] = fma(s, scale * d, sums[t][r]), where s and scale belong to row r of the panel, and d to row t of x. */
ALWAYS_INLINE void add_scaled(float (*sums)[PANEL_ROWS], int R, int T, integers s, const float32x4_t scale[4],
                              const struct quantized_group *const *x)
{
    FOR_ROWS FOR_QUADS in_register(s[r][t]);
    FOR_ROWS
    {
        float32x4_t acc[4];
        FOR_QUADS acc[r] = vld1q_f32(sums[t] + 4 * r);
        FOR_QUADS acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(s[r][t]), vmulq_n_f32(scale[r], x[t]->d));
        FOR_QUADS vst1q_f32(sums[t] + 4 * r, acc[r]);
    }
}

/* Multiplies R quads of group g of a panel of codes, from row `row` on, by T rows of x, and adds the results to the
 * sums. */
ALWAYS_INLINE void group_of_panel(enum panel_kind kind, int R, int T, float (*sums)[PANEL_ROWS], const unsigned char *w,
                                  size_t g, size_t row, const struct quantized_group *const *x, const void *ready,
                                  size_t prefetch)
{
    const enum weight_type type = panel_has_4_bits(kind) ? WEIGHT_Q4_0
                                  : kind == PANEL_Q8_F32 ? WEIGHT_Q8_F32
                                  : WEIGHT_Q8_0; /* as they are laid out */
    const unsigned char *codes = panel_codes(w, type, g), *scales = panel_scales(w, type, g);
    integers s;
    float32x4_t scale[4];
    if (row == 0) {
        __builtin_prefetch(scales + prefetch);
        UNROLL
        for (size_t i = 0; i < panel_code_bytes(type); i += 64)
            __builtin_prefetch(codes + i + prefetch);
    }
    if (panel_has_4_bits(kind) && kind != PANEL_IQ4_NL)
        multiply_nibbles(s, R, T, codes + 4 * row, x, ready);
    else
        multiply_bytes(kind, s, R, T, codes + 4 * row, x, ready, 0, 8);
    FOR_QUADS
    {
        if (kind == PANEL_Q8_F32) {
            scale[r] = vld1q_f32((const float *)(const void *)scales + row + 4 * (size_t)r);
            continue;
        }
        uint8x8_t halves = vld1_u8(scales + 2 * row + 8 * (size_t)r);
        scale[r] = kind == PANEL_Q4_BF16 ? widen_bf16(vreinterpret_u16_u8(halves))
                                         : vcvt_f32_f16(vreinterpret_f16_u8(halves));
    }
    add_scaled(sums, R, T, s, scale, x);
}

/* Does the same with an open panel. */
ALWAYS_INLINE void group_of_open(enum panel_kind kind, int R, int T, float (*sums)[PANEL_ROWS],
                                 const struct open_panel *w, size_t g, size_t row,
                                 const struct quantized_group *const *x, const void *ready)
{
    const int halves = panel_has_halves(kind) ? 2 : 1;
    float32x4_t scale[4];
    UNROLL
    for (int half = 0; half < halves; half++) {
        integers s;
        multiply_bytes(kind, s, R, T, w->codes[g] + 4 * row, x, ready, 4 * half, 8 / halves);
        FOR_QUADS scale[r] = vld1q_f32(w->scale[g][half] + row + 4 * r);
        add_scaled(sums, R, T, s, scale, x);
        if (panel_has_minimums(kind))
            FOR_ROWS
            {
                float sum = -(float)(halves == 2 ? sum_of_half(x[t], half) : x[t]->sum);
                FOR_QUADS
                {
                    float32x4_t acc = vld1q_f32(sums[t] + 4 * r);
                    float32x4_t minimum = vmulq_n_f32(vld1q_f32(w->minimum[g][half] + row + 4 * r), x[t]->d);
                    vst1q_f32(sums[t] + 4 * r, vfmaq_n_f32(acc, minimum, sum));
                }
            }
        __asm__ volatile("" : : : "memory"); /* compilers would begin the second half before the first is stored */
    }
}

/* Multiplies a block of P panels by T rows of x. The sums of panel p and row t are at sums[p * step + t]. All panels
 * advance together, group by group, so that P streams are read from memory at once. */
ALWAYS_INLINE void tile_of(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], size_t P, size_t step,
                           const struct quantized_tile *tile, const struct quantized_group *first)
{
    const int R = 4 * T <= MOST_INTEGERS ? 4 : 2;
    for (size_t p = 0; p < P; p++)
        memset(sums + p * step, 0, (size_t)T * sizeof *sums);
    for (size_t g = 0; g < tile->groups; g++) {
        const struct quantized_group *x[TILE_ROWS_OF_X];
        const char *ready = (const char *)tile->ready + g * READY_BYTES(T);
        FOR_ROWS x[t] = first + (size_t)t * tile->ldx + g;
        for (size_t p = 0; p < P; p++)
            for (size_t row = 0; row < PANEL_ROWS; row += 4 * (size_t)R) {
                float(*to)[PANEL_ROWS] = (float(*)[PANEL_ROWS])(sums[p * step] + row);
                if (panel_is_open(kind))
                    group_of_open(kind, R, T, to, tile->w[p], g, row, x, ready);
                else
                    group_of_panel(kind, R, T, to, tile->w[p], g, row, x, ready, tile->prefetch);
            }
    }
}

typedef void tile_function(float (*sums)[PANEL_ROWS], size_t P, size_t step, const struct quantized_tile *tile,
                           const struct quantized_group *first);

/* Functions of their own, so that compilers allocate registers for each loop alone. */
#define TILE_OF(name, kind, T) \
    static __attribute__((noinline)) void name##_##T(float(*sums)[PANEL_ROWS], size_t P, size_t step, \
                                                     const struct quantized_tile *tile, \
                                                     const struct quantized_group *first) \
    { \
        tile_of(kind, T, sums, P, step, tile, first); \
    }
#if MOST_INTEGERS == 12
#define TILES_OF(name, kind) \
    TILE_OF(name, kind, 1) \
    TILE_OF(name, kind, 2) TILE_OF(name, kind, 3) TILE_OF(name, kind, 4) TILE_OF(name, kind, 5) \
        TILE_OF(name, kind, 6) static tile_function *const name[] = {name##_1, name##_2, name##_3, name##_4, name##_5, \
                                                                     name##_6};
#else
#define TILES_OF(name, kind) \
    TILE_OF(name, kind, 1) TILE_OF(name, kind, 2) TILE_OF(name, kind, 3) TILE_OF(name, kind, 4) \
    static tile_function *const name[] = {name##_1, name##_2, name##_3, name##_4};
#endif
TILES_OF(panel_q8_0, PANEL_Q8_0)
TILES_OF(panel_q4_0, PANEL_Q4_0)
TILES_OF(panel_q4_bf16, PANEL_Q4_BF16)
TILES_OF(panel_iq4_nl, PANEL_IQ4_NL)
TILES_OF(panel_q8_f32, PANEL_Q8_F32)
TILES_OF(panel_open, PANEL_OPEN)
TILES_OF(panel_halves, PANEL_OPEN_HALVES)
TILES_OF(panel_minimums, PANEL_OPEN_MINIMUMS)
TILES_OF(panel_halves_minimums, PANEL_OPEN_HALVES_MINIMUMS)

static void tile_any(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantized_tile *tile)
{
    static tile_function *const *const tiles[] = {panel_q8_0, panel_q4_0, panel_q4_bf16, panel_iq4_nl, panel_q8_f32,
                                                  panel_open, panel_halves, panel_halves, panel_minimums,
                                                  panel_halves_minimums};
    const size_t most = MOST_INTEGERS / 2;
    for (size_t t = 0, n; t < T; t += n) {
        n = T - t <= most ? T - t : (T - t + 1) / 2;
        tiles[tile->kind][n - 1](sums + t, P, T, tile, tile->x + t * tile->ldx);
    }
}

#endif
