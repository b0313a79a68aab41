/* engine/draft/eagle_head.c -- a head's config.json and weights, checked against the target that it drafts for. */
#include "engine/draft/eagle_net.h"

#include "ops/weights.h"
#include "engine/model/config_reader.h"

#include <stdio.h>
#include <string.h>

/* ---- config.json ---- */

static int read_number(const struct config_reader *r, const char *key, enum config_kind kind, double least, double most, double otherwise,
                       double *out)
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
    static const char *const off[] = {"attention_bias", "qkv_bias", "mlp_bias", "norm_before_residual", "quantization_config",
                                      "add_para_norm", "parallel_drafting"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (config_switched_on(json_object_get(r->root, off[i])))
            return config_unsupported(r, NULL, off[i], json_object_get(r->root, off[i]), "false");
    return config_must_be(r, NULL, r->root, "hidden_act", "silu", 0);
}

/* Where an EAGLE-3 head names the layers that it was trained on, they must be those that are taken: counted before or after
 * the layer, as systems differ. */
static int check_layers(const struct config_reader *r, int L)
{
    const json_t *eagle = json_object_get(r->root, "eagle_config"), *ids = json_object_get(eagle, "eagle_aux_hidden_state_layer_ids");
    int layer[3], before = 0, after = 0;
    ids = ids ? ids : json_object_get(r->root, "eagle_aux_hidden_state_layer_ids");
    if (!target_three_layers(L, layer))
        return vb_fail(r->err, VB_UNSUPPORTED, "%s: eagle3 takes features before layers 2, L/2 and L-3, which of a model of %d layers are not three",
                       r->name, L);
    if (!config_switched_on(ids))
        return VB_OK;
    for (size_t i = 0; i < 3 && json_array_size(ids) == 3; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        before += id == layer[i];
        after += id == layer[i] - 1;
    }
    return before == 3 || after == 3 ? VB_OK : config_unsupported(r, NULL, "eagle_aux_hidden_state_layer_ids", ids, "those before layers 2, L/2 and L-3");
}

static int read_config(struct eagle_head *h, const struct model *target, const struct config_reader *r)
{
    struct config *c = &h->config;
    double vocab, d, heads, groups, dim, width, positions, layers, draft_vocab, of_target, t = h->target_width;
    const json_t *rope = config_rope_object(r);
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
        (rc = check_switches(r)))
        return rc;
    if (layers != 1)
        return config_unsupported(r, NULL, "num_hidden_layers", json_object_get(r->root, "num_hidden_layers"), "1");
    if (of_target != t || (d != t && h->version == 1))
        return vb_fail(r->err, VB_BAD_ARGUMENT, "%s: a head for hidden states of %.0f numbers; those of %s have %.0f", r->name,
                       of_target != t ? of_target : d, checkpoint_dir(target->checkpoint), t);
    if ((long long)heads % (long long)groups || (long long)dim % 2)
        return vb_fail(r->err, VB_BAD_CHECKPOINT, "%s: %.0f heads of %.0f numbers do not share %.0f keys", r->name, heads, dim, groups);
    c->vocab_size = (int)vocab;
    c->hidden_size = (int)d;
    c->num_attention_heads = (int)heads;
    c->intermediate_size = (int)width;
    c->max_position_embeddings = (int)positions;
    config_set_dims(c);
    h->groups = (size_t)groups;
    h->dim = (size_t)dim;
    h->vocab_size = h->version == 3 ? (size_t)draft_vocab : target->config.dims.V;
    const json_t *theta = json_object_get(rope, "rope_theta");
    if (theta && !json_object_get(r->root, "rope_theta"))
        rc = config_number(r, "rope_parameters", "rope_theta", theta, REAL, 1.001, 1e15, &c->rope_theta);
    else
        rc = read_number(r, "rope_theta", REAL, 1.001, 1e15, 10000, &c->rope_theta);
    rc = rc ? rc : config_read_rope(r);
    return rc || h->version == 1 ? rc : check_layers(r, target->config.num_hidden_layers);
}

static int load_config(struct eagle_head *h, const char *dir, const struct model *target, vb_error *err)
{
    char *path = vb_path(h->allocator, dir, "config.json"), *text = NULL;
    size_t size;
    if (!path)
        return vb_fail(err, VB_NO_MEMORY, "no memory to open %s", dir);
    struct config_reader r = {.c = &h->config, .name = path, .err = err};
    int rc = vb_read_file(h->allocator, path, &text, &size, err);
    if (!rc)
        rc = (r.root = json_read(text, size, path, err)) ? VB_OK : err ? err->code : VB_BAD_CHECKPOINT;
    if (!rc && !json_is_object(r.root))
        rc = vb_fail(err, VB_BAD_CHECKPOINT, "%s: not a JSON object", path);
    if (!rc)
        rc = read_config(h, target, &r);
    json_decref(r.root);
    vb_free(h->allocator, text);
    vb_free(h->allocator, path);
    return rc;
}

/* ---- weights ---- */

