#include "ops/linear.h"

#include <string.h>

#include "ops/onednn.h"
#include "ops/round.h"

const struct arithmetic arithmetic_exact = {.bf16 = 0};

size_t op_packed_bytes(int form, size_t K)
{
    switch (form) {
    case OP_F32:
    case OP_ROUNDED: return packed_length(K) * sizeof(float);
    case OP_BF16: return packed_length(K) * sizeof(uint16_t);
    default: return K / QUANTIZED_GROUP * sizeof(struct quantized_group);
    }
}

/* at most two forms are needed: f32, rounded or not, or BF16; and groups */
size_t op_packed_scratch(size_t S, size_t K)
{
    return op_scratch_bytes(S * packed_length(K)) +
           op_scratch_bytes(S * (packed_length(K) / QUANTIZED_GROUP) * sizeof(struct quantized_group) / sizeof(float));
}

struct op_packed op_take_packed(struct op_ctx *cx, unsigned forms, size_t S, size_t K)
{
    struct op_packed p = {.K = K, .how = cx->arithmetic};
    for (int form = 0; form < OP_FORMS; form++)
        if (forms >> form & 1)
            p.rows[form] = (char *)op_take(cx, (S * op_packed_bytes(form, K) + sizeof(float) - 1) / sizeof(float));
    return p;
}

struct op_packed op_packed_from(const struct op_packed *p, size_t s)
{
    struct op_packed from = *p;
    for (int form = 0; form < OP_FORMS; form++)
        if (p->rows[form])
            from.rows[form] = op_packed_row(p, form, s);
    return from;
}

size_t op_linear_scratch(size_t S, size_t K) { return op_packed_scratch(S, K); }

void op_pack_part(const struct op_ctx *cx, const struct op_packed *p, size_t s, const float *x, size_t k0, size_t n)
{
    float *wide = p->rows[OP_F32] ? op_packed_row(p, OP_F32, s) : NULL, packed[DOT_BLOCK];
    float *rounded = p->rows[OP_ROUNDED] ? op_packed_row(p, OP_ROUNDED, s) : NULL;
    uint16_t *narrow = p->rows[OP_BF16] ? op_packed_row(p, OP_BF16, s) : NULL;
    struct quantized_group *groups = p->rows[OP_GROUPS] ? op_packed_row(p, OP_GROUPS, s) : NULL;
    if (wide && p->how->onednn)
        memcpy(wide + k0, x, n * sizeof *x);
    else if (wide)
        cx->k->pack(wide + k0, x, n);
    if (!narrow && !rounded && !groups)
        return;
    for (size_t k = 0, some; k < n; k += some) {
        some = n - k < DOT_BLOCK ? n - k : DOT_BLOCK;
        cx->k->pack(packed, x + k, some);
        if (narrow)
            cx->k->narrow(narrow + k0 + k, packed, some);
        if (rounded)
            op_round_x(rounded + k0 + k, packed, packed_length(some));
        if (groups)
            cx->k->quantize(groups + (k0 + k) / QUANTIZED_GROUP, packed, some);
    }
}

struct packing {
    const struct op_ctx *cx;
    const struct op_packed *packed;
    const float *x;
    size_t ldx, k0, k1;
};

static void pack_rows(void *arg, size_t first, size_t count)
{
    struct packing *p = arg;
    for (size_t s = first; s < first + count && p->k0 < p->k1; s++)
        op_pack_part(p->cx, p->packed, s, p->x + s * p->ldx + p->k0, p->k0, p->k1 - p->k0);
}

static void pack_columns(const struct op_ctx *cx, const struct op_packed *p, const float *x, size_t ldx,
                         struct op_share columns, size_t S)
{
    struct packing packing = {cx, p, x, ldx, columns.begin, columns.end};
    op_each_row(cx, S, (double)(columns.end - columns.begin), pack_rows, &packing);
}

void op_pack(const struct op_ctx *cx, const struct op_packed *p, const float *x, size_t ldx, size_t S)
{
    pack_columns(cx, p, x, ldx, (struct op_share){0, p->K}, S);
}

