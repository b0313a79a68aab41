/* engine/model/model_cache.c -- the rows of a model's KV cache. */
#include "engine/model/model.h"

static struct kv_layout layout_of(const struct config *c, enum cache_type type)
{
    static const enum kv_type types[CACHE_TYPES] = {[CACHE_TYPE_F32] = KV_F32, [CACHE_TYPE_BF16] = KV_BF16, [CACHE_TYPE_Q8] = KV_Q8};
    return (struct kv_layout){types[type], c->dims.c, c->dims.r};
}

struct kv_layout model_cache_layout(const struct config *c) { return layout_of(c, c->cache_type); }

size_t model_cache_bytes(const struct config *c, enum cache_type type)
{
    struct kv_layout layout = layout_of(c, type);
    if (!cache_type_fits(c, type))
        return 0;
    return c->dims.layers * kv_row_bytes(&layout);
}
