/* simd/avx2_tiles.c -- the tiles of one to six tokens.
 *
 * There are sixteen registers. The sums of one row and one token need two of them, a low half and a high half (avx2.h).
 * An fma takes four cycles, so eight sums, which are independent chains of fmas, can keep two fma units busy. For one
 * token, a tile multiplies both halves of four rows in one loop. For three tokens, it multiplies both halves of two
 * rows: twelve sums.
 *
 * For two tokens, a tile multiplies the low half of four rows in one loop, and the high half in a second loop. For four
 * to six tokens, it does so with two rows. In short rows, much of the time goes to what follows the loops: for two and
 * four tokens, eight numbers are folded at once. For four tokens, each word of weights is loaded once for its odd and
 * its even weight, and each number of x once for two rows: ten loads for sixteen fmas. Twelve sums are more than are
 * needed to keep the units busy, so a delay can be caught up. No register is then left for a word of weights, which is
 * loaded twice. More sums would leave too few registers for the operands, and compilers would keep some sums on the
 * stack (tests/kernels/stack_access.py looks for this). The second loop finds the weights in L1. The weights of the
 * next tile, or those further on, are prefetched in both loops, one row in each.
 */
#include "simd/avx2.h"

/* Keeps a vector in a register. Without it, compilers would make each fma load its own operand. */
#define in_register(v) __asm__("" : "+x"(v))

struct weights {
    __m256 odd, even;
};

/* Returns the odd and the even weights of one half of a chunk. If `once` is nonzero, a word of BF16 weights is loaded
 * once for both. If it is 0, compilers may load the word twice; for one token, this was faster. */
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

/* The same, but of odd and even weights only the one that is used is loaded, and no register holds the mask of the odd
 * ones. */
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

/* Folds four sums. The first is stored at y, the others b, c and d floats behind it. If `count` is 3, the last is not
 * stored. */
ALWAYS_INLINE void put_four(float *y, size_t b, size_t c, size_t d, const __m256 a[4], int count, int first)
{
    __m256 folded = fold_four(a[0], a[1], a[2], a[3]);
    put_two(y, y + c, _mm256_castps256_ps128(folded), 2, first);
    put_two(y + b, y + d, _mm256_extractf128_ps(folded, 1), count - 2, first);
}

/* Eight sums, as fold_four: [a c e g | b d f h] */
ALWAYS_INLINE __m256 fold_eight(const __m256 a[8])
{
    __m256 h[4];
    UNROLL
    for (int i = 0; i < 4; i++) { /* lanes l and l+4 */
        __m256 middle = _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x21);
        h[i] = _mm256_add_ps(_mm256_blend_ps(a[2 * i], a[2 * i + 1], 0xf0), middle);
    }
    __m256 abcd = _mm256_add_ps(_mm256_shuffle_ps(h[0], h[1], 0x44), _mm256_shuffle_ps(h[0], h[1], 0xee));
    __m256 efgh = _mm256_add_ps(_mm256_shuffle_ps(h[2], h[3], 0x44), _mm256_shuffle_ps(h[2], h[3], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(abcd, efgh, 0x88), _mm256_shuffle_ps(abcd, efgh, 0xdd));
}

/* Stores four numbers, the next one `step` floats behind each. */
ALWAYS_INLINE void put_numbers(float *y, size_t step, __m128 v, int first)
{
    if (!first)
        v = _mm_add_ps(_mm_setr_ps(y[0], y[step], y[2 * step], y[3 * step]), v);
    __m128i bits = _mm_castps_si128(v);
    int lane1 = _mm_extract_epi32(bits, 1), lane2 = _mm_extract_epi32(bits, 2), lane3 = _mm_extract_epi32(bits, 3);
    _mm_store_ss(y, v);
    memcpy(y + step, &lane1, sizeof lane1);
    memcpy(y + 2 * step, &lane2, sizeof lane2);
    memcpy(y + 3 * step, &lane3, sizeof lane3);
}

/* --- one token --- */

/* One half of a chunk of four rows; the chunk begins `at` bytes behind w. */
ALWAYS_INLINE void half_chunk(enum tile_source source, int half, __m256 a[4], const char *const w[4], const char *x,
                              size_t at)
{
    const size_t from = (source == FROM_BF16 ? 2 * at : at) + 32 * (size_t)half;
    __m256 odd = _mm256_loadu_ps((const void *)(x + from)), even = _mm256_loadu_ps((const void *)(x + from + 64));
    UNROLL
    for (int r = 0; r < 4; r++) {
        struct weights h = weights_of(source, w[r] + at, (size_t)half, 0);
        a[r] = fused(a[r], h.odd, odd);
        a[r] = fused(a[r], h.even, even);
    }
}

