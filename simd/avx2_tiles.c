/* simd/avx2_tiles.c -- the tiles of one to six tokens, and the decoders.
 *
 * There are sixteen registers. The sums of one row and one token need two of them, a low half and a high half (avx2.h). An fma
 * takes four cycles, so eight sums, which are independent chains of fmas, can keep two fma units busy. For one or two tokens, a tile
 * multiplies both halves of four or two rows in one loop. For three tokens, it multiplies both halves of two rows: twelve sums.
 *
 * For four to six tokens, a tile multiplies the low half of two rows in one loop, and the high half in a second loop. For four
 * tokens, each word of weights is loaded once for its odd and its even weight, and each number of x once for two rows: ten loads for
 * sixteen fmas. Twelve sums are more than are needed to keep the units busy, so a delay can be caught up. No register is then left for
 * a word of weights, which is loaded twice. More sums would leave too few registers for the operands, and compilers would keep some
 * sums on the stack (tests/kernels/stack_access.py looks for this). The second loop finds the weights in L1. The weights of the next
 * tile, or those further on, are prefetched in both loops, one row in each.
 */
#include "simd/avx2.h"

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

/* The same, but of odd and even weights only the one that is used is loaded, and no register holds the mask of the odd ones. */
ALWAYS_INLINE __m256 weights_again(enum tile_source source, const char *w, int odd)
{
    static const uint32_t mask[8] __attribute__((aligned(32))) = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                                  0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
    if (source != FROM_BF16)
        return odd ? weights_of(source, w, 0, 0).odd : weights_of(source, w, 0, 0).even;
    __m256i words = _mm256_loadu_si256((const void *)w);
    if (!odd)
        return even_bf16(words);
    __asm__("vpand %1, %0, %0" : "+x"(words) : "m"(mask));
    return _mm256_castsi256_ps(words);
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

/* --- three tokens --- */

/* Computes both halves of the sums of two rows and three tokens over a block: sums[6 * half + 3 * row + token]. One half alone would
 * have six sums, too few to keep the units busy. The loop is in a function of its own, because in a larger function gcc keeps sums on
 * the stack. */
ALWAYS_INLINE void block_of_three(enum tile_source source, __m256 sums[12], const struct tile *p, const char *w0, const char *w1)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, half_size = source == FROM_F32 ? 64 : 32, ldx = p->ldx, prefetch = p->prefetch;
    const float *x = p->x;
    __m256 a[12];
    UNROLL
    for (int n = 0; n < 12; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        UNROLL
        for (int part = 0; part < 4; part++) { /* the odd and the even weights of the low half, then of the high half */
            const size_t half = (size_t)part / 2, even = (size_t)part % 2;
            __m256 h0 = weights_again(source, w0 + half * half_size, !even), h1 = weights_again(source, w1 + half * half_size, !even);
            UNROLL
            for (size_t t = 0; t < 3; t++) {
                __m256 u = _mm256_loadu_ps(x + t * ldx + 8 * half + 16 * even);
                in_register(u);
                a[6 * half + t] = fused(a[6 * half + t], h0, u);
                a[6 * half + 3 + t] = fused(a[6 * half + 3 + t], h1, u);
            }
            opaque(w0);
            opaque(w1);
            opaque(x);
        }
        prefetch_weights(source, w0, prefetch);
        prefetch_weights(source, w1, prefetch);
        w0 += size, w1 += size, x += DOT_CHUNK;
    }
    UNROLL
    for (int n = 0; n < 12; n++)
        sums[n] = a[n];
}

typedef void three_function(__m256 sums[12], const struct tile *p, const char *w0, const char *w1);

/* All rows of every tile by three tokens, two rows at a time. */
ALWAYS_INLINE void three_tokens(three_function *block, const struct tile *p)
{
    for (int r = 0; r < TILE_ROWS; r += 2) {
        const char *w0 = p->w[r], *w1 = p->w[r + 1];
        float *y = p->y + (size_t)r * p->y_row;
        for (size_t i = p->count; i; i--, y += p->y_next, w0 += p->w_next, w1 += p->w_next) {
            __m256 s[12], a[4];
            block(s, p, w0, w1);
            UNROLL
            for (size_t row = 0; row < 2; row++) {
                UNROLL
                for (size_t t = 0; t < 3; t++)
                    a[t] = _mm256_add_ps(s[3 * row + t], s[6 + 3 * row + t]);
                a[3] = a[2]; /* put_four stores three */
                put_four(y + row * p->y_row, p->ldy, 2 * p->ldy, 0, a, 3, p->first);
            }
        }
    }
}

/* --- four to six tokens --- */

