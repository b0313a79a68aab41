/* engine/draft/eagle_head.c -- a head's weights, checked against its config.json and the target that it drafts for. */
#include "engine/draft/eagle_net.h"

#include "ops/weights.h"

#include <stdio.h>
#include <string.h>

/* ---- weights ---- */

struct eagle_loading {
    struct eagle_head *h;
    const char *layer; /* "midlayer." or "layers.0." */
    vb_error *err;
};

static int missing(const struct eagle_loading *l, const char *name)
{
    return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is missing", checkpoint_dir(l->h->model.checkpoint), name);
}

/* `cols` 0: a vector. */
static int take(const struct eagle_loading *l, const struct tensor **out, const char *prefix, const char *part,
                size_t rows, size_t cols)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s", prefix, part);
    const struct tensor *t = checkpoint_take(l->h->model.checkpoint, name);
    *out = t;
    if (!t)
        return missing(l, name);
    int ndim = cols ? 2 : 1;
    if (t->ndim != ndim || (size_t)t->shape[0] != rows || (cols && (size_t)t->shape[1] != cols))
        return cols ? vb_fail(l->err, VB_BAD_CHECKPOINT,
                              "%s: %s is not [%zu,%zu], which config.json and the target ask for", t->file, name, rows,
                              cols)
                    : vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: %s is not [%zu], which config.json asks for", t->file,
                              name, rows);
    return VB_OK;
}

static int is_float(const struct tensor *t)
{
    return t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16;
}

static int wrong_type(const struct eagle_loading *l, const struct tensor *t, const char *wanted)
{
    return vb_fail(l->err, VB_UNSUPPORTED, "%s: %s is %s, wanted %s", t->file, t->name, t->dtype_name, wanted);
}

static int matrix(const struct eagle_loading *l, struct weight_view *w, const char *prefix, const char *part,
                  size_t rows, size_t cols)
{
    const struct tensor *t;
    int rc = take(l, &t, prefix, part, rows, cols);
    if (rc)
        return rc;
    if (!is_float(t))
        return wrong_type(l, t, "F32, F16 or BF16");
    *w = (struct weight_view){.type = (enum weight_type)t->dtype, .data = t->data, .rows = rows, .cols = cols,
                              .stride = cols};
    return VB_OK;
}

static void *keep(const struct eagle_loading *l, size_t count, size_t size)
{
    void *p = vb_alloc(l->h->model.allocator, count, size);
    if (!p)
        vb_fail(l->err, VB_NO_MEMORY, "no memory for the vectors of an EAGLE head");
    return l->h->blocks[l->h->block_count++] = p;
}

static int vector_of(const struct eagle_loading *l, const float **out, const char *prefix, const char *part, size_t d)
{
    const struct tensor *t;
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

static int vector(const struct eagle_loading *l, const float **out, const char *prefix, const char *part)
{
    return vector_of(l, out, prefix, part, l->h->model.config.dims.d);
}

/* d2t [vocab_size], I64: what is to be added to a drafted id. */
static int read_d2t(const struct eagle_loading *l, size_t target_vocab)
{
    struct eagle_head *h = l->h;
    const struct tensor *t = checkpoint_find(h->model.checkpoint, "d2t");
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
            return vb_fail(l->err, VB_BAD_CHECKPOINT, "%s: d2t[%zu] leads to a token outside the vocabulary of %zu",
                           t->file, i, target_vocab);
        token[i] = (int32_t)id;
    }
    h->d2t = token;
    return VB_OK;
}

/* The target's, where the head stores none; which one that is stored must fit. */
static int embedding(const struct eagle_loading *l, const struct vb_model *target)
{
    struct eagle_head *h = l->h;
    const struct checkpoint *checkpoint = h->model.checkpoint;
    size_t V = target->config.dims.V, d = h->model.config.dims.d;
    if (checkpoint_find(checkpoint, "embed_tokens.weight")) {
        if (h->model.config.dims.V != V)
            return vb_fail(l->err, VB_BAD_ARGUMENT, "%s: a head for a vocabulary of %d tokens; %s has %zu",
                           checkpoint_dir(checkpoint), h->model.config.vocab_size, checkpoint_dir(target->checkpoint),
                           V);
        return matrix(l, &h->module.embed_tokens, "", "embed_tokens.weight", V, d);
    }
    if (d != h->target_width)
        return missing(l, "embed_tokens.weight");
    h->module.embed_tokens = target->embed_tokens;
    return VB_OK;
}

static int decoder_layer(const struct eagle_loading *l)
{
    struct eagle_head *h = l->h;
    const struct dims *dims = &h->model.config.dims;
    struct layer *to = &h->module.layer;
    size_t d = dims->d, i = dims->dense, in = h->version == 3 ? 2 * d : d, HD = dims->H * dims->v;
    int rc;
    to->kind = config_attention(&h->model.config, 0);
    if ((rc = matrix(l, &to->self_attn.q_proj, l->layer, "self_attn.q_proj.weight", HD, in)) ||
        (rc = matrix(l, &to->self_attn.k_proj, l->layer, "self_attn.k_proj.weight", dims->G * dims->r, in)) ||
        (rc = matrix(l, &to->self_attn.v_proj, l->layer, "self_attn.v_proj.weight", dims->G * dims->v, in)) ||
        (rc = matrix(l, &to->self_attn.o_proj, l->layer, "self_attn.o_proj.weight", d, HD)) ||
        (rc = matrix(l, &to->mlp.gate_proj, l->layer, "mlp.gate_proj.weight", i, d)) ||
        (rc = matrix(l, &to->mlp.up_proj, l->layer, "mlp.up_proj.weight", i, d)) ||
        (rc = matrix(l, &to->mlp.down_proj, l->layer, "mlp.down_proj.weight", d, i)))
        return rc;
    return vector(l, &to->post_attention_layernorm, l->layer, "post_attention_layernorm.weight");
}

