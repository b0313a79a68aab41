/* engine/model/config.c -- config.json: one table of keys, ranges and class defaults, what is refused, and the checks
 * that need several keys (config_rope.c: RoPE and quantization; config_indexer.c: the indexer; config_refused.c: what
 * is refused by name). Reading is apart from opening, so that it can be fuzzed. */
#include "engine/base/decimal.h"
#include "engine/base/hash64.h"
#include "engine/model/config_reader.h"
#include "engine/files/gguf.h"

#include <stdio.h>
#include <string.h>

#define WIDTH 268435456 /* no width derived from several (H(n+r), Hv, ...) is more than 2^28: an int holds twice that */

static const char *const scoring_names[] = {"softmax", "sigmoid", NULL};
static const char *const topk_names[] = {"greedy", "group_limited_greedy", "noaux_tc", "group_limited_top2", NULL};

enum { DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, DEEPSEEK_V32, GLM_MOE_DSA, MISTRAL4, YOUTU, FAMILIES };
#define PRESET(v2, v3, glm4, v32, glm5, mistral, youtu) \
    {[DEEPSEEK_V2] = v2, [DEEPSEEK_V3] = v3, [GLM4_MOE_LITE] = glm4, [DEEPSEEK_V32] = v32, \
     [GLM_MOE_DSA] = glm5, [MISTRAL4] = mistral, [YOUTU] = youtu}

/* `preset`: the defaults of DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig, DeepseekV32Config, GlmMoeDsaConfig,
 * Mistral4Config and YoutuConfig (transformers 5.23). Youtu has no experts: all of its layers are dense. A key that
 * those classes lack has the default of the official code: scoring_func, topk_method and indexer_rope_interleave are
 * what each class computes. */
