#include "linear.h"

#include <string.h>

#include "mistake.h"
#include "onednn.h"

size_t op_linear_scratch(size_t S, size_t K) { return op_scratch_bytes(S * packed_length(K)); }

void op_pack_part(const struct op_ctx *cx, void *packed_row, const float *x, size_t k0, size_t n)
{
    float packed[DOT_BLOCK];
    if (!cx->bf16) {
        if (cx->onednn)
            memcpy((float *)packed_row + k0, x, n * sizeof *x);
        else
            cx->k->pack((float *)packed_row + k0, x, n);
        return;
    }
    for (size_t k = 0, some; k < n; k += some) {
        some = n - k < DOT_BLOCK ? n - k : DOT_BLOCK;
        cx->k->pack(packed, x + k, some);
        cx->k->narrow((uint16_t *)packed_row + k0 + k, packed, some);
    }
}

struct packing {
    const struct op_ctx *cx;
    void *packed;
    const float *x;
    size_t ldx, K;
};

static void pack_rows(void *arg, size_t first, size_t count)
{
    struct packing *p = arg;
    for (size_t s = first; s < first + count; s++)
        op_pack_part(p->cx, op_packed_row(p->cx, p->packed, s, p->K), p->x + s * p->ldx, 0, p->K);
}

void op_pack(const struct op_ctx *cx, void *packed, const float *x, size_t ldx, size_t S, size_t K)
{
    struct packing p = {cx, packed, x, ldx, K};
    op_each_row(cx, S, (double)K, pack_rows, &p);
}

void op_multiply(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, size_t n0, size_t n1,
                 const void *packed, size_t ldp, size_t S)
{
    if (cx->bf16)
        cx->k->matmul_bf16(y, ldy, w, n0, n1, packed, ldp, S);
    else
        cx->k->matmul[w->type](y, ldy, w, n0, n1, packed, ldp, S);
}

/* What went wrong oneDNN keeps, for whoever began the pass. */
static void by_onednn(struct onednn *o, enum onednn_type type, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                      size_t n1, const void *packed, size_t ldp, size_t S)
{
    struct onednn_shape shape = {S, n1 - n0, w->cols, ldp, w->stride, ldy, type, type};
    size_t size = type == ONEDNN_BF16 ? sizeof(uint16_t) : sizeof(float);
    onednn_linear(o, y + n0, packed, (const char *)w->data + n0 * w->stride * size, &shape);
}

void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                        size_t n1, const void *packed, size_t ldp, size_t S)
{
    if (cx->onednn)
        by_onednn(cx->onednn[thread], cx->bf16 ? ONEDNN_BF16 : ONEDNN_F32, y, ldy, w, n0, n1, packed, ldp, S);
    else
        op_multiply(cx, y, ldy, w, n0, n1, packed, ldp, S);
}

void op_all_multiplied(const struct op_ctx *cx, const struct weight_view *w)
{
    unsigned char unknown = MISTAKE(tiny_weight_forgotten) ? MAGNITUDES_TINY : MAGNITUDES_UNKNOWN;
    if (cx->bf16 && !cx->onednn && cx->k->learns_magnitudes && w->magnitudes) /* a kernel that saw a tiny one has said so */
        __atomic_compare_exchange_n(w->magnitudes, &unknown, MAGNITUDES_ORDINARY, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

struct pass {
    const struct op_ctx *cx;
    const struct linear *layers;
    size_t count, S;
    const void *packed;
    size_t first[OP_LINEAR_MOST + 1]; /* tasks, by layer */
};

static size_t rows_after(const struct pass *p, const struct linear *l)
{
    size_t rows = 0;
    while (++l < p->layers + p->count)
        rows += l->w->rows;
    return rows;
}

static void rows_of_linears(void *arg, size_t task, int thread)
{
    struct pass *p = arg;
    const struct linear *l = p->layers;
    size_t n0, n1;
    while (task >= p->first[l + 1 - p->layers])
        l++;
    op_row_range(p->cx, l->w->rows, rows_after(p, l), task - p->first[l - p->layers], &n0, &n1);
    op_multiply_packed(p->cx, thread, l->y, l->w->rows, l->w, n0, n1, p->packed, packed_length(l->w->cols), p->S);
}

static void multiply_all(const struct op_ctx *cx, const struct linear *layers, size_t count, const void *packed, size_t S)
{
    struct pass p = {.cx = cx, .layers = layers, .count = count, .S = S, .packed = packed};
    double cost = 0;
    for (size_t i = 0; i < count; i++) {
        p.first[i + 1] = p.first[i] + op_row_tasks(cx, layers[i].w->rows, rows_after(&p, &layers[i]));
        cost += (double)layers[i].w->rows * (double)layers[i].w->cols * (double)S;
    }
    op_parallel_matrices(cx, p.first, count, cost, rows_of_linears, &p);
    for (size_t i = 0; i < count; i++)
        op_all_multiplied(cx, layers[i].w);
}

void op_linear_packed(const struct op_ctx *cx, float *y, const void *packed, const struct weight_view *w, size_t S)
{
    multiply_all(cx, &(struct linear){y, w}, 1, packed, S);
}

void op_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S)
{
    size_t mark = op_mark(cx), K = layers->w->cols;
    void *packed = op_take(cx, S * packed_length(K));
    op_pack(cx, packed, x, K, S, K);
    multiply_all(cx, layers, count, packed, S);
    op_give(cx, mark);
}

void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    op_linears(cx, &(struct linear){y, w}, 1, x, S);
}

void op_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    struct op_ctx exact = *cx;
    exact.bf16 = MISTAKE(router_rounded) && cx->bf16 && w->type == WEIGHT_BF16;
    exact.onednn = NULL;
    op_linear(&exact, y, x, w, S);
}
