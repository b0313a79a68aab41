/* simd/avx2_quantized.c -- quantized matrices without VNNI.
 *
 * Codes of four to six bits: vpmaddubsw adds two products of an unsigned code with a signed x in 16 bits. There is room
 * for the sum of eight such pairs with codes of four bits (15 * 127 * 2), of four with five bits, of two with six.
 * Codes of eight bits have no room there (255 * 127 * 2). They are widened to 16 bits, as x is, and vpmaddwd adds two
 * products in 32 bits. That takes as many instructions for each product as giving the sign of a code to x, but none of
 * them for every row of x. A code of IQ4_NL stands for a number from -127 to 113, which is found in a register. x gets
 * its sign: the sum of two products has room (127 * 127 * 2), and bytes need not be widened.
 *
 * A tile multiplies one panel (two registers of eight rows) by up to six rows of x. So there are twelve integer sums,
 * and of the sixteen registers two are left for codes, one for x and one for a product. Taking codes apart costs a
 * sixth for each row of x, and each broadcast of x serves two registers of codes. The f32 sums stay in L1, where each
 * is needed once in a group. */
#include "simd/avx2.h"
#include "simd/quantized_tiles.h"

#include <math.h>

typedef __m256i integers[2][TILE_ROWS_OF_X]; /* rows 0..7 of the panel, rows 8..15 */

#define FOR_HALVES UNROLL for (int r = 0; r < 2; r++)
#define FOR_ROWS UNROLL for (int t = 0; t < T; t++)

/* Sums are made in the order written: gcc would gather all products of a group before it adds them, more than there are
 * registers. */
#define in_register(v) __asm__("" : "+x"(v))
/* Codes are loaded from memory each time they are written here: gcc would keep them, and sums on the stack instead. */
#define forget(pointer) __asm__("" : "+r"(pointer))

/* A group of a row of x as the products want it: bytes; or, for codes of eight bits, words: the even elements, then the
 * odd ones. */
struct ready {
    union {
        int8_t bytes[64];
        int16_t words[32];
    };
    float d, minus_sum[2]; /* minus the sum of each half of the group, or [0] of all of it */
    int32_t start[2]; /* minus what the codes stand too high, times x: of each half of the group, or [0] of all of it */
};

_Static_assert(TILE_ROWS_OF_X *BLOCK_GROUPS * sizeof(struct ready) <= TILE_READY,
               "quantized_tiles.h promises too little");