static const struct key {
    const char *name;
    enum config_kind kind;
    size_t offset;
    double least, most, null;
    double preset[FAMILIES];
} keys[] = {
#define KEY(name, kind, ...) {#name, kind, offsetof(struct config, name), __VA_ARGS__}
    KEY(vocab_size, INTEGER, 1, DIM, NONE, PRESET(102400, 129280, 154880, 129280, 154880, 131072, 128256)),
    KEY(hidden_size, INTEGER, 1, DIM, NONE, PRESET(4096, 7168, 2048, 7168, 6144, 4096, 2048)),
    KEY(num_hidden_layers, INTEGER, 1, 10000, NONE, PRESET(32, 61, 47, 61, 78, 36, 32)),
    KEY(num_nextn_predict_layers, INTEGER, 0, 64, 0, PRESET(0, 1, 0, 1, 1, 0, 0)),
    KEY(max_position_embeddings, INTEGER, 1, DIM, NONE, PRESET(2048, 4096, 202752, 163840, 202752, 1048576, 131072)),
    KEY(rms_norm_eps, REAL, 1e-30, 1, NONE, PRESET(1e-6, 1e-6, 1e-5, 1e-6, 1e-5, 1e-6, 1e-6)),
    KEY(tie_word_embeddings, BOOLEAN, 0, 1, NONE, PRESET(0, 0, 0, 0, 0, 0, 1)),
    KEY(num_attention_heads, INTEGER, 1, DIM, NONE, PRESET(32, 128, 20, 128, 64, 32, 16)),
    KEY(q_lora_rank, INTEGER, 0, DIM, 0, PRESET(1536, 1536, 768, 1536, 2048, 1024, 1536)),
    KEY(kv_lora_rank, INTEGER, 1, DIM, NONE, PRESET(512, 512, 512, 512, 512, 256, 512)),
    KEY(qk_nope_head_dim, INTEGER, 1, DIM, NONE, PRESET(128, 128, 192, 128, 192, 64, 128)),
    KEY(qk_rope_head_dim, INTEGER, 2, 1024, NONE, PRESET(64, 64, 64, 64, 64, 64, 64)),
    KEY(v_head_dim, INTEGER, 1, DIM, NONE, PRESET(128, 128, 256, 128, 256, 128, 128)),
    KEY(rope_theta, REAL, 1.001, 1e15, NONE, PRESET(10000, 10000, 10000, 10000, 10000, 10000, 10000)),
    KEY(rope_interleave, BOOLEAN, 0, 1, NONE, PRESET(1, 1, 1, 1, 1, 1, 1)),
    KEY(intermediate_size, INTEGER, 1, DIM, NONE, PRESET(11008, 18432, 10240, 18432, 12288, 12288, 6144)),
    KEY(moe_intermediate_size, INTEGER, 1, DIM, NONE, PRESET(1407, 2048, 1536, 2048, 2048, 2048, 1)),
    KEY(n_routed_experts, INTEGER, 1, 65536, NONE, PRESET(64, 256, 64, 256, 256, 128, 1)),
    KEY(n_shared_experts, INTEGER, 0, 65536, 0, PRESET(2, 1, 1, 1, 1, 1, 0)),
    KEY(num_experts_per_tok, INTEGER, 1, 65536, NONE, PRESET(NONE, 8, 4, 8, 8, 4, 1)),
    KEY(n_group, INTEGER, 1, 65536, 0, PRESET(0, 8, 1, 8, 1, 1, 1)),
    KEY(topk_group, INTEGER, 1, 65536, 0, PRESET(0, 4, 1, 4, 1, 1, 1)),
    KEY(first_k_dense_replace, INTEGER, 0, DIM, NONE, PRESET(0, 3, 1, 3, 3, 0, CONFIG_MAX_LAYERS)),
    KEY(moe_layer_freq, INTEGER, 1, DIM, NONE, PRESET(1, 1, 1, 1, 1, 1, 1)),
    KEY(norm_topk_prob, BOOLEAN, 0, 1, 0, PRESET(0, 1, 1, 1, 1, 1, 0)),
    KEY(routed_scaling_factor, REAL, 0, 1e30, NONE, PRESET(1, 2.5, 1.8, 2.5, 2.5, 1, 1)),
    KEY(scoring_func, SCORING, 0, 1, NONE,
        PRESET(SCORING_SOFTMAX, SCORING_SIGMOID, SCORING_SIGMOID, SCORING_SIGMOID, SCORING_SIGMOID, SCORING_SOFTMAX,
               SCORING_SOFTMAX)),
    KEY(topk_method, TOPK, 0, 3, NONE, PRESET(TOPK_GREEDY, TOPK_NOAUX_TC, TOPK_NOAUX_TC, TOPK_NOAUX_TC, TOPK_NOAUX_TC,
                                              TOPK_GROUP_LIMITED_TOP2, TOPK_GREEDY)),
    KEY(bos_token_id, INTEGER, 0, 2147483647, -1, PRESET(1, 0, 0, 0, 0, 1, 128000)),
    /* only for families with an indexer: INDEXER_KEYS keys, the last ones of the table */
    KEY(index_topk, INTEGER, 1, DIM, NONE, PRESET(0, 0, 0, 2048, 2048, 0, 0)),
    KEY(index_n_heads, INTEGER, 1, 65536, NONE, PRESET(0, 0, 0, 64, 32, 0, 0)),
    KEY(index_head_dim, INTEGER, 1, 1024, NONE, PRESET(0, 0, 0, 128, 128, 0, 0)),
    KEY(indexer_rope_interleave, BOOLEAN, 0, 1, NONE, PRESET(0, 0, 0, 0, 1, 0, 0)),
    KEY(index_share_for_mtp_iteration, BOOLEAN, 0, 1, NONE, PRESET(0, 0, 0, 0, 0, 0, 0)),
#undef KEY
};

#define KEYS (sizeof keys / sizeof *keys)
#define INDEXER_KEYS 5
_Static_assert(KEYS <= 64, "config.from_default has one bit for each key");