/* The addresses of one half of the first chunk of two rows and some tokens. */
struct half {
    const char *w0, *w1, *ahead;
    const float *x, *last; /* x: tokens 0, 1 and 2; last: the other tokens */
};

/* Computes one half of the sums of two rows and T tokens (four or six) over a block: sums[T * row + token]. The loop is in a
 * function of its own, for the same reason as block_of_three. */
ALWAYS_INLINE void half_block(enum tile_source source, int T, __m256 sums[12], const struct tile *p, struct half at)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, ldx = p->ldx;
    __m256 a[12];
    UNROLL
    for (int n = 0; n < 2 * T; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        struct weights h0, h1;
        if (T == 4) {
            h0 = weights_of(source, at.w0, 0, 1);
            h1 = weights_of(source, at.w1, 0, 1);
        } else {
            h0.odd = weights_again(source, at.w0, 1);
            h1.odd = weights_again(source, at.w1, 1);
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m256 u = _mm256_loadu_ps(t < 3 ? at.x + (size_t)t * ldx : at.last + (size_t)(t - 3) * ldx);
            in_register(u);
            a[t] = fused(a[t], h0.odd, u);
            a[T + t] = fused(a[T + t], h1.odd, u);
        }
        if (T > 4) {
            opaque(at.w0);
            opaque(at.w1);
            h0.even = weights_again(source, at.w0, 0);
            h1.even = weights_again(source, at.w1, 0);
        }
        UNROLL
        for (int t = 0; t < T; t++) {
            __m256 u = _mm256_loadu_ps((t < 3 ? at.x + (size_t)t * ldx : at.last + (size_t)(t - 3) * ldx) + 16);
            in_register(u);
            a[t] = fused(a[t], h0.even, u);
            a[T + t] = fused(a[T + t], h1.even, u);
        }
        prefetch_weights(source, at.ahead, 0);
        at.w0 += size, at.w1 += size, at.ahead += size, at.x += DOT_CHUNK, at.last += DOT_CHUNK;
    }
    UNROLL
    for (int n = 0; n < 2 * T; n++)
        sums[n] = a[n];
}

typedef void half_function(__m256 sums[12], const struct tile *p, struct half at);

/* Rows r0 and r0 + 1 of every tile by T tokens, which take the place of `slots` tokens: four or six. If there are fewer, one of them is
 * used twice. */
ALWAYS_INLINE void two_rows(half_function *half_of, int slots, size_t half_size, int T, const struct tile *p, int r0)
{
    const char *w0 = p->w[r0], *w1 = p->w[r0 + 1];
    const float *x = p->x, *last = x + (size_t)(slots == 4 ? T - 1 : T - 3) * p->ldx;
    float *y = p->y + (size_t)r0 * p->y_row;
    for (size_t i = p->count; i; i--, y += p->y_next, w0 += p->w_next, w1 += p->w_next) {
        __m256 a[12], b[12];
        half_of(a, p, (struct half){w0, w1, w0 + p->prefetch, x, last});
        half_of(b, p, (struct half){w0 + half_size, w1 + half_size, w1 + p->prefetch, x + 8, last + 8});
        UNROLL
        for (int n = 0; n < 2 * slots; n++)
            a[n] = _mm256_add_ps(a[n], b[n]);
        put_four(y, p->ldy, 2 * p->ldy, 3 * p->ldy, a, slots == 4 ? T : T - 2, p->first);
        put_four(y + p->y_row, p->ldy, 2 * p->ldy, 3 * p->ldy, a + slots, slots == 4 ? T : T - 2, p->first);
        if (slots == 6) {
            __m256 rest[4] = {a[4], a[5], a[10], a[11]};
            put_four(y + (size_t)(T - 2) * p->ldy, p->ldy, p->y_row, p->y_row + p->ldy, rest, 4, p->first);
        }
    }
}

