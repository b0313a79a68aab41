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

enum { SIDE = 16,
       ROWS = 96,     /* of dw at once: a multiple of SIDE and of the rows of a tile */
       TOKENS = 256,  /* so many rows of x stay in the cache while all rows of dw are computed */
       PITCH = TOKENS + SIDE }; /* no power of two: such rows push each other out of the cache */

/* turned[i,j] = dy[s+j,n+i]: the factors of row n + i of dw, one after another. */
static void turn(const struct linear_back *p, float *turned, size_t n, size_t rows, size_t s, size_t tokens)
{
    for (size_t i0 = 0; i0 < rows; i0 += SIDE)
        for (size_t j0 = 0; j0 < tokens; j0 += SIDE) {
            size_t is = at_most(rows - i0, SIDE), js = at_most(tokens - j0, SIDE);
            const float *dy = p->dy + (s + j0) * p->N + n + i0;
            float *out = turned + i0 * PITCH + j0;
            if (is == SIDE && js == SIDE) /* constants, so that the compiler unrolls the loops */
                for (size_t i = 0; i < SIDE; i++)
                    for (size_t j = 0; j < SIDE; j++)
                        out[i * PITCH + j] = dy[j * p->N + i];
            else
                for (size_t i = 0; i < is; i++)
                    for (size_t j = 0; j < js; j++)
                        out[i * PITCH + j] = dy[j * p->N + i];
        }
}

/* A row of dw is a sum of rows of x, so x takes the place of the weights. */
static void rows_of_dw(void *arg, size_t task, int thread)
{
    const struct linear_back *p = arg;
    float *turned = p->turned + (size_t)thread * ROWS * PITCH;
    size_t n0, n1;
    op_row_range(p->cx, p->N, 0, task, &n0, &n1);
    for (size_t s = 0; s < p->S; s += TOKENS) {
        struct weight_view x = {.type = WEIGHT_F32, .data = p->x + s * p->K, .rows = at_most(p->S - s, TOKENS), .cols = p->K, .stride = p->K};
        for (size_t n = n0; n < n1; n += ROWS) {
            size_t rows = at_most(n1 - n, ROWS);
            turn(p, turned, n, rows, s, x.rows);
            p->cx->k->fma_rows_onto[WEIGHT_F32](p->out + n * p->K, p->K, &x, 0, p->K, turned, PITCH, rows, op_kernel_scratch(p->cx, thread));
        }
    }
}

size_t op_back_linear_scratch(int threads) { return op_scratch_bytes((size_t)threads * ROWS * PITCH); }

void op_back_linear_w(struct op_ctx *cx, float *dw, const float *dy, const float *x, size_t S, size_t N, size_t K)
{
    size_t mark = op_mark(cx);
    struct linear_back p = {.cx = cx, .out = dw, .turned = op_take(cx, (size_t)cx->threads * ROWS * PITCH), .dy = dy, .x = x, .S = S, .N = N, .K = K};
    op_parallel(cx, op_row_tasks(cx, N, 0), (double)S * (double)N * (double)K, rows_of_dw, &p);
    op_give(cx, mark);
}
