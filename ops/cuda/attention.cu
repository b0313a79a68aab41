/* ops/cuda/attention.cu -- attention over the latent cache in the absorbed form (rule 4, ops/attention.h).
 *
 * All heads read the same cache rows. A number of a row that a thread has read is therefore used for as many heads as
 * registers allow:
 *
 * attention_scores   A half warp computes sixteen dot products at once, of four heads and four cache rows. Each number
 *                    that it reads is used four times. The warps of a block have other heads and the same cache rows,
 *                    which then come from the L1 cache.
 * attention_values   o_b[c] is one sum, over j ascending. A thread has the sums of four columns for eight heads, so it
 *                    uses each number of the cache eight times. Before that, a half warp computes the softmax of each
 *                    head.
 * join_blocks     Joins the blocks in ascending order. A thread has one column.
 *
 * Blocks of 256 tokens, heads and rows of the pass run side by side. The grid depends on the longest timeline; what
 * lies beyond the end of a row's timeline ends at once. */
#include "ops/cuda/dot.h"
#include "ops/cuda/round.h"
#include "ops/cuda/softmax.h"

/* HEADS, TOKENS: of a half warp. COLUMNS: of a thread */
constexpr unsigned BLOCK = 256, HEADS = 4, TOKENS = 4, COLUMNS = 4, JOINED = THREADS_join_blocks;

DEVICE const char *cache_row(const struct attention_args &a, const struct row_place &r, size_t slot)
{
    return r.rows + a.layer * r.layer_bytes + slot * a.row_bytes;
}

/* ---- scores ---- */

/* A half warp's queries and cache rows. Lane i has the dot product of query i / TOKENS and row i % TOKENS. */
struct score_tile {
    const float *query[HEADS]; /* in packed order */
    const char *row[TOKENS];
};

/* Reads numbers k + 2l + 1 and k + 2l of a row, for lane l. */
template <int CACHE> DEVICE void read_pair(const char *row, size_t k, float *odd, float *even)
{
    if (CACHE == CACHE_F32) {
        *odd = ((const float *)(const void *)row)[k + lane_of_sum()];
        *even = ((const float *)(const void *)row)[k + DOT_CHUNK / 2 + lane_of_sum()];
    } else {
        uint32_t both = ((const uint32_t *)(const void *)row)[k / 2 + lane_of_sum()];
        *odd = float_of_bits(both & 0xffff0000);
        *even = float_of_bits(both << 16);
    }
}

/* Rule 1 over K numbers. Rows of type BF16 may end after K numbers. */
template <int CACHE> DEVICE float dots(const struct score_tile &t, size_t K)
{
    float total = 0.0f;
    for (size_t block = 0; block < K; block += DOT_BLOCK) {
        size_t end = K - block < DOT_BLOCK ? K : block + DOT_BLOCK;
        float sum[HEADS * TOKENS] = {};
        for (size_t k = block; k < end; k += DOT_CHUNK) {
            float odd[TOKENS], even[TOKENS];
            UNROLL for (unsigned j = 0; j < TOKENS; j++) {
                odd[j] = even[j] = 0.0f;
                if (CACHE == CACHE_F32 || k + 2 * lane_of_sum() < K) /* packed rows are padded; K is even in others */
                    read_pair<CACHE>(t.row[j], k, &odd[j], &even[j]);
            }
            UNROLL for (unsigned i = 0; i < HEADS; i++) {
                float x_odd = t.query[i][k + lane_of_sum()], x_even = t.query[i][k + DOT_CHUNK / 2 + lane_of_sum()];
                UNROLL for (unsigned j = 0; j < TOKENS; j++) {
                    float *s = &sum[i * TOKENS + j];
                    *s = fmaf(odd[j], x_odd, *s);
                    *s = fmaf(even[j], x_even, *s);
                }
            }
        }
        float one = fold_sixteen(sum);
        total = block ? total + one : one;
    }
    return total;
}

/* Rule 2 for one query and the latent of one cache row. A group is d, then 32 integers. */
DEVICE float dot_of_groups(const struct quantized_group *x, const char *row, size_t groups)
{
    float total = 0.0f, acc = 0.0f;
    for (size_t g = 0; g < groups; g++, row += sizeof(float) + QUANTIZED_GROUP) {
        const int32_t *w = (const int32_t *)(const void *)(row + sizeof(float)),
                      *q = (const int32_t *)(const void *)x[g].q;
        int32_t sum = 0;
        UNROLL for (int i = 0; i < QUANTIZED_GROUP / 4; i++)
            sum = __dp4a(w[i], q[i], sum);
        acc = fmaf((float)sum, *(const float *)(const void *)row * x[g].d, acc);
        if ((g + 1) * QUANTIZED_GROUP % DOT_BLOCK == 0 || g + 1 == groups) {
            total = g * QUANTIZED_GROUP < DOT_BLOCK ? acc : total + acc;
            acc = 0.0f;
        }
    }
    return total;
}

