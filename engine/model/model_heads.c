/* engine/model/model_heads.c -- parallel heads, opened for the model that they draft for. */
#include "engine/model/model_internal.h"

static int differs(const char *dir, const char *key, double ours, double theirs, const struct vb_model *target,
                   vb_error *err)
{
    return vb_fail(err, VB_BAD_ARGUMENT, "%s: %s of the heads is %.9g, that of %s is %.9g", dir, key, ours,
                   checkpoint_dir(target->checkpoint), theirs);
}

/* The heads read the target's rows, and share its norm and its output head. */
static int check_target(const struct config *c, const char *dir, const struct vb_model *target, vb_error *err)
{
    const struct config *t = &target->config;
    const struct { const char *key; double heads, target; } same[] = {
        {"hidden_size", c->hidden_size, t->hidden_size},
        {"vocab_size", c->vocab_size, t->vocab_size},
        {"num_hidden_layers", c->num_hidden_layers, t->num_hidden_layers},
        {"rms_norm_eps", c->rms_norm_eps, t->rms_norm_eps},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].heads != same[i].target)
            return differs(dir, same[i].key, same[i].heads, same[i].target, target, err);
    return VB_OK;
}

int model_bind_heads(struct binder *b)
{
    const struct vb_model *target = b->o->heads_of;
    struct vb_model *m = b->m;
    int rc = VB_OK, heads = b->c->num_nextn_predict_layers;
    m->embed_tokens = target->embed_tokens;
    m->norm = target->norm;
    m->lm_head = target->lm_head;
    if (!(m->mtp = model_alloc(b, (size_t)heads, sizeof *m->mtp)))
        return VB_NO_MEMORY;
    for (; !rc && m->num_mtp < heads; m->num_mtp++) {
        m->mtp[m->num_mtp].shared_head_norm = target->norm;
        rc = model_bind_layer(b, &m->mtp[m->num_mtp].layer, b->c->num_hidden_layers + m->num_mtp);
    }
    return rc;
}

int model_open_heads(struct vb_model **out, int *trunk_layers, const char *dir, const struct vb_model *target,
                     vb_error *err)
{
    struct model_options o = {.conventions = &target->config.conventions, .from_file = 1, .heads_of = target};
    struct checkpoint *checkpoint;
    struct heads_config heads;
    struct config config;
    int rc = config_read_heads(&config, &heads, dir, target->allocator, err);
    *out = NULL;
    if (!rc && !(rc = check_target(&config, dir, target, err)) && !(rc = model_set_options(&config, dir, &o, err)))
        rc = checkpoint_open(&checkpoint, dir, target->allocator, err);
    if (rc)
        return rc;
    *trunk_layers = heads.trunk_layers;
    return model_bind_under(out, &config, checkpoint, &o, target->allocator, err);
}
