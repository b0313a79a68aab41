#include "ops/cuda/operators_internal.h"

#include <assert.h>
#include <string.h>

#include "ops/cuda/linear.h"

/* Computes y = mlp(x) for `rows` rows; y and x are addresses of the device. With `tiles`, the rows are those of
 * experts, and `w` are the matrices of expert 0. */
static void run(struct op_ctx *cx, const struct arithmetic *how, float *y, const struct mlp_weights *w,
                const struct device_x *x, size_t rows, const struct device_tiles *tiles)
{
    struct device *d = cx->device;
    size_t i = w->down->cols;
    unsigned form = device_form(how, w->down);
    float *h = op_take(cx, rows * i), *u = op_take(cx, rows * i);
    struct matmul_part first[2] = {device_part(d, w->gate, device_at(d, h), i),
                                   device_part(d, w->up, device_at(d, u), i)};
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
    device_run(d, silu_mul, divide_up(rows * i, THREADS_silu_mul), 1, 1, .h = device_at(d, h), .u = device_at(d, u),
               .n = rows * i, .round = form == 1u << OP_ROUNDED);
    struct device_x hidden = device_convert(cx, how, form & (1u << OP_GROUPS | 1u << OP_BF16), h, rows, i);
    device_multiply(d, &last, 1, &hidden, tiles ? &of_down : NULL);
}

static unsigned forms_of_x(const struct arithmetic *how, const struct mlp_weights *w)
{
    return device_form(how, w->gate) | device_form(how, w->up);
}

void cuda_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S)
{
    size_t mark = op_mark(cx);
    const struct arithmetic *how = cx->arithmetic;
    struct device_x converted = device_convert(cx, how, forms_of_x(how, w), x, S, w->gate->cols);
    run(cx, how, device_at(cx->device, y), w, &converted, S, NULL);
    op_give(cx, mark);
}

static size_t bytes_between(const struct weight_view *a, const struct weight_view *b)
{
    return (size_t)((const char *)b - (const char *)a);
}

/* Returns the bytes from the matrices of an expert to those of the next. */
static size_t expert_step(const struct moe_weights *w, const struct mlp_weights *zero)
{
    if (w->experts < 2)
        return 0;
    struct mlp_weights one = w->weights_of(w->arg, 1), last = w->weights_of(w->arg, w->experts - 1);
    size_t step = bytes_between(zero->gate, one.gate);
    assert(bytes_between(zero->up, one.up) == step && bytes_between(zero->down, one.down) == step);
    assert(bytes_between(zero->gate, last.gate) == (w->experts - 1) * step && last.gate->type == zero->gate->type &&
           last.down->type == zero->down->type);
    return step;
}

static int is_wide(const struct mlp_weights *w)
{
    return !weight_is_quantized(w->gate->type) && !weight_is_quantized(w->up->type) &&
           !weight_is_quantized(w->down->type);
}

/* Returns the number of rows in a tile. An expert has pairs / experts rows on average. Another number would not change
 * any bit. All three matrices have kernels for so many rows: if only some are quantized, at most 8. */
static size_t rows_of_tile(const struct device *d, const struct arithmetic *how, const struct mlp_weights *w, size_t S,
                           size_t pairs, size_t experts)
{
    size_t rows = 1 + 2 * pairs / experts < S ? 1 + 2 * pairs / experts : S;
    int quantized = weight_is_quantized(w->gate->type) && weight_is_quantized(w->up->type) &&
                    weight_is_quantized(w->down->type);
    if (is_wide(w))
        return device_tile_rows(d, rows, how->tensor_cores ? BY_TENSOR_CORES : BY_RULE_1);
    return device_tile_rows(d, quantized || rows < 8 ? rows : 8, BY_RULE_2);
}

/* ---- experts by the device's library of matrix products ---- */

/* Pairs of a token and an expert, sorted by expert, then token. All arrays are scratch memory of the host. */
struct sorted_pairs {
    int32_t *expert;        /* [pairs] of pair i: what the router has chosen */
    int32_t *place, *token; /* [pairs], which have twins: as for group_experts_args */
    int32_t *first;         /* [experts + 1]: expert e has the sorted pairs first[e] .. first[e + 1] - 1 */
};

/* The host has to know how many rows each expert has, so it waits here for what the router has chosen. Returns 0 after
 * a failure of the device. */
static int sort_pairs(struct op_ctx *cx, struct sorted_pairs *p, const int32_t *expert, size_t pairs, size_t chosen,
                      size_t experts)
{
    struct device *g = cx->device;
    *p = (struct sorted_pairs){(int32_t *)op_take(cx, pairs), (int32_t *)op_take(cx, pairs),
                               (int32_t *)op_take(cx, pairs), (int32_t *)op_take(cx, experts + 1)};
    device_get(g, p->expert, expert, pairs * sizeof *expert);
    if (device_failure(g))
        return 0;
    memset(p->first, 0, (experts + 1) * sizeof *p->first);
    for (size_t i = 0; i < pairs; i++)
        p->first[p->expert[i] + 1]++;
    for (size_t e = 0; e < experts; e++)
        p->first[e + 1] += p->first[e];
    for (size_t i = 0; i < pairs; i++) { /* first[e] counts up to the old first[e + 1] */
        p->place[i] = p->first[p->expert[i]]++;
        p->token[p->place[i]] = (int32_t)(i / chosen);
    }
    memmove(p->first + 1, p->first, experts * sizeof *p->first);
    p->first[0] = 0;
    device_write(g, p->place, pairs * sizeof *p->place);
    device_write(g, p->token, pairs * sizeof *p->token);
    return 1;
}

