/* ops/cuda/indexer.cu -- the indexer of sparse attention (rule 9, ops/indexer.h): keys, queries, scores, and the
 * choice.
 *
 * index_keys, index_queries   A block of threads has one vector of at most 128 numbers, a number for each thread.
 * index_scores   A half warp has eight keys in registers. For two heads at once, it computes the sixteen dot products
 *                with them.
 * index_keep     A block of threads has one query. It finds the lowest rank that is kept, two bits at a time, and then
 *                writes the kept tokens in ascending order: each warp has a part of the tokens, and counts first how
 *                many of them are kept. */
#include "ops/cuda/dot.h"
#include "ops/cuda/rotate.h"
#include "ops/cuda/round.h"

constexpr unsigned KEYS = 8, HEADS = 2, CHUNKS = INDEX_MAX_DIM / DOT_CHUNK, WARPS = THREADS_index_keep / 32;

static_assert(THREADS_index_keys == INDEX_MAX_DIM && THREADS_index_queries == INDEX_MAX_DIM, "a thread has one number");
static_assert(KEYS * HEADS == 16, "a half warp folds sixteen products");
static_assert(INDEX_SCORE_TOKENS == THREADS_index_scores / 16 * KEYS, "a half warp has eight tokens");

DEVICE char *index_row(const struct row_place &r, size_t layer, size_t row_bytes, size_t slot)
{
    return r.index_rows + layer * r.index_layer_bytes + slot * row_bytes;
}

/* ---- keys and queries ---- */

/* x: D numbers that all threads of the block share; thread i has number i. */
DEVICE void hadamard(float *x, size_t D, float scale)
{
    size_t i = threadIdx.x;
    for (size_t n = 1; n < D; n *= 2) {
        float y = 0.0f;
        if (i < D)
            y = i & n ? x[i ^ n] - x[i] : x[i] + x[i ^ n];
        __syncthreads();
        if (i < D)
            x[i] = y;
        __syncthreads();
    }
    if (i < D)
        x[i] = x[i] * scale;
    __syncthreads();
}

/* Encodes D numbers as E4M3, as op_encode_e4m3 does. Thread i gets the code of number i, and every thread the scale.
 * most: [4], shared. */
DEVICE float encode(uint8_t *code, const float *x, size_t D, uint32_t *most)
{
    size_t i = threadIdx.x;
    uint32_t largest = bits_of_float(1e-4f);
    if (i < D && magnitude(x[i]) > largest)
        largest = magnitude(x[i]);
    largest = warp_most(largest);
    if (lane_of_warp() == 0)
        most[i / 32] = largest;
    __syncthreads();
    for (unsigned w = 0; w < INDEX_MAX_DIM / 32; w++)
        largest = most[w] > largest ? most[w] : largest;
    *code = 0x7f;
    if (largest >= NOT_FINITE)
        return 1.0f;
    float s = e4m3_scale(largest);
    if (i < D)
        *code = e4m3_code(x[i], s);
    return s;
}

/* Rotates the vector of this block's row, then does the Hadamard transform. */
DEVICE void rotate_and_transform(float *x, const struct index_vectors &v)
{
    size_t i = threadIdx.x;
    __syncthreads();
    if (i < v.rope / 2)
        rotate_pair(x, i, v.rope / 2, v.interleave, v.cos_sin + blockIdx.x * v.rope, 1.0f);
    __syncthreads();
    if (v.hadamard)
        hadamard(x, v.dim, v.of_dim);
}

KERNEL(index_keys)
{
    SHARED(float, x, INDEX_MAX_DIM);
    SHARED(float, ones, INDEX_MAX_DIM);
    SHARED(uint32_t, most, INDEX_MAX_DIM / 32);
    const struct index_vectors &v = a.vectors;
    const struct row_place &r = a.rows[blockIdx.x];
    size_t i = threadIdx.x, D = v.dim;
    char *row = index_row(r, a.layer, a.row_bytes, (size_t)r.slot);
    float mine = i < D ? a.k[blockIdx.x * D + i] : 0.0f;
    x[i] = mine;
    ones[i] = 1.0f;
    __syncthreads();
    mine = mine - dot_block(x, ones, 0, D) / (float)D;
    __syncthreads(); /* all have read x */
    x[i] = i < D ? mine : 0.0f;
    __syncthreads();
    float root = 1.0f / sqrtf(dot_block(x, x, 0, D) / (float)D + a.eps);
    __syncthreads();
    if (i < D)
        x[i] = mine * root * a.norm[i] + a.bias[i];
    rotate_and_transform(x, v);
    if (v.codes) {
        uint8_t code;
        float s = encode(&code, x, D, most);
        if (i < D)
            row[i] = (char)code;
        if (i == 0)
            *(float *)(void *)(row + D) = s;
    } else if (i < D) {
        ((float *)(void *)row)[i] = x[i];
    }
}