/* four bytes or two words of x, for every row of a panel */
ALWAYS_INLINE __m256i four(const struct ready *x, int j)
{
    int32_t q;
    memcpy(&q, x->bytes + 4 * j, sizeof q);
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

/* s = codes of eight bits times x, both widened to 16 bits: the even elements of four, then the odd ones */
ALWAYS_INLINE void add_bytes(integers s, int T, const unsigned char *codes, const struct ready *x, size_t ahead)
{
    FOR_ROWS FOR_HALVES s[r][t] = _mm256_set1_epi32(x[t].start[0]);
    UNROLL
    for (int i = 0; i < 16; i++) {
        __m256i w[2];
        forget(codes);
        FOR_HALVES
        {
            w[r] = load(codes + 64 * (i / 2) + 32 * r);
            w[r] = i % 2 ? _mm256_srli_epi16(w[r], 8) : _mm256_and_si256(w[r], _mm256_set1_epi16(255));
        }
        if (i % 2 == 0)
            prefetch(codes + 64 * (i / 2) + ahead, T);
        FOR_ROWS
        {
            __m256i u = four(&x[t], i / 2 + i % 2 * 8);
            FOR_HALVES
            {
                s[r][t] = _mm256_add_epi32(s[r][t], _mm256_madd_epi16(w[r], u));
                in_register(s[r][t]);
            }
        }
    }
}

/* s16 += codes times x, or s16 = of the first: elements 4j..4j+3 */
ALWAYS_INLINE void add_products(integers s16, int T, const __m256i w[2], const struct ready *x, int j, int first)
{
    FOR_ROWS
    {
        __m256i u = four(&x[t], j);
        FOR_HALVES
        {
            __m256i products = _mm256_maddubs_epi16(w[r], u);
            s16[r][t] = first ? products : _mm256_add_epi16(s16[r][t], products);
            in_register(s16[r][t]);
        }
    }
}

/* s = the sums of pairs of 16 bits, in 32 bits */
ALWAYS_INLINE void widen(integers s, int T)
{
    FOR_ROWS FOR_HALVES s[r][t] = _mm256_madd_epi16(s[r][t], _mm256_set1_epi16(1));
}

/* s = codes of four bits times x */
ALWAYS_INLINE void add_nibbles(integers s, int T, const unsigned char *codes, const struct ready *x, size_t ahead)
{
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m256i w[2];
        forget(codes);
        FOR_HALVES
        {
            w[r] = load(codes + 64 * (i / 2) + 32 * r);
            w[r] = _mm256_and_si256(i % 2 ? _mm256_srli_epi16(w[r], 4) : w[r], _mm256_set1_epi8(15));
        }
        if (i % 2 == 0)
            prefetch(codes + 64 * (i / 2) + ahead, T);
        add_products(s, T, w, x, i / 2 + i % 2 * 4, i == 0);
    }
    widen(s, T);
    FOR_ROWS FOR_HALVES s[r][t] = _mm256_add_epi32(s[r][t], _mm256_set1_epi32(x[t].start[0]));
}

/* s = the numbers that codes of IQ4_NL stand for, times x */
ALWAYS_INLINE void add_looked_up(integers s, int T, const unsigned char *codes, const struct ready *x, size_t ahead)
{
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)quantized_iq4));
    UNROLL
    for (int i = 0; i < 8; i++) {
        __m256i q[2], magnitude[2];
        forget(codes);
        FOR_HALVES
        {
            __m256i w = load(codes + 64 * (i / 2) + 32 * r);
            q[r] = _mm256_shuffle_epi8(table,
                                       _mm256_and_si256(i % 2 ? _mm256_srli_epi16(w, 4) : w, _mm256_set1_epi8(15)));
            magnitude[r] = _mm256_abs_epi8(q[r]);
        }
        if (i % 2 == 0)
            prefetch(codes + 64 * (i / 2) + ahead, T);
        FOR_ROWS
        {
            __m256i u = four(&x[t], i / 2 + i % 2 * 4);
            FOR_HALVES
            {
                __m256i pairs = _mm256_maddubs_epi16(magnitude[r], _mm256_sign_epi8(u, q[r]));
                __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                s[r][t] = i == 0 ? products : _mm256_add_epi32(s[r][t], products);
                in_register(s[r][t]);
            }
        }
    }
}

/* sums += s * (scale * d) */
ALWAYS_INLINE void add_scaled(float (*sums)[PANEL_ROWS], int T, integers s, const __m256 *scale, const struct ready *x)
{
    FOR_ROWS
    {
        __m256 d = _mm256_set1_ps(x[t].d);
        FOR_HALVES
        {
            __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[r][t]), _mm256_mul_ps(scale[r], d),
                                         _mm256_loadu_ps(sums[t] + 8 * r));
            _mm256_storeu_ps(sums[t] + 8 * r, acc);
        }
    }
}

