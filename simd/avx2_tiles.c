/* simd/avx2_tiles.c -- the tile of four rows by up to four tokens, and the decoders.
 *
 * Sixteen registers hold eight halves of sums with what feeds them. So a tile works on four rows for one token, on two rows
 * for two tokens or, with twelve, for three, and row by row for four. A word of BF16 weights is decoded once for all tokens. */
#include "simd/avx2.h"

#define TOKENS 4

/* the odd and the even weights of one half of a chunk; of BF16 both from one load */
struct weights {
    __m256 odd, even;
};

ALWAYS_INLINE struct weights weights_of(enum tile_source source, const char *w, size_t half)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16) {
        __m256i words = _mm256_loadu_si256((const void *)(w + 32 * half));
        return (struct weights){odd_bf16(words), even_bf16(words)};
    }
    if (source == FROM_F32)
        return (struct weights){odd_f32(f + 16 * half), even_f32(f + 16 * half)};
    return (struct weights){_mm256_loadu_ps(f + 8 * half), _mm256_loadu_ps(f + 16 + 8 * half)};
}

ALWAYS_INLINE void prefetch_weights(enum tile_source source, const char *w, size_t ahead)
{
    _mm_prefetch(w + ahead, _MM_HINT_T0);
    if (source != FROM_BF16)
        _mm_prefetch(w + ahead + 64, _MM_HINT_T0);
}

/* four sums (lanes l and l+8 added already) to four numbers: [a c a c | b d b d] */
ALWAYS_INLINE __m256 fold_four(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(s, s, 0x88), _mm256_shuffle_ps(s, s, 0xdd));
}

/* Lanes 0 and 1 of v; as integers, else lane 1 is first moved to lane 0 of another register. */
ALWAYS_INLINE void put_two(float *y0, float *y1, __m128 v, int count, int first)
{
    float s[2];
    if (first) {
        int lane1 = _mm_extract_ps(v, 1);
        _mm_store_ss(y0, v);
        if (count > 1)
            memcpy(y1, &lane1, sizeof lane1);
        return;
    }
    _mm_storel_pi((void *)s, v);
    put_sum(y0, s[0], 0);
    if (count > 1)
        put_sum(y1, s[1], 0);
}

/* Hides how a pointer is related to others: compilers would make more pointers of them than there are registers. */
#define opaque(p) __asm__("" : "+r"(p))

/* a + w * x. With the intrinsic, compilers copy sums from register to register. */
ALWAYS_INLINE __m256 fused(__m256 a, __m256 w, __m256 x)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(a) : "x"(w), "x"(x));
    return a;
}

/* The same of x in memory. With the intrinsic, compilers load x once for two rows, and then put sums on the stack. */
ALWAYS_INLINE __m256 fused_at(__m256 a, __m256 w, const char *x)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(a) : "x"(w), "m"(*(const __m256_u *)(const void *)x));
    return a;
}

/* One half of a chunk of R rows by T tokens; the chunk begins `at` bytes behind w. */
ALWAYS_INLINE void half_chunk(enum tile_source source, int R, int T, int gathered, int half, __m256 a[], const char *const w[],
                              const char *const x[], size_t at)
{
    const size_t from = (source == FROM_BF16 ? 2 * at : at) * (size_t)(gathered ? T : 1) + 32 * (size_t)half;
    __m256 odd, even;
    if (T == 1) {
        odd = _mm256_loadu_ps((const void *)(x[0] + from));
        even = _mm256_loadu_ps((const void *)(x[0] + from + 64));
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        struct weights h = weights_of(source, w[r] + at, (size_t)half);
        UNROLL
        for (int t = 0; t < T; t++)
            a[r * T + t] = T == 1 ? fused(a[r], h.odd, odd) : fused_at(a[r * T + t], h.odd, x[t] + from);
        UNROLL
        for (int t = 0; t < T; t++)
            a[r * T + t] = T == 1 ? fused(a[r], h.even, even) : fused_at(a[r * T + t], h.even, x[t] + from + 64);
    }
}

/* Rows r0 .. r0 + R of every tile by T tokens: one row of four, two of two or three, four of one. */
ALWAYS_INLINE void rows_of(enum tile_source source, int R, int T, int gathered, const struct tile *p, int r0)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, end = p->chunks * size, w_next = p->w_next, y_next = p->y_next;
    const int sums = R * T, together = T == 3 ? 3 : 4, first = p->first; /* together: sums that are folded at once */
    const char *w[TILE_ROWS], *ahead[TILE_ROWS], *x[TOKENS];
    float *y = p->y + (size_t)r0 * p->y_row;
    size_t place[8]; /* of a sum in y */
    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = (const char *)(p->x + (size_t)t * (gathered ? DOT_CHUNK : p->ldx));
        if (!gathered)
            opaque(x[t]);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        w[r] = p->w[r0 + r];
        ahead[r] = w[r] + p->prefetch;
        opaque(w[r]);
        opaque(ahead[r]);
        UNROLL
        for (int t = 0; t < T; t++) {
            place[r * T + t] = (size_t)r * p->y_row + (size_t)t * p->ldy;
            if (r + t)
                opaque(place[r * T + t]);
        }
    }
    for (size_t i = p->count; i; i--, y += y_next) {
        __m256 a[6], b[6];
        size_t at = 0;
        UNROLL
        for (int n = 0; n < sums; n++)
            a[n] = b[n] = _mm256_setzero_ps();
        do {
            half_chunk(source, R, T, gathered, 0, a, w, x, at);
            half_chunk(source, R, T, gathered, 1, b, w, x, at);
            UNROLL
            for (int r = 0; r < R; r++)
                prefetch_weights(source, ahead[r], at);
        } while ((at += size) != end);
        UNROLL
        for (int n = 0; n < sums; n++)
            a[n] = _mm256_add_ps(a[n], b[n]);
        opaque(y);
        UNROLL
        for (int n = 0; n < sums; n += together) {
            __m256 folded = fold_four(a[n], a[n + 1], a[n + 2], a[n + together - 1]);
            put_two(y + place[n], y + place[n + 2], _mm256_castps256_ps128(folded), 2, first);
            put_two(y + place[n + 1], y + place[n + together - 1], _mm256_extractf128_ps(folded, 1), together - 2, first);
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            w[r] += w_next;
            ahead[r] += w_next;
        }
    }
}

