/* ops/cuda/operators.c -- the table of a device's operators, and those of them that start one kernel. */
#include "ops/cuda/operators_internal.h"

#include <assert.h>

#include "ops/cache_rows.h"
#include "ops/cuda/linear.h"

_Static_assert((int)CACHE_F32 == (int)KV_F32 && (int)CACHE_BF16 == (int)KV_BF16 && (int)CACHE_Q8 == (int)KV_Q8,
               "kernels have the same cache types");

static void embed(const struct op_ctx *cx, float *y, size_t ldy, const struct weight_view *w, const int32_t *tok,
                  size_t S)
{
    struct device *d = cx->device;
    device_run(d, embed, S, divide_up(w->cols, THREADS_embed), 1, .y = device_at(d, y), .tok = device_at(d, tok),
               .ldy = ldy, .part = device_part(d, w, NULL, 0));
}

static void rmsnorm(const struct op_ctx *cx, float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t S,
                    size_t D, float eps)
{
    struct device *d = cx->device;
    device_run(d, rmsnorm, S, 1, 1, .y = device_at(d, y), .x = device_at(d, x), .w = device_at(d, w), .ldy = ldy,
               .ldx = ldx, .D = D, .eps = eps);
}

static void linear(struct op_ctx *cx, float *y, const float *x, const struct weight_view *w, size_t S)
{
    cuda_linears(cx, &(struct linear){y, w, 0}, 1, x, S);
}

static void linear_divided(struct op_ctx *cx, float *y, size_t N, const float *x, size_t unit,
                           const struct weight_view *w, size_t S)
{
    (void)unit;
    assert(!cx->ranks && N == w->rows);
    linear(cx, y, x, w, S);
}

static void add(const struct op_ctx *cx, float *y, const float *x, size_t n)
{
    struct device *d = cx->device;
    device_run(d, add, divide_up(n, THREADS_add), 1, 1, .y = device_at(d, y), .x = device_at(d, x), .n = n);
}

static void round_numbers(const struct op_ctx *cx, float *y, const float *x, size_t n)
{
    struct device *d = cx->device;
    device_run(d, round_x, divide_up(n, THREADS_round_x), 1, 1, .y = device_at(d, y), .x = device_at(d, x), .ldx = n,
               .K = n, .keeps_tiny = 1);
}

static void cache_rows(const struct op_ctx *cx, float *q, float *kv_a, const float *cos_sin,
                       const struct row_place *rows, const struct cache_rows *a, size_t S)
{
    struct device *d = cx->device;
    device_run(d, cache_rows, S, 1 + divide_up(a->heads, CACHE_ROWS_HEADS), 1, .q = a->heads ? device_at(d, q) : NULL,
               .kv_a = device_at(d, kv_a), .cos_sin = device_at(d, cos_sin), .rows = device_at(d, rows),
               .layer = a->layer, .ldq = a->ldq, .heads = a->heads, .nope = a->nope, .rope = a->layout.rope,
               .latent = a->layout.latent, .row_bytes = kv_row_bytes(&a->layout), .rope_at = kv_rope_at(&a->layout),
               .interleave = a->rope->interleave, .cache = (int)a->layout.type, .round_latent = a->round_latent,
               .read_back = a->read_back);
}

int cuda_can_route(const struct router *r)
{
    return r->experts <= ROUTER_MOST_EXPERTS && r->chosen <= ROUTER_MOST_CHOSEN;
}

static void router(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r,
                   size_t S)
{
    struct device *d = cx->device;
    int grouped = r->grouped && r->chosen_groups < r->groups;
    assert(cuda_can_route(r) && !r->forced && !cx->probe);
    device_run(d, router, S, 1, 1, .expert = device_at(d, expert), .weight = device_at(d, weight),
               .logits = device_at(d, logits), .bias = device_at(d, r->bias), .experts = (unsigned)r->experts,
               .chosen = (unsigned)r->chosen, .groups = grouped ? (unsigned)r->groups : 1,
               .kept_groups = grouped ? (unsigned)r->chosen_groups : 0, .sigmoid = r->sigmoid,
               .group_sum_of_two = r->group_sum_of_two, .mask_with_zero = r->mask_with_zero,
               .norm_topk_prob = r->norm_topk_prob, .scaled = r->sigmoid || r->scale_softmax || !r->norm_topk_prob,
               .normaliser = r->normaliser, .bf16 = r->bf16, .factor = r->routed_scaling_factor);
}

static void first_not_finite(const struct op_ctx *cx, int32_t *first, const float *x, int32_t layer, size_t S, size_t D)
{
    struct device *d = cx->device;
    device_run(d, first_not_finite, S, 1, 1, .first = device_at(d, first), .x = device_at(d, x), .D = D,
               .layer = layer);
}

/* ---- argmax: first the best number of each part of a row, then the best of these ---- */

#define ARGMAX_PART ((size_t)8192) /* numbers for a block of threads: enough blocks for a whole GPU */

size_t cuda_argmax_scratch(size_t S, size_t V) { return op_scratch_bytes(S * divide_up(V, ARGMAX_PART)); }

static void argmax(struct op_ctx *cx, int32_t *best, const float *z, size_t S, size_t V)
{
    struct device *d = cx->device;
    size_t parts = divide_up(V, ARGMAX_PART), mark = op_mark(cx);
    int32_t *of_parts = device_at(d, op_take(cx, S * parts));
    device_run(d, best_of_rows, S, parts, 1, .best = of_parts, .z = device_at(d, z), .V = V, .count = V,
               .part = ARGMAX_PART);
    device_run(d, best_of_rows, S, 1, 1, .best = device_at(d, best), .z = device_at(d, z), .V = V, .places = of_parts,
               .count = parts, .part = parts);
    op_give(cx, mark);
}

/* ---- the table ---- */

const struct operators operators_cuda = {
    .name = "cuda",
    .embed = embed,
    .rmsnorm = rmsnorm,
    .linears = cuda_linears,
    .linear = linear,
    .linear_exact = cuda_linear_exact,
    .linear_divided = linear_divided,
    .add = add,
    .round = round_numbers,
    .cache_rows = cache_rows,
    .attention = cuda_attention,
    .mlp = cuda_mlp,
    .router = router,
    .moe = cuda_moe,
    .first_not_finite = first_not_finite,
    .argmax = argmax,
};

void operators_place(struct op_ctx *cx, struct device *d)
{
    cx->device = d;
    cx->op = d ? &operators_cuda : &operators_cpu;
}
