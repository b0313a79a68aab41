/* ops/cuda/quantized.cu -- linear layers by rule 2.
 *
 * A warp computes a block of rule 2: 1024 numbers are 32 groups, and lane g computes the integer sums and the products
 * of scales of group g. Its group of x stays in registers for several rows of weights. The blocks of a file are not
 * aligned, so the warp copies them to shared memory, a row at a time, while it waits for the next row. Only the chain
 * of fma of rule 2 has an order. The lanes store its operands, and one lane computes the chain of one row of weights
 * and one row of x. */
#include "ops/cuda/decode.h"
#include "ops/cuda/matmul.h"
#include "ops/cuda/round.h"

static const unsigned WARPS = THREADS_quantized1 / 32, MOST_BLOCKS = 32;
static const unsigned X_WORDS = sizeof(struct quantized_group) / 4;
static const unsigned STAGE = 32 * X_WORDS; /* words: x of a block, or one row of weights: at most 36 bytes for each
                                               group, and 3 to align them */
static const unsigned WORDS_OF_LANE = (36 * 32 + 3) / 4 / 32 + 1;
static const unsigned SLOTS = 16; /* operands of fma, for each group: at most four, for 4 rows of x */

struct operand_pair {
    float sum, scale;
};

/* Memory that a warp uses alone. */
struct warp_memory {
    uint32_t stage[STAGE];
    struct operand_pair operand[SLOTS][33]; /* 33: the lanes that compute chains read different banks */
};

/* The group of x of this lane, for T rows. */
template <int T> struct lane_x {
    int32_t q[T][8];
    float d[T];
    int32_t sum[T], upper[T];
};

/* A row of weights, or rather the part that belongs to this block, on its way to shared memory. */
struct row_words {
    uint32_t word[WORDS_OF_LANE];
};

DEVICE void fetch(struct row_words &row, const unsigned char *at, unsigned bytes)
{
    const uint32_t *first = (const uint32_t *)((uintptr_t)at & ~(uintptr_t)3);
    unsigned words = ((unsigned)(uintptr_t)at % 4 + bytes + 3) / 4;
    UNROLL for (unsigned i = 0; i < WORDS_OF_LANE; i++)
        row.word[i] = i * 32 + lane_of_warp() < words ? read_once(first + i * 32 + lane_of_warp()) : 0;
}

DEVICE void stage(uint32_t *to, const struct row_words &row)
{
    __syncwarp(); /* all lanes have read the last row, and operands */
    UNROLL for (unsigned i = 0; i < WORDS_OF_LANE; i++)
        if (i * 32 + lane_of_warp() < STAGE)
            to[i * 32 + lane_of_warp()] = row.word[i];
    __syncwarp();
}

template <int T>
DEVICE void load_x(struct lane_x<T> &x, uint32_t *memory, const struct quantized_group *const (&rows)[T],
                   unsigned groups)
{
    UNROLL for (int t = 0; t < T; t++) {
        const uint32_t *from = (const uint32_t *)(const void *)rows[t];
        __syncwarp();
        for (unsigned i = lane_of_warp(); i < groups * X_WORDS; i += 32)
            memory[i] = from[i];
        __syncwarp();
        const struct quantized_group *g = (const struct quantized_group *)(const void *)memory +
                                          (lane_of_warp() < groups ? lane_of_warp() : 0);
        UNROLL for (int i = 0; i < 8; i++)
            x.q[t][i] = ((const int32_t *)(const void *)g->q)[i];
        x.d[t] = g->d;
        x.sum[t] = g->sum;
        x.upper[t] = g->upper;
    }
}

