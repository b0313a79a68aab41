#include "engine/files/tensor_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GGUF: the names of llama.cpp. Mistral: as vLLM (mistral_large_3.py) and llama.cpp (conversion/mistral.py) read them.
 * Megatron: from Megatron-Bridge's mapping of DeepSeek models (src/megatron/bridge/models/deepseek/common.py in
 * November 2026). */
const struct tensor_names tensor_names[MODEL_TENSORS] = {
    [TENSOR_INPUT_NORM] = {.hf = "input_layernorm.weight", "attn_norm.weight", "attention_norm.weight",
                           "input_layernorm.weight", "self_attention.linear_q_proj.layer_norm_weight"},
    [TENSOR_POST_ATTENTION_NORM] = {.hf = "post_attention_layernorm.weight", "ffn_norm.weight", "ffn_norm.weight",
                                    "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"},
    [TENSOR_Q_PROJ] = {.hf = "self_attn.q_proj.weight", "attn_q.weight", "attention.wq.weight",
                       "self_attention.linear_q_proj.weight"},
    [TENSOR_Q_A_PROJ] = {.hf = "self_attn.q_a_proj.weight", "attn_q_a.weight", "attention.wq_a.weight",
                         "self_attention.linear_q_down_proj.weight"},
    [TENSOR_Q_A_NORM] = {.hf = "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", "attention.q_a_norm.weight",
                         "self_attention.linear_q_up_proj.layer_norm_weight", "self_attention.q_layernorm.weight"},
    [TENSOR_Q_B_PROJ] = {.hf = "self_attn.q_b_proj.weight", "attn_q_b.weight", "attention.wq_b.weight",
                         "self_attention.linear_q_up_proj.weight"},
    [TENSOR_KV_A_PROJ] = {.hf = "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight",
                          "attention.wkv_a_with_mqa.weight", "self_attention.linear_kv_down_proj.weight"},
    [TENSOR_KV_A_NORM] = {.hf = "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight",
                          "attention.kv_a_norm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight",
                          "self_attention.kv_layernorm.weight"},
    [TENSOR_KV_B_PROJ] = {.hf = "self_attn.kv_b_proj.weight", "attn_kv_b.weight", "attention.wkv_b.weight",
                          "self_attention.linear_kv_up_proj.weight"},
    /* No Hugging Face checkpoint has the next three. An attn_k_b that is not quantized becomes the first of them
     * (checkpoint_gguf.c). */
    [TENSOR_K_B_PROJ] = {.hf = "self_attn.k_b_proj.weight"},
    [TENSOR_K_B_TRANSPOSED] = {.hf = "self_attn.k_b_proj_transposed.weight", "attn_k_b.weight"},
    [TENSOR_V_B_PROJ] = {.hf = "self_attn.v_b_proj.weight", "attn_v_b.weight"},
    [TENSOR_INDEX_WQ_B] = {.hf = "self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    [TENSOR_INDEX_WK] = {.hf = "self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
    [TENSOR_INDEX_K_NORM] = {.hf = "self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    [TENSOR_INDEX_K_NORM_BIAS] = {.hf = "self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    [TENSOR_INDEX_WEIGHTS_PROJ] = {.hf = "self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    [TENSOR_O_PROJ] = {.hf = "self_attn.o_proj.weight", "attn_output.weight", "attention.wo.weight",
                       "self_attention.linear_proj.weight"},

    [TENSOR_GATE_PROJ] = {.hf = "mlp.gate_proj.weight", "ffn_gate.weight", "feed_forward.w1.weight",
                          "mlp.linear_fc1.weight", NULL, FIRST_HALF},
    [TENSOR_UP_PROJ] = {.hf = "mlp.up_proj.weight", "ffn_up.weight", "feed_forward.w3.weight", "mlp.linear_fc1.weight",
                        NULL, SECOND_HALF},
    [TENSOR_DOWN_PROJ] = {.hf = "mlp.down_proj.weight", "ffn_down.weight", "feed_forward.w2.weight",
                          "mlp.linear_fc2.weight"},
    [TENSOR_ROUTER] = {.hf = "mlp.gate.weight", "ffn_gate_inp.weight", "gate.weight", "mlp.router.weight"},
    [TENSOR_ROUTER_BIAS] = {.hf = "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", NULL,
                            "mlp.router.expert_bias"},
    [TENSOR_EXPERT_GATE_PROJ] = {.hf = "mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight",
                                 "experts.%d.w1.weight", "mlp.experts.linear_fc1.weight%d",
                                 "mlp.experts.local_experts.%d.linear_fc1.weight", FIRST_HALF},
    [TENSOR_EXPERT_UP_PROJ] = {.hf = "mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", "experts.%d.w3.weight",
                               "mlp.experts.linear_fc1.weight%d", "mlp.experts.local_experts.%d.linear_fc1.weight",
                               SECOND_HALF},
    [TENSOR_EXPERT_DOWN_PROJ] = {.hf = "mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight",
                                 "experts.%d.w2.weight", "mlp.experts.linear_fc2.weight%d",
                                 "mlp.experts.local_experts.%d.linear_fc2.weight"},
    [TENSOR_SHARED_GATE_PROJ] = {.hf = "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight",
                                 "shared_experts.w1.weight", "mlp.shared_experts.linear_fc1.weight", NULL, FIRST_HALF},
    [TENSOR_SHARED_UP_PROJ] = {.hf = "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight",
                               "shared_experts.w3.weight", "mlp.shared_experts.linear_fc1.weight", NULL, SECOND_HALF},
    [TENSOR_SHARED_DOWN_PROJ] = {.hf = "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight",
                                 "shared_experts.w2.weight", "mlp.shared_experts.linear_fc2.weight"},

    [TENSOR_ENORM] = {.hf = "enorm.weight", "nextn.enorm.weight", NULL, "enorm.weight"},
    [TENSOR_HNORM] = {.hf = "hnorm.weight", "nextn.hnorm.weight", NULL, "hnorm.weight"},
    [TENSOR_EH_PROJ] = {.hf = "eh_proj.weight", "nextn.eh_proj.weight", NULL, "eh_proj.weight"},
    [TENSOR_MODULE_NORM] = {.hf = "shared_head.norm.weight", "nextn.shared_head_norm.weight", NULL,
                            "final_layernorm.weight"},
    [TENSOR_MODULE_EMBED_TOKENS] = {.hf = "embed_tokens.weight", "nextn.embed_tokens.weight"},
    [TENSOR_MODULE_HEAD] = {.hf = "shared_head.head.weight", "nextn.shared_head_head.weight"},

    [TENSOR_EMBED_TOKENS] = {.hf = "model.embed_tokens.weight", "token_embd.weight", "tok_embeddings.weight"},
    [TENSOR_NORM] = {.hf = "model.norm.weight", "output_norm.weight", "norm.weight"},
    [TENSOR_LM_HEAD] = {.hf = "lm_head.weight", "output.weight", "output.weight"},
};

/* Returns the length of a name without the "weight" at its end. */
static size_t stem(const char *name)
{
    static const char end[] = "weight";
    size_t size = strlen(name), last = sizeof end - 1;
    return size >= last && !strcmp(name + size - last, end) ? size - last : size;
}

void tensor_name(char *out, size_t room, const char *name, size_t expert, const char *end)
{
    const char *number = strstr(name, "%d");
    int size = (int)(end ? stem(name) : strlen(name)), before = number ? (int)(number - name) : size;
    if (number)
        snprintf(out, room, "%.*s%zu%.*s%s", before, name, expert, size - before - 2, number + 2, end ? end : "");
    else
        snprintf(out, room, "%.*s%s", size, name, end ? end : "");
}

static const char *rest_after(const char *name, size_t size, const char *text, size_t *expert)
{
    *expert = 0;
    for (const char *end = name + size; name < end; name++, text++) {
        if (*name == '%') {
            char *after;
            if (*text < '0' || *text > '9')
                return NULL;
            *expert = strtoul(text, &after, 10);
            text = after - 1;
            name++;
        } else if (*name != *text) {
            return NULL;
        }
    }
    return text;
}

const char *tensor_name_rest(const char *name, const char *text, size_t *expert)
{
    return name ? rest_after(name, stem(name), text, expert) : NULL;
}

int tensor_name_is(const char *name, const char *text, size_t *expert)
{
    const char *rest = name ? rest_after(name, strlen(name), text, expert) : NULL;
    return rest && !*rest;
}
