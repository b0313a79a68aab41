/* simd/avx512_index.h -- the definitions that simd/index_tile.h needs, except vec_term (private to simd/). */
#ifndef VB_AVX512_INDEX_H
#define VB_AVX512_INDEX_H

#include "simd/avx512.h"

typedef __m512 vec;
#define LANES 16
#define VECTORS 2
#define HEADS 4
#define vec_zero() _mm512_setzero_ps()
#define vec_load(p) _mm512_loadu_ps(p)
#define vec_store(p, x) _mm512_storeu_ps(p, x)
#define vec_all(x) _mm512_set1_ps(x)
#define vec_add(a, b) _mm512_add_ps(a, b)
#define vec_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vec_relu(x) _mm512_max_ps(_mm512_setzero_ps(), x) /* the second operand if it is NaN, or if both are zeros */

#endif
