/* engine/pass/indexing.c -- the indexer of one layer, for the rows of a pass. */
#include "engine/pass/indexing.h"

#include "engine/pass/forward_internal.h"
#include "engine/pass/offload.h"
#include "engine/pass/tap.h"
#include "ops/indexer_device.h"
#include "ops/linear.h"
#include "ops/round.h"

#include <string.h>

struct indexer index_of(const struct workspace *w)
{
    struct indexer ix = model_indexer(&w->model->config);
    ix.kept = w->kept_most;
    return ix;
}

static void keep_keys(struct workspace *w, const struct mla *a, const struct indexer *ix, const struct row *rows,
                      size_t S)
{
    size_t D = ix->dim;
    tap(w, "self_attn.indexer.wk.output", w->index_k, D);
    for (size_t s = 0; s < S; s++)
        op_index_norm(w->cx.k, w->index_k + s * D, a->indexer.k_norm, a->indexer.k_norm_bias, D);
    tap(w, "self_attn.indexer.k_norm.output", w->index_k, D);
    for (size_t s = 0; s < S; s++)
        op_rope(w->index_k + s * D, 1, D, w->cos_sin + s * w->rope.dim, &w->index_rope);
    tap(w, "self_attn.indexer.k", w->index_k, D);
    for (size_t s = 0; s < S; s++)
        op_index_key(ix, kvcache_index_row(rows[s].cache, a->indexer.number, rows[s].slot), w->index_k + s * D);
}

void index_head_weights(struct workspace *w, const struct mla *a, float *out, const float *x, size_t S)
{
    struct indexer ix = index_of(w);
    if (ix.bf16_weights) {
        op_round(&w->cx, w->delta, x, S * w->model->config.dims.d); /* `delta` is free until attention writes it */
        x = w->delta;
    }
    op_linear_exact(&w->cx, out, x, &a->indexer.weights_proj, S);
    if (ix.bf16_weights)
        op_round(&w->cx, out, out, S * ix.heads);
}

/* Computes queries and weights of rows [first, first + S). With taps, these are all rows. */
static void make_queries(struct workspace *w, const struct mla *a, const struct indexer *ix, const float *x,
                         size_t first, size_t S)
{
    const struct dims *d = &w->model->config.dims;
    size_t width = ix->heads * ix->dim;
    op_linear(&w->cx, w->index_q, w->q_a + first * d->q, &a->indexer.wq_b, S);
    index_head_weights(w, a, w->index_w, x + first * d->d, S);
    tap(w, "self_attn.indexer.wq_b.output", w->index_q, width);
    tap(w, "self_attn.indexer.weights_proj.output", w->index_w, ix->heads);
    for (size_t s = 0; s < S; s++)
        op_rope(w->index_q + s * width, ix->heads, ix->dim, w->cos_sin + (first + s) * w->rope.dim, &w->index_rope);
    tap(w, "self_attn.indexer.q", w->index_q, width);
    op_index_queries(&w->cx, w->index_q, w->index_w, ix, S);
    tap(w, "self_attn.indexer.weights", w->index_w, ix->heads);
}

static int sees_more(const struct workspace *w, size_t s) { return w->seen[s].length > w->kept_most; }
static int uses_kept(const struct row *row) { return row->use && row->use->count; }
static int has_to_choose(const struct workspace *w, const struct row *rows, size_t s)
{
    return sees_more(w, s) && !uses_kept(&rows[s]);
}

/* Makes w->seen[s] the tokens to which the row attends. */
static void attend_to_kept(struct workspace *w, const struct row *row, size_t s)
{
    struct timeline *seen = &w->seen[s];
    if (sees_more(w, s)) {
        seen->slots = uses_kept(row) ? row->use->slots : w->kept + s * w->kept_most;
        seen->length = uses_kept(row) ? row->use->count : w->kept_most;
    }
    if (row->keep) {
        memcpy(row->keep->slots, seen->slots, seen->length * sizeof *seen->slots);
        row->keep->count = seen->length;
    }
}

static const int32_t *const *forced_tokens(struct workspace *w, size_t layer, const struct row *rows, size_t S)
{
    for (size_t s = 0; s < S; s++)
        w->forced[s] = rows[s].forced_kept;
    return forward_forced(w, layer * w->model->config.dims.index_topk, S);
}

static int32_t *recorded(const struct workspace *w, size_t layer, const struct row *row)
{
    return row->taken_kept ? row->taken_kept + layer * w->model->config.dims.index_topk : NULL;
}

