/* engine/model/config_gguf.c -- converts the metadata of a GGUF file to the contents of a config.json. So both kinds of
 * files go through the same checks, and a value means the same in both.
 *
 * The architectures are those of llama.cpp: "deepseek2" (DeepSeek-V2 and V3 and all that have their shape, with experts
 * or without), "mistral4", "deepseek32" (DeepSeek-V3.2) and "glm-dsa" (GLM-5). The last two have an indexer.
 *
 * One consequence is surprising. If a file has no expert_group_count, the router uses no groups, as in llama.cpp. But
 * older converters did not write this key for DeepSeek-V3, whose original code chooses experts from only 4 of 8 groups.
 * `inspect` prints a note about this. */
#include "engine/model/config_reader.h"
#include "engine/files/gguf.h"

#include <stdio.h>
#include <string.h>

/* The meaning of a missing key: an error; the default of the class (SILENT); null; 0; 1; or false. */
enum absent { NEEDED, SILENT, IS_NULL, IS_0, IS_1, IS_FALSE };

static const struct gguf_key {
    const char *gguf, *json; /* json is NULL if the key is known, but is read elsewhere or has no effect */
    enum config_kind kind;
    enum absent absent;
} keys[] = {
    {"context_length", "max_position_embeddings", INTEGER, NEEDED},
    {"embedding_length", "hidden_size", INTEGER, NEEDED},
    {"feed_forward_length", "intermediate_size", INTEGER, NEEDED},
    {"attention.head_count", "num_attention_heads", INTEGER, NEEDED},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, NEEDED},
    {"attention.q_lora_rank", "q_lora_rank", INTEGER, IS_NULL},
    {"attention.kv_lora_rank", "kv_lora_rank", INTEGER, NEEDED},
    {"rope.dimension_count", "qk_rope_head_dim", INTEGER, NEEDED},
    {"rope.freq_base", "rope_theta", REAL, NEEDED},
    {"leading_dense_block_count", "first_k_dense_replace", INTEGER, IS_0},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER, NEEDED},
    {"expert_count", "n_routed_experts", INTEGER, NEEDED},
    {"expert_used_count", "num_experts_per_tok", INTEGER, NEEDED},
    {"expert_shared_count", "n_shared_experts", INTEGER, IS_0},
    {"expert_group_count", "n_group", INTEGER, IS_1},
    {"expert_group_used_count", "topk_group", INTEGER, IS_1},
    {"expert_weights_scale", "routed_scaling_factor", REAL, IS_1},
    {"expert_weights_norm", "norm_topk_prob", BOOLEAN, IS_FALSE},
    {"attention.indexer.head_count", "index_n_heads", INTEGER, NEEDED},
    {"attention.indexer.key_length", "index_head_dim", INTEGER, NEEDED},
    {"attention.indexer.top_k", "index_topk", INTEGER, NEEDED},
    {"attention.indexer.types", NULL, BOOLEAN, SILENT},
    {"vocab_size", NULL, INTEGER, SILENT},
    {"block_count", NULL, INTEGER, SILENT},
    {"nextn_predict_layers", NULL, INTEGER, SILENT},
    {"attention.head_count_kv", NULL, INTEGER, SILENT},
    {"attention.temperature_scale", NULL, REAL, SILENT},
    {"attention.temperature_length", NULL, INTEGER, SILENT},
    {"attention.key_length", NULL, INTEGER, SILENT},
    {"attention.value_length", NULL, INTEGER, SILENT},
    {"attention.key_length_mla", NULL, INTEGER, SILENT},
    {"attention.value_length_mla", NULL, INTEGER, SILENT},
    {"expert_gating_func", NULL, INTEGER, SILENT},
    {"rope.scaling.type", NULL, INTEGER, SILENT},
    {"rope.scaling.factor", NULL, REAL, SILENT},
    {"rope.scaling.original_context_length", NULL, INTEGER, SILENT},
    {"rope.scaling.yarn_log_multiplier", NULL, REAL, SILENT},
    {"rope.scaling.yarn_beta_fast", NULL, REAL, SILENT},
    {"rope.scaling.yarn_beta_slow", NULL, REAL, SILENT},
    {"rope.scaling.yarn_ext_factor", NULL, REAL, SILENT},
    {"rope.scaling.yarn_attn_factor", NULL, REAL, SILENT},
    {"rope.scaling.attn_factor", NULL, REAL, SILENT},
    {"rope.scaling.finetuned", NULL, BOOLEAN, SILENT},
    {"tensor_data_layout", NULL, INTEGER, SILENT},
};
#define KEYS (sizeof keys / sizeof *keys)

