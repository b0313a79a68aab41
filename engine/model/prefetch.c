#include "engine/model/prefetch.h"

#include "engine/model/layer_tensors.h"
#include "ops/weights.h"

static void prefetch(const struct vb_model *m, const struct weight_view *w)
{
    checkpoint_prefetch(m->checkpoint, w->data, weight_bytes(w));
    checkpoint_prefetch(m->checkpoint, w->group_scale, weight_group_scale_bytes(w));
    if (w->scale && w->rows) {
        size_t first = w->scale_row / w->block_rows, last = (w->scale_row + w->rows - 1) / w->block_rows;
        checkpoint_prefetch(m->checkpoint, w->scale + first * w->scale_stride,
                            (last - first + 1) * w->scale_stride * sizeof *w->scale);
    }
}

/* Returns nonzero for the first caller. */
static int is_first(unsigned char *prefetched)
{
    return !__atomic_load_n(prefetched, __ATOMIC_RELAXED) && !__atomic_exchange_n(prefetched, 1, __ATOMIC_RELAXED);
}

void model_prefetch_layer(const struct vb_model *m, const struct layer *l)
{
    struct tensor_walk w = walk_layer(&m->config, l->index, W_UK_AND_W_UV);
    if (!l->prefetched || !is_first(&l->prefetched[0]))
        return;
    w.experts = 0;
    while (walk_next(&w))
        if (layer_tensors[w.tensor].kind != KIND_VECTOR)
            prefetch(m, tensor_matrix(w.tensor, l, 0));
}

void model_prefetch_experts(const struct vb_model *m, const struct layer *l, const int32_t *expert, size_t count)
{
    for (size_t i = 0; l->prefetched && i < count; i++) {
        if (!is_first(&l->prefetched[1 + expert[i]]))
            continue;
        for (enum model_tensor t = TENSOR_EXPERT_GATE_PROJ; t <= TENSOR_EXPERT_DOWN_PROJ; t++)
            prefetch(m, tensor_matrix(t, l, (size_t)expert[i]));
    }
}
