#include "engine/model/layer_tensors.h"

#include "ops/attention.h"
#include "ops/ranks.h"

/* ---- where a tensor exists ---- */

static int has_q_rank(const struct config *c, int layer) { return (void)layer, c->q_lora_rank > 0; }
static int has_no_q_rank(const struct config *c, int layer) { return (void)layer, !c->q_lora_rank; }
static int has_indexer(const struct config *c, int layer) { return c->index_topk && !config_layer_is_shared(c, layer); }
static int has_bias(const struct config *c, int layer) { return (void)layer, c->topk_method == TOPK_NOAUX_TC; }
static int has_shared(const struct config *c, int layer) { return (void)layer, c->n_shared_experts > 0; }
static int is_not_tied(const struct config *c, int layer) { return (void)layer, !c->tie_word_embeddings; }

/* ---- sizes, in the letters of docs/SEMANTICS.md ---- */

#define SIZE(name, expression) static size_t name(const struct dims *s) { return expression; }
SIZE(d, s->d)
SIZE(two_d, 2 * s->d)
SIZE(V, s->V)
SIZE(q, s->q)
SIZE(c, s->c)
SIZE(n, s->n)
SIZE(c_r, s->c + s->r)
SIZE(H_n, s->H * s->n)
SIZE(H_c, s->H * s->c)
SIZE(H_v, s->H * s->v)
SIZE(H_n_r, s->H * (s->n + s->r))
SIZE(H_n_v, s->H * (s->n + s->v))
SIZE(index_D, s->index_dim)
SIZE(index_H, s->index_heads)
SIZE(index_H_D, s->index_heads * s->index_dim)
SIZE(E, s->E)
SIZE(dense, s->dense)
SIZE(expert, s->expert)
SIZE(shared, s->expert * s->shared)

/* ---- the table ---- */

/* The offset of a member, which must have this type. */
#define MEMBER(owner, member, type) (offsetof(owner, member) + 0 * sizeof(_Generic(((owner *)0)->member, type: 0)))
#define LAYER_VECTOR(member) .owner = OWNER_LAYER, MEMBER(struct layer, member, const float *), KIND_VECTOR
#define LAYER_MATRIX(member) .owner = OWNER_LAYER, MEMBER(struct layer, member, struct weight_view)
#define EXPERT_MATRIX(member) .owner = OWNER_EXPERT, MEMBER(struct mlp, member, struct weight_view)
#define MODULE_VECTOR(member) .owner = OWNER_MODULE, MEMBER(struct mtp_module, member, const float *), KIND_VECTOR
#define MODULE_MATRIX(member) .owner = OWNER_MODULE, MEMBER(struct mtp_module, member, struct weight_view)
#define MODEL_VECTOR(member) .owner = OWNER_MODEL, MEMBER(struct vb_model, member, const float *), KIND_VECTOR
#define MODEL_MATRIX(member) .owner = OWNER_MODEL, MEMBER(struct vb_model, member, struct weight_view)
#define FORM(f) (1 << (f))