static const struct family {
    const char *architecture, *model_type[2];
    int eos_token_id;
    int has_indexer;    /* 1: sparse attention, whose keys are the last ones of the table */
    int scales_queries; /* 1: llama_4_scaling_beta, and no factor m^2 of attention scores */
} families[FAMILIES] = {
    [DEEPSEEK_V2] = {"DeepseekV2ForCausalLM", {"deepseek_v2", NULL}, 2, 0, 0},
    [DEEPSEEK_V3] = {"DeepseekV3ForCausalLM", {"deepseek_v3", "kimi_k2"}, 1, 0, 0},
    [GLM4_MOE_LITE] = {"Glm4MoeLiteForCausalLM", {"glm4_moe_lite", NULL}, 1, 0, 0},
    [DEEPSEEK_V32] = {"DeepseekV32ForCausalLM", {"deepseek_v32", NULL}, 1, .has_indexer = 1, .scales_queries = 0},
    [GLM_MOE_DSA] = {"GlmMoeDsaForCausalLM", {"glm_moe_dsa", NULL}, 1, .has_indexer = 1, .scales_queries = 0},
    [MISTRAL4] = {"Mistral4ForCausalLM", {"mistral4", NULL}, 2, .has_indexer = 0, .scales_queries = 1},
    [YOUTU] = {"YoutuForCausalLM", {"youtu", NULL}, 128001, 0, 0},
};

/* Keys that change what is computed, on architectures whose class may not even know them. */
static const struct {
    const char *key, *what;
} refused_keys[] = {
    {"index_topk", "a sparse attention indexer, as in DeepSeek-V3.2"}, /* except in families that have one */
    {"index_kpool", "pooled keys of an indexer"},
    {"zero_expert_num", "zero experts, as in LongCat"},
    {"hc_mult", "hyper-connections, as in DeepSeek-V4"},
    {"compress_ratios", "compressed attention, as in DeepSeek-V4"},
    {"o_lora_rank", "a factored output projection, as in DeepSeek-V4"},
    {"num_hash_layers", "hash routing, as in DeepSeek-V4"},
    {"swiglu_limit", "a limited SwiGLU"},
    {"attention_bias", "bias in attention"},
    {"mlp_bias", "bias in the feed-forward layers"},
    {"compression_config", "this form of quantization"},
    {"vision_config", "a vision tower"},
};

int config_bad(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
               const char *wanted)
{
    char shown[JSON_SHOWN];
    return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s%s%s is %s, wanted %s", r->name, inside ? inside : "",
                   inside ? "." : "", key, json_show(value, shown), wanted);
}

int config_unsupported(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
                       const char *known)
{
    char shown[JSON_SHOWN];
    return vb_fail(r->err, VB_UNSUPPORTED, "%s: %s%s%s %s is not supported, only %s", r->name, inside ? inside : "",
                   inside ? "." : "", key, json_show(value, shown), known);
}

int config_number(const struct config_reader *r, const char *inside, const char *key, const json_t *value,
                  enum config_kind kind, double least, double most, double *out)
{
    char wanted[96];
    double x = json_is_true(value) ? 1.0 : json_number_value(value);
    int typed = kind == BOOLEAN ? json_is_boolean(value)
                : kind == INTEGER ? json_is_integer(value)
                : json_is_number(value);
    if (typed && x >= least && x <= most) {
        *out = x;
        return VB_OK;
    }
    if (kind == BOOLEAN)
        snprintf(wanted, sizeof wanted, "true or false");
    else
        decimal_print(wanted, sizeof wanted, "a %snumber from %.10g to %.10g", kind == INTEGER ? "whole " : "", least,
                      most);
    return config_bad(r, inside, key, value, wanted);
}

int config_must_be(const struct config_reader *r, const char *inside, const json_t *object, const char *key,
                   const char *wanted, int needed)
{
    const json_t *value = json_object_get(object, key);
    if (value ? json_is_string(value) && !strcmp(json_string_value(value), wanted) : !needed)
        return VB_OK;
    return config_unsupported(r, inside, key, value, wanted);
}

static int read_choice(const struct config_reader *r, const char *key, const json_t *value, const char *const *names,
                       double *out)
{
    char known[64] = "";
    if (!json_is_string(value))
        return config_bad(r, NULL, key, value, "a string");
    for (int i = 0; names[i]; i++) {
        if (!strcmp(json_string_value(value), names[i])) {
            *out = i;
            return VB_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", names[i]);
    }
    return config_unsupported(r, NULL, key, value, known);
}

static void store(struct config *c, const struct key *k, double x)
{
    void *at = (char *)c + k->offset;
    switch (k->kind) {
    case REAL: *(double *)at = x; break;
    case SCORING: *(enum scoring_func *)at = (enum scoring_func)x; break;
    case TOPK: *(enum topk_method *)at = (enum topk_method)x; break;
    default: *(int *)at = (int)x;
    }
}

int config_switched_on(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_number(v) && json_number_value(v) == 0.0) &&
           !(json_is_object(v) && !json_object_size(v)) && !(json_is_array(v) && !json_array_size(v));
}

