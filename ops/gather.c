#include "ops/gather.h"

#include <string.h>

static int has_scales(const struct weight_view *w) { return weight_is_byte(w->type) || weight_is_packed(w->type); }

/* Returns the matrix of the copy, without its data. */
static struct weight_view shape_of(const struct weight_view *w, size_t count)
{
    enum weight_type type = has_scales(w) ? WEIGHT_F32 : w->type;
    return (struct weight_view){.type = type, .rows = count, .cols = w->cols, .stride = w->cols, .panels = w->panels,
                                .tensor_scale = w->tensor_scale, .divides = w->divides};
}

size_t weight_gather_bytes(const struct weight_view *w, size_t count)
{
    struct weight_view copy = shape_of(w, count);
    return weight_bytes(&copy);
}

/* Copies the row in lane `from_lane` of a panel to lane `to_lane` of another. simd/quantized.h has the layout: in each
 * pair of groups, 2 x 16 scales of two bytes, or 16 of four, are followed by codes, of which every 64 bytes hold four
 * of each row. */
static void copy_lane(unsigned char *to, size_t to_lane, const unsigned char *from, size_t from_lane,
                      const struct weight_view *w)
{
    size_t pair = panel_pair_bytes(w->type), end = panel_bytes(w->type, w->cols),
           scale = panel_scale_step(w->type) ? 2 : 4;
    for (size_t at = 0; at < end; at += pair) {
        for (size_t scales = at; scales < at + 64; scales += scale * PANEL_ROWS)
            memcpy(to + scales + scale * to_lane, from + scales + scale * from_lane, scale);
        for (size_t codes = at + 64; codes < at + pair; codes += 4 * PANEL_ROWS)
            memcpy(to + codes + 4 * to_lane, from + codes + 4 * from_lane, 4);
    }
}

static void gather_panels(unsigned char *data, const struct weight_view *w, const int32_t *rows, size_t count,
                          size_t first)
{
    size_t bytes = panel_bytes(w->type, w->cols);
    memset(data, 0, panels_bytes(w->type, count, w->cols));
    for (size_t i = 0; i < count; i++) {
        size_t row = w->panel_row + (size_t)rows[i] - first;
        copy_lane(data + i / PANEL_ROWS * bytes, i % PANEL_ROWS,
                  (const unsigned char *)w->data + row / PANEL_ROWS * bytes, row % PANEL_ROWS, w);
    }
}

struct weight_view weight_gather(void *data, const struct weight_view *w, const int32_t *rows, size_t count,
                                 size_t first)
{
    struct weight_view copy = shape_of(w, count);
    size_t bytes = count ? weight_bytes(&copy) / count : 0;
    copy.data = data;
    if (w->panels) {
        gather_panels(data, w, rows, count, first);
        return copy;
    }
    for (size_t i = 0; i < count; i++) {
        char *to = (char *)data + i * bytes;
        size_t row = (size_t)rows[i] - first;
        if (has_scales(w))
            decode_weights((float *)(void *)to, w, row, 0, w->cols);
        else
            memcpy(to, weight_rows(w, row, 1).data, bytes);
    }
    return copy;
}
