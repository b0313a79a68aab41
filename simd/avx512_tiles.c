/* simd/avx512_tiles.c -- the tile of four rows by up to six tokens, and the decoders.
 *
 * One register holds the sixteen sums of a (row, token) pair: 24 of the 32 registers for the largest tile. */
#include "simd/avx512.h"

ALWAYS_INLINE __m512 odd_weights(enum tile_source source, const char *w)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return odd_bf16(_mm512_loadu_si512(w));
    return source == FROM_F32 ? odd_f32(_mm512_loadu_ps(f), _mm512_loadu_ps(f + 16)) : _mm512_loadu_ps(f);
}

ALWAYS_INLINE __m512 even_weights(enum tile_source source, const char *w)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16)
        return even_bf16(_mm512_loadu_si512(w));
    return source == FROM_F32 ? even_f32(_mm512_loadu_ps(f), _mm512_loadu_ps(f + 16)) : _mm512_loadu_ps(f + 16);
}

/* a + w * x. With the intrinsic, gcc puts some sums in the register of x. */
ALWAYS_INLINE __m512 fused(__m512 a, __m512 w, __m512 x)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
    return a;
}

/* The sums of one tile. x3 is the vector of token 3, so that few registers hold addresses. */
ALWAYS_INLINE void tile_of(enum tile_source source, int T, float (*sums)[TILE_ROWS], const struct tile *p,
                           const char *const rows[])
{
    const char *w[TILE_ROWS];
    const float *x = p->x, *x3 = x + 3 * p->ldx;
    const size_t ldx = p->ldx, prefetch = p->prefetch;
    __m512 a[TILE_ROWS][TILE_TOKENS], h[TILE_ROWS];
    opaque(x3);
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        w[r] = rows[r];
        UNROLL
        for (int t = 0; t < T; t++)
            a[r][t] = _mm512_setzero_ps();
    }

    for (size_t chunk = p->chunks; chunk; chunk--, x += DOT_CHUNK, x3 += DOT_CHUNK) {
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            h[r] = odd_weights(source, w[r]);
            _mm_prefetch(w[r] + prefetch, _MM_HINT_T0);
            if (source != FROM_BF16)
                _mm_prefetch(w[r] + prefetch + 64, _MM_HINT_T0);
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m512 u = _mm512_loadu_ps(t < 3 ? x + (size_t)t * ldx : x3 + (size_t)(t - 3) * ldx);
            in_register(u);
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                a[r][t] = fused(a[r][t], h[r], u);
        }
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            h[r] = even_weights(source, w[r]);
            w[r] += source == FROM_BF16 ? 64 : 128;
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m512 u = _mm512_loadu_ps((t < 3 ? x + (size_t)t * ldx : x3 + (size_t)(t - 3) * ldx) + 16);
            in_register(u);
            UNROLL
            for (int r = 0; r < TILE_ROWS; r++)
                a[r][t] = fused(a[r][t], h[r], u);
        }
    }
    fold_tile(sums, a, T);
}

typedef void one_tile(float (*sums)[TILE_ROWS], const struct tile *p, const char *const w[]);

ALWAYS_INLINE void tiles_of(one_tile *sums_of, int T, const struct tile *p)
{
    const char *w[TILE_ROWS] = {p->w[0], p->w[1], p->w[2], p->w[3]};
    for (size_t i = 0; i < p->count; i++) {
        float sums[8][TILE_ROWS];
        sums_of(sums, p, w);
        put_tile(p, i, T, sums);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            w[r] += p->w_next;
    }
}

/* Each source and T has a function of its own for the sums of one tile. In one function for all, gcc kept one to three
 * sums on the stack. */
#define TILE(name, source, T) \
    static __attribute__((noinline)) void name##_##T##_sums(float(*sums)[TILE_ROWS], const struct tile *p, \
                                                            const char *const w[]) \
    { \
        tile_of(source, T, sums, p, w); \
    } \
    static void name##_##T(const struct tile *p) { tiles_of(name##_##T##_sums, T, p); }
#define TILES_OF(name, source) \
    TILE(name, source, 1) \
    TILE(name, source, 2) TILE(name, source, 3) TILE(name, source, 4) TILE(name, source, 5) TILE(name, source, 6)
#define TABLE_OF(name) {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6}
TILES_OF(from_bf16, FROM_BF16)
TILES_OF(from_f32, FROM_F32)
TILES_OF(from_packed, FROM_PACKED)

static void tile(size_t T, const struct tile *p)
{
    static void (*const tiles[][TILE_TOKENS])(const struct tile *) = {
        [FROM_BF16] = TABLE_OF(from_bf16), [FROM_F32] = TABLE_OF(from_f32), [FROM_PACKED] = TABLE_OF(from_packed)};
    tiles[p->source][T - 1](p);
}

