/* engine/model/config_rope.c -- reads the parts of config.json that the table of keys cannot describe: RoPE with YaRN,
 * and quantization. */
#include "engine/base/decimal.h"
#include "engine/model/config_reader.h"

#include "simd/kernels.h"

#include <stdio.h>
#include <string.h>

static double yarn_m(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * kernel_log(factor) + 1.0;
}

/* Reads a number inside rope_scaling. If the key is missing or null, *out is `preset`; if `preset` is NONE, this is an
 * error. */
static int yarn_number(const struct config_reader *r, const json_t *rope, const char *inside, const char *key,
                       enum config_kind kind, double least, double most, double preset, double *out)
{
    const json_t *value = json_object_get(rope, key);
    if ((!value || json_is_null(value)) && !isnan(preset)) {
        *out = preset;
        return VB_OK;
    }
    return config_number(r, inside, key, value, kind, least, most, out);
}

/* Mistral 4. apply_yarn_scaling is the name that vLLM and SGLang give to apply_scale of Mistral's own params.json. */
static int read_query_scale(const struct config_reader *r, const json_t *rope, const char *inside)
{
    const json_t *apply = json_object_get(rope, "apply_yarn_scaling");
    double applied = 0;
    int rc = apply ? config_number(r, inside, "apply_yarn_scaling", apply, BOOLEAN, 0, 1, &applied) : VB_OK;
    r->c->rope_unscaled = !applied;
    return rc ? rc : yarn_number(r, rope, inside, "llama_4_scaling_beta", REAL, 0, 1e3, NONE, &r->c->query_beta);
}

static int read_yarn(const struct config_reader *r, const json_t *rope, const char *inside)
{
    struct config *c = r->c;
    const json_t *outer = json_object_get(r->root, "original_max_position_embeddings");
    double original = 0;
    int rc;
    if ((rc = yarn_number(r, rope, inside, "factor", REAL, 1e-3, 1e9, NONE, &c->rope_factor)) ||
        (rc = yarn_number(r, rope, inside, "beta_fast", REAL, 1e-3, 1e9, 32, &c->rope_beta_fast)) ||
        (rc = yarn_number(r, rope, inside, "beta_slow", REAL, 1e-3, 1e9, 1, &c->rope_beta_slow)) ||
        (rc = yarn_number(r, rope, inside, "mscale", REAL, 0, 1e6, 1, &c->rope_mscale)) ||
        (rc = yarn_number(r, rope, inside, "mscale_all_dim", REAL, 0, 1e6, 0, &c->rope_mscale_all_dim)) ||
        (rc = yarn_number(r, rope, inside, "original_max_position_embeddings", INTEGER, 1, DIM,
                          c->max_position_embeddings, &original)))
        return rc;
    if (outer && !(json_is_integer(outer) && (double)json_integer_value(outer) == original))
        return config_bad(r, NULL, "original_max_position_embeddings", outer, "what the rope parameters say");
    c->rope_original_max_position_embeddings = (int)original;
    c->rope_yarn = 1;
    if (r->scales_queries && (rc = read_query_scale(r, rope, inside)))
        return rc;

    /* these two keys of Hugging Face replace parts of the formula; they are accepted only if they change nothing */
    const json_t *attention = json_object_get(rope, "attention_factor"), *truncate = json_object_get(rope, "truncate");
    double computed = yarn_m(c->rope_factor, c->rope_mscale) / yarn_m(c->rope_factor, c->rope_mscale_all_dim);
    char known[64];
    decimal_print(known, sizeof known, "m(mscale) / m(mscale_all_dim), here %.17g", computed);
    if (attention && !json_is_null(attention) &&
        !(json_is_number(attention) && json_number_value(attention) == computed))
        return config_unsupported(r, inside, "attention_factor", attention, known);
    if (truncate && !json_is_true(truncate))
        return config_unsupported(r, inside, "truncate", truncate, "true");
    return VB_OK;
}

/* Returns an error if there is an unknown key, because it might change the angles. The first three keys are Mistral
 * 4's. */
