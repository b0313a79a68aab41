/* engine/describe.c -- what an open model is: a few facts as a struct, and everything as JSON. */
#include "engine/base/options.h"
#include "engine/base/support.h"
#include "engine/files/checkpoint.h"
#include "engine/model/model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vb_model_look_sized(const vb_model *m, vb_model_facts *out, size_t size)
{
    const struct config *c = &m->config;
    vb_model_facts facts = {.architecture = c->architecture, .precision = precision_name(c),
                            .cache_type = cache_type_name(c->cache_type), .layers = c->num_hidden_layers,
                            .mtp_modules = m->num_mtp, .attention_heads = c->num_attention_heads,
                            .rope_halves = !c->rope_interleave, .no_groups = c->no_groups,
                            .no_query_scale = c->no_query_scale, .copied_bytes = m->copied_bytes,
                            .copy_seconds = m->copy_seconds,
                            .repack_cache = m->cache == CACHE_MAPPED ? 1
                                            : m->cache == CACHE_WRITTEN ? 2
                                            : 0};
    memcpy(facts.repack_cache_note, m->cache_note, sizeof facts.repack_cache_note);
    conventions_list(&c->conventions, facts.conventions, sizeof facts.conventions);
    struct_fill(out, size, &facts, sizeof facts);
}

int vb_model_check(const vb_model *m, vb_progress progress, void *context, vb_error *err)
{
    return model_check(m, progress, context, err);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

static json_t *keys_of(const struct config *c)
{
    json_t *keys = json_array();
    const char *key;
    char value[32];
    int from_default;
    for (size_t i = 0; config_row(c, i, &key, value, &from_default); i++)
        json_array_append_new(keys, json_pack("{s:s,s:s,s:b}", "key", key, "value", value, "default", from_default));
    return keys;
}

static json_t *yarn_of(const struct config *c)
{
    if (!c->rope_yarn)
        return json_null();
    return json_pack("{s:f,s:i,s:f,s:f,s:f,s:f}", "factor", c->rope_factor, "original_max_position_embeddings",
                     c->rope_original_max_position_embeddings, "beta_fast", c->rope_beta_fast, "beta_slow",
                     c->rope_beta_slow, "mscale", c->rope_mscale, "mscale_all_dim", c->rope_mscale_all_dim);
}

static json_t *end_tokens_of(const struct config *c)
{
    json_t *ids = json_array();
    for (int i = 0; i < c->num_eos; i++)
        json_array_append_new(ids, json_integer(c->eos_token_ids[i]));
    return ids;
}

/* One letter per main layer: F if it has an indexer, S if it shares what the last such layer before it chooses. */
static json_t *indexers_of(const struct config *c)
{
    char kinds[CONFIG_MAX_LAYERS + 1];
    for (int i = 0; i < c->num_hidden_layers; i++)
        kinds[i] = config_layer_is_shared(c, i) ? 'S' : 'F';
    return json_stringn(kinds, (size_t)c->num_hidden_layers);
}

static json_t *config_of(const struct config *c)
{
    json_t *o = json_pack("{s:s,s:o,s:f,s:f,s:b,s:o,s:b,s:b,s:o}", "origin", config_origin(c), "keys", keys_of(c),
                          "latent_eps", c->latent_eps, "attention_scale", config_attention_scale_f64(c), "rope_halves",
                          !c->rope_interleave, "yarn", yarn_of(c), "no_groups", c->no_groups, "no_query_scale",
                          c->no_query_scale, "end_tokens", end_tokens_of(c));
    if (c->index_topk)
        json_object_set_new(o, "indexers", indexers_of(c));
    if (c->query_beta > 0)
        json_object_set_new(o, "llama_4_scaling_beta", json_real(c->query_beta));
    if (c->fp8)
        json_object_set_new(o, "fp8_weight_block_size", json_pack("[i,i]", c->fp8_block_rows, c->fp8_block_cols));
    if (c->int4)
        json_object_set_new(o, "int4_group_size", json_integer(32));
    if (c->int8)
        json_object_set_new(o, "int8_scales", json_string("row"));
    return o;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void count_type(json_t *types, const struct tensor *t)
{
    json_int_t before = json_integer_value(json_object_get(types, t->dtype_name));
    json_object_set_new(types, t->dtype_name, json_integer(before + (json_int_t)t->bytes));
}

static json_t *tensors_of(const struct checkpoint *k)
{
    json_t *ignored = json_array();
    size_t used = 0;
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct tensor *t = checkpoint_at(k, i);
        used += t->taken != 0;
        if (t->ignored)
            json_array_append_new(ignored, json_pack("{s:s,s:s}", "name", t->name, "why", t->ignored));
    }
    return json_pack("{s:I,s:o}", "used", (json_int_t)used, "ignored", ignored);
}

static json_t *types_of(const struct checkpoint *k)
{
    json_t *types = json_object();
    for (size_t i = 0; i < checkpoint_count(k); i++)
        count_type(types, checkpoint_at(k, i));
    return types;
}

/* What a tensor belongs to, by its name; MTP layers are a part of their own. */
static const char *part_of(const struct config *c, const char *name)
{
    static const struct {
        const char *in_name, *part;
    } parts[] = {{".mlp.experts.", "routed experts"}, {".mlp.shared_experts.", "shared experts"},
                 {".mlp.gate.", "routers"}, {".mlp.", "dense layers"}, {".self_attn.", "attention"},
                 {"embed_tokens", "embedding"}, {"lm_head", "output head"}};
    int layer;
    if (sscanf(name, "model.layers.%d.", &layer) == 1 && layer >= c->num_hidden_layers)
        return "MTP layers";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i].in_name))
            return parts[i].part;
    return "norms";
}

