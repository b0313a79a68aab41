/* reference/eagle_weights.c -- finds the tensors of an EAGLE head. */
#include "reference/eagle_layers.h"

#include <string.h>

/* d2t [V]: what is to be added to an id of the head, to get the target's token. */
static int read_tokens(struct reference_eagle *e, vb_error *err)
{
    const struct tensor *t = checkpoint_find(e->own->checkpoint, "d2t");
    const vb_allocator *a = &e->own->allocator;
    int64_t target_vocab = e->target->config.vocab_size;
    if (!t && e->vocab == target_vocab)
        return VB_OK;
    if (!t || strcmp(t->dtype_name, "I64") || t->ndim != 1 || t->shape[0] != e->vocab)
        return vb_fail(err, VB_BAD_CHECKPOINT, "%s: d2t is %s, wanted I64 [%d]", checkpoint_dir(e->own->checkpoint),
                       t ? "of another type or shape" : "missing", e->vocab);
    e->tokens = vb_alloc(a, (size_t)e->vocab, sizeof *e->tokens);
    e->ids = vb_alloc(a, (size_t)target_vocab, sizeof *e->ids);
    if (!e->tokens || !e->ids)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a vocabulary of %d tokens", e->vocab);
    for (int64_t v = 0; v < target_vocab; v++)
        e->ids[v] = -1;
    for (int id = 0; id < e->vocab; id++) {
        int64_t offset;
        memcpy(&offset, (const char *)t->data + (size_t)id * sizeof offset, sizeof offset);
        if (offset < -(int64_t)id || offset >= target_vocab - id || e->ids[id + offset] >= 0)
            return vb_fail(err, VB_BAD_CHECKPOINT,
                           "%s: d2t[%d] leads to a token outside of the vocabulary, or to that of another id", t->file,
                           id);
        e->tokens[id] = (int32_t)(id + offset);
        e->ids[id + offset] = id;
    }
    return VB_OK;
}

static void bind_all(struct reference_eagle *e, struct reference_binder *b)
{
    const struct config *c = &e->own->config;
    size_t first;
    const char *layer = checkpoint_with_prefix(e->own->checkpoint, "midlayer.", &first) ? "midlayer." : "layers.0.";
    int d = c->hidden_size, T = e->target->config.hidden_size, HD = c->num_attention_heads * e->dim,
        GD = e->groups * e->dim;
    int W = c->intermediate_size, in = e->version == 3 ? 2 * d : d;
    e->embed = e->target->embed;
    e->embeds = checkpoint_find(e->own->checkpoint, "embed_tokens.weight") || d != T;
    if (e->embeds)
        ref_bind(b, &e->embed, e->target->config.vocab_size, d, "", "embed_tokens.weight");
    const char *name;
    for (size_t i = 0; (name = config_feature_norm(&e->norms, i)); i++)
        ref_bind(b, &e->feature_norms[i], 1, e->norms.fc_norm ? T : 3 * T, "", name);
    ref_bind(b, &e->fc, d, e->version == 3 ? 3 * T : 2 * d, "", "fc.weight");
    ref_bind(b, &e->q_proj, HD, in, layer, "self_attn.q_proj.weight");
    ref_bind(b, &e->k_proj, GD, in, layer, "self_attn.k_proj.weight");
    ref_bind(b, &e->v_proj, GD, in, layer, "self_attn.v_proj.weight");
    ref_bind(b, &e->o_proj, d, HD, layer, "self_attn.o_proj.weight");
    ref_bind(b, &e->post_attention_norm, 1, d, layer, "post_attention_layernorm.weight");
    ref_bind(b, &e->mlp.gate_proj, W, d, layer, "mlp.gate_proj.weight");
    ref_bind(b, &e->mlp.up_proj, W, d, layer, "mlp.up_proj.weight");
    ref_bind(b, &e->mlp.down_proj, d, W, layer, "mlp.down_proj.weight");
    if (e->version == 1) {
        e->head = e->target->head;
        if (checkpoint_find(e->own->checkpoint, "fc.bias"))
            ref_bind(b, &e->fc_bias, 1, d, "", "fc.bias");
        return;
    }
    ref_bind(b, &e->input_norm, 1, d, layer, "input_layernorm.weight");
    ref_bind(b, &e->hidden_norm, 1, d, layer, "hidden_norm.weight");
    ref_bind(b, &e->norm, 1, d, "", "norm.weight");
    ref_bind(b, &e->head, e->vocab, d, "", "lm_head.weight");
}

