/* reference/backward_gradients.c -- the list of gradients of a checkpoint, and the memory of a backward pass. */
#include "reference/backward_layers.h"

#include <stdlib.h>
#include <string.h>

/* -- the list ------------------------------------------------------------------------------------------------------ */

/* Adds w to a list of n matrices and returns their new number. out NULL: only counts. The tensor of a matrix that a
 * model lacks is NULL. */
static size_t put(const struct matrix **out, size_t n, const struct matrix *w)
{
    if (!w->tensor)
        return n;
    if (out)
        out[n] = w;
    return n + 1;
}

static size_t put_mlp(const struct matrix **out, size_t n, const struct reference_mlp *w)
{
    n = put(out, n, &w->gate_proj);
    n = put(out, n, &w->up_proj);
    return put(out, n, &w->down_proj);
}

static size_t put_layer(const struct matrix **out, size_t n, const struct reference_layer *w, int experts)
{
    const struct reference_attention *a = &w->attention;
    const struct matrix *each[] = {&w->input_norm, &a->q_proj, &a->q_a_proj, &a->q_a_norm, &a->q_b_proj, &a->kv_a_proj,
                                   &a->kv_a_norm, &a->kv_b_proj, &a->o_proj, &w->post_attention_norm, &w->router};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        n = put(out, n, each[i]);
    for (int e = 0; w->is_moe && e < experts; e++)
        n = put_mlp(out, n, &w->experts[e]);
    n = put_mlp(out, n, &w->mlp);
    return put_mlp(out, n, &w->shared);
}

static size_t put_heads(const struct matrix **out, size_t n, const struct reference *heads)
{
    for (int k = 0; heads && k < heads->config.num_nextn_predict_layers; k++)
        n = put_layer(out, n, &heads->mtp[k].layer, heads->config.n_routed_experts);
    return n;
}

static size_t put_all(const struct matrix **out, const struct reference *r)
{
    const struct config *c = &r->config;
    size_t n = put(out, put(out, put(out, 0, &r->embed), &r->norm), &r->head);
    for (int l = 0; l < c->num_hidden_layers; l++)
        n = put_layer(out, n, &r->layers[l], c->n_routed_experts);
    for (int k = 0; k < c->num_nextn_predict_layers; k++) {
        const struct reference_mtp_module *w = &r->mtp[k];
        const struct matrix *each[] = {&w->enorm, &w->hnorm, &w->eh_proj, &w->norm, &w->embed, &w->head};
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            n = put(out, n, each[i]);
        n = put_layer(out, n, &w->layer, c->n_routed_experts);
    }
    return n;
}

static int by_name(const void *a, const void *b)
{
    const struct matrix *const *x = a, *const *y = b;
    return strcmp((*x)->tensor->name, (*y)->tensor->name);
}

int ref_gradients_of(struct reference_gradients *g, const struct matrix **list, size_t n, vb_error *err)
{
    if (!(g->of = vb_alloc(&g->allocator, n, sizeof *g->of)))
        return vb_fail(err, VB_NO_MEMORY, "no memory for a list of %zu gradients", n);
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n; i++) {
        const struct matrix *w = list[i];
        if (i && w->tensor == list[i - 1]->tensor) /* a tensor that is used twice */
            continue;
        struct reference_gradient *of = &g->of[g->count];
        double *data = vb_alloc(&g->allocator, (size_t)w->rows * (size_t)w->cols, sizeof *data);
        *of = (struct reference_gradient){w->tensor->name, w->rows, w->cols, data};
        if (!data)
            return vb_fail(err, VB_NO_MEMORY, "no memory for the gradient of %s", w->tensor->name);
        g->count++;
    }
    return VB_OK;
}

int reference_gradients_open(struct reference_gradients *g, const struct reference *r, vb_error *err)
{
    return reference_gradients_open_with_heads(g, r, NULL, err);
}