ALWAYS_INLINE void decode_chunk(float *out, enum weight_type type, const char *codes, __m512 scale, int packed)
{
    __m512 low, high; /* the first and the last sixteen of the result */
    if (type == WEIGHT_F16) {
        __m512 a = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)codes));
        __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(codes + 32)));
        low = packed ? odd_f32(a, b) : a;
        high = packed ? even_f32(a, b) : b;
    } else if (type == WEIGHT_I8) {
        __m512i words = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)codes));
        __m512i odd = _mm512_srai_epi32(words, 16), even = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16);
        low = _mm512_cvtepi32_ps(packed ? odd : _mm512_cvtepi16_epi32(_mm512_castsi512_si256(words)));
        high = _mm512_cvtepi32_ps(packed ? even : _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(words, 1)));
    } else {
        __m512i words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(_mm256_loadu_si256((const void *)codes))
                                               : _mm512_loadu_si512(codes);
        low = packed ? odd_bf16(words) : widen_bf16(_mm512_castsi512_si256(words));
        high = packed ? even_bf16(words) : widen_bf16(_mm512_extracti64x4_epi64(words, 1));
    }
    _mm512_storeu_ps(out, weight_is_byte(type) ? _mm512_mul_ps(low, scale) : low);
    _mm512_storeu_ps(out + 16, weight_is_byte(type) ? _mm512_mul_ps(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const char *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = weight_size(type);
    const __m512 s = _mm512_set1_ps(scale);
    for (; chunks; chunks--, out += DOT_CHUNK, codes += DOT_CHUNK * size) {
        _mm_prefetch(codes + DOT_BLOCK * size, _MM_HINT_T0); /* this row in the next block */
        decode_chunk(out, type, codes, s, packed);
    }
}

/* round_to_bf16 (decode.h) */
ALWAYS_INLINE __m512 round_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(_mm512_srli_epi32(bits, 16), one));
    __m512i rounded = _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                           _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000)));
}

static void decode(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed)
{
    switch (type) {
    case WEIGHT_F16: decode_all(out, WEIGHT_F16, codes, chunks, scale, packed); break;
    case WEIGHT_BF16: decode_all(out, WEIGHT_BF16, codes, chunks, scale, packed); break;
    case WEIGHT_I8: decode_all(out, WEIGHT_I8, codes, chunks, scale, packed); break;
    default: decode_all(out, WEIGHT_F8_E4M3, codes, chunks, scale, packed);
    }
}

static void pack(float *packed, const float *x, size_t K)
{
    for (size_t k = 0; k < K; k += DOT_CHUNK) {
        size_t left = K - k;
        __m512 low = _mm512_maskz_loadu_ps(below(left), x + k);
        __m512 high = left > 16 ? _mm512_maskz_loadu_ps(below(left - 16), x + k + 16) : _mm512_setzero_ps();
        _mm512_storeu_ps(packed + k, odd_f32(low, high));
        _mm512_storeu_ps(packed + k + 16, even_f32(low, high));
    }
}

/* The low halves of the bytes are the even elements, the high halves the odd ones. A table has the weight of each
 * code. */
static void decode_i4(float *out, const unsigned char *codes, const unsigned char *scales, size_t groups, int rounded,
                      int packed)
{
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (; groups; groups--, out += DOT_CHUNK, codes += DOT_CHUNK / 2, scales += 2) {
        uint16_t scale;
        memcpy(&scale, scales, sizeof scale);
        __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes));
        __m512 weights = _mm512_mul_ps(values, _mm512_set1_ps(bf16_to_f32(scale)));
        _mm_prefetch((const char *)codes + DOT_BLOCK / 2, _MM_HINT_T0); /* this row in the next block */
        if (rounded)
            weights = round_bf16(weights);
        __m512 even = _mm512_permutexvar_ps(pairs, weights); /* the lowest 4 bits count */
        __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), weights);
        _mm512_storeu_ps(out, packed ? odd : _mm512_permutex2var_ps(even, first, odd));
        _mm512_storeu_ps(out + 16, packed ? even : _mm512_permutex2var_ps(even, second, odd));
    }
}

/* Lane l has the scale of the group of elements 2l and 2l + 1. */
static void decode_f4_chunks(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed)
{
    const __m512 numbers = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                          -2.0f, -3.0f, -4.0f, -6.0f);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const size_t each = f4_scales_of_a_chunk(w);
    const __m512i which = _mm512_mask_set1_epi32(_mm512_setzero_si512(), each == 2 ? 0xff00 : 0, 1);
    const __m512 factor = _mm512_set1_ps(f4_factor(w));
    const char *codes = (const char *)w->data + at / 2;
    for (size_t some; chunks; chunks -= some, at += some * DOT_CHUNK) {
        float scales[2 * F4_CHUNKS + 1];
        some = min_size(chunks, F4_CHUNKS);
        f4_scales(scales, w, at, some);
        for (size_t i = 0; i < some; i++, out += DOT_CHUNK, codes += DOT_CHUNK / 2) {
            __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes));
            __m128 two = _mm_castsi128_ps(_mm_loadl_epi64((const void *)(scales + i * each)));
            __m512 scale = _mm512_permutexvar_ps(which, _mm512_castps128_ps512(two));
            _mm_prefetch(codes + DOT_BLOCK / 2, _MM_HINT_T0); /* this row in the next block */
            __m512 even = _mm512_permutexvar_ps(pairs, numbers); /* the lowest 4 bits count */
            __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), numbers);
            even = _mm512_mul_ps(_mm512_mul_ps(even, scale), factor);
            odd = _mm512_mul_ps(_mm512_mul_ps(odd, scale), factor);
            if (w->rounded) {
                even = round_bf16(even);
                odd = round_bf16(odd);
            }
            _mm512_storeu_ps(out, packed ? odd : _mm512_permutex2var_ps(even, first, odd));
            _mm512_storeu_ps(out + 16, packed ? even : _mm512_permutex2var_ps(even, second, odd));
        }
    }
}

static void decode_cache_q8(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows,
                            size_t groups)
{
    decode_groups(out, ld, blocks, pitch, rows, groups);
}

const struct vector_loops loops_avx512 = {.tokens = 6, .tile = tile, .strip_tokens = 6, .strip = avx512_strip,
                                          .decode = decode, .decode_i4 = decode_i4, .decode_f4 = decode_f4_chunks,
                                          .decode_cache_q8 = decode_cache_q8, .pack = pack};