static json_t *part(const struct vb_model *m, const char *name)
{
    json_t *types = json_object();
    json_int_t tensors = 0, bytes = 0;
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (strcmp(part_of(&m->config, t->name), name))
            continue;
        count_type(types, t);
        bytes += (json_int_t)t->bytes;
        tensors++;
    }
    return json_pack("{s:s,s:I,s:I,s:o}", "part", name, "bytes", bytes, "tensors", tensors, "types", types);
}

static json_t *parts_of(const struct vb_model *m)
{
    static const char *const names[] = {"embedding", "attention", "dense layers", "routers", "routed experts",
                                        "shared experts", "norms", "output head", "MTP layers"};
    json_t *parts = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *p = part(m, names[i]);
        if (json_integer_value(json_object_get(p, "tensors")))
            json_array_append(parts, p);
        json_decref(p);
    }
    return parts;
}

/* Of each module: whose embedding and head it uses. */
static json_t *mtp_of(const struct vb_model *m)
{
    static const char *const copies[] = {"absent", "equal", "different"};
    json_t *modules = json_array();
    for (int k = 0; k < m->num_mtp; k++)
        json_array_append_new(modules, json_pack("{s:s,s:s}", "embed_tokens", copies[model_mtp_copy(m, k, 0)],
                                                 "shared_head.head", copies[model_mtp_copy(m, k, 1)]));
    return modules;
}

static json_int_t mapped_bytes(const struct checkpoint *k)
{
    size_t bytes = 0;
    for (size_t i = 0; i < checkpoint_count(k); i++)
        bytes += checkpoint_at(k, i)->bytes;
    return (json_int_t)(bytes - checkpoint_copied(k));
}

int vb_model_describe(const vb_model *m, char **json, vb_error *err)
{
    const struct config *c = &m->config;
    json_t *o = json_pack("{s:s,s:s,s:o,s:I,s:I,s:i,s:i,s:o}", "architecture", c->architecture, "model_type",
                          c->model_type, "config", config_of(c), "parameters", (json_int_t)model_parameters(m),
                          "active_parameters", (json_int_t)model_active_parameters(m), "mtp_modules", m->num_mtp,
                          "mtp_modules_promised", c->num_nextn_predict_layers, "mtp", mtp_of(m));
    json_t *cache = json_object();
    for (int type = 0; type < CACHE_TYPES; type++)
        if (cache_type_fits(c, (enum cache_type)type))
            json_object_set_new(cache, cache_type_name((enum cache_type)type),
                                json_integer((json_int_t)model_cache_bytes(c, (enum cache_type)type)));
    json_t *rest = json_pack("{s:o,s:o,s:o,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:f,s:o}", "tensors", tensors_of(m->checkpoint),
                             "types", types_of(m->checkpoint), "parts", parts_of(m), "mapped_bytes",
                             mapped_bytes(m->checkpoint), "widened_bytes", (json_int_t)m->widened_bytes, "joined_bytes",
                             (json_int_t)checkpoint_copied(m->checkpoint), "precision", precision_name(c),
                             "rounded_bytes", (json_int_t)m->rounded_bytes, "quantized_bytes",
                             (json_int_t)m->quantized_bytes, "repacked_bytes", (json_int_t)m->repacked_bytes,
                             "copy_seconds", m->copy_seconds, "cache_bytes_per_token", cache);
    *json = o && rest && !json_object_update(o, rest) ? json_dumps(o, JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    json_decref(rest);
    return *json ? VB_OK : vb_fail(err, VB_NO_MEMORY, "no memory to describe the model");
}

void vb_text_free(char *text) { free(text); }
