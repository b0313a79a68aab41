/* ops/cuda/tensor.cu -- linear layers by tensor cores, for precision tensor.
 *
 * Weights and x are BF16 numbers. A warp multiplies 16 rows of weights by T rows of x, 16 columns at a time. A tensor
 * core adds 16 products to each sum at once. It does not round as f32 does, so the sums have other bits than those of
 * rule 1, which may differ between kinds of GPUs. But their order is fixed, and is the same for every T: steps of 16
 * columns in each block of 1024 columns, then the blocks, both ascending. So the result of a row does not depend on the
 * other rows of x.
 *
 * Which columns a step has is up to the kernel, as long as weights and x agree. Here lane t of the four lanes that
 * share a row reads columns 8t .. 8t + 7 of 32, and uses four of them in each of two steps. So it reads 16 bytes at
 * once. */
#include "ops/cuda/matmul.h"
#include "ops/cuda/round.h"

static const unsigned WARPS = THREADS_tensor8 / 32, STEPS = 32 /* columns of two steps */, SUMS = 8192;

DEVICE unsigned row_of_lane(void) { return lane_of_warp() / 4; }
DEVICE unsigned part_of_lane(void) { return lane_of_warp() % 4; }

/* Eight weights from column k of row n on, which lie at an address that suits them. */
template <int TYPE> DEVICE uint4 eight_weights(const struct weight_view &w, size_t n, unsigned k)
{
    typedef typename stored<TYPE>::word word;
    const word *from = (const word *)(const void *)((const unsigned char *)w.data +
                                                    (n * w.stride + k) * sizeof(word) / 4);
    if constexpr (TYPE == WEIGHT_BF16) {
        return read_once((const uint4 *)(const void *)from);
    } else {
        uint2 four[2];
        UNROLL for (unsigned i = 0; i < 2; i++) {
            float f[4], factor, scale = scale_of<TYPE>(w, n, k + 4 * i, &factor);
            decode<TYPE>(f, read_once(from + i), scale, factor, w.rounded);
            four[i] = four_to_bf16(f);
        }
        return {four[0].x, four[0].y, four[1].x, four[1].y};
    }
}

/* The same at any address; columns that the matrix does not have are +0. */
template <int TYPE> DEVICE uint4 any_weights(const struct weight_view &w, size_t n, unsigned k)
{
    uint2 four[2];
    UNROLL for (unsigned i = 0; i < 2; i++) {
        float f[4];
        UNROLL for (unsigned j = 0; j < 4; j++)
            f[j] = k + 4 * i + j < (unsigned)w.cols ? weight_at<TYPE>(w, n, k + 4 * i + j) : 0.0f;
        four[i] = four_to_bf16(f);
    }
    return {four[0].x, four[0].y, four[1].x, four[1].y};
}

