#include "ops/embed.h"

#include "ops/linear_device.h"
#include "simd/decode.h"

void op_embed(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, const int32_t *tok, size_t S)
{
    struct device *g = cx->device;
    if (g) {
        device_run(g, embed, S, (w->cols + THREADS_embed - 1) / THREADS_embed, 1, .y = device_at(g, y),
                   .tok = device_at(g, tok), .ldy = ldy, .part = device_part(g, w, NULL, 0));
        return;
    }
    for (size_t s = 0; s < S; s++)
        decode_weights(y + s * ldy, w, (size_t)tok[s], 0, w->cols);
}