static void multiply(const struct op_ctx *cx, int thread, enum op_form form, float *y, size_t ldy,
                     const struct weight_view *w, size_t n0, size_t n1, const void *packed, size_t ldp, size_t S)
{
    void *scratch = op_kernel_scratch(cx, thread);
    switch (form) {
    case OP_F32:
    case OP_ROUNDED: cx->k->matmul[w->type](y, ldy, w, n0, n1, packed, ldp, S, scratch); break;
    case OP_BF16: cx->k->matmul_bf16(y, ldy, w, n0, n1, packed, ldp, S, scratch); break;
    default: cx->k->matmul_quantized(y, ldy, w, n0, n1, packed, ldp / QUANTIZED_GROUP, S, scratch);
    }
}

void op_multiply(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w, size_t n0,
                 size_t n1, const void *packed, size_t ldp, size_t S)
{
    multiply(cx, thread, op_form(cx, w), y, ldy, w, n0, n1, packed, ldp, S);
}

/* A failure is stored in `o`; the code that began the pass reads it with onednn_failure. */
static void by_onednn(struct onednn *o, enum onednn_type type, float *y, size_t ldy, const struct weight_view *w,
                      size_t n0, size_t n1, const void *packed, size_t ldp, size_t S)
{
    struct onednn_shape shape = {S, n1 - n0, w->cols, ldp, w->stride, ldy, type, type};
    size_t size = type == ONEDNN_BF16 ? sizeof(uint16_t) : sizeof(float);
    onednn_linear(o, y + n0, packed, (const char *)w->data + n0 * w->stride * size, &shape);
}

void op_multiply_packed(const struct op_ctx *cx, int thread, float *y, size_t ldy, const struct weight_view *w,
                        size_t n0, size_t n1, const struct op_packed *x, size_t S)
{
    enum op_form form = op_form_by(cx, x->how, w);
    if (x->how->onednn)
        by_onednn(x->how->onednn[thread], x->how->bf16 ? ONEDNN_BF16 : ONEDNN_F32, y, ldy, w, n0, n1, x->rows[form],
                  packed_length(x->K), S);
    else
        multiply(cx, thread, form, y, ldy, w, n0, n1, x->rows[form], packed_length(x->K), S);
}

void op_all_multiplied(const struct op_ctx *cx, const struct arithmetic *how, const struct weight_view *w)
{
    unsigned char unknown = MAGNITUDES_UNKNOWN;
    if (how->bf16 && !how->onednn && cx->k->learns_magnitudes && w->magnitudes) /* if a kernel found a tiny weight, it
                                                                                   has recorded this */
        __atomic_compare_exchange_n(w->magnitudes, &unknown, MAGNITUDES_ORDINARY, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
}

/* ---- tasks ---- */

#define ONEDNN_ROWS 256 /* of W in a task; other sizes were not faster */

static size_t onednn_tasks(size_t rows) { return (rows + ONEDNN_ROWS - 1) / ONEDNN_ROWS; }

size_t op_linear_tasks(const struct op_ctx *cx, const struct arithmetic *how, size_t rows, size_t after)
{
    return how->onednn ? onednn_tasks(rows) : op_row_tasks(cx, rows, after);
}

void op_linear_range(const struct op_ctx *cx, const struct arithmetic *how, size_t rows, size_t after, size_t task,
                     size_t *begin, size_t *end)
{
    size_t groups = (rows + OP_ROW_GROUP - 1) / OP_ROW_GROUP, tasks = how->onednn ? onednn_tasks(rows) : 0;
    if (!how->onednn) {
        op_row_range(cx, rows, after, task, begin, end);
        return;
    }
    *begin = groups * task / tasks * OP_ROW_GROUP;
    *end = groups * (task + 1) / tasks * OP_ROW_GROUP;
    *end = *end < rows ? *end : rows;
}

struct linear_pass {
    const struct op_ctx *cx;
    const struct linear *layers;
    size_t count, S;
    const struct op_packed *x;
    size_t first[OP_LINEAR_MOST + 1]; /* layer i has tasks first[i] .. first[i + 1] - 1 */
};

static size_t rows_after(const struct linear_pass *p, const struct linear *l)
{
    size_t rows = 0;
    while (++l < p->layers + p->count)
        rows += l->w->rows;
    return rows;
}

static void rows_of_linears(void *arg, size_t task, int thread)
{
    struct linear_pass *p = arg;
    const struct linear *l = p->layers;
    size_t n0, n1;
    while (task >= p->first[l + 1 - p->layers])
        l++;
    op_linear_range(p->cx, p->x->how, l->w->rows, rows_after(p, l), task - p->first[l - p->layers], &n0, &n1);
    op_multiply_packed(p->cx, thread, l->y, l->ldy ? l->ldy : l->w->rows, l->w, n0, n1, p->x, p->S);
}

static void multiply_all(const struct op_ctx *cx, const struct linear *layers, size_t count, const struct op_packed *x,
                         size_t S)
{
    struct linear_pass p = {.cx = cx, .layers = layers, .count = count, .S = S, .x = x};
    double cost = 0;
    for (size_t i = 0; i < count; i++) {
        p.first[i + 1] = p.first[i] + op_linear_tasks(cx, x->how, layers[i].w->rows, rows_after(&p, &layers[i]));
        cost += (double)layers[i].w->rows * (double)layers[i].w->cols * (double)S;
    }
    op_parallel_matrices(cx, p.first, count, cost, rows_of_linears, &p);
    for (size_t i = 0; i < count; i++)
        op_all_multiplied(cx, x->how, layers[i].w);
}

void op_linear_packed(const struct op_ctx *cx, float *y, const struct op_packed *x, const struct weight_view *w,
                      size_t S)
{
    multiply_all(cx, &(struct linear){y, w, 0}, 1, x, S);
}

static void linears(struct op_ctx *cx, const struct arithmetic *how, const struct linear *layers, size_t count,
                    const float *x, size_t S)
{
    size_t mark = op_mark(cx), K = layers->w->cols;
    unsigned forms = 0;
    for (size_t i = 0; i < count; i++)
        forms |= 1u << op_form_by(cx, how, layers[i].w);
    struct op_packed packed = op_take_packed(cx, forms, S, K);
    packed.how = how;
    op_pack(cx, &packed, x, K, S);
    multiply_all(cx, layers, count, &packed, S);
    op_give(cx, mark);
}

void op_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S)
{
    linears(cx, cx->arithmetic, layers, count, x, S);
}

