/* ops/cuda/integer.cu -- linear layers by rule 2, for many rows of x, by tensor cores.
 *
 * Tensor cores add products of bytes exactly, so they compute the integer sums of rule 2. One instruction multiplies a
 * group of 32 columns of 16 rows of weights by 8 rows of x. Each lane of a warp gets four of the 128 sums, and adds
 * them to its four chains of fma, group after group. So there is no other exchange, and the bits are those of the
 * kernels in ops/cuda/quantized.cu, which are for few rows.
 *
 * The lanes unpack the weights of a few groups of the 16 rows into shared memory, from which each lane takes what the
 * instruction wants from it. */
#include "ops/cuda/decode.h"
#include "ops/cuda/matmul.h"

static const unsigned WARPS = THREADS_integer8 / 32, ROWS = TENSOR_ROWS, SUMS = 4096;
static const unsigned SLICE = 4;      /* groups that are unpacked at once */
static const unsigned ROW_WORDS = 12; /* from one row to the next: so no two lanes read the same bank */

/* Memory that a warp uses alone. */
struct slice {
    uint32_t q[SLICE][ROWS][ROW_WORDS];
    float scale[SLICE][2][ROWS], minimum[SLICE][2][ROWS]; /* of each half of a group */
};

/* The matrix from its row n0 and its column b * 1024 on. */
struct weight_block {
    const struct weight_view *w;
    const void *grid;
    const unsigned char *at;
    size_t row_bytes;
    unsigned rows, groups, numbers, bytes; /* numbers and bytes: of a block of the format */
};

/* Unpacks groups first .. first + SLICE - 1, as far as they exist. Rows that the matrix does not have are copies of its
 * last. */
DEVICE void unpack_slice(struct slice &s, const struct weight_block &m, unsigned first)
{
    unsigned i = lane_of_warp() % SLICE, g = first + i, of_block = m.numbers / QUANTIZED_GROUP;
    __syncwarp(); /* all lanes have read the slice before */
    for (unsigned row = lane_of_warp() / SLICE; row < ROWS && g < m.groups; row += 32 / SLICE) {
        struct group_codes codes;
        unpack_group(codes, *m.w, m.grid,
                     m.at + (row < m.rows ? row : m.rows - 1) * m.row_bytes + g / of_block * m.bytes, g % of_block);
        UNROLL for (int k = 0; k < 8; k++)
            s.q[i][row][k] = codes.q[k];
        UNROLL for (int half = 0; half < 2; half++) {
            s.scale[i][half][row] = codes.scale[half];
            s.minimum[i][half][row] = codes.minimum[half];
        }
    }
    __syncwarp();
}

/* Number i of the four products of a lane is in row row_of(i) of the weights, and in column column_of(i) of eight rows
 * of x. */
DEVICE unsigned row_of(unsigned i) { return lane_of_warp() / 4 + i / 2 * 8; }
DEVICE unsigned column_of(unsigned i) { return lane_of_warp() % 4 * 2 + i % 2; }

/* One fma of the four chains, with the integer sum c. */
DEVICE void add_sums(float acc[4], const int32_t c[4], const float scale[ROWS], const float d[2])
{
    UNROLL for (unsigned i = 0; i < 4; i++)
        acc[i] = fmaf((float)c[i], scale[row_of(i)] * d[i % 2], acc[i]);
}

/* The fma of the minimums, with the sum of x. */
DEVICE void add_minimums(float acc[4], const int32_t sum[2], const float minimum[ROWS], const float d[2])
{
    UNROLL for (unsigned i = 0; i < 4; i++)
        acc[i] = fmaf(-(float)sum[i % 2], minimum[row_of(i)] * d[i % 2], acc[i]);
}

/* Group i of a slice times eight rows of x. `of_lane` is the group of x in row g = lane / 4 of them, `of_column` are
 * those of the two columns of this lane. */
DEVICE void add_group(float acc[4], const struct slice &s, unsigned i, const struct quantized_group *of_lane,
                      const struct quantized_group *const of_column[2], int halves, int minimums)
{
    const unsigned g = lane_of_warp() / 4, t = lane_of_warp() % 4;
    const uint32_t *x = (const uint32_t *)(const void *)of_lane->q;
    const uint32_t upper[4] = {0, 0, s.q[i][g][t + 4], s.q[i][g + 8][t + 4]}, b[2] = {x[t], x[t + 4]};
    /* all of the group, or its lower half */
    const uint32_t first[4] = {s.q[i][g][t], s.q[i][g + 8][t], halves ? 0 : upper[2], halves ? 0 : upper[3]};
    const float d[2] = {of_column[0]->d, of_column[1]->d};
    int32_t c[4] = {0, 0, 0, 0}, sum[2] = {0, 0}, sum_of_upper[2] = {0, 0};
    if (minimums)
        UNROLL for (unsigned j = 0; j < 2; j++) {
            sum_of_upper[j] = of_column[j]->upper;
            sum[j] = halves ? of_column[j]->sum - sum_of_upper[j] : of_column[j]->sum;
        }
    multiply_bytes_16_8_32(c, first, b);
    add_sums(acc, c, s.scale[i][0], d);
    if (minimums)
        add_minimums(acc, sum, s.minimum[i][0], d);
    if (!halves)
        return;
    c[0] = c[1] = c[2] = c[3] = 0;
    multiply_bytes_16_8_32(c, upper, b);
    add_sums(acc, c, s.scale[i][1], d);
    if (minimums)
        add_minimums(acc, sum_of_upper, s.minimum[i][1], d);
}