const struct layer_tensor layer_tensors[MODEL_TENSORS] = {
    [TENSOR_INPUT_NORM] = {LAYER_VECTOR(input_layernorm), GROUP_ATTENTION, d},
    [TENSOR_POST_ATTENTION_NORM] = {LAYER_VECTOR(post_attention_layernorm), GROUP_MLP, d},

    [TENSOR_Q_PROJ] = {LAYER_MATRIX(self_attn.q_proj), KIND_LINEAR, GROUP_ATTENTION, H_n_r, d, SHARE_BY_HEADS,
                       .exists = has_no_q_rank},
    [TENSOR_Q_A_PROJ] = {LAYER_MATRIX(self_attn.q_a_proj), KIND_LINEAR, GROUP_ATTENTION, q, d, .exists = has_q_rank},
    [TENSOR_Q_A_NORM] = {LAYER_VECTOR(self_attn.q_a_layernorm), GROUP_ATTENTION, q, .exists = has_q_rank},
    [TENSOR_Q_B_PROJ] = {LAYER_MATRIX(self_attn.q_b_proj), KIND_LINEAR, GROUP_ATTENTION, H_n_r, q, SHARE_BY_HEADS,
                         .exists = has_q_rank},
    [TENSOR_KV_A_PROJ] = {LAYER_MATRIX(self_attn.kv_a_proj_with_mqa), KIND_LINEAR, GROUP_ATTENTION, c_r, d},
    [TENSOR_KV_A_NORM] = {LAYER_VECTOR(self_attn.kv_a_layernorm), GROUP_ATTENTION, c},
    [TENSOR_KV_B_PROJ] = {LAYER_MATRIX(self_attn.w_uk), KIND_LINEAR, GROUP_ATTENTION, H_n_v, c, SHARE_BY_HEADS,
                          .forms = FORM(ONE_KV_B)},
    [TENSOR_K_B_PROJ] = {LAYER_MATRIX(self_attn.w_uk), KIND_LINEAR, GROUP_ATTENTION, H_n, c, SHARE_BY_HEADS,
                         .forms = FORM(W_UK_AND_W_UV)},
    [TENSOR_K_B_TRANSPOSED] = {LAYER_MATRIX(self_attn.w_uk), KIND_LINEAR, GROUP_ATTENTION, H_c, n, SHARE_BY_HEADS,
                               .forms = FORM(W_UK_TRANSPOSED)},
    [TENSOR_V_B_PROJ] = {LAYER_MATRIX(self_attn.w_uv), KIND_LINEAR, GROUP_ATTENTION, H_v, c, SHARE_BY_HEADS,
                         .forms = FORM(W_UK_AND_W_UV) | FORM(W_UK_TRANSPOSED)},
    [TENSOR_INDEX_WQ_B] = {LAYER_MATRIX(self_attn.indexer.wq_b), KIND_LINEAR, GROUP_INDEXER, index_H_D, q,
                           .exists = has_indexer},
    [TENSOR_INDEX_WK] = {LAYER_MATRIX(self_attn.indexer.wk), KIND_LINEAR, GROUP_INDEXER, index_D, d,
                         .exists = has_indexer},
    [TENSOR_INDEX_K_NORM] = {LAYER_VECTOR(self_attn.indexer.k_norm), GROUP_INDEXER, index_D, .exists = has_indexer},
    [TENSOR_INDEX_K_NORM_BIAS] = {LAYER_VECTOR(self_attn.indexer.k_norm_bias), GROUP_INDEXER, index_D,
                                  .exists = has_indexer},
    [TENSOR_INDEX_WEIGHTS_PROJ] = {LAYER_MATRIX(self_attn.indexer.weights_proj), KIND_EXACT, GROUP_INDEXER, index_H, d,
                                   .exists = has_indexer, .rounds = INDEXER_WEIGHTS},
    [TENSOR_O_PROJ] = {LAYER_MATRIX(self_attn.o_proj), KIND_LINEAR, GROUP_ATTENTION, d, H_v, SHARE_BY_ROWS},

    [TENSOR_GATE_PROJ] = {LAYER_MATRIX(mlp.gate_proj), KIND_LINEAR, GROUP_MLP, dense, d, SHARE_BY_ROWS, DENSE_LAYERS},
    [TENSOR_UP_PROJ] = {LAYER_MATRIX(mlp.up_proj), KIND_LINEAR, GROUP_MLP, dense, d, SHARE_BY_ROWS, DENSE_LAYERS},
    [TENSOR_DOWN_PROJ] = {LAYER_MATRIX(mlp.down_proj), KIND_LINEAR, GROUP_MLP, d, dense, SHARE_BY_ROWS, DENSE_LAYERS},
    [TENSOR_ROUTER] = {LAYER_MATRIX(moe.gate), KIND_EXACT, GROUP_MLP, E, d, SHARE_WHOLE, MOE_LAYERS, .rounds = GATE},
    [TENSOR_ROUTER_BIAS] = {LAYER_VECTOR(moe.e_score_correction_bias), GROUP_MLP, E, .layers = MOE_LAYERS,
                            .exists = has_bias},
    [TENSOR_EXPERT_GATE_PROJ] = {EXPERT_MATRIX(gate_proj), KIND_LINEAR, GROUP_MLP, expert, d, SHARE_BY_ROWS,
                                 MOE_LAYERS},
    [TENSOR_EXPERT_UP_PROJ] = {EXPERT_MATRIX(up_proj), KIND_LINEAR, GROUP_MLP, expert, d, SHARE_BY_ROWS, MOE_LAYERS},
    [TENSOR_EXPERT_DOWN_PROJ] = {EXPERT_MATRIX(down_proj), KIND_LINEAR, GROUP_MLP, d, expert, SHARE_BY_ROWS,
                                 MOE_LAYERS},
    [TENSOR_SHARED_GATE_PROJ] = {LAYER_MATRIX(moe.shared_experts.gate_proj), KIND_LINEAR, GROUP_MLP, shared, d,
                                 SHARE_BY_ROWS, MOE_LAYERS, .exists = has_shared},
    [TENSOR_SHARED_UP_PROJ] = {LAYER_MATRIX(moe.shared_experts.up_proj), KIND_LINEAR, GROUP_MLP, shared, d,
                               SHARE_BY_ROWS, MOE_LAYERS, .exists = has_shared},
    [TENSOR_SHARED_DOWN_PROJ] = {LAYER_MATRIX(moe.shared_experts.down_proj), KIND_LINEAR, GROUP_MLP, d, shared,
                                 SHARE_BY_ROWS, MOE_LAYERS, .exists = has_shared},

    [TENSOR_ENORM] = {MODULE_VECTOR(enorm), GROUP_ENDS, d},
    [TENSOR_HNORM] = {MODULE_VECTOR(hnorm), GROUP_ENDS, d},
    [TENSOR_EH_PROJ] = {MODULE_MATRIX(eh_proj), KIND_LINEAR, GROUP_ENDS, d, two_d, SHARE_BY_ROWS, .without_scales = 1},
    [TENSOR_MODULE_NORM] = {MODULE_VECTOR(shared_head_norm), GROUP_ENDS, d},
    [TENSOR_MODULE_EMBED_TOKENS] = {MODULE_MATRIX(embed_tokens), KIND_EMBEDDING, GROUP_ENDS, V, d, .optional = 1},
    [TENSOR_MODULE_HEAD] = {MODULE_MATRIX(head), KIND_LINEAR, GROUP_ENDS, V, d, SHARE_BY_ROWS, .optional = 1,
                            .without_scales = 1},

    [TENSOR_EMBED_TOKENS] = {MODEL_MATRIX(embed_tokens), KIND_EMBEDDING, GROUP_ENDS, V, d},
    [TENSOR_NORM] = {MODEL_VECTOR(norm), GROUP_ENDS, d},
    [TENSOR_LM_HEAD] = {MODEL_MATRIX(lm_head), KIND_LINEAR, GROUP_ENDS, V, d, SHARE_BY_ROWS, .exists = is_not_tied,
                        .without_scales = 1},
};