void op_linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    op_linears(cx, &(struct linear){y, w, 0}, 1, x, S);
}

void op_gather_packed(const struct op_ctx *cx, const struct op_packed *p, const size_t *rows, size_t count, size_t unit)
{
    struct op_piece pieces[2 * OP_FORMS];
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (int form = 0; form < OP_FORMS; form++)
            if (p[i].rows[form])
                pieces[n++] = (struct op_piece){p[i].rows[form], rows[i], op_packed_bytes(form, p[i].K),
                                                (p[i].K + unit - 1) / unit, op_packed_bytes(form, unit),
                                                form == OP_ROUNDED ? OP_AS_BF16
                                                : form == OP_GROUPS ? OP_AS_GROUPS
                                                : OP_AS_STORED,
                                                NULL};
    op_gather(cx, pieces, n);
}

void op_linear_divided(struct op_ctx *cx, float *y, size_t N, const float *x, size_t unit, const struct weight_view *w,
                       size_t S)
{
    if (!cx->ranks) {
        op_linear(cx, y, x, w, S);
        return;
    }
    size_t mark = op_mark(cx), K = w->cols;
    struct op_packed packed = op_take_packed(cx, 1u << op_form(cx, w), S, K);
    struct linear own = {y + op_own(cx, N, OP_ROW_GROUP).begin, w, N};
    int whole = !unit || cx->ranks->taps_all;
    pack_columns(cx, &packed, x, K, whole ? (struct op_share){0, K} : op_own(cx, K, unit), S);
    if (!whole)
        op_gather_packed(cx, &packed, &S, 1, unit);
    multiply_all(cx, &own, 1, &packed, S);
    op_gather_floats(cx, y, S, N, OP_ROW_GROUP);
    op_give(cx, mark);
}

void op_linear_cut(struct op_ctx *cx, float *y, const size_t *cuts, const float *x, const struct weight_view *w,
                   size_t S)
{
    if (!cx->ranks) {
        op_linear(cx, y, x, w, S);
        return;
    }
    size_t N = cuts[cx->ranks->count];
    op_linears(cx, &(struct linear){y + cuts[cx->ranks->rank], w, N}, 1, x, S);
    op_gather(cx, &(struct op_piece){y, S, N * sizeof *y, N, sizeof *y, OP_AS_STORED, cuts}, 1);
}

void op_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    linears(cx, &arithmetic_exact, &(struct linear){y, w, 0}, 1, x, S);
}
