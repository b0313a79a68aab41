#include "engine/pass/reads.h"

static void one(read_sink each, void *context, enum pass_part part, enum read_split split, const struct weight_view *w,
                int exact)
{
    struct read r = {.part = part, .split = split, .w = *w, .exact = exact};
    each(context, &r);
}

void reads_of_heads(const struct config *c, const struct mla *a, read_sink each, void *context)
{
    struct weight_view w_uk = a->w_uk, w_uv = a->w_uv; /* if both are views of kv_b_proj, their rows also count those of
                                                          the other one */
    w_uk.rows = c->dims.H * (a->uk_transposed ? c->dims.c : c->dims.n);
    w_uv.rows = c->dims.H * c->dims.v;
    one(each, context, PART_ATTENTION, READ_BY_HEADS, &w_uk, 1);
    one(each, context, PART_ATTENTION, READ_BY_HEADS, &w_uv, 0);
}

static void of_attention(const struct config *c, const struct mla *a, read_sink each, void *context)
{
    if (c->q_lora_rank) {
        one(each, context, PART_Q_A, READ_WHOLE, &a->q_a_proj, 0);
        one(each, context, PART_Q_B, READ_BY_HEADS, &a->q_b_proj, 0);
    } else {
        one(each, context, PART_Q_A, READ_BY_HEADS, &a->q_proj, 0);
    }
    one(each, context, PART_Q_A, READ_WHOLE, &a->kv_a_proj_with_mqa, 0);
    if (a->has_indexer) {
        one(each, context, PART_Q_A, READ_WHOLE, &a->indexer.wk, 0);
        one(each, context, PART_INDEXER, READ_WHOLE, &a->indexer.wq_b, 0);
        one(each, context, PART_INDEXER, READ_WHOLE, &a->indexer.weights_proj, 1);
    }
    reads_of_heads(c, a, each, context);
    one(each, context, PART_O, READ_BY_ROWS, &a->o_proj, 0);
}

static void of_mlp(const struct mlp *m, enum pass_part part, int routed, read_sink each, void *context)
{
    const struct weight_view *w[] = {&m->gate_proj, &m->up_proj, &m->down_proj};
    for (size_t i = 0; i < 3; i++) {
        struct read r = {.part = part, .split = READ_BY_ROWS, .w = *w[i], .routed = routed};
        each(context, &r);
    }
}

void reads_of_layer(const struct config *c, const struct layer *l, read_sink each, void *context)
{
    of_attention(c, &l->self_attn, each, context);
    if (!l->is_moe) {
        of_mlp(&l->mlp, PART_DENSE, 0, each, context);
        return;
    }
    one(each, context, PART_ROUTER, READ_WHOLE, &l->moe.gate, 1);
    of_mlp(&l->moe.experts[0], PART_EXPERTS, 1, each, context);
    if (c->n_shared_experts)
        of_mlp(&l->moe.shared_experts, PART_EXPERTS, 0, each, context);
}

double read_bytes(const struct weight_view *w, size_t rows)
{
    struct weight_view part = *w;
    double numbers = (double)rows * (double)w->cols;
    part.rows = rows;
    double bytes = rows ? (double)weight_bytes(&part) : 0;
    switch (w->type) {
    case WEIGHT_I8:
    case WEIGHT_F8_E4M3:
        return bytes +
               4 * (double)((w->cols + w->block_cols - 1) / w->block_cols) * (double)rows / (double)w->block_rows;
    case WEIGHT_I4: return bytes + 2 * numbers / QUANTIZED_GROUP;
    case WEIGHT_F4: return bytes + numbers / (double)w->group_size;
    default: return bytes;
    }
}

int reads_chosen(const struct config *c, const struct mla *a, double depth)
{
    return c->index_topk && !a->sees_all && depth > c->index_topk;
}

double read_latents(const struct config *c, double tokens)
{
    struct kv_layout layout = model_cache_layout(c);
    return tokens * 4 * (double)kv_row_words(&layout);
}

double read_keys(const struct config *c, double tokens) { return tokens * (double)model_cache_layout(c).index_row; }
