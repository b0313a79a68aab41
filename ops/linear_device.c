#include "ops/linear_device.h"

#include <assert.h>

struct weight_view device_view(struct device *d, const struct weight_view *w)
{
    struct weight_view view = *w;
    assert(!w->packed && !w->panels);
    view.data = device_at(d, w->data);
    view.scale = device_at(d, w->scale);
    view.group_scale = device_at(d, w->group_scale);
    view.magnitudes = NULL;
    view.ahead = NULL;
    return view;
}

/* Rows of x in the forms that matrices need (linear.h, enum op_form): addresses of the device. */
struct device_x {
    const float *rows; /* [S, K] */
};

static struct device_x convert(struct op_ctx *cx, unsigned forms, const float *x, size_t S, size_t K)
{
    struct device_x converted = {device_at(cx->device, x)};
    assert(!(forms >> OP_GROUPS & 1)); /* no kernel yet */
    if (forms >> OP_ROUNDED & 1) {
        float *rounded = device_at(cx->device, op_take(cx, S * K));
        device_run(cx->device, round_x, (K + THREADS_round_x - 1) / THREADS_round_x, S, 1, .y = rounded, .x = converted.rows, .ldx = K, .K = K);
        converted.rows = rounded;
    }
    return converted;
}

static size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

/* Starts the kernel for tiles of as many rows as x has, or of 8. */
static void start(struct device *d, struct matmul_args *args, size_t parts)
{
    size_t sizes[] = {1, 2, 4, 8}, i = 0, blocks = 0;
    while (i < 3 && sizes[i] < args->S)
        i++;
    for (size_t p = 0; p < parts; p++) {
        const struct weight_view *w = &args->part[p].w;
        size_t sums = divide_up(w->cols, DOT_BLOCK), side = sums && sums < 8 ? 8 / sums : 1;
        args->part[p].side = (unsigned)side;
        size_t some = divide_up(w->rows, side * 4 * LINEAR_ROWS(sizes[i]));
        blocks = some > blocks ? some : blocks;
    }
    device_launch(d, KERNEL_linear1 + i, blocks, divide_up(args->S, sizes[i]), args->heads ? args->heads : parts, args, sizeof *args);
}

void device_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S)
{
    size_t mark = op_mark(cx), K = layers->w->cols;
    unsigned forms = 0;
    for (size_t i = 0; i < count; i++)
        forms |= 1u << (weight_is_quantised(layers[i].w->type) ? OP_GROUPS : cx->bf16 ? OP_ROUNDED : OP_F32);
    struct device_x converted = convert(cx, forms, x, S, K);
    struct matmul_args args = {.x = converted.rows, .ldx = K, .S = S};
    for (size_t i = 0; i < count; i++) {
        const struct linear *l = &layers[i];
        args.part[i] = (struct matmul_part){device_view(cx->device, l->w), device_at(cx->device, l->y), l->ldy ? l->ldy : l->w->rows, 1};
    }
    start(cx->device, &args, count);
    op_give(cx, mark);
}

void device_linear_heads(struct op_ctx *cx, const struct device_heads *p, size_t S)
{
    struct matmul_args args = {.x = p->x, .ldx = p->ldx, .S = S, .heads = p->heads, .w_step = p->w_step, .x_step = p->x_step, .y_step = p->y_step};
    assert(!weight_is_quantised(p->w->type)); /* no kernel yet */
    args.part[0] = (struct matmul_part){device_view(cx->device, p->w), p->y, p->ldy, 1};
    args.part[0].w.rows = p->rows;
    start(cx->device, &args, 1);
}
