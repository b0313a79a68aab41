/* ops/cuda/linear.cu -- linear layers by rule 1.
 *
 * Eight threads compute a dot product: thread j has the partial sums 2j and 2j + 1, to which numbers 4j .. 4j + 3 of
 * each chunk belong. So a thread reads four weights at once, and the four dot products that a warp computes side by
 * side share what it reads of x. Reading the weights takes the time if x has few rows. Therefore the blocks of 1024
 * numbers of a row of weights are computed by different warps, each with several chunks in flight; they are then added
 * in ascending order. With more rows of x, a thread works on several rows of weights, because the threads would else
 * read x as fast as the L1 cache can give it. */
#include "ops/cuda/matmul.h"
#include "ops/cuda/weights.h"

static const unsigned WARPS = THREADS_linear1 / 32, LANES = 8, MOST_BLOCKS = 32;

/* Bytes of weights that a thread asks for at most before it uses the first of them. */
static const unsigned IN_FLIGHT = 64;

/* One block of 1024 numbers, or less at the end of a row. */
template <int T, int R> struct partial_sums {
    float even[R][T], odd[R][T]; /* partial sums 2j and 2j + 1 of row r of weights and row t of x */
};

/* What a thread reads next: its four numbers of the chunk that begins at column k. */
template <int T, int R> struct operands {
    const struct weight_view *w;
    unsigned n[R]; /* rows of weights */
    unsigned k;
    const unsigned char *at[R]; /* weights */
    const float *x[T];
};

DEVICE unsigned lane_of_row(void) { return threadIdx.x % LANES; }

template <int T, int R>
DEVICE void multiply_four(struct partial_sums<T, R> &a, int r, int t, const float w[4], float4 x)
{
    a.even[r][t] = fmaf(w[1], x.y, a.even[r][t]);
    a.even[r][t] = fmaf(w[0], x.x, a.even[r][t]);
    a.odd[r][t] = fmaf(w[3], x.w, a.odd[r][t]);
    a.odd[r][t] = fmaf(w[2], x.z, a.odd[r][t]);
}

template <int T, int R> DEVICE void advance(struct operands<T, R> &o, int chunks, size_t bytes)
{
    o.k += (unsigned)chunks * DOT_CHUNK;
    UNROLL for (int r = 0; r < R; r++)
        o.at[r] += (size_t)chunks * LANES * bytes;
    UNROLL for (int t = 0; t < T; t++)
        o.x[t] += (size_t)chunks * DOT_CHUNK;
}

/* U whole chunks, whose weights share a scale in types F8_E4M3 and I8. */
template <int TYPE, int U, int T, int R>
DEVICE void add_chunks(struct partial_sums<T, R> &a, struct operands<T, R> &o, const float (&scale)[R])
{
    typedef typename stored<TYPE>::word word;
    word v[U][R];
    UNROLL for (int u = 0; u < U; u++)
        UNROLL for (int r = 0; r < R; r++)
            v[u][r] = read_once((const word *)(const void *)o.at[r] + (size_t)u * LANES);
    UNROLL for (int u = 0; u < U; u++) {
        float f[R][4];
        UNROLL for (int r = 0; r < R; r++) {
            float factor = 1.0f, s = scale[r];
            if (TYPE == WEIGHT_I4 || TYPE == WEIGHT_F4)
                s = scale_of<TYPE>(*o.w, o.n[r], o.k + (unsigned)u * DOT_CHUNK + 4 * lane_of_row(), &factor);
            decode<TYPE>(f[r], v[u][r], s, factor, o.w->rounded);
        }
        UNROLL for (int t = 0; t < T; t++) {
            float4 x = *(const float4 *)(const void *)(o.x[t] + (size_t)u * DOT_CHUNK);
            UNROLL for (int r = 0; r < R; r++)
                multiply_four(a, r, t, f[r], x);
        }
    }
    advance(o, U, sizeof(word));
}

/* One chunk that is not aligned, or not whole: numbers from column `end` on count as +0. */
template <int TYPE, int T, int R>
DEVICE void add_any(struct partial_sums<T, R> &a, struct operands<T, R> &o, unsigned end)
{
    unsigned j = o.k + 4 * lane_of_row();
    UNROLL for (int r = 0; r < R; r++) {
        float f[4];
        UNROLL for (unsigned i = 0; i < 4; i++)
            f[i] = j + i < end ? weight_at<TYPE>(*o.w, o.n[r], j + i) : 0.0f;
        UNROLL for (int t = 0; t < T; t++) {
            const float *x = o.x[t];
            float4 some = {j < end ? x[0] : 0.0f, j + 1 < end ? x[1] : 0.0f, j + 2 < end ? x[2] : 0.0f,
                           j + 3 < end ? x[3] : 0.0f};
            multiply_four(a, r, t, f, some);
        }
    }
    advance(o, 1, sizeof(typename stored<TYPE>::word));
}