/* One group of a panel: scales and codes. sums[t] are rows' sums so far. */
ALWAYS_INLINE void group_of_panel(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const unsigned char *w,
                                  size_t g, const struct ready *x, size_t ahead)
{
    const enum weight_type type = panel_has_4_bits(kind) ? WEIGHT_Q4_0
                                  : kind == PANEL_Q8_F32 ? WEIGHT_Q8_F32
                                  : WEIGHT_Q8_0; /* as they are laid out */
    const unsigned char *codes = panel_codes(w, type, g), *scales = panel_scales(w, type, g);
    integers s;
    __m256 scale[2];
    if (g % 2 == 0)
        prefetch(scales + ahead, T);
    if (kind == PANEL_IQ4_NL)
        add_looked_up(s, T, codes, x, ahead);
    else if (panel_has_4_bits(kind))
        add_nibbles(s, T, codes, x, ahead);
    else
        add_bytes(s, T, codes, x, ahead);
    FOR_HALVES
    {
        if (kind == PANEL_Q8_F32) {
            scale[r] = _mm256_load_ps((const float *)(const void *)scales + 8 * r);
            continue;
        }
        __m128i halves = _mm_load_si128((const void *)(scales + 16 * r));
        scale[r] = kind == PANEL_Q4_BF16 ? widen_bf16(halves) : _mm256_cvtph_ps(halves);
    }
    add_scaled(sums, T, s, scale, x);
}

/* s = codes of open panels minus 128 - above, elements 4j..4(j + count), times x: `room` products have room in 16
 * bits */
ALWAYS_INLINE void add_small(integers s, int T, const unsigned char *codes, int above, const struct ready *x, int j,
                             int count, int room)
{
    FOR_ROWS FOR_HALVES s[r][t] = _mm256_set1_epi32(x[t].start[j / 4]);
    for (int i = j; i < j + count; i += room) {
        integers s16;
        UNROLL
        for (int k = i; k < i + room; k++) {
            __m256i w[2];
            FOR_HALVES w[r] = _mm256_sub_epi8(load(codes + 64 * k + 32 * r), _mm256_set1_epi8((char)(128 - above)));
            add_products(s16, T, w, x, k, k == i);
        }
        widen(s16, T);
        FOR_ROWS FOR_HALVES s[r][t] = _mm256_add_epi32(s[r][t], s16[r][t]);
    }
}

/* The same of a panel that was taken apart. */
ALWAYS_INLINE void group_of_open(enum panel_kind kind, int T, float (*sums)[PANEL_ROWS], const struct open_panel *w,
                                 size_t g, const struct ready *x)
{
    const int halves = panel_has_halves(kind) ? 2 : 1;
    const int above = kind == PANEL_OPEN_HALVES ? 32 : kind == PANEL_OPEN_WIDE_HALVES ? 64 : 0;
    UNROLL
    for (int half = 0; half < halves; half++) {
        integers s;
        __m256 scale[2];
        if (kind == PANEL_OPEN)
            add_bytes(s, T, w->codes[g], x, 0);
        else
            add_small(s, T, w->codes[g], above, x, 4 * half, 8 / halves, above == 32 ? 2 : above == 64 ? 1 : 4);
        FOR_HALVES scale[r] = _mm256_loadu_ps(w->scale[g][half] + 8 * r);
        add_scaled(sums, T, s, scale, x);
        if (panel_has_minimums(kind))
            FOR_ROWS
            {
                __m256 sum = _mm256_set1_ps(x[t].minus_sum[half]), d = _mm256_set1_ps(x[t].d);
                FOR_HALVES
                {
                    __m256 minimum = _mm256_mul_ps(_mm256_loadu_ps(w->minimum[g][half] + 8 * r), d);
                    _mm256_storeu_ps(sums[t] + 8 * r, _mm256_fmadd_ps(sum, minimum, _mm256_loadu_ps(sums[t] + 8 * r)));
                }
            }
    }
}

/* T rows of x times a block of every panel. Panels advance together, group by group: so many streams from memory. */
ALWAYS_INLINE void tile_of(enum panel_kind kind, float (*sums)[PANEL_ROWS], size_t P, int T,
                           const struct quantized_tile *tile)
{
    const struct ready *x = tile->ready;
    memset(sums, 0, P * (size_t)T * sizeof *sums);
    for (size_t g = 0; g < tile->groups; g++, x += T)
        for (size_t p = 0; p < P; p++)
            if (panel_is_open(kind))
                group_of_open(kind, T, sums + p * (size_t)T, tile->w[p], g, x);
            else
                group_of_panel(kind, T, sums + p * (size_t)T, tile->w[p], g, x, tile->prefetch);
}