enum { DEEPSEEK2, MISTRAL4, DEEPSEEK32, GLM_DSA, ARCHITECTURES };

static const struct architecture {
    const char *name;
    const char *hf; /* the architecture in config.json; NULL: it depends on the other keys */
    int has_indexer;
} architectures[] = {
    [DEEPSEEK2] = {"deepseek2", NULL, 0},
    [MISTRAL4] = {"mistral4", "Mistral4ForCausalLM", 0},
    [DEEPSEEK32] = {"deepseek32", "DeepseekV32ForCausalLM", 1},
    [GLM_DSA] = {"glm-dsa", "GlmMoeDsaForCausalLM", 1},
};

struct metadata {
    const struct gguf *g;
    json_t *root;
    vb_error *err;
    const struct architecture *architecture; /* general.architecture, with which the names of the other keys begin */
    int no_experts;                          /* 1: every layer is dense */
};

/* ---- single values ---- */

static const struct gguf_value *find(const struct metadata *m, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", m->architecture->name, key);
    return gguf_find(m->g, name);
}

static int bad(const struct metadata *m, const char *key, const struct gguf_value *v, const char *wanted)
{
    char shown[32];
    return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: %s.%s is %s, wanted %s", gguf_name(m->g), m->architecture->name, key,
                   gguf_show_type(v, shown), wanted);
}

/* Sets *out to a new JSON value. If the key is missing and not `needed`, sets *out to NULL, which is not an error. */
static int read_value(const struct metadata *m, const char *key, enum config_kind kind, int shift, int needed,
                      json_t **out)
{
    const struct gguf_value *v = find(m, key);
    int64_t integer;
    double real;
    int flag;
    *out = NULL;
    if (!v && !needed)
        return VB_OK;
    if (kind == INTEGER && gguf_integer(v, &integer))
        *out = json_integer(integer);
    else if (kind == REAL && gguf_real(v, shift, &real))
        *out = json_real(real);
    else if (kind == BOOLEAN && gguf_bool(v, &flag))
        *out = json_boolean(flag);
    else
        return bad(m, key, v, kind == INTEGER ? "a whole number" : kind == REAL ? "a finite number" : "BOOL");
    return *out ? VB_OK : vb_fail(m->err, VB_NO_MEMORY, "%s: no memory for its metadata", gguf_name(m->g));
}

/* Sets a key of `object`. The function owns `value`, even on failure. A NULL value means that there was no memory to
 * create it. */
static int say(const struct metadata *m, json_t *object, const char *key, json_t *value)
{
    if (value && !json_object_set_new(object, key, value))
        return VB_OK;
    return vb_fail(m->err, VB_NO_MEMORY, "%s: no memory for its metadata", gguf_name(m->g));
}

static int read_integer(const struct metadata *m, const char *key, int64_t otherwise, int needed, int64_t *out)
{
    const struct gguf_value *v = find(m, key);
    *out = otherwise;
    if ((!v && !needed) || (gguf_integer(v, out) && *out >= 0 && *out <= DIM))
        return VB_OK;
    return bad(m, key, v, "a whole number from 0 to 16777216");
}

/* ---- what follows from one key ---- */

static int say_key(const struct metadata *m, const struct gguf_key *k)
{
    json_t *value;
    int rc = read_value(m, k->gguf, k->kind, 0, k->absent == NEEDED, &value);
    if (rc || (!value && k->absent == SILENT))
        return rc;
    if (!value)
        value = k->absent == IS_NULL ? json_null()
                : k->absent == IS_FALSE ? json_false()
                : json_integer(k->absent == IS_1);
    return say(m, m->root, k->json, value);
}

static int starts(const struct gguf_key *k, const char *with) { return !strncmp(k->gguf, with, strlen(with)); }

static int is_for(const struct metadata *m, const struct gguf_key *k)
{
    return m->architecture->has_indexer || !starts(k, "attention.indexer.");
}

/* In a model without experts, the keys about them may be missing, and mean nothing. */
static int is_about_experts(const struct gguf_key *k)
{
    return starts(k, "expert_") || starts(k, "leading_dense_block_count");
}

