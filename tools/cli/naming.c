/* tools/cli/naming.c -- the names of other engines for Verbatim's values.
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

#include "engine/model/values.h"

enum system { HF, LLAMA, MEGATRON, SGLANG, VLLM, SYSTEMS };

#define OURS "=" /* the engine uses Verbatim's name */
/* The engine uses Verbatim's name for another value. vLLM and SGLang add the residual inside of the next norm, so the
 * value that their hooks see under such a name is not the residual stream. */
#define OTHER "!"

/* Verbatim's names, and their order, are those of engine/model/values.h. NULL: the engine has no name for the value, or
 * the name is not unique. */
static const struct naming_entry {
    enum pass_value value;
    const char *theirs[SYSTEMS];
} table[] = {
    {EMBEDDING, {OURS, "inp_embd", "embedding.word_embeddings.output", OURS, OURS}},
    {ENORM, {OURS, NULL, OURS, OURS, OURS}},
    {HNORM_INPUT, {OURS, NULL, OURS, OURS, OURS}},
    {HNORM, {OURS, NULL, OURS, OURS, OURS}},
    {EH_INPUT, {OURS, NULL, OURS, OURS, OURS}},
    {EH_PROJ, {OURS, NULL, OURS, OURS, OURS}},
    {LAYER_INPUT, {OURS, NULL, OURS, OTHER, OTHER}},
    {INPUT_NORM, {OURS, "attn_norm", OURS, OURS, OURS}},
    {Q_A, {OURS, NULL, "self_attention.linear_q_down_proj.output", NULL, NULL}},
    {Q_A_NORM, {OURS, "qr", "self_attention.q_layernorm.output", OURS, OURS}},
    {Q_B, {OURS, "q", "self_attention.linear_q_up_proj.output", OURS, OURS}},
    {Q_PROJ, {OURS, "q", "self_attention.linear_q_proj.output", OURS, OURS}},
    {KV_A, {OURS, "kv_cmpr_pe", "self_attention.linear_kv_down_proj.output", OURS, OURS}},
    {K_PROJ, {OURS, "Kcur", NULL, NULL, NULL}},
    {V_PROJ, {OURS, "Vcur", NULL, NULL, NULL}},
    {Q_ROPE, {NULL, "q_pe", NULL, NULL, NULL}},
    {LATENT, {OURS, "kv_cmpr", "self_attention.kv_layernorm.output", OURS, OURS}},
    {K_ROPE, {NULL, "k_pe", NULL, NULL, NULL}},
    {INDEX_WK, {OURS, NULL, NULL, OURS, OURS}},
    {INDEX_K_NORM, {OURS, NULL, NULL, OURS, OURS}},
    {INDEX_WQ_B, {OURS, NULL, NULL, OURS, OURS}},
    {INDEX_WEIGHTS_PROJ, {OURS, NULL, NULL, OURS, OURS}},
    {INDEX_WEIGHTS, {NULL, "indexer_weights", NULL, NULL, NULL}},
    {ATTENTION_HEADS, {OURS, "kqv_out", "self_attention.linear_proj.input", OURS, OURS}},
    {O_PROJ, {OURS, NULL, "self_attention.linear_proj.output", OURS, OURS}},
    {MIDDLE, {OURS, "ffn_inp", "pre_mlp_layernorm.input", OTHER, OTHER}},
    {POST_ATTENTION_NORM, {OURS, "ffn_norm", "pre_mlp_layernorm.output", OURS, OURS}},
    {ROUTER_LOGITS, {OURS, "ffn_moe_logits", NULL, OURS, OURS}},
    {ROUTER_SCORES, {NULL, "ffn_moe_probs", NULL, NULL, NULL}},
    {ROUTER_CHOICE, {NULL, "ffn_moe_probs_biased", NULL, NULL, NULL}},
    {ROUTER_GROUPS, {NULL, "ffn_moe_group_topk", NULL, NULL, NULL}},
    {ROUTER_EXPERTS, {NULL, "ffn_moe_topk", NULL, NULL, NULL}},
    {ROUTER_WEIGHTS, {NULL, "ffn_moe_weights_scaled", NULL, NULL, NULL}},
    {SHARED_EXPERTS, {OURS, NULL, NULL, OURS, OURS}},
    {MLP_OUTPUT, {OURS, "ffn_out", OURS, OURS, OURS}},
    {LAYER_OUTPUT, {OURS, "l_out", OURS, OTHER, OTHER}},
    {MODULE_NORM_INPUT, {"post_norm.input", NULL, "final_layernorm.input", OTHER, OURS}},
    {MODULE_NORM, {"post_norm.output", NULL, "final_layernorm.output", OURS, OURS}},
    {FINAL_NORM_INPUT, {OURS, NULL, "decoder.final_layernorm.input", OTHER, OTHER}},
    {FINAL_NORM, {OURS, "result_norm", "decoder.final_layernorm.output", OURS, OURS}},
    {LOGITS, {OURS, "result_output", "output_layer.output", OURS, OURS}},
    {EMBEDDING, {NULL, "embd", NULL, NULL, NULL}}, /* llama.cpp since 2026 */
    /* the names in golden/truth and in the output of `verbatim logits` */
    {FINAL_NORM, {"hidden", "hidden", "hidden", "hidden", "hidden"}},
    {LOGITS, {"logits", "logits", "logits", "logits", "logits"}},
};
#define ENTRIES (sizeof table / sizeof *table)

