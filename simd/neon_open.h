/* simd/neon_open.h -- unpacks quantized matrices from the blocks of a GGUF file, with NEON.
 *
 * Four rows are unpacked at a time. The groups of these rows are copied to an open panel. If x has few rows, the
 * groups are multiplied by x as soon as they are unpacked, and nothing is copied. A file includes this header after
 * neon_quantized.h and after its definition of multiply_few. */
#ifndef VB_NEON_OPEN_H
#define VB_NEON_OPEN_H

#define LANES 1
#define TAKER neon_taker
#include "simd/quantized_open.h"

ALWAYS_INLINE uint32x4_t row_of(const unsigned char *row, size_t at)
{
    return vreinterpretq_u32_u8(vld1q_u8(row + at));
}

ALWAYS_INLINE void transpose(words w[4], const unsigned char *const *row, size_t at)
{
    uint32x4_t a = row_of(row[0], at), b = row_of(row[1], at), c = row_of(row[2], at), d = row_of(row[3], at);
    uint64x2_t ab_02 = vreinterpretq_u64_u32(vtrn1q_u32(a, b)), ab_13 = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
    uint64x2_t cd_02 = vreinterpretq_u64_u32(vtrn1q_u32(c, d)), cd_13 = vreinterpretq_u64_u32(vtrn2q_u32(c, d));
    w[0] = (words)vtrn1q_u64(ab_02, cd_02);
    w[1] = (words)vtrn1q_u64(ab_13, cd_13);
    w[2] = (words)vtrn2q_u64(ab_02, cd_02);
    w[3] = (words)vtrn2q_u64(ab_13, cd_13);
}

ALWAYS_INLINE floats half_of(words w) { return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)w))); }

ALWAYS_INLINE words look_up(words table, words w) { return (words)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)w); }

ALWAYS_INLINE words four_bits(words bits, int j)
{
    words index = (words){0, 0x04040404, 0x08080808, 0x0c0c0c0c} + each((unsigned)j / 2);
    uint8x16_t byte = vqtbl1q_u8((uint8x16_t)bits, (uint8x16_t)index);
    return (words)vtstq_u8(byte, vreinterpretq_u8_u32(vdupq_n_u32(j % 2 ? 0x80402010 : 0x08040201)));
}

struct neon_taker {
    struct open_panel *panel; /* receives the groups; if NULL, they are multiplied by x instead */
    size_t first;             /* the row of the panel that receives the first of the four rows */
    const struct quantized_group *x;
    size_t T, ldx;
    float32x4_t acc[FEW_ROWS_OF_X];
};

ALWAYS_INLINE void take(struct neon_taker *to, size_t g, enum weight_type type, const struct open_group *group)
{
    const int halves = has_halves(type) ? 2 : 1;
    if (to->panel) {
        put_group(to->panel, to->first, g, type, group);
        return;
    }
    for (size_t t = 0; t < to->T; t++) {
        const struct quantized_group *x = to->x + t * to->ldx + g;
        float32x4_t acc = to->acc[t];
        UNROLL
        for (int half = 0; half < halves; half++) {
            int8x16_t q[8];
            UNROLL
            for (int i = 0; i < 8 / halves; i++) /* vsubq_s8 turns the unsigned codes into the signed q */
                q[i] = vsubq_s8((int8x16_t)group->codes[4 * half + i], vdupq_n_s8((int8_t)code_above(type)));
            int32x4_t s = multiply_few(q, x, 4 * half, 8 / halves);
            acc = vfmaq_f32(acc, vcvtq_f32_s32(s), vmulq_n_f32((float32x4_t)group->scale[half], x->d));
            if (has_minimums(type)) {
                int32_t sum = halves == 2 ? sum_of_half(x, half) : x->sum;
                acc = vfmaq_n_f32(acc, vmulq_n_f32((float32x4_t)group->minimum[half], x->d), -(float)sum);
            }
        }
        to->acc[t] = acc;
    }
}

static void open_panel(struct open_panel *panel, const struct weight_view *w, size_t row, size_t rows, size_t group,
                       size_t groups)
{
    struct neon_taker to = {.panel = panel};
    for (; to.first < rows; to.first += SLICE) {
        const unsigned char *at[SLICE];
        find_rows(at, w, row + to.first, rows - to.first, group);
        take_any(&to, w, at, groups, bytes_ahead(w, group, groups, MANY_PANELS * PANEL_ROWS));
    }
}

static void few_rows(float (*sums)[PANEL_ROWS], const struct weight_view *w, size_t row, size_t rows, size_t group,
                     size_t groups, const struct quantized_group *x, size_t ldx, size_t T)
{
    struct neon_taker to = {.x = x, .T = T, .ldx = ldx};
    for (size_t first = 0; first < rows; first += SLICE) {
        const unsigned char *at[SLICE];
        find_rows(at, w, row + first, rows - first, group);
        for (size_t t = 0; t < T; t++)
            to.acc[t] = vdupq_n_f32(0.0f);
        take_any(&to, w, at, groups, bytes_ahead(w, group, groups, PANEL_ROWS));
        for (size_t t = 0; t < T; t++)
            vst1q_f32(sums[t] + first, to.acc[t]);
    }
}

#endif
