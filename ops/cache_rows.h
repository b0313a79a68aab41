/* ops/cache_rows.h -- rotates the queries of a pass, and writes its latents and keys to the KV cache of MLA.
 *
 * For each row s, in this order:
 *
 *     the rope part of each head of q, and the rope part of kv_a, are rotated (ops/rope.h)
 *     all numbers of q are multiplied by query_scale of the row, unless it is 1
 *     if round_latent is set, the latent is rounded to E4M3 in groups of 128 (op_round_e4m3)
 *     kv_a [c+r] is written to the row's place in the cache, in the form of the cache (ops/kv_rows.h)
 *     if read_back is set, kv_a becomes the numbers that the cache now holds
 *
 * The letters n, r and c are those of docs/SEMANTICS.md. There is no sum. Each product is rounded once. */
#ifndef VB_CACHE_ROWS_H
#define VB_CACHE_ROWS_H

#include "ops/kv_rows.h"
#include "ops/op.h"
#include "ops/rope.h"
#include "ops/row_place.h"

struct cache_rows {
    size_t heads, ldq, nope; /* q has `heads` heads of n + r numbers in each row; its rows are ldq numbers apart */
    const struct rope *rope;
    struct kv_layout layout; /* with the sizes c and r */
    size_t layer;            /* the layer's number in the cache */
    int round_latent, read_back;
};

/* Changes q [S, heads, n+r] and kv_a [S, c+r], and writes S cache rows. cos_sin [S, r] has the angles of each row
 * (op_rope_angles). Of rows [S], it reads rows, layer_bytes, slot and query_scale. */
void op_cache_rows(const struct op_ctx *cx, float *q, float *kv_a, const float *cos_sin, const struct row_place *rows,
                   const struct cache_rows *a, size_t S);

/* Multiplies n numbers of a query by query_scale, unless it is 1. */
void op_scale_query(float *q, size_t n, float scale);

#endif
