/* engine/train/train_model.c -- the trainer's weights as a model that engine/pass computes, and the memory of its
 * passes.
 *
 * A struct vb_model points to the trainer's f32 weights, which steps change. Gradients are in struct train_part. */
#include "engine/train/train_internal.h"

#include <limits.h>

#include "ops/weights.h"

/* ---- weights ---- */

static struct mlp mlp_of(const struct train_mlp *w)
{
    return (struct mlp){.gate_proj = w->gate.w, .up_proj = w->up.w, .down_proj = w->down.w};
}

static struct mla attention_of(const struct dims *s, const struct train_layer *l)
{
    return (struct mla){.q_proj = l->q.w, .q_a_proj = l->q_a.w, .q_b_proj = l->q_b.w,
                        .q_a_layernorm = train_vector(&l->q_a_norm), .kv_a_proj_with_mqa = l->kv_a.w,
                        .kv_a_layernorm = train_vector(&l->kv_a_norm), .w_uk = l->kv_b.w,
                        .w_uv = weight_rows(&l->kv_b.w, s->n, l->kv_b.w.rows - s->n), .uk_stride = s->n + s->v,
                        .uv_stride = s->n + s->v, .o_proj = l->o.w};
}

static int set_layer(struct maker *b, struct layer *out, const struct train_layer *l)
{
    const struct dims *s = &b->t->c->dims;
    *out = (struct layer){.kind = ATTENTION_MLA, .input_layernorm = train_vector(&l->input_norm),
                          .post_attention_layernorm = train_vector(&l->post_norm), .self_attn = attention_of(s, l),
                          .is_moe = l->is_moe, .mlp = mlp_of(&l->mlp)};
    if (!l->is_moe)
        return VB_OK;
    out->moe = (struct moe){.gate = l->router.w, .e_score_correction_bias = l->bias,
                            .experts = train_take(b, s->E, sizeof *out->moe.experts),
                            .shared_experts = mlp_of(&l->shared)};
    for (size_t e = 0; out->moe.experts && e < s->E; e++)
        out->moe.experts[e] = mlp_of(&l->experts[e]);
    return out->moe.experts ? VB_OK : VB_NO_MEMORY;
}

static int set_module(struct maker *b, struct mtp_module *out, const struct train_module *w)
{
    *out = (struct mtp_module){.enorm = train_vector(&w->enorm), .hnorm = train_vector(&w->hnorm),
                               .eh_proj = w->eh_proj.w, .shared_head_norm = train_vector(&w->norm),
                               .embed_tokens = w->embed.w, .head = w->head.w};
    return set_layer(b, &out->layer, &w->layer);
}

/* Heads may have experts where the model's layers of their numbers would have none, and the other way round. */
static void set_kinds_of_heads(const struct vb_trainer *t, struct config *c)
{
    const struct vb_model *stored = t->heads.stored;
    c->module_kind = MODULE_PARALLEL;
    c->first_k_dense_replace = stored ? stored->config.first_k_dense_replace : t->mtp[0].layer.is_moe ? 0 : INT_MAX;
    c->moe_layer_freq = stored ? stored->config.moe_layer_freq : 1;
}

int train_make_model(struct maker *b)
{
    struct vb_trainer *t = b->t;
    struct vb_model *m = &t->trained, *drafts = t->o.heads ? &t->trained_heads : m;
    size_t layers = t->layers ? t->c->dims.layers : 0;
    int rc = VB_OK;
    *m = (struct vb_model){.config = *t->c, .allocator = &t->allocator, .embed_tokens = t->embed.w,
                           .norm = train_vector(&t->norm), .lm_head = t->head.w};
    t->trained_heads = *m;
    if (t->o.heads)
        set_kinds_of_heads(t, &drafts->config);
    drafts->num_mtp = t->used;
    if (!(m->layers = train_take(b, layers, sizeof *m->layers)) ||
        !(drafts->mtp = train_take(b, (size_t)t->used, sizeof *drafts->mtp)))
        return VB_NO_MEMORY;
    for (size_t l = 0; !rc && l < layers; l++)
        rc = set_layer(b, &m->layers[l], &t->layers[l]);
    for (int k = 0; !rc && k < t->used; k++)
        rc = set_module(b, &drafts->mtp[k], &t->mtp[k]);
    return rc;
}

/* ---- memory ---- */

int train_open_pass(struct vb_trainer *t, vb_error *err)
{
    struct vb_model widest = t->trained; /* has a dense layer, and one with experts, so that there is room for both */
    struct kv_layout layout = model_cache_layout(t->c);
    size_t layers = t->layers ? t->c->dims.layers : 0, depths = (size_t)t->o.depths;
    widest.config.num_hidden_layers = widest.config.first_k_dense_replace = widest.config.moe_layer_freq = 1;
    widest.config.num_nextn_predict_layers = t->c->dims.E > 0;
    int rc = workspace_open(&t->pass.w, &widest, t->room, 0, t->longest, 1, err);
    if (!rc && layers)
        rc = kvcache_open(&t->cache, layers, t->room, layout, &t->allocator, err);
    if (!rc && depths)
        rc = kvcache_open(&t->depth_cache, 1, depths * t->room, layout, &t->allocator, err);
    if (rc)
        return rc;
    t->pass.w.tail = train_is_aligned(t) ? depths - 1 : 0;
    t->forward_scratch = workspace_scratch(&t->pass.w, &widest, t->cx.most_threads);
    return VB_OK;
}

void train_close_pass(struct vb_trainer *t)
{
    kvcache_close(&t->cache, &t->allocator);
    kvcache_close(&t->depth_cache, &t->allocator);
    workspace_close(&t->pass.w);
}
