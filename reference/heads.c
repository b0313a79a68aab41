/* reference/heads.c -- parallel heads (Gloeckle et al. 2024, arXiv 2404.19737, section 2): heads side by side on the
 * target's rows. */
#include "reference/layers.h"

#include <string.h>

/* Head k on rows z [S,D]:
 *     logits_i = W_head RMSNorm_model(decoder_layer_k(z)_i),   predicting tok[i+k+2]
 * The norm and W_head are the target's. x [S,D] is scratch memory. */
static void run_head(struct reference_run *target, struct reference_run *run, double *logits, int k, const double *z,
                     double *x, int S)
{
    const struct reference *r = target->r;
    run->layer = target->layer = run->c->num_hidden_layers + k;
    run->random = target->random;
    ref_rope_tables(run, 0, S);
    memcpy(x, z, (size_t)S * run->c->dims.d * sizeof *x);
    ref_show(run, "trunk", -1, S, run->c->hidden_size, x);
    ref_decoder_layer(run, &run->r->mtp[k].layer, x, S);
    target->random = run->random;
    ref_norm(target, "shared_head_norm", x, &r->norm, x, S, r->config.rms_norm_eps);
    ref_head(target, logits, &r->head, x, S);
}

/* The options that concern the heads. */
static struct reference_options of_heads(const struct reference_options *o)
{
    struct reference_options options = o ? *o : (struct reference_options){0};
    options.precision = PRECISION_F32;
    options.cache_type = CACHE_TYPE_F32;
    options.expanded = 0;
    options.routes = NULL;
    options.sets = NULL;
    return options;
}

int reference_heads(const struct reference *target, const struct reference *heads,
                    const struct reference_options *options, const int32_t *tokens, int S, double *logits,
                    vb_error *err)
{
    struct reference_options own = of_heads(options);
    struct reference_run run, of_head;
    const vb_allocator *a = &target->allocator;
    size_t D = target->config.dims.d, V = target->config.dims.V, rows = (size_t)S;
    int rc = ref_check_tokens(target, tokens, S, err);
    if (rc || (rc = ref_run_open(&run, target, options, S, err)))
        return rc;
    if ((rc = ref_run_open(&of_head, heads, &own, S, err))) {
        ref_run_close(&run);
        return rc;
    }
    double *z = vb_alloc(a, rows * D, sizeof *z), *x = vb_alloc(a, rows * D, sizeof *x),
           *some = logits ? NULL : vb_alloc(a, rows * V, sizeof *some);
    struct ref_kept trunk = {z, heads->trunk_layers, D};
    run.watch = ref_keep;
    run.watch_context = &trunk;
    if (z && x && (logits || some)) {
        ref_target(&run, x, tokens, S);
        for (int k = 0; k < heads->config.num_nextn_predict_layers; k++)
            run_head(&run, &of_head, logits ? logits + (size_t)k * rows * V : some, k, z, x, S);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for the heads' rows of %d tokens", S);
    }
    vb_free(a, z);
    vb_free(a, x);
    vb_free(a, some);
    ref_run_close(&of_head);
    ref_run_close(&run);
    return rc;
}
