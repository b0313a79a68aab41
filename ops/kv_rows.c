#include "ops/kv_rows.h"

#include <string.h>

#include "ops/round.h"
#include "simd/decode.h"

size_t kv_row_bytes(const struct kv_layout *l)
{
    return packed_length(l->latent + l->rope) * (l->type == KV_BF16 ? sizeof(uint16_t) : sizeof(float));
}

size_t kv_row_words(const struct kv_layout *l)
{
    size_t n = l->latent + l->rope;
    return l->type == KV_BF16 ? (n + 1) / 2 : n;
}

static void write_bf16(uint16_t *row, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += DOT_CHUNK) {
        float chunk[DOT_CHUNK] = {0};
        op_round_bf16(chunk, x + i,  n - i < DOT_CHUNK ? n - i : DOT_CHUNK);
        for (size_t l = 0; l < DOT_CHUNK; l++)
            row[i + l] = (uint16_t)(f32_to_bits(chunk[l]) >> 16);
    }
}

void kv_row_write(const struct kernels *k, const struct kv_layout *l, void *row, const float *x)
{
    if (l->type == KV_BF16)
        write_bf16(row, x, l->latent + l->rope);
    else
        k->pack(row, x, l->latent + l->rope);
}

/* Undoes kernel pack. */
static void unpack(float *x, const float *packed, size_t K)
{
    size_t k = 0;
    for (; k + DOT_CHUNK <= K; k += DOT_CHUNK)
        for (size_t l = 0; l < DOT_CHUNK / 2; l++) {
            x[k + 2 * l] = packed[k + DOT_CHUNK / 2 + l];
            x[k + 2 * l + 1] = packed[k + l];
        }
    for (size_t i = 0; k + i < K; i++)
        x[k + i] = packed[k + i / 2 + (i % 2 ? 0 : DOT_CHUNK / 2)];
}

static void read_bf16(float *x, const uint16_t *row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(row[i]);
}

void kv_row_read(const struct kv_layout *l, float *x, const void *row)
{
    if (l->type == KV_BF16)
        read_bf16(x, row, l->latent + l->rope);
    else
        unpack(x, row, l->latent + l->rope);
}

struct weight_view kv_rows_view(const struct kv_layout *l, const void *rows, size_t count)
{
    size_t width = packed_length(l->latent + l->rope);
    return (struct weight_view){.type = l->type == KV_BF16 ? WEIGHT_BF16 : WEIGHT_F32, .data = rows, .rows = count, .cols = width,
                                .stride = width, .packed = l->type == KV_F32};
}