/* Returns an error if there is an unknown key, because it might change what must be computed. */
static int refuse_unknown(const struct metadata *m)
{
    size_t n = strlen(m->architecture->name);
    for (size_t i = 0; i < gguf_keys(m->g); i++) {
        struct gguf_text key = gguf_key(m->g, i)->key;
        size_t k = 0;
        if (key.size <= n + 1 || memcmp(key.s, m->architecture->name, n) || key.s[n] != '.')
            continue;
        while (k < KEYS && (!is_for(m, &keys[k]) || strlen(keys[k].gguf) != key.size - n - 1 ||
                            memcmp(keys[k].gguf, key.s + n + 1, key.size - n - 1)))
            k++;
        if (k == KEYS)
            return vb_fail(m->err, VB_UNSUPPORTED, "%s: the key %.*s is not known, and may change what is computed",
                           gguf_name(m->g), (int)key.size, key.s);
    }
    return VB_OK;
}

static int read_architecture(struct metadata *m)
{
    struct gguf_text name;
    char shown[JSON_SHOWN], list[96] = "";
    if (!gguf_string(gguf_find(m->g, "general.architecture"), &name))
        return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: general.architecture is missing or no string", gguf_name(m->g));
    for (size_t i = 0; i < ARCHITECTURES; i++) {
        size_t n = strlen(list);
        m->architecture = &architectures[i];
        if (name.size == strlen(m->architecture->name) && !memcmp(name.s, m->architecture->name, name.size))
            return VB_OK;
        snprintf(list + n, sizeof list - n, "%s%s",
                 !i ? ""
                 : i + 1 < ARCHITECTURES ? ", "
                 : " and ",
                 m->architecture->name);
    }
    const char *why = config_why_refused(name.s, name.size, 1);
    if (why)
        return vb_fail(m->err, VB_UNSUPPORTED, "%s: architecture %.*s is not supported: %s", gguf_name(m->g),
                       (int)name.size, name.s, why);
    json_t *text = json_stringn(name.s, name.size);
    vb_fail(m->err, VB_UNSUPPORTED, "%s: architecture %s is not supported, only %s", gguf_name(m->g),
            text ? json_show(text, shown) : "that is not UTF-8", list);
    json_decref(text);
    return VB_UNSUPPORTED;
}

/* ---- what follows from several ---- */

static int say_layers(const struct metadata *m)
{
    int64_t blocks, mtp;
    int rc = read_integer(m, "block_count", 0, 1, &blocks);
    if (rc || (rc = read_integer(m, "nextn_predict_layers", 0, 0, &mtp)))
        return rc;
    if (mtp >= blocks)
        return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: %s.block_count is %lld, of which nextn_predict_layers are %lld",
                       gguf_name(m->g), m->architecture->name, (long long)blocks, (long long)mtp);
    rc = say(m, m->root, "num_hidden_layers", json_integer(blocks - mtp));
    return rc ? rc : say(m, m->root, "num_nextn_predict_layers", json_integer(mtp));
}

/* Converters that split kv_b_proj write two kinds of lengths. key_length and value_length describe the absorbed form,
 * with one head of c + r numbers; key_length_mla and value_length_mla describe MLA. Older converters write the lengths
 * of MLA as key_length and value_length. */
static int say_heads(const struct metadata *m)
{
    int64_t heads, kv, rope, key, value;
    int mla = find(m, "attention.key_length_mla") != NULL, rc;
    if ((rc = read_integer(m, "attention.head_count", 0, 1, &heads)) ||
        (rc = read_integer(m, "attention.head_count_kv", heads, 0, &kv)) ||
        (rc = read_integer(m, "rope.dimension_count", 0, 1, &rope)) ||
        (rc = read_integer(m, mla ? "attention.key_length_mla" : "attention.key_length", 0, 1, &key)) ||
        (rc = read_integer(m, mla ? "attention.value_length_mla" : "attention.value_length", 0, 1, &value)))
        return rc;
    if (kv != 1 && kv != heads)
        return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: %s.attention.head_count_kv is %lld, wanted 1 or head_count",
                       gguf_name(m->g), m->architecture->name, (long long)kv);
    rc = say(m, m->root, "qk_nope_head_dim", json_integer(key - rope));
    return rc ? rc : say(m, m->root, "v_head_dim", json_integer(value));
}