KERNEL(index_queries)
{
    SHARED(float, x, INDEX_MAX_DIM);
    SHARED(uint32_t, most, INDEX_MAX_DIM / 32);
    const struct index_vectors &v = a.vectors;
    size_t i = threadIdx.x, D = v.dim, number = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
    float *q = a.q + number * D, s = 1.0f;
    x[i] = i < D ? q[i] : 0.0f;
    rotate_and_transform(x, v);
    float mine = x[i];
    if (v.codes) {
        uint8_t code;
        s = encode(&code, x, D, most);
        mine = e4m3_to_float(code);
    }
    if (i < D)
        q[chunk_place(i)] = mine;
    if (i == 0) {
        float w = a.w[number] * a.of_heads;
        w = a.bf16_weights ? bf16_to_float(float_to_bf16(w)) : w;
        a.w[number] = w * s * v.of_dim;
    }
}

/* ---- scores ---- */

/* Whether row r has to choose. */
DEVICE int has_to_choose(const struct row_place &r, size_t kept) { return r.length > kept && !r.given; }

/* Reads a half warp's part of eight keys: numbers 2l + 1 and 2l of each chunk, for lane l. */
template <int CODES> DEVICE void read_keys(float (&key)[KEYS][2 * CHUNKS], const char *const (&row)[KEYS], size_t D)
{
    UNROLL for (unsigned j = 0; j < KEYS; j++)
        UNROLL for (unsigned c = 0; c < CHUNKS; c++) {
            size_t k = c * DOT_CHUNK + 2 * lane_of_sum();
            float odd = 0.0f, even = 0.0f;
            if (k < D && CODES) {
                uint32_t both = *(const uint16_t *)(const void *)(row[j] + k);
                odd = e4m3_to_float(both >> 8), even = e4m3_to_float(both & 255);
            } else if (k < D) {
                odd = ((const float *)(const void *)row[j])[k + 1], even = ((const float *)(const void *)row[j])[k];
            }
            key[j][2 * c] = odd, key[j][2 * c + 1] = even;
        }
}

DEVICE float relu(float x) { return 0.0f > x ? 0.0f : x; }

/* Returns the score of key lane % 8 before its scale. */
DEVICE float sum_of_heads(const struct index_choice_args &a, const float (&key)[KEYS][2 * CHUNKS], size_t query)
{
    float acc = 0.0f;
    for (size_t h = 0; h < a.heads; h += HEADS) {
        float sum[16] = {};
        UNROLL for (unsigned i = 0; i < HEADS; i++) {
            const float *q = a.q + (query * a.heads + (h + i < a.heads ? h + i : h)) * a.dim;
            UNROLL for (unsigned c = 0; c < CHUNKS; c++) {
                if (c * DOT_CHUNK < a.dim) {
                    float odd = q[c * DOT_CHUNK + lane_of_sum()],
                          even = q[c * DOT_CHUNK + DOT_CHUNK / 2 + lane_of_sum()];
                    UNROLL for (unsigned j = 0; j < KEYS; j++) {
                        float *s = &sum[i * KEYS + j];
                        *s = fmaf(key[j][2 * c], odd, *s);
                        *s = fmaf(key[j][2 * c + 1], even, *s);
                    }
                }
            }
        }
        float dot = fold_sixteen(sum), other = __shfl_xor_sync(ALL_LANES, dot, (int)KEYS);
        const float *w = a.w + query * a.heads + h;
        acc = fmaf(w[0], relu(lane_of_sum() < KEYS ? dot : other), acc);
        if (h + 1 < a.heads)
            acc = fmaf(w[1], relu(lane_of_sum() < KEYS ? other : dot), acc);
    }
    return acc;
}

KERNEL(index_scores)
{
    const struct row_place &r = a.rows[blockIdx.y];
    size_t first_of_warp = (size_t)blockIdx.x * INDEX_SCORE_TOKENS + threadIdx.x / 32 * 2 * KEYS,
           first = first_of_warp + threadIdx.x / 16 % 2 * KEYS;
    if (!has_to_choose(r, a.kept) || first_of_warp >= r.length) /* the halves of a warp stay together */
        return;
    const char *row[KEYS];
    float key[KEYS][2 * CHUNKS];
    UNROLL for (unsigned j = 0; j < KEYS; j++)
        row[j] = index_row(r, a.layer, a.row_bytes, (size_t)r.slots[first + j < r.length ? first + j : r.length - 1]);
    if (a.codes)
        read_keys<1>(key, row, a.dim);
    else
        read_keys<0>(key, row, a.dim);
    float acc = sum_of_heads(a, key, blockIdx.y);
    const char *mine = row[0];
    UNROLL for (unsigned j = 1; j < KEYS; j++)
        mine = lane_of_sum() == j ? row[j] : mine;
    if (lane_of_sum() < KEYS && first + lane_of_sum() < r.length)
        a.score[blockIdx.y * a.longest + first + lane_of_sum()] = (a.codes
                                                                       ? *(const float *)(const void *)(mine + a.dim)
                                                                       : 1.0f) *
                                                                  acc;
}

