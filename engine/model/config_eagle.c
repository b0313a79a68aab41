/* engine/model/config_eagle.c -- the config.json of an EAGLE head, checked against that of the target. */
#include "engine/model/config_reader.h"

#include "ops/rope.h"

#include <stdio.h>
#include <string.h>

static int read_number(const struct config_reader *r, const char *key, enum config_kind kind, double least, double most,
                       double otherwise, double *out)
{
    const json_t *value = json_object_get(r->root, key);
    if ((!value || json_is_null(value)) && !isnan(otherwise)) {
        *out = otherwise;
        return VB_OK;
    }
    return config_number(r, NULL, key, value, kind, least, most, out);
}

/* Features of a layer that are not computed here. */
static int check_switches(const struct config_reader *r)
{
    static const char *const off[] = {"attention_bias", "qkv_bias", "mlp_bias",
                                      "quantization_config", "add_para_norm", "parallel_drafting"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (config_switched_on(json_object_get(r->root, off[i])))
            return config_unsupported(r, NULL, off[i], json_object_get(r->root, off[i]), "false");
    const json_t *kinds = json_object_get(r->root, "layer_types");
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (!kind || strcmp(kind, "full_attention"))
            return config_unsupported(r, NULL, "layer_types", kinds, "full_attention");
    }
    return config_must_be(r, NULL, r->root, "hidden_act", "silu", 0);
}

/* Some heads have these keys in eagle_config. */
static int read_norms(struct eagle_norms *out, int version, const struct config_reader *r)
{
    const struct {
        const char *key;
        int *on;
    } norms[] = {{"norm_before_residual", &out->norm_before_residual}, {"norm_before_fc", &out->norm_before_fc},
                 {"fc_norm", &out->fc_norm}, {"norm_output", &out->norm_output}};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        const json_t *inner = json_object_get(json_object_get(r->root, "eagle_config"), norms[i].key);
        const json_t *value = inner ? inner : json_object_get(r->root, norms[i].key);
        const char *inside = inner ? "eagle_config" : NULL;
        double on = 0;
        int rc;
        if (version == 1 && config_switched_on(value))
            return config_unsupported(r, inside, norms[i].key, value, "false");
        if (value && !json_is_null(value) && (rc = config_number(r, inside, norms[i].key, value, BOOLEAN, 0, 1, &on)))
            return rc;
        *norms[i].on = (int)on;
    }
    if (out->norm_before_fc && out->fc_norm)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: norm_before_fc and fc_norm are both true, wanted at most one",
                       r->name);
    return VB_OK;
}

const char *config_feature_norm(const struct eagle_norms *norms, size_t i)
{
    static const char *const three[] = {"fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"};
    if (norms->norm_before_fc)
        return i == 0 ? "input_norm.weight" : NULL;
    return norms->fc_norm && i < 3 ? three[i] : NULL;
}

int config_three_layers(int L, int layer[3])
{
    /* of three layers, low is the last */
    int few = L >= 4 && L <= 6, low = few ? 1 : 2, middle = L / 2, high = few ? L - 1 : L - 3;
    int found = 0;
    for (int l = 0; l < L && found < 3; l++)
        if (l == low || l == middle || l == high)
            layer[found++] = l;
    return found == 3;
}

/* Where an EAGLE-3 head names the layers that it was trained on, they must be those that are taken: counted before or
 * after the layer, as systems differ. */
static int check_layers(const struct config_reader *r, int L)
{
    const json_t *eagle = json_object_get(r->root, "eagle_config"),
                 *ids = json_object_get(eagle, "eagle_aux_hidden_state_layer_ids");
    int layer[3], before = 0, after = 0;
    char wanted[64];
    ids = ids ? ids : json_object_get(r->root, "eagle_aux_hidden_state_layer_ids");
    if (!config_three_layers(L, layer))
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: eagle3 takes features before three layers, and the model has %d",
                       r->name, L);
    if (!config_switched_on(ids))
        return VB_OK;
    for (size_t i = 0; i < 3 && json_array_size(ids) == 3; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        before += id == layer[i];
        after += id == layer[i] - 1;
    }
    snprintf(wanted, sizeof wanted, "[%d, %d, %d]", layer[0], layer[1], layer[2]);
    return before == 3 || after == 3 ? VB_OK
                                     : config_unsupported(r, NULL, "eagle_aux_hidden_state_layer_ids", ids, wanted);
}

struct eagle_target {
    const struct config *config;
    const char *dir;
};