static int read_key(const struct config_reader *r, size_t i, int family)
{
    const struct key *k = &keys[i];
    const json_t *value = json_object_get(r->root, k->name);
    double x = k->preset[family];
    int rc = VB_OK;
    if (!value && k->offset == offsetof(struct config, rope_theta)) /* new files have it inside rope_parameters */
        value = json_object_get(config_rope_object(r), k->name);
    if (!value) {
        r->c->from_default |= (uint64_t)1 << i;
        if (isnan(x))
            return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s is missing, and %s has no default for it", r->name,
                           k->name, r->c->architecture);
    } else if (json_is_null(value) && !isnan(k->null)) {
        x = k->null;
    } else if (k->kind == SCORING || k->kind == TOPK) {
        rc = read_choice(r, k->name, value, k->kind == SCORING ? scoring_names : topk_names, &x);
    } else {
        rc = config_number(r, NULL, k->name, value, k->kind, k->least, k->most, &x);
    }
    if (!rc)
        store(r->c, k, x);
    return rc;
}

static size_t keys_of(const struct config *c) { return c->index_topk ? KEYS : KEYS - INDEXER_KEYS; }

int config_row(const struct config *c, size_t i, const char **key, char value[32], int *from_default)
{
    if (i >= keys_of(c))
        return 0;
    const void *at = (const char *)c + keys[i].offset;
    switch (keys[i].kind) {
    case REAL: decimal_print(value, 32, "%.10g", *(const double *)at); break;
    case BOOLEAN: snprintf(value, 32, "%s", *(const int *)at ? "true" : "false"); break;
    case SCORING: snprintf(value, 32, "%s", scoring_names[c->scoring_func]); break;
    case TOPK: snprintf(value, 32, "%s", topk_names[c->topk_method]); break;
    default: snprintf(value, 32, "%d", *(const int *)at);
    }
    *key = keys[i].name;
    *from_default = (int)(c->from_default >> i & 1);
    return 1;
}

uint64_t config_hash(const struct config *c)
{
    uint64_t h = hash64(0, c->eos_token_ids, (size_t)c->num_eos * sizeof *c->eos_token_ids);
    unsigned char used[CONVENTIONS];
    size_t n = 0;
    for (size_t i = 0; i < keys_of(c); i++) {
        size_t size = keys[i].kind == REAL ? sizeof(double) : sizeof(int); /* an enum is an int */
        h = hash64(h, (const char *)c + keys[i].offset, size);
    }
    if (c->index_topk)
        h = hash64(h, c->shared_set, sizeof c->shared_set);
    for (size_t i = 0; i < CONVENTIONS; i++) {
        unsigned char value = c->conventions.value[i];
        if (i == MODULE_HIDDEN || i == CHAIN_MODULE) { /* these two came later: at their defaults the hash is that of
                                                          before */
            if (value)
                used[n++] = (unsigned char)(i << 4 | value);
        } else if (c->index_topk || !convention_row(i)->of_indexer) {
            used[n++] = value;
        }
    }
    return hash64(h, used, n);
}

/* "A, B and C" */
static void list_architectures(char *out, size_t room)
{
    size_t n = 0;
    for (int f = 0; f < FAMILIES && n < room; f++)
        n += (size_t)snprintf(out + n, room - n, "%s%s",
                              !f ? ""
                              : f == FAMILIES - 1 ? " and "
                              : ", ",
                              families[f].architecture);
}

/* The family of the first of `architectures`, else of model_type, as Hugging Face's AutoConfig does. When both are
 * there they must agree: a V3.2 that calls itself V3 in one place is still a V3.2. */
