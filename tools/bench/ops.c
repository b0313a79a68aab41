/* tools/bench/ops.c -- measures linear layers and attention alone, with random numbers, and oneDNN with the same linear
 * layers.
 *
 * Matrices and caches are consecutive pieces of the memory block on which the read bandwidth is measured. After the end
 * of the block, they begin again at its start. So with few rows, the CPU caches contain none of them. */
#include <stdlib.h>
#include <string.h>

#include "ops/attention.h"
#include "ops/crew.h"
#include "ops/linear.h"
#include "ops/onednn.h"
#include "ops/weights.h"
#include "tools/bench/bench.h"
#include "numbers/numbers.h"

#define READ_AT_LEAST 256e6 /* bytes of weights that a run with few rows reads at least: more than any CPU cache
                               holds */
/* the most calls in a run with few rows; a limit for matrices so small that CPU caches hold all of them */
#define MOST_CALLS 256.0
#define DONE_AT_LEAST 8e9   /* operations that a run with many rows does at least */

/* Returns the matrix of an item, without its weights. */
static struct weight_view shape_of(const struct bench_item *i)
{
    return (struct weight_view){.type = i->type, .rows = i->outputs, .cols = i->inputs, .stride = i->inputs,
                                .panels = weight_is_quantized(i->type)};
}

static size_t matrix_bytes(const struct bench_item *i)
{
    struct weight_view w = shape_of(i);
    return weight_bytes(&w);
}

void bench_largest_matrix(const struct vb_model *m, size_t *N, size_t *K)
{
    *N = *K = 0;
    for (int l = 0; l < m->config.num_hidden_layers; l++) {
        const struct layer *layer = &m->layers[l];
        const struct weight_view *candidates[] = {&layer->self_attn.q_proj, &layer->self_attn.q_b_proj,
                                                  &layer->self_attn.o_proj,
                                                  layer->is_moe ? &layer->moe.shared_experts.gate_proj
                                                                : &layer->mlp.gate_proj,
                                                  layer->is_moe ? &layer->moe.experts[0].gate_proj
                                                                : &layer->mlp.gate_proj};
        for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
            if (candidates[i]->rows * candidates[i]->cols > *N * *K) {
                *N = candidates[i]->rows;
                *K = candidates[i]->cols;
            }
    }
}

/* --- the amount of work in a run --- */

static size_t cache_row(const struct config *c) { return model_cache_bytes(c, c->cache_type) / c->dims.layers; }

static void plan_linear(struct bench_item *i)
{
    double numbers = (double)i->outputs * (double)i->inputs, rows = (double)i->rows;
    double bytes = (double)matrix_bytes(i), flops = 2 * numbers * rows;
    double calls = i->rows < BENCH_MOST_ROWS ? READ_AT_LEAST / bytes : DONE_AT_LEAST / flops;
    i->calls = (size_t)(calls < MOST_CALLS ? calls : MOST_CALLS - 1) + 1;
    i->work = (struct bench_work){.bytes = bytes * (double)i->calls, .flops = flops * (double)i->calls};
}

/* One call for each layer of the model. Each call has its own cache, unless the memory block is too small for all of
 * them. */
static void plan_attention(const struct bench *b, struct bench_item *i)
{
    const struct vb_model *m = b->c->model;
    i->calls = m->config.dims.layers;
    for (size_t l = 0; l < i->calls; l++) {
        struct bench_work one = bench_attention_work(m, &m->layers[l], (double)i->rows, (double)i->depth);
        i->work.bytes += one.bytes;
        i->work.flops += one.flops;
    }
}

void bench_ops_plan(const struct bench *b, struct bench_item *i)
{
    if (i->kind == BENCH_LINEAR)
        plan_linear(i);
    else
        plan_attention(b, i);
}

/* --- memory --- */

static struct attention attention_of(const struct vb_model *m, size_t layer)
{
    const struct config *c = &m->config;
    const struct mla *mla = &m->layers[layer].self_attn;
    return (struct attention){.heads = c->dims.H, .nope = c->dims.n, .rope = c->dims.r, .value = c->dims.v,
                              .latent = c->dims.c, .w_uk = mla->w_uk, .w_uv = mla->w_uv, .uk_stride = mla->uk_stride,
                              .uv_stride = mla->uv_stride, .uk_transposed = mla->uk_transposed,
                              .scale = config_attention_scale(c), .cache = model_cache_layout(c).type};
}

struct sizes { /* the largest size that any item needs */
    size_t scratch, x, y, depth, block;
};