static int check_rope_keys(const struct config_reader *r, json_t *rope, const char *inside)
{
    static const char *const all_keys[] = {
        "llama_4_scaling_beta", "apply_yarn_scaling", "max_position_embeddings",
        "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "original_max_position_embeddings", "attention_factor", "truncate", NULL,
    };
    const char *const *rope_keys = all_keys + (r->scales_queries ? 0 : 3);
    const char *key;
    json_t *value;
    char shown[JSON_SHOWN];
    json_object_foreach(rope, key, value)
    {
        int i = 0;
        while (rope_keys[i] && strcmp(rope_keys[i], key))
            i++;
        if (!rope_keys[i]) {
            json_t *name = json_string(key);
            vb_fail(r->err, VB_UNSUPPORTED, "%s: %s has a key that is not known: %s", r->name, inside,
                    json_show(name, shown));
            json_decref(name);
            return VB_UNSUPPORTED;
        }
    }
    return VB_OK;
}

static int check_rotary_factor(const struct config_reader *r, const json_t *object, const char *inside)
{
    const json_t *value = json_object_get(object, "partial_rotary_factor");
    int rope = r->c->qk_rope_head_dim; /* Mistral 4 states the factor of the whole head, the other families of its RoPE
                                          part */
    double wanted = r->scales_queries ? (double)rope / (r->c->qk_nope_head_dim + rope) : 1.0;
    char known[32];
    if (!value || json_is_null(value) || (json_is_number(value) && json_number_value(value) == wanted))
        return VB_OK;
    decimal_print(known, sizeof known, "%.10g", wanted);
    return config_unsupported(r, inside, "partial_rotary_factor", value, known);
}

json_t *config_rope_object(const struct config_reader *r)
{
    json_t *old = json_object_get(r->root, "rope_scaling");
    return config_switched_on(old) ? old : json_object_get(r->root, "rope_parameters");
}

/* Reads the RoPE settings. If they are missing, null or {}, or if the type is "default", RoPE has no scaling. */
int config_read_rope(const struct config_reader *r)
{
    struct config *c = r->c;
    json_t *old = json_object_get(r->root, "rope_scaling"), *new = json_object_get(r->root, "rope_parameters");
    json_t *rope = config_rope_object(r);
    const char *inside = rope == old ? "rope_scaling" : "rope_parameters";
    int rc;

    c->rope_factor = c->rope_beta_slow = c->rope_mscale = 1.0;
    c->rope_beta_fast = 32.0;
    c->rope_original_max_position_embeddings = c->max_position_embeddings;
    if ((rc = check_rotary_factor(r, r->root, NULL)))
        return rc;
    if (!config_switched_on(rope) && r->scales_queries)
        return config_bad(r, NULL, "rope_parameters", rope, "an object with llama_4_scaling_beta");
    if (!config_switched_on(rope))
        return VB_OK;
    if (!json_is_object(rope))
        return config_bad(r, NULL, inside, rope, "an object");
    if (config_switched_on(old) && config_switched_on(new) && !json_equal(old, new))
        return config_bad(r, NULL, "rope_parameters", new, "what rope_scaling says");

    const json_t *type = json_object_get(rope, "rope_type"), *short_name = json_object_get(rope, "type");
    if (type && short_name && !json_equal(type, short_name))
        return config_bad(r, inside, "type", short_name, "what rope_type says");
    if (!type)
        type = short_name;
    if (!type && json_object_get(rope, "factor"))
        return config_bad(r, inside, "rope_type", NULL, "a name beside factor");
    if (type && !json_is_string(type))
        return config_bad(r, inside, "rope_type", type, "a string");
    if (type && strcmp(json_string_value(type), "default") && strcmp(json_string_value(type), "yarn"))
        return config_unsupported(r, inside, "rope_type", type, "default, yarn");
    const json_t *theta = json_object_get(rope, "rope_theta");
    if (theta && json_number_value(theta) != c->rope_theta)
        return config_bad(r, inside, "rope_theta", theta, "what rope_theta says outside");
    if ((rc = check_rope_keys(r, rope, inside)) || (rc = check_rotary_factor(r, rope, inside)))
        return rc;
    if (r->scales_queries && (!type || strcmp(json_string_value(type), "yarn")))
        return config_unsupported(r, inside, "rope_type", type, "yarn");
    return type && !strcmp(json_string_value(type), "yarn") ? read_yarn(r, rope, inside) : VB_OK;
}

/* Checks that the key is the number, the boolean or the string `wanted`. */
static int must_equal(const struct config_reader *r, const char *inside, const json_t *object, const char *key,
                      json_t *wanted)
{
    char shown[JSON_SHOWN];
    const json_t *value = json_object_get(object, key);
    int rc = json_equal(value, wanted) ? VB_OK : config_unsupported(r, inside, key, value, json_show(wanted, shown));
    json_decref(wanted);
    return rc;
}