struct eagle_loading {
    struct eagle_head *h;
    const char *layer; /* "midlayer." or "layers.0." */
    vb_error *err;
};

static int missing(const struct eagle_loading *l, const char *name)
{
    return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is missing", checkpoint_dir(l->h->checkpoint), name);
}

/* `cols` 0: a vector. */
static int take(const struct eagle_loading *l, const struct tensor **out, const char *prefix, const char *part, size_t rows, size_t cols)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s", prefix, part);
    const struct tensor *t = checkpoint_take(l->h->checkpoint, name);
    *out = t;
    if (!t)
        return missing(l, name);
    int ndim = cols ? 2 : 1;
    if (t->ndim != ndim || (size_t)t->shape[0] != rows || (cols && (size_t)t->shape[1] != cols))
        return cols ? vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is not [%zu,%zu], which config.json and the target ask for", t->file, name, rows, cols)
                    : vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is not [%zu], which config.json asks for", t->file, name, rows);
    return VB_OK;
}

static int is_float(const struct tensor *t) { return t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16; }

static int wrong_type(const struct eagle_loading *l, const struct tensor *t, const char *wanted)
{
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: %s is %s, wanted %s", t->file, t->name, t->dtype_name, wanted);
}

static int matrix(const struct eagle_loading *l, struct weight_view *w, const char *prefix, const char *part, size_t rows, size_t cols)
{
    const struct tensor *t;
    int rc = take(l, &t, prefix, part, rows, cols);
    if (rc)
        return rc;
    if (!is_float(t))
        return wrong_type(l, t, "F32, F16 or BF16");
    *w = (struct weight_view){.type = (enum weight_type)t->dtype, .data = t->data, .rows = rows, .cols = cols, .stride = cols};
    return VB_OK;
}

static void *keep(const struct eagle_loading *l, size_t count, size_t size)
{
    void *p = vb_alloc(l->h->allocator, count, size);
    if (!p)
        vb_fail(l->err, VB_NO_MEMORY, "no memory for the vectors of an EAGLE head");
    return l->h->blocks[l->h->block_count++] = p;
}

static int vector(const struct eagle_loading *l, const float **out, const char *prefix, const char *part)
{
    const struct tensor *t;
    size_t d = l->h->config.dims.d;
    int rc = take(l, &t, prefix, part, d, 0);
    if (rc)
        return rc;
    if (!is_float(t))
        return wrong_type(l, t, "F32, F16 or BF16");
    struct weight_view w = {.type = (enum weight_type)t->dtype, .data = t->data, .rows = 1, .cols = d, .stride = d};
    float *wide = keep(l, d, sizeof *wide);
    if (!wide)
        return VB_NO_MEMORY;
    decode_weights(wide, &w, 0, 0, d);
    *out = wide;
    return VB_OK;
}

/* d2t [vocab_size], I64: what is to be added to a drafted id. */
static int read_d2t(const struct eagle_loading *l, size_t target_vocab)
{
    struct eagle_head *h = l->h;
    const struct tensor *t = checkpoint_find(h->checkpoint, "d2t");
    if (!t && h->vocab_size == target_vocab)
        return VB_OK;
    int rc = take(l, &t, "", "d2t", h->vocab_size, 0);
    if (rc)
        return rc;
    if (strcmp(t->dtype_name, "I64"))
        return wrong_type(l, t, "I64");
    int32_t *token = keep(l, h->vocab_size, sizeof *token);
    if (!token)
        return VB_NO_MEMORY;
    for (size_t i = 0; i < h->vocab_size; i++) {
        int64_t offset, id;
        memcpy(&offset, (const char *)t->data + i * sizeof offset, sizeof offset);
        if (__builtin_add_overflow((int64_t)i, offset, &id) || id < 0 || (size_t)id >= target_vocab)
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: d2t[%zu] leads to a token outside the vocabulary of %zu", t->file, i, target_vocab);
        token[i] = (int32_t)id;
    }
    h->d2t = token;
    return VB_OK;
}

/* The target's, where the head stores none; which one that is stored must fit. */
static int embedding(const struct eagle_loading *l, const struct model *target)
{
    struct eagle_head *h = l->h;
    size_t V = target->config.dims.V, d = h->config.dims.d;
    if (checkpoint_find(h->checkpoint, "embed_tokens.weight")) {
        if (h->config.dims.V != V)
            return vb_fail(l->err, VB_BAD_ARGUMENT, "%s: a head for a vocabulary of %d tokens; %s has %zu", checkpoint_dir(h->checkpoint),
                           h->config.vocab_size, checkpoint_dir(target->checkpoint), V);
        return matrix(l, &h->embed_tokens, "", "embed_tokens.weight", V, d);
    }
    if (d != h->target_width)
        return missing(l, "embed_tokens.weight");
    h->embed_tokens = target->embed_tokens;
    return VB_OK;
}

