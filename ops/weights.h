/* ops/weights.h -- the size of weight matrices in bytes, names of their types, and views of some of their rows. */
#ifndef VB_WEIGHTS_H
#define VB_WEIGHTS_H

#include "simd/quantized.h"

/* Returns the name of a type as files have it, such as "BF16". */
static inline const char *weight_type_name(enum weight_type type)
{
    static const char *const names[WEIGHT_TYPES] = {"F32", "F16", "BF16", "F8_E4M3", "I4", "F4", "I8"};
    return weight_is_quantized(type) ? quantized_format(type)->name : names[type];
}

/* Returns the bytes of `count` weights, for types that are not quantized. For I4 and F4, `count` is even. */
static inline size_t weight_type_bytes(enum weight_type type, size_t count)
{
    static const unsigned char halves[WEIGHT_TYPES] = {8, 4, 4, 2, 1, 1, 2}; /* half bytes per weight */
    return count * halves[type] / 2;
}

/* Returns the size of all rows in bytes. The padding of panels is included, but the scales of F8_E4M3, I8, I4 and F4
 * are not. */
static inline size_t weight_bytes(const struct weight_view *w)
{
    if (w->panels)
        return panels_bytes(w->type, w->rows, w->cols);
    if (weight_is_quantized(w->type))
        return w->rows * (w->cols / quantized_format(w->type)->numbers) * quantized_format(w->type)->bytes;
    return weight_type_bytes(w->type, w->rows * w->cols);
}

/* Returns the size of the scales of I4 and F4 weights; 0 for other types. */
static inline size_t weight_group_scale_bytes(const struct weight_view *w)
{
    if (w->type == WEIGHT_I4)
        return w->rows * w->cols / QUANTIZED_GROUP * sizeof(uint16_t);
    return w->type == WEIGHT_F4 ? w->rows * w->cols / w->group_size : 0;
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
    if (weight_is_quantized(w->type)) {
        const struct quantized_format *f = quantized_format(w->type);
        part.data = (const char *)w->data + first * (w->stride / f->numbers) * f->bytes;
        return part;
    }
    part.data = (const char *)w->data + weight_type_bytes(w->type, first * w->stride);
    if (w->type == WEIGHT_I4)
        part.group_scale = (const char *)w->group_scale + first * (w->stride / 32) * sizeof(uint16_t);
    if (w->type == WEIGHT_F4)
        part.group_scale = (const char *)w->group_scale + first * (w->stride / w->group_size);
    part.scale_row = w->scale_row + first;
    return part;
}

#endif
