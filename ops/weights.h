/* ops/weights.h -- a part of a weight matrix, seen as a matrix: rows [first, first + count). Nothing is copied. */
#ifndef VB_WEIGHTS_H
#define VB_WEIGHTS_H

#include "../simd/quantised.h"

static inline struct weight_view weight_rows(const struct weight_view *w, size_t first, size_t count)
{
    static const unsigned char bytes[WEIGHT_TYPES] = {4, 2, 2, 1};
    struct weight_view part = *w;
    part.rows = count;
    if (w->panels) {
        part.panel_row += first;
        return part;
    }
    if (weight_is_quantised(w->type)) {
        const struct quantised_format *f = quantised_format(w->type);
        part.data = (const char *)w->data + first * (w->stride / f->numbers) * f->bytes;
        return part;
    }
    part.data = (const char *)w->data + first * w->stride * bytes[w->type];
    part.scale_row = w->scale_row + first;
    return part;
}

#endif
