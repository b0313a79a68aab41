#include "ops/attention_blocks.h"
#include "numbers/numbers.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/operators_internal.h"

#define MOST_VALUES ((size_t)1 << 24) /* floats of scratch for several queries at once, so that a long prefill needs no
                                         more. It changes no bit */

static size_t width_of(const struct attention *a) { return packed_length(a->latent + a->rope); }
static size_t columns_of(const struct attention *a) { return packed_length(a->latent); }
static size_t group_floats(size_t K) { return K / QUANTIZED_GROUP * sizeof(struct quantized_group) / sizeof(float); }

/* What one query needs, in floats. */
struct room {
    size_t query, query_groups, score, m, values, o, q_groups, o_groups;
};

static struct room room_of(const struct attention *a, size_t context)
{
    size_t H = a->heads, blocks = blocks_of(context);
    return (struct room){.query = H * width_of(a), .query_groups = a->cache == KV_Q8 ? H * group_floats(a->latent) : 0,
                         .score = H * blocks * ATTENTION_BLOCK, .m = H * blocks, .values = H * blocks * columns_of(a),
                         .o = H * columns_of(a), .q_groups = H * group_floats(a->nope),
                         .o_groups = H * group_floats(a->latent)};
}

/* Bytes for one query. Each array begins at a multiple of 64 bytes for any number of queries. */
static size_t bytes_of(const struct room *r)
{
    return op_scratch_bytes(r->query) + op_scratch_bytes(r->query_groups) + op_scratch_bytes(r->score) +
           2 * op_scratch_bytes(r->m) + op_scratch_bytes(r->values) + op_scratch_bytes(r->o) +
           op_scratch_bytes(r->q_groups) + op_scratch_bytes(r->o_groups);
}

size_t cuda_attention_scratch(const struct attention *a, size_t S, size_t context)
{
    struct room r = room_of(a, context);
    return min_size(S * bytes_of(&r), max_size(bytes_of(&r), MOST_VALUES * sizeof(float)));
}

static float *take(struct op_ctx *cx, size_t floats)
{
    return floats ? device_at(cx->device, op_take(cx, floats)) : NULL;
}

/* The product with W_uv, or with a quantized W_uk. */
static void multiply_heads(struct op_ctx *cx, const struct attention *a, struct device_heads p, size_t S)
{
    p.heads = a->heads;
    cuda_linear_heads(cx, &p, S);
}

static void some_queries(struct op_ctx *cx, float *y, const float *q, const struct attention *a,
                         const struct attention_args *args)
{
    struct device *g = cx->device;
    size_t S = args->S, H = a->heads, n = a->nope, v = a->value, H_row = attention_row_heads(a);
    if (a->uk_transposed)
        multiply_heads(cx, a,
                       (struct device_heads){.w = &a->w_uk, .w_step = a->uk_stride, .rows = a->latent, .y = args->o,
                                             .ldy = H * args->columns, .y_step = args->columns, .x = q,
                                             .ldx = args->ldq, .x_step = n + a->rope},
                       S);
    device_launch(g, KERNEL_absorb, divide_up(args->columns, VALUE_COLUMNS), H, divide_up(S, ABSORB_ROWS), args,
                  sizeof *args);
    if (a->cache == KV_Q8)
        device_launch(g, KERNEL_quantize_queries,
                      divide_up(S * H * (a->latent / QUANTIZED_GROUP), THREADS_quantize_queries / 32), 1, 1, args,
                      sizeof *args);
    device_launch(g, KERNEL_attention_scores, args->blocks * (ATTENTION_BLOCK / SCORE_TOKENS),
                  divide_up(H, SCORE_HEADS), S, args, sizeof *args);
    device_launch(g, KERNEL_attention_values, args->blocks,
                  divide_up(H, VALUE_HEADS) * divide_up(args->columns, VALUE_COLUMNS), S, args, sizeof *args);
    device_launch(g, KERNEL_join_blocks, S * H, divide_up(args->columns, THREADS_join_blocks), 1, args, sizeof *args);
    multiply_heads(cx, a,
                   (struct device_heads){.w = &a->w_uv, .w_step = a->uv_stride, .rows = v, .y = y, .ldy = H_row * v,
                                         .y_step = v, .x = args->o, .ldx = H * args->columns, .x_step = args->columns},
                   S);
}

void cuda_attention(struct op_ctx *cx, float *y, const float *q, const struct timeline *seen, const struct attention *a,
                    size_t S, size_t context)
{
    (void)seen, (void)context;
    struct kv_layout layout = attention_rows(a);
    struct room r = room_of(a, a->longest);
    size_t mark = op_mark(cx), most = min_size(S, max_size(1, MOST_VALUES * sizeof(float) / max_size(1, bytes_of(&r))));
    size_t ldq = attention_row_heads(a) * (a->nope + a->rope), ldy = attention_row_heads(a) * a->value;
    const struct row_place *rows = device_at(cx->device, a->places);
    if (!a->heads)
        return;
    struct attention_args args = {.w_uk = device_view(cx->device, &a->w_uk), .query = take(cx, most * r.query),
                                  .query_groups = (struct quantized_group *)(void *)take(cx, most * r.query_groups),
                                  .score = take(cx, most * r.score), .m = take(cx, most * r.m),
                                  .l = take(cx, most * r.m), .values = take(cx, most * r.values),
                                  .o = take(cx, most * r.o), .ldq = ldq, .heads = a->heads, .nope = a->nope,
                                  .rope = a->rope, .latent = a->latent, .width = width_of(a), .columns = columns_of(a),
                                  .blocks = blocks_of(a->longest), .uk_stride = a->uk_stride, .layer = a->layer,
                                  .row_bytes = kv_row_bytes(&layout), .rope_at = kv_rope_at(&layout), .scale = a->scale,
                                  .cache = (int)a->cache, .rounds_q = cx->arithmetic->bf16,
                                  .rounds_o = cx->arithmetic->bf16 && !weight_is_quantized(a->w_uv.type)};
    q = device_at(cx->device, q);
    y = device_at(cx->device, y);
    for (size_t s = 0; s < S; s += most) {
        args.S = min_size(most, S - s);
        args.q = q + s * ldq;
        args.rows = rows + s;
        some_queries(cx, y + s * ldy, args.q, a, &args);
    }
    op_give(cx, mark);
}
