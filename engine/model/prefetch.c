#include "engine/model/prefetch.h"

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

static void prefetch_mlp(const struct vb_model *m, const struct mlp *mlp)
{
    prefetch(m, &mlp->gate_proj);
    prefetch(m, &mlp->up_proj);
    prefetch(m, &mlp->down_proj);
}

/* Returns nonzero for the first caller. */
static int is_first(unsigned char *prefetched)
{
    return !__atomic_load_n(prefetched, __ATOMIC_RELAXED) && !__atomic_exchange_n(prefetched, 1, __ATOMIC_RELAXED);
}

void model_prefetch_layer(const struct vb_model *m, const struct layer *l)
{
    const struct mla *a = &l->self_attn;
    const struct weight_view *in_order_of_use[] = {&a->q_proj, &a->q_a_proj, &a->kv_a_proj_with_mqa, &a->indexer.wk,
                                                   &a->q_b_proj, &a->indexer.wq_b, &a->indexer.weights_proj, &a->w_uk,
                                                   &a->w_uv, &a->o_proj, &l->moe.gate};
    if (!l->prefetched || !is_first(&l->prefetched[0]))
        return;
    for (size_t i = 0; i < sizeof in_order_of_use / sizeof *in_order_of_use; i++)
        prefetch(m, in_order_of_use[i]);
    prefetch_mlp(m, l->is_moe ? &l->moe.shared_experts : &l->mlp);
}

void model_prefetch_experts(const struct vb_model *m, const struct layer *l, const int32_t *expert, size_t count)
{
    for (size_t i = 0; l->prefetched && i < count; i++)
        if (is_first(&l->prefetched[1 + expert[i]]))
            prefetch_mlp(m, &l->moe.experts[expert[i]]);
}