/* Returns the only member of config_groups, whatever its name is (group_0, or NVFP4A16 in Mistral's files), or NULL.
 * Appends its name to `key`, for messages. */
static const json_t *only_group(const json_t *q, char *key, size_t room)
{
    json_t *groups = json_object_get(q, "config_groups");
    void *first = json_object_size(groups) == 1 ? json_object_iter(groups) : NULL;
    if (!first)
        return NULL;
    size_t n = strlen(key);
    snprintf(key + n, room - n, ".%s", json_object_iter_key(first));
    for (char *c = key + n; *c; c++)
        *c = *c < 0x20 || *c >= 0x7f ? '?' : *c;
    return json_object_iter_value(first);
}

/* Reads the quantization_config of compressed-tensors: one group of matrices, whose weights are packed codes of 4 bits
 * with one scale for each 32, codes of 8 bits with one for each row, or codes of E2M1 as MXFP4 or NVFP4. `targets` and
 * `ignore` are not read: matrices whose codes are in the checkpoint are quantized. If activations are quantized too,
 * this is refused with 4-bit integers, ignored with E2M1, and ignored with 8-bit integers if the scales of activations
 * are dynamic. */
static int read_compressed_tensors(const struct config_reader *r, const json_t *q)
{
    static const char groups_key[] = "quantization_config.config_groups";
    char group_key[96], inside[128], activations_key[128];
    static const char *const unused[] = {"input_activations", "output_activations"}, *const kv = "kv_cache_scheme";
    const json_t *group, *weights;
    const char *format = json_string_value(json_object_get(q, "format"));
    int rc, nvfp4 = format && !strcmp(format, "nvfp4-pack-quantized"),
            floats = nvfp4 || (format && !strcmp(format, "mxfp4-pack-quantized"));
    int bytes = format && !strcmp(format, "int-quantized");
    if (!floats && !bytes && (!format || strcmp(format, "pack-quantized")))
        return config_unsupported(r, "quantization_config", "format", json_object_get(q, "format"),
                                  "pack-quantized, int-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized");
    if (config_switched_on(json_object_get(q, kv)))
        return config_unsupported(r, "quantization_config", kv, json_object_get(q, kv), "null");
    snprintf(group_key, sizeof group_key, "%s", groups_key);
    group = only_group(q, group_key, sizeof group_key);
    if (!json_is_object(group))
        return config_unsupported(r, NULL, groups_key, json_object_get(q, "config_groups"), "an object with one group");
    snprintf(inside, sizeof inside, "%s.weights", group_key);
    snprintf(activations_key, sizeof activations_key, "%s.input_activations", group_key);
    for (size_t i = bytes; !floats && i < sizeof unused / sizeof *unused; i++)
        if (config_switched_on(json_object_get(group, unused[i])))
            return config_unsupported(r, group_key, unused[i], json_object_get(group, unused[i]), "null");
    weights = json_object_get(group, "weights");
    const json_t *activations = json_object_get(group, "input_activations"),
                 *size = json_object_get(weights, "group_size");
    if (bytes && config_switched_on(activations) &&
        (rc = must_equal(r, activations_key, activations, "dynamic", json_true())))
        return rc;
    if (bytes && config_switched_on(size))
        return config_unsupported(r, inside, "group_size", size, "null");
    if ((rc = must_equal(r, inside, weights, "num_bits", json_integer(bytes ? 8 : 4))) ||
        (!bytes && (rc = must_equal(r, inside, weights, "group_size", json_integer(nvfp4 ? 16 : 32)))) ||
        (rc = config_must_be(r, inside, weights, "strategy",
                             bytes ? "channel"
                             : nvfp4 ? "tensor_group"
                             : "group",
                             1)) ||
        (rc = config_must_be(r, inside, weights, "type", floats ? "float" : "int", 1)) ||
        (rc = must_equal(r, inside, weights, "symmetric", json_true())))
        return rc;
    if (config_switched_on(json_object_get(weights, "actorder")))
        return config_unsupported(r, inside, "actorder", json_object_get(weights, "actorder"), "null");
    r->c->int4 = !floats && !bytes;
    r->c->int8 = bytes;
    r->c->fp4_group = nvfp4 ? 16 : floats ? 32 : 0;
    return VB_OK;
}

/* Reads the quantization_config of ModelOpt. The same is often in hf_quant_config.json alone, which is not read: the
 * tensors say which matrices are quantized. */