static int read_family(const struct config_reader *r, int *family)
{
    json_t *list = json_object_get(r->root, "architectures"), *type = json_object_get(r->root, "model_type");
    json_t *first = json_is_array(list) ? json_array_get(list, 0) : NULL;
    const char *architecture = json_string_value(first), *model_type = json_string_value(type);
    char shown[JSON_SHOWN], shown_too[JSON_SHOWN], known[256];
    int by_name = -1, by_type = -1;

    if (!architecture && !model_type)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: it has neither architectures nor model_type", r->name);
    for (int f = 0; f < FAMILIES; f++) {
        if (architecture && !strcmp(architecture, families[f].architecture))
            by_name = f;
        for (int t = 0; t < 2; t++)
            if (model_type && families[f].model_type[t] && !strcmp(model_type, families[f].model_type[t]))
                by_type = f;
    }
    const char *why = architecture ? config_why_refused(architecture, strlen(architecture), 0) : NULL;
    if (why)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: architecture %s is not supported: %s", r->name, architecture, why);
    list_architectures(known, sizeof known);
    if (architecture ? by_name < 0 : by_type < 0)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: %s %s is not supported, only %s", r->name,
                       architecture ? "architecture" : "model_type", json_show(architecture ? first : type, shown),
                       known);
    *family = architecture ? by_name : by_type;
    if (model_type && by_type != *family)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: model_type %s with architecture %s is not supported", r->name,
                       json_show(type, shown_too), json_show(first, shown));
    snprintf(r->c->architecture, sizeof r->c->architecture, "%s", families[*family].architecture);
    snprintf(r->c->model_type, sizeof r->c->model_type, "%s",
             model_type ? model_type : families[*family].model_type[0]);
    return VB_OK;
}

static int refuse_features(const struct config_reader *r, int family)
{
    char shown[JSON_SHOWN];
    for (size_t i = 0; i < sizeof refused_keys / sizeof *refused_keys; i++) {
        const json_t *value = json_object_get(r->root, refused_keys[i].key);
        int computed = families[family].has_indexer && !strcmp(refused_keys[i].key, "index_topk");
        if (!computed && config_switched_on(value))
            return vb_fail(r->err, VB_UNSUPPORTED, "%s: there is no support for %s (%s is %s)", r->name,
                           refused_keys[i].what, refused_keys[i].key, json_show(value, shown));
    }
    const json_t *mla = json_object_get(r->root, "use_mla");
    if (mla && !json_is_true(mla))
        return config_unsupported(r, NULL, "use_mla", mla, "true");
    return config_must_be(r, NULL, r->root, "hidden_act", "silu", 0);
}

/* A number, a list of numbers, or null: none. */
static int read_eos(const struct config_reader *r, const json_t *value)
{
    size_t n = json_is_array(value) ? json_array_size(value) : json_is_null(value) ? 0 : 1;
    double id = 0;
    if (n > CONFIG_MAX_EOS)
        return config_unsupported(r, NULL, "eos_token_id", value, "a list of up to 16");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
        int rc = config_number(r, NULL, "eos_token_id", one, INTEGER, 0, 2147483647, &id);
        if (rc)
            return rc;
        r->c->eos_token_ids[i] = (int)id;
    }
    r->c->num_eos = (int)n;
    return VB_OK;
}

/* generation_config.json comes first: the published files put the end of a turn there, and only there. */
static int read_generation(const struct config_reader *r, const char *text, size_t size)
{
    struct config_reader g = {.c = r->c, .name = "generation_config.json", .err = r->err};
    int rc = VB_OK;
    if (!(g.root = json_read(text, size, g.name, g.err)))
        return r->err ? r->err->code : VB_BAD_CHECKPOINT;
    const json_t *value = json_object_get(g.root, "eos_token_id");
    if (!json_is_object(g.root))
        rc = vb_fail(g.err, VB_BAD_CHECKPOINT, "%s: it is not an object", g.name);
    else if (value && !json_is_null(value))
        rc = read_eos(&g, value);
    json_decref(g.root);
    return rc;
}

