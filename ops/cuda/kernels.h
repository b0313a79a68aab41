/* ops/cuda/kernels.h -- the kernels of a device: their names, their threads, and their arguments.
 *
 * A device is a GPU with memory of its own (ops/cuda/device.h). A kernel is a function that many threads compute
 * together. Its threads form blocks, and 32 consecutive threads of a block are a warp. The code of kernel NAME is in a
 * file ops/cuda/X.cu. It gets one argument, a struct NAME_args by value. Every pointer in this struct is an address of
 * the device.
 *
 * The kernels obey the rules of docs/ARITHMETIC.md, so their results have the bits of the kernels in simd/. */
#ifndef VB_CUDA_KERNELS_H
#define VB_CUDA_KERNELS_H

#include "ops/row_place.h"
#include "simd/kernels.h"

#ifdef __cplusplus
#define VB_CUDA_ASSERT static_assert
#else
#define VB_CUDA_ASSERT _Static_assert
#endif

/* X(name, threads in a block) for every kernel. `threads` is a multiple of 32. */
#define DEVICE_KERNELS(X) \
    X(rmsnorm, 128)       \
    X(add, 256)           \
    X(exp_of_bits, 256)   \
    X(round_x, 256)       \
    X(linear1, 256)       \
    X(linear2, 256)       \
    X(linear4, 256)       \
    X(linear8, 256)       \
    X(cache_rows, 128)    \
    X(router, 128)        \
    X(first_not_finite, 128) \
    X(absorb, 128)        \
    X(quantize_queries, 128) \
    X(attention_scores, 128) \
    X(attention_values, 128) \
    X(join_blocks, 128)   \
    X(quantize, 256)      \
    X(quantized1, 128)    \
    X(quantized2, 128)    \
    X(quantized4, 128)    \
    X(integer8, 128)      \
    X(integer32, 128)     \
    X(tensor8, 256)       \
    X(tensor16, 256)      \
    X(tensor64, 256)      \
    X(silu_mul, 256)      \
    X(group_experts, 256) \
    X(sum_experts, 256)   \
    X(embed, 256)         \
    X(best_of_rows, 256) \
    X(narrow, 256)        \
    X(index_keys, 128)    \
    X(index_queries, 128) \
    X(index_scores, 128)  \
    X(index_keep, 512)

enum device_kernel {
#define X(name, threads) KERNEL_##name,
    DEVICE_KERNELS(X)
#undef X
    KERNEL_COUNT
};

/* THREADS_name: the number of threads in each block of a kernel */
enum {
#define X(name, threads) THREADS_##name = (threads),
    DEVICE_KERNELS(X)
#undef X
};

/* The type of cache rows, with the values of enum kv_type (ops/kv_rows.h) */
enum device_cache { CACHE_F32, CACHE_BF16, CACHE_Q8 };

/* y[s*ldy + i] = x[s*ldx + i] * r * w[i], by rule 3. One block for each of S rows. */
struct rmsnorm_args {
    float *y;
    const float *x, *w;
    size_t ldy, ldx, D;
    float eps;
};

/* y[i] = y[i] + x[i] for i < n. One thread for each number. */
struct add_args {
    float *y;
    const float *x;
    size_t n;
};

/* y[i] = exp(x), by rule 5, for i < n. The bits of x are first + i * step. Any number of blocks. */
struct exp_of_bits_args {
    float *y;
    uint32_t first, step;
    size_t n;
};

/* y[s*K + k] = x[s*ldx + k] rounded as op_round_x does, for k < K; as op_round_bf16 does, if keeps_tiny is set. One
 * thread for each number of a row, by blocks for each row. y may be x if ldx is K. */
struct round_x_args {
    float *y;
    const float *x;
    size_t ldx, K;
    int keeps_tiny;
};

/* y[i*ldy + k] is number k of a row of w, rounded to BF16 (nearest, ties to even), for k < w.cols: of row rows[i], or
 * first + i if `rows` is NULL. w is not quantized. y is a multiple of 16 bytes, ldy of 8 numbers; what is between the
 * rows of y becomes undefined. Grid: the rows of y; the blocks for a row, each thread with NARROW_COLUMNS numbers. */
#define NARROW_COLUMNS 4
struct narrow_args {
    uint16_t *y;
    size_t ldy, first;
    const int32_t *rows;
    struct weight_view w;
};

/* Kernel `quantize` of rule 2: row s of x has `heads` parts of K numbers, x_step numbers apart; y [S, heads, K/32] has
 * their groups. A warp for each group. Grid: S * heads, which may be large; the blocks for a part. */
struct quantize_args {
    struct quantized_group *y;
    const float *x;
    size_t ldx, K, heads, x_step;
};

/* A matrix that multiplies rows of x: y[s*ldy + n] = dot(row n of w, x[s]). The pointers in w are addresses of the
 * device. A warp computes a block of rule 1 or 2 (1024 columns) of a group of rows; a block of threads computes `side`
 * groups. If `side` is not 1, there is a warp for each block of each group. */
