#include "ops/add.h"

void op_add(const struct op_ctx *cx, float *y, const float *x, size_t n)
{
    cx->k->axpy(y, 1.0f, x, n); /* axpy with factor 1 rounds once, like a plain sum */
}