/* Eight numbers of x from column k on. What is behind the last column is undefined. */
DEVICE uint4 eight_of_x(const uint16_t *x, unsigned k, unsigned cols)
{
    if (k >= cols)
        return {0, 0, 0, 0};
    uint4 v = *(const uint4 *)(const void *)(x + k);
    uint32_t word[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (unsigned i = 0; i < 4; i++)
        word[i] &= k + 2 * i + 1 < cols ? 0xffffffff : k + 2 * i < cols ? 0xffff : 0;
    return {word[0], word[1], word[2], word[3]};
}

/* What a warp multiplies: rows n[0] and n[1] of w, which are rows g and g + 8 of the 16, and T rows of x. */
template <int T> struct warp_tile {
    const struct weight_view *w;
    size_t n[2];
    const uint16_t *x[T / 8]; /* rows g, g + 8, ... */
    float sum[T / 8][4];
};

/* first, second: the weights of this lane in its two rows. WHOLE: the matrix has all 32 columns. */
template <bool WHOLE, int T> DEVICE void add_steps(struct warp_tile<T> &p, uint4 first, uint4 second, unsigned k)
{
    const uint32_t a[2][4] = {{first.x, second.x, first.y, second.y}, {first.z, second.z, first.w, second.w}};
    UNROLL for (int i = 0; i < T / 8; i++) {
        uint4 x = WHOLE ? *(const uint4 *)(const void *)(p.x[i] + k) : eight_of_x(p.x[i], k, (unsigned)p.w->cols);
        const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
        multiply_16_8_16(p.sum[i], a[0], b[0]);
        multiply_16_8_16(p.sum[i], a[1], b[1]);
    }
}

/* Columns [k0, end), a block of 1024 or the last one. */
template <int TYPE, int T> DEVICE void add_block(struct warp_tile<T> &p, unsigned k0, unsigned end)
{
    constexpr int U = T < 16 ? 4 : T < 64 ? 2 : 1; /* what is asked for before the first of it is used */
    typedef typename stored<TYPE>::word word;
    const struct weight_view &w = *p.w;
    const size_t unit = TYPE == WEIGHT_BF16 ? sizeof(uint4) : sizeof(word);
    bool aligned = ((uintptr_t)w.data | w.stride * sizeof(word) / 4) % unit == 0;
    unsigned k = k0 + 8 * part_of_lane(), whole = aligned ? (end - k0) / STEPS : 0,
             steps = (end - k0 + STEPS - 1) / STEPS, i = 0;
    ROLL for (; i + U <= whole; i += U) {
        uint4 first[U], second[U];
        UNROLL for (int u = 0; u < U; u++) {
            first[u] = eight_weights<TYPE>(w, p.n[0], k + u * STEPS);
            second[u] = eight_weights<TYPE>(w, p.n[1], k + u * STEPS);
        }
        UNROLL for (int u = 0; u < U; u++, k += STEPS)
            add_steps<true>(p, first[u], second[u], k);
    }
    ROLL for (; i < steps; i++, k += STEPS) {
        bool fits = i < whole;
        uint4 first = fits ? eight_weights<TYPE>(w, p.n[0], k) : any_weights<TYPE>(w, p.n[0], k);
        uint4 second = fits ? eight_weights<TYPE>(w, p.n[1], k) : any_weights<TYPE>(w, p.n[1], k);
        add_steps<false>(p, first, second, k);
    }
}

template <int T> DEVICE void add_block_of_any(struct warp_tile<T> &p, unsigned k0, unsigned end)
{
    switch (p.w->type) {
    case WEIGHT_F32: add_block<WEIGHT_F32>(p, k0, end); break;
    case WEIGHT_F16: add_block<WEIGHT_F16>(p, k0, end); break;
    case WEIGHT_BF16: add_block<WEIGHT_BF16>(p, k0, end); break;
    case WEIGHT_F8_E4M3: add_block<WEIGHT_F8_E4M3>(p, k0, end); break;
    case WEIGHT_I8: add_block<WEIGHT_I8>(p, k0, end); break;
    case WEIGHT_I4: add_block<WEIGHT_I4>(p, k0, end); break;
    default: add_block<WEIGHT_F4>(p, k0, end);
    }
}

/* `sums` [SUMS] has the sums of blocks: [blocks, 16 rows of weights, T]. A block of threads computes p.side groups of
 * 16 rows, and as many blocks of columns at a time as there is room for. */
template <int T> DEVICE void multiply(const struct matmul_args &a, float *sums)
{
    constexpr unsigned ROWS = TENSOR_ROWS, TILE = ROWS * T, MOST_BLOCKS = SUMS / TILE;
    const struct matmul_part &p = a.part[blockIdx.z];
    const struct expert_tile tile = this_tile<T>(a);
    const unsigned rows = (unsigned)p.w.rows, cols = (unsigned)p.w.cols, blocks = (cols + DOT_BLOCK - 1) / DOT_BLOCK;
    const unsigned first = blockIdx.x * p.side * ROWS, warp = threadIdx.x / 32;
    if (first >= rows || !tile.count)
        return;
    const struct weight_view w = this_matrix(a, p, tile.expert);
    ROLL for (unsigned b0 = 0; b0 < blocks; b0 += MOST_BLOCKS) {
        unsigned some = blocks - b0 < MOST_BLOCKS ? blocks - b0 : MOST_BLOCKS;
        ROLL for (unsigned u = warp; u < p.side * some; u += WARPS) { /* block b0 + u % some of row group u / some */
            unsigned n = first + u / some * ROWS + row_of_lane(), k0 = (b0 + u % some) * DOT_BLOCK;
            struct warp_tile<T> mine = {};
            mine.w = &w;
            mine.n[0] = n < rows ? n : rows - 1;
            mine.n[1] = n + 8 < rows ? n + 8 : rows - 1;
            UNROLL for (int i = 0; i < T / 8; i++)
                mine.x[i] = a.narrow + row_of_x(a, tile, (int32_t)(i * 8 + row_of_lane())) * a.ldx;
            add_block_of_any(mine, k0, k0 + DOT_BLOCK < cols ? k0 + DOT_BLOCK : cols);
            UNROLL for (int i = 0; i < T / 8; i++)
                UNROLL for (unsigned j = 0; j < 4; j++)
                    sums[u * TILE + (row_of_lane() + j / 2 * 8) * T + i * 8 + 2 * part_of_lane() + j % 2] =
                        mine.sum[i][j];
        }
        __syncthreads();
        add_blocks<T, WARPS * 32>(p.y, p.ldy, tile, rows, sums, first, p.side, b0, some);
        __syncthreads();
    }
}

KERNEL(tensor8)
{
    SHARED(float, sums, SUMS);
    multiply<8>(a, sums);
}

KERNEL(tensor16)
{
    SHARED(float, sums, SUMS);
    multiply<16>(a, sums);
}

KERNEL(tensor64)
{
    SHARED(float, sums, SUMS);
    multiply<64>(a, sums);
}
