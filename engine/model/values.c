/* engine/model/values.c -- the table of the values of a pass (values.h). */
#include "engine/model/values.h"

#include <string.h>

#include "engine/model/model.h"

/* ---- where a value exists ---- */

static int is_mla(const struct config *c, int layer) { return config_attention(c, layer) == ATTENTION_MLA; }
static int is_gqa(const struct config *c, int layer) { return config_attention(c, layer) == ATTENTION_GQA; }
static int has_q_rank(const struct config *c, int layer) { return (void)layer, c->q_lora_rank > 0; }
static int has_no_q_rank(const struct config *c, int layer) { return (void)layer, !c->q_lora_rank; }
static int has_indexer(const struct config *c, int layer)
{
    return c->index_topk && !config_layer_is_shared(c, layer) &&
           !(layer >= c->num_hidden_layers && c->conventions.value[MTP_INDEXER]);
}
static int is_moe(const struct config *c, int layer) { return config_layer_is_moe(c, layer); }
static int is_biased(const struct config *c, int layer) { return is_moe(c, layer) && c->topk_method == TOPK_NOAUX_TC; }
static int is_grouped(const struct config *c, int layer)
{
    return is_moe(c, layer) && c->topk_method != TOPK_GREEDY && c->topk_group < c->n_group;
}
static int has_shared(const struct config *c, int layer) { return is_moe(c, layer) && c->n_shared_experts > 0; }

/* A parallel head reads the hidden state alone. In EAGLE heads, attention reads the module's input without a further
 * norm: in EAGLE-1 the output of fc, in EAGLE-3 the two normalised halves. EAGLE-1 has no norm after its layer. */
static int is_eagle(const struct config *c, int layer)
{
    return layer >= c->num_hidden_layers && (c->module_kind == MODULE_EAGLE1 || c->module_kind == MODULE_EAGLE3);
}
static int is_not_eagle(const struct config *c, int layer) { return !is_eagle(c, layer); }
static int has_embedding(const struct config *c, int layer) { return (void)layer, c->module_kind != MODULE_PARALLEL; }
static int has_input_norms(const struct config *c, int layer)
{
    return (void)layer, c->module_kind == MODULE_MTP || c->module_kind == MODULE_EAGLE3;
}
static int has_eh_proj(const struct config *c, int layer)
{
    return (void)layer, c->module_kind == MODULE_MTP || c->module_kind == MODULE_EAGLE1;
}
static int has_output_norm(const struct config *c, int layer) { return (void)layer, c->module_kind != MODULE_EAGLE1; }

/* ---- sizes, in the letters of docs/SEMANTICS.md ---- */

#define SIZE(name, expression) static size_t name(const struct config *c) { return expression; }
SIZE(d, c->dims.d)
SIZE(two_d, 2 * c->dims.d)
SIZE(V, c->dims.V)
SIZE(q, c->dims.q)
SIZE(latent, c->dims.c)
SIZE(n, c->dims.n)
SIZE(row, c->dims.row)
SIZE(G_r, c->dims.G * c->dims.r)
SIZE(G_v, c->dims.G * c->dims.v)
SIZE(H, c->dims.H)
SIZE(n_r, c->dims.n + c->dims.r)
SIZE(H_n_r, c->dims.H * (c->dims.n + c->dims.r))
SIZE(H_r, c->dims.H * c->dims.r)
SIZE(H_v, c->dims.H * c->dims.v)
SIZE(index_D, c->dims.index_dim)
SIZE(index_H, c->dims.index_heads)
SIZE(index_H_D, c->dims.index_heads * c->dims.index_dim)
SIZE(index_topk, c->dims.index_topk)
SIZE(one, ((void)c, 1))
SIZE(E, c->dims.E)
SIZE(groups, c->dims.groups)
SIZE(chosen_groups, c->dims.chosen_groups)
SIZE(chosen, c->dims.chosen)
SIZE(chosen_d, c->dims.chosen * c->dims.d)
/* The convention `concat` says which half of eh_proj's input is the embedding. */
SIZE(embedding_half, c->conventions.value[CONCAT] ? c->dims.d : 0)
SIZE(hidden_half, c->conventions.value[CONCAT] ? 0 : c->dims.d)

/* ---- the table ---- */

