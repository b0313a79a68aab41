/* ops/cuda/absorb.cu -- the queries of attention in the absorbed form (rule 4a).
 *
 * q_abs has one sum for each column, over n ascending. A thread has the sums of four columns, for some rows of the
 * pass, so that each weight is read once for these rows, and neighbouring threads read neighbouring weights. It asks
 * for the weights of several n before it uses the first: if the pass has few rows, all time is waiting for weights. */
#include "ops/cuda/dot.h"
#include "ops/cuda/round.h"

constexpr unsigned STEP = 128, COLUMNS = 4; /* STEP: numbers of q_nope in shared memory at once */

DEVICE void add_weights(float (&sum)[ABSORB_ROWS][COLUMNS], const float w[COLUMNS], const float *q)
{
    UNROLL for (int s = 0; s < ABSORB_ROWS; s++)
        UNROLL for (unsigned i = 0; i < COLUMNS; i++)
            sum[s][i] = fmaf(q[s * STEP], w[i], sum[s][i]);
}

/* Adds rows [first, first + count) of W_uk, whose q are in shared memory; columns j .. j + 3. */
template <int TYPE>
DEVICE void absorb_rows(float (&sum)[ABSORB_ROWS][COLUMNS], const struct weight_view &w, size_t first, unsigned count,
                        size_t j, const float *q)
{
    typedef typename stored<TYPE>::word word;
    constexpr unsigned U = 64 / sizeof(word) < 16 ? 64 / sizeof(word) : 16;
    size_t row = w.stride * sizeof(word) / COLUMNS;
    const unsigned char *at = (const unsigned char *)w.data + first * row + j * sizeof(word) / COLUMNS;
    float f[COLUMNS], factor;
    unsigned n = 0;
    for (int aligned = ((uintptr_t)w.data | row) % sizeof(word) == 0 && j + COLUMNS <= w.cols;
         aligned && n + U <= count; n += U) {
        word v[U];
        UNROLL for (unsigned u = 0; u < U; u++)
            v[u] = read_once((const word *)(const void *)(at + (n + u) * row));
        UNROLL for (unsigned u = 0; u < U; u++) {
            float scale = scale_of<TYPE>(w, first + n + u, j, &factor);
            decode<TYPE>(f, v[u], scale, factor, w.rounded);
            add_weights(sum, f, q + n + u);
        }
    }
    for (; n < count; n++) {
        for (unsigned i = 0; i < COLUMNS; i++)
            f[i] = j + i < w.cols ? weight_at<TYPE>(w, first + n, j + i) : 0.0f;
        add_weights(sum, f, q + n);
    }
}

DEVICE void absorb_any(float (&sum)[ABSORB_ROWS][COLUMNS], const struct weight_view &w, size_t first, unsigned count,
                       size_t j, const float *q)
{
    switch (w.type) {
    case WEIGHT_F32: absorb_rows<WEIGHT_F32>(sum, w, first, count, j, q); break;
    case WEIGHT_F16: absorb_rows<WEIGHT_F16>(sum, w, first, count, j, q); break;
    case WEIGHT_BF16: absorb_rows<WEIGHT_BF16>(sum, w, first, count, j, q); break;
    case WEIGHT_F8_E4M3: absorb_rows<WEIGHT_F8_E4M3>(sum, w, first, count, j, q); break;
    case WEIGHT_I8: absorb_rows<WEIGHT_I8>(sum, w, first, count, j, q); break;
    case WEIGHT_I4: absorb_rows<WEIGHT_I4>(sum, w, first, count, j, q); break;
    default: absorb_rows<WEIGHT_F4>(sum, w, first, count, j, q);
    }
}

/* Writes columns j .. j + 3 of q_abs, and lets the first block of a head write q_rope and the zeros behind it. */
DEVICE void write_query(const struct attention_args &a, const float *q_abs, size_t j, size_t s, size_t h)
{
    float *query = a.query + (s * a.heads + h) * a.width;
    const float *q_rope = a.q + s * a.ldq + h * (a.nope + a.rope) + a.nope;
    for (size_t i = j; i < j + COLUMNS && i < a.latent; i++)
        query[chunk_place(i)] = q_abs[i - j];
    for (size_t i = a.latent + threadIdx.x; blockIdx.x == 0 && i < a.width; i += THREADS_absorb)
        query[chunk_place(i)] = i < a.latent + a.rope ? q_rope[i - a.latent] : 0.0f;
}

KERNEL(absorb)
{
    SHARED(float, q, ABSORB_ROWS * STEP);
    size_t h = blockIdx.y, first = (size_t)blockIdx.z * ABSORB_ROWS,
           rows = a.S - first < ABSORB_ROWS ? a.S - first : ABSORB_ROWS;
    size_t j = ((size_t)blockIdx.x * THREADS_absorb + threadIdx.x) * COLUMNS;
    float sum[ABSORB_ROWS][COLUMNS] = {};
    for (size_t n0 = 0; n0 < a.nope && a.w_uk.type < WEIGHT_TYPES; n0 += STEP) {
        size_t count = a.nope - n0 < STEP ? a.nope - n0 : STEP;
        __syncthreads(); /* the numbers before are not needed any more */
        for (unsigned i = threadIdx.x; i < ABSORB_ROWS * STEP; i += THREADS_absorb) {
            size_t s = first + i / STEP, n = n0 + i % STEP;
            float x = i / STEP < rows && n < a.nope ? a.q[s * a.ldq + h * (a.nope + a.rope) + n] : 0.0f;
            q[i] = a.rounds_q ? round_input(x) : x;
        }
        __syncthreads();
        if (j < a.latent)
            absorb_any(sum, a.w_uk, h * a.uk_stride + n0, (unsigned)count, j, q);
    }
    UNROLL for (int s = 0; s < ABSORB_ROWS; s++)
        if ((size_t)s < rows) {
            if (a.w_uk.type < WEIGHT_TYPES)
                write_query(a, sum[s], j, first + s, h);
            else /* a kernel for quantized weights has left q_abs in `o` */
                write_query(a, a.o + ((first + s) * a.heads + h) * a.columns + j, j, first + s, h);
        }
}

KERNEL(quantize_queries)
{
    size_t groups = a.latent / QUANTIZED_GROUP,
           g = (size_t)blockIdx.x * (THREADS_quantize_queries / 32) + threadIdx.x / 32, pair = g / groups;
    if (g >= a.S * a.heads * groups) /* for all threads of a warp */
        return;
    float d;
    int q = quantize_lane(a.query[pair * a.width + chunk_place(g % groups * QUANTIZED_GROUP + lane_of_warp())], &d);
    if (lane_of_warp() == 0)
        a.query_groups[g].d = d;
    a.query_groups[g].q[lane_of_warp()] = (int8_t)q;
}
