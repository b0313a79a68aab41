/* simd/neon_i8mm.c -- quantized matrices with the matrix products of bytes that armv8.2-a has as an option: an
 * instruction multiplies two rows of eight codes by eight numbers of two rows of x, and adds the results to four sums:
 *
 *     row 0 times x 0 | row 0 times x 1 | row 1 times x 0 | row 1 times x 1
 *
 * It exists for unsigned codes too. So the codes of panels, q + 128, are multiplied as they are, and the sums start
 * with -128 times the sum of x. The codes of halves of a group are made signed, and the numbers of IQ4_NL are
 * signed. */
#define MOST_INTEGERS 12
#define READY_BYTES(T) (((T) + 1) / 2 * 80) /* struct pair_of_x for each two rows of x */
#include "simd/neon_quantized.h"
#include "simd/neon_lane.h"

/* Rows of a panel and rows of x in pairs: p[i][k] has the sums of rows 2i and 2i + 1, and of rows 2k and 2k + 1 of
 * x. */
typedef int32x4_t products[8][TILE_ROWS_OF_X / 2];

#define FOR_PAIRS_OF_ROWS UNROLL for (int i = 0; i < 2 * R; i++)
#define FOR_PAIRS_OF_X UNROLL for (int k = 0; k < (T + 1) / 2; k++)

/* Rows 2k and 2k + 1 of x in a group: elements 8i..8i+7 of both rows, and the start of each of the four sums. */
struct pair_of_x {
    int8_t q[4][16];
    int32_t start[4];
};

_Static_assert(READY_BYTES(2) == sizeof(struct pair_of_x), "READY_BYTES differs");
_Static_assert(READY_BYTES(TILE_ROWS_OF_X) * BLOCK_GROUPS <= TILE_READY, "quantized_tiles.h promises too little");

ALWAYS_INLINE void start_products(products p, int R, int T, const struct pair_of_x *x)
{
    FOR_PAIRS_OF_X
    {
        int32x4_t start = vld1q_s32(x[k].start);
        FOR_PAIRS_OF_ROWS p[i][k] = start;
    }
}

/* s[r][t] = the four sums of quad r and row t of x. */
ALWAYS_INLINE void sort_products(integers s, int R, int T, products p)
{
    FOR_QUADS FOR_PAIRS_OF_X
    {
        s[r][2 * k] = vuzp1q_s32(p[2 * r][k], p[2 * r + 1][k]);
        if (2 * k + 1 < T)
            s[r][2 * k + 1] = vuzp2q_s32(p[2 * r][k], p[2 * r + 1][k]);
    }
}

/* Rows 0 and 1, or rows 2 and 3, of two registers of a quad: `low` has elements 0..3 of four rows, and `high` elements
 * 4..7. */
ALWAYS_INLINE int8x16_t two_rows(int8x16_t low, int8x16_t high, int upper)
{
    int32x4_t a = vreinterpretq_s32_s8(low), b = vreinterpretq_s32_s8(high);
    return vreinterpretq_s8_s32(upper ? vzip2q_s32(a, b) : vzip1q_s32(a, b));
}

ALWAYS_INLINE void multiply_bytes(enum panel_kind kind, integers s, int R, int T, const unsigned char *codes,
                                  const struct quantized_group *const *x, const void *ready, int j, int count)
{
    const struct pair_of_x *pairs = ready;
    const int is_signed = count < 8 || kind == PANEL_IQ4_NL;
    products p;
    if (T == 1) { /* half of each product would be wasted */
        bytes_by_lanes(kind, s, R, T, codes, x, j, count);
        return;
    }
    start_products(p, R, T, pairs);
    UNROLL
    for (int i = j / 2; i < (j + count) / 2; i++) {
        int8x16_t u[TILE_ROWS_OF_X / 2];
        FOR_PAIRS_OF_X u[k] = vld1q_s8(pairs[k].q[i]);
        FOR_QUADS
        {
            const unsigned char *at = codes + 128 * i + 16 * r;
            int8x16_t low = is_signed ? numbers_of(kind, codes + 16 * r, 2 * i) : vld1q_s8((const void *)at);
            int8x16_t high = is_signed ? numbers_of(kind, codes + 16 * r, 2 * i + 1)
                                       : vld1q_s8((const void *)(at + 64));
            UNROLL
            for (int upper = 0; upper < 2; upper++) {
                int8x16_t q = two_rows(low, high, upper);
                in_register(q);
                FOR_PAIRS_OF_X p[2 * r + upper][k] = is_signed ? vmmlaq_s32(p[2 * r + upper][k], q, u[k])
                                                               : vusmmlaq_s32(p[2 * r + upper][k],
                                                                              vreinterpretq_u8_s8(q), u[k]);
            }
        }
    }
    sort_products(s, R, T, p);
}

ALWAYS_INLINE void multiply_nibbles(integers s, int R, int T, const unsigned char *codes,
                                    const struct quantized_group *const *x, const void *ready)
{
    const struct pair_of_x *pairs = ready;
    products p;
    if (T == 1) {
        nibbles_by_lanes(s, R, T, codes, x);
        return;
    }
    start_products(p, R, T, pairs);
    UNROLL
    for (int j = 0; j < 2; j++) {
        int8x16_t u[TILE_ROWS_OF_X / 2], v[TILE_ROWS_OF_X / 2];
        FOR_PAIRS_OF_X
        {
            u[k] = vld1q_s8(pairs[k].q[j]);
            v[k] = vld1q_s8(pairs[k].q[j + 2]);
        }
        FOR_QUADS UNROLL for (int upper = 0; upper < 2; upper++)
        {
            const unsigned char *at = codes + 128 * j + 16 * r;
            uint8x16_t w = vreinterpretq_u8_s8(two_rows(vld1q_s8((const void *)at), vld1q_s8((const void *)(at + 64)),
                                                        upper));
            in_register(w);
            int8x16_t low = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))),
                      high = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
            FOR_PAIRS_OF_X p[2 * r + upper][k] = vmmlaq_s32(p[2 * r + upper][k], low, u[k]);
            FOR_PAIRS_OF_X p[2 * r + upper][k] = vmmlaq_s32(p[2 * r + upper][k], high, v[k]);
        }
    }
    sort_products(s, R, T, p);
}

/* Writes struct pair_of_x [groups][(T + 1) / 2]. If there is no row 2k + 1, row 2k is used twice. */
static void prepare(void *ready, size_t T, const struct quantized_tile *tile)
{
    struct pair_of_x *y = ready;
    for (size_t g = 0; g < tile->groups; g++)
        for (size_t t = 0; t < T; t += 2, y++)
            for (size_t second = 0; second < 2; second++) {
                const struct quantized_group *x = tile->x + (t + second < T ? t + second : t) * tile->ldx + g;
                for (size_t i = 0; i < 4; i++)
                    memcpy(y->q[i] + 8 * second, x->q + 8 * i, 8);
                /* multiplied as signed numbers */
                y->start[second] = panel_has_halves(tile->kind) || tile->kind == PANEL_IQ4_NL ? 0
                                   : panel_has_4_bits(tile->kind)                             ? x->offset8
                                                                                              : x->offset128;
                y->start[2 + second] = y->start[second];
            }
}

#include "simd/neon_open.h"

void neon_i8mm_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                                const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantized_loops loops = {.most_sums = 12, .prepare = prepare, .tile = tile_any, .open = open_panel,
                                          .few = few_rows};
    tiled_matmul_quantized(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
