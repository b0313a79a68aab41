#include "ops/mlp_device.h"

#include <assert.h>

#include "ops/linear_device.h"

static size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

/* Computes y = mlp(x) for `rows` rows; y and x are addresses of the device. With `tiles`, the rows are those of experts, and `w` are the matrices of
 * expert 0. */
static void run(struct op_ctx *cx, float *y, const struct mlp_weights *w, const struct device_x *x, size_t rows, const struct device_tiles *tiles)
{
    struct device *d = cx->device;
    size_t i = w->down->cols;
    unsigned form = device_form(cx, w->down);
    float *h = op_take(cx, rows * i), *u = op_take(cx, rows * i);
    struct matmul_part first[2] = {device_part(d, w->gate, device_at(d, h), i), device_part(d, w->up, device_at(d, u), i)};
    struct matmul_part last = device_part(d, w->down, y, w->down->rows);
    struct device_tiles of_down;
    if (tiles) {
        first[0].experts = device_at(d, w->gate);
        first[1].experts = device_at(d, w->up);
        last.experts = device_at(d, w->down);
        of_down = *tiles;
        of_down.x_row = NULL;
    }
    device_multiply(d, first, 2, x, tiles);
    device_run(d, silu_mul, divide_up(rows * i, THREADS_silu_mul), 1, 1, .h = device_at(d, h), .u = device_at(d, u), .n = rows * i,
               .round = form == 1u << OP_ROUNDED);
    struct device_x hidden = device_convert(cx, form & 1u << OP_GROUPS, h, rows, i);
    device_multiply(d, &last, 1, &hidden, tiles ? &of_down : NULL);
}

static unsigned forms_of_x(const struct op_ctx *cx, const struct mlp_weights *w) { return device_form(cx, w->gate) | device_form(cx, w->up); }

void device_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S)
{
    size_t mark = op_mark(cx);
    struct device_x converted = device_convert(cx, forms_of_x(cx, w), x, S, w->gate->cols);
    run(cx, device_at(cx->device, y), w, &converted, S, NULL);
    op_give(cx, mark);
}

static size_t bytes_between(const struct weight_view *a, const struct weight_view *b) { return (size_t)((const char *)b - (const char *)a); }

/* Returns the bytes from the matrices of an expert to those of the next. */
static size_t expert_step(const struct moe_weights *w, const struct mlp_weights *zero)
{
    if (w->experts < 2)
        return 0;
    struct mlp_weights one = w->weights_of(w->arg, 1), last = w->weights_of(w->arg, w->experts - 1);
    size_t step = bytes_between(zero->gate, one.gate);
    assert(bytes_between(zero->up, one.up) == step && bytes_between(zero->down, one.down) == step);
    assert(bytes_between(zero->gate, last.gate) == (w->experts - 1) * step && last.gate->type == zero->gate->type && last.down->type == zero->down->type);
    return step;
}

/* Returns the number of rows in a tile. An expert has pairs / experts rows on average. Another number would not change any bit. */
static size_t rows_of_tile(const struct mlp_weights *w, size_t S, size_t pairs, size_t experts)
{
    size_t most = 1 + 2 * pairs / experts;
    int quantised = weight_is_quantised(w->gate->type) || weight_is_quantised(w->up->type) || weight_is_quantised(w->down->type);
    return device_tile_rows(S < most ? S : most, quantised);
}

void device_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight, const struct moe_weights *w, size_t S)
{
    struct device *g = cx->device;
    struct mlp_weights zero = w->weights_of(w->arg, 0);
    size_t mark = op_mark(cx), pairs = S * w->chosen, d = zero.gate->cols, T = rows_of_tile(&zero, S, pairs, w->experts);
    size_t tiles = pairs < w->experts ? pairs : w->experts + (pairs - w->experts) / T; /* an expert may have one tile that is not full */
    int32_t *place = device_at(g, op_take(cx, pairs)), *token = device_at(g, op_take(cx, pairs));
    struct expert_tile *list = device_at(g, op_take(cx, tiles * sizeof *list / sizeof(float)));
    float *out = device_at(g, op_take(cx, pairs * d)), *shared = NULL;
    struct device_tiles of_experts = {list, token, T, tiles, expert_step(w, &zero)};
    assert(!cx->probe);

    device_run(g, group_experts, 1, 1, 1, .expert = device_at(g, expert), .place = place, .token = token, .tile = list, .pairs = (unsigned)pairs,
               .chosen = (unsigned)w->chosen, .experts = (unsigned)w->experts, .rows = (unsigned)T, .tiles = (unsigned)tiles);
    unsigned forms = forms_of_x(cx, &zero) | (w->shared ? forms_of_x(cx, w->shared) : 0);
    struct device_x converted = device_convert(cx, forms, x, S, d);
    run(cx, out, &zero, &converted, pairs, &of_experts);
    if (w->shared) {
        shared = device_at(g, op_take(cx, S * d));
        run(cx, shared, w->shared, &converted, S, NULL);
    }
    device_run(g, sum_experts, S, divide_up(d, THREADS_sum_experts), 1, .y = device_at(g, y), .out = out, .weight = device_at(g, weight), .shared = shared,
               .place = place, .chosen = w->chosen, .d = d);
    op_give(cx, mark);
}

void device_moe_sum(const struct op_ctx *cx, float *y, const float *out, const float *weight, const float *shared, size_t chosen, size_t S, size_t d)
{
    struct device *g = cx->device;
    device_run(g, sum_experts, S, divide_up(d, THREADS_sum_experts), 1, .y = device_at(g, y), .out = device_at(g, out), .weight = device_at(g, weight),
               .shared = device_at(g, shared), .chosen = chosen, .d = d);
}