int reference_gradients_open_with_heads(struct reference_gradients *g, const struct reference *r,
                                        const struct reference *heads, vb_error *err)
{
    const char *dir = checkpoint_dir(r->checkpoint);
    *g = (struct reference_gradients){.allocator = r->allocator};
    if (r->config.index_topk)
        return vb_fail(err, VB_UNSUPPORTED, "%s: index_topk is %d, and gradients are not computed for sparse attention",
                       dir, r->config.index_topk);
    if (!r->layers[0].attention.kv_b_proj.tensor)
        return vb_fail(err, VB_UNSUPPORTED,
                       "%s: W_UK and W_UV are two tensors, and gradients are computed for one tensor kv_b_proj", dir);
    size_t n = put_heads(NULL, put_all(NULL, r), heads);
    const struct matrix **list = vb_alloc(&g->allocator, n, sizeof *list);
    if (!list)
        return vb_fail(err, VB_NO_MEMORY, "no memory for a list of %zu gradients", n);
    put_heads(list, put_all(list, r), heads);
    int rc = ref_gradients_of(g, list, n, err);
    vb_free(&g->allocator, list);
    return rc;
}

void reference_gradients_close(struct reference_gradients *g)
{
    for (size_t i = 0; i < g->count; i++)
        vb_free(&g->allocator, g->of[i].data);
    vb_free(&g->allocator, g->of);
    g->of = NULL;
    g->count = 0;
}

static int is_named(const void *name, const void *of)
{
    return strcmp(name, ((const struct reference_gradient *)of)->name);
}

const struct reference_gradient *reference_gradient(const struct reference_gradients *g, const char *name)
{
    return g->count ? bsearch(name, g->of, g->count, sizeof *g->of, is_named) : NULL;
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

int ref_back_open(struct reference_back *b, const struct reference *r, const struct reference_options *options,
                  struct reference_gradients *gradients, int S, vb_error *err)
{
    const struct dims *c = &r->config.dims;
    size_t s = (size_t)S, D = c->d, H = c->H, N = c->n, R = c->r, V = c->v, C = c->c, Q = c->q, E = c->E, X = c->chosen,
           largest = 0;
    size_t expert = c->expert * (c->shared ? c->shared : 1), W = c->dense > expert ? c->dense : expert;
    *b = (struct reference_back){.gradients = gradients};
    int rc = ref_run_open(&b->run, r, options, S, err);
    if (rc || !gradients)
        return rc;
    for (size_t i = 0; i < gradients->count; i++) {
        size_t rows = (size_t)gradients->of[i].rows, cols = (size_t)gradients->of[i].cols;
        largest = rows * cols > largest ? rows * cols : largest;
    }
    struct ref_part part[] = {
        {&b->w, largest}, {&b->normed, s * D}, {&b->middle, s * D}, {&b->dnormed, s * D}, {&b->q_a, s * Q},
        {&b->dq_a, s * Q}, {&b->dq_a_norm, s * Q}, {&b->dq, s * H * (N + R)}, {&b->dkv_a, s * (C + R)},
        {&b->dlatent, s * C}, {&b->c_kv, s * C}, {&b->dc_kv, s * C}, {&b->dheads_of.q_nope, s * H * N},
        {&b->dheads_of.q_rope, s * H * R}, {&b->dheads_of.k_nope, s * H * N}, {&b->dheads_of.k_rope, s * R},
        {&b->dheads_of.v, s * H * V}, {&b->dkv, s * H * (N + V)}, {&b->dheads, s * H * V}, {&b->dp, s * s},
        {&b->dscores_of_head, s * s}, {&b->product, s * W}, {&b->dgate, s * W}, {&b->dup, s * W},
        {&b->dproduct, s * W}, {&b->drouter, s * E}, {&b->dscores, s * E}, {&b->dweights, s * X},
        {&b->drouted, s * X * D}, {&b->expert_in, s * D}, {&b->dexpert_in, s * D}, {&b->dexpert_out, s * D},
    };
    size_t parts = sizeof part / sizeof *part, total = ref_carve(part, parts, NULL);
    double *next = b->memory = vb_alloc(&r->allocator, total, sizeof *next);
    if (!next) {
        ref_run_close(&b->run);
        return vb_fail(err, VB_NO_MEMORY, "no memory for the intermediate gradients of %d tokens", S);
    }
    ref_carve(part, parts, next);
    return VB_OK;
}

void ref_back_close(struct reference_back *b)
{
    vb_free(&b->run.r->allocator, b->memory);
    ref_run_close(&b->run);
}