static int decoder_layer(const struct eagle_loading *l)
{
    struct eagle_head *h = l->h;
    size_t d = h->config.dims.d, i = h->config.dims.dense, in = h->version == 3 ? 2 * d : d;
    size_t HD = h->config.dims.H * h->dim, GD = h->groups * h->dim;
    int rc;
    if ((rc = matrix(l, &h->q_proj, l->layer, "self_attn.q_proj.weight", HD, in)) ||
        (rc = matrix(l, &h->k_proj, l->layer, "self_attn.k_proj.weight", GD, in)) ||
        (rc = matrix(l, &h->v_proj, l->layer, "self_attn.v_proj.weight", GD, in)) ||
        (rc = matrix(l, &h->o_proj, l->layer, "self_attn.o_proj.weight", d, HD)) ||
        (rc = matrix(l, &h->mlp.gate_proj, l->layer, "mlp.gate_proj.weight", i, d)) ||
        (rc = matrix(l, &h->mlp.up_proj, l->layer, "mlp.up_proj.weight", i, d)) ||
        (rc = matrix(l, &h->mlp.down_proj, l->layer, "mlp.down_proj.weight", d, i)))
        return rc;
    return vector(l, &h->post_attention_layernorm, l->layer, "post_attention_layernorm.weight");
}

static int bind_1(const struct eagle_loading *l, const struct model *target)
{
    struct eagle_head *h = l->h;
    size_t d = h->config.dims.d;
    int rc = matrix(l, &h->fc, "", "fc.weight", d, 2 * d);
    if (!rc && checkpoint_find(h->checkpoint, "fc.bias"))
        rc = vector(l, &h->fc_bias, "", "fc.bias");
    h->lm_head = target->lm_head;
    return rc ? rc : decoder_layer(l);
}

static int bind_3(const struct eagle_loading *l, const struct model *target)
{
    struct eagle_head *h = l->h;
    size_t d = h->config.dims.d;
    int rc;
    if ((rc = matrix(l, &h->fc, "", "fc.weight", d, 3 * h->target_width)) ||
        (rc = vector(l, &h->input_layernorm, l->layer, "input_layernorm.weight")) ||
        (rc = vector(l, &h->hidden_norm, l->layer, "hidden_norm.weight")) ||
        (rc = vector(l, &h->norm, "", "norm.weight")) ||
        (rc = matrix(l, &h->lm_head, "", "lm_head.weight", h->vocab_size, d)) ||
        (rc = read_d2t(l, target->config.dims.V)))
        return rc;
    return decoder_layer(l);
}

/* What is not used must be known. */
static int check_leftovers(const struct eagle_loading *l)
{
    struct checkpoint *c = l->h->checkpoint;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        int known = !strcmp(t->name, "t2d") || strstr(t->name, "rotary_emb.inv_freq") ||
                    (l->h->version == 1 && !strcmp(t->name, "lm_head.weight")); /* the target's is used */
        if (!t->taken && !known)
            return vb_fail(l->err, VB_UNSUPPORTED, "%s: %s is not a tensor of an EAGLE-%d head", t->file, t->name, l->h->version);
    }
    return VB_OK;
}

static int load_weights(struct eagle_head *h, const char *dir, const struct model *target, vb_error *err)
{
    struct eagle_loading l = {.h = h, .err = err};
    size_t first;
    int rc = checkpoint_open(&h->checkpoint, dir, h->allocator, err);
    if (rc)
        return rc;
    l.layer = checkpoint_with_prefix(h->checkpoint, "midlayer.", &first) ? "midlayer." : "layers.0.";
    rc = embedding(&l, target);
    if (!rc)
        rc = h->version == 3 ? bind_3(&l, target) : bind_1(&l, target);
    return rc ? rc : check_leftovers(&l);
}

int eagle_head_open(struct eagle_head **out, const char *dir, int version, const struct model *target, vb_error *err)
{
    struct eagle_head *h = vb_alloc(target->allocator, 1, sizeof *h);
    *out = NULL;
    if (!h)
        return vb_fail(err, VB_NO_MEMORY, "no memory for an EAGLE head");
    h->allocator = target->allocator;
    h->version = version;
    h->target_width = target->config.dims.d;
    int rc = load_config(h, dir, target, err);
    rc = rc ? rc : load_weights(h, dir, target, err);
    if (rc)
        eagle_head_close(h);
    else
        *out = h;
    return rc;
}

size_t eagle_head_bytes(const struct eagle_head *h)
{
    const struct weight_view *const read[] = {&h->q_proj, &h->k_proj, &h->v_proj, &h->o_proj, &h->mlp.gate_proj, &h->mlp.up_proj,
                                              &h->mlp.down_proj, &h->lm_head, h->version == 1 ? &h->fc : NULL};
    size_t sum = 0;
    for (size_t i = 0; i < sizeof read / sizeof *read && read[i]; i++)
        sum += weight_bytes(read[i]);
    return sum;
}

void eagle_head_close(struct eagle_head *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->block_count; i++)
        vb_free(h->allocator, h->blocks[i]);
    checkpoint_close(h->checkpoint);
    vb_free(h->allocator, h);
}
