/* engine/train/train_parallel.c -- parallel heads of a micro-batch (docs/SEMANTICS.md, "Parallel heads").
 *
 *     x_i = z_i,   y = decoder_layer_k(x),   logits = lm_head(model.norm(y)), which predict tok[i+k+2]
 *
 * All heads read the same rows z of the target, so with gradients of the model, those of z are the sum over the
 * heads. */
#include "engine/train/train_internal.h"

#include <string.h>

#include "ops/add.h"

/* ---- what is refused ---- */

/* Keys whose values in the heads' config.json may differ from the model's */
static int may_differ(const char *key)
{
    static const char *const free[] = {"num_nextn_predict_layers", "max_position_embeddings", "tie_word_embeddings",
                                       "first_k_dense_replace", "moe_layer_freq", "bos_token_id"};
    for (size_t i = 0; i < sizeof free / sizeof *free; i++)
        if (!strcmp(key, free[i]))
            return 1;
    return 0;
}

static int same_rope(const struct config *a, const struct config *b)
{
    return a->rope_yarn == b->rope_yarn && a->rope_factor == b->rope_factor && a->rope_beta_fast == b->rope_beta_fast &&
           a->rope_beta_slow == b->rope_beta_slow && a->rope_mscale == b->rope_mscale &&
           a->rope_mscale_all_dim == b->rope_mscale_all_dim &&
           a->rope_original_max_position_embeddings == b->rope_original_max_position_embeddings &&
           a->rope_unscaled == b->rope_unscaled && a->query_beta == b->query_beta;
}

/* The trainer computes the heads with the sizes and constants of the model's layers. */
static int check_kind(const struct vb_model *m, const struct vb_model *heads, vb_error *err)
{
    const char *key, *dir = checkpoint_dir(heads->checkpoint), *other = checkpoint_dir(m->checkpoint);
    char ours[32], theirs[32];
    int from_default;
    for (size_t i = 0; config_row(&m->config, i, &key, theirs, &from_default); i++) {
        config_row(&heads->config, i, &key, ours, &from_default);
        if (strcmp(ours, theirs) && !may_differ(key))
            return vb_fail(err, VB_UNSUPPORTED,
                           "%s: %s of the heads is %s, that of %s is %s; heads are trained if their layers have the "
                           "sizes of the model's",
                           dir, key, ours, other, theirs);
    }
    if (!same_rope(&heads->config, &m->config) || heads->config.index_topk)
        return vb_fail(err, VB_UNSUPPORTED, "%s: %s of the heads differs from that of %s", dir,
                       heads->config.index_topk ? "the indexer" : "RoPE", other);
    return VB_OK;
}

int train_check_heads(const struct vb_model *m, const struct trainer_options *o, vb_error *err)
{
    const struct vb_model *stored = o->heads ? o->heads->stored : NULL;
    const struct loss *l = o->loss;
    if (!o->heads != (o->part != TRAIN_HEADS) && o->part != TRAIN_MODEL)
        return vb_fail(err, VB_BAD_ARGUMENT, "parallel heads are %s",
                       o->heads ? "given, and modules are trained" : "to be trained, and none are given");
    if (!o->heads)
        return VB_OK;
    if (o->depths < 1 || o->depths > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d parallel heads, wanted 1 to %d", o->depths, VB_MAX_DRAFT);
    if (stored && stored->num_mtp != o->depths)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d parallel heads, %s has %d", o->depths,
                       checkpoint_dir(stored->checkpoint), stored->num_mtp);
    if (o->new_model && (stored || o->heads->copied))
        return vb_fail(err, VB_BAD_ARGUMENT, "the heads of a new model are %s, wanted new ones",
                       stored ? "stored" : "copies");
    if (l && l->chain != CHAIN_MODULES)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "a loss wants module 0 at every depth, and each parallel head has one depth");
    if (l && l->terms.features != 0)
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss compares features, and parallel heads have none");
    return stored ? check_kind(m, stored, err) : VB_OK;
}

/* ---- forward and backward ---- */

const float *train_trunk(const struct vb_trainer *t, size_t *stride)
{
    size_t d = t->c->dims.d;
    *stride = t->layers ? d : t->width;
    if (t->layers)
        return t->heads.after_last ? t->last : t->kept[t->c->dims.layers - 1].x;
    return t->hidden + (t->heads.after_last ? d : 0);
}

void train_parallel_back(struct vb_trainer *t, int k)
{
    struct train_depth *x = &t->depth[k];
    struct train_module *w = &t->mtp[k];
    size_t S = x->rows.S, d = t->c->dims.d;
    float *dx = t->shared.dx;
    memset(dx, 0, S * d * sizeof *dx);
    train_back_norm(t, dx, x->dg, d, x->y, d, &w->norm, S, t->c->rms_norm_eps);
    train_layer_back(t, &w->layer, &x->rows, &x->kept, dx);
    for (size_t q = 0; t->layers && !t->loss.detached && q < t->sequences; q++)
        op_add(&t->cx, t->dtrunk + t->rows.first[q] * d, dx + x->rows.first[q] * d,
               train_rows_of(x->rows.first, q) * d);
}