/* Q_A and KV_A by one projection; the columns of Q_A come first */
static const char *const fused[SYSTEMS] = {[SGLANG] = "self_attn.fused_qkv_a_proj_with_mqa.output",
                                           [VLLM] = "self_attn.fused_qkv_a_proj.output"};

static const char *ours_of(const struct naming_entry *e) { return value_table[e->value].name; }
static enum value_place place_of(const struct naming_entry *e) { return value_table[e->value].place; }
static int is_other(const char *theirs) { return !strcmp(theirs, OTHER); }

/* The engine's name, or OTHER, or NULL */
static const char *theirs_of(const struct naming_entry *e, int system)
{
    return e->theirs[system] && !strcmp(e->theirs[system], OURS) ? ours_of(e) : e->theirs[system];
}

/* Returns the value of a pass with this name in its layer; NO_VALUE if its names have the number of a head or expert,
 * or if no dump has it (the outputs of all experts). */
static enum pass_value value_of(const char *rest)
{
    enum pass_value v = value_named(rest);
    return v == NO_VALUE || v == EXPERT_OUTPUTS || strpbrk(value_table[v].name, "EH") ? NO_VALUE : v;
}

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
        const char *theirs = theirs_of(e, system);
        enum value_place place = place_of(e);
        if (!theirs || is_other(theirs) || strcmp(rest, ours_of(e)) || (place == OF_PASS) != (layer < 0) ||
            (place == OF_MODULE && !module))
            continue;
        if (place == OF_PASS)
            snprintf(out, NAMING_ROOM, "%s", theirs);
        else if (write_prefix(number, place == OF_MODULE ? n->module : module ? n->block : n->layer, layer, layers))
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

int naming_from(const struct naming *n, const char *theirs, int layers, char out[NAMING_ROOM])
{
    const char *prefixes[] = {n->block, n->module, n->layer, n->older[0], n->older[1]}, *dash = strrchr(theirs, '-'),
               *rest;
    enum value_place places[] = {OF_LAYER, OF_MODULE, OF_LAYER, OF_LAYER, OF_LAYER};
    int system = (int)(n - systems), layer;
    char stem[NAMING_ROOM];
    for (size_t i = 0; i < ENTRIES; i++) {
        const struct naming_entry *e = &table[i];
        const char *whole = place_of(e) == OF_PASS ? theirs_of(e, system) : NULL, *ours = ours_of(e);
        int other = whole && is_other(whole);
        if (!whole || strcmp(theirs, other ? ours : whole))
            continue;
        snprintf(out, NAMING_ROOM, other ? "%.250s (of another value)" : "%.250s", ours);
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
            const char *theirs_here = theirs_of(e, system);
            if (place_of(e) != places[p] || !theirs_here)
                continue;
            if (is_other(theirs_here) && !strcmp(rest, ours_of(e))) {
                snprintf(out, NAMING_ROOM, "%.250s (of another value)", theirs);
                return 1;
            }
            if (!strcmp(rest, theirs_here)) {
                snprintf(out, NAMING_ROOM, "model.layers.%d.%s", layer, ours_of(e));
                return 1;
            }
        }
        if (rest && places[p] == OF_LAYER && fused[system] && !strcmp(rest, fused[system])) {
            snprintf(out, NAMING_ROOM, "model.layers.%d.%s+model.layers.%d.%s", layer, value_table[Q_A].name, layer,
                     value_table[KV_A].name);
            return 1;
        }
    }
    snprintf(out, NAMING_ROOM, "%.300s", theirs);
    return 0;
}

int naming_place(const char *ours, int *step, int *last)
{
    const char *rest;
    int layer = layer_of(ours, &rest);
    enum pass_value v = value_of(rest);
    if (!strncmp(rest, "mlp.experts.", 12)) /* experts are computed after the router and before the shared expert */
        v = ROUTER_WEIGHTS;
    else if (v == NO_VALUE && naming_of_context(ours))
        v = INDEX_MARGIN;
    *last = v < VALUES && v != EMBEDDING && value_table[v].place == OF_PASS;
    *step = (int)v;
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
    enum pass_value v = value_of(rest);
    if (v != NO_VALUE && (value_table[v].place == OF_PASS) == (layer < 0))
        return 1;
    if (layer < 0 || strncmp(rest, experts, sizeof experts - 1))
        return layer >= 0 && naming_of_context(name);
    after = rest + sizeof experts - 1;
    return after[strspn(after, "0123456789")] == '.' && !strcmp(after + strspn(after, "0123456789"), ".output");
}