static int has_router_bias(const struct gguf *g)
{
    static const char ending[] = ".exp_probs_b.bias";
    for (size_t i = 0; i < gguf_tensors(g); i++) {
        struct gguf_text name = gguf_tensor(g, i)->name;
        if (name.size >= sizeof ending && !memcmp(name.s + name.size - (sizeof ending - 1), ending, sizeof ending - 1))
            return 1;
    }
    return 0;
}

/* Mistral Large 3 is stored as a deepseek2 that scales its queries. */
static int is_mistral(const struct metadata *m)
{
    return m->architecture == &architectures[MISTRAL4] || find(m, "attention.temperature_scale");
}

/* Youtu-LLM is stored as a deepseek2 whose layers are all dense, without a number of experts. */
static int find_experts(struct metadata *m)
{
    int64_t experts, dense, blocks;
    int rc;
    if ((rc = read_integer(m, "expert_count", 0, 0, &experts)) ||
        (rc = read_integer(m, "leading_dense_block_count", 0, 0, &dense)) ||
        (rc = read_integer(m, "block_count", 0, 1, &blocks)))
        return rc;
    m->no_experts = !m->architecture->hf && !experts && dense >= blocks;
    return VB_OK;
}

/* The gating function shows which router the model has. The router of DeepSeek-V3 uses a sigmoid, a bias and the method
 * noaux_tc. The router of DeepSeek-V2 uses softmax and has no bias. If the key is missing, a model with a bias is a
 * DeepSeek-V3. */
static int say_router(const struct metadata *m)
{
    int64_t gating, groups, used;
    int rc = read_integer(m, "expert_gating_func", 0, 0, &gating);
    if (rc || (rc = read_integer(m, "expert_group_count", 1, 0, &groups)) ||
        (rc = read_integer(m, "expert_group_used_count", 1, groups > 1, &used)))
        return rc;
    if (gating > 2)
        return vb_fail(m->err, VB_UNSUPPORTED,
                       "%s: %s.expert_gating_func %lld is not supported, only 1 (softmax) and 2 "
                       "(sigmoid)",
                       gguf_name(m->g), m->architecture->name, (long long)gating);
    if (m->architecture->has_indexer && gating == 1)
        return vb_fail(m->err, VB_UNSUPPORTED,
                       "%s: %s.expert_gating_func 1 (softmax) is not supported, only 2 (sigmoid)", gguf_name(m->g),
                       m->architecture->name);
    const char *known = m->no_experts ? "YoutuForCausalLM"
                        : is_mistral(m) ? "Mistral4ForCausalLM"
                        : m->architecture->hf;
    if (known)
        return say(m, m->root, "architectures", json_pack("[s]", known));
    int sigmoid = gating ? gating == 2 : has_router_bias(m->g);
    json_t *architecture = json_pack("[s]", sigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM");
    const char *method = sigmoid ? "noaux_tc" : groups > 1 ? "group_limited_greedy" : "greedy";
    if ((rc = say(m, m->root, "architectures", architecture)) ||
        (rc = say(m, m->root, "topk_method", json_string(method))))
        return rc;
    return gating ? say(m, m->root, "scoring_func", json_string(sigmoid ? "sigmoid" : "softmax")) : VB_OK;
}

/* A file of GLM-5.2 may lack the list of full layers, because older converters did not write it. llama.cpp recognises
 * such a file by its context length, and so does this function. In files without the list and with a shorter context,
 * all layers are full. */
static int say_shared_layers(const struct metadata *m)
{
    static const char key[] = "attention.indexer.types";
    const struct gguf_value *v = find(m, key);
    int64_t blocks, mtp, length;
    int rc;
    if ((rc = read_integer(m, "block_count", 0, 1, &blocks)) ||
        (rc = read_integer(m, "nextn_predict_layers", 0, 0, &mtp)) ||
        (rc = read_integer(m, "context_length", 0, 1, &length)))
        return rc;
    if (!v && m->architecture == &architectures[GLM_DSA] && length >= 1048576) {
        rc = say(m, m->root, "index_topk_freq", json_integer(4));
        return rc ? rc : say(m, m->root, "index_skip_topk_offset", json_integer(3));
    }
    if (!v)
        return VB_OK;
    if (!v->is_array || v->type != GGUF_BOOL || v->count != (uint64_t)(blocks - mtp))
        return bad(m, key, v, "an array with one BOOL per layer");
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < v->count; i++)
        if (json_array_append_new(list, json_string(gguf_item(v, i) ? "full" : "shared"))) {
            json_decref(list);
            list = NULL;
        }
    return say(m, m->root, "indexer_types", list);
}