/* The four rows of every tile by one token. */
ALWAYS_INLINE void one_token(enum tile_source source, const struct tile *p)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, end = p->chunks * size;
    const size_t w_next = p->w_next, y_next = p->y_next, prefetch = p->prefetch;
    const char *w[4], *x = (const char *)p->x;
    float *y = p->y;
    UNROLL
    for (int r = 0; r < 4; r++) {
        w[r] = p->w[r];
        opaque(w[r]);
    }
    opaque(x);
    for (size_t i = p->count; i; i--, y += y_next) {
        __m256 a[4], b[4];
        size_t at = 0, ahead = prefetch;
        UNROLL
        for (int r = 0; r < 4; r++)
            a[r] = b[r] = _mm256_setzero_ps();
        do {
            half_chunk(source, 0, a, w, x, at);
            half_chunk(source, 1, b, w, x, at);
            UNROLL
            for (int r = 0; r < 4; r++)
                prefetch_weights(source, w[r], ahead);
            ahead += size;
            opaque(ahead);
        } while ((at += size) != end);
        UNROLL
        for (int r = 0; r < 4; r++)
            a[r] = _mm256_add_ps(a[r], b[r]);
        put_four(y, p->y_row, 2 * p->y_row, 3 * p->y_row, a, 4, p->first);
        UNROLL
        for (int r = 0; r < 4; r++)
            w[r] += w_next;
    }
}

/* --- two tokens --- */

/* Computes one half (0 or 1) of the sums of four rows and two tokens over a block: sums[2 * row + token]. */
ALWAYS_INLINE void half_of_two(enum tile_source source, __m256 sums[8], const struct tile *p, const char *const w[],
                               size_t half)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, half_size = source == FROM_F32 ? 64 : 32, ldx = p->ldx,
                 prefetch = p->prefetch;
    const float *x = p->x + 8 * half;
    const char *v[4] = {w[0] + half * half_size, w[1] + half * half_size, w[2] + half * half_size,
                        w[3] + half * half_size};
    __m256 a[8];
    size_t at = 0, ahead = prefetch;
    UNROLL
    for (int r = 0; r < 4; r++)
        opaque(v[r]);
    UNROLL
    for (int n = 0; n < 8; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        __m256 odd[2], even[2];
        UNROLL
        for (size_t t = 0; t < 2; t++) {
            odd[t] = _mm256_loadu_ps(x + t * ldx);
            even[t] = _mm256_loadu_ps(x + t * ldx + 16);
            in_register(odd[t]);
            in_register(even[t]);
        }
        UNROLL
        for (int r = 0; r < 4; r++) {
            struct weights h = weights_of(source, v[r] + at, 0, 1);
            UNROLL
            for (int t = 0; t < 2; t++)
                a[2 * r + t] = fused(a[2 * r + t], h.odd, odd[t]);
            UNROLL
            for (int t = 0; t < 2; t++)
                a[2 * r + t] = fused(a[2 * r + t], h.even, even[t]);
        }
        prefetch_weights(source, v[half ? 2 : 0], ahead);
        prefetch_weights(source, v[half ? 3 : 1], ahead);
        at += size, ahead += size, x += DOT_CHUNK;
        opaque(ahead);
    }
    UNROLL
    for (int n = 0; n < 8; n++)
        sums[n] = a[n];
}

/* Computes the numbers of four rows and two tokens over a block: those of the rows for token 0, then those for token
 * 1. */
ALWAYS_INLINE __m256 block_of_two(enum tile_source source, const struct tile *p, const char *const w[4])
{
    __m256 low[8], high[8];
    half_of_two(source, low, p, w, 0);
    __asm__("" : "+m"(low)); /* keeps them out of the registers that the second loop needs */
    half_of_two(source, high, p, w, 1);
    __m256 sums[8];
    UNROLL
    for (int n = 0; n < 8; n++)
        sums[n] = _mm256_add_ps(low[n], high[n]);
    return fold_eight(sums);
}

typedef __m256 two_function(const struct tile *p, const char *const w[4]);

/* The four rows of every tile by two tokens. */
ALWAYS_INLINE void two_tokens(two_function *block, const struct tile *p)
{
    const size_t ldy = p->ldy, y_next = p->y_next, w_next = p->w_next, y_row = p->y_row;
    const char *w[4] = {p->w[0], p->w[1], p->w[2], p->w[3]};
    float *y = p->y;
    for (size_t i = p->count; i; i--, y += y_next) {
        __m256 s = block(p, w);
        put_numbers(y, y_row, _mm256_castps256_ps128(s), p->first);
        put_numbers(y + ldy, y_row, _mm256_extractf128_ps(s, 1), p->first);
        UNROLL
        for (int r = 0; r < 4; r++)
            w[r] += w_next;
    }
}

