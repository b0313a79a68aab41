/* ops/cuda/embed.cu -- rows of the embedding matrix, as f32. */
#include "ops/cuda/decode.h"

DEVICE float quantized_at(const struct matmul_part &p, size_t n, size_t j)
{
    size_t at = n * p.w.stride + j;
    unsigned l = (unsigned)at % QUANTIZED_GROUP, group = (unsigned)(at % p.format.numbers) / QUANTIZED_GROUP;
    struct group_codes codes;
    unpack_group(codes, p.w, p.format.grid, (const unsigned char *)p.w.data + at / p.format.numbers * p.format.bytes,
                 group);
    uint32_t four = 0;
    UNROLL for (unsigned i = 0; i < 8; i++)
        four = i == l / 4 ? codes.q[i] : four;
    return (l < 16 ? codes.scale[0] : codes.scale[1]) * (float)(int8_t)(four >> 8 * (l % 4)) -
           (l < 16 ? codes.minimum[0] : codes.minimum[1]);
}

KERNEL(embed)
{
    size_t j = (size_t)blockIdx.y * THREADS_embed + threadIdx.x, s = blockIdx.x, n = (size_t)a.tok[s];
    const struct weight_view &w = a.part.w;
    float y;
    if (j >= w.cols)
        return;
    switch (w.type) {
    case WEIGHT_F32: y = weight_at<WEIGHT_F32>(w, n, j); break;
    case WEIGHT_F16: y = weight_at<WEIGHT_F16>(w, n, j); break;
    case WEIGHT_BF16: y = weight_at<WEIGHT_BF16>(w, n, j); break;
    case WEIGHT_F8_E4M3: y = weight_at<WEIGHT_F8_E4M3>(w, n, j); break;
    case WEIGHT_I8: y = weight_at<WEIGHT_I8>(w, n, j); break;
    case WEIGHT_I4: y = weight_at<WEIGHT_I4>(w, n, j); break;
    case WEIGHT_F4: y = weight_at<WEIGHT_F4>(w, n, j); break;
    default: y = quantized_at(a.part, n, j);
    }
    a.y[s * a.ldy + j] = y;
}