ALWAYS_INLINE void tile_from(enum panel_kind kind, float (*sums)[PANEL_ROWS], size_t P, size_t T,
                             const struct quantized_tile *tile)
{
    switch (T) {
    case 1: tile_of(kind, sums, P, 1, tile); break;
    case 2: tile_of(kind, sums, P, 2, tile); break;
    case 3: tile_of(kind, sums, P, 3, tile); break;
    case 4: tile_of(kind, sums, P, 4, tile); break;
    case 5: tile_of(kind, sums, P, 5, tile); break;
    default: tile_of(kind, sums, P, 6, tile);
    }
}

static void tile_any(float (*sums)[PANEL_ROWS], size_t P, size_t T, const struct quantized_tile *tile)
{
    switch (tile->kind) {
    case PANEL_Q8_0: tile_from(PANEL_Q8_0, sums, P, T, tile); break;
    case PANEL_Q4_0: tile_from(PANEL_Q4_0, sums, P, T, tile); break;
    case PANEL_Q4_BF16: tile_from(PANEL_Q4_BF16, sums, P, T, tile); break;
    case PANEL_IQ4_NL: tile_from(PANEL_IQ4_NL, sums, P, T, tile); break;
    case PANEL_Q8_F32: tile_from(PANEL_Q8_F32, sums, P, T, tile); break;
    case PANEL_OPEN: tile_from(PANEL_OPEN, sums, P, T, tile); break;
    case PANEL_OPEN_HALVES: tile_from(PANEL_OPEN_HALVES, sums, P, T, tile); break;
    case PANEL_OPEN_WIDE_HALVES: tile_from(PANEL_OPEN_WIDE_HALVES, sums, P, T, tile); break;
    case PANEL_OPEN_HALVES_MINIMUMS: tile_from(PANEL_OPEN_HALVES_MINIMUMS, sums, P, T, tile); break;
    default: tile_from(PANEL_OPEN_MINIMUMS, sums, P, T, tile);
    }
}