/* Functions of their own: in one of all, loops spill what they would keep in registers. */
#define TILES(name, source, R, T, gathered) \
    static __attribute__((noinline)) void name(const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += R) \
            rows_of(source, R, T, gathered, p, r); \
    }
#define TILES_OF(name, source) \
    TILES(name##_1, source, 4, 1, 0) \
    TILES(name##_2, source, 2, 2, 0) TILES(name##_3, source, 2, 3, 0) TILES(name##_4, source, 1, 4, 0) \
    TILES(name##_2_gathered, source, 2, 2, 1) TILES(name##_3_gathered, source, 2, 3, 1) TILES(name##_4_gathered, source, 1, 4, 1)
#define TABLE_OF(name) {{name##_1, name##_2, name##_3, name##_4}, {name##_1, name##_2_gathered, name##_3_gathered, name##_4_gathered}}
TILES_OF(from_bf16, FROM_BF16)
TILES_OF(from_f32, FROM_F32)
TILES_OF(from_packed, FROM_PACKED)

static void tile(size_t T, const struct tile *p)
{
    static void (*const tiles[][2][TOKENS])(const struct tile *) = {
        [FROM_BF16] = TABLE_OF(from_bf16), [FROM_F32] = TABLE_OF(from_f32), [FROM_PACKED] = TABLE_OF(from_packed)};
    tiles[p->source][p->step > DOT_CHUNK][T - 1](p);
}

/* half a chunk: 16 weights to out[0..15], or packed to 8 of the odd and 8 of the even ones */
ALWAYS_INLINE void decode_half(float *out, enum weight_type type, const char *codes, __m256 scale, int packed)
{
    __m256 low, high;
    if (type == WEIGHT_F16) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const void *)codes));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(codes + 16)));
        __m256 a_b_low = _mm256_permute2f128_ps(a, b, 0x20), a_b_high = _mm256_permute2f128_ps(a, b, 0x31);
        low = packed ? _mm256_shuffle_ps(a_b_low, a_b_high, 0xdd) : a; /* a1 a3 a5 a7 b1 b3 b5 b7 */
        high = packed ? _mm256_shuffle_ps(a_b_low, a_b_high, 0x88) : b;
    } else {
        __m256i words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(_mm_loadu_si128((const void *)codes))
                                               : _mm256_loadu_si256((const void *)codes);
        low = packed ? odd_bf16(words) : widen_bf16(_mm256_castsi256_si128(words));
        high = packed ? even_bf16(words) : widen_bf16(_mm256_extracti128_si256(words, 1));
    }
    _mm256_storeu_ps(out, type == WEIGHT_F8_E4M3 ? _mm256_mul_ps(low, scale) : low);
    _mm256_storeu_ps(out + (packed ? 16 : 8), type == WEIGHT_F8_E4M3 ? _mm256_mul_ps(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const char *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = type == WEIGHT_F8_E4M3 ? 1 : 2;
    const __m256 s = _mm256_set1_ps(scale);
    for (; chunks; chunks--, out += DOT_CHUNK, codes += DOT_CHUNK * size) {
        _mm_prefetch(codes + DOT_BLOCK * size, _MM_HINT_T0); /* this row in the next block */
        decode_half(out, type, codes, s, packed);
        decode_half(out + (packed ? 8 : 16), type, codes + 16 * size, s, packed);
    }
}

static void decode(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed)
{
    switch (type) {
    case WEIGHT_F16: decode_all(out, WEIGHT_F16, codes, chunks, scale, packed); break;
    case WEIGHT_BF16: decode_all(out, WEIGHT_BF16, codes, chunks, scale, packed); break;
    default: decode_all(out, WEIGHT_F8_E4M3, codes, chunks, scale, packed);
    }
}

static void pack(float *packed, const float *x, size_t K)
{
    for (size_t k = 0; k < K; k += DOT_CHUNK, packed += DOT_CHUNK) {
        float cut[DOT_CHUNK];
        const float *chunk = K - k < DOT_CHUNK ? copy_cut(cut, x + k, K - k) : x + k;
        for (size_t half = 0; half < 2; half++) {
            _mm256_storeu_ps(packed + 8 * half, odd_f32(chunk + 16 * half));
            _mm256_storeu_ps(packed + 16 + 8 * half, even_f32(chunk + 16 * half));
        }
    }
}

const struct vector_loops loops_avx2 = {.tokens = TOKENS, .gathers = 1, .tile = tile, .strip = avx2_strip, .decode = decode, .pack = pack};
