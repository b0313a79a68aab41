/* engine/pass/indexing.c -- the indexer of one layer, for the rows of a pass. */
#include "engine/pass/indexing.h"

#include "engine/pass/feed_forward.h"
#include "engine/pass/step.h"
#include "ops/operators.h"

#include <string.h>

struct indexer index_of(const struct pass *p)
{
    struct indexer ix = model_indexer(&p->model->config);
    ix.kept = p->w.kept_most;
    return ix;
}

/* ---- keys, queries and weights ---- */

static void rotate(struct pass *p, float *vectors, size_t count, size_t first, size_t S)
{
    size_t D = p->model->config.dims.index_dim;
    for (size_t s = 0; s < S; s++)
        op_rope(vectors + s * count * D, count, D, p->w.cos_sin + (first + s) * p->rope.dim, &p->index_rope);
}

static void keys(struct pass *p, const struct indexer *ix)
{
    const struct mla *a = &p->l->self_attn;
    size_t D = ix->dim;
    if (step_begins(p, INDEX_K_NORM)) {
        for (size_t s = 0; s < p->S; s++)
            op_index_norm(p->cx.k, p->w.index_k + s * D, a->indexer.k_norm, a->indexer.k_norm_bias, D);
        step_ends(p, INDEX_K_NORM);
    }
    if (step_begins(p, INDEX_K)) {
        rotate(p, p->w.index_k, 1, 0, p->S);
        step_ends(p, INDEX_K);
    }
    for (size_t s = 0; s < p->S && p->only == NO_VALUE; s++)
        op_index_key(ix, kvcache_index_row(p->rows[s].cache, a->indexer.number, p->rows[s].slot), p->w.index_k + s * D);
}

void index_head_weights(struct pass *p, float *out, const float *x, size_t S)
{
    struct indexer ix = index_of(p);
    if (ix.bf16_weights) {
        /* `delta` is free until attention writes it */
        p->cx.op->round(&p->cx, p->w.delta, x, S * p->model->config.dims.d);
        x = p->w.delta;
    }
    p->cx.op->linear_exact(&p->cx, out, x, &p->l->self_attn.indexer.weights_proj, S);
    if (ix.bf16_weights)
        p->cx.op->round(&p->cx, out, out, S * ix.heads);
}

/* Computes queries and weights of rows [first, first + S). If somebody wants to see them, these are all rows. */
static void queries(struct pass *p, const struct indexer *ix, size_t first, size_t S)
{
    const struct dims *d = &p->model->config.dims;
    if (step_begins(p, INDEX_WQ_B)) {
        p->cx.op->linear(&p->cx, p->w.index_q, p->w.q_a + first * d->q, &p->l->self_attn.indexer.wq_b, S);
        step_ends(p, INDEX_WQ_B);
    }
    if (step_begins(p, INDEX_WEIGHTS_PROJ)) {
        index_head_weights(p, p->w.index_w, p->w.normed + first * d->d, S);
        step_ends(p, INDEX_WEIGHTS_PROJ);
    }
    if (step_begins(p, INDEX_Q)) {
        rotate(p, p->w.index_q, ix->heads, first, S);
        step_ends(p, INDEX_Q);
    }
    if (step_begins(p, INDEX_WEIGHTS)) {
        op_index_queries(&p->cx, p->w.index_q, p->w.index_w, ix, S);
        step_ends(p, INDEX_WEIGHTS);
    }
}

/* ---- which rows choose ---- */

static int sees_more(const struct pass *p, size_t s) { return p->w.seen[s].length > p->w.kept_most; }
static int uses_kept(const struct row *row) { return row->use && row->use->count; }
static int has_to_choose(const struct pass *p, size_t s) { return sees_more(p, s) && !uses_kept(&p->rows[s]); }

/* Makes p->w.seen[s] the tokens to which the row attends. */
static void attend_to_kept(struct pass *p, const struct row *row, size_t s)
{
    struct timeline *seen = &p->w.seen[s];
    if (sees_more(p, s)) {
        seen->slots = uses_kept(row) ? row->use->slots : p->w.kept + s * p->w.kept_most;
        seen->length = uses_kept(row) ? row->use->count : p->w.kept_most;
    }
    if (row->keep) {
        memcpy(row->keep->slots, seen->slots, seen->length * sizeof *seen->slots);
        row->keep->count = seen->length;
    }
}