static int bind_1(const struct eagle_loading *l, const struct vb_model *target)
{
    struct mtp_module *module = &l->h->module;
    size_t d = l->h->model.config.dims.d;
    int rc = matrix(l, &module->eh_proj, "", "fc.weight", d, 2 * d);
    if (!rc && checkpoint_find(l->h->model.checkpoint, "fc.bias"))
        rc = vector(l, &module->eh_bias, "", "fc.bias");
    module->head = target->lm_head;
    return rc ? rc : decoder_layer(l);
}

static int bind_3(const struct eagle_loading *l, const struct vb_model *target)
{
    struct eagle_head *h = l->h;
    struct mtp_module *module = &h->module;
    size_t d = h->model.config.dims.d, T = h->target_width;
    const char *name;
    int rc = VB_OK;
    module->norm_before_residual = h->norms.norm_before_residual;
    for (size_t i = 0; !rc && (name = config_feature_norm(&h->norms, i)); i++)
        rc = vector_of(l, &h->feature_norms[i], "", name, h->norms.fc_norm ? T : 3 * T);
    if (rc || (rc = matrix(l, &h->fc, "", "fc.weight", d, 3 * T)) ||
        (rc = vector(l, &module->enorm, l->layer, "input_layernorm.weight")) ||
        (rc = vector(l, &module->hnorm, l->layer, "hidden_norm.weight")) ||
        (rc = vector(l, &module->shared_head_norm, "", "norm.weight")) ||
        (rc = matrix(l, &module->head, "", "lm_head.weight", h->vocab_size, d)) ||
        (rc = read_d2t(l, target->config.dims.V)))
        return rc;
    return decoder_layer(l);
}

/* What is not used must be known. */
static int check_leftovers(const struct eagle_loading *l)
{
    struct checkpoint *c = l->h->model.checkpoint;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct tensor *t = checkpoint_at(c, i);
        int known = !strcmp(t->name, "t2d") || strstr(t->name, "rotary_emb.inv_freq") ||
                    (l->h->version == 1 && !strcmp(t->name, "lm_head.weight")); /* the target's is used */
        if (!t->taken && !known)
            return vb_fail(l->err, VB_UNSUPPORTED, "%s: %s is not a tensor of an EAGLE-%d head", t->file, t->name,
                           l->h->version);
    }
    return VB_OK;
}

static int load_weights(struct eagle_head *h, const char *dir, const struct vb_model *target, vb_error *err)
{
    struct eagle_loading l = {.h = h, .err = err};
    size_t first;
    int rc = checkpoint_open(&h->model.checkpoint, dir, h->model.allocator, err);
    if (rc)
        return rc;
    l.layer = checkpoint_with_prefix(h->model.checkpoint, "midlayer.", &first) ? "midlayer." : "layers.0.";
    rc = embedding(&l, target);
    if (!rc)
        rc = h->version == 3 ? bind_3(&l, target) : bind_1(&l, target);
    return rc ? rc : check_leftovers(&l);
}

int eagle_head_open(struct eagle_head **out, const char *dir, int version, const struct vb_model *target, vb_error *err)
{
    struct eagle_head *h = vb_alloc(target->allocator, 1, sizeof *h);
    *out = NULL;
    if (!h)
        return vb_fail(err, VB_NO_MEMORY, "no memory for an EAGLE head");
    h->model.allocator = target->allocator;
    h->model.mtp = &h->module;
    h->model.num_mtp = 1;
    h->version = version;
    h->target_width = target->config.dims.d;
    struct eagle_config sizes;
    int rc = config_read_eagle(&h->model.config, &sizes, dir, version, &target->config,
                               checkpoint_dir(target->checkpoint), target->allocator, err);
    h->vocab_size = (size_t)sizes.vocab_size;
    h->norms = sizes.norms;
    rc = rc ? rc : load_weights(h, dir, target, err);
    if (rc)
        eagle_head_close(h);
    else
        *out = h;
    return rc;
}

size_t eagle_head_bytes(const struct eagle_head *h)
{
    const struct mla *a = &h->module.layer.self_attn;
    const struct mlp *mlp = &h->module.layer.mlp;
    const struct weight_view *const read[] = {&a->q_proj, &a->k_proj, &a->v_proj, &a->o_proj, &mlp->gate_proj,
                                              &mlp->up_proj, &mlp->down_proj, &h->module.head, &h->module.eh_proj};
    size_t sum = 0;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        sum += weight_bytes(read[i]);
    return sum;
}

void eagle_head_close(struct eagle_head *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->block_count; i++)
        vb_free(h->model.allocator, h->blocks[i]);
    checkpoint_close(h->model.checkpoint);
    vb_free(h->model.allocator, h);
}