/* Returns this lane's dot product of a query and a cache row. `pair` is the number of the query among all rows and
 * heads. */
DEVICE float dot_of_lane(const struct attention_args &a, struct score_tile t, size_t pair)
{
    if (a.cache == CACHE_F32)
        return dots<CACHE_F32>(t, a.width);
    if (a.cache == CACHE_BF16)
        return dots<CACHE_BF16>(t, a.width);
    size_t groups = a.latent / QUANTIZED_GROUP;
    const char *row = t.row[0];
    UNROLL for (unsigned j = 1; j < TOKENS; j++)
        row = lane_of_sum() % TOKENS == j ? t.row[j] : row;
    float latent = dot_of_groups(a.query_groups + pair * groups, row, groups);
    UNROLL for (unsigned i = 0; i < HEADS; i++)
        t.query[i] += a.latent; /* whole chunks */
    UNROLL for (unsigned j = 0; j < TOKENS; j++)
        t.row[j] += a.rope_at;
    return latent + dots<CACHE_BF16>(t, a.rope);
}

/* The warps of a block have HEADS heads each. The halves of a warp have other tokens. */
KERNEL(attention_scores)
{
    const struct row_place &r = a.rows[blockIdx.z];
    size_t begin = (size_t)blockIdx.x * SCORE_TOKENS,
           end = begin + SCORE_TOKENS < r.length ? begin + SCORE_TOKENS : r.length;
    size_t first = (size_t)blockIdx.y * SCORE_HEADS + threadIdx.x / 32 * HEADS, h = first + lane_of_sum() / TOKENS;
    size_t pairs = blockIdx.z * a.heads, pair = pairs + (h < a.heads ? h : a.heads - 1);
    struct score_tile t;
    if (first >= a.heads)
        return;
    UNROLL for (unsigned i = 0; i < HEADS; i++)
        t.query[i] = a.query + (pairs + (first + i < a.heads ? first + i : a.heads - 1)) * a.width;
    for (size_t j = begin; j < end; j += 2 * TOKENS) {
        size_t mine = j + threadIdx.x / 16 % 2 * TOKENS, token = mine + lane_of_sum() % TOKENS;
        UNROLL for (unsigned i = 0; i < TOKENS; i++)
            t.row[i] = cache_row(a, r, (size_t)r.slots[mine + i < end ? mine + i : end - 1]);
        float s = dot_of_lane(a, t, pair) * a.scale;
        if (h < a.heads && token < end)
            a.score[pair * a.blocks * BLOCK + token] = s;
    }
}

/* ---- values ---- */

