#include "ops/cuda/indexer.h"

#include "ops/attention_blocks.h"
#include "numbers/numbers.h"

#define MOST_SCORES ((size_t)1 << 24) /* scores at once, but at least of one row. It changes no bit */

static size_t rows_at_once(size_t S, size_t longest)
{
    return min_size(min_size(S, DEVICE_MOST_BLOCKS), max_size(1, MOST_SCORES / max_size(1, longest)));
}

static struct index_vectors vectors_of(struct device *g, const struct device_index *p)
{
    const struct indexer *ix = p->indexer;
    return (struct index_vectors){.cos_sin = device_at(g, p->cos_sin), .dim = ix->dim, .rope = p->rope->dim,
                                  .interleave = p->rope->interleave, .hadamard = ix->hadamard, .codes = ix->codes,
                                  .of_dim = index_inverse_root(ix->dim)};
}

void cuda_index_keys(struct op_ctx *cx, const float *k, const float *norm, const float *bias,
                       const struct device_index *p, size_t S)
{
    struct device *g = cx->device;
    device_run(g, index_keys, S, 1, 1, .k = device_at(g, k), .norm = device_at(g, norm), .bias = device_at(g, bias),
               .rows = device_at(g, p->rows), .vectors = vectors_of(g, p), .layer = p->layer,
               .row_bytes = index_row_bytes(p->indexer), .eps = INDEX_NORM_EPS);
}

size_t cuda_index_scratch(size_t S, size_t longest) { return op_scratch_bytes(rows_at_once(S, longest) * longest); }

void cuda_index_choose(struct op_ctx *cx, int32_t *slots, float *q, float *w, const struct device_index *p, size_t S)
{
    struct device *g = cx->device;
    const struct indexer *ix = p->indexer;
    size_t mark = op_mark(cx), most = rows_at_once(S, p->longest), H = ix->heads;
    struct index_choice_args args = {.score = device_at(g, op_take(cx, most * p->longest)), .heads = H, .dim = ix->dim,
                                     .kept = ix->kept, .longest = p->longest, .layer = p->layer,
                                     .row_bytes = index_row_bytes(ix), .codes = ix->codes,
                                     .bf16_scores = ix->bf16_scores, .highest = ix->highest};
    device_run(g, index_queries, S, H, 1, .q = device_at(g, q), .w = device_at(g, w), .vectors = vectors_of(g, p),
               .of_heads = index_inverse_root(H), .bf16_weights = ix->bf16_weights);
    for (size_t s = 0; s < S; s += most) {
        size_t some = min_size(most, S - s);
        args.q = device_at(g, q + s * H * ix->dim);
        args.w = device_at(g, w + s * H);
        args.rows = device_at(g, p->rows + s);
        args.slots = device_at(g, slots + s * ix->kept);
        device_launch(g, KERNEL_index_scores, divide_up(p->longest, INDEX_SCORE_TOKENS), some, 1, &args, sizeof args);
        device_launch(g, KERNEL_index_keep, some, 1, 1, &args, sizeof args);
    }
    op_give(cx, mark);
}
