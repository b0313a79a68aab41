/* engine/pass/tap.c -- converts rows of the engine and passes them to the tap callback. */
#include "engine/pass/tap.h"

#include <stdio.h>

/* Called by operators, with one row or several rows. */
static void see(struct op_probe *probe, const char *name, size_t first, size_t count, const void *data, int integers,
                size_t width)
{
    struct tapper *t = (struct tapper *)(void *)probe;
    char full[64];
    snprintf(full, sizeof full, "%s%s", t->operator, name);
    tapper_tell(t, full, first, count, data, integers, width, width);
}

struct tapper *tapper_open(vb_tap_callback callback, void *context, int scores, size_t max_rows, const vb_allocator *a)
{
    struct tapper *t = vb_alloc(a, 1, sizeof *t);
    vb_tap_row *told = vb_alloc(a, max_rows, sizeof *told);
    if (!t || !told) {
        vb_free(a, t);
        vb_free(a, told);
        return NULL;
    }
    *t = (struct tapper){.probe = {see, scores}, .callback = callback, .context = context, .told = told, .layer = -1,
                         .depth = -1, .pass = (uint64_t)-1};
    return t;
}

void tapper_close(struct tapper *t, const vb_allocator *a)
{
    if (t)
        vb_free(a, t->told);
    vb_free(a, t);
}

void tapper_pass(struct tapper *t, const struct row *rows, size_t S, int depth)
{
    t->rows = rows;
    t->count = S;
    t->depth = depth;
    t->layer = -1;
    t->pass++;
    for (size_t s = 0; s < S; s++)
        t->told[s] = row_told(&rows[s]);
}

static void tell(struct tapper *t, const char *name, size_t first, vb_tap *tap)
{
    char full[96];
    if (t->layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", (int)t->layer, name);
    tap->name = full;
    tap->layer = t->layer;
    tap->depth = t->depth;
    tap->pass = t->pass;
    tap->row = t->told + first;
    t->callback(t->context, tap);
}

void tapper_tell(struct tapper *t, const char *name, size_t first, size_t count, const void *data, int integers,
                 size_t width, size_t stride)
{
    tell(t, name, first, &(vb_tap){.rows = count, .outer = 1, .inner = width, .stride = stride, .outer_stride = width,
                                   .integers = integers, .data = data});
}

void tapper_tell_matrix(struct tapper *t, const char *name, size_t first, size_t count, const float *data, size_t outer,
                        size_t inner, size_t stride, size_t outer_stride)
{
    tell(t, name, first, &(vb_tap){.rows = count, .outer = outer, .inner = inner, .stride = stride,
                                   .outer_stride = outer_stride, .data = data});
}