/* One block of rule 2. x: the block's groups of the rows of x that this lane reads: row g, and the two of its columns,
 * of each eight. */
template <int T>
DEVICE void add_block(float (&acc)[T / 8][4], struct slice &s, const struct weight_block &m,
                      const struct quantized_group *const (&x)[T / 8][3], int halves, int minimums)
{
    ROLL for (unsigned first = 0; first < m.groups; first += SLICE) {
        unpack_slice(s, m, first);
        ROLL for (unsigned i = 0; i < SLICE && first + i < m.groups; i++)
            UNROLL for (int e = 0; e < T / 8; e++) {
                const struct quantized_group *const of_column[2] = {x[e][1] + first + i, x[e][2] + first + i};
                add_group(acc[e], s, i, x[e][0] + first + i, of_column, halves, minimums);
            }
    }
}

/* `sums` [SUMS] has the sums of blocks: [blocks, 16 rows of weights, T]. */
template <int T> DEVICE void multiply(const struct matmul_args &a, float *sums, struct slice *slices)
{
    constexpr unsigned TILE = ROWS * T, MOST_BLOCKS = SUMS / TILE;
    const struct matmul_part &p = a.part[a.heads ? 0 : blockIdx.z];
    const size_t head = a.heads ? blockIdx.z : 0;
    const struct expert_tile tile = this_tile<T>(a);
    const struct weight_view w = this_matrix(a, p, tile.count ? tile.expert : 0);
    const unsigned warp = threadIdx.x / 32, first = blockIdx.x * p.side * ROWS, rows = (unsigned)w.rows;
    const unsigned blocks = (unsigned)((w.cols + DOT_BLOCK - 1) / DOT_BLOCK);
    struct weight_block m = {&w, p.format.grid, NULL, w.stride / p.format.numbers * p.format.bytes, 0, 0,
                             p.format.numbers, p.format.bytes};
    if (first >= rows || !tile.count)
        return;
    ROLL for (unsigned b0 = 0; b0 < blocks; b0 += MOST_BLOCKS) {
        unsigned some = blocks - b0 < MOST_BLOCKS ? blocks - b0 : MOST_BLOCKS;
        ROLL for (unsigned u = warp; u < p.side * some; u += WARPS) { /* block b0 + u % some of row group u / some */
            unsigned b = b0 + u % some, n = first + u / some * ROWS;
            const struct quantized_group *x[T / 8][3];
            float acc[T / 8][4] = {};
            if (n >= rows)
                continue;
            m.rows = rows - n < ROWS ? rows - n : ROWS;
            m.groups = (unsigned)((w.cols - b * DOT_BLOCK < DOT_BLOCK ? w.cols - b * DOT_BLOCK : DOT_BLOCK) /
                                  QUANTIZED_GROUP);
            m.at = (const unsigned char *)w.data + (head * a.w_step + n) * m.row_bytes +
                   b * (DOT_BLOCK / m.numbers * m.bytes);
            UNROLL for (int e = 0; e < T / 8; e++)
                UNROLL for (unsigned j = 0; j < 3; j++)
                    x[e][j] = a.groups + head * a.x_step + b * (DOT_BLOCK / QUANTIZED_GROUP) +
                              row_of_x(a, tile, (int32_t)(e * 8 + (j ? column_of(j - 1) : row_of(0)))) * a.ldx;
            add_block<T>(acc, slices[warp], m, x, p.format.halves, p.format.minimums);
            UNROLL for (int e = 0; e < T / 8; e++)
                UNROLL for (unsigned i = 0; i < 4; i++)
                    sums[u * TILE + row_of(i) * T + e * 8 + column_of(i)] = acc[e][i];
        }
        __syncthreads();
        add_blocks<T, WARPS * 32>(p.y + head * a.y_step, p.ldy, tile, rows, sums, first, p.side, b0, some);
        __syncthreads();
    }
}

KERNEL(integer8)
{
    SHARED(float, sums, SUMS);
    SHARED(struct slice, slices, WARPS);
    multiply<8>(a, sums, slices);
}

KERNEL(integer32)
{
    SHARED(float, sums, SUMS);
    SHARED(struct slice, slices, WARPS);
    multiply<32>(a, sums, slices);
}
