/* simd/neon_quantized.c -- quantized matrices on any armv8-a. Products of bytes are added in 16 bits: there is room for
 * two products of codes with eight bits (128 * 127 * 2), and for all eight of a group in a lane if the codes are small
 * (32 * 127 * 8, but 31 or less above zero). Pairs of these sums are added in 32 bits. */
#define MOST_INTEGERS 8
#define READY_BYTES(T) 0
#include "simd/neon_quantized.h"

/* Returns elements 4j..4j+3 of x, repeated for each of four rows. */
ALWAYS_INLINE int8x16_t four(const struct quantized_group *x, int j)
{
    return vreinterpretq_s8_s32(vld1q_dup_s32((const void *)(x->q + 4 * j)));
}

/* Sums in 16 bits: [0] of the first two rows of a quad, [1] of the other two. */
struct halves {
    int16x8_t of[2];
};

ALWAYS_INLINE void add_products(struct halves *s, int8x16_t q, int8x16_t u, int first)
{
    s->of[0] = first ? vmull_s8(vget_low_s8(q), vget_low_s8(u)) : vmlal_s8(s->of[0], vget_low_s8(q), vget_low_s8(u));
    s->of[1] = first ? vmull_high_s8(q, u) : vmlal_high_s8(s->of[1], q, u);
}

/* s[r][t] = the sums of four rows in 32 bits */
ALWAYS_INLINE void widen(integers s, int R, int T, struct halves h[4][TILE_ROWS_OF_X])
{
    FOR_QUADS FOR_ROWS s[r][t] = vpaddq_s32(vpaddlq_s16(h[r][t].of[0]), vpaddlq_s16(h[r][t].of[1]));
}

/* Codes of at most six bits: all products of a group are added in 16 bits. */
ALWAYS_INLINE void multiply_small(integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, int j, int count)
{
    struct halves h[4][TILE_ROWS_OF_X];
    UNROLL
    for (int i = j; i < j + count; i++) {
        int8x16_t q[4];
        FOR_QUADS q[r] = signed_codes(codes + 64 * i + 16 * r);
        FOR_ROWS
        {
            int8x16_t u = four(x[t], i);
            in_register(u);
            FOR_QUADS add_products(&h[r][t], q[r], u, i == j);
        }
    }
    widen(s, R, T, h);
}

ALWAYS_INLINE void multiply_bytes(enum panel_kind kind, integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, const void *ready, int j, int count)
{
    (void)ready;
    if (has_small_codes(kind)) {
        multiply_small(s, R, T, codes, x, j, count);
        return;
    }
    int32x4_t sums[2][4][TILE_ROWS_OF_X];
    UNROLL
    for (int i = j; i < j + count; i += 2) {
        int8x16_t q[2][4];
        FOR_QUADS q[0][r] = numbers_of(kind, codes + 16 * r, i);
        FOR_QUADS q[1][r] = numbers_of(kind, codes + 16 * r, i + 1);
        FOR_ROWS
        {
            int8x16_t u = four(x[t], i), v = four(x[t], i + 1);
            in_register(u);
            in_register(v);
            FOR_QUADS
            {
                struct halves h;
                add_products(&h, q[0][r], u, 1);
                add_products(&h, q[1][r], v, 0);
                UNROLL
                for (int half = 0; half < 2; half++) {
                    sums[half][r][t] = i == j ? vpaddlq_s16(h.of[half]) : vpadalq_s16(sums[half][r][t], h.of[half]);
                    if (R == 4) /* else gcc needs no help, and would copy registers */
                        in_register(sums[half][r][t]);
                }
            }
        }
    }
    FOR_QUADS FOR_ROWS s[r][t] = vpaddq_s32(sums[0][r][t], sums[1][r][t]);
}

ALWAYS_INLINE void multiply_nibbles(integers s, int R, int T, const unsigned char *codes,
                                    const struct quantized_group *const *x, const void *ready)
{
    struct halves h[4][TILE_ROWS_OF_X];
    (void)ready;
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint8x16_t w[4];
        FOR_QUADS
        {
            w[r] = vld1q_u8(codes + 64 * i + 16 * r);
            in_register(w[r]);
        }
        UNROLL
        for (int upper = 0; upper < 2; upper++)
            FOR_ROWS
            {
                int8x16_t u = four(x[t], i + 4 * upper);
                in_register(u);
                FOR_QUADS
                {
                    uint8x16_t q = upper ? vshrq_n_u8(w[r], 4) : vandq_u8(w[r], vdupq_n_u8(15));
                    add_products(&h[r][t], vreinterpretq_s8_u8(q), u, i == 0 && !upper);
                }
            }
    }
    widen(s, R, T, h);
    FOR_ROWS FOR_QUADS s[r][t] = vaddq_s32(s[r][t], vdupq_n_s32(x[t]->offset8));
}

ALWAYS_INLINE int32x4_t multiply_few(const int8x16_t *q, const struct quantized_group *x, int j, int count)
{
    int32x4_t sums[2];
    UNROLL
    for (int i = 0; i < count; i += 2) {
        struct halves h;
        add_products(&h, q[i], four(x, j + i), 1);
        add_products(&h, q[i + 1], four(x, j + i + 1), 0);
        UNROLL
        for (int half = 0; half < 2; half++)
            sums[half] = i == 0 ? vpaddlq_s16(h.of[half]) : vpadalq_s16(sums[half], h.of[half]);
    }
    return vpaddq_s32(sums[0], sums[1]);
}

#include "simd/neon_open.h"

void neon_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantized_loops loops = {.most_sums = 12, .tile = tile_any, .open = open_panel, .few = few_rows};
    tiled_matmul_quantized(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