static int open_files(struct reference_eagle *e, const char *dir, vb_error *err)
{
    struct reference *own = e->own;
    struct reference_binder b = {.r = own, .err = err};
    struct eagle_config sizes;
    if ((b.rc = config_read_eagle(&own->config, &sizes, dir, e->version, &e->target->config,
                                  checkpoint_dir(e->target->checkpoint), &own->allocator, err)) ||
        (b.rc = checkpoint_open(&own->checkpoint, dir, &own->allocator, err)))
        return b.rc;
    e->groups = own->config.num_key_value_heads;
    e->dim = own->config.v_head_dim;
    e->vocab = sizes.vocab_size;
    e->norms = sizes.norms;
    config_three_layers(e->target->config.num_hidden_layers, e->three); /* if it is an EAGLE-1, nobody reads them */
    ref_bind_begin(&b);
    bind_all(e, &b);
    return b.rc ? b.rc : e->version == 3 ? read_tokens(e, err) : VB_OK;
}

int reference_eagle_open(struct reference_eagle **out, const char *dir, int version, const struct reference *target,
                         vb_error *err)
{
    struct reference_eagle *e = vb_alloc(&target->allocator, 1, sizeof *e);
    *out = NULL;
    if (!e || !(e->own = vb_alloc(&target->allocator, 1, sizeof *e->own))) {
        vb_free(&target->allocator, e);
        return vb_fail(err, VB_NO_MEMORY, "%s: no memory for the reference", dir);
    }
    e->own->allocator = target->allocator;
    e->target = target;
    e->version = version;
    int rc = open_files(e, dir, err);
    if (rc)
        reference_eagle_close(e);
    else
        *out = e;
    return rc;
}

void reference_eagle_close(struct reference_eagle *e)
{
    if (!e)
        return;
    vb_allocator a = e->own->allocator;
    vb_free(&a, e->tokens);
    vb_free(&a, e->ids);
    reference_close(e->own);
    vb_free(&a, e);
}

struct reference_eagle_sizes reference_eagle_sizes(const struct reference_eagle *e)
{
    int T = e->target->config.hidden_size;
    return (struct reference_eagle_sizes){e->version == 3 ? 3 * T : T, e->own->config.hidden_size, e->vocab};
}

int32_t reference_eagle_token(const struct reference_eagle *e, int id) { return e->tokens ? e->tokens[id] : id; }

int reference_eagle_gradients_open(struct reference_gradients *g, const struct reference_eagle *e, vb_error *err)
{
    const struct matrix *each[] = {&e->embed, &e->feature_norms[0], &e->feature_norms[1], &e->feature_norms[2], &e->fc,
                                   &e->fc_bias, &e->q_proj, &e->k_proj, &e->v_proj, &e->o_proj, &e->input_norm,
                                   &e->hidden_norm, &e->norm, &e->post_attention_norm, &e->mlp.gate_proj,
                                   &e->mlp.up_proj, &e->mlp.down_proj, &e->head};
    const struct matrix *list[sizeof each / sizeof *each];
    size_t n = 0;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (each[i]->tensor && (each[i] != &e->embed || e->embeds) && (each[i] != &e->head || e->version == 3))
            list[n++] = each[i];
    *g = (struct reference_gradients){.allocator = e->own->allocator};
    return ref_gradients_of(g, list, n, err);
}
