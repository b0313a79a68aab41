#include "ops/add.h"

void op_add(const struct op_ctx *cx, float *y, const float *x, size_t n)
{
    struct device *g = cx->device;
    if (g)
        device_run(g, add, (n + THREADS_add - 1) / THREADS_add, 1, 1, .y = device_at(g, y), .x = device_at(g, x),
                   .n = n);
    else
        cx->k->axpy(y, 1.0f, x, n); /* axpy with factor 1 rounds once, like a plain sum */
}
