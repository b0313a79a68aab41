/* engine/model/config_params.c -- converts the params.json of Mistral's own files to the contents of a config.json of
 * Mistral4ForCausalLM, so that both kinds of files go through the same checks. vLLM
 * (transformers_utils/configs/mistral.py) and llama.cpp (conversion/mistral.py) read the same keys. */
#include "engine/model/config_reader.h"

#include <string.h>

struct param_key {
    const char *there, *here;
    int optional;
};

/* Moves the values of `keys` from `from` to `to`. `from` is the object `inside`, or the top level if that is NULL. */
static int move_keys(const struct config_reader *r, json_t *from, const char *inside, json_t *to,
                     const struct param_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        json_t *value = json_object_get(from, keys[i].there);
        if (!value && keys[i].optional)
            continue;
        if (!value)
            return config_bad(r, inside, keys[i].there, NULL, "a value");
        if (json_object_set(to, keys[i].here, value) || json_object_del(from, keys[i].there))
            return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its keys", r->name);
    }
    return VB_OK;
}

/* Returns an error if an object still has a key, because the key might change what the model computes. */
static int check_empty(const struct config_reader *r, json_t *object, const char *inside)
{
    char shown[JSON_SHOWN];
    void *first = json_object_iter(object);
    if (!first)
        return VB_OK;
    json_t *name = json_string(json_object_iter_key(first));
    vb_fail(r->err, VB_UNSUPPORTED, "%s: %s has a key that is not known: %s", r->name, inside, json_show(name, shown));
    json_decref(name);
    return VB_UNSUPPORTED;
}

static int get_object(const struct config_reader *r, const char *key, json_t **out)
{
    *out = json_object_get(r->root, key);
    return json_is_object(*out) ? VB_OK : config_bad(r, NULL, key, *out, "an object");
}

static int convert_moe(const struct config_reader *r)
{
    static const struct param_key keys[] = {
        {"num_experts", "n_routed_experts", 0},
        {"num_experts_per_tok", "num_experts_per_tok", 0},
        {"expert_hidden_dim", "moe_intermediate_size", 0},
        {"num_shared_experts", "n_shared_experts", 0},
        {"first_k_dense_replace", "first_k_dense_replace", 0},
        {"routed_scale", "routed_scaling_factor", 0},
        {"num_expert_groups", "n_group", 0},
        {"num_expert_groups_per_tok", "topk_group", 0},
        {"route_every_n", "moe_layer_freq", 1},
    };
    static const char *const unused[] = {"expert_parallel", "expert_model_parallel"}; /* how a cluster divides the
                                                                                         experts */
    json_t *moe;
    int rc = get_object(r, "moe", &moe);
    for (size_t i = 0; !rc && i < sizeof unused / sizeof *unused; i++)
        json_object_del(moe, unused[i]);
    if (!rc && !(rc = move_keys(r, moe, "moe", r->root, keys, sizeof keys / sizeof *keys)))
        rc = check_empty(r, moe, "moe");
    return rc;
}

/* YaRN (alpha is where the ramp begins, beta where it ends), and the factor of the queries. */
static int convert_rope(const struct config_reader *r)
{
    static const struct param_key keys[] = {
        {"factor", "factor", 0}, {"original_max_position_embeddings", "original_max_position_embeddings", 0},
        {"beta", "beta_fast", 0}, {"alpha", "beta_slow", 0}, {"apply_scale", "apply_yarn_scaling", 1},
    }, of_queries[] = {{"beta", "llama_4_scaling_beta", 0}};
    static const char original[] = "original_max_position_embeddings";
    json_t *yarn, *scaling;
    int rc;
    if ((rc = get_object(r, "yarn", &yarn)) || (rc = get_object(r, "llama_4_scaling", &scaling)))
        return rc;
    if (!json_equal(json_object_get(yarn, original), json_object_get(scaling, original)))
        return config_bad(r, "llama_4_scaling", original, json_object_get(scaling, original), "what yarn says");
    json_object_del(scaling, original);
    json_t *rope = json_pack("{ss,si,si}", "rope_type", "yarn", "mscale", 1, "mscale_all_dim", 1);
    if (!rope || json_object_set_new(r->root, "rope_parameters", rope))
        return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its keys", r->name);
    if ((rc = move_keys(r, yarn, "yarn", rope, keys, sizeof keys / sizeof *keys)) ||
        (rc = check_empty(r, yarn, "yarn")) || (rc = move_keys(r, scaling, "llama_4_scaling", rope, of_queries, 1)))
        return rc;
    return check_empty(r, scaling, "llama_4_scaling");
}

/* FP8 with one scale for each matrix. qscheme_act concerns activations, which are not quantized here. */
static int convert_quantization(const struct config_reader *r)
{
    const json_t *q = json_object_get(r->root, "quantization");
    int rc;
    if (!config_switched_on(q))
        return VB_OK;
    if (!json_is_object(q))
        return config_bad(r, NULL, "quantization", q, "an object");
    if ((rc = config_must_be(r, "quantization", q, "qformat_weight", "fp8_e4m3", 1)))
        return rc;
    json_t *fp8 = json_pack("{ss,ss,sn}", "quant_method", "fp8", "activation_scheme", "static", "weight_block_size");
    if (!fp8 || json_object_set_new(r->root, "quantization_config", fp8))
        return vb_fail(r->err, VB_NO_MEMORY, "%s: no memory for its keys", r->name);
    return VB_OK;
}

int config_convert_params(json_t *root, const char *name, vb_error *err)
{
    static const struct param_key keys[] = {
        {"dim", "hidden_size", 0}, {"n_layers", "num_hidden_layers", 0}, {"n_heads", "num_attention_heads", 0},
        {"hidden_dim", "intermediate_size", 0}, {"norm_eps", "rms_norm_eps", 0}, {"activation", "hidden_act", 1},
        {"tied_embeddings", "tie_word_embeddings", 1},
    };
    static const char *const same[] = {"vocab_size", "rope_theta", "q_lora_rank", "qk_nope_head_dim",
                                       "qk_rope_head_dim", "v_head_dim", "max_position_embeddings"};
    const struct config_reader r = {.root = root, .name = name, .err = err};
    int rc;
    if (!json_is_object(root))
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: it is not an object", name);
    if (!config_switched_on(json_object_get(root, "kv_lora_rank")) || !config_switched_on(json_object_get(root, "moe")))
        return vb_fail(err, VB_UNSUPPORTED,
                       "%s: it has no kv_lora_rank or no moe; of Mistral's models, only those with latent attention "
                       "(MLA) "
                       "and experts are supported",
                       name);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!json_object_get(root, same[i]))
            return config_bad(&r, NULL, same[i], NULL, "a value");
    if ((rc = move_keys(&r, root, NULL, root, keys, sizeof keys / sizeof *keys)) || (rc = convert_moe(&r)) ||
        (rc = convert_rope(&r)) || (rc = convert_quantization(&r)))
        return rc;
    json_t *architectures = json_pack("[s]", "Mistral4ForCausalLM"), *type = json_string("mistral4");
    int failed = json_object_set_new(root, "architectures", architectures);
    if (json_object_set_new(root, "model_type", type) || failed)
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for its keys", name);
    return VB_OK;
}
