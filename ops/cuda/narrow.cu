/* ops/cuda/narrow.cu -- BF16 copies of weights and activations, for a library of matrix products (device_gemm), and for
 * tensor cores (ops/cuda/tensor.cu). */
#include "ops/cuda/round.h"

template <int TYPE> DEVICE void narrow_four(const struct narrow_args &a, uint16_t *y, size_t n, unsigned k)
{
    typedef typename stored<TYPE>::word word;
    const unsigned cols = (unsigned)a.w.cols;
    const size_t at = n * a.w.stride + k;
    const unsigned char *from = (const unsigned char *)a.w.data + at * sizeof(word) / 4;
    float f[4];
    if (k + 4 <= cols && at % 4 == 0 && (uintptr_t)from % sizeof(word) == 0) {
        float factor, scale = scale_of<TYPE>(a.w, n, k, &factor);
        decode<TYPE>(f, read_once((const word *)(const void *)from), scale, factor, a.w.rounded);
    } else {
        UNROLL for (unsigned i = 0; i < 4; i++)
            f[i] = k + i < cols ? weight_at<TYPE>(a.w, n, k + i) : 0.0f;
    }
    *(uint2 *)(void *)(y + k) = four_to_bf16(f);
}

KERNEL(narrow)
{
    const unsigned k = (blockIdx.y * THREADS_narrow + threadIdx.x) * NARROW_COLUMNS;
    const size_t n = a.rows ? (size_t)a.rows[blockIdx.x] : a.first + blockIdx.x;
    uint16_t *y = a.y + blockIdx.x * a.ldy;
    if (k >= a.w.cols)
        return;
    switch (a.w.type) {
    case WEIGHT_F32: narrow_four<WEIGHT_F32>(a, y, n, k); break;
    case WEIGHT_F16: narrow_four<WEIGHT_F16>(a, y, n, k); break;
    case WEIGHT_BF16: narrow_four<WEIGHT_BF16>(a, y, n, k); break;
    case WEIGHT_F8_E4M3: narrow_four<WEIGHT_F8_E4M3>(a, y, n, k); break;
    case WEIGHT_I8: narrow_four<WEIGHT_I8>(a, y, n, k); break;
    case WEIGHT_I4: narrow_four<WEIGHT_I4>(a, y, n, k); break;
    default: narrow_four<WEIGHT_F4>(a, y, n, k);
    }
}
