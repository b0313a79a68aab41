#include "ops/cache_rows.h"

#include "ops/round.h"

#define E4M3_GROUP 128 /* numbers of a latent that share a scale */

void op_scale_query(float *q, size_t n, float scale)
{
    for (size_t i = 0; i < n && scale != 1.0f; i++)
        q[i] *= scale;
}

void op_cache_rows(const struct op_ctx *cx, float *q, float *kv_a, const float *cos_sin, const struct row_place *rows,
                   const struct cache_rows *a, size_t S)
{
    size_t n = a->nope, r = a->layout.rope, latent = a->layout.latent;
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