/* ---- the choice ---- */

DEVICE uint32_t rank_of(float score, int bf16) { return order_of(bf16 ? bf16_to_float(float_to_bf16(score)) : score); }

/* Adds up N numbers of all threads of a block. Every thread gets the sums. parts: [WARPS, N], shared. */
template <int N> DEVICE void add_threads(unsigned (&count)[N], unsigned *parts)
{
    __syncthreads(); /* the parts before are not needed any more */
    UNROLL for (int i = 0; i < N; i++) {
        for (int h = 16; h; h /= 2)
            count[i] += __shfl_xor_sync(ALL_LANES, count[i], h);
        if (lane_of_warp() == 0)
            parts[threadIdx.x / 32 * N + i] = count[i];
    }
    __syncthreads();
    UNROLL for (int i = 0; i < N; i++) {
        count[i] = 0;
        for (unsigned w = 0; w < WARPS; w++)
            count[i] += parts[w * N + i];
    }
}

/* Returns the largest number that at least `wanted` ranks are not below. */
DEVICE uint32_t find_rank(const float *score, unsigned n, unsigned wanted, int bf16, unsigned *parts)
{
    uint32_t least = 0;
    for (int bit = 30; bit >= 0; bit -= 2) {
        unsigned count[3] = {};
        for (unsigned t = threadIdx.x; t < n; t += THREADS_index_keep) {
            uint32_t rank = rank_of(score[t], bf16);
            UNROLL for (uint32_t i = 0; i < 3; i++)
                count[i] += rank >= (least | (i + 1) << bit);
        }
        add_threads(count, parts);
        least |= (uint32_t)((count[0] >= wanted) + (count[1] >= wanted) + (count[2] >= wanted)) << bit;
    }
    return least;
}

/* Adds up the numbers of this and of all lower lanes of a warp. */
DEVICE unsigned add_lower_lanes(unsigned x)
{
    for (unsigned h = 1; h < 32; h *= 2) {
        unsigned lane = lane_of_warp(), other = __shfl_sync(ALL_LANES, x, (int)(lane < h ? lane : lane - h));
        x += lane < h ? 0 : other;
    }
    return x;
}

KERNEL(index_keep)
{
    SHARED(unsigned, parts, 3 * WARPS);
    SHARED(unsigned, of_warp, 2 * WARPS); /* how many ranks of each warp's tokens are above `least`, and equal to it */
    const struct row_place &r = a.rows[blockIdx.x];
    if (!has_to_choose(r, a.kept))
        return;
    const float *score = a.score + blockIdx.x * a.longest;
    unsigned n = r.length, wanted = (unsigned)a.kept, warp = threadIdx.x / 32,
             size = (n + 32 * WARPS - 1) / (32 * WARPS) * 32;
    unsigned begin = warp * size < n ? warp * size : n, end = begin + size < n ? begin + size : n;
    uint32_t least = find_rank(score, n, wanted, a.bf16_scores, parts);
    unsigned count[2] = {};
    for (unsigned t = begin + lane_of_warp(); t < end; t += 32) {
        uint32_t rank = rank_of(score[t], a.bf16_scores);
        count[0] += rank > least;
        count[1] += rank == least;
    }
    for (int i = 0; i < 2; i++) {
        for (int h = 16; h; h /= 2)
            count[i] += __shfl_xor_sync(ALL_LANES, count[i], h);
        if (lane_of_warp() == 0)
            of_warp[2 * warp + i] = count[i];
    }
    __syncthreads();
    unsigned above = 0, equal = 0, all_above = 0, all_equal = 0; /* above, equal: before the present token */
    for (unsigned w = 0; w < WARPS; w++) {
        above += w < warp ? of_warp[2 * w] : 0;
        equal += w < warp ? of_warp[2 * w + 1] : 0;
        all_above += of_warp[2 * w];
        all_equal += of_warp[2 * w + 1];
    }
    /* equal ones [first, first + kept_equal) are kept */
    unsigned kept_equal = wanted - all_above, first = a.highest ? all_equal - kept_equal : 0;
    for (unsigned t = begin; t < end; t += 32) { /* the lanes of a warp stay together */
        unsigned mine = t + lane_of_warp();
        uint32_t rank = mine < end ? rank_of(score[mine], a.bf16_scores) : 0;
        int is_above = mine < end && rank > least, is_equal = mine < end && rank == least;
        unsigned upto_above = add_lower_lanes(is_above), upto_equal = add_lower_lanes(is_equal);
        unsigned i = equal + upto_equal - is_equal, before = i < first ? 0
                                                             : i - first < kept_equal ? i - first
                                                             : kept_equal;
        if (is_above || (is_equal && i >= first && i - first < kept_equal))
            a.slots[blockIdx.x * a.kept + above + upto_above - is_above + before] = r.slots[mine];
        above += __shfl_sync(ALL_LANES, upto_above, 31);
        equal += __shfl_sync(ALL_LANES, upto_equal, 31);
    }
}
