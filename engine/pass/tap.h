/* engine/pass/tap.h -- reports named intermediate values to a callback when they are computed (vb_tap in
 * engine/verbatim.h).
 *
 * Without a callback, each value costs one branch. */
#ifndef VB_TAP_H
#define VB_TAP_H

#include "engine/pass/forward.h"

struct tapper {
    struct op_probe probe; /* receives intermediate values from operators. It is the first member, so it has the same
                              address as the tapper */
    vb_tap_callback callback;
    void *context;
    const struct row *rows; /* the rows of the pass */
    vb_tap_row *told;       /* [max_rows]: the rows in the form in which the callback receives them */
    size_t count;
    uint64_t pass;
    int32_t layer, depth;   /* as in vb_tap */
    const char *operator;   /* prefix for the names of an operator's intermediate values, such as "mlp.gate." */
};

/* Returns NULL if there is no memory. */
struct tapper *tapper_open(vb_tap_callback callback, void *context, int scores, size_t max_rows, const vb_allocator *a);
void tapper_close(struct tapper *t, const vb_allocator *a);

/* Begins a pass of the target (depth -1) or of the MTP module at depth `depth` (0 or more). */
void tapper_pass(struct tapper *t, const struct row *rows, size_t S, int depth);

/* Reports rows [first, first + count) of the pass to the callback. A row has `width` numbers, and each row begins
 * `stride` numbers after the previous one. The prefix "model.layers.<layer>." is put before `name`, unless the layer is
 * -1. */
void tapper_tell(struct tapper *t, const char *name, size_t first, size_t count, const void *data, int integers,
                 size_t width, size_t stride);
/* Does what tapper_tell does, for rows that are matrices [outer, inner] of floats. */
void tapper_tell_matrix(struct tapper *t, const char *name, size_t first, size_t count, const float *data, size_t outer,
                        size_t inner, size_t stride, size_t outer_stride);

static inline void tap_layer(const struct workspace *w, int32_t layer)
{
    if (w->tapper)
        w->tapper->layer = layer;
}

/* Reports all rows of the pass to the callback. The rows are contiguous. */
static inline void tap(const struct workspace *w, const char *name, const float *data, size_t width)
{
    if (w->tapper)
        tapper_tell(w->tapper, name, 0, w->tapper->count, data, 0, width, width);
}

/* Reports all rows of the pass to the callback. Each row begins `stride` floats after the previous one. */
static inline void tap_of(const struct workspace *w, const char *name, const float *data, size_t width, size_t stride)
{
    if (w->tapper)
        tapper_tell(w->tapper, name, 0, w->tapper->count, data, 0, width, stride);
}

/* Sets the prefix for the names of the next operator's intermediate values. */
static inline void tap_operator(struct workspace *w, const char *under)
{
    if (w->tapper)
        w->tapper->operator = under;
}

#endif