/* ---- walks ---- */

static struct tensor_walk walk(const struct config *config, int from, int end)
{
    return (struct tensor_walk){.c = config, .next = from, .end = end};
}

struct tensor_walk walk_layer(const struct config *config, int layer, enum tensor_form form)
{
    struct tensor_walk w = walk(config, 0, TENSORS_OF_MODULE);
    w.layer = layer;
    w.is_moe = config_layer_is_moe(config, layer);
    w.form = form;
    w.experts = config->dims.E;
    return w;
}

struct tensor_walk walk_module(const struct config *config) { return walk(config, TENSORS_OF_MODULE, TENSORS_OUTSIDE); }
struct tensor_walk walk_model(const struct config *config) { return walk(config, TENSORS_OUTSIDE, MODEL_TENSORS); }

static int is_there(const struct tensor_walk *w, int t)
{
    const struct layer_tensor *x = &layer_tensors[t];
    return (!x->exists || x->exists(w->c, w->layer)) && (!x->forms || x->forms & FORM(w->form)) &&
           (x->layers == ANY_LAYER || (x->layers == MOE_LAYERS) == w->is_moe) &&
           (x->owner != OWNER_EXPERT || w->expert < w->experts);
}

int walk_next(struct tensor_walk *w)
{
    if (w->next == TENSOR_EXPERT_DOWN_PROJ + 1 && is_there(w, TENSOR_EXPERT_DOWN_PROJ)) { /* the next expert */
        w->next = TENSOR_EXPERT_GATE_PROJ;
        w->expert++;
    }
    while (w->next < w->end && !is_there(w, w->next))
        w->next++;
    if (w->next >= w->end)
        return 0;
    w->tensor = (enum model_tensor)w->next++;
    if (layer_tensors[w->tensor].owner != OWNER_EXPERT)
        w->expert = 0;
    return 1;
}

/* ---- a tensor ---- */

void *tensor_place(enum model_tensor t, const void *owner, size_t expert_number)
{
    const struct layer *l = owner;
    const struct layer_tensor *x = &layer_tensors[t];
    if (x->owner == OWNER_EXPERT)
        return expert_matrix(t, &l->moe.experts[expert_number]);
    return (void *)((uintptr_t)owner + x->at);
}

size_t tensor_share_unit(const struct config *config, enum model_tensor t)
{
    const struct layer_tensor *x = &layer_tensors[t];
    if (x->share == SHARE_BY_HEADS)
        return attention_head_unit(config->dims.v) * (x->rows(&config->dims) / config->dims.H);
    return x->share == SHARE_BY_ROWS ? OP_ROW_GROUP : 0;
}
