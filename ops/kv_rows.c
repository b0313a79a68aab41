#include "ops/kv_rows.h"

#include <string.h>

#include "ops/round.h"
#include "simd/decode.h"

#define GROUP_BYTES 36 /* of a group of type CACHE_Q8 */

size_t kv_rope_at(const struct kv_layout *l) { return l->latent / QUANTIZED_GROUP * GROUP_BYTES; }

size_t kv_row_bytes(const struct kv_layout *l)
{
    if (l->type == KV_Q8) /* whole groups, so that a view of the latents can have a stride */
        return (kv_rope_at(l) + l->rope * sizeof(uint16_t) + GROUP_BYTES - 1) / GROUP_BYTES * GROUP_BYTES;
    return packed_length(l->latent + l->rope) * (l->type == KV_BF16 ? sizeof(uint16_t) : sizeof(float));
}

size_t kv_row_words(const struct kv_layout *l)
{
    size_t n = l->latent + l->rope;
    return l->type == KV_Q8 ? (kv_rope_at(l) + l->rope * sizeof(uint16_t) + 3) / 4
           : l->type == KV_BF16 ? (n + 1) / 2
           : n;
}

/* Writes n numbers, and then zeros up to the end of a row of `room` numbers. */
static void write_bf16(uint16_t *row, const float *x, size_t n, size_t room)
{
    for (size_t i = 0; i < n; i += DOT_CHUNK) {
        float chunk[DOT_CHUNK];
        size_t count = n - i < DOT_CHUNK ? n - i : DOT_CHUNK;
        op_round_bf16(chunk, x + i, count);
        for (size_t l = 0; l < count; l++)
            row[i + l] = (uint16_t)(f32_to_bits(chunk[l]) >> 16);
    }
    memset(row + n, 0, (room - n) * sizeof *row);
}

static void write_groups(const struct kernels *k, char *row, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += QUANTIZED_GROUP, row += GROUP_BYTES) {
        float packed[QUANTIZED_GROUP];
        struct quantized_group group;
        k->pack(packed, x + i, QUANTIZED_GROUP);
        k->quantize(&group, packed, QUANTIZED_GROUP);
        memcpy(row, &group.d, sizeof group.d);
        memcpy(row + sizeof group.d, group.q, sizeof group.q);
    }
}

void kv_row_write(const struct kernels *k, const struct kv_layout *l, void *row, const float *x)
{
    if (l->type == KV_Q8) {
        write_groups(k, row, x, l->latent);
        write_bf16((uint16_t *)(void *)((char *)row + kv_rope_at(l)), x + l->latent, l->rope,
                   (kv_row_bytes(l) - kv_rope_at(l)) / sizeof(uint16_t));
    } else if (l->type == KV_BF16)
        write_bf16(row, x, l->latent + l->rope, packed_length(l->latent + l->rope));
    else
        k->pack(row, x, l->latent + l->rope);
}

/* Undoes kernel pack. */
static void unpack(float *x, const float *packed, size_t K)
{
    for (size_t k = 0; k < K; k++)
        x[k] = packed[packed_place(k)];
}

static void read_bf16(float *x, const uint16_t *row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(row[i]);
}

void kv_row_read(const struct kv_layout *l, float *x, const void *row)
{
    if (l->type == KV_Q8) {
        struct weight_view latent = kv_rows_view(l, row, 1);
        decode_weights(x, &latent, 0, 0, l->latent);
        read_bf16(x + l->latent, (const uint16_t *)(const void *)((const char *)row + kv_rope_at(l)), l->rope);
    } else if (l->type == KV_BF16)
        read_bf16(x, row, l->latent + l->rope);
    else
        unpack(x, row, l->latent + l->rope);
}

struct weight_view kv_rows_view(const struct kv_layout *l, const void *rows, size_t count)
{
    size_t width = packed_length(l->latent + l->rope);
    if (l->type == KV_Q8)
        return (struct weight_view){.type = WEIGHT_CACHE_Q8, .data = rows, .rows = count, .cols = l->latent,
                                    .stride = kv_row_bytes(l) / GROUP_BYTES * QUANTIZED_GROUP};
    return (struct weight_view){.type = l->type == KV_BF16 ? WEIGHT_BF16 : WEIGHT_F32, .data = rows, .rows = count,
                                .cols = width, .stride = width, .packed = l->type == KV_F32};
}

struct weight_view kv_rope_view(const struct kv_layout *l, const void *rows, size_t count)
{
    return (struct weight_view){.type = WEIGHT_BF16, .data = (const char *)rows + kv_rope_at(l), .rows = count,
                                .cols = l->rope, .stride = kv_row_bytes(l) / sizeof(uint16_t)};
}
