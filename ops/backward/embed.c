#include "ops/backward/embed.h"

struct embed_back {
    const struct op_ctx *cx;
    float *dw;
    const float *dy;
    const int32_t *tok;
    size_t S, D;
};

/* All tokens may be the same, so the columns are divided and not the rows. */
static void some_columns(void *arg, size_t task, int thread)
{
    const struct embed_back *p = arg;
    size_t d0, d1;
    (void)thread;
    op_row_range(p->cx, p->D, 0, task, &d0, &d1);
    for (size_t s = 0; s < p->S; s++) /* axpy with factor 1 rounds once, like a plain sum */
        p->cx->k->axpy(p->dw + (size_t)p->tok[s] * p->D + d0, 1.0f, p->dy + s * p->D + d0, d1 - d0);
}

void op_back_embed(const struct op_ctx *cx, float *dw, const float *dy, const int32_t *tok, size_t S, size_t D)
{
    struct embed_back p = {cx, dw, dy, tok, S, D};
    op_parallel(cx, op_row_tasks(cx, D, 0), (double)S * (double)D, some_columns, &p);
}