#define FROM(value) EITHER(value, NO_VALUE)
#define EITHER(value, other) FIRST_OF(value, other, NO_VALUE)
#define FIRST_OF(value, other, third) {{value, other, third}, 0}
#define IF_ANY(value) {{value, NO_VALUE, NO_VALUE}, 1}
#define INPUTS(number, ...) .inputs = {__VA_ARGS__}, .count = number
#define IN_LAYER(weight) offsetof(struct layer, weight)
#define IN_MODULE(weight) offsetof(struct mtp_module, weight)
#define IN_MODEL(weight) offsetof(struct vb_model, weight)
#define ATTENTION_INPUT FIRST_OF(INPUT_NORM, EH_PROJ, EH_INPUT)
#define SEEN_BY_ATTENTION INPUTS(5, EITHER(Q_B, Q_PROJ), FROM(Q_ROPE), EITHER(LATENT, V_PROJ), FROM(K_ROPE), \
                                 IF_ANY(KEPT_TOKENS))

const struct value_row value_table[VALUES] = {
    [EMBEDDING] = {"model.embed_tokens.output", INPUTS(1, FROM(ROW_TOKENS)), OF_PASS, .width = d, .part = PART_SMALL,
                   .array = ARRAY_X, .weight = IN_MODEL(embed_tokens)},

    [MODULE_EMBEDDING] = {"embed_tokens.output", INPUTS(1, FROM(ROW_TOKENS)), OF_MODULE, has_embedding, d, PART_SMALL,
                          ARRAY_X, .weight = IN_MODULE(embed_tokens)},
    [ENORM] = {"enorm.output", INPUTS(1, FROM(MODULE_EMBEDDING)), OF_MODULE, has_input_norms, d, PART_SMALL,
               ARRAY_CONCAT, .at = embedding_half, .pitch = two_d, .weight = IN_MODULE(enorm)},
    [HNORM_INPUT] = {"hnorm.input", INPUTS(1, FROM(HIDDEN_STATES)), OF_MODULE, .width = d, .part = PART_SMALL,
                     .array = ARRAY_TAKEN, .is_copy = 1},
    [HNORM] = {"hnorm.output", INPUTS(1, FROM(HNORM_INPUT)), OF_MODULE, has_input_norms, d, PART_SMALL, ARRAY_CONCAT,
               .at = hidden_half, .pitch = two_d, .weight = IN_MODULE(hnorm)},
    [EH_INPUT] = {"eh_proj.input", INPUTS(2, EITHER(ENORM, MODULE_EMBEDDING), EITHER(HNORM, HNORM_INPUT)), OF_MODULE,
                  has_embedding, two_d, PART_SMALL, ARRAY_CONCAT, .is_copy = 1},
    [EH_PROJ] = {"eh_proj.output", INPUTS(1, FROM(EH_INPUT)), OF_MODULE, has_eh_proj, d, PART_EH, ARRAY_X,
                 .weight = IN_MODULE(eh_proj), .bias = IN_MODULE(eh_bias), .division = BY_ROWS},

    [LAYER_INPUT] = {"input_layernorm.input", INPUTS(1, FROM(STREAM)), OF_LAYER, .width = d, .part = PART_SMALL,
                     .array = ARRAY_X, .is_copy = 1},
    [INPUT_NORM] = {"input_layernorm.output", INPUTS(1, FROM(LAYER_INPUT)), OF_LAYER, is_not_eagle, d, PART_SMALL,
                    ARRAY_NORMED, .weight = IN_LAYER(input_layernorm)},
    [Q_A] = {"self_attn.q_a_proj.output", INPUTS(1, FROM(INPUT_NORM)), OF_LAYER, has_q_rank, q, PART_Q_A, ARRAY_Q_A,
             .weight = IN_LAYER(self_attn.q_a_proj)},
    [Q_A_NORM] = {"self_attn.q_a_layernorm.output", INPUTS(1, FROM(Q_A)), OF_LAYER, has_q_rank, q, PART_SMALL,
                  ARRAY_Q_A, .weight = IN_LAYER(self_attn.q_a_layernorm)},
    [Q_B] = {"self_attn.q_b_proj.output", INPUTS(1, FROM(Q_A_NORM)), OF_LAYER, has_q_rank, H_n_r, PART_Q_B, ARRAY_Q,
             .weight = IN_LAYER(self_attn.q_b_proj), .division = BY_HEADS},
    [Q_PROJ] = {"self_attn.q_proj.output", INPUTS(1, ATTENTION_INPUT), OF_LAYER, has_no_q_rank, H_n_r, PART_Q_A,
                ARRAY_Q, .weight = IN_LAYER(self_attn.q_proj), .division = BY_HEADS},
    [KV_A] = {"self_attn.kv_a_proj_with_mqa.output", INPUTS(1, FROM(INPUT_NORM)), OF_LAYER, is_mla, row, PART_Q_A,
              ARRAY_KV_A, .weight = IN_LAYER(self_attn.kv_a_proj_with_mqa)},
    [K_PROJ] = {"self_attn.k_proj.output", INPUTS(1, ATTENTION_INPUT), OF_LAYER, is_gqa, G_r, PART_Q_A, ARRAY_KV_A,
                .pitch = row, .weight = IN_LAYER(self_attn.k_proj)},
    [V_PROJ] = {"self_attn.v_proj.output", INPUTS(1, ATTENTION_INPUT), OF_LAYER, is_gqa, G_v, PART_Q_A, ARRAY_KV_A,
                .at = G_r, .pitch = row, .weight = IN_LAYER(self_attn.v_proj)},
    [Q_ROPE] = {"self_attn.q_rope", INPUTS(1, EITHER(Q_B, Q_PROJ)), OF_LAYER, NULL, H_r, PART_SMALL, ARRAY_Q, .at = n,
                .pitch = H_n_r, .outer = H, .outer_pitch = n_r, .is_part = 1},
    [LATENT] = {"self_attn.kv_a_layernorm.output", INPUTS(1, FROM(KV_A)), OF_LAYER, is_mla, latent, PART_SMALL,
                ARRAY_KV_A, .pitch = row, .weight = IN_LAYER(self_attn.kv_a_layernorm), .is_part = 1},
    [K_ROPE] = {"self_attn.k_rope", INPUTS(1, EITHER(KV_A, K_PROJ)), OF_LAYER, NULL, G_r, PART_SMALL, ARRAY_KV_A,
                .at = latent, .pitch = row, .is_part = 1},

    [INDEX_WK] = {"self_attn.indexer.wk.output", INPUTS(1, FROM(INPUT_NORM)), OF_LAYER, has_indexer, index_D, PART_Q_A,
                  ARRAY_INDEX_K, .weight = IN_LAYER(self_attn.indexer.wk)},
    [INDEX_K_NORM] = {"self_attn.indexer.k_norm.output", INPUTS(1, FROM(INDEX_WK)), OF_LAYER, has_indexer, index_D,
                      PART_SMALL, ARRAY_INDEX_K, .weight = IN_LAYER(self_attn.indexer.k_norm)},
    [INDEX_K] = {"self_attn.indexer.k", INPUTS(1, FROM(INDEX_K_NORM)), OF_LAYER, has_indexer, index_D, PART_SMALL,
                 ARRAY_INDEX_K},
    [INDEX_WQ_B] = {"self_attn.indexer.wq_b.output", INPUTS(1, FROM(Q_A_NORM)), OF_LAYER, has_indexer, index_H_D,
                    PART_INDEXER, ARRAY_INDEX_Q, .weight = IN_LAYER(self_attn.indexer.wq_b)},
    [INDEX_WEIGHTS_PROJ] = {"self_attn.indexer.weights_proj.output", INPUTS(1, FROM(INPUT_NORM)), OF_LAYER, has_indexer,
                            index_H, PART_INDEXER, ARRAY_INDEX_W, .weight = IN_LAYER(self_attn.indexer.weights_proj),
                            .of_router = 1},
    [INDEX_Q] = {"self_attn.indexer.q", INPUTS(1, FROM(INDEX_WQ_B)), OF_LAYER, has_indexer, index_H_D, PART_INDEXER,
                 ARRAY_INDEX_Q},
    [INDEX_WEIGHTS] = {"self_attn.indexer.weights", INPUTS(2, FROM(INDEX_WEIGHTS_PROJ), FROM(INDEX_Q)), OF_LAYER,
                       has_indexer, index_H, PART_INDEXER, ARRAY_INDEX_W},
    [INDEX_SCORES] = {"self_attn.indexer.scores", INPUTS(3, FROM(INDEX_Q), FROM(INDEX_WEIGHTS), FROM(INDEX_K)),
                      OF_LAYER, has_indexer, NULL, PART_INDEXER, .is_part = 1, .all_rows = 2},
    [INDEX_KEPT] = {"self_attn.indexer.kept", INPUTS(1, FROM(INDEX_SCORES)), OF_LAYER, has_indexer, index_topk,
                    PART_INDEXER, .is_part = 1, .integers = 1},
    [INDEX_MARGIN] = {"self_attn.indexer.margin", INPUTS(1, FROM(INDEX_SCORES)), OF_LAYER, has_indexer, one,
                      PART_INDEXER, .is_part = 1},

    [ATTENTION_SCORES] = {"self_attn.scores.H", SEEN_BY_ATTENTION, OF_LAYER, is_mla, NULL, PART_ATTENTION, .is_part = 1,
                          .all_rows = 2},
    [ATTENTION_PROBABILITIES] = {"self_attn.probabilities.H", SEEN_BY_ATTENTION, OF_LAYER, is_mla, NULL, PART_ATTENTION,
                                 .is_part = 1, .all_rows = 2},
    [ATTENTION_HEADS] = {"self_attn.o_proj.input", SEEN_BY_ATTENTION, OF_LAYER, NULL, H_v, PART_ATTENTION, ARRAY_HEADS,
               .division = BY_HEADS, .all_rows = 2},
    [O_PROJ] = {"self_attn.o_proj.output", INPUTS(1, FROM(ATTENTION_HEADS)), OF_LAYER, NULL, d, PART_O, ARRAY_DELTA,
                .weight = IN_LAYER(self_attn.o_proj), .division = BY_ROWS},

    [MIDDLE] = {"post_attention_layernorm.input", INPUTS(2, FROM(LAYER_INPUT), FROM(O_PROJ)), OF_LAYER, .width = d,
                .part = PART_SMALL, .array = ARRAY_X},
    [POST_ATTENTION_NORM] = {"post_attention_layernorm.output", INPUTS(1, FROM(MIDDLE)), OF_LAYER, .width = d,
                             .part = PART_SMALL, .array = ARRAY_NORMED, .weight = IN_LAYER(post_attention_layernorm)},
    [ROUTER_LOGITS] = {"mlp.gate.output", INPUTS(1, FROM(POST_ATTENTION_NORM)), OF_LAYER, is_moe, E, PART_ROUTER,
                       ARRAY_SCORES, .weight = IN_LAYER(moe.gate), .of_router = 1},
    [ROUTER_SCORES] = {"mlp.gate.scores", INPUTS(1, FROM(ROUTER_LOGITS)), OF_LAYER, is_moe, E, PART_ROUTER,
                       .is_part = 1, .of_router = 1},
    [ROUTER_CHOICE] = {"mlp.gate.choice", INPUTS(1, FROM(ROUTER_SCORES)), OF_LAYER, is_biased, E, PART_ROUTER,
                       .is_part = 1, .of_router = 1},
    [ROUTER_GROUP_SCORES] = {"mlp.gate.group_scores", INPUTS(1, EITHER(ROUTER_CHOICE, ROUTER_SCORES)), OF_LAYER,
                             is_grouped, groups, PART_ROUTER, .is_part = 1, .of_router = 1},
    [ROUTER_GROUPS] = {"mlp.gate.groups", INPUTS(1, FROM(ROUTER_GROUP_SCORES)), OF_LAYER, is_grouped, chosen_groups,
                       PART_ROUTER, .is_part = 1, .integers = 1, .of_router = 1},
    [ROUTER_EXPERTS] = {"mlp.gate.experts", INPUTS(2, EITHER(ROUTER_CHOICE, ROUTER_SCORES), IF_ANY(ROUTER_GROUPS)),
                        OF_LAYER, is_moe, chosen, PART_ROUTER, .is_part = 1, .integers = 1, .of_router = 1},
    [ROUTER_WEIGHTS] = {"mlp.gate.weights", INPUTS(2, FROM(ROUTER_SCORES), FROM(ROUTER_EXPERTS)), OF_LAYER, is_moe,
                        chosen, PART_ROUTER, .is_part = 1, .of_router = 1},
    [EXPERT_OUTPUT] = {"mlp.experts.E.output", INPUTS(1, FROM(POST_ATTENTION_NORM)), OF_LAYER, is_moe, d, PART_EXPERTS,
                       .is_part = 1},
    [EXPERT_OUTPUTS] = {"mlp.experts", INPUTS(2, FROM(POST_ATTENTION_NORM), FROM(ROUTER_EXPERTS)), OF_LAYER, is_moe,
                        chosen_d, PART_EXPERTS, .is_part = 1},
    [SHARED_EXPERTS] = {"mlp.shared_experts.output", INPUTS(1, FROM(POST_ATTENTION_NORM)), OF_LAYER, has_shared, d,
                        PART_EXPERTS, .is_part = 1},
    [MLP_OUTPUT] = {"mlp.output", INPUTS(3, EITHER(EXPERT_OUTPUTS, POST_ATTENTION_NORM), IF_ANY(ROUTER_WEIGHTS),
                                         IF_ANY(SHARED_EXPERTS)), OF_LAYER, .width = d, .part = PART_DENSE,
                    .array = ARRAY_DELTA},
    [LAYER_OUTPUT] = {"output", INPUTS(2, FROM(MIDDLE), FROM(MLP_OUTPUT)), OF_LAYER, .width = d, .part = PART_SMALL,
                      .array = ARRAY_X},

    [MODULE_NORM_INPUT] = {"shared_head.norm.input", INPUTS(1, FROM(LAYER_OUTPUT)), OF_MODULE, has_output_norm, d,
                           PART_SMALL, ARRAY_X, .is_copy = 1},
    [MODULE_NORM] = {"shared_head.norm.output", INPUTS(1, FROM(MODULE_NORM_INPUT)), OF_MODULE, has_output_norm, d,
                     PART_SMALL, ARRAY_GIVEN, .weight = IN_MODULE(shared_head_norm)},
    [MODULE_LOGITS] = {"shared_head.head.output", INPUTS(1, FROM(MODULE_NORM)), OF_MODULE, .width = V,
                       .part = PART_HEAD, .weight = IN_MODULE(head), .division = BY_ROWS},
    [FINAL_NORM_INPUT] = {"model.norm.input", INPUTS(1, FROM(STREAM)), OF_PASS, .width = d, .part = PART_SMALL,
                          .array = ARRAY_X, .is_copy = 1},
    [FINAL_NORM] = {"model.norm.output", INPUTS(1, FROM(FINAL_NORM_INPUT)), OF_PASS, .width = d, .part = PART_SMALL,
                    .array = ARRAY_HIDDEN, .weight = IN_MODEL(norm)},
    [LOGITS] = {"lm_head.output", INPUTS(1, FROM(FINAL_NORM)), OF_PASS, .width = V, .part = PART_HEAD,
                .weight = IN_MODEL(lm_head), .division = BY_ROWS},
};