static int read_modelopt(const struct config_reader *r, const json_t *q)
{
    const json_t *nested = json_object_get(q, "quantization"),
                 *algo = json_object_get(json_is_object(nested) ? nested : q, "quant_algo");
    static const char *const known[] = {"NVFP4", "W4A16_NVFP4"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_is_string(algo) && !strcmp(json_string_value(algo), known[i])) {
            r->c->fp4_group = 16;
            return VB_OK;
        }
    return config_unsupported(r, "quantization_config", "quant_algo", algo, "NVFP4 and W4A16_NVFP4");
}

/* Reads the quantization_config of AMD's Quark: MXFP4 for all matrices that are quantized. */
static int read_quark(const struct config_reader *r, const json_t *q)
{
    static const char inside[] = "quantization_config.global_quant_config.weight";
    const json_t *weight = json_object_get(json_object_get(q, "global_quant_config"), "weight");
    int rc;
    if ((rc = config_must_be(r, inside, weight, "dtype", "fp4", 1)) ||
        (rc = config_must_be(r, inside, weight, "qscheme", "per_group", 1)) ||
        (rc = must_equal(r, inside, weight, "group_size", json_integer(32))))
        return rc;
    r->c->fp4_group = 32;
    return config_must_be(r, inside, weight, "scale_format", "e8m0", 1);
}

/* Reads quantization_config. The weights are e4m3 with one scale for each block (DeepSeek), or, if weight_block_size is
 * null, with one scale for each matrix (Mistral). Missing keys have the defaults of FineGrainedFP8Config. With
 * activation_scheme static, the checkpoint also has scales of activations, which are not used: activations are not
 * quantized here. */
int config_read_quantization(const struct config_reader *r)
{
    static const char inside[] = "quantization_config";
    const json_t *q = json_object_get(r->root, inside);
    if (!config_switched_on(q))
        return VB_OK;
    if (!json_is_object(q))
        return config_bad(r, NULL, inside, q, "an object");
    const json_t *block = json_object_get(q, "weight_block_size"), *method = json_object_get(q, "quant_method");
    double rows = 128, cols = 128;
    int rc;
    if (json_is_string(method) && !strcmp(json_string_value(method), "compressed-tensors"))
        return read_compressed_tensors(r, q);
    if (json_is_string(method) &&
        (!strcmp(json_string_value(method), "modelopt") || !strcmp(json_string_value(method), "modelopt_fp4")))
        return read_modelopt(r, q);
    if (json_is_string(method) && !strcmp(json_string_value(method), "quark"))
        return read_quark(r, q);
    if ((rc = config_must_be(r, inside, q, "quant_method", "fp8", 1)) ||
        (rc = config_must_be(r, inside, q, "fmt", "e4m3", 0)))
        return rc;
    if (!json_is_null(block) && (rc = config_must_be(r, inside, q, "activation_scheme", "dynamic", 0)))
        return rc;
    if (json_is_null(block)) {
        rows = cols = 0;
    } else if (block) {
        if (!json_is_array(block) || json_array_size(block) != 2)
            return config_unsupported(r, inside, "weight_block_size", block, "a list of two numbers");
        if ((rc = config_number(r, inside, "weight_block_size", json_array_get(block, 0), INTEGER, 1, DIM, &rows)) ||
            (rc = config_number(r, inside, "weight_block_size", json_array_get(block, 1), INTEGER, 1, DIM, &cols)))
            return rc;
        if ((int)cols % DOT_CHUNK)
            return config_unsupported(r, inside, "weight_block_size", block, "columns that are a multiple of 32");
    }
    r->c->fp8 = 1;
    r->c->fp8_block_rows = (int)rows;
    r->c->fp8_block_cols = (int)cols;
    return VB_OK;
}

double config_attention_scale_f64(const struct config *c)
{
    double s = 1.0 / sqrt((double)(c->qk_nope_head_dim + c->qk_rope_head_dim));
    int yarn_scale = c->conventions.value[YARN_SCALE], unscaled = yarn_scale ? yarn_scale == 2 : c->rope_unscaled;
    double m = c->rope_yarn && !unscaled ? yarn_m(c->rope_factor, c->rope_mscale_all_dim) : 1.0;
    return s * m * m;
}

float config_query_scale(const struct config *c, int position)
{
    return (float)(1.0 + c->query_beta * kernel_log(1.0 + position / c->rope_original_max_position_embeddings));
}

float config_attention_scale(const struct config *c)
{
    return (float)config_attention_scale_f64(c);
}
