#include "ops/cache_rows.h"

#include "ops/round.h"

#define E4M3_GROUP 128 /* numbers of a latent that share a scale */

_Static_assert((int)CACHE_F32 == (int)KV_F32 && (int)CACHE_BF16 == (int)KV_BF16 && (int)CACHE_Q8 == (int)KV_Q8,
               "kernels have the same cache types");

void op_scale_query(float *q, size_t n, float scale)
{
    for (size_t i = 0; i < n && scale != 1.0f; i++)
        q[i] *= scale;
}

static void on_device(struct device *g, float *q, float *kv_a, const float *cos_sin, const struct device_row *rows,
                      const struct cache_rows *a, size_t S)
{
    device_run(g, cache_rows, S, 1 + (a->heads + CACHE_ROWS_HEADS - 1) / CACHE_ROWS_HEADS, 1,
               .q = a->heads ? device_at(g, q) : NULL, .kv_a = device_at(g, kv_a), .cos_sin = device_at(g, cos_sin),
               .rows = device_at(g, rows), .layer = a->layer, .ldq = a->ldq, .heads = a->heads, .nope = a->nope,
               .rope = a->layout.rope, .latent = a->layout.latent, .row_bytes = kv_row_bytes(&a->layout),
               .rope_at = kv_rope_at(&a->layout), .interleave = a->rope->interleave, .cache = (int)a->layout.type,
               .round_latent = a->round_latent, .read_back = a->read_back);
}

void op_cache_rows(const struct op_ctx *cx, float *q, float *kv_a, const float *cos_sin, const struct device_row *rows,
                   const struct cache_rows *a, size_t S)
{
    size_t n = a->nope, r = a->layout.rope, latent = a->layout.latent;
    if (cx->device) {
        on_device(cx->device, q, kv_a, cos_sin, rows, a, S);
        return;
    }
    for (size_t s = 0; s < S; s++, q += a->ldq, kv_a += latent + r, cos_sin += r) {
        void *row = (char *)rows[s].rows + a->layer * rows[s].layer_bytes +
                    (size_t)rows[s].slot * kv_row_bytes(&a->layout);
        op_rope(q + n, a->heads, n + r, cos_sin, a->rope);
        op_rope(kv_a + latent, 1, r, cos_sin, a->rope);
        op_scale_query(q, a->heads * (n + r), rows[s].query_scale);
        for (size_t i = 0; a->round_latent && i < latent; i += E4M3_GROUP)
            op_round_e4m3(kv_a + i, latent - i < E4M3_GROUP ? latent - i : E4M3_GROUP);
        kv_row_write(cx->k, &a->layout, row, kv_a);
        if (a->read_back)
            kv_row_read(&a->layout, kv_a, row);
    }
}