/* The format has no key for this setting of drafting, so `quantize` writes one of its own. */
static int say_indexer(const struct metadata *m)
{
    const struct gguf_value *v = gguf_find(m->g, GGUF_INDEX_SHARE);
    int share = 0;
    if (!m->architecture->has_indexer)
        return VB_OK;
    if (v && !gguf_bool(v, &share))
        return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: %s is no BOOL", gguf_name(m->g), GGUF_INDEX_SHARE);
    int rc = say(m, m->root, "index_share_for_mtp_iteration", json_boolean(share));
    return rc ? rc : say_shared_layers(m);
}

static int say_rope_number(const struct metadata *m, json_t *rope, const char *key, enum config_kind kind, int shift,
                           const char *json)
{
    json_t *value;
    int rc = read_value(m, key, kind, shift, 0, &value);
    return rc || !value ? rc : say(m, rope, json, value);
}

/* Checks a factor that llama.cpp multiplies with the factors of YaRN. Only 1 is supported. */
static int must_be_1(const struct metadata *m, const char *key)
{
    double x = 1;
    const struct gguf_value *v = find(m, key);
    if (!v || (gguf_real(v, 0, &x) && x == 1))
        return VB_OK;
    return vb_fail(m->err, VB_UNSUPPORTED, "%s: %s.%s %.9g is not supported, only 1", gguf_name(m->g),
                   m->architecture->name, key, x);
}

/* The metadata has only one of the two factors: yarn_log_multiplier, which is 0.1 * mscale_all_dim. If it is missing,
 * mscale_all_dim is 0. mscale is set to the same value, as in all published models, so that cos and sin are multiplied
 * by exactly 1. */
static int say_yarn(const struct metadata *m, json_t *rope)
{
    int rc;
    if ((rc = must_be_1(m, "rope.scaling.yarn_ext_factor")) || (rc = must_be_1(m, "rope.scaling.yarn_attn_factor")) ||
        (rc = must_be_1(m, "rope.scaling.attn_factor")) ||
        (rc = say_rope_number(m, rope, "rope.scaling.factor", REAL, 0, "factor")) ||
        (rc = say_rope_number(m, rope, "rope.scaling.original_context_length", INTEGER, 0,
                              "original_max_position_embeddings")) ||
        (rc = say_rope_number(m, rope, "rope.scaling.yarn_beta_fast", REAL, 0, "beta_fast")) ||
        (rc = say_rope_number(m, rope, "rope.scaling.yarn_beta_slow", REAL, 0, "beta_slow")) ||
        (rc = say_rope_number(m, rope, "rope.scaling.yarn_log_multiplier", REAL, 1, "mscale_all_dim")))
        return rc;
    if (is_mistral(m) &&
        ((rc = say(m, rope, "llama_4_scaling_beta", json_real(0))) ||
         (rc = say_rope_number(m, rope, "attention.temperature_scale", REAL, 0, "llama_4_scaling_beta"))))
        return rc;
    const json_t *length = json_object_get(rope, "original_max_position_embeddings");
    const struct gguf_value *v = find(m, "attention.temperature_length");
    int64_t tokens = 0;
    if (v && (!gguf_integer(v, &tokens) || tokens != json_integer_value(length)))
        return bad(m, "attention.temperature_length", v, "the number rope.scaling.original_context_length");
    json_t *all = json_object_get(rope, "mscale_all_dim");
    if (!all && (rc = say(m, rope, "mscale_all_dim", json_real(0))))
        return rc;
    return say(m, rope, "mscale", json_copy(json_object_get(rope, "mscale_all_dim")));
}