/* Stores the operands of the fma of this lane's group: `chain` of them for each row of x, in the order of rule 2. */
template <int T>
DEVICE void store_operands(struct warp_memory &m, unsigned slot, const struct group_codes &c, const struct lane_x<T> &x,
                           int halves, int minimums)
{
    UNROLL for (int t = 0; t < T; t++) {
        int32_t lower = 0, upper = 0;
        UNROLL for (int i = 0; i < 4; i++) {
            lower = __dp4a((int32_t)c.q[i], x.q[t][i], lower);
            upper = __dp4a((int32_t)c.q[4 + i], x.q[t][4 + i], upper);
        }
        if (!halves)
            lower += upper;
        m.operand[slot++][lane_of_warp()] = {(float)lower, c.scale[0] * x.d[t]};
        if (minimums)
            m.operand[slot++][lane_of_warp()] = {-(float)(halves ? x.sum[t] - x.upper[t] : x.sum[t]),
                                                 c.minimum[0] * x.d[t]};
        if (halves)
            m.operand[slot++][lane_of_warp()] = {(float)upper, c.scale[1] * x.d[t]};
        if (halves && minimums)
            m.operand[slot++][lane_of_warp()] = {-(float)x.upper[t], c.minimum[1] * x.d[t]};
    }
}

/* Returns the sum of a block, for the chain whose operands begin at `slot`. */
DEVICE float add_chain(const struct warp_memory &m, unsigned slot, unsigned chain, unsigned groups)
{
    float acc = 0.0f;
    if (chain == 1) {
        UNROLL for (unsigned g = 0; g < 32; g++)
            if (g < groups)
                acc = fmaf(m.operand[slot][g].sum, m.operand[slot][g].scale, acc);
        return acc;
    }
    for (unsigned g = 0; g < groups; g++)
        for (unsigned i = 0; i < chain; i++)
            acc = fmaf(m.operand[slot + i][g].sum, m.operand[slot + i][g].scale, acc);
    return acc;
}

/* `sums` [MOST_BLOCKS or WARPS][QUANTIZED_ROWS][T] has the sums of blocks. */
template <int T> DEVICE void multiply(const struct matmul_args &a, float *sums, struct warp_memory *memory)
{
    constexpr unsigned ROWS = QUANTIZED_ROWS, TILE = ROWS * T;
    const struct matmul_part &p = a.part[a.heads ? 0 : blockIdx.z];
    const size_t head = a.heads ? blockIdx.z : 0;
    const struct expert_tile tile = this_tile<T>(a);
    const struct weight_view w = this_matrix(a, p, tile.count ? tile.expert : 0);
    const unsigned numbers = p.format.numbers, bytes = p.format.bytes, lane = lane_of_warp(), warp = threadIdx.x / 32;
    const unsigned chain = (p.format.halves ? 2 : 1) * (p.format.minimums ? 2 : 1),
                   batch = SLOTS / (T * chain) < ROWS ? SLOTS / (T * chain) : ROWS;
    const size_t first = (size_t)blockIdx.x * p.side * ROWS, blocks = (w.cols + DOT_BLOCK - 1) / DOT_BLOCK;
    const size_t row_bytes = w.stride / numbers * bytes;
    const unsigned block_bytes = DOT_BLOCK / numbers * bytes;
    struct warp_memory &m = memory[warp];
    float total = 0.0f;
    if (first >= w.rows || !tile.count)
        return;
    for (size_t b0 = 0; b0 < blocks; b0 += MOST_BLOCKS) {
        unsigned some = blocks - b0 < MOST_BLOCKS ? (unsigned)(blocks - b0) : MOST_BLOCKS;
        for (unsigned u = warp; u < p.side * some; u += WARPS) { /* block b0 + u % some of row group u / some */
            size_t b = b0 + u % some, n0 = first + u / some * ROWS;
            unsigned columns = w.cols - b * DOT_BLOCK < DOT_BLOCK ? (unsigned)(w.cols - b * DOT_BLOCK) : DOT_BLOCK,
                     groups = columns / QUANTIZED_GROUP;
            unsigned rows = n0 >= w.rows ? 0
                            : w.rows - n0 < ROWS ? (unsigned)(w.rows - n0)
                            : ROWS,
                     used = columns / numbers * bytes;
            const unsigned char *at = (const unsigned char *)w.data + (head * a.w_step + n0) * row_bytes +
                                      b * block_bytes;
            /* of this lane's group */
            const unsigned place = lane * QUANTIZED_GROUP / numbers * bytes, group = lane % (numbers / QUANTIZED_GROUP);
            const struct quantized_group *x_rows[T];
            struct lane_x<T> x;
            struct row_words next;
            if (!rows)
                continue;
            fetch(next, at, used);
            UNROLL for (int t = 0; t < T; t++)
                x_rows[t] = a.groups + head * a.x_step + row_of_x(a, tile, t) * a.ldx + b * 32;
            load_x(x, m.stage, x_rows, groups);
            ROLL for (unsigned r = 0; r < rows; r++, at += row_bytes) {
                stage(m.stage, next);
                if (r + 1 < rows)
                    fetch(next, at + row_bytes, used);
                if (lane < groups) {
                    struct group_codes codes;
                    unpack_group(codes, w, p.format.grid, (const unsigned char *)m.stage + (uintptr_t)at % 4 + place,
                                 group);
                    store_operands(m, r % batch * T * chain, codes, x, p.format.halves, p.format.minimums);
                }
                if ((r + 1) % batch && r + 1 < rows)
                    continue;
                __syncwarp();
                if (lane < (r % batch + 1) * T)
                    sums[u * TILE + r / batch * batch * T + lane] = add_chain(m, lane * chain, chain, groups);
            }
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < p.side * TILE; i += WARPS * 32) { /* if there is more than one step of b0, a
                                                                                thread has at most one i */
            const float *sum = sums + i / TILE * some * TILE + i % TILE;
            size_t n = first + i / T, t = i % T;
            if (n >= w.rows)
                continue;
            for (unsigned b = 0; b < some; b++)
                total = b0 + b ? total + sum[b * TILE] : sum[b * TILE];
            if (b0 + some == blocks && t < (size_t)tile.count)
                p.y[head * a.y_step + ((size_t)tile.first + t) * p.ldy + n] = total;
        }
        __syncthreads();
    }
}