/* GLM lists the kind of every layer: dense ones first, then sparse ones, which first_k_dense_replace says as well. */
static int read_layer_types(const struct config_reader *r)
{
    static const char key[] = "mlp_layer_types";
    const json_t *types = json_object_get(r->root, key);
    size_t dense = 0, n = json_array_size(types);
    if (!types || json_is_null(types))
        return VB_OK;
    if (!json_is_array(types) || n != (size_t)r->c->num_hidden_layers)
        return config_bad(r, NULL, key, types, "a list of num_hidden_layers names");
    for (size_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || (strcmp(type, "dense") && strcmp(type, "sparse")))
            return config_bad(r, NULL, key, types, "a list of \"dense\" and \"sparse\"");
        if (!strcmp(type, "dense") && dense++ != i)
            return config_unsupported(r, NULL, key, types, "dense layers first, then sparse ones");
    }
    const json_t *first = json_object_get(r->root, "first_k_dense_replace");
    if ((first && r->c->first_k_dense_replace != (int)dense) || r->c->moe_layer_freq != 1)
        return config_bad(r, NULL, key, types, "what first_k_dense_replace and moe_layer_freq say");
    r->c->first_k_dense_replace = (int)dense;
    return VB_OK;
}

/* Groups: the router divides E by n_group, sums two choices of a group, and draws all its experts from topk_group. */
static int check_routing(const struct config_reader *r)
{
    struct config *c = r->c;
    if (c->topk_method == TOPK_GREEDY) {
        c->n_group += !c->n_group;
        c->topk_group += !c->topk_group;
        if (c->num_experts_per_tok <= c->n_routed_experts)
            return VB_OK;
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: num_experts_per_tok is %d, n_routed_experts only %d", r->name,
                       c->num_experts_per_tok, c->n_routed_experts);
    }
    if (!c->n_group || !c->topk_group)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %s is missing, and topk_method is %s", r->name,
                       c->n_group ? "topk_group" : "n_group", topk_names[c->topk_method]);
    if (c->n_routed_experts % c->n_group)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: n_routed_experts %d is not a multiple of n_group %d", r->name,
                       c->n_routed_experts, c->n_group);
    int size = c->n_routed_experts / c->n_group;
    if (c->topk_group > c->n_group)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: topk_group is %d, n_group only %d", r->name, c->topk_group,
                       c->n_group);
    if (c->topk_method != TOPK_GROUP_LIMITED_GREEDY && size < 2)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: topk_method %s with groups of one expert is not supported", r->name,
                       topk_names[c->topk_method]);
    if (c->num_experts_per_tok > c->topk_group * size)
        return vb_fail(r->err, VB_BAD_CHECKPOINT,
                       "%s: num_experts_per_tok is %d, topk_group %d groups of %d hold fewer", r->name,
                       c->num_experts_per_tok, c->topk_group, size);
    return VB_OK;
}

static int check_sizes(const struct config_reader *r)
{
    struct config *c = r->c;
    int64_t H = c->num_attention_heads, n = c->qk_nope_head_dim, rope = c->qk_rope_head_dim, v = c->v_head_dim;
    const struct {
        const char *what;
        int64_t size;
    } widths[] = {
        {"num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)", H * (n + rope)},
        {"num_attention_heads * (qk_nope_head_dim + v_head_dim)", H * (n + v)},
        {"n_shared_experts * moe_intermediate_size", (int64_t)c->n_shared_experts * c->moe_intermediate_size},
    };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].size > WIDTH)
            return vb_fail(r->err, VB_UNSUPPORTED, "%s: %s is %lld, the most is %d", r->name, widths[i].what,
                           (long long)widths[i].size, WIDTH);
    if (rope % 2)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: qk_rope_head_dim is %lld, wanted an even number", r->name,
                       (long long)rope);

    /* in MLA every head has its own key and value: the count of key heads is redundant, and says so or is wrong */
    const json_t *kv = json_object_get(r->root, "num_key_value_heads");
    if (kv && !json_is_null(kv) && !(json_is_integer(kv) && json_integer_value(kv) == H))
        return config_bad(r, NULL, "num_key_value_heads", kv, "num_attention_heads");
    return VB_OK;
}