/* Reads numbers `column` .. `column` + 3 of a cache row, in the order of the row. */
template <int CACHE> DEVICE void read_four(float v[COLUMNS], const char *row, size_t column)
{
    if (CACHE == CACHE_F32) {
        float4 four = *(const float4 *)(const void *)(row + column * sizeof(float));
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else if (CACHE == CACHE_BF16) {
        uint2 four = *(const uint2 *)(const void *)(row + column * sizeof(uint16_t));
        v[0] = float_of_bits(four.x << 16), v[1] = float_of_bits(four.x & 0xffff0000);
        v[2] = float_of_bits(four.y << 16), v[3] = float_of_bits(four.y & 0xffff0000);
    } else {
        const char *group = row + column / QUANTIZED_GROUP * (sizeof(float) + QUANTIZED_GROUP);
        float d = *(const float *)(const void *)group;
        uint32_t q = *(const uint32_t *)(const void *)(group + sizeof(float) + column % QUANTIZED_GROUP);
        UNROLL for (unsigned i = 0; i < COLUMNS; i++)
            v[i] = d * (float)(int8_t)(uint8_t)(q >> 8 * i);
    }
}

DEVICE void add_values(float (&sum)[VALUE_HEADS][COLUMNS], const float v[COLUMNS], const float4 *p)
{
    UNROLL for (int h = 0; h < VALUE_HEADS; h += 4) {
        float4 four = p[h / 4];
        UNROLL for (unsigned i = 0; i < COLUMNS; i++) {
            sum[h][i] = fmaf(four.x, v[i], sum[h][i]);
            sum[h + 1][i] = fmaf(four.y, v[i], sum[h + 1][i]);
            sum[h + 2][i] = fmaf(four.z, v[i], sum[h + 2][i]);
            sum[h + 3][i] = fmaf(four.w, v[i], sum[h + 3][i]);
        }
    }
}

/* o_b of four columns for VALUE_HEADS heads, over n tokens. p: [n, VALUE_HEADS]. Some rows are read before the first is
 * used. */
template <int CACHE>
DEVICE void values_of_columns(float (&sum)[VALUE_HEADS][COLUMNS], const struct attention_args &a,
                              const struct row_place &r, const int32_t *slots, const float4 *p, unsigned n,
                              size_t column)
{
    constexpr unsigned U = 4;
    float v[U][COLUMNS];
    unsigned j = 0;
    for (; j + U <= n; j += U) {
        UNROLL for (unsigned u = 0; u < U; u++)
            read_four<CACHE>(v[u], cache_row(a, r, (size_t)slots[j + u]), column);
        UNROLL for (unsigned u = 0; u < U; u++)
            add_values(sum, v[u], p + (j + u) * (VALUE_HEADS / 4));
    }
    for (; j < n; j++) {
        read_four<CACHE>(v[0], cache_row(a, r, (size_t)slots[j]), column);
        add_values(sum, v[0], p + j * (VALUE_HEADS / 4));
    }
}

KERNEL(attention_values)
{
    SHARED(float4, p, BLOCK * VALUE_HEADS / 4); /* [256, VALUE_HEADS] */
    SHARED(int32_t, slots, BLOCK);
    const struct row_place &r = a.rows[blockIdx.z];
    size_t tiles = (a.heads + VALUE_HEADS - 1) / VALUE_HEADS, first = blockIdx.y % tiles * VALUE_HEADS,
           begin = (size_t)blockIdx.x * BLOCK;
    size_t column = blockIdx.y / tiles * VALUE_COLUMNS + threadIdx.x * COLUMNS, pairs = blockIdx.z * a.heads + first;
    if (begin >= r.length)
        return;
    unsigned n = r.length - begin < BLOCK ? (unsigned)(r.length - begin) : BLOCK, mine = threadIdx.x / 16;
    for (unsigned j = threadIdx.x; j < n; j += THREADS_attention_values)
        slots[j] = r.slots[begin + j];
    {
        int is_head = first + mine < a.heads;
        size_t pair = pairs + (is_head ? mine : 0);
        float l, m = softmax_block((float *)(void *)p + mine, VALUE_HEADS, a.score + pair * a.blocks * BLOCK + begin, 1,
                                   n, &l);
        if (is_head && lane_of_sum() == 0 && blockIdx.y < tiles) {
            a.m[pair * a.blocks + blockIdx.x] = m;
            a.l[pair * a.blocks + blockIdx.x] = l;
        }
    }
    __syncthreads();
    if (column >= a.columns)
        return;
    float sum[VALUE_HEADS][COLUMNS] = {};
    if (a.cache == CACHE_F32)
        values_of_columns<CACHE_F32>(sum, a, r, slots, p, n, column);
    else if (a.cache == CACHE_BF16)
        values_of_columns<CACHE_BF16>(sum, a, r, slots, p, n, column);
    else
        values_of_columns<CACHE_Q8>(sum, a, r, slots, p, n, column);
    UNROLL for (int h = 0; h < VALUE_HEADS; h++)
        if (first + h < a.heads) {
            float4 four = {sum[h][0], sum[h][1], sum[h][2], sum[h][3]};
            *(float4 *)(void *)(a.values + ((pairs + h) * a.blocks + blockIdx.x) * a.columns + column) = four;
        }
}

/* ---- blocks joined ---- */

KERNEL(join_blocks)
{
    SHARED(float, e, JOINED);
    size_t pair = blockIdx.x, c = (size_t)blockIdx.y * JOINED + threadIdx.x,
           place = a.cache == CACHE_F32 ? chunk_place(c) : c;
    size_t blocks = (a.rows[pair / a.heads].length + BLOCK - 1) / BLOCK;
    const float *m = a.m + pair * a.blocks, *l = a.l + pair * a.blocks,
                *values = a.values + pair * a.blocks * a.columns + place;
    float M = m[0], L = 0.0f, o = 0.0f;
    for (size_t b = 1; b < blocks; b++)
        M = m[b] > M ? m[b] : M;
    for (size_t first = 0; first < blocks; first += JOINED) {
        size_t some = blocks - first < JOINED ? blocks - first : JOINED;
        __syncthreads(); /* the e before are not needed any more */
        if (threadIdx.x < some)
            e[threadIdx.x] = device_expf(m[first + threadIdx.x] - M);
        __syncthreads();
        for (size_t b = 0; b < some; b++) {
            L = fmaf(e[b], l[first + b], L);
            o = c < a.latent ? fmaf(e[b], values[(first + b) * a.columns], o) : 0.0f;
        }
    }
    o = o / L;
    o = a.rounds_o ? round_input(o) : o;
    if (c < a.columns)
        a.o[pair * a.columns + c] = c < a.latent ? o : 0.0f;
}
