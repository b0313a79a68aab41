/* engine/model/model_cache.c -- the rows of a model's KV cache. */
#include "engine/model/model.h"

/* Returns how many main layers have an indexer. */
static size_t full_layers(const struct config *c)
{
    size_t count = 0;
    for (int layer = 0; c->index_topk && layer < c->num_hidden_layers; layer++)
        count += !config_layer_is_shared(c, layer);
    return count;
}

struct indexer model_indexer(const struct config *c)
{
    const unsigned char *convention = c->conventions.value;
    return (struct indexer){.heads = c->dims.index_heads, .dim = c->dims.index_dim, .kept = c->dims.index_topk,
                            .hadamard = convention[INDEXER_CODES] % 2 == 0, .codes = convention[INDEXER_CODES] < 2,
                            .bf16_weights = convention[INDEXER_WEIGHTS], .bf16_scores = convention[INDEXER_SCORES],
                            .highest = convention[INDEXER_TIES]};
}

static struct kv_layout layout_of(const struct config *c, enum cache_type type)
{
    static const enum kv_type types[CACHE_TYPES] = {[CACHE_TYPE_F32] = KV_F32, [CACHE_TYPE_BF16] = KV_BF16,
                                                    [CACHE_TYPE_Q8] = KV_Q8};
    struct indexer ix = model_indexer(c);
    return (struct kv_layout){.type = types[type], .latent = c->dims.c, .rope = c->dims.r,
                              .index_layers = full_layers(c), .index_row = index_row_bytes(&ix)};
}

struct kv_layout model_cache_layout(const struct config *c)
{
    struct kv_layout grouped = {.type = KV_F32, .latent = c->dims.row};
    return config_attention(c, 0) == ATTENTION_GQA ? grouped : layout_of(c, c->cache_type);
}

struct kv_layout model_mtp_cache_layout(const struct config *c)
{
    struct kv_layout layout = model_cache_layout(c);
    layout.index_layers = c->index_topk ? 1 : 0;
    return layout;
}

size_t model_cache_bytes(const struct config *c, enum cache_type type)
{
    struct kv_layout layout = layout_of(c, type);
    if (!cache_type_fits(c, type))
        return 0;
    return c->dims.layers * kv_row_bytes(&layout) + layout.index_layers * layout.index_row;
}

struct router model_router(const struct config *c, const struct moe *moe)
{
    const unsigned char *convention = c->conventions.value;
    int mistral = c->topk_method == TOPK_GROUP_LIMITED_TOP2;
    return (struct router){.experts = c->dims.E, .chosen = c->dims.chosen,
                           .groups = c->dims.groups, .chosen_groups = c->dims.chosen_groups,
                           .sigmoid = c->scoring_func == SCORING_SIGMOID,
                           .group_sum_of_two = c->topk_method == TOPK_NOAUX_TC || mistral,
                           .grouped = c->topk_method != TOPK_GREEDY,
                           .norm_topk_prob = c->norm_topk_prob, .scale_softmax = mistral,
                           .routed_scaling_factor = (float)c->routed_scaling_factor,
                           .bias = moe->e_score_correction_bias, .mask_with_zero = convention[GROUP_MASK] || mistral,
                           .normaliser = convention[NORMALISER_EPS], .bf16 = convention[GATE]};
}
