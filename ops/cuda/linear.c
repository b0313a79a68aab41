#include "ops/cuda/linear.h"
#include "ops/cuda/operators_internal.h"

#include <assert.h>

#include "simd/grids.h"
#include "simd/quantized.h"

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

/* The grid of a type, and its size. */
struct type_grid {
    enum weight_type type;
    const void *grid;
    size_t bytes;
};
static const struct type_grid grids[] = {
    {WEIGHT_IQ2_XXS, grid_iq2_xxs, sizeof grid_iq2_xxs}, {WEIGHT_IQ2_XS, grid_iq2_xs, sizeof grid_iq2_xs},
    {WEIGHT_IQ2_S, grid_iq2_s, sizeof grid_iq2_s},
    {WEIGHT_IQ3_XXS, grid_iq3_xxs, sizeof grid_iq3_xxs}, {WEIGHT_IQ3_S, grid_iq3_s, sizeof grid_iq3_s},
    {WEIGHT_IQ1_S, grid_iq1, sizeof grid_iq1}, {WEIGHT_IQ1_M, grid_iq1, sizeof grid_iq1}};

static const struct type_grid *grid_of(enum weight_type type)
{
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        if (grids[i].type == type)
            return &grids[i];
    return NULL;
}

int device_add_tables(struct device *d, enum weight_type type)
{
    const struct type_grid *g = grid_of(type);
    return g && !device_has(d, g->grid) ? device_add_copy(d, g->grid, g->bytes) : 0;
}

struct device_x device_convert(struct op_ctx *cx, const struct arithmetic *how, unsigned forms, const float *x,
                               size_t S, size_t K)
{
    struct device *d = cx->device;
    struct device_x converted = {.rows = device_at(d, x), .K = K, .S = S};
    if (forms >> OP_GROUPS & 1) {
        size_t groups = K / QUANTIZED_GROUP;
        struct quantized_group *to = device_at(d, op_take(cx, S * groups * sizeof *to / sizeof(float)));
        device_run(d, quantize, S, divide_up(groups, THREADS_quantize / 32), 1, .y = to, .x = converted.rows, .ldx = K,
                   .K = K, .heads = 1);
        converted.groups = to;
    }
    if (forms >> OP_ROUNDED & 1) {
        float *to = device_at(d, op_take(cx, S * K));
        device_run(d, round_x, divide_up(K, THREADS_round_x), S, 1, .y = to, .x = converted.rows, .ldx = K, .K = K);
        converted.rows = to;
    }
    if (forms >> OP_BF16 & 1)
        converted.narrow = device_narrow(cx, converted.rows, NULL, S, K);
    converted.tensor_cores = converted.narrow && !how->cublas;
    return converted;
}

unsigned device_form(const struct arithmetic *how, const struct weight_view *w)
{
    return 1u << (weight_is_quantized(w->type) ? OP_GROUPS
                  : how->cublas || how->tensor_cores ? OP_BF16
                  : how->bf16 ? OP_ROUNDED
                  : OP_F32);
}

struct matmul_part device_part(struct device *d, const struct weight_view *w, float *y, size_t ldy)
{
    struct matmul_part part = {.w = device_view(d, w), .y = y, .ldy = ldy};
    if (weight_is_quantized(w->type)) {
        const struct quantized_format *f = quantized_format(w->type);
        const struct type_grid *g = grid_of(w->type);
        part.format.numbers = f->numbers;
        part.format.bytes = f->bytes;
        part.format.halves = f->halves != 0;
        part.format.minimums = f->minimums;
        part.format.grid = g ? device_at(d, g->grid) : NULL;
    }
    return part;
}

uint16_t *device_narrow(struct op_ctx *cx, const float *x, const int32_t *rows, size_t S, size_t K)
{
    size_t ld = narrow_length(K);
    uint16_t *y = device_at(cx->device, op_take(cx, S * ld / 2));
    device_run(cx->device, narrow, S, divide_up(K, THREADS_narrow * NARROW_COLUMNS), 1, .y = y, .ldy = ld, .rows = rows,
               .w = {.type = WEIGHT_F32, .data = x, .cols = K, .stride = K});
    return y;
}

