/* tools/cli/naming.c -- a table of Verbatim's names and the names of other engines.
 *
 * Sources of the names (read, not copied):
 *   hf         transformers 5.23: the module paths are also Verbatim's names; for MTP, see MtpModel
 *              (golden/scripts/against_transformers.py)
 *   vllm       vllm/model_executor/models/deepseek_v2.py, deepseek_mtp.py
 *   sglang     python/sglang/srt/models/deepseek_v2.py, deepseek_nextn.py (one module: `model.decoder`)
 *   megatron   megatron/core/transformer/multi_latent_attention.py, multi_token_prediction.py, moe/moe_layer.py,
 *              models/gpt/gpt_model.py
 *   llama.cpp  src/models/deepseek2.cpp, deepseek32.cpp, glm-dsa.cpp and llm_graph_context (src/llama-graph.cpp) pass
 *              names of the form NAME-LAYER to a callback. Some names are passed more than once (q, qr, q_pe, k_pe,
 *              kv_cmpr, indexer_weights): the last value counts. */
#include "tools/cli/naming.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum system { HF, LLAMA, MEGATRON, SGLANG, VLLM, SYSTEMS };
/* WHOLE: a complete name; LAYER: a name below a layer; MODULE: a name of an MTP layer outside of its decoder layer */
enum scope { WHOLE, LAYER, MODULE };

/* The engine uses Verbatim's name for another value. vLLM and SGLang add the residual inside of the next norm, so the
 * value that their hooks see under such a name is not the residual stream. */
#define OTHER "!"
#define SAME(name) {name, NULL, NULL, name, name}