ALWAYS_INLINE void prepare_groups(enum panel_kind kind, struct ready *y, size_t step, const struct quantized_group *x,
                                  size_t groups)
{
    for (size_t g = 0; g < groups; g++, x++, y += step) {
        __m256i q = _mm256_loadu_si256((const void *)x->q);
        y->d = x->d;
        int32_t halves[2] = {panel_has_halves(kind) ? sum_of_half(x, 0) : x->sum, x->upper};
        y->start[0] = panel_has_minimums(kind) ? 0 : panel_has_4_bits(kind) ? x->offset8 : x->offset128;
        y->start[1] = 0;
        for (int half = 0; half < 2; half++) {
            y->minus_sum[half] = -(float)halves[half];
            if (kind == PANEL_OPEN_HALVES || kind == PANEL_OPEN_WIDE_HALVES)
                y->start[half] = (kind == PANEL_OPEN_HALVES ? -32 : -64) * halves[half];
        }
        if (kind == PANEL_Q8_0 || kind == PANEL_OPEN) {
            _mm256_storeu_si256((void *)y->words, _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
            _mm256_storeu_si256((void *)(y->words + 16), _mm256_srai_epi16(q, 8));
        } else
            _mm256_storeu_si256((void *)y->bytes, q);
    }
}

/* The rows of x of a tile, once for all its panels: struct ready[groups][T]. */
static void prepare(void *ready, size_t T, const struct quantized_tile *tile)
{
    for (size_t t = 0; t < T; t++) {
        const struct quantized_group *x = tile->x + t * tile->ldx;
        struct ready *y = (struct ready *)ready + t;
        switch (tile->kind) {
        case PANEL_Q8_0:
        case PANEL_Q8_F32:
        case PANEL_OPEN: prepare_groups(PANEL_OPEN, y, T, x, tile->groups); break;
        case PANEL_Q4_BF16:
        case PANEL_IQ4_NL:
        case PANEL_Q4_0: prepare_groups(PANEL_Q4_0, y, T, x, tile->groups); break;
        case PANEL_OPEN_HALVES: prepare_groups(PANEL_OPEN_HALVES, y, T, x, tile->groups); break;
        case PANEL_OPEN_WIDE_HALVES: prepare_groups(PANEL_OPEN_WIDE_HALVES, y, T, x, tile->groups); break;
        case PANEL_OPEN_HALVES_MINIMUMS: prepare_groups(PANEL_OPEN_HALVES_MINIMUMS, y, T, x, tile->groups); break;
        default: prepare_groups(PANEL_OPEN_MINIMUMS, y, T, x, tile->groups);
        }
    }
}

void avx2_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                           const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantized_loops loops = {.most_sums = TILE_SUMS, .opens_panels = 1, .prepare = prepare,
                                          .tile = tile_any, .open = avx2_open, .few = avx2_few};
    tiled_matmul_quantized(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}

/* --- kernel quantize --- */

ALWAYS_INLINE __m256i magnitude(const float *x)
{
    return _mm256_and_si256(_mm256_loadu_si256((const void *)x), _mm256_set1_epi32(0x7fffffff));
}

/* Adding 1.5 * 2^23 to a number of at most 127 rounds it to an integer, which the sum holds in its low mantissa
 * bits. */
ALWAYS_INLINE __m256i rounded(const float *x, __m256 inverse)
{
    return _mm256_castps_si256(_mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x), inverse), _mm256_set1_ps(0x1.8p23f)));
}

/* eight pairs of bytes, one in each word of 32 bits: the lower byte of `even`, then that of `odd` */
ALWAYS_INLINE __m256i pairs(__m256i even, __m256i odd)
{
    odd = _mm256_and_si256(_mm256_slli_epi32(odd, 8), _mm256_set1_epi32(0xff00));
    return _mm256_or_si256(odd, _mm256_and_si256(even, _mm256_set1_epi32(0xff)));
}

void avx2_quantize(struct quantized_group *y, const float *packed, size_t K)
{
    for (size_t k = 0; k < K; k += 32, packed += 32, y++) {
        __m256i most = _mm256_max_epi32(_mm256_max_epi32(magnitude(packed), magnitude(packed + 8)),
                                        _mm256_max_epi32(magnitude(packed + 16), magnitude(packed + 24)));
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        uint32_t bits = (uint32_t)_mm_cvtsi128_si32(four);
        if (bits >= 0x7f800000 || bits < (127u - 100) << 23) {
            memset(y, 0, sizeof *y);
            y->d = bits >= 0x7f800000 ? NAN : 0.0f;
            continue;
        }
        float m = bits_to_f32(bits);
        __m256 inverse = _mm256_set1_ps(127.0f / m);
        __m256i odd[2] = {rounded(packed, inverse), rounded(packed + 8, inverse)};
        __m256i even[2] = {rounded(packed + 16, inverse), rounded(packed + 24, inverse)};
        __m256i q = _mm256_packus_epi32(pairs(even[0], odd[0]), pairs(even[1], odd[1]));
        q = _mm256_permute4x64_epi64(q, 0xd8); /* in natural order: each half in 128 bits */
        __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
        int32_t upper = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
        int32_t sum = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)) + upper;
        y->d = m / 127.0f;
        y->sum = sum;
        y->upper = upper;
        y->offset8 = -8 * sum;
        y->offset128 = -128 * sum;
        _mm256_storeu_si256((void *)y->q, q);
    }
}
