/* engine/pass/tap.h -- named intermediate values, told to the caller as they are computed (vb_tap in verbatim.h). One branch
 * where nobody listens. */
#ifndef VB_TAP_H
#define VB_TAP_H

#include "engine/pass/forward.h"

struct tapper {
    struct op_probe probe; /* what operators tell of themselves; its address is the tapper's */
    vb_tap_callback callback;
    void *context;
    const struct row *rows; /* of the pass */
    vb_tap_row *told;       /* [max_rows]: the same, as the caller sees them */
    size_t count;
    uint64_t pass;
    int32_t layer, depth;   /* as in vb_tap */
    const char *operator;   /* "mlp.gate.": what an operator's names stand under */
};

/* NULL when memory ran out. */
struct tapper *tapper_open(vb_tap_callback callback, void *context, int scores, size_t max_rows, const vb_allocator *a);
void tapper_close(struct tapper *t, const vb_allocator *a);

/* A pass begins: of the target (depth -1) or of the module of an MTP depth. */
void tapper_pass(struct tapper *t, const struct row *rows, size_t S, int depth);

/* Rows [first, first + count) of the pass, each `width` numbers at data + row * stride. `name` stands under
 * "model.layers.<layer>.", or alone where the layer is -1. */
void tapper_tell(struct tapper *t, const char *name, size_t first, size_t count, const void *data, int integers,
                 size_t width, size_t stride);
/* The same where a row is a matrix [outer, inner] of floats. */
void tapper_tell_matrix(struct tapper *t, const char *name, size_t first, size_t count, const float *data, size_t outer,
                        size_t inner, size_t stride, size_t outer_stride);

static inline void tap_layer(const struct workspace *w, int32_t layer)
{
    if (w->tapper)
        w->tapper->layer = layer;
}

/* All rows of the pass, side by side. */
static inline void tap(const struct workspace *w, const char *name, const float *data, size_t width)
{
    if (w->tapper)
        tapper_tell(w->tapper, name, 0, w->tapper->count, data, 0, width, width);
}

/* All rows of the pass, `stride` apart. */
static inline void tap_of(const struct workspace *w, const char *name, const float *data, size_t width, size_t stride)
{
    if (w->tapper)
        tapper_tell(w->tapper, name, 0, w->tapper->count, data, 0, width, stride);
}

/* The names of the operator that is called next. */
static inline void tap_operator(struct workspace *w, const char *under)
{
    if (w->tapper)
        w->tapper->operator = under;
}

#endif
