#include "ops/backward/linear.h"

#include <assert.h>
#include <string.h>

struct linear_back {
    const struct op_ctx *cx;
    float *out, *turned;
    const float *dy, *x;
    const struct weight_view *w;
    size_t S, N, K;
};

static void columns_of_dx(void *arg, size_t task, int thread)
{
    const struct linear_back *p = arg;
    size_t c0, c1;
    op_row_range(p->cx, p->K, 0, task, &c0, &c1);
    p->cx->k->fma_rows_onto[p->w->type](p->out, p->K, p->w, c0, c1, p->dy, p->N, p->S, op_kernel_scratch(p->cx, thread));
}

void op_back_linear_x(const struct op_ctx *cx, float *dx, const float *dy, const struct weight_view *w, size_t S)
{
    assert(!weight_is_quantised(w->type));
    struct linear_back p = {.cx = cx, .out = dx, .dy = dy, .w = w, .S = S, .N = w->rows, .K = w->cols};
    op_parallel(cx, op_row_tasks(cx, p.K, 0), (double)S * (double)p.N * (double)p.K, columns_of_dx, &p);
}

static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

/* turned[n,s] = dy[s,n] for n in [n0, n1): the factors of one row of dw, one after another. Squares go through `square`, because rows
 * that are a power of two apart push each other out of the cache. */
static void turn(const struct linear_back *p, size_t n0, size_t n1)
{
    enum { SIDE = 16 };
    float square[SIDE][SIDE];
    for (size_t s = 0; s < p->S; s += SIDE)
        for (size_t n = n0; n < n1; n += SIDE) {
            size_t rows = at_most(p->S - s, SIDE), cols = at_most(n1 - n, SIDE);
            for (size_t j = 0; j < rows; j++)
                memcpy(square[j], p->dy + (s + j) * p->N + n, cols * sizeof *p->dy);
            for (size_t i = 0; i < cols; i++)
                for (size_t j = 0; j < rows; j++)
                    p->turned[(n + i) * p->S + s + j] = square[j][i];
        }
}

/* A row of dw is a sum of rows of x, so x takes the place of the weights. */
static void rows_of_dw(void *arg, size_t task, int thread)
{
    const struct linear_back *p = arg;
    struct weight_view x = {.type = WEIGHT_F32, .data = p->x, .rows = p->S, .cols = p->K, .stride = p->K};
    size_t n0, n1;
    op_row_range(p->cx, p->N, 0, task, &n0, &n1);
    turn(p, n0, n1);
    p->cx->k->fma_rows_onto[WEIGHT_F32](p->out + n0 * p->K, p->K, &x, 0, p->K, p->turned + n0 * p->S, p->S, n1 - n0,
                                        op_kernel_scratch(p->cx, thread));
}

size_t op_back_linear_scratch(size_t S, size_t N) { return op_scratch_bytes(S * N); }

void op_back_linear_w(struct op_ctx *cx, float *dw, const float *dy, const float *x, size_t S, size_t N, size_t K)
{
    size_t mark = op_mark(cx);
    struct linear_back p = {.cx = cx, .out = dw, .turned = op_take(cx, S * N), .dy = dy, .x = x, .S = S, .N = N, .K = K};
    op_parallel(cx, op_row_tasks(cx, N, 0), (double)S * (double)N * (double)K, rows_of_dw, &p);
    op_give(cx, mark);
}
