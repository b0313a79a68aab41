#include "engine/pass/reads.h"

#include "engine/model/values.h"

/* The part of a pass to which a matrix belongs: that of the value which is computed with it, if it is the only one. */
static enum pass_part part_of(enum model_tensor t, int is_moe)
{
    const struct layer_tensor *x = &layer_tensors[t];
    for (int v = 0; v < VALUES && x->owner == OWNER_LAYER; v++)
        if (value_table[v].place == OF_LAYER && value_table[v].weight == x->at)
            return value_table[v].part;
    return x->group == GROUP_ATTENTION ? PART_ATTENTION : is_moe ? PART_EXPERTS : PART_DENSE;
}

/* `rows`: how many of the matrix are read; 0: all. */
static void add(enum model_tensor t, const struct layer *l, size_t rows, read_sink each, void *context)
{
    const struct layer_tensor *x = &layer_tensors[t];
    struct read r = {.part = part_of(t, l->is_moe), .share = x->share, .w = *tensor_matrix(t, l, 0),
                     .routed = x->owner == OWNER_EXPERT, .exact = x->kind == KIND_EXACT || t == TENSOR_K_B_PROJ};
    if (rows)
        r.w.rows = rows;
    each(context, &r);
}

/* If W_uk and W_uv are views of kv_b_proj, their rows also count those of the other one. */
static size_t rows_of_heads(const struct config *c, const struct mla *a, enum model_tensor t)
{
    if (t == TENSOR_K_B_PROJ)
        return c->dims.H * (a->uk_transposed ? c->dims.c : c->dims.n);
    return t == TENSOR_V_B_PROJ ? c->dims.H * c->dims.v : 0;
}

void reads_of_layer(const struct config *c, const struct layer *l, read_sink each, void *context)
{
    struct tensor_walk w = walk_layer(c, l->index, W_UK_AND_W_UV);
    w.experts = 1;
    while (walk_next(&w)) {
        const struct layer_tensor *x = &layer_tensors[w.tensor];
        if (x->kind != KIND_VECTOR && (x->group != GROUP_INDEXER || l->self_attn.has_indexer))
            add(w.tensor, l, rows_of_heads(c, &l->self_attn, w.tensor), each, context);
    }
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