/* ---- forced and recorded choices ---- */

static const int32_t *const *forced_tokens(struct pass *p, size_t first, size_t S)
{
    for (size_t s = 0; s < S; s++)
        p->w.forced[s] = p->rows[first + s].forced_kept;
    return forced_numbers(p, p->cache_layer * p->model->config.dims.index_topk, S);
}

static int32_t *recorded(const struct pass *p, const struct row *row)
{
    return row->taken_kept ? row->taken_kept + p->cache_layer * p->model->config.dims.index_topk : NULL;
}

/* Records the sets of rows [first, first + S) that had to choose: indices in p->w.kept. Then kept_most is
 * index_topk. */
static void record_chosen(const struct pass *p, size_t first, size_t S)
{
    for (size_t s = first; s < first + S; s++)
        if (recorded(p, &p->rows[s]) && has_to_choose(p, s))
            memcpy(recorded(p, &p->rows[s]), p->w.kept + s * p->w.kept_most, p->w.kept_most * sizeof *p->w.kept);
}

/* Records the sets of all other rows: all tokens that a row sees, or nothing in a layer without an indexer. */
static void record_others(const struct pass *p)
{
    size_t topk = p->model->config.dims.index_topk;
    int has_indexer = p->l->self_attn.has_indexer;
    for (size_t s = 0; s < p->S; s++) {
        int32_t *to = recorded(p, &p->rows[s]);
        size_t n = has_indexer ? p->w.seen[s].length : 0;
        for (size_t i = 0; to && (!has_indexer || !has_to_choose(p, s)) && i < topk; i++)
            to[i] = i < n ? (int32_t)i : -1;
    }
}

/* ---- the choice ---- */

/* Replaces the tokens that rows [first, first + S) see by those that the indexer chooses, in p->w.kept. */
static void choose(struct pass *p, const struct indexer *ix, size_t first, size_t S)
{
    size_t K = ix->kept;
    queries(p, ix, first, S);
    if (p->only != NO_VALUE)
        return;
    for (size_t s = first; s < first + S; s++) {
        size_t length = sees_more(p, s) && !has_to_choose(p, s) ? 0 : p->w.seen[s].length; /* row.use replaces the
                                                                                              choice */
        p->w.index_seen[s] = (struct timeline){kvcache_index_layer(p->rows[s].cache, p->l->self_attn.indexer.number),
                                               p->w.seen[s].slots, length};
    }
    op_index_choose(&p->cx, p->w.kept + first * K, p->w.index_q, p->w.index_w, p->w.index_seen + first, ix, S,
                    p->w.context);
    record_chosen(p, first, S);
    for (size_t s = first; s < first + S; s++)
        for (size_t i = s * K; has_to_choose(p, s) && i < (s + 1) * K; i++)
            p->w.kept[i] = p->w.seen[s].slots[p->w.kept[i]];
}

void index_tokens(struct pass *p)
{
    struct indexer ix = index_of(p);
    size_t first = 0, end = p->S;
    int all = p->tapper || p->only != NO_VALUE, has_indexer = p->l->self_attn.has_indexer;
    if (has_indexer)
        keys(p, &ix);
    while (first < end && !all && !has_to_choose(p, first))
        first++;
    while (end > first && !all && !has_to_choose(p, end - 1))
        end--;
    if (has_indexer && first < end) {
        op_enter(&p->cx, PART_INDEXER);
        ix.forced = forced_tokens(p, first, end - first);
        choose(p, &ix, first, end - first);
    }
    if (p->only != NO_VALUE)
        return;
    record_others(p);
    for (size_t s = 0; s < p->S; s++)
        attend_to_kept(p, &p->rows[s], s);
}

void choose_tokens(struct pass *p)
{
    if (p->w.kept_most && !p->l->self_attn.sees_all)
        p->side.choose_tokens(p);
}