struct matmul_part {
    struct weight_view w;
    const char *experts; /* with matmul_args.tiles: the struct weight_view of expert 0, on the device. All experts have
                            the shape and the type of w */
    float *y;
    size_t ldy;
    unsigned side;
    struct { /* for quantized weights */
        unsigned numbers, bytes; /* of a block of the format */
        int halves, minimums;    /* as in struct quantized_format */
        const void *grid;        /* types IQ1 to IQ3: their grid (simd/grids.h) */
    } format;
};

/* Rows [first, first + count) of an expert; count may be 0. */
struct expert_tile {
    int32_t expert, first, count;
};

/* Kernels linear1, linear2, linear4 and linear8 (rule 1), quantized1, quantized2, quantized4, integer8 and integer32
 * (rule 2), and tensor8, tensor16 and tensor64 (tensor cores, ops/cuda/tensor.cu) multiply matrices by tiles of T rows
 * of x, which is the number in their names. Grid: the blocks that the largest matrix needs; ceil(S / T), or the number
 * of tiles; the number of matrices. */
#define MATMUL_PARTS 4
#define LINEAR_ROWS(T) ((T) < 4 ? 1 : (T) < 8 ? 2 : 4) /* rule 1: rows of w that each thread works on; a group has 4
                                                          times as many */
#define QUANTIZED_ROWS 8                 /* rule 2: rows in a group */
#define TENSOR_ROWS 16                   /* tensor cores, also with rule 2: rows in a group */
struct matmul_args {
    struct matmul_part part[MATMUL_PARTS];
    const float *x;                       /* rule 1 */
    const struct quantized_group *groups; /* rule 2 */
    const uint16_t *narrow;               /* tensor cores: x in BF16, rows a multiple of 8 numbers apart. What is behind
                                             column K is undefined */
    size_t ldx, S;                        /* ldx: numbers or groups from one row of x to the next */
    /* 0: `part` has gridDim.z matrices. Else part[0] is the matrix of head 0, and the one of head h = blockIdx.z begins
     * h * w_step rows later; its x begins h * x_step numbers later, and its y h * y_step numbers. Not with tensor
     * cores */
    size_t heads, w_step, x_step, y_step;
    /* NULL, or a list in which tile blockIdx.y says which rows of x and y are multiplied by the matrices of which
     * expert. Row p of y then belongs to row x_row[p] of x, or to row p if x_row is NULL. The matrix of expert e is at
     * part.experts + e * expert_step */
    const struct expert_tile *tiles;
    const int32_t *x_row;
    size_t expert_step;
};
#define linear1_args matmul_args
#define linear2_args matmul_args
#define linear4_args matmul_args
#define linear8_args matmul_args
#define quantized1_args matmul_args
#define quantized2_args matmul_args
#define quantized4_args matmul_args
#define integer8_args matmul_args
#define integer32_args matmul_args
#define tensor8_args matmul_args
#define tensor16_args matmul_args
#define tensor64_args matmul_args

/* y[s*ldy + i] = W[tok[s], i], as ops/embed.h defines it. A thread for each number of a row. Grid: S; the blocks for a
 * row. */
struct embed_args {
    float *y;
    const int32_t *tok;
    size_t ldy;
    struct matmul_part part; /* w and format only */
};

/* h[i] = silu(h[i]) * u[i] by rule 5 for i < n; then rounded as op_round_x does if `round` is set. One thread for each
 * number. */
struct silu_mul_args {
    float *h;
    const float *u;
    size_t n;
    int round;
};

/* Sorts (token, expert) pairs by expert, then token. expert [pairs] has the experts of each token, `chosen` of them.
 * Pair i becomes number place[i] of the sorted list, and token[place[i]] is its token. The list is cut into tiles of
 * one expert and at most `rows` pairs; tiles that are not needed have count 0. One block. */
struct group_experts_args {
    const int32_t *expert;
    int32_t *place, *token;
    struct expert_tile *tile;
    unsigned pairs, chosen, experts, rows, tiles;
};

/* The sum of rule 7: y [S, d]. Row place[i] of `out` belongs to pair i, or row i if place is NULL. `shared` may be
 * NULL. A thread for each number of a row. Grid: S; the blocks for a row. */
struct sum_experts_args {
    float *y;
    const float *out, *weight, *shared;
    const int32_t *place;
    size_t chosen, d;
};

/* ops/cache_rows.h. Blocks [S, 1 + heads / CACHE_ROWS_HEADS, rounded up]: block (s, 0) writes the cache row, the others
 * rotate queries. */
#define CACHE_ROWS_HEADS 8
struct cache_rows_args {
    float *q, *kv_a;
    const float *cos_sin; /* [S, rope] */
    const struct row_place *rows;
    size_t layer, ldq, heads, nope, rope, latent;
    size_t row_bytes, rope_at; /* rope_at: where the rope part of a row of type q8 begins, in bytes */
    int interleave, cache /* enum device_cache */, round_latent, read_back;
};