void config_set_dims(struct config *c)
{
    int groups = c->num_key_value_heads;
    c->dims = (struct dims){
                            .V = (size_t)c->vocab_size,
                            .d = (size_t)c->hidden_size,
                            .H = (size_t)c->num_attention_heads,
                            .q = (size_t)c->q_lora_rank,
                            .c = (size_t)c->kv_lora_rank,
                            .n = (size_t)c->qk_nope_head_dim,
                            .r = (size_t)c->qk_rope_head_dim,
                            .v = (size_t)c->v_head_dim,
                            .G = (size_t)(groups ? groups : 1),
                            .row = (size_t)(groups ? groups * (c->qk_rope_head_dim + c->v_head_dim)
                                                   : c->kv_lora_rank + c->qk_rope_head_dim),
                            .layers = (size_t)c->num_hidden_layers,
                            .positions = (size_t)c->max_position_embeddings,
                            .dense = (size_t)c->intermediate_size,
                            .expert = (size_t)c->moe_intermediate_size,
                            .E = (size_t)c->n_routed_experts,
                            .shared = (size_t)c->n_shared_experts,
                            .chosen = (size_t)c->num_experts_per_tok,
                            .groups = (size_t)c->n_group,
                            .chosen_groups = (size_t)c->topk_group,
                            .index_heads = (size_t)c->index_n_heads,
                            .index_dim = (size_t)c->index_head_dim,
                            .index_topk = (size_t)c->index_topk,
                            .features = (size_t)c->feature_width};
}

/* Models of images and text, whose language model has a config of its own: text_config. Sets r->root to it. Keys that
 * text_config lacks, but that concern the language model too, come from outside. The vision tower is left out. */
static int read_text_config(struct config_reader *r)
{
    static const char *const wrappers[] = {"KimiK25ForConditionalGeneration", "Mistral3ForConditionalGeneration"};
    static const char *const shared[] = {"quantization_config", "tie_word_embeddings", "eos_token_id", "bos_token_id"};
    const char *architecture = json_string_value(json_array_get(json_object_get(r->root, "architectures"), 0));
    json_t *text = json_object_get(r->root, "text_config"), *value;
    size_t w = 0;
    while (w < sizeof wrappers / sizeof *wrappers && (!architecture || strcmp(architecture, wrappers[w])))
        w++;
    if (w == sizeof wrappers / sizeof *wrappers)
        return VB_OK;
    if (!json_is_object(text))
        return config_bad(r, NULL, "text_config", text, "an object, the config of the language model");
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (!json_object_get(text, shared[i]) && (value = json_object_get(r->root, shared[i])) &&
            json_object_set(text, shared[i], value))
            return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for text_config", r->name);
    r->root = text;
    return VB_OK;
}

int config_from_json(struct config *out, json_t *root, const char *generation, size_t generation_size, const char *name,
                     vb_error *err)
{
    struct config c = {.latent_eps = 1e-6};
    struct config_reader r = {.c = &c, .root = root, .name = name, .err = err};
    int family = 0, rc;

    if (!json_is_object(root))
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is not an object", name);
    if ((rc = read_text_config(&r)) || (rc = read_family(&r, &family)) || (rc = refuse_features(&r, family)))
        return rc;
    r.scales_queries = families[family].scales_queries;
    for (size_t i = 0; i < KEYS - (families[family].has_indexer ? 0 : INDEXER_KEYS); i++)
        if ((rc = read_key(&r, i, family)))
            return rc;
    if ((rc = config_read_rope(&r)) || (rc = config_read_quantization(&r)) || (rc = read_layer_types(&r)) ||
        (rc = check_routing(&r)) || (rc = check_sizes(&r)) || (c.index_topk && (rc = config_read_indexer(&r))))
        return rc;
    const json_t *eos = json_object_get(r.root, "eos_token_id");
    c.eos_token_ids[0] = families[family].eos_token_id;
    c.num_eos = 1;
    if ((eos && (rc = read_eos(&r, eos))) || (generation && (rc = read_generation(&r, generation, generation_size))))
        return rc;
    config_set_dims(&c);
    *out = c;
    return VB_OK;
}

static int parse(struct config *out, const char *json, size_t size, const char *generation, size_t generation_size,
                 const char *name, int is_params, vb_error *err)
{
    json_t *root = json_read(json, size, name, err);
    if (!root)
        return err ? err->code : VB_BAD_CHECKPOINT;
    int rc = is_params ? config_convert_params(root, name, err) : VB_OK;
    if (!rc && !(rc = config_from_json(out, root, generation, generation_size, name, err)))
        out->params = is_params;
    json_decref(root);
    return rc;
}

int config_parse(struct config *out, const char *json, size_t size, const char *generation, size_t generation_size,
                 const char *name, vb_error *err)
{
    return parse(out, json, size, generation, generation_size, name, 0, err);
}

