/* simd/neon_lane.h -- dot products of bytes with one lane of x. neon_dotprod.c and neon_i8mm.c include this header
 * after neon_quantized.h. */
#ifndef VB_NEON_LANE_H
#define VB_NEON_LANE_H

#include "simd/neon_quantized.h"

/* Adds the products of the four codes of each row with the four numbers in lane `lane` of x. */
ALWAYS_INLINE int32x4_t add_lane(int32x4_t s, int8x16_t q, int8x16_t x, int lane)
{
    switch (lane) { /* the intrinsic wants a constant */
    case 0: return vdotq_laneq_s32(s, q, x, 0);
    case 1: return vdotq_laneq_s32(s, q, x, 1);
    case 2: return vdotq_laneq_s32(s, q, x, 2);
    default: return vdotq_laneq_s32(s, q, x, 3);
    }
}

/* These do what neon_quantized.h says about multiply_bytes and multiply_nibbles. */
ALWAYS_INLINE void bytes_by_lanes(enum panel_kind kind, integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, int j, int count)
{
    FOR_ROWS FOR_QUADS s[r][t] = vdupq_n_s32(0);
    UNROLL
    for (int half = j / 4; half < (j + count) / 4; half++) {
        int8x16_t u[TILE_ROWS_OF_X];
        FOR_ROWS u[t] = vld1q_s8(x[t]->q + 16 * half);
        UNROLL
        for (int lane = 0; lane < 4; lane++)
            FOR_QUADS
            {
                int8x16_t q = numbers_of(kind, codes + 16 * r, 4 * half + lane);
                in_register(q);
                FOR_ROWS s[r][t] = add_lane(s[r][t], q, u[t], lane);
            }
    }
}

ALWAYS_INLINE void nibbles_by_lanes(integers s, int R, int T, const unsigned char *codes,
                                    const struct quantized_group *const *x)
{
    int8x16_t u[TILE_ROWS_OF_X], v[TILE_ROWS_OF_X];
    FOR_ROWS
    {
        u[t] = vld1q_s8(x[t]->q);
        v[t] = vld1q_s8(x[t]->q + 16);
        FOR_QUADS s[r][t] = vdupq_n_s32(x[t]->offset8);
    }
    UNROLL
    for (int lane = 0; lane < 4; lane++)
        FOR_QUADS
        {
            uint8x16_t w = vld1q_u8(codes + 64 * lane + 16 * r);
            in_register(w);
            int8x16_t low = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))),
                      high = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
            FOR_ROWS s[r][t] = add_lane(s[r][t], low, u[t], lane);
            FOR_ROWS s[r][t] = add_lane(s[r][t], high, v[t], lane);
        }
}

ALWAYS_INLINE int32x4_t multiply_few(const int8x16_t *q, const struct quantized_group *x, int j, int count)
{
    int32x4_t s = vdupq_n_s32(0);
    UNROLL
    for (int i = 0; i < count; i++)
        s = add_lane(s, q[i], vld1q_s8(x->q + 16 * ((j + i) / 4)), (j + i) % 4);
    return s;
}

#endif
