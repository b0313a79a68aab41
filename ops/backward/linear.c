#include "ops/backward/linear.h"
#include "numbers/numbers.h"

#include <assert.h>

#define ROWS 192 /* of dx or dw at once: these, and the factors of their sums, stay in L2 while all terms are added */

struct linear_back {
    const struct op_ctx *cx;
    float *out;
    const float *dy, *x;
    const struct weight_view *w;
    size_t S, N, K;
};

static void columns_of_dx(void *arg, size_t task, int thread)
{
    const struct linear_back *p = arg;
    size_t c0, c1;
    op_row_range(p->cx, p->K, 0, task, &c0, &c1);
    for (size_t s = 0; s < p->S; s += ROWS)
        p->cx->k->fma_rows_onto[p->w->type](p->out + s * p->K, p->K, p->w, c0, c1, p->dy + s * p->N, p->N,
                                            min_size(p->S - s, ROWS), op_kernel_scratch(p->cx, thread));
}

void op_back_linear_x(const struct op_ctx *cx, float *dx, const float *dy, const struct weight_view *w, size_t S)
{
    assert(!weight_is_quantized(w->type));
    struct linear_back p = {.cx = cx, .out = dx, .dy = dy, .w = w, .S = S, .N = w->rows, .K = w->cols};
    op_parallel(cx, op_row_tasks(cx, p.K, 0), (double)S * (double)p.N * (double)p.K, columns_of_dx, &p);
}

/* A row of dw is a sum of rows of x, so x takes the place of the weights. */
static void rows_of_dw(void *arg, size_t task, int thread)
{
    const struct linear_back *p = arg;
    struct weight_view x = {.type = WEIGHT_F32, .data = p->x, .rows = p->S, .cols = p->K, .stride = p->K};
    size_t n0, n1;
    op_row_range(p->cx, p->N, 0, task, &n0, &n1);
    for (size_t n = n0; n < n1; n += ROWS)
        p->cx->k->fma_outer(p->out + n * p->K, p->K, &x, p->dy + n, p->N, min_size(n1 - n, ROWS),
                            op_kernel_scratch(p->cx, thread));
}

void op_back_linear_w(const struct op_ctx *cx, float *dw, const float *dy, const float *x, size_t S, size_t N, size_t K)
{
    struct linear_back p = {.cx = cx, .out = dw, .dy = dy, .x = x, .S = S, .N = N, .K = K};
    op_parallel(cx, op_row_tasks(cx, N, 0), (double)S * (double)N * (double)K, rows_of_dw, &p);
}