static int read_gguf(struct config *out, const char *path, const vb_allocator *a, vb_error *err)
{
    struct gguf *g;
    int rc = gguf_open(&g, path, a, err);
    if (!rc)
        rc = config_from_gguf(out, g, err);
    gguf_close(g);
    return rc;
}

int config_read(struct config *out, const char *dir, const vb_allocator *a, vb_error *err)
{
    if (gguf_is_path(dir))
        return read_gguf(out, dir, a, err);
    char *path = vb_path(a, dir, "config.json"), *generation_path = vb_path(a, dir, "generation_config.json");
    char *text = NULL, *generation = NULL, *params = vb_path(a, dir, "params.json");
    size_t size = 0, generation_size = 0;
    int rc, of_mistral = path && params && !vb_file_exists(path) && vb_file_exists(params);

    if (!path || !generation_path || !params)
        rc = vb_fail(err, VB_NO_MEMORY, "%s: no memory for a path", dir);
    else if (!(rc = vb_read_file(a, of_mistral ? params : path, &text, &size, err)) && vb_file_exists(generation_path))
        rc = vb_read_file(a, generation_path, &generation, &generation_size, err);
    if (!rc)
        rc = parse(out, text, size, generation, generation_size, of_mistral ? "params.json" : "config.json", of_mistral,
                   err);
    if (!rc)
        rc = config_read_description(out, dir, a, err);
    vb_free(a, params);
    vb_free(a, generation);
    vb_free(a, text);
    vb_free(a, generation_path);
    vb_free(a, path);
    return rc;
}

const char *config_origin(const struct config *c)
{
    return c->gguf ? "the metadata" : c->params ? "params.json" : "config.json";
}

enum attention_kind config_attention(const struct config *c, int layer)
{
    return (void)layer, c->num_key_value_heads ? ATTENTION_GQA : ATTENTION_MLA;
}

int config_layer_is_moe(const struct config *c, int layer)
{
    return layer >= c->first_k_dense_replace && layer % c->moe_layer_freq == 0;
}

int config_has_layers(const struct config *c, int moe)
{
    for (int layer = 0; layer < c->num_hidden_layers + c->num_nextn_predict_layers; layer++)
        if (config_layer_is_moe(c, layer) == moe)
            return 1;
    return 0;
}

void config_follow(struct config *c, const struct conventions *conventions)
{
    c->conventions = *conventions;
    for (size_t i = 0; i < CONVENTIONS && !c->index_topk; i++)
        if (convention_row(i)->of_indexer)
            c->conventions.value[i] = 0;
    c->latent_eps = conventions->value[LATENT_EPS] ? c->rms_norm_eps : 1e-6;
}

static const char *const precisions[] = {[PRECISION_F32] = "f32", [PRECISION_BF16] = "bf16", [PRECISION_Q8] = "q8",
                                         [PRECISION_Q4] = "q4"};

int precision_parse(enum precision *out, int *tensor_cores, const char *name, vb_error *err)
{
    int by_tensor_cores = name && !strcmp(name, "tensor");
    if (tensor_cores)
        *tensor_cores = by_tensor_cores;
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++)
        if (!strcmp(!name ? "f32" : by_tensor_cores ? "bf16" : name, precisions[i])) {
            *out = (enum precision)i;
            return VB_OK;
        }
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown precision %s; known are f32, bf16, q8, q4 and tensor", name);
}

const char *precision_name(const struct config *c) { return c->tensor_cores ? "tensor" : precisions[c->precision]; }

static const char *const cache_types[CACHE_TYPES] = {"f32", "bf16", "q8"};

int cache_type_parse(enum cache_type *out, const char *name, vb_error *err)
{
    for (int i = 0; i < CACHE_TYPES; i++)
        if (!strcmp(name ? name : "f32", cache_types[i])) {
            *out = (enum cache_type)i;
            return VB_OK;
        }
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown cache type %s; known are f32, bf16 and q8", name);
}

const char *cache_type_name(enum cache_type type) { return cache_types[type]; }

int cache_type_fits(const struct config *c, enum cache_type type)
{
    return type != CACHE_TYPE_Q8 || c->kv_lora_rank % 32 == 0;
}