static int read_keys(struct eagle_config *e, int version, const struct eagle_target *target,
                     const struct config_reader *r)
{
    struct config *c = r->c;
    double vocab, d, heads, groups, dim, width, positions, layers, draft_vocab, of_target,
        t = target->config->hidden_size;
    const json_t *rope = config_rope_object(r);
    struct eagle_norms norms = {0};
    int rc;
    if ((rc = read_number(r, "vocab_size", INTEGER, 1, DIM, NONE, &vocab)) ||
        (rc = read_number(r, "hidden_size", INTEGER, 1, DIM, NONE, &d)) ||
        (rc = read_number(r, "num_attention_heads", INTEGER, 1, DIM, NONE, &heads)) ||
        (rc = read_number(r, "num_key_value_heads", INTEGER, 1, DIM, heads, &groups)) ||
        (rc = read_number(r, "head_dim", INTEGER, 2, ROPE_MAX_DIM, (double)((long long)d / (long long)heads), &dim)) ||
        (rc = read_number(r, "intermediate_size", INTEGER, 1, DIM, NONE, &width)) ||
        (rc = read_number(r, "max_position_embeddings", INTEGER, 1, DIM, 2048, &positions)) ||
        (rc = read_number(r, "num_hidden_layers", INTEGER, 1, DIM, 1, &layers)) ||
        (rc = read_number(r, "draft_vocab_size", INTEGER, 1, DIM, vocab, &draft_vocab)) ||
        (rc = read_number(r, "target_hidden_size", INTEGER, 1, DIM, t, &of_target)) ||
        (rc = read_number(r, "rms_norm_eps", REAL, 1e-30, 1, 1e-6, &c->rms_norm_eps)) ||
        (rc = check_switches(r)) || (rc = read_norms(&norms, version, r)))
        return rc;
    if (layers != 1)
        return config_unsupported(r, NULL, "num_hidden_layers", json_object_get(r->root, "num_hidden_layers"), "1");
    if (of_target != t || (d != t && version == 1))
        return vb_fail(r->err, VB_BAD_ARGUMENT, "%s: a head for hidden states of %.0f numbers; those of %s have %.0f",
                       r->name, of_target != t ? of_target : d, target->dir, t);
    if ((long long)heads % (long long)groups || (long long)dim % 2)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.0f heads of %.0f numbers do not share %.0f keys", r->name,
                       heads, dim, groups);
    c->vocab_size = (int)vocab;
    c->hidden_size = (int)d;
    c->num_attention_heads = (int)heads;
    c->intermediate_size = (int)width;
    c->max_position_embeddings = (int)positions;
    c->num_key_value_heads = (int)groups;
    c->qk_rope_head_dim = c->v_head_dim = (int)dim;
    c->num_nextn_predict_layers = c->first_k_dense_replace = c->moe_layer_freq = 1; /* one layer, which is dense */
    c->module_kind = version == 3 ? MODULE_EAGLE3 : MODULE_EAGLE1;
    c->feature_width = version == 3 ? 3 * target->config->hidden_size : 0;
    c->conventions.value[DRAFT_HIDDEN] = !norms.norm_output;
    config_set_dims(c);
    *e = (struct eagle_config){version == 3 ? (int)draft_vocab : target->config->vocab_size, norms};
    const json_t *theta = json_object_get(rope, "rope_theta");
    if (theta && !json_object_get(r->root, "rope_theta"))
        rc = config_number(r, "rope_parameters", "rope_theta", theta, REAL, 1.001, 1e15, &c->rope_theta);
    else
        rc = read_number(r, "rope_theta", REAL, 1.001, 1e15, 10000, &c->rope_theta);
    rc = rc ? rc : config_read_rope(r);
    c->rope_unscaled = 1;
    return rc || version == 1 ? rc : check_layers(r, target->config->num_hidden_layers);
}

int config_read_eagle(struct config *out, struct eagle_config *e, const char *dir, int version,
                      const struct config *target, const char *target_dir, const vb_allocator *a, vb_error *err)
{
    struct eagle_target of = {target, target_dir};
    char *path = vb_path(a, dir, "config.json"), *text = NULL;
    size_t size;
    *e = (struct eagle_config){0};
    if (!path)
        return vb_fail(err, VB_NO_MEMORY, "no memory to open %s", dir);
    struct config_reader r = {.c = out, .name = path, .err = err};
    int rc = vb_read_file(a, path, &text, &size, err);
    if (!rc)
        rc = (r.root = json_read(text, size, path, err)) ? VB_OK : err ? err->code : VB_BAD_CHECKPOINT;
    if (!rc && !json_is_object(r.root))
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: not a JSON object", path);
    json_t *layer = json_object_get(r.root, "transformer_layer_config"); /* where vllm-project/speculators has the sizes
                                                                            of the layer */
    if (!rc && layer && (!json_is_object(layer) || json_object_update_missing(r.root, layer)))
        rc = config_bad(&r, NULL, "transformer_layer_config", layer, "an object");
    if (!rc)
        rc = read_keys(e, version, &of, &r);
    json_decref(r.root);
    vb_free(a, text);
    vb_free(a, path);
    return rc;
}
