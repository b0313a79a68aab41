/* ops/weights.h -- the size of weight matrices in bytes, and views of some of their rows. */
#ifndef VB_WEIGHTS_H
#define VB_WEIGHTS_H

#include "simd/quantised.h"

/* Bytes per weight, for types that are not quantised. */
static inline size_t weight_type_bytes(enum weight_type type)
{
    static const unsigned char bytes[WEIGHT_TYPES] = {4, 2, 2, 1};
    return bytes[type];
}

/* Returns the size of all rows in bytes. The padding of panels is included, but the scales of F8_E4M3 are not. */
static inline size_t weight_bytes(const struct weight_view *w)
{
    if (w->panels)
        return panels_bytes(w->type, w->rows, w->cols);
    if (weight_is_quantised(w->type))
        return w->rows * (w->cols / quantised_format(w->type)->numbers) * quantised_format(w->type)->bytes;
    return w->rows * w->cols * weight_type_bytes(w->type);
}

/* Returns a view of rows [first, first + count). No weight is copied. */
static inline struct weight_view weight_rows(const struct weight_view *w, size_t first, size_t count)
{
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
    part.data = (const char *)w->data + first * w->stride * weight_type_bytes(w->type);
    part.scale_row = w->scale_row + first;
    return part;
}

#endif