static int say_rope(const struct metadata *m)
{
    struct gguf_text type = {"", 0};
    const struct gguf_value *v = find(m, "rope.scaling.type");
    json_t *rope, *name;
    int rc;
    if (v && !gguf_string(v, &type))
        return bad(m, "rope.scaling.type", v, "a string");
    if (!v && find(m, "rope.scaling.factor"))
        return bad(m, "rope.scaling.type", NULL, "a name beside factor");
    if (!type.size || (type.size == 4 && !memcmp(type.s, "none", 4)))
        return VB_OK;
    if (!(name = json_stringn(type.s, type.size)))
        return bad(m, "rope.scaling.type", v, "UTF-8");
    if (!(rope = json_object())) {
        json_decref(name);
        return vb_fail(m->err, VB_NO_MEMORY, "%s: no memory for its metadata", gguf_name(m->g));
    }
    rc = say(m, rope, "rope_type", name);
    if (!rc && !strcmp(json_string_value(json_object_get(rope, "rope_type")), "yarn"))
        rc = say_yarn(m, rope);
    if (!rc)
        return say(m, m->root, "rope_scaling", rope);
    json_decref(rope);
    return rc;
}

/* If a file has no vocab_size, the size is the number of tokens in the tokenizer. */
static int say_vocabulary(const struct metadata *m)
{
    const struct gguf_value *tokens = gguf_find(m->g, "tokenizer.ggml.tokens");
    int64_t size;
    int counted = tokens && tokens->is_array && tokens->count <= DIM;
    int rc = read_integer(m, "vocab_size", counted ? (int64_t)tokens->count : 0, !counted, &size);
    if (!rc)
        rc = say(m, m->root, "vocab_size", json_integer(size));
    return rc ? rc : say(m, m->root, "tie_word_embeddings", json_boolean(!gguf_find_tensor(m->g, "output.weight")));
}

/* Three tokens can end the generated text: end of text, end of turn and end of message. */
static int say_end_tokens(const struct metadata *m)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    int64_t id, seen[3];
    int rc = VB_OK;
    size_t n = 0, old;
    for (size_t i = 0; !rc && i < 3; i++) {
        const struct gguf_value *v = gguf_find(m->g, ends[i]);
        if (!v)
            continue;
        if (!gguf_integer(v, &id))
            rc = vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: %s is not a whole number", gguf_name(m->g), ends[i]);
        for (old = 0; !rc && old < n && seen[old] != id; old++)
            ;
        if (!rc && old == n) {
            seen[n++] = id;
            if (json_array_append_new(list, json_integer(id)))
                rc = vb_fail(m->err, VB_NO_MEMORY, "%s: no memory for its metadata", gguf_name(m->g));
        }
    }
    if (!rc)
        return say(m, m->root, "eos_token_id", list);
    json_decref(list);
    return rc;
}

static int say_begin_token(const struct metadata *m)
{
    const struct gguf_value *v = gguf_find(m->g, "tokenizer.ggml.bos_token_id");
    int64_t id = 0;
    if (v && !gguf_integer(v, &id))
        return vb_fail(m->err, VB_BAD_CHECKPOINT, "%s: tokenizer.ggml.bos_token_id is not a whole number",
                       gguf_name(m->g));
    return say(m, m->root, "bos_token_id", v ? json_integer(id) : json_null());
}

static int say_all(struct metadata *m)
{
    int rc = read_architecture(m);
    if (!rc)
        rc = refuse_unknown(m);
    if (!rc)
        rc = find_experts(m);
    for (size_t i = 0; !rc && i < KEYS; i++)
        if (keys[i].json && is_for(m, &keys[i]) && !(m->no_experts && is_about_experts(&keys[i])))
            rc = say_key(m, &keys[i]);
    if (rc || (rc = say_layers(m)) || (rc = say_heads(m)) || (rc = say_router(m)) || (rc = say_indexer(m)) ||
        (rc = say_rope(m)) || (rc = say_vocabulary(m)) || (rc = say_end_tokens(m)))
        return rc;
    return say_begin_token(m);
}

int config_from_gguf(struct config *out, const struct gguf *g, vb_error *err)
{
    struct metadata m = {.g = g, .root = json_object(), .err = err};
    int rc = m.root ? say_all(&m) : vb_fail(err, VB_NO_MEMORY, "%s: no memory for its metadata", gguf_name(g));
    if (!rc)
        rc = config_from_json(out, m.root, NULL, 0, gguf_name(g), err);
    if (!rc) {
        out->gguf = 1;
        out->no_query_scale = is_mistral(&m) && !find(&m, "attention.temperature_scale");
        out->no_groups = !m.no_experts && !find(&m, "expert_group_count");
    }
    json_decref(m.root);
    return rc;
}