/* ops/router.h. One block for each of S rows. kept_groups is 0 if there are no groups, or all are kept. */
#define ROUTER_MOST_EXPERTS 2048
#define ROUTER_MOST_CHOSEN 64
struct router_args {
    int32_t *expert;
    float *weight;
    const float *logits, *bias;
    unsigned experts, chosen, groups, kept_groups;
    int sigmoid, group_sum_of_two, mask_with_zero, norm_topk_prob, scaled, normaliser, bf16;
    float factor;
};

/* ops/finite.h. One block for each of S rows. */
struct first_not_finite_args {
    int32_t *first;
    const float *x;
    size_t D;
    int32_t layer;
};

/* ops/argmax.h, for candidates 0 .. count - 1 of each row: candidate i of row s is number i of the row or, with
 * `places` [S, count], number places[s, i]; -1 there means a number that is not finite. Grid: S, then the parts of a
 * row; a part has `part` candidates, the last may have fewer. best is [S, parts]. */
struct best_of_rows_args {
    int32_t *best;
    const float *z; /* [S, V] */
    size_t V;
    const int32_t *places;
    size_t count, part;
};

/* ops/attention.h: the steps of rule 4, for S queries. `width` is chunks_length(latent + rope), and `columns`
 * chunks_length(latent). Numbers in packed order are in the order of packed_place. */
struct attention_args {
    const float *q;                       /* [S], ldq numbers apart: heads of n + r numbers */
    struct weight_view w_uk;              /* rows h * uk_stride + n; not used if it is quantized */
    const struct row_place *rows;        /* [S] */
    float *query;                         /* [S, heads, width] = [q_abs | q_rope] in packed order */
    struct quantized_group *query_groups; /* [S, heads, latent / 32]: q_abs, with cache type q8; only d and q are set */
    float *score;                         /* [S, heads, blocks * 256]: s_j */
    float *m, *l;                         /* [S, heads, blocks]: m_b, l_b */
    float *values;                        /* [S, heads, blocks, columns]: o_b, in the order of the cache rows */
    float *o;                             /* [S, heads, columns] in natural order, padded with +0 */
    size_t S, ldq, heads, nope, rope, latent, width, columns, blocks, uk_stride, layer, row_bytes, rope_at;
    float scale;
    int cache;              /* enum device_cache */
    int rounds_q, rounds_o; /* nonzero: q_nope or o is rounded as the input of a linear layer in precision bf16 */
};
/* absorb: q_abs (unless W_uk is quantized: then it is in `query` already, in natural order) and q_rope. Blocks: columns
 * / 512; heads; S / ABSORB_ROWS. quantize_queries: a warp for each group. attention_scores: blocks * 256 /
 * SCORE_TOKENS; heads / SCORE_HEADS; S. attention_values: blocks; heads / VALUE_HEADS times columns / 512; S.
 * join_blocks: S * heads; columns / 128. All are rounded up. */
#define ABSORB_ROWS 4
#define SCORE_TOKENS 32
#define SCORE_HEADS 16
#define VALUE_HEADS 8
#define VALUE_COLUMNS 512 /* of a block of threads */
#define absorb_args attention_args
#define quantize_queries_args attention_args
#define attention_scores_args attention_args
#define attention_values_args attention_args
#define join_blocks_args attention_args

/* The kernels of sparse attention (ops/indexer.h). A vector is the key of a token, or the query of one head. RoPE
 * rotates its first `rope` numbers; `interleave` says which of them form pairs, as in ops/rope.h. */
struct index_vectors {
    const float *cos_sin;  /* [S, rope] */
    size_t dim, rope;      /* dim: at most INDEX_MAX_DIM, a multiple of DOT_CHUNK */
    int interleave, hadamard, codes;
    float of_dim;          /* dim^-1/2 */
};
/* The key of each of S rows is normalised, rotated, and written to the index cache of layer `layer`. One block for each
 * row. */
struct index_keys_args {
    const float *k, *norm, *bias; /* [S, dim], [dim], [dim] */
    const struct row_place *rows;
    struct index_vectors vectors;
    size_t layer, row_bytes;
    float eps;
};
/* op_index_queries, after RoPE. Grid: S; the heads. */
struct index_queries_args {
    float *q, *w; /* [S, heads, dim], [S, heads] */
    struct index_vectors vectors;
    float of_heads; /* heads^-1/2 */
    int bf16_weights;
};
/* Rows that see no more than `kept` tokens, and rows whose tokens are given, are left out. index_scores: the scores of
 * all tokens that a row sees. Grid: longest / INDEX_SCORE_TOKENS; S. index_keep: the slots of the tokens that are kept,
 * ascending by token. One block for each row. */
#define INDEX_SCORE_TOKENS 64
struct index_choice_args {
    const float *q, *w;    /* as index_queries computed them */
    const struct row_place *rows;
    float *score;          /* [S, longest] */
    int32_t *slots;        /* [S, kept] */
    size_t heads, dim, kept, longest, layer, row_bytes;
    int codes, bf16_scores, highest;
};
#define index_scores_args index_choice_args
#define index_keep_args index_choice_args

#endif