/* Columns [o.k, end), which are a block of rule 1. */
template <int TYPE, int T, int R>
DEVICE void add_block(struct partial_sums<T, R> &a, struct operands<T, R> &o, size_t ldx, unsigned end)
{
    typedef typename stored<TYPE>::word word;
    constexpr bool scaled = TYPE == WEIGHT_F8_E4M3 || TYPE == WEIGHT_I8;
    /* Scales of F8_E4M3 usually belong to 128 columns, four chunks. Large tiles have too few registers for more
     * chunks. */
    constexpr int LIMIT = T < 4 && !scaled ? 8 : T < 8 ? 4 : sizeof(word) == 8 ? 2 : 1;
    constexpr int wanted = (int)(IN_FLIGHT / sizeof(word)) / R, U = wanted > LIMIT ? LIMIT : wanted > 1 ? wanted : 1;
    const struct weight_view &w = *o.w;
    float scale[R], factor;
    UNROLL for (int r = 0; r < R; r++) {
        o.at[r] = (const unsigned char *)w.data +
                  ((size_t)o.n[r] * w.stride + o.k + 4 * lane_of_row()) * sizeof(word) / 4;
        scale[r] = 1.0f;
    }
    size_t row = w.stride * sizeof(word) / 4;
    bool aligned = ((uintptr_t)w.data | row) % sizeof(word) == 0 &&
                   ((uintptr_t)o.x[0] | ldx * sizeof(float)) % sizeof(float4) == 0;
    unsigned whole = aligned ? (end - o.k) / DOT_CHUNK : 0, same = whole; /* chunks; those before the next scale */
    if (scaled)
        same = ((unsigned)w.block_cols - (o.k + (unsigned)w.scale_col) % (unsigned)w.block_cols) / DOT_CHUNK;
    ROLL while (whole) {
        unsigned some = same < whole ? same : whole;
        whole -= some;
        if (scaled) {
            UNROLL for (int r = 0; r < R; r++)
                scale[r] = scale_of<TYPE>(w, o.n[r], o.k, &factor);
            same = (unsigned)w.block_cols / DOT_CHUNK;
        }
        ROLL for (; some >= U; some -= U)
            add_chunks<TYPE, U>(a, o, scale);
        ROLL for (; some; some--)
            add_chunks<TYPE, 1>(a, o, scale);
    }
    ROLL while (o.k < end)
        add_any<TYPE>(a, o, end);
}

/* The fold of rule 1, for all sums of the four dot products of a warp. If a thread has several sums, the two threads of
 * a step share the work: each gets the other's parts of half of them. (a[l] + a[l+h] has the bits of a[l+h] + a[l].) */
template <int T, int R> DEVICE void store_block(float *to, const struct partial_sums<T, R> &a)
{
    constexpr int N = R * T;
    float even[N], odd[N];
    int left = N, first = 0; /* this thread has the sums from `first` on, `left` of them */
    unsigned idle = 0;       /* bits of the lanes that have the same sums as another lane */
    UNROLL for (int i = 0; i < N; i++) {
        even[i] = a.even[i / T][i % T];
        odd[i] = a.odd[i / T][i % T];
    }
    UNROLL for (int h = LANES / 2; h; h /= 2) {
        if (left == 1) {
            even[0] = even[0] + __shfl_xor_sync(ALL_LANES, even[0], h);
            odd[0] = odd[0] + __shfl_xor_sync(ALL_LANES, odd[0], h);
            idle |= (unsigned)h;
            continue;
        }
        bool upper = lane_of_row() & (unsigned)h;
        left /= 2;
        first += upper ? left : 0;
        UNROLL for (int i = 0; i < N / 2; i++)
            if (i < left) {
                float other_even = __shfl_xor_sync(ALL_LANES, upper ? even[i] : even[left + i], h);
                float other_odd = __shfl_xor_sync(ALL_LANES, upper ? odd[i] : odd[left + i], h);
                even[i] = (upper ? even[left + i] : even[i]) + other_even;
                odd[i] = (upper ? odd[left + i] : odd[i]) + other_odd;
            }
    }
    UNROLL for (int i = 0; i < N; i++)
        if (i < left && (lane_of_row() & idle) == 0)
            to[first + i] = even[i] + odd[i];
}