/* --- three tokens --- */

/* Computes both halves of the sums of two rows and three tokens over a block: sums[6 * half + 3 * row + token]. One
 * half alone would have six sums, too few to keep the units busy. The loop is in a function of its own, because in a
 * larger function gcc keeps sums on the stack. */
ALWAYS_INLINE void block_of_three(enum tile_source source, __m256 sums[12], const struct tile *p, const char *w0,
                                  const char *w1)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, half_size = source == FROM_F32 ? 64 : 32, ldx = p->ldx,
                 prefetch = p->prefetch;
    const float *x = p->x;
    __m256 a[12];
    UNROLL
    for (int n = 0; n < 12; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        UNROLL
        for (int part = 0; part < 4; part++) { /* the odd and the even weights of the low half, then of the high half */
            const size_t half = (size_t)part / 2, even = (size_t)part % 2;
            __m256 h0 = weights_again(source, w0 + half * half_size, !even),
                   h1 = weights_again(source, w1 + half * half_size, !even);
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

/* Computes one half (0 or 1) of the sums of two rows and T tokens over a block: sums[slots * row + token]. The tokens
 * take the place of `slots` tokens, four or six. If there are fewer, one of them is used twice. */
ALWAYS_INLINE void half_block(enum tile_source source, int slots, __m256 sums[], const struct tile *p, const char *w0,
                              const char *w1, size_t half, size_t T)
{
    const size_t size = source == FROM_BF16 ? 64 : 128, ldx = p->ldx;
    const char *ahead = (half ? w1 : w0) + p->prefetch;
    const float *x = p->x + 8 * half, *last = x + (slots == 4 ? 3 : T - 3) * ldx; /* x: tokens 0, 1 and 2; last: the
                                                                                     other tokens */
    __m256 a[12];
    w0 += (source == FROM_F32 ? 64 : 32) * half;
    w1 += (source == FROM_F32 ? 64 : 32) * half;
    UNROLL
    for (int n = 0; n < 2 * slots; n++)
        a[n] = _mm256_setzero_ps();
    for (size_t chunk = p->chunks; chunk; chunk--) {
        struct weights h0, h1;
        if (slots == 4) {
            h0 = weights_of(source, w0, 0, 1);
            h1 = weights_of(source, w1, 0, 1);
        } else {
            h0.odd = weights_again(source, w0, 1);
            h1.odd = weights_again(source, w1, 1);
        }
        UNROLL
        for (int t = 0; t < slots; t++) {
            __m256 u = _mm256_loadu_ps(t < 3 ? x + (size_t)t * ldx : last + (size_t)(t - 3) * ldx);
            in_register(u);
            a[t] = fused(a[t], h0.odd, u);
            a[slots + t] = fused(a[slots + t], h1.odd, u);
        }
        if (slots > 4) {
            opaque(w0);
            opaque(w1);
            h0.even = weights_again(source, w0, 0);
            h1.even = weights_again(source, w1, 0);
        }
        UNROLL
        for (int t = 0; t < slots; t++) {
            __m256 u = _mm256_loadu_ps((t < 3 ? x + (size_t)t * ldx : last + (size_t)(t - 3) * ldx) + 16);
            in_register(u);
            a[t] = fused(a[t], h0.even, u);
            a[slots + t] = fused(a[slots + t], h1.even, u);
        }
        prefetch_weights(source, ahead, 0);
        w0 += size, w1 += size, ahead += size, x += DOT_CHUNK, last += DOT_CHUNK;
    }
    UNROLL
    for (int n = 0; n < 2 * slots; n++)
        sums[n] = a[n];
}

/* Computes the numbers of two rows and four tokens over a block: those of the first row, then those of the
 * second. */
ALWAYS_INLINE __m256 block_of_four(enum tile_source source, const struct tile *p, const char *w0, const char *w1)
{
    __m256 low[8], high[8];
    half_block(source, 4, low, p, w0, w1, 0, 4);
    __asm__("" : "+m"(low)); /* keeps them out of the registers that the second loop needs */
    half_block(source, 4, high, p, w0, w1, 1, 4);
    __m256 sums[8]; /* of both rows side by side, because of fold_eight */
    UNROLL
    for (int t = 0; t < 4; t++) {
        sums[2 * t] = _mm256_add_ps(low[t], high[t]);
        sums[2 * t + 1] = _mm256_add_ps(low[4 + t], high[4 + t]);
    }
    return fold_eight(sums);
}

typedef __m256 four_function(const struct tile *p, const char *w0, const char *w1);

/* All rows of every tile by four tokens, two rows at a time. */
ALWAYS_INLINE void four_tokens(four_function *block, const struct tile *p)
{
    const size_t ldy = p->ldy, y_next = p->y_next, w_next = p->w_next, y_row = p->y_row;
    for (int r = 0; r < TILE_ROWS; r += 2) {
        const char *w0 = p->w[r], *w1 = p->w[r + 1];
        float *y = p->y + (size_t)r * y_row;
        for (size_t i = p->count; i; i--, y += y_next, w0 += w_next, w1 += w_next) {
            __m256 s = block(p, w0, w1);
            put_numbers(y, ldy, _mm256_castps256_ps128(s), p->first);
            put_numbers(y + y_row, ldy, _mm256_extractf128_ps(s, 1), p->first);
        }
    }
}

/* --- five and six tokens --- */

typedef void half_function(__m256 sums[12], const struct tile *p, const char *w0, const char *w1, size_t half,
                           size_t T);

/* All rows of every tile by T tokens, two rows at a time. */
ALWAYS_INLINE void six_tokens(half_function *half_of, size_t T, const struct tile *p)
{
    for (int r = 0; r < TILE_ROWS; r += 2) {
        const char *w0 = p->w[r], *w1 = p->w[r + 1];
        float *y = p->y + (size_t)r * p->y_row;
        for (size_t i = p->count; i; i--, y += p->y_next, w0 += p->w_next, w1 += p->w_next) {
            __m256 a[12], b[12];
            half_of(a, p, w0, w1, 0, T);
            half_of(b, p, w0, w1, 1, T);
            UNROLL
            for (int n = 0; n < 12; n++)
                a[n] = _mm256_add_ps(a[n], b[n]);
            put_four(y, p->ldy, 2 * p->ldy, 3 * p->ldy, a, (int)T - 2, p->first);
            put_four(y + p->y_row, p->ldy, 2 * p->ldy, 3 * p->ldy, a + 6, (int)T - 2, p->first);
            __m256 rest[4] = {a[4], a[5], a[10], a[11]};
            put_four(y + (T - 2) * p->ldy, p->ldy, p->y_row, p->y_row + p->ldy, rest, 4, p->first);
        }
    }
}

/* Functions of their own, for the same reason as block_of_three. name_half gets the address of half a block. */
#define TILES_OF(name, source) \
    static __attribute__((noinline)) void name##_1(const struct tile *p) { one_token(source, p); } \
    static __attribute__((noinline)) __m256 name##_block_2(const struct tile *p, const char *const w[4]) \
    { \
        return block_of_two(source, p, w); \
    } \
    static void name##_2(const struct tile *p) { two_tokens(name##_block_2, p); } \
    static __attribute__((noinline)) __m256 name##_block_4(const struct tile *p, const char *w0, const char *w1) \
    { \
        return block_of_four(source, p, w0, w1); \
    } \
    static __attribute__((noinline)) void name##_half_6(__m256 sums[12], const struct tile *p, const char *w0, \
                                                        const char *w1, size_t half, size_t T) \
    { \
        half_block(source, 6, sums, p, w0, w1, half, T); \
    } \
    static __attribute__((noinline)) void name##_block_3(__m256 sums[12], const struct tile *p, const char *w0, \
                                                         const char *w1) \
    { \
        block_of_three(source, sums, p, w0, w1); \
    } \
    static void name##_3(const struct tile *p) { three_tokens(name##_block_3, p); } \
    static void name##_4(const struct tile *p) { four_tokens(name##_block_4, p); } \
    static void name##_5_6(size_t T, const struct tile *p) { six_tokens(name##_half_6, T, p); }
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

#define LOOPS(most, parts) \
    {.tokens = most, \
     .parts_from = parts, \
     .tile = tile, \
     .strip_tokens = 6, \
     .strip = avx2_strip, \
     .decode = avx2_decode, \
     .decode_i4 = avx2_decode_i4, \
     .decode_f4 = avx2_decode_f4, \
     .decode_cache_q8 = avx2_decode_cache_q8, \
     .pack = avx2_pack}

/* docs/MEASUREMENTS.md, "Tiles of BF16 weights", has the reasons. */
const struct vector_loops *avx2_loops(void)
{
    static const struct vector_loops any = LOOPS(4, 0), intel = LOOPS(4, 4), intel_48k = LOOPS(6, 4);
    return !__builtin_cpu_is("intel") ? &any : __builtin_cpu_supports("gfni") ? &intel_48k : &intel;
}