/* Records the sets of rows [first, first + S) that had to choose: indices in w->kept. Then kept_most is index_topk. */
static void record_chosen(const struct workspace *w, size_t layer, const struct row *rows, size_t first, size_t S)
{
    for (size_t s = first; s < first + S; s++)
        if (recorded(w, layer, &rows[s]) && has_to_choose(w, rows, s))
            memcpy(recorded(w, layer, &rows[s]), w->kept + s * w->kept_most, w->kept_most * sizeof *w->kept);
}

/* Records the sets of all other rows: all tokens that a row sees, or nothing in a layer without an indexer. */
static void record_others(const struct workspace *w, const struct mla *a, size_t layer, const struct row *rows,
                          size_t S)
{
    size_t topk = w->model->config.dims.index_topk;
    for (size_t s = 0; s < S; s++) {
        int32_t *to = recorded(w, layer, &rows[s]);
        size_t n = a->has_indexer ? w->seen[s].length : 0;
        for (size_t i = 0; to && (!a->has_indexer || !has_to_choose(w, rows, s)) && i < topk; i++)
            to[i] = i < n ? (int32_t)i : -1;
    }
}

/* Replaces the tokens that rows [first, first + S) see by those that the indexer chooses, in w->kept. */
static void choose(struct workspace *w, const struct mla *a, size_t layer, const struct indexer *ix,
                   const struct row *rows, const float *x, size_t first, size_t S)
{
    size_t K = ix->kept;
    make_queries(w, a, ix, x, first, S);
    for (size_t s = first; s < first + S; s++) {
        /* row.use replaces the choice */
        size_t length = sees_more(w, s) && !has_to_choose(w, rows, s) ? 0 : w->seen[s].length;
        w->index_seen[s] = (struct timeline){kvcache_index_layer(rows[s].cache, a->indexer.number), w->seen[s].slots,
                                             length};
    }
    tap_operator(w, "self_attn.indexer.");
    op_index_choose(&w->cx, w->kept + first * K, w->index_q, w->index_w, w->index_seen + first, ix, S, w->context);
    record_chosen(w, layer, rows, first, S);
    for (size_t s = first; s < first + S; s++)
        for (size_t i = s * K; has_to_choose(w, rows, s) && i < (s + 1) * K; i++)
            w->kept[i] = w->seen[s].slots[w->kept[i]];
}

/* A layer without an indexer needs the choice of an earlier layer, which the CPU may have computed. */
static void index_on_device(struct workspace *w, const struct mla *a, const float *x, size_t S)
{
    struct indexer ix = index_of(w);
    struct device_index p = {.indexer = &ix, .rope = &w->index_rope, .cos_sin = w->cos_sin, .rows = w->offload.rows,
                             .layer = a->indexer.number, .longest = w->offload.longest};
    if (a->has_indexer)
        device_index_keys(&w->cx, w->index_k, a->indexer.k_norm, a->indexer.k_norm_bias, &p, S);
    if (!offload_chooses(w, a))
        return;
    if (a->has_indexer) {
        op_enter(&w->cx, PART_INDEXER);
        op_linear(&w->cx, w->index_q, w->q_a, &a->indexer.wq_b, S);
        index_head_weights(w, a, w->index_w, x, S);
        device_index_choose(&w->cx, w->kept, w->index_q, w->index_w, &p, S);
        op_enter(&w->cx, PART_SMALL);
        w->offload.kept_is_there = 1;
    }
    offload_send_kept(w, S);
}

void index_tokens(struct workspace *w, const struct mla *a, size_t layer, const struct row *rows, const float *x,
                  size_t S)
{
    struct indexer ix = index_of(w);
    size_t first = 0, end = S;
    if (offload_is_on(w)) {
        index_on_device(w, a, x, S);
        return;
    }
    if (a->has_indexer)
        keep_keys(w, a, &ix, rows, S);
    while (first < end && !w->tapper && !has_to_choose(w, rows, first))
        first++;
    while (end > first && !w->tapper && !has_to_choose(w, rows, end - 1))
        end--;
    if (a->has_indexer && first < end) {
        op_enter(&w->cx, PART_INDEXER);
        ix.forced = forced_tokens(w, layer, rows + first, end - first);
        choose(w, a, layer, &ix, rows, x, first, end - first);
        op_enter(&w->cx, PART_SMALL);
    }
    record_others(w, a, layer, rows, S);
    for (size_t s = 0; s < S; s++)
        attend_to_kept(w, &rows[s], s);
}
