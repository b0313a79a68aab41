/* simd/avx512_vnni.c -- quantized matrices with VNNI: vpdpbusd adds, to each of sixteen rows' sums, four products of an
 * unsigned code with a signed x. Codes stand 128 (of Q4_0: 8) too high; the sum begins with as much less times that of
 * x. A code of IQ4_NL is replaced by the number q + 128 that it stands for. */
#include "simd/avx512.h"
#include "simd/quantized_tiles.h"

typedef __m512i integers[TILE_PANELS][TILE_ROWS_OF_X];
typedef __m512 floats[TILE_PANELS][TILE_ROWS_OF_X];

#define FOR_PANELS UNROLL for (int p = 0; p < P; p++)
#define FOR_ROWS UNROLL for (int t = 0; t < T; t++)

/* elements 4j..4j+3, for every row of a panel */
ALWAYS_INLINE __m512i four(const struct quantized_group *x, int j)
{
    int32_t q;
    memcpy(&q, x->q + 4 * j, sizeof q);
    __m512i u = _mm512_set1_epi32(q);
    in_register(u);
    return u;
}

/* s += codes times x, elements 4j..4(j + count) */
ALWAYS_INLINE void add_bytes(integers s, int P, int T, const unsigned char *const *codes,
                             const struct quantized_group *const *x, int j, int count, size_t prefetch)
{
    UNROLL
    for (int i = j; i < j + count; i++) {
        __m512i w[TILE_PANELS];
        FOR_PANELS
        {
            w[p] = _mm512_load_si512(codes[p] + 64 * i);
            _mm_prefetch((const char *)codes[p] + 64 * i + prefetch, _MM_HINT_T1);
        }
        FOR_ROWS
        {
            __m512i u = four(x[t], i);
            FOR_PANELS s[p][t] = _mm512_dpbusd_epi32(s[p][t], w[p], u);
        }
    }
}

ALWAYS_INLINE void add_nibbles(enum panel_kind kind, integers s, int P, int T, const unsigned char *const *codes,
                               const struct quantized_group *const *x, size_t prefetch)
{
    const __m512i low_nibble = _mm512_set1_epi8(15);
    const __m128i iq4 = _mm_xor_si128(_mm_loadu_si128((const void *)quantized_iq4), _mm_set1_epi8((char)128));
    const __m512i table = _mm512_broadcast_i32x4(iq4);
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i low[TILE_PANELS], high[TILE_PANELS];
        FOR_PANELS
        {
            __m512i w = _mm512_load_si512(codes[p] + 64 * i);
            low[p] = _mm512_and_si512(w, low_nibble);
            high[p] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low_nibble);
            if (kind == PANEL_IQ4_NL) {
                low[p] = _mm512_shuffle_epi8(table, low[p]);
                high[p] = _mm512_shuffle_epi8(table, high[p]);
            }
            _mm_prefetch((const char *)codes[p] + 64 * i + prefetch, _MM_HINT_T1);
        }
        FOR_ROWS
        {
            __m512i u = four(x[t], i), v = four(x[t], i + 4);
            FOR_PANELS s[p][t] = _mm512_dpbusd_epi32(s[p][t], low[p], u);
            FOR_PANELS s[p][t] = _mm512_dpbusd_epi32(s[p][t], high[p], v);
        }
    }
}

ALWAYS_INLINE __m512 add_scaled(__m512 acc, __m512i s, __m512 scale, const struct quantized_group *x)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_mul_ps(scale, _mm512_set1_ps(x->d)), acc);
}

/* One group of panels: scales, and codes at w. */
ALWAYS_INLINE void group_of_panels(enum panel_kind kind, floats acc, int P, int T, const unsigned char *const *scales,
                                   const unsigned char *const *codes, const struct quantized_group *const *x,
                                   size_t prefetch)
{
    integers s;
    const int above_8 = panel_has_4_bits(kind) && kind != PANEL_IQ4_NL;
    FOR_PANELS FOR_ROWS s[p][t] = _mm512_set1_epi32(above_8 ? x[t]->offset8 : x[t]->offset128);
    if (panel_has_4_bits(kind))
        add_nibbles(kind, s, P, T, codes, x, prefetch);
    else
        add_bytes(s, P, T, codes, x, 0, 8, prefetch);
    FOR_PANELS
    {
        __m512 scale;
        if (kind == PANEL_Q8_F32) {
            scale = _mm512_load_ps(scales[p]);
        } else {
            __m256i halves = _mm256_load_si256((const void *)scales[p]);
            scale = kind == PANEL_Q4_BF16 ? widen_bf16(halves) : _mm512_cvtph_ps(halves);
        }
        FOR_ROWS acc[p][t] = add_scaled(acc[p][t], s[p][t], scale, x[t]);
    }
}

ALWAYS_INLINE void tile_of_panels(enum panel_kind kind, int P, int T, float (*sums)[PANEL_ROWS],
                                  const struct quantized_tile *tile)
{
    const size_t size = panel_has_4_bits(kind) ? 256 : 512;
    const unsigned char *w[TILE_PANELS], *upper[TILE_PANELS], *codes[TILE_PANELS];
    const struct quantized_group *x[TILE_ROWS_OF_X];
    size_t prefetch = tile->prefetch;
    floats acc;
    FOR_PANELS w[p] = tile->w[p];
    FOR_ROWS x[t] = tile->x + (size_t)t * tile->ldx;
    FOR_PANELS FOR_ROWS acc[p][t] = _mm512_setzero_ps();
    for (size_t g = 0; g < tile->groups; g += 2) {
        FOR_PANELS codes[p] = w[p] + 64;
        FOR_PANELS _mm_prefetch((const char *)w[p] + prefetch, _MM_HINT_T1);
        group_of_panels(kind, acc, P, T, w, codes, x, prefetch);
        FOR_ROWS x[t]++;
        if (g + 1 == tile->groups)
            break;
        FOR_PANELS codes[p] = w[p] + 64 + size;
        FOR_PANELS upper[p] = w[p] + (kind == PANEL_Q8_F32 ? 0 : 32);
        group_of_panels(kind, acc, P, T, upper, codes, x, prefetch);
        FOR_ROWS x[t]++;
        FOR_PANELS w[p] += 64 + 2 * size;
    }
    FOR_PANELS FOR_ROWS _mm512_store_ps(sums[p * T + t], acc[p][t]);
}