static struct sizes sizes_of(const struct bench *b)
{
    struct sizes z = {0, 0, 0, 0, 0};
    struct attention a = attention_of(b->c->model, 0);
    size_t row = cache_row(&b->c->model->config);
    for (size_t k = 0; k < b->count; k++) {
        const struct bench_item *i = &b->item[k];
        if (i->kind == BENCH_LINEAR) {
            z.scratch = max_size(z.scratch, op_linear_scratch(i->rows, i->inputs));
            z.x = max_size(z.x, i->rows * i->inputs);
            z.y = max_size(z.y, i->rows * i->outputs);
            z.block = max_size(z.block, matrix_bytes(i));
        } else if (i->kind == BENCH_ATTENTION) {
            z.scratch = max_size(z.scratch, op_attention_scratch(&a, i->rows, i->depth, b->threads));
            z.x = max_size(z.x, i->rows * a.heads * (a.nope + a.rope));
            z.y = max_size(z.y, i->rows * a.heads * a.value);
            z.depth = max_size(z.depth, i->depth);
            z.block = max_size(z.block, i->depth * row);
        }
    }
    return z;
}

int bench_ops_open(struct bench *b)
{
    struct sizes z = sizes_of(b);
    size_t x = op_scratch_bytes(z.x), y = op_scratch_bytes(z.y), slots = op_scratch_bytes(z.depth);
    size_t seen = op_scratch_bytes(BENCH_MOST_QUERIES * sizeof(struct timeline) / sizeof(float));
    if (z.block > b->bytes || z.x * sizeof(float) > b->bytes)
        return cli_fail(b->c, EXIT_OTHER, "a matrix or a cache of %zu bytes is more than this measures",
                        max_size(z.block, z.x * sizeof(float)));
    size_t kernels = (size_t)b->threads * KERNEL_SCRATCH;
    size_t bytes = z.scratch + kernels + x + y + slots + seen + 64;
    if (posix_memalign(&b->memory, 64, bytes + crew_bytes(b->threads)))
        return cli_fail(b->c, EXIT_OTHER, "no memory for %zu bytes of linear layers", bytes);
    char *at = b->memory;
    b->cx = (struct op_ctx){.k = kernels_select(b->c->session.isa, NULL), .arithmetic = &b->arithmetic,
                            .threads = b->threads, .scratch = at, .scratch_size = z.scratch,
                            .kernel_scratch = at + z.scratch};
    if (b->threads > 1) {
        b->cx.crew = crew_open((char *)b->memory + (bytes & ~(size_t)63), b->threads, NULL, 1);
        crew_use(b->cx.crew, b->threads);
    }
    at += z.scratch + kernels;
    b->x = (float *)(void *)at;
    b->y = (float *)(void *)(at + x);
    b->slots = (int32_t *)(void *)(at + x + y);
    b->seen = (struct timeline *)(void *)(at + x + y + slots);
    memcpy(b->x, b->data, z.x * sizeof(float));
    for (size_t j = 0; j < z.depth; j++)
        b->slots[j] = (int32_t)j;
    return EXIT_DONE;
}

void bench_ops_close(struct bench *b)
{
    onednn_close(b->onednn);
    crew_close(b->cx.crew);
    free(b->memory);
}

/* --- one run --- */

/* Returns piece number n of `size` bytes. After the last piece of the block comes the first one again. */
static const char *piece(const struct bench *b, size_t n, size_t size)
{
    return (const char *)b->data + n % (b->bytes / size) * size;
}

static struct weight_view matrix(const struct bench *b, const struct bench_item *i, size_t call)
{
    struct weight_view w = shape_of(i);
    w.data = piece(b, call, matrix_bytes(i));
    return w;
}

static void linears(struct bench *b, const struct bench_item *i)
{
    unsigned char ordinary = MAGNITUDES_ORDINARY; /* fill() in bench.c writes no tiny weights */
    for (size_t call = 0; call < i->calls; call++) {
        struct weight_view w = matrix(b, i, call);
        w.magnitudes = &ordinary;
        op_linear(&b->cx, b->y, b->x, &w, i->rows);
    }
}

int bench_run_linear(struct bench *b, const struct bench_item *i, vb_error *err)
{
    enum onednn_type type = i->type == WEIGHT_F32 ? ONEDNN_F32 : ONEDNN_BF16;
    struct onednn_shape shape = {i->rows, i->outputs, i->inputs, i->inputs, i->inputs, i->outputs, type, type};
    const char *why = NULL;
    if (!i->onednn)
        linears(b, i);
    for (size_t call = 0; i->onednn && call < i->calls && !why; call++)
        why = onednn_linear(b->onednn, b->y, b->x, matrix(b, i, call).data, &shape);
    return why ? vb_fail(err, VB_UNSUPPORTED, "%s: %s", i->name, why) : VB_OK;
}

/* The queries are the last tokens of the sequence. */
void bench_run_attention(struct bench *b, const struct bench_item *i)
{
    const struct vb_model *m = b->c->model;
    size_t size = i->depth * cache_row(&m->config);
    for (size_t l = 0; l < i->calls; l++) {
        struct attention a = attention_of(m, l);
        const void *rows = piece(b, l, size);
        for (size_t s = 0; s < i->rows; s++)
            b->seen[s] = (struct timeline){rows, b->slots, i->depth - i->rows + s + 1};
        op_attention(&b->cx, b->y, b->x, b->seen, &a, i->rows, i->depth);
    }
}