enum of_expert { GATE, UP, DOWN };

/* Multiplies the matrix of each expert by this expert's rows of x, of all pairs. y is an address of the device. */
static void multiply_experts(struct op_ctx *cx, float *y, const struct moe_weights *w, enum of_expert which,
                             const struct sorted_pairs *p, const uint16_t *x)
{
    for (size_t e = 0; e < w->experts; e++) {
        struct mlp_weights m = w->weights_of(w->arg, e);
        const struct weight_view *v = which == GATE ? m.gate : which == UP ? m.up : m.down;
        size_t first = (size_t)p->first[e], rows = (size_t)p->first[e + 1] - first;
        struct matmul_part part = rows ? device_part(cx->device, v, y + first * v->rows, v->rows)
                                       : (struct matmul_part){.ldy = 0};
        if (rows)
            device_product(cx->device, &part, x + first * narrow_length(v->cols), rows);
    }
}

/* out [pairs, d] and x [S, d] are addresses of the device. *place becomes one. */
static void run_experts(struct op_ctx *cx, float *out, const struct device_x *x, const int32_t *expert,
                        const struct moe_weights *w, const int32_t **place)
{
    struct device *g = cx->device;
    size_t i = w->weights_of(w->arg, 0).down->cols, pairs = x->S * w->chosen;
    struct sorted_pairs p;
    if (!sort_pairs(cx, &p, expert, pairs, w->chosen, w->experts))
        return;
    float *h = op_take(cx, pairs * i), *u = op_take(cx, pairs * i);
    const uint16_t *narrow = device_narrow(cx, x->rows, device_at(g, p.token), pairs, x->K);
    multiply_experts(cx, device_at(g, h), w, GATE, &p, narrow);
    multiply_experts(cx, device_at(g, u), w, UP, &p, narrow);
    device_run(g, silu_mul, divide_up(pairs * i, THREADS_silu_mul), 1, 1, .h = device_at(g, h), .u = device_at(g, u),
               .n = pairs * i);
    multiply_experts(cx, out, w, DOWN, &p, device_narrow(cx, device_at(g, h), NULL, pairs, i));
    *place = device_at(g, p.place);
}

/* ---- experts by our kernels ---- */

/* The same. */
static void run_tiles(struct op_ctx *cx, const struct arithmetic *how, float *out, const struct device_x *x,
                      const int32_t *expert, const struct moe_weights *w, const int32_t **place)
{
    struct device *g = cx->device;
    struct mlp_weights zero = w->weights_of(w->arg, 0);
    size_t pairs = x->S * w->chosen, T = rows_of_tile(g, how, &zero, x->S, pairs, w->experts);
    size_t tiles = pairs < w->experts ? pairs : w->experts + (pairs - w->experts) / T; /* an expert may have one tile
                                                                                          that is not full */
    int32_t *to = device_at(g, op_take(cx, pairs)), *token = device_at(g, op_take(cx, pairs));
    struct expert_tile *list = device_at(g, op_take(cx, tiles * sizeof *list / sizeof(float)));
    struct device_tiles of_experts = {list, token, T, tiles, expert_step(w, &zero)};
    device_run(g, group_experts, 1, 1, 1, .expert = device_at(g, expert), .place = to, .token = token, .tile = list,
               .pairs = (unsigned)pairs, .chosen = (unsigned)w->chosen, .experts = (unsigned)w->experts,
               .rows = (unsigned)T, .tiles = (unsigned)tiles);
    run(cx, how, out, &zero, x, pairs, &of_experts);
    *place = to;
}

void cuda_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
              const struct moe_weights *w, size_t S)
{
    struct device *g = cx->device;
    struct mlp_weights zero = w->weights_of(w->arg, 0);
    size_t mark = op_mark(cx), d = zero.gate->cols;
    float *out = device_at(g, op_take(cx, S * w->chosen * d)), *shared = NULL;
    const int32_t *place = NULL;
    const struct arithmetic contract = {.bf16 = cx->arithmetic->bf16}, *how = cx->arithmetic, *of_experts = how;
    assert(!cx->probe);

    if (!is_wide(&zero)) /* if only some matrices of an expert are quantized, all three obey the contract */
        of_experts = &contract;
    unsigned forms = w->shared ? forms_of_x(how, w->shared) : 0,
             more = of_experts->cublas ? 0 : forms_of_x(of_experts, &zero);
    struct device_x converted = device_convert(cx, how, forms | more, x, S, d), for_experts = converted;
    for_experts.narrow = of_experts->tensor_cores ? converted.narrow : NULL;
    for_experts.tensor_cores = of_experts->tensor_cores;
    if (of_experts->cublas)
        run_experts(cx, out, &for_experts, expert, w, &place);
    else
        run_tiles(cx, of_experts, out, &for_experts, expert, w, &place);
    if (w->shared) {
        shared = device_at(g, op_take(cx, S * d));
        run(cx, how, shared, w->shared, &converted, S, NULL);
    }
    device_run(g, sum_experts, S, divide_up(d, THREADS_sum_experts), 1, .y = device_at(g, y), .out = out,
               .weight = device_at(g, weight), .shared = shared, .place = place, .chosen = w->chosen, .d = d);
    op_give(cx, mark);
}
