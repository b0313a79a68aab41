/* simd/avx2_quantised.c -- quantised matrices without VNNI. vpmaddubsw adds two products of an unsigned code with a signed x in
 * 16 bits, and cuts them off there: of codes of four bits (15 * 127 * 2) eight such pairs have room, of five four, of six two, of
 * eight (255 * 127 * 2) none. Those are made signed, and their sign is given to x: 128 * 127 * 2 has room. */
#include "simd/avx2.h"
#include "simd/quantised_tiles.h"

#define ROWS_OF_X 3 /* at once: two registers of sums for each, and of a group's integers */

typedef __m256i integers[2][ROWS_OF_X]; /* rows 0..7 of the panel, rows 8..15 */

#define FOR_HALVES UNROLL for (int r = 0; r < 2; r++)
#define FOR_ROWS UNROLL for (int t = 0; t < T; t++)

/* Sums are made in the order written: gcc would gather all products of a group before it adds them, more than there are registers. */
#define in_register(v) __asm__("" : "+x"(v))

/* elements 4j..4j+3, for every row of a panel */
ALWAYS_INLINE __m256i four(const struct quantised_group *x, int j)
{
    int32_t q;
    memcpy(&q, x->q + 4 * j, sizeof q);
    return _mm256_set1_epi32(q);
}

ALWAYS_INLINE __m256i load(const unsigned char *codes) { return _mm256_load_si256((const void *)codes); }

/* One row of x is faster than memory: L2 then has room for more that is on its way. */
ALWAYS_INLINE void prefetch(const unsigned char *codes, int T)
{
    if (T == 1)
        _mm_prefetch((const char *)codes, _MM_HINT_T1);
    else
        _mm_prefetch((const char *)codes, _MM_HINT_T0);
}

ALWAYS_INLINE __m256i add_32(__m256i sum, __m256i products)
{
    sum = _mm256_add_epi32(sum, products);
    in_register(sum);
    return sum;
}

ALWAYS_INLINE __m256i add_16(__m256i sum, __m256i products)
{
    sum = _mm256_add_epi16(sum, products);
    in_register(sum);
    return sum;
}

/* s += codes of eight bits times x */
ALWAYS_INLINE void add_bytes(integers s, int T, const unsigned char *codes, const struct quantised_group *const *x, size_t ahead)
{
    const __m256i ones = _mm256_set1_epi16(1), high_bit = _mm256_set1_epi8((char)128);
    UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i w[2], magnitude[2];
        FOR_HALVES
        {
            w[r] = _mm256_xor_si256(load(codes + 64 * j + 32 * r), high_bit);
            magnitude[r] = _mm256_abs_epi8(w[r]);
        }
        prefetch(codes + 64 * j + ahead, T);
        FOR_ROWS
        {
            __m256i u = four(x[t], j);
            FOR_HALVES
            {
                __m256i s16 = _mm256_maddubs_epi16(magnitude[r], _mm256_sign_epi8(u, w[r]));
                s[r][t] = add_32(s[r][t], _mm256_madd_epi16(s16, ones));
            }
        }
    }
}

/* s += sums of pairs of 16 bits */
ALWAYS_INLINE void widen(integers s, int T, integers s16)
{
    const __m256i ones = _mm256_set1_epi16(1);
    FOR_HALVES FOR_ROWS s[r][t] = _mm256_add_epi32(s[r][t], _mm256_madd_epi16(s16[r][t], ones));
}

ALWAYS_INLINE void add_nibbles(integers s, int T, const unsigned char *codes, const struct quantised_group *const *x, size_t ahead)
{
    const __m256i low_nibble = _mm256_set1_epi8(15);
    integers s16;
    FOR_HALVES FOR_ROWS s16[r][t] = _mm256_setzero_si256();
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m256i low[2], high[2];
        FOR_HALVES
        {
            __m256i w = load(codes + 64 * j + 32 * r);
            low[r] = _mm256_and_si256(w, low_nibble);
            high[r] = _mm256_and_si256(_mm256_srli_epi16(w, 4), low_nibble);
        }
        prefetch(codes + 64 * j + ahead, T);
        FOR_ROWS
        {
            __m256i u = four(x[t], j), v = four(x[t], j + 4);
            FOR_HALVES s16[r][t] = add_16(s16[r][t], _mm256_maddubs_epi16(low[r], u));
            FOR_HALVES s16[r][t] = add_16(s16[r][t], _mm256_maddubs_epi16(high[r], v));
        }
    }
    widen(s, T, s16);
}

/* s += codes of open panels, minus 128 - above, elements 4j..4(j + count): so many pairs of them have room in 16 bits */
ALWAYS_INLINE void add_small(integers s, int T, const unsigned char *codes, int above, const struct quantised_group *const *x, int j,
                             int count)
{
    const __m256i offset = _mm256_set1_epi8((char)(128 - above));
    integers s16;
    FOR_HALVES FOR_ROWS s16[r][t] = _mm256_setzero_si256();
    UNROLL
    for (int i = j; i < j + count; i++) {
        __m256i w[2];
        FOR_HALVES w[r] = _mm256_sub_epi8(load(codes + 64 * i + 32 * r), offset);
        FOR_ROWS
        {
            __m256i u = four(x[t], i);
            FOR_HALVES s16[r][t] = add_16(s16[r][t], _mm256_maddubs_epi16(w[r], u));
        }
    }
    widen(s, T, s16);
}