/* The table is in the order of computation. NULL: the engine has no name for the value, or the name is not unique. */
static const struct naming_entry {
    enum scope scope;
    const char *ours, *theirs[SYSTEMS];
} table[] = {
    {WHOLE, "model.embed_tokens.output",
     {"model.embed_tokens.output", "inp_embd", "embedding.word_embeddings.output", "model.embed_tokens.output",
      "model.embed_tokens.output"}},
    {MODULE, "embed_tokens.output", {NULL, NULL, NULL, NULL, NULL}},
    {MODULE, "enorm.output", {"enorm.output", NULL, "enorm.output", "enorm.output", "enorm.output"}},
    {MODULE, "hnorm.input", {"hnorm.input", NULL, "hnorm.input", "hnorm.input", "hnorm.input"}},
    {MODULE, "hnorm.output", {"hnorm.output", NULL, "hnorm.output", "hnorm.output", "hnorm.output"}},
    {MODULE, "eh_proj.input", {"eh_proj.input", NULL, "eh_proj.input", "eh_proj.input", "eh_proj.input"}},
    {MODULE, "eh_proj.output", {"eh_proj.output", NULL, "eh_proj.output", "eh_proj.output", "eh_proj.output"}},
    {LAYER, "input_layernorm.input", {"input_layernorm.input", NULL, "input_layernorm.input", OTHER, OTHER}},
    {LAYER, "input_layernorm.output",
     {"input_layernorm.output", "attn_norm", "input_layernorm.output", "input_layernorm.output",
      "input_layernorm.output"}},
    {LAYER, "self_attn.q_a_proj.output+self_attn.kv_a_proj_with_mqa.output",
     {NULL, NULL, NULL, "self_attn.fused_qkv_a_proj_with_mqa.output", "self_attn.fused_qkv_a_proj.output"}},
    {LAYER, "self_attn.q_a_proj.output",
     {"self_attn.q_a_proj.output", NULL, "self_attention.linear_q_down_proj.output", NULL, NULL}},
    {LAYER, "self_attn.q_a_layernorm.output",
     {"self_attn.q_a_layernorm.output", "qr", "self_attention.q_layernorm.output", "self_attn.q_a_layernorm.output",
      "self_attn.q_a_layernorm.output"}},
    {LAYER, "self_attn.q_b_proj.output",
     {"self_attn.q_b_proj.output", "q", "self_attention.linear_q_up_proj.output", "self_attn.q_b_proj.output",
      "self_attn.q_b_proj.output"}},
    {LAYER, "self_attn.q_proj.output",
     {"self_attn.q_proj.output", "q", "self_attention.linear_q_proj.output", "self_attn.q_proj.output",
      "self_attn.q_proj.output"}},
    {LAYER, "self_attn.kv_a_proj_with_mqa.output",
     {"self_attn.kv_a_proj_with_mqa.output", "kv_cmpr_pe", "self_attention.linear_kv_down_proj.output",
      "self_attn.kv_a_proj_with_mqa.output", "self_attn.kv_a_proj_with_mqa.output"}},
    {LAYER, "self_attn.k_proj.output", {"self_attn.k_proj.output", "Kcur", NULL, NULL, NULL}},
    {LAYER, "self_attn.v_proj.output", {"self_attn.v_proj.output", "Vcur", NULL, NULL, NULL}},
    {LAYER, "self_attn.q_rope", {NULL, "q_pe", NULL, NULL, NULL}},
    {LAYER, "self_attn.kv_a_layernorm.output",
     {"self_attn.kv_a_layernorm.output", "kv_cmpr", "self_attention.kv_layernorm.output",
      "self_attn.kv_a_layernorm.output", "self_attn.kv_a_layernorm.output"}},
    {LAYER, "self_attn.k_rope", {NULL, "k_pe", NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.wk.output", SAME("self_attn.indexer.wk.output")},
    {LAYER, "self_attn.indexer.k_norm.output", SAME("self_attn.indexer.k_norm.output")},
    {LAYER, "self_attn.indexer.k", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.wq_b.output", SAME("self_attn.indexer.wq_b.output")},
    {LAYER, "self_attn.indexer.weights_proj.output", SAME("self_attn.indexer.weights_proj.output")},
    {LAYER, "self_attn.indexer.q", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.weights", {NULL, "indexer_weights", NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.scores", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.kept", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "self_attn.indexer.margin", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "self_attn.o_proj.input",
     {"self_attn.o_proj.input", "kqv_out", "self_attention.linear_proj.input", "self_attn.o_proj.input",
      "self_attn.o_proj.input"}},
    {LAYER, "self_attn.o_proj.output",
     {"self_attn.o_proj.output", NULL, "self_attention.linear_proj.output", "self_attn.o_proj.output",
      "self_attn.o_proj.output"}},
    {LAYER, "post_attention_layernorm.input",
     {"post_attention_layernorm.input", "ffn_inp", "pre_mlp_layernorm.input", OTHER, OTHER}},
    {LAYER, "post_attention_layernorm.output",
     {"post_attention_layernorm.output", "ffn_norm", "pre_mlp_layernorm.output", "post_attention_layernorm.output",
      "post_attention_layernorm.output"}},
    {LAYER, "mlp.gate.output", {"mlp.gate.output", "ffn_moe_logits", NULL, "mlp.gate.output", "mlp.gate.output"}},
    {LAYER, "mlp.gate.scores", {NULL, "ffn_moe_probs", NULL, NULL, NULL}},
    {LAYER, "mlp.gate.choice", {NULL, "ffn_moe_probs_biased", NULL, NULL, NULL}},
    {LAYER, "mlp.gate.group_scores", {NULL, NULL, NULL, NULL, NULL}},
    {LAYER, "mlp.gate.groups", {NULL, "ffn_moe_group_topk", NULL, NULL, NULL}},
    {LAYER, "mlp.gate.experts", {NULL, "ffn_moe_topk", NULL, NULL, NULL}},
    {LAYER, "mlp.gate.weights", {NULL, "ffn_moe_weights_scaled", NULL, NULL, NULL}},
    {LAYER, "mlp.shared_experts.output", SAME("mlp.shared_experts.output")},
    {LAYER, "mlp.output", {"mlp.output", "ffn_out", "mlp.output", "mlp.output", "mlp.output"}},
    {LAYER, "output", {"output", "l_out", "output", OTHER, OTHER}},
    {MODULE, "shared_head.norm.input",
     {"post_norm.input", NULL, "final_layernorm.input", OTHER, "shared_head.norm.input"}},
    {MODULE, "shared_head.norm.output",
     {"post_norm.output", NULL, "final_layernorm.output", "shared_head.norm.output", "shared_head.norm.output"}},
    {MODULE, "shared_head.head.output", {NULL, NULL, NULL, NULL, NULL}},
    {WHOLE, "model.norm.input", {"model.norm.input", NULL, "decoder.final_layernorm.input", OTHER, OTHER}},
    {WHOLE, "model.norm.output",
     {"model.norm.output", "result_norm", "decoder.final_layernorm.output", "model.norm.output", "model.norm.output"}},
    {WHOLE, "lm_head.output",
     {"lm_head.output", "result_output", "output_layer.output", "lm_head.output", "lm_head.output"}},
    {WHOLE, "model.embed_tokens.output", {NULL, "embd", NULL, NULL, NULL}}, /* llama.cpp since 2026 */
    /* the names in golden/truth and in the output of `verbatim logits` */
    {WHOLE, "model.norm.output", {"hidden", "hidden", "hidden", "hidden", "hidden"}},
    {WHOLE, "lm_head.output", {"logits", "logits", "logits", "logits", "logits"}},
};
#define ENTRIES (sizeof table / sizeof *table)

/* The text before the names of a layer. %L: the number of the layer. %K: the number of the MTP module, from 0. %0:
 * stands for no number; the engine has one module only. */
static const struct naming {
    const char *name, *layer, *block, *module, *older[2]; /* older: the text before `block` in older versions */
} systems[SYSTEMS] = {
    [HF] = {"hf", "model.layers.%L.", "layers.%K.mtp_block.", "layers.%K.", {NULL, NULL}},
    [LLAMA] = {"llama.cpp", "-%L", "-%L", "-%L", {NULL, NULL}},
    [MEGATRON] = {"megatron", "decoder.layers.%L.", "mtp.layers.%K.mtp_model_layer.", "mtp.layers.%K.",
                  {"mtp.layers.%K.transformer_layer.", "mtp.layers.%K.tf_layer."}},
    [SGLANG] = {"sglang", "model.layers.%L.", "%0model.decoder.", "%0model.", {NULL, NULL}},
    [VLLM] = {"vllm", "model.layers.%L.", "model.layers.%L.mtp_block.", "model.layers.%L.", {NULL, NULL}},
};

const struct naming *naming_find(const char *system)
{
    for (size_t i = 0; i < SYSTEMS; i++)
        if (!strcmp(system, systems[i].name))
            return &systems[i];
    return NULL;
}

const char *naming_known(void) { return "hf, llama.cpp, megatron, sglang, vllm"; }

/* Splits the name "model.layers.L.REST": returns L and sets *rest to REST. Returns -1 for any other name, and *rest is
 * then the whole name. */
static int layer_of(const char *ours, const char **rest)
{
    static const char prefix[] = "model.layers.";
    char *end;
    *rest = ours;
    if (strncmp(ours, prefix, sizeof prefix - 1) || ours[sizeof prefix - 1] < '0' || ours[sizeof prefix - 1] > '9')
        return -1;
    long layer = strtol(ours + sizeof prefix - 1, &end, 10);
    if (*end != '.' || layer > 1 << 20)
        return -1;
    *rest = end + 1;
    return (int)layer;
}

/* Writes a prefix with its number. Returns 0 if the engine has no such module. */
static int write_prefix(char out[NAMING_ROOM], const char *pattern, int layer, int layers)
{
    const char *percent = strchr(pattern, '%');
    if (percent[1] == '0') {
        snprintf(out, NAMING_ROOM, "%s", percent + 2);
        return layer == layers;
    }
    snprintf(out, NAMING_ROOM, "%.*s%d%s", (int)(percent - pattern), pattern,
             percent[1] == 'K' ? layer - layers : layer, percent + 2);
    return 1;
}

void naming_to(const struct naming *n, const char *ours, int layers, char out[NAMING_ROOM])
{
    const char *rest;
    char number[NAMING_ROOM];
    int layer = layer_of(ours, &rest), system = (int)(n - systems), module = layer >= layers;
    snprintf(out, NAMING_ROOM, "%s", ours);
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct naming_entry *e = &table[i];
        const char *theirs = e->theirs[system];
        if (!theirs || !strcmp(theirs, OTHER) || strcmp(rest, e->ours) || (e->scope == WHOLE) != (layer < 0) ||
            (e->scope == MODULE && !module))
            continue;
        if (e->scope == WHOLE)
            snprintf(out, NAMING_ROOM, "%s", theirs);
        else if (write_prefix(number, e->scope == MODULE ? n->module : module ? n->block : n->layer, layer, layers))
            snprintf(out, NAMING_ROOM, "%.150s%.150s", system == LLAMA ? theirs : number,
                     system == LLAMA ? number : theirs);
        return;
    }
}

/* Returns the part of `theirs` after a prefix, and sets *layer to the layer in the prefix. Returns NULL if `theirs`
 * does not have this prefix. */
static const char *read_prefix(const char *pattern, const char *theirs, int layers, int *layer)
{
    const char *percent = strchr(pattern, '%'), *after = percent + 2;
    size_t before = (size_t)(percent - pattern);
    char *end;
    if (percent[1] == '0') {
        *layer = layers;
        return layers >= 0 && !strncmp(theirs, after, strlen(after)) ? theirs + strlen(after) : NULL;
    }
    if (strncmp(theirs, pattern, before) || theirs[before] < '0' || theirs[before] > '9')
        return NULL;
    long number = strtol(theirs + before, &end, 10);
    if (strncmp(end, after, strlen(after)) || number > 1 << 20 || (percent[1] == 'K' && layers < 0))
        return NULL;
    *layer = (int)number + (percent[1] == 'K' ? layers : 0);
    return end + strlen(after);
}

static void join(char out[NAMING_ROOM], int layer, const char *ours)
{
    const char *plus = strchr(ours, '+');
    if (plus)
        snprintf(out, NAMING_ROOM, "model.layers.%d.%.*s+model.layers.%d.%s", layer, (int)(plus - ours), ours, layer,
                 plus + 1);
    else
        snprintf(out, NAMING_ROOM, "model.layers.%d.%s", layer, ours);
}

int naming_from(const struct naming *n, const char *theirs, int layers, char out[NAMING_ROOM])
{
    const char *prefixes[] = {n->block, n->module, n->layer, n->older[0], n->older[1]}, *dash = strrchr(theirs, '-'),
               *rest;
    enum scope scopes[] = {LAYER, MODULE, LAYER, LAYER, LAYER};
    int system = (int)(n - systems), layer;
    char stem[NAMING_ROOM];
    for (size_t i = 0; i < ENTRIES; i++) {
        const char *whole = table[i].scope == WHOLE ? table[i].theirs[system] : NULL;
        int other = whole && !strcmp(whole, OTHER);
        if (!whole || strcmp(theirs, other ? table[i].ours : whole))
            continue;
        snprintf(out, NAMING_ROOM, other ? "%.250s (of another value)" : "%.250s", table[i].ours);
        return 1;
    }
    for (size_t p = 0; p < 5 && prefixes[p]; p++) {
        if (system == LLAMA) {
            rest = dash && read_prefix(prefixes[p], dash, layers, &layer) ? stem : NULL;
            if (rest && *read_prefix(prefixes[p], dash, layers, &layer))
                rest = NULL;
            snprintf(stem, sizeof stem, "%.*s", dash ? (int)(dash - theirs) : 0, theirs);
        } else {
            rest = read_prefix(prefixes[p], theirs, layers, &layer);
        }
        for (size_t i = 0; i < ENTRIES && rest; i++) {
            const struct naming_entry *e = &table[i];
            const char *theirs_here = e->theirs[system];
            if (e->scope != scopes[p] || !theirs_here)
                continue;
            if (!strcmp(theirs_here, OTHER) && !strcmp(rest, e->ours)) {
                snprintf(out, NAMING_ROOM, "%.250s (of another value)", theirs);
                return 1;
            }
            if (!strcmp(rest, theirs_here)) {
                join(out, layer, e->ours);
                return 1;
            }
        }
    }
    snprintf(out, NAMING_ROOM, "%.300s", theirs);
    return 0;
}

int naming_place(const char *ours, int *step, int *last)
{
    const char *rest;
    int layer = layer_of(ours, &rest);
    *last = 0;
    *step = ENTRIES;
    for (size_t i = ENTRIES; i-- > 0;)
        if (!strcmp(rest, table[i].ours))
            *step = (int)i;
    if (*step < (int)ENTRIES && table[*step].scope == WHOLE)
        *last = *step > 0;
    if (!strncmp(rest, "mlp.experts.", 12)) /* experts are computed after the router and before the shared expert */
        for (size_t i = 0; i < ENTRIES; i++)
            if (!strcmp(table[i].ours, "mlp.gate.weights"))
                *step = (int)i;
    if (*step == (int)ENTRIES && naming_of_context(ours))
        for (size_t i = 0; i < ENTRIES; i++)
            if (!strcmp(table[i].ours, "self_attn.indexer.margin"))
                *step = (int)i;
    return layer;
}

int naming_of_context(const char *name)
{
    return strstr(name, ".self_attn.scores.") || strstr(name, ".self_attn.probabilities.") ||
           strstr(name, ".indexer.scores") || strstr(name, ".indexer.kept");
}

int naming_is_ours(const char *name)
{
    static const char experts[] = "mlp.experts.";
    const char *rest, *after;
    int layer = layer_of(name, &rest);
    for (size_t i = 0; i < ENTRIES; i++)
        if (!strcmp(rest, table[i].ours) && (table[i].scope == WHOLE) == (layer < 0))
            return 1;
    if (layer < 0 || strncmp(rest, experts, sizeof experts - 1))
        return layer >= 0 && naming_of_context(name);
    after = rest + sizeof experts - 1;
    return after[strspn(after, "0123456789")] == '.' && !strcmp(after + strspn(after, "0123456789"), ".output");
}