/* A matrix that is not BF16, or not aligned, is converted in parts that fit into d->gemm_memory. */
void device_product(struct device *d, const struct matmul_part *part, const uint16_t *x, size_t S)
{
    const struct weight_view *w = &part->w;
    size_t ld = narrow_length(w->cols), most = GEMM_BYTES / sizeof(uint16_t) / ld;
    struct gemm g = {.y = part->y, .w = w->data, .x = x, .S = S, .N = w->rows, .K = w->cols, .ldy = part->ldy,
                     .ldw = w->stride, .ldx = ld};
    if (w->type == WEIGHT_BF16 && (uintptr_t)w->data % 16 == 0 && w->stride % 8 == 0) {
        device_gemm(d, &g);
        return;
    }
    assert(most);
    device_lock(d); /* another thread must not overwrite the converted weights */
    g.w = (const uint16_t *)(const void *)d->gemm_memory;
    g.ldw = ld;
    for (size_t n = 0; n < w->rows; n += g.N) {
        g.N = w->rows - n < most ? w->rows - n : most;
        g.y = part->y + n;
        device_run(d, narrow, g.N, divide_up(w->cols, THREADS_narrow * NARROW_COLUMNS), 1,
                   .y = (uint16_t *)(void *)d->gemm_memory, .ldy = ld, .first = n, .w = *w);
        device_gemm(d, &g);
    }
    device_unlock(d);
}

/* The kernels of a family, for tiles of more and more rows of x. A warp works on `rows` rows of weights together. */
static const struct tile_kernel {
    enum device_kernel kernel;
    size_t tile_rows, threads, rows;
} families[DEVICE_FAMILIES][5] = {
#define X(name, tile_rows, rows) {KERNEL_##name, tile_rows, THREADS_##name, rows}
    [BY_RULE_1] = {X(linear1, 1, 4 * LINEAR_ROWS(1)), X(linear2, 2, 4 * LINEAR_ROWS(2)),
                   X(linear4, 4, 4 * LINEAR_ROWS(4)), X(linear8, 8, 4 * LINEAR_ROWS(8))},
    [BY_RULE_2] = {X(quantized1, 1, QUANTIZED_ROWS), X(quantized2, 2, QUANTIZED_ROWS), X(quantized4, 4, QUANTIZED_ROWS),
                   X(integer8, 8, TENSOR_ROWS), X(integer32, 32, TENSOR_ROWS)},
    [BY_TENSOR_CORES] = {X(tensor8, 8, TENSOR_ROWS), X(tensor16, 16, TENSOR_ROWS), X(tensor64, 64, TENSOR_ROWS)}
#undef X
};

/* The kernel for tiles of S rows, or of as many as there is a kernel for. */
static const struct tile_kernel *kernel_for(const struct device *d, size_t S, enum device_family family)
{
    const struct tile_kernel *all = families[family];
    size_t i = 0, count = family == BY_RULE_1 ? 4 : family == BY_RULE_2 && d->tensor_cores ? 5 : 3;
    while (i + 1 < count && all[i].tile_rows < S)
        i++;
    return &all[i];
}

size_t device_tile_rows(const struct device *d, size_t S, enum device_family family)
{
    return kernel_for(d, S, family)->tile_rows;
}

/* Starts the kernel for tiles of T rows, for all parts, which belong to the same family. */
static void start(struct device *d, struct matmul_args *args, size_t parts, enum device_family family, size_t T,
                  size_t tiles)
{
    const struct tile_kernel *k = kernel_for(d, T, family);
    size_t blocks = 0, warps = k->threads / 32;
    for (size_t p = 0; p < parts; p++) {
        const struct weight_view *w = &args->part[p].w;
        size_t sums = divide_up(w->cols, DOT_BLOCK), side = sums && sums < warps ? warps / sums : 1,
               some = divide_up(w->rows, side * k->rows);
        args->part[p].side = (unsigned)side;
        blocks = some > blocks ? some : blocks;
    }
    device_launch(d, k->kernel, blocks, tiles, args->heads ? args->heads : parts, args, sizeof *args);
}