ALWAYS_INLINE void add_scaled(float (*sums)[PANEL_ROWS], int T, integers s, const __m256 *scale, const struct quantised_group *const *x)
{
    FOR_ROWS
    {
        __m256 d = _mm256_set1_ps(x[t]->d);
        FOR_HALVES
        {
            __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[r][t]), _mm256_mul_ps(scale[r], d), _mm256_loadu_ps(sums[t] + 8 * r));
            _mm256_storeu_ps(sums[t] + 8 * r, acc);
        }
    }
}

/* One group of a panel: scales as f16 and codes. sums[t] are rows' sums so far. */
ALWAYS_INLINE void group_of_panel(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const unsigned char *w, size_t g,
                                  const struct quantised_group *const *x, size_t ahead)
{
    const enum weight_type type = kind == PANEL_Q4_0 ? WEIGHT_Q4_0 : WEIGHT_Q8_0;
    const unsigned char *codes = panel_codes(w, type, g), *scales = panel_scales(w, type, g);
    integers s;
    __m256 scale[2];
    FOR_HALVES FOR_ROWS s[r][t] = _mm256_set1_epi32(kind == PANEL_Q4_0 ? x[t]->offset8 : 0);
    if (g % 2 == 0)
        prefetch(scales + ahead, T);
    if (kind == PANEL_Q4_0)
        add_nibbles(s, T, codes, x, ahead);
    else
        add_bytes(s, T, codes, x, ahead);
    FOR_HALVES scale[r] = _mm256_cvtph_ps(_mm_load_si128((const void *)(scales + 16 * r)));
    add_scaled(sums, T, s, scale, x);
}

/* The same of a panel that was taken apart. */
ALWAYS_INLINE void group_of_open(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const struct open_panel *w, size_t g,
                                 const struct quantised_group *const *x, int32_t (*less)[BLOCK_GROUPS][2])
{
    const int halves = kind == PANEL_OPEN_HALVES ? 2 : 1;
    UNROLL
    for (int half = 0; half < halves; half++) {
        integers s;
        __m256 scale[2];
        FOR_HALVES FOR_ROWS s[r][t] = _mm256_set1_epi32(kind == PANEL_OPEN_HALVES ? less[t][g][half] : 0);
        if (kind == PANEL_OPEN)
            add_bytes(s, T, w->codes[g], x, 0);
        else
            for (int j = 4 * half; j < 4 * half + 8 / halves; j += kind == PANEL_OPEN_HALVES ? 2 : 4)
                add_small(s, T, w->codes[g], kind == PANEL_OPEN_HALVES ? 32 : 0, x, j, kind == PANEL_OPEN_HALVES ? 2 : 4);
        FOR_HALVES scale[r] = _mm256_loadu_ps(w->scale[g][half] + 8 * r);
        add_scaled(sums, T, s, scale, x);
    }
    if (kind == PANEL_OPEN_MINIMUMS)
        FOR_ROWS
        {
            __m256 sum = _mm256_set1_ps(-(float)x[t]->sum), d = _mm256_set1_ps(x[t]->d);
            FOR_HALVES
            {
                __m256 minimum = _mm256_mul_ps(_mm256_loadu_ps(w->minimum[g] + 8 * r), d);
                _mm256_storeu_ps(sums[t] + 8 * r, _mm256_fmadd_ps(sum, minimum, _mm256_loadu_ps(sums[t] + 8 * r)));
            }
        }
}

/* T rows of x, at most ROWS_OF_X, times a group of every panel */
ALWAYS_INLINE void group_of(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const void *w, size_t g,
                            const struct quantised_group *first, int32_t (*less)[BLOCK_GROUPS][2], const struct quantised_tile *tile)
{
    const struct quantised_group *x[ROWS_OF_X];
    FOR_ROWS x[t] = first + (size_t)t * tile->ldx + g;
    if (kind == PANEL_Q8_0 || kind == PANEL_Q4_0)
        group_of_panel(kind, T, sums, w, g, x, tile->prefetch);
    else
        group_of_open(kind, T, sums, w, g, x, less);
}

/* Panels advance together, group by group: so many streams from memory. */
ALWAYS_INLINE void tile_from(enum panel_kind kind, float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantised_tile *tile)
{
    int32_t less[TILE_ROWS_OF_X][BLOCK_GROUPS][2];
    if (kind == PANEL_OPEN_HALVES)
        sums_of_halves(less, tile->x, tile->ldx, T, tile->groups);
    memset(sums, 0, P * T * sizeof *sums);
    for (size_t g = 0; g < tile->groups; g++)
        for (size_t p = 0; p < P; p++)
            for (size_t t = 0, n; t < T; t += n) {
                const struct quantised_group *x = tile->x + t * tile->ldx;
                n = T - t == 4 ? 2 : T - t < ROWS_OF_X ? T - t : ROWS_OF_X;
                switch (n) {
                case 1: group_of(kind, 1, sums + p * T + t, tile->w[p], g, x, less + t, tile); break;
                case 2: group_of(kind, 2, sums + p * T + t, tile->w[p], g, x, less + t, tile); break;
                default: group_of(kind, 3, sums + p * T + t, tile->w[p], g, x, less + t, tile);
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

void avx2_matmul_quantised(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantised_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantised_loops loops = {.tile = tile_any, .open = avx2_open, .few = avx2_few};
    tiled_matmul_quantised(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