/* Functions of their own, for the same reason as block_of_three. name_half gets the address of half a block. */
#define TILES_OF(name, source) \
    static __attribute__((noinline)) void name##_1(const struct tile *p) { rows_of(source, 4, 1, p, 0); } \
    static __attribute__((noinline)) void name##_2(const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += 2) \
            rows_of(source, 2, 2, p, r); \
    } \
    static __attribute__((noinline)) void name##_half_4(__m256 sums[12], const struct tile *p, struct half at) \
    { \
        half_block(source, 4, sums, p, at); \
    } \
    static __attribute__((noinline)) void name##_half_6(__m256 sums[12], const struct tile *p, struct half at) \
    { \
        half_block(source, 6, sums, p, at); \
    } \
    static __attribute__((noinline)) void name##_block_3(__m256 sums[12], const struct tile *p, const char *w0, const char *w1) \
    { \
        block_of_three(source, sums, p, w0, w1); \
    } \
    static void name##_3(const struct tile *p) { three_tokens(name##_block_3, p); } \
    static void name##_4(const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += 2) \
            two_rows(name##_half_4, 4, source == FROM_F32 ? 64 : 32, 4, p, r); \
    } \
    static void name##_5_6(size_t T, const struct tile *p) \
    { \
        for (int r = 0; r < TILE_ROWS; r += 2) \
            two_rows(name##_half_6, 6, source == FROM_F32 ? 64 : 32, (int)T, p, r); \
    }
TILES_OF(from_bf16, FROM_BF16)
TILES_OF(from_f32, FROM_F32)
TILES_OF(from_packed, FROM_PACKED)

static void tile(size_t T, const struct tile *p)
{
    static void (*const one[])(const struct tile *) = {from_bf16_1, from_f32_1, from_packed_1};
    static void (*const two[])(const struct tile *) = {from_bf16_2, from_f32_2, from_packed_2};
    static void (*const three[])(const struct tile *) = {from_bf16_3, from_f32_3, from_packed_3};
    static void (*const four[])(const struct tile *) = {from_bf16_4, from_f32_4, from_packed_4};
    static void (*const six[])(size_t, const struct tile *) = {from_bf16_5_6, from_f32_5_6, from_packed_5_6};
    if (T > 4)
        six[p->source](T, p);
    else
        (T == 1 ? one : T == 2 ? two : T == 3 ? three : four)[p->source](p);
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
    } else if (type == WEIGHT_I8) {
        __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)codes));
        __m256i odd = _mm256_srai_epi32(words, 16), even = _mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16);
        low = _mm256_cvtepi32_ps(packed ? odd : _mm256_cvtepi16_epi32(_mm256_castsi256_si128(words)));
        high = _mm256_cvtepi32_ps(packed ? even : _mm256_cvtepi16_epi32(_mm256_extracti128_si256(words, 1)));
    } else {
        __m256i words = type == WEIGHT_F8_E4M3 ? e4m3_to_bf16(_mm_loadu_si128((const void *)codes))
                                               : _mm256_loadu_si256((const void *)codes);
        low = packed ? odd_bf16(words) : widen_bf16(_mm256_castsi256_si128(words));
        high = packed ? even_bf16(words) : widen_bf16(_mm256_extracti128_si256(words, 1));
    }
    _mm256_storeu_ps(out, weight_is_byte(type) ? _mm256_mul_ps(low, scale) : low);
    _mm256_storeu_ps(out + (packed ? 16 : 8), weight_is_byte(type) ? _mm256_mul_ps(high, scale) : high);
}

ALWAYS_INLINE void decode_all(float *out, enum weight_type type, const char *codes, size_t chunks, float scale,
                              int packed)
{
    const size_t size = weight_size(type);
    const __m256 s = _mm256_set1_ps(scale);
    for (; chunks; chunks--, out += DOT_CHUNK, codes += DOT_CHUNK * size) {
        _mm_prefetch(codes + DOT_BLOCK * size, _MM_HINT_T0); /* this row in the next block */
        decode_half(out, type, codes, s, packed);
        decode_half(out + (packed ? 8 : 16), type, codes + 16 * size, s, packed);
    }
}

/* round_to_bf16 (decode.h) */
ALWAYS_INLINE __m256 round_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(_mm256_srli_epi32(bits, 16), one));
    __m256 nan = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
    __m256 rounded = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(bits, half)), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_and_ps(rounded, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
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
    for (size_t k = 0; k < K; k += DOT_CHUNK, packed += DOT_CHUNK) {
        float cut[DOT_CHUNK];
        const float *chunk = K - k < DOT_CHUNK ? copy_cut(cut, x + k, K - k) : x + k;
        for (size_t half = 0; half < 2; half++) {
            _mm256_storeu_ps(packed + 8 * half, odd_f32(chunk + 16 * half));
            _mm256_storeu_ps(packed + 16 + 8 * half, even_f32(chunk + 16 * half));
        }
    }
}

/* Stores eight even and eight odd elements: half a chunk. */
ALWAYS_INLINE void put_pairs(float *out, size_t half, __m256 even, __m256 odd, int packed)
{
    __m256 first = _mm256_unpacklo_ps(even, odd), second = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(out + (packed ? 8 : 16) * half, packed ? odd : _mm256_permute2f128_ps(first, second, 0x20));
    _mm256_storeu_ps(out + (packed ? 16 : 8) + (packed ? 8 : 16) * half, packed ? even : _mm256_permute2f128_ps(first, second, 0x31));
}

