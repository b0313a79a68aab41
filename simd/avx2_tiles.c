/* simd/avx2_tiles.c -- the tiles of one to four tokens, and the decoders.
 *
 * There are sixteen registers. The sums of one row and one token need two of them, a low half and a high half (avx2.h). Each
 * tile has eight sums: eight independent chains of fmas keep two fma units busy, because an fma takes four cycles. One or two
 * tokens are multiplied by both halves of four or two rows in one loop.
 *
 * Three or four tokens are multiplied by the low half of two rows in one loop, and by the high half in a second loop. Each word
 * of weights is loaded once for its odd and its even weight, and each number of x once for two rows: ten loads for sixteen
 * fmas. More sums would leave too few registers for the operands, and compilers would keep some sums on the stack
 * (tests/kernels/stack_access.py looks for this). The second loop finds the weights in L1. The weights of the next tile are
 * prefetched in both loops, one row in each. */
#include "simd/avx2.h"

#define TOKENS 4

/* Keeps a vector in a register. Without it, compilers would make each fma load its own operand. */
#define in_register(v) __asm__("" : "+x"(v))

struct weights {
    __m256 odd, even;
};

/* Returns the odd and the even weights of one half of a chunk. If `once` is nonzero, a word of BF16 weights is loaded once for
 * both. If it is 0, compilers may load the word twice; for one token, this was faster. */
