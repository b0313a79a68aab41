/* simd/index_tile.h -- index_loops.sums, for each vector instruction set (private to simd/).
 *
 * A file of an instruction set includes this header after it has defined
 *
 *     vec, LANES               a register of f32, and the number of its lanes
 *     VECTORS, HEADS           a tile is VECTORS registers of keys by HEADS heads, and its sums are in VECTORS * HEADS
 *                              registers
 *     vec_zero, vec_load, vec_store, vec_all (one number in all lanes), vec_add
 *     vec_fma(a, b, c)         a * b + c, rounded once
 *     vec_relu(x)              0 > x ? 0 : x, also for NaN and -0
 *     vec_term(k, q, a)        adds the products of one term to a: vec_fma, or two products of BF16 numbers */
#ifndef VB_INDEX_TILE_H
#define VB_INDEX_TILE_H

#include "simd/index_scores.h"

#define KEYS (VECTORS * LANES)
_Static_assert(KEYS <= INDEX_MOST_KEYS, "index_scores.h has too little room");

/* Computes the dots of the tile's keys and `heads` queries.
 *
 * The fold of rule 1 is a binary tree. From left to right, its leaves are the partial sums in the order of their
 * bit-reversed numbers (four bits), and they are computed in this order. level[b] holds the sum of a left branch with
 * 2^b leaves until the right branch is computed. */
ALWAYS_INLINE void dots_of_tile(vec dot[HEADS][VECTORS], int heads, const float *keys, const float *q, size_t terms)
{
    static const uint8_t leaves[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    vec level[5][HEADS][VECTORS];
    for (unsigned leaf = 0; leaf < 16; leaf++) {
        vec a[HEADS][VECTORS];
        unsigned b = 0;
        UNROLL
        for (int i = 0; i < heads * VECTORS; i++)
            a[i / VECTORS][i % VECTORS] = vec_zero();
        for (size_t term = leaves[leaf]; term < terms; term += 16) {
            vec k[VECTORS];
            UNROLL
            for (int v = 0; v < VECTORS; v++)
                k[v] = vec_load(keys + term * KEYS + (size_t)v * LANES);
            UNROLL
            for (int h = 0; h < heads; h++) {
                vec all = vec_all(q[(size_t)h * terms + term]);
                UNROLL
                for (int v = 0; v < VECTORS; v++)
                    a[h][v] = vec_term(k[v], all, a[h][v]);
            }
        }
        for (; leaf >> b & 1; b++) {
            UNROLL
            for (int i = 0; i < heads * VECTORS; i++)
                a[i / VECTORS][i % VECTORS] = vec_add(level[b][i / VECTORS][i % VECTORS], a[i / VECTORS][i % VECTORS]);
        }
        UNROLL
        for (int i = 0; i < heads * VECTORS; i++)
            level[b][i / VECTORS][i % VECTORS] = a[i / VECTORS][i % VECTORS];
    }
    UNROLL
    for (int i = 0; i < heads * VECTORS; i++)
        dot[i / VECTORS][i % VECTORS] = level[4][i / VECTORS][i % VECTORS];
}

ALWAYS_INLINE void add_heads(vec acc[VECTORS], int heads, const float *keys, const float *q, const float *w,
                             size_t terms)
{
    vec dot[HEADS][VECTORS];
    dots_of_tile(dot, heads, keys, q, terms);
    UNROLL
    for (int i = 0; i < heads * VECTORS; i++)
        acc[i % VECTORS] = vec_fma(vec_all(w[i / VECTORS]), vec_relu(dot[i / VECTORS][i % VECTORS]), acc[i % VECTORS]);
}

static void sums_of_tile(float *sums, const float *keys, const float *q, const float *w, size_t H, size_t terms)
{
    vec acc[VECTORS];
    size_t h = 0;
    UNROLL
    for (int v = 0; v < VECTORS; v++)
        acc[v] = vec_load(sums + v * LANES);
    for (; h + HEADS <= H; h += HEADS)
        add_heads(acc, HEADS, keys, q + h * terms, w + h, terms);
    for (; h < H; h++)
        add_heads(acc, 1, keys, q + h * terms, w + h, terms);
    UNROLL
    for (int v = 0; v < VECTORS; v++)
        vec_store(sums + v * LANES, acc[v]);
}

#endif