enum pass_value value_probed(enum probed_value v)
{
    static const enum pass_value values[PROBED_VALUES] = {
        [PROBE_ATTENTION_SCORES] = ATTENTION_SCORES, [PROBE_INDEX_SCORES] = INDEX_SCORES,
        [PROBE_INDEX_KEPT] = INDEX_KEPT, [PROBE_INDEX_MARGIN] = INDEX_MARGIN, [PROBE_ROUTER_SCORES] = ROUTER_SCORES,
        [PROBE_ROUTER_CHOICE] = ROUTER_CHOICE, [PROBE_ROUTER_GROUP_SCORES] = ROUTER_GROUP_SCORES,
        [PROBE_ROUTER_GROUPS] = ROUTER_GROUPS, [PROBE_ROUTER_EXPERTS] = ROUTER_EXPERTS,
        [PROBE_ROUTER_WEIGHTS] = ROUTER_WEIGHTS, [PROBE_EXPERT_OUTPUT] = EXPERT_OUTPUT,
        [PROBE_SHARED_OUTPUT] = SHARED_EXPERTS};
    return values[v];
}

enum pass_value value_named(const char *name)
{
    for (int v = 0; v < VALUES; v++)
        if (!strcmp(value_table[v].name, name))
            return (enum pass_value)v;
    return NO_VALUE;
}