static enum device_family family_of(const struct weight_view *w, const struct device_x *x)
{
    return weight_is_quantized(w->type) ? BY_RULE_2 : x->tensor_cores ? BY_TENSOR_CORES : BY_RULE_1;
}

void device_multiply(struct device *d, const struct matmul_part *parts, size_t count, const struct device_x *x,
                     const struct device_tiles *tiles)
{
    static const size_t unit[] = {[BY_RULE_1] = 1, [BY_RULE_2] = QUANTIZED_GROUP, [BY_TENSOR_CORES] = 1};
    int by_library = x->narrow && !x->tensor_cores;
    assert(!by_library || !tiles);
    for (size_t i = 0; by_library && i < count; i++)
        if (!weight_is_quantized(parts[i].w.type))
            device_product(d, &parts[i], x->narrow, x->S);
    for (enum device_family family = by_library ? BY_RULE_2 : BY_RULE_1; family < DEVICE_FAMILIES; family++) {
        size_t some = 0, T = tiles ? tiles->rows : device_tile_rows(d, x->S, family),
               K = family == BY_TENSOR_CORES ? narrow_length(x->K) : x->K;
        struct matmul_args args = {.x = x->rows, .groups = x->groups, .narrow = x->narrow, .ldx = K / unit[family],
                                   .S = x->S};
        for (size_t i = 0; i < count; i++)
            if (family_of(&parts[i].w, x) == family)
                args.part[some++] = parts[i];
        if (tiles) {
            args.tiles = tiles->list;
            args.x_row = tiles->x_row;
            args.expert_step = tiles->expert_step;
        }
        if (some)
            start(d, &args, some, family, T, tiles ? tiles->count : divide_up(x->S, T));
    }
}

static void linears(struct op_ctx *cx, const struct arithmetic *how, const struct linear *layers, size_t count,
                    const float *x, size_t S)
{
    size_t mark = op_mark(cx);
    struct matmul_part parts[OP_LINEAR_MOST];
    unsigned forms = 0;
    for (size_t i = 0; i < count; i++) {
        forms |= device_form(how, layers[i].w);
        parts[i] = device_part(cx->device, layers[i].w, device_at(cx->device, layers[i].y),
                               layers[i].ldy ? layers[i].ldy : layers[i].w->rows);
    }
    struct device_x converted = device_convert(cx, how, forms, x, S, layers->w->cols);
    device_multiply(cx->device, parts, count, &converted, NULL);
    op_give(cx, mark);
}

void cuda_linears(struct op_ctx *cx, const struct linear *layers, size_t count, const float *x, size_t S)
{
    linears(cx, cx->arithmetic, layers, count, x, S);
}

void cuda_linear_exact(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    linears(cx, &arithmetic_exact, &(struct linear){y, w, 0}, 1, x, S);
}

void cuda_linear_heads(struct op_ctx *cx, const struct device_heads *p, size_t S)
{
    size_t mark = op_mark(cx), K = p->w->cols, groups = K / QUANTIZED_GROUP;
    int quantized = weight_is_quantized(p->w->type);
    struct matmul_args args = {.x = p->x, .ldx = p->ldx, .S = S, .heads = p->heads, .w_step = p->w_step,
                               .x_step = p->x_step, .y_step = p->y_step};
    args.part[0] = device_part(cx->device, p->w, p->y, p->ldy);
    args.part[0].w.rows = p->rows;
    if (quantized) {
        struct quantized_group *to = device_at(cx->device,
                                               op_take(cx, S * p->heads * groups * sizeof *to / sizeof(float)));
        device_run(cx->device, quantize, S * p->heads, divide_up(groups, THREADS_quantize / 32), 1, .y = to, .x = p->x,
                   .ldx = p->ldx, .K = K, .heads = p->heads, .x_step = p->x_step);
        args.groups = to;
        args.ldx = p->heads * groups;
        args.x_step = groups;
    }
    enum device_family family = quantized ? BY_RULE_2 : BY_RULE_1;
    size_t T = device_tile_rows(cx->device, S, family);
    start(cx->device, &args, 1, family, T, divide_up(S, T));
    op_give(cx, mark);
}
