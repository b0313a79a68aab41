/* ops/cuda/cache_rows.cu -- the queries of a pass are rotated, and its latents and keys are written to the cache
 * (ops/cache_rows.h). */
#include "ops/cuda/dot.h"
#include "ops/cuda/rotate.h"
#include "ops/cuda/round.h"

DEVICE void rotate_queries(const struct cache_rows_args &a, float scale)
{
    size_t width = a.nope + a.rope, half = a.rope / 2, first = (blockIdx.y - 1) * CACHE_ROWS_HEADS;
    size_t heads = a.heads - first < CACHE_ROWS_HEADS ? a.heads - first : CACHE_ROWS_HEADS;
    float *q = a.q + blockIdx.x * a.ldq + first * width;
    for (size_t i = threadIdx.x; i < heads * half; i += THREADS_cache_rows)
        rotate_pair(q + i / half * width + a.nope, i % half, half, a.interleave, a.cos_sin + blockIdx.x * a.rope,
                    scale);
    for (size_t i = threadIdx.x; i < heads * a.nope && scale != 1.0f; i += THREADS_cache_rows)
        q[i / a.nope * width + i % a.nope] *= scale;
}

/* Rounds x to E4M3 and back, 128 numbers at once (op_round_e4m3). A warp has 128 numbers. */
DEVICE void round_to_e4m3(float *x, size_t n)
{
    const size_t GROUP = 128;
    for (size_t g = threadIdx.x / 32 * GROUP; g < n; g += THREADS_cache_rows / 32 * GROUP) {
        size_t end = g + GROUP < n ? g + GROUP : n;
        uint32_t most = bits_of_float(1e-4f);
        for (size_t i = g + lane_of_warp(); i < end; i += 32)
            most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
        most = warp_most(most);
        float s = e4m3_scale(most);
        for (size_t i = g + lane_of_warp(); i < end; i += 32)
            x[i] = most >= NOT_FINITE ? float_of_bits(0x7fc00000) : e4m3_to_float(e4m3_code(x[i], s)) * s;
    }
}

/* Rounds n numbers to BF16, and writes zeros behind them up to `room` numbers. Then x is what was written. */
DEVICE void write_bf16(uint16_t *row, float *x, size_t n, size_t room, int read_back)
{
    for (size_t i = threadIdx.x; i < room; i += THREADS_cache_rows) {
        row[i] = i < n ? float_to_bf16(x[i]) : 0;
        if (read_back && i < n)
            x[i] = bf16_to_float(row[i]);
    }
}

/* A warp has a group of 32 numbers: 4 bytes d, 32 bytes q. */
DEVICE void write_groups(char *row, float *x, size_t n, int read_back)
{
    for (size_t g = threadIdx.x / 32; g < n / QUANTIZED_GROUP; g += THREADS_cache_rows / 32) {
        size_t i = g * QUANTIZED_GROUP + lane_of_warp();
        float d;
        int q = quantize_lane(x[i], &d);
        char *group = row + g * (sizeof d + QUANTIZED_GROUP);
        if (lane_of_warp() == 0)
            *(float *)(void *)group = d;
        group[sizeof d + lane_of_warp()] = (char)q;
        if (read_back)
            x[i] = d * (float)q;
    }
}

DEVICE void write_row(const struct cache_rows_args &a, float *x)
{
    const struct row_place *r = a.rows + blockIdx.x;
    char *row = (char *)r->rows + a.layer * r->layer_bytes + (size_t)r->slot * a.row_bytes;
    size_t n = a.latent + a.rope;
    if (a.cache == CACHE_Q8) {
        write_groups(row, x, a.latent, a.read_back);
        write_bf16((uint16_t *)(void *)(row + a.rope_at), x + a.latent, a.rope,
                   (a.row_bytes - a.rope_at) / sizeof(uint16_t), a.read_back);
    } else if (a.cache == CACHE_BF16) {
        write_bf16((uint16_t *)(void *)row, x, n, a.row_bytes / sizeof(uint16_t), a.read_back);
    } else {
        for (size_t i = threadIdx.x; i < chunks_length(n); i += THREADS_cache_rows)
            ((float *)(void *)row)[chunk_place(i)] = i < n ? x[i] : 0.0f;
    }
}

KERNEL(cache_rows)
{
    if (blockIdx.y) {
        rotate_queries(a, a.rows[blockIdx.x].query_scale);
        return;
    }
    float *x = a.kv_a + blockIdx.x * (a.latent + a.rope);
    for (size_t i = threadIdx.x; i < a.rope / 2; i += THREADS_cache_rows)
        rotate_pair(x + a.latent, i, a.rope / 2, a.interleave, a.cos_sin + blockIdx.x * a.rope, 1.0f);
    if (a.round_latent)
        round_to_e4m3(x, a.latent);
    __syncthreads();
    write_row(a, x);
}