ALWAYS_INLINE struct weights weights_of(enum tile_source source, const char *w, size_t half, int once)
{
    const float *f = (const float *)(const void *)w;
    if (source == FROM_BF16) {
        __m256i words = _mm256_loadu_si256((const void *)(w + 32 * half));
        if (once)
            in_register(words);
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

/* Folds four sums. The first is stored at y, the others b, c and d floats behind it. If `count` is 3, the last is not stored. */
ALWAYS_INLINE void put_four(float *y, size_t b, size_t c, size_t d, const __m256 a[4], int count, int first)
{
    __m256 folded = fold_four(a[0], a[1], a[2], a[3]);
    put_two(y, y + c, _mm256_castps256_ps128(folded), 2, first);
    put_two(y + b, y + d, _mm256_extractf128_ps(folded, 1), count - 2, first);
}

/* --- one and two tokens --- */

/* One half of a chunk of R rows by T tokens; the chunk begins `at` bytes behind w. */
ALWAYS_INLINE void half_chunk(enum tile_source source, int R, int T, int half, __m256 a[], const char *const w[],
                              const char *const x[], size_t at)
{
    const size_t from = (source == FROM_BF16 ? 2 * at : at) + 32 * (size_t)half;
    __m256 odd[2], even[2];
    UNROLL
    for (int t = 0; t < T; t++) {
        odd[t] = _mm256_loadu_ps((const void *)(x[t] + from));
        even[t] = _mm256_loadu_ps((const void *)(x[t] + from + 64));
        if (T > 1) {
            in_register(odd[t]);
            in_register(even[t]);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        struct weights h = weights_of(source, w[r] + at, (size_t)half, 0);
        UNROLL
        for (int t = 0; t < T; t++)
            a[r * T + t] = fused(a[r * T + t], h.odd, odd[t]);
        UNROLL
        for (int t = 0; t < T; t++)
            a[r * T + t] = fused(a[r * T + t], h.even, even[t]);
    }
}

/* Rows r0 .. r0 + R of every tile by T tokens; R * T is 4. */
ALWAYS_INLINE void rows_of(enum tile_source source, int R, int T, const struct tile *p, int r0)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, end = p->chunks * size;
    const size_t w_next = p->w_next, y_next = p->y_next, prefetch = p->prefetch;
    const char *w[TILE_ROWS], *x[2];
    float *y = p->y + (size_t)r0 * p->y_row;
    UNROLL
    for (int r = 0; r < R; r++) {
        w[r] = p->w[r0 + r];
        opaque(w[r]);
    }
    UNROLL
    for (int t = 0; t < T; t++) {
        x[t] = (const char *)(p->x + (size_t)t * p->ldx);
        opaque(x[t]);
    }
    for (size_t i = p->count; i; i--, y += y_next) {
        __m256 a[4], b[4];
        size_t at = 0, ahead = prefetch;
        UNROLL
        for (int n = 0; n < 4; n++)
            a[n] = b[n] = _mm256_setzero_ps();
        do {
            half_chunk(source, R, T, 0, a, w, x, at);
            half_chunk(source, R, T, 1, b, w, x, at);
            UNROLL
            for (int r = 0; r < R; r++)
                prefetch_weights(source, w[r], ahead);
            ahead += size;
            opaque(ahead);
        } while ((at += size) != end);
        UNROLL
        for (int n = 0; n < 4; n++)
            a[n] = _mm256_add_ps(a[n], b[n]);
        if (T == 1)
            put_four(y, p->y_row, 2 * p->y_row, 3 * p->y_row, a, 4, p->first);
        else
            put_four(y, p->ldy, p->y_row, p->y_row + p->ldy, a, 4, p->first);
        UNROLL
        for (int r = 0; r < R; r++)
            w[r] += w_next;
    }
}

/* --- three and four tokens --- */

/* Computes one half of the sums of two rows and four tokens over a block: sums[4 * row + token]. w0, w1, x (token 0) and x3
 * (token 3) are the addresses of that half in the first chunk. The loop is in a function of its own, because in a larger
 * function gcc keeps sums on the stack. */
ALWAYS_INLINE void half_block(enum tile_source source, __m256 sums[8], const struct tile *p, const char *w0, const char *w1,
                              const char *ahead, const float *x, const float *x3)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, ldx = p->ldx;
    __m256 a[8];
    UNROLL
    for (int n = 0; n < 8; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        struct weights h0 = weights_of(source, w0, 0, 1), h1 = weights_of(source, w1, 0, 1);
        UNROLL
        for (int t = 0; t < 4; t++) {
            __m256 u = _mm256_loadu_ps(t < 3 ? x + (size_t)t * ldx : x3);
            in_register(u);
            a[t] = _mm256_fmadd_ps(h0.odd, u, a[t]);
            a[4 + t] = _mm256_fmadd_ps(h1.odd, u, a[4 + t]);
        }
        UNROLL
        for (int t = 0; t < 4; t++) {
            __m256 u = _mm256_loadu_ps((t < 3 ? x + (size_t)t * ldx : x3) + 16);
            in_register(u);
            a[t] = _mm256_fmadd_ps(h0.even, u, a[t]);
            a[4 + t] = _mm256_fmadd_ps(h1.even, u, a[4 + t]);
        }
        prefetch_weights(source, ahead, 0);
        w0 += size, w1 += size, ahead += size, x += DOT_CHUNK, x3 += DOT_CHUNK;
    }
    UNROLL
    for (int n = 0; n < 8; n++)
        sums[n] = a[n];
}

typedef void half_function(__m256 sums[8], const struct tile *p, const char *w0, const char *w1, const char *ahead, const float *x,
                           const float *x3);

/* Rows r0 and r0 + 1 of every tile by three or four tokens. If there are three, the third is also used as the fourth. */
ALWAYS_INLINE void two_rows(half_function *half_of, size_t half_size, int T, const struct tile *p, int r0)
{
    const char *w0 = p->w[r0], *w1 = p->w[r0 + 1];
    const float *x = p->x, *x3 = x + (size_t)(T - 1) * p->ldx;
    float *y = p->y + (size_t)r0 * p->y_row;
    for (size_t i = p->count; i; i--, y += p->y_next, w0 += p->w_next, w1 += p->w_next) {
        __m256 a[8], b[8];
        half_of(a, p, w0, w1, w0 + p->prefetch, x, x3);
        half_of(b, p, w0 + half_size, w1 + half_size, w1 + p->prefetch, x + 8, x3 + 8);
        UNROLL
        for (int n = 0; n < 8; n++)
            a[n] = _mm256_add_ps(a[n], b[n]);
        put_four(y, p->ldy, 2 * p->ldy, 3 * p->ldy, a, T, p->first);
        put_four(y + p->y_row, p->ldy, 2 * p->ldy, 3 * p->ldy, a + 4, T, p->first);
    }
}

/* Functions of their own, for the same reason as half_block. name_half gets the address of half a block. */
#define TILES_OF(name, source) \
    static __attribute__((noinline)) void name##_1(const struct tile *p) { rows_of(source, 4, 1, p, 0); } \
    static __attribute__((noinline)) void name##_2(const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += 2) \
            rows_of(source, 2, 2, p, r); \
    } \
    static __attribute__((noinline)) void name##_half(__m256 sums[8], const struct tile *p, const char *w0, const char *w1, \
                                                      const char *ahead, const float *x, const float *x3) \
    { \
        half_block(source, sums, p, w0, w1, ahead, x, x3); \
    } \
    static void name##_3_4(size_t T, const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += 2) \
            two_rows(name##_half, source == FROM_F32 ? 64 : 32, (int)T, p, r); \
    }
TILES_OF(from_bf16, FROM_BF16)
TILES_OF(from_f32, FROM_F32)
TILES_OF(from_packed, FROM_PACKED)

static void tile(size_t T, const struct tile *p)
{
    static void (*const one[])(const struct tile *) = {from_bf16_1, from_f32_1, from_packed_1};
    static void (*const two[])(const struct tile *) = {from_bf16_2, from_f32_2, from_packed_2};
    static void (*const more[])(size_t, const struct tile *) = {from_bf16_3_4, from_f32_3_4, from_packed_3_4};
    if (T > 2)
        more[p->source](T, p);
    else
        (T == 1 ? one : two)[p->source](p);
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

const struct vector_loops loops_avx2 = {.tokens = TOKENS, .parts_from = 3, .same_time_from = 3, .tile = tile, .strip_tokens = 6,
                                        .strip = avx2_strip, .decode = decode, .pack = pack};
