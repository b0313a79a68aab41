/* simd/avx2_decode.c -- weights and rows of caches to f32, in natural or packed order (simd/tiles.h). */
#include "simd/avx2.h"

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
    __m256 rounded = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(bits, half)), nan,
                                      _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_and_ps(rounded, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

void avx2_decode(float *out, enum weight_type type, const void *codes, size_t chunks, float scale, int packed)
{
    switch (type) {
    case WEIGHT_F16: decode_all(out, WEIGHT_F16, codes, chunks, scale, packed); break;
    case WEIGHT_BF16: decode_all(out, WEIGHT_BF16, codes, chunks, scale, packed); break;
    case WEIGHT_I8: decode_all(out, WEIGHT_I8, codes, chunks, scale, packed); break;
    default: decode_all(out, WEIGHT_F8_E4M3, codes, chunks, scale, packed);
    }
}

void avx2_pack(float *packed, const float *x, size_t K)
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
    _mm256_storeu_ps(out + (packed ? 16 : 8) + (packed ? 8 : 16) * half,
                     packed ? even : _mm256_permute2f128_ps(first, second, 0x31));
}

/* The low halves of the bytes are the even elements, the high halves the odd ones. */
void avx2_decode_i4(float *out, const unsigned char *codes, const unsigned char *scales, size_t groups, int rounded,
                    int packed)
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
            __m256i q_even = _mm256_sub_epi32(_mm256_and_si256(pairs, low), eight),
                    q_odd = _mm256_sub_epi32(_mm256_srli_epi32(pairs, 4), eight);
            __m256 even = _mm256_mul_ps(_mm256_cvtepi32_ps(q_even), scale),
                   odd = _mm256_mul_ps(_mm256_cvtepi32_ps(q_odd), scale);
            if (rounded) {
                even = round_bf16(even);
                odd = round_bf16(odd);
            }
            put_pairs(out, half, even, odd, packed);
        }
    }
}

/* A code stands for numbers[code & 7], with bit 3 of the code as its sign. Half a chunk is a group of NVFP4. */
void avx2_decode_f4(float *out, const struct weight_view *w, size_t at, size_t chunks, int packed)
{
    const __m256 numbers = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f),
                 factor = _mm256_set1_ps(f4_factor(w));
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
                __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(codes + 8 * half))),
                        high = _mm256_srli_epi32(pairs, 4);
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

void avx2_decode_cache_q8(float *out, size_t ld, const unsigned char *blocks, size_t pitch, size_t rows, size_t groups)
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