int value_exists(enum pass_value v, const struct config *c, int layer)
{
    const struct value_row *x = &value_table[v];
    int is_layer = layer >= 0, is_module = layer >= c->num_hidden_layers;
    return (x->place == OF_PASS ? !is_layer : x->place == OF_LAYER ? is_layer : is_module) &&
           (!x->exists || x->exists(c, layer));
}

enum pass_value value_input(enum pass_value v, size_t i, const struct config *c, int layer)
{
    for (size_t k = 0; i < value_table[v].count && k < VALUE_SOURCES; k++) {
        enum pass_value from = value_table[v].inputs[i].from[k];
        if (from >= VALUES || value_exists(from, c, layer))
            return from;
    }
    return NO_VALUE;
}

size_t value_pitch(enum pass_value v, const struct config *c)
{
    const struct value_row *x = &value_table[v];
    return x->pitch ? x->pitch(c) : x->width(c);
}

struct value_shape value_shape(enum pass_value v, const struct config *c)
{
    const struct value_row *x = &value_table[v];
    size_t width = x->width(c), outer = x->outer ? x->outer(c) : 1, inner = width / outer;
    return (struct value_shape){.at = x->at ? x->at(c) : 0, .pitch = value_pitch(v, c), .outer = outer,
                                .inner = inner, .outer_pitch = x->outer_pitch ? x->outer_pitch(c) : inner};
}
