/* engine/model/config_indexer.c -- reads the keys of an indexer that the table of keys cannot describe: which layers
 * have one.
 *
 * A full layer has an indexer. A shared layer has none, and attends to the positions that the last full layer chose.
 * The names "full" and "shared" are those of transformers' GlmMoeDsaConfig, and so is the order of the three ways to
 * say it: indexer_types, else index_topk_pattern, else index_topk_freq with index_skip_topk_offset. */
#include "engine/model/config_reader.h"

#include <string.h>

int config_layer_is_shared(const struct config *c, int layer)
{
    return layer < c->num_hidden_layers && c->shared_set[layer / 8] >> layer % 8 & 1;
}

static void share(struct config *c, int layer) { c->shared_set[layer / 8] |= (unsigned char)(1 << layer % 8); }

/* Reads a list of "full" and "shared", or, if `letters` is 1, also a string of F and S. */
static int read_kinds(const struct config_reader *r, const char *key, const json_t *value, int letters)
{
    const char *text = letters ? json_string_value(value) : NULL;
    size_t n = text ? strlen(text) : json_array_size(value), layers = (size_t)r->c->num_hidden_layers;
    if (n != layers || !(text || json_is_array(value)))
        return config_bad(r, NULL, key, value, letters ? "one F or S per layer" : "a list of num_hidden_layers names");
    for (size_t i = 0; i < n; i++) {
        const char *name = text ? text[i] == 'F' ? "full"
                                  : text[i] == 'S' ? "shared"
                                  : ""
                                : json_string_value(json_array_get(value, i));
        int shared = name && !strcmp(name, "shared");
        if (!shared && !(name && !strcmp(name, "full")))
            return config_bad(r, NULL, key, value,
                              letters ? "one F or S per layer" : "a list of \"full\" and \"shared\"");
        if (shared && !i)
            return config_bad(r, NULL, key, value, "a full layer first");
        if (shared)
            share(r->c, (int)i);
    }
    return VB_OK;
}

static int read_whole(const struct config_reader *r, const char *key, double preset, double *out)
{
    const json_t *value = json_object_get(r->root, key);
    *out = preset;
    return !value || json_is_null(value) ? VB_OK
                                         : config_number(r, NULL, key, value, INTEGER, 0, CONFIG_MAX_LAYERS, out);
}

/* Layer i is full if max(i - index_skip_topk_offset + 1, 0) is a multiple of index_topk_freq. */
static int read_schedule(const struct config_reader *r)
{
    double freq, offset;
    int rc;
    if ((rc = read_whole(r, "index_topk_freq", 1, &freq)) || (rc = read_whole(r, "index_skip_topk_offset", 2, &offset)))
        return rc;
    for (int i = 0, every = freq > 1 ? (int)freq : 1; i < r->c->num_hidden_layers; i++)
        if (i + 1 > (int)offset && (i + 1 - (int)offset) % every) {
            if (!i)
                return config_bad(r, NULL, "index_skip_topk_offset", json_object_get(r->root, "index_skip_topk_offset"),
                                  "a full layer first");
            share(r->c, i);
        }
    return VB_OK;
}

int config_read_indexer(const struct config_reader *r)
{
    const struct config *c = r->c;
    const json_t *types = json_object_get(r->root, "indexer_types"),
                 *pattern = json_object_get(r->root, "index_topk_pattern");
    if (!c->q_lora_rank)
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: an indexer without q_lora_rank is not supported", r->name);
    if (c->index_head_dim != 128) /* the official code has one scale for a query and one for a key, which covers 128
                                     numbers */
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: index_head_dim %d is not supported, only 128", r->name,
                       c->index_head_dim);
    if (c->qk_rope_head_dim > c->index_head_dim)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: qk_rope_head_dim is %d, index_head_dim only %d", r->name,
                       c->qk_rope_head_dim, c->index_head_dim);
    if (types && !json_is_null(types))
        return read_kinds(r, "indexer_types", types, 0);
    return pattern && !json_is_null(pattern) ? read_kinds(r, "index_topk_pattern", pattern, 1) : read_schedule(r);
}