KERNEL(quantized1)
{
    SHARED(float, sums, MOST_BLOCKS * QUANTIZED_ROWS);
    SHARED(struct warp_memory, memory, WARPS);
    multiply<1>(a, sums, memory);
}

KERNEL(quantized2)
{
    SHARED(float, sums, MOST_BLOCKS * QUANTIZED_ROWS * 2);
    SHARED(struct warp_memory, memory, WARPS);
    multiply<2>(a, sums, memory);
}

KERNEL(quantized4)
{
    SHARED(float, sums, MOST_BLOCKS * QUANTIZED_ROWS * 4);
    SHARED(struct warp_memory, memory, WARPS);
    multiply<4>(a, sums, memory);
}

/* Lane l of a warp has number l of a group. */
KERNEL(quantize)
{
    size_t g = (size_t)blockIdx.y * (THREADS_quantize / 32) + threadIdx.x / 32;
    if (g >= a.K / QUANTIZED_GROUP) /* the whole warp */
        return;
    struct quantized_group *y = a.y + blockIdx.x * (a.K / QUANTIZED_GROUP) + g;
    float d,
        x = a.x[blockIdx.x / a.heads * a.ldx + blockIdx.x % a.heads * a.x_step + g * QUANTIZED_GROUP + lane_of_warp()];
    int32_t q = quantize_lane(x, &d);
    int32_t sum = q;
    for (int h = 1; h < 16; h *= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, h);
    int32_t upper = __shfl_sync(ALL_LANES, sum, 16);
    sum += __shfl_xor_sync(ALL_LANES, sum, 16);
    y->q[lane_of_warp()] = (int8_t)q;
    if (lane_of_warp() == 0) {
        y->d = d;
        y->sum = sum;
        y->upper = upper;
        y->offset8 = -8 * sum;
        y->offset128 = -128 * sum;
    }
}
