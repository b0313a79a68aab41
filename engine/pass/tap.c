/* engine/pass/tap.c -- converts rows of the engine and passes them to the tap callback. */
#include "engine/pass/tap.h"

#include <stdio.h>
#include <string.h>

/* The prefix "model.layers.<layer>." is put before `name`, unless the layer is -1. */
static void tell(struct tapper *t, const char *name, int layer, size_t first, vb_tap *tap)
{
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    tap->name = full;
    tap->layer = layer;
    tap->depth = t->depth;
    tap->pass = t->pass;
    tap->row = t->told + first;
    t->callback(t->context, tap);
}

/* Called by operators, with one row or several rows. */
static void see(struct op_probe *probe, enum probed_value value, int index, size_t first, size_t count,
                const void *data, size_t width)
{
    struct tapper *t = (struct tapper *)(void *)probe;
    enum pass_value v = value_probed(value);
    const char *name = value_table[v].name;
    char numbered[64];
    if (index >= 0) { /* in place of H or E */
        size_t at = strcspn(name, "HE");
        snprintf(numbered, sizeof numbered, "%.*s%d%s", (int)at, name, index, name + at + 1);
        name = numbered;
    }
    tell(t, name, t->running->layer, first,
         &(vb_tap){.rows = count, .outer = 1, .inner = width, .stride = width, .outer_stride = width,
                   .integers = value_table[v].integers, .data = data});
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
    *t = (struct tapper){.probe = {see, scores}, .callback = callback, .context = context, .told = told,
                         .depth = -1, .pass = (uint64_t)-1};
    return t;
}

void tapper_close(struct tapper *t, const vb_allocator *a)
{
    if (t)
        vb_free(a, t->told);
    vb_free(a, t);
}

void tapper_pass(struct tapper *t, const struct pass *p)
{
    t->depth = p->depth;
    t->running = p;
    t->module = p->layer;
    t->pass++;
    for (size_t s = 0; s < p->S; s++)
        t->told[s] = row_told(&p->rows[s]);
}

void tapper_value(struct tapper *t, const struct pass *p, enum pass_value v, const float *array)
{
    struct value_shape shape = value_shape(v, &p->model->config);
    tell(t, value_table[v].name, p->layer, 0,
         &(vb_tap){.rows = p->S, .outer = shape.outer, .inner = shape.inner, .stride = shape.pitch,
                   .outer_stride = shape.outer_pitch, .data = array});
}

void tapper_logits(struct tapper *t, const float *logits, size_t vocab_size, size_t first, size_t count)
{
    enum pass_value v = t->depth < 0 ? LOGITS : MODULE_LOGITS;
    tell(t, value_table[v].name, t->module, first,
         &(vb_tap){.rows = count, .outer = 1, .inner = vocab_size, .stride = vocab_size, .outer_stride = vocab_size,
                   .data = logits});
}
