#include "linear.h"

size_t op_linear_scratch(size_t S, size_t K) { return op_scratch_bytes(S * packed_length(K)); }

void op_pack(const struct op_ctx *cx, float *packed, const float *x, size_t ldx, size_t S, size_t K)
{
    for (size_t s = 0; s < S; s++)
        cx->k->pack(packed + s * packed_length(K), x + s * ldx, K);
}

struct linear {
    const struct op_ctx *cx;
    float *y;
    const float *packed;
    const struct weight_view *w;
    size_t S;
};

static void rows_of_linear(void *arg, size_t task, int thread)
{
    struct linear *l = arg;
    size_t n0, n1;
    (void)thread;
    op_row_range(l->cx, l->w->rows, task, &n0, &n1);
    l->cx->k->matmul[l->w->type](l->y, l->w->rows, l->w, n0, n1, l->packed, packed_length(l->w->cols), l->S);
}

void op_linear_packed(const struct op_ctx *cx, float *y, const float *packed, const struct weight_view *w, size_t S)
{
    struct linear l = {cx, y, packed, w, S};
    op_parallel(cx, op_row_tasks(cx, w->rows), (double)w->rows * (double)w->cols * (double)S, rows_of_linear, &l);
}

void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    size_t mark = op_mark(cx);
    float *packed = op_take(cx, S * packed_length(w->cols));
    op_pack(cx, packed, x, w->cols, S, w->cols);
    op_linear_packed(cx, y, packed, w, S);
    op_give(cx, mark);
}
