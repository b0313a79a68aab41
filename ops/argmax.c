#include "ops/argmax.h"

#include <math.h>

struct rows {
    int32_t *best;
    const float *z;
    size_t V;
};

static int32_t best_of(const float *z, size_t V)
{
    size_t best = 0;
    for (size_t v = 0; v < V; v++) {
        if (!isfinite(z[v]))
            return -1;
        if (z[v] > z[best])
            best = v;
    }
    return (int32_t)best;
}

static void some_rows(void *arg, size_t first, size_t count)
{
    const struct rows *p = arg;
    for (size_t s = first; s < first + count; s++)
        p->best[s] = best_of(p->z + s * p->V, p->V);
}

/* ---- on a device ---- */

#define PART ((size_t)8192) /* numbers for a block of threads: enough blocks for a whole GPU */

static size_t parts_of(size_t V) { return (V + PART - 1) / PART; }

size_t op_argmax_scratch(size_t S, size_t V) { return op_scratch_bytes(S * parts_of(V)); }

/* First the best number of each part of a row, then the best of these. */
static void on_device(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V)
{
    struct device *g = cx->device;
    size_t parts = parts_of(V), mark = op_mark(cx);
    int32_t *of_parts = device_at(g, op_take(cx, S * parts));
    device_run(g, best_of_rows, S, parts, 1, .best = of_parts, .z = device_at(g, z), .V = V, .count = V, .part = PART);
    device_run(g, best_of_rows, S, 1, 1, .best = device_at(g, best), .z = device_at(g, z), .V = V, .places = of_parts,
               .count = parts, .part = parts);
    op_give(cx, mark);
}

void op_argmax(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V)
{
    if (cx->device)
        on_device(cx, best, z, S, V);
    else
        op_each_row(cx, S, 2.0 * (double)V, some_rows, &(struct rows){best, z, V});
}