/* Panels that were taken apart, and what only they have: minimums; two scales, with the sums of x that belong to each
 * half. */
ALWAYS_INLINE void tile_of_open(enum panel_kind kind, int P, int T, float (*sums)[PANEL_ROWS],
                                const struct quantized_tile *tile)
{
    const struct open_panel *w[TILE_PANELS];
    const unsigned char *codes[TILE_PANELS];
    const struct quantized_group *x[TILE_ROWS_OF_X];
    const int halves = panel_has_halves(kind) ? 2 : 1;
    floats acc;
    FOR_PANELS w[p] = tile->w[p];
    FOR_ROWS x[t] = tile->x + (size_t)t * tile->ldx;
    FOR_PANELS FOR_ROWS acc[p][t] = _mm512_setzero_ps();
    for (size_t g = 0; g < tile->groups; g++) {
        FOR_PANELS codes[p] = w[p]->codes[g];
        UNROLL
        for (int half = 0; half < halves; half++) {
            integers s;
            __m512 of_x[TILE_ROWS_OF_X];
            FOR_ROWS
            {
                int32_t sum = halves == 2 ? sum_of_half(x[t], half) : x[t]->sum;
                of_x[t] = _mm512_set1_ps((float)sum);
                FOR_PANELS s[p][t] = _mm512_set1_epi32(halves == 2 ? -128 * sum : x[t]->offset128);
            }
            add_bytes(s, P, T, codes, x, 4 * half, 8 / halves, 0);
            FOR_PANELS FOR_ROWS acc[p][t] = add_scaled(acc[p][t], s[p][t], _mm512_loadu_ps(w[p]->scale[g][half]), x[t]);
            if (panel_has_minimums(kind))
                FOR_ROWS
                {
                    __m512 d = _mm512_set1_ps(x[t]->d);
                    FOR_PANELS acc[p][t] = _mm512_fnmadd_ps(of_x[t],
                                                            _mm512_mul_ps(_mm512_loadu_ps(w[p]->minimum[g][half]), d),
                                                            acc[p][t]);
                }
        }
        FOR_ROWS x[t]++;
    }
    FOR_PANELS FOR_ROWS _mm512_store_ps(sums[p * T + t], acc[p][t]);
}

ALWAYS_INLINE void tile_of(enum panel_kind kind, int P, int T, float (*sums)[PANEL_ROWS],
                           const struct quantized_tile *tile)
{
    if (panel_is_open(kind))
        tile_of_open(kind, P, T, sums, tile);
    else
        tile_of_panels(kind, P, T, sums, tile);
}

ALWAYS_INLINE void tile_from(enum panel_kind kind, float (*sums)[PANEL_ROWS], size_t P, size_t T,
                             const struct quantized_tile *tile)
{
    switch (P * 8 + T) {
    case 8 + 1: tile_of(kind, 1, 1, sums, tile); break;
    case 8 + 2: tile_of(kind, 1, 2, sums, tile); break;
    case 8 + 3: tile_of(kind, 1, 3, sums, tile); break;
    case 8 + 4: tile_of(kind, 1, 4, sums, tile); break;
    case 8 + 5: tile_of(kind, 1, 5, sums, tile); break;
    case 8 + 6: tile_of(kind, 1, 6, sums, tile); break;
    case 2 * 8 + 1: tile_of(kind, 2, 1, sums, tile); break;
    case 2 * 8 + 2: tile_of(kind, 2, 2, sums, tile); break;
    case 2 * 8 + 3: tile_of(kind, 2, 3, sums, tile); break;
    case 2 * 8 + 4: tile_of(kind, 2, 4, sums, tile); break;
    case 2 * 8 + 5: tile_of(kind, 2, 5, sums, tile); break;
    case 2 * 8 + 6: tile_of(kind, 2, 6, sums, tile); break;
    case 4 * 8 + 1: tile_of(kind, 4, 1, sums, tile); break;
    case 4 * 8 + 2: tile_of(kind, 4, 2, sums, tile); break;
    default: tile_of(kind, 4, 3, sums, tile);
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
    case PANEL_OPEN_HALVES:
    case PANEL_OPEN_WIDE_HALVES: tile_from(PANEL_OPEN_HALVES, sums, P, T, tile); break;
    case PANEL_OPEN_HALVES_MINIMUMS: tile_from(PANEL_OPEN_HALVES_MINIMUMS, sums, P, T, tile); break;
    default: tile_from(PANEL_OPEN_MINIMUMS, sums, P, T, tile);
    }
}

void avx512_matmul_quantized(float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                             const struct quantized_group *x, size_t ldx, size_t T, void *scratch)
{
    const struct quantized_loops loops = {.most_sums = 12, .tile = tile_any, .open = avx512_open, .few = avx512_few};
    tiled_matmul_quantized(&loops, y, ldy, w, n0, n1, x, ldx, T, scratch);
}