template <int T, int R>
DEVICE void add_block_of_any(struct partial_sums<T, R> &a, struct operands<T, R> &o, size_t ldx, unsigned end)
{
    switch (o.w->type) {
    case WEIGHT_F32: add_block<WEIGHT_F32>(a, o, ldx, end); break;
    case WEIGHT_F16: add_block<WEIGHT_F16>(a, o, ldx, end); break;
    case WEIGHT_BF16: add_block<WEIGHT_BF16>(a, o, ldx, end); break;
    case WEIGHT_F8_E4M3: add_block<WEIGHT_F8_E4M3>(a, o, ldx, end); break;
    case WEIGHT_I8: add_block<WEIGHT_I8>(a, o, ldx, end); break;
    case WEIGHT_I4: add_block<WEIGHT_I4>(a, o, ldx, end); break;
    default: add_block<WEIGHT_F4>(a, o, ldx, end);
    }
}

/* `shared` [MOST_BLOCKS or WARPS][4 dot products][R][T] has the sums of blocks. */
template <int T> DEVICE void multiply(const struct matmul_args &a, float *shared)
{
    constexpr int R = LINEAR_ROWS(T);
    constexpr unsigned ROWS = 4 * R, TILE = ROWS * T;
    const struct matmul_part &p = a.part[a.heads ? 0 : blockIdx.z];
    const struct expert_tile tile = this_tile<T>(a);
    const unsigned head = a.heads ? blockIdx.z : 0, rows = (unsigned)p.w.rows, cols = (unsigned)p.w.cols,
                   blocks = (cols + DOT_BLOCK - 1) / DOT_BLOCK;
    const unsigned first = blockIdx.x * p.side * ROWS, warp = threadIdx.x / 32, dot = threadIdx.x % 32 / LANES;
    float total = 0.0f;
    if (first >= rows || !tile.count)
        return;
    const struct weight_view w = this_matrix(a, p, tile.expert);
    ROLL for (unsigned b0 = 0; b0 < blocks; b0 += MOST_BLOCKS) {
        unsigned some = blocks - b0 < MOST_BLOCKS ? blocks - b0 : MOST_BLOCKS;
        ROLL for (unsigned u = warp; u < p.side * some; u += WARPS) { /* block b0 + u % some of row group u / some */
            unsigned n = first + u / some * ROWS + dot;
            struct partial_sums<T, R> sums = {};
            struct operands<T, R> o;
            o.w = &w;
            o.k = (b0 + u % some) * DOT_BLOCK;
            UNROLL for (unsigned r = 0; r < R; r++)
                o.n[r] = head * (unsigned)a.w_step + (n + 4 * r < rows ? n + 4 * r : rows - 1);
            UNROLL for (int t = 0; t < T; t++)
                o.x[t] = a.x + head * a.x_step + row_of_x(a, tile, t) * a.ldx + o.k + 4 * lane_of_row();
            add_block_of_any(sums, o, a.ldx, o.k + DOT_BLOCK < cols ? o.k + DOT_BLOCK : cols);
            store_block(shared + (u * 4 + dot) * R * T, sums);
        }
        __syncthreads();
        /* if there is more than one step of b0, a thread has at most one i */
        ROLL for (unsigned i = threadIdx.x; i < p.side * TILE; i += WARPS * 32) {
            const float *sum = shared + i / TILE * some * TILE + i % TILE;
            for (unsigned b = 0; b < some; b++)
                total = b0 + b ? total + sum[b * TILE] : sum[b * TILE];
            unsigned n = first + i / TILE * ROWS + i / (R * T) % 4 + i / T % R * 4, t = i % T;
            if (b0 + some == blocks && n < rows && t < (unsigned)tile.count)
                p.y[head * a.y_step + ((unsigned)tile.first + t) * p.ldy + n] = total;
        }
        __syncthreads();
    }
}

KERNEL(linear1)
{
    SHARED(float, shared, MOST_BLOCKS * 4 * LINEAR_ROWS(1));
    multiply<1>(a, shared);
}

KERNEL(linear2)
{
    SHARED(float, shared, MOST_BLOCKS * 4 * LINEAR_ROWS(2) * 2);
    multiply<2>(a, shared);
}

KERNEL(linear4)
{
    SHARED(float, shared, MOST_BLOCKS * 4 * LINEAR_ROWS(4) * 4);
    multiply<4>(a, shared);
}

KERNEL(linear8)
{
    SHARED(float, shared, MOST_BLOCKS * 4 * LINEAR_ROWS(8) * 8);
    multiply<8>(a, shared);
}

KERNEL(round_x)
{
    size_t k = (size_t)blockIdx.x * THREADS_round_x + threadIdx.x;
    if (k < a.K) {
        float x = a.x[blockIdx.y * a.ldx + k];
        a.y[blockIdx.y * a.K + k] = a.keeps_tiny ? round_to_bf16(x) : round_input(x);
    }
}
