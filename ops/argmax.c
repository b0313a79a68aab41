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

void op_argmax(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V)
{
    op_each_row(cx, S, 2.0 * (double)V, some_rows, &(struct rows){best, z, V});
}