/* The low halves of the bytes are the even elements, the high halves the odd ones. */
static void decode_i4(float *out, const unsigned char *codes, const unsigned char *scales, size_t groups, int rounded, int packed)
{
    const __m256i low = _mm256_set1_epi32(15), eight = _mm256_set1_epi32(8);
    for (; groups; groups--, out += DOT_CHUNK, codes += DOT_CHUNK / 2, scales += 2) {
        uint16_t bits;
        memcpy(&bits, scales, sizeof bits);
        __m256 scale = _mm256_set1_ps(bf16_to_f32(bits));
        _mm_prefetch((const char *)codes + DOT_BLOCK / 2, _MM_HINT_T0); /* this row in the next block */
        UNROLL
        for (size_t half = 0; half < 2; half++) {
            __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(codes + 8 * half)));
            __m256i q_even = _mm256_sub_epi32(_mm256_and_si256(pairs, low), eight), q_odd = _mm256_sub_epi32(_mm256_srli_epi32(pairs, 4), eight);
            __m256 even = _mm256_mul_ps(_mm256_cvtepi32_ps(q_even), scale), odd = _mm256_mul_ps(_mm256_cvtepi32_ps(q_odd), scale);
            if (rounded) {
                even = round_bf16(even);
                odd = round_bf16(odd);
            }
            put_pairs(out, half, even, odd, packed);
        }
    }
}

/* A code stands for numbers[code & 7], with bit 3 of the code as its sign. Half a chunk is a group of NVFP4. */
static void decode_f4_chunks(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed)
{
    const __m256 numbers = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f), factor = _mm256_set1_ps(f4_factor(w));
    const __m256 minus = _mm256_set1_ps(-0.0f);
    const size_t each = f4_scales_of_a_chunk(w);
    const char *codes = (const char *)w->data + at / 2;
    for (size_t some; chunks; chunks -= some, at += some * DOT_CHUNK) {
        float scales[2 * F4_CHUNKS];
        some = min_size(chunks, F4_CHUNKS);
        f4_scales(scales, w, at, some);
        for (size_t i = 0; i < some; i++, out += DOT_CHUNK, codes += DOT_CHUNK / 2) {
            _mm_prefetch(codes + DOT_BLOCK / 2, _MM_HINT_T0); /* this row in the next block */
            UNROLL
            for (size_t half = 0; half < 2; half++) {
                __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(codes + 8 * half))), high = _mm256_srli_epi32(pairs, 4);
                __m256 scale = _mm256_set1_ps(scales[i * each + half * (each - 1)]);
                /* vpermps reads only the lowest three bits of an index */
                __m256 even = _mm256_permutevar8x32_ps(numbers, pairs), odd = _mm256_permutevar8x32_ps(numbers, high);
                even = _mm256_xor_ps(even, _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 28)), minus));
                odd = _mm256_xor_ps(odd, _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(high, 28)), minus));
                even = _mm256_mul_ps(_mm256_mul_ps(even, scale), factor);
                odd = _mm256_mul_ps(_mm256_mul_ps(odd, scale), factor);
                if (w->rounded) {
                    even = round_bf16(even);
                    odd = round_bf16(odd);
                }
                put_pairs(out, half, even, odd, packed);
            }
        }
    }
}

static void decode_cache_q8(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows, size_t groups)
{
    for (size_t r = 0; r < rows; r++, out += ld, blocks += pitch)
        for (size_t g = 0; g < groups; g++) {
            const char *block = (const char *)blocks + g * 36;
            __m256 d = _mm256_castsi256_ps(_mm256_set1_epi32(_mm_cvtsi128_si32(_mm_loadu_si32(block))));
            UNROLL
            for (int i = 0; i < 4; i++) {
                __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(block + 4 + 8 * i)));
                _mm256_storeu_ps(out + g * DOT_CHUNK + 8 * i, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
            }
        }
}

#define LOOPS(most, parts)                                                                                                   \
    {                                                                                                                        \
        .tokens = most, .parts_from = parts, .tile = tile, .strip_tokens = 6, .strip = avx2_strip, .decode = decode,          \
        .decode_i4 = decode_i4, .decode_f4 = decode_f4_chunks, .decode_cache_q8 = decode_cache_q8, .pack = pack                \
    }

/* docs/MEASUREMENTS.md, "Tiles of BF16 weights", has the reasons. */
const struct vector_loops *avx2_loops(void)
{
    static const struct vector_loops any = LOOPS(4, 0), intel = LOOPS(4, 4), intel_48k = LOOPS(6, 4);
    return !__builtin_cpu_is("intel") ? &any : __builtin_cpu_supports("gfni") ? &intel_48k : &intel;
}
