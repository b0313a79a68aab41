/* reference/backward_model.c -- the losses of a training step and their gradients: the target, its MTP modules, the output heads.
 * docs/TRAINING.md states the losses and their sources. */
#include "reference/backward_layers.h"

#include <math.h>
#include <string.h>

/* One call of reference_backward. S is the number of rows of the longest sequence, L the number of the target's layers. */
struct backward_step {
    const struct reference *r;
    const struct reference_loss_options *options;
    struct reference_losses *losses;
    struct reference_back back;
    void *memory;                    /* holds all arrays below */
    double *x;                       /* [L+1, S, D]: the input of each layer, and the output of the last */
    double *hidden;                  /* [S, D]: after model.norm */
    double *taken;                   /* [depths+1, S, D]: the hidden states that depth k takes; those of depth k+1 are its output */
    double *g, *module_x;            /* [S, D]: after shared_head.norm; the input of a module's layer */
    double *z, *dz;                  /* [S, V] */
    double *dhidden;                 /* [S, D] */
    double *dg;                      /* [depths, S, D]: from the loss of depth k alone */
    double *dtaken;                  /* [S, D]: of taken, of one depth after the other, and then of the target's hidden states */
    double *dx, *denorm, *dhnorm, *dconcat; /* [S, D], [S, D], [S, D], [S, 2D] */
    size_t S;
};

/* -- heads --------------------------------------------------------------------------------------------------------- */

/* z = W_head h;  returns the sum of the cross entropies. With gradients, adds those of weight * (the sum) to dW_head and dh. */
static double predict(struct backward_step *p, double *dh, const struct matrix *w, const double *h, const int32_t *labels, int S, double weight)
{
    size_t n = (size_t)S * p->r->config.dims.V;
    ref_linear(&p->back.run, p->z, w, h, S);
    ref_value(&p->back.run, "logits", -1, S, w->rows, p->z);
    if (!p->back.gradients)
        return ref_cross_entropy(NULL, p->z, labels, S, w->rows, weight);
    ref_back_clear(p->dz, n);
    double loss = ref_cross_entropy(p->dz, p->z, labels, S, w->rows, weight);
    ref_back_value(&p->back, "logits", -1, S, w->rows, p->dz);
    ref_back_matrix(&p->back, dh, w, p->dz, h, S);
    return loss;
}

/* -- MTP depths ---------------------------------------------------------------------------------------------------- */

static const struct reference_mtp_module *module_of(const struct backward_step *p, int k)
{
    return &p->r->mtp[k % p->r->config.num_nextn_predict_layers];
}

/* Depth k: row i reads tok[i+k+1] and row i of the depth before, and predicts tok[i+k+2]. */
static void depth_forward(struct backward_step *p, const int32_t *tok, int T, int k)
{
    const struct reference_mtp_module *w = module_of(p, k);
    int rows = T - k - 2;
    size_t plane = p->S * p->r->config.dims.d;
    double mean = 1.0 / (double)p->losses->depth_rows[k], weight = p->options->mtp_loss_scaling_factor / p->options->depths * mean;
    double *taken = p->taken + (size_t)k * plane, *dg = p->dg + (size_t)k * plane;
    ref_mtp(&p->back.run, p->g, taken + plane, w, k, k + 1, tok + k + 1, taken, rows);
    ref_back_clear(dg, plane);
    p->losses->by_depth[k] += mean * predict(p, dg, &w->head, p->g, tok + k + 2, rows, weight);
}

/* Expects p->dtaken to be the gradient of what depth k hands to depth k+1, and sets it to that of what depth k takes. In reverse order
 * of the formulas at ref_mtp in model.c:
 *     g = RMSNorm_shared_head(y),  y = decoder_layer(x)             dy, dx
 *     x = eh_proj [e ; t]                                           [de ; dt] = transpose(eh_proj) dx
 *     e = RMSNorm_e(Emb(tok)),  t = RMSNorm_h(taken)                dEmb[tok], dtaken */
static void depth_back(struct backward_step *p, const int32_t *tok, int T, int k)
{
    const struct reference_mtp_module *w = module_of(p, k);
    struct reference_back *b = &p->back;
    int rows = T - k - 2, D = p->r->config.hidden_size, swapped = ref_convention(&b->run, CONCAT);
    size_t d = (size_t)D, n = (size_t)rows * d, plane = p->S * d;
    double eps = p->r->config.rms_norm_eps, *taken = p->taken + (size_t)k * plane, *dg = p->dg + (size_t)k * plane;
    double *before = ref_convention(&b->run, DRAFT_HIDDEN) ? p->dx : dg; /* the next depth takes y, or g */

    ref_mtp(&b->run, p->g, p->g, w, k, k + 1, tok + k + 1, taken, rows); /* again, because the depths share b->run */
    ref_back_clear(p->dx, n);
    for (size_t i = 0; i < n; i++)
        before[i] += p->dtaken[i];
    ref_back_value(b, "shared_head_norm", -1, rows, D, dg);
    ref_back_norm_of(b, p->dx, &w->norm, dg, b->run.stream, rows, eps);
    ref_linear(&b->run, p->module_x, &w->eh_proj, b->run.concat, rows);
    ref_back_layer(b, p->dx, &w->layer, p->module_x, rows);
    ref_back_value(b, "eh_proj", -1, rows, D, p->dx);

    ref_back_clear(p->dconcat, 2 * n);
    ref_back_matrix(b, p->dconcat, &w->eh_proj, p->dx, b->run.concat, rows);
    ref_back_value(b, "concat", -1, rows, 2 * D, p->dconcat);
    ref_split(swapped ? p->dhnorm : p->denorm, D, swapped ? p->denorm : p->dhnorm, D, p->dconcat, (size_t)rows);
    ref_back_show(b, "hnorm", -1, rows, D, p->dhnorm);
    ref_back_show(b, "enorm", -1, rows, D, p->denorm);
    ref_back_clear(p->dtaken, plane);
    ref_back_norm_of(b, p->dtaken, &w->hnorm, p->dhnorm, taken, rows, eps);
    ref_back_value(b, "taken", -1, rows, D, p->dtaken);
    ref_back_clear(p->dx, n);
    for (int i = 0; i < rows; i++)
        ref_row(&w->embed, tok[i + k + 1], p->module_x + (size_t)i * d);
    ref_back_norm_of(b, p->dx, &w->enorm, p->denorm, p->module_x, rows, eps);
    ref_back_value(b, "embed", -1, rows, D, p->dx);
    ref_back_embed(reference_gradient(b->gradients, w->embed.tensor->name)->data, p->dx, tok + k + 1, rows, D);
}

/* -- a sequence ---------------------------------------------------------------------------------------------------- */

static void forward(struct backward_step *p, const int32_t *tok, int T)
{
    const struct config *c = &p->r->config;
    struct reference_run *run = &p->back.run;
    int S = T - 1, L = c->num_hidden_layers;
    size_t plane = p->S * c->dims.d, bytes = (size_t)S * c->dims.d * sizeof(double);
    run->layer = -1;
    ref_rope_tables(run, 0, S);
    ref_embed(run, p->x, &p->r->embed, tok, S);
    for (run->layer = 0; run->layer < L; run->layer++) {
        double *x = p->x + (size_t)run->layer * plane;
        memcpy(x + plane, x, bytes);
        ref_decoder_layer(run, &p->r->layers[run->layer], x + plane, S);
    }
    run->layer = -1;
    const double *last = p->x + (size_t)L * plane;
    ref_norm(run, p->hidden, &p->r->norm, last, S, c->rms_norm_eps);
    ref_value(run, "norm", -1, S, c->hidden_size, p->hidden);
    memcpy(p->taken, ref_convention(run, MAIN_HIDDEN) ? last : p->hidden, bytes);

    double mean = 1.0 / (double)p->losses->rows;
    ref_back_clear(p->dhidden, plane);
    p->losses->main += mean * predict(p, p->dhidden, &p->r->head, p->hidden, tok + 1, S, mean);
    for (int k = 0; k < p->options->depths && T - k - 2 > 0; k++)
        depth_forward(p, tok, T, k);
}

static void backward(struct backward_step *p, const int32_t *tok, int T)
{
    const struct config *c = &p->r->config;
    struct reference_back *b = &p->back;
    int S = T - 1, L = c->num_hidden_layers;
    size_t plane = p->S * c->dims.d, n = (size_t)S * c->dims.d;
    int depths = p->options->depths < T - 2 ? p->options->depths : T - 2;
    ref_back_clear(p->dtaken, plane);
    for (int k = depths - 1; k >= 0; k--)
        depth_back(p, tok, T, k);

    double *before = ref_convention(&b->run, MAIN_HIDDEN) ? p->dx : p->dhidden; /* depth 0 takes the last layer's output, or hidden */
    ref_back_clear(p->dx, n);
    for (size_t i = 0; i < n; i++)
        before[i] += p->dtaken[i];
    b->run.layer = -1;
    ref_back_value(b, "norm", -1, S, c->hidden_size, p->dhidden);
    ref_back_norm_of(b, p->dx, &p->r->norm, p->dhidden, p->x + (size_t)L * plane, S, c->rms_norm_eps);
    ref_rope_tables(&b->run, 0, S);
    for (b->run.layer = L - 1; b->run.layer >= 0; b->run.layer--)
        ref_back_layer(b, p->dx, &p->r->layers[b->run.layer], p->x + (size_t)b->run.layer * plane, S);
    ref_back_value(b, "embed", -1, S, c->hidden_size, p->dx);
    ref_back_embed(reference_gradient(b->gradients, p->r->embed.tensor->name)->data, p->dx, tok, S, c->hidden_size);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

/* Counts the rows of all losses. Returns the number of rows of the longest sequence. */
static int count_rows(struct reference_losses *losses, int depths, const struct reference_sequence *sequences, int count)
{
    int S = 0;
    for (int i = 0; i < count; i++) {
        int T = sequences[i].count;
        S = T - 1 > S ? T - 1 : S;
        losses->rows += T > 1 ? T - 1 : 0;
        for (int k = 0; k < depths; k++)
            losses->depth_rows[k] += T - k - 2 > 0 ? T - k - 2 : 0;
    }
    return S;
}

static int check(const struct reference *r, const struct reference_loss_options *o, const struct reference_sequence *sequences, int count,
                 vb_error *err)
{
    static const enum convention no_backward[] = {FIRST_EMBEDDING, FIRST_ROW, MODULE_HIDDEN, GATE, LATENT_CACHE};
    int rc = VB_OK, most = r->config.num_nextn_predict_layers ? VB_MAX_DRAFT : 0;
    if (o->depths < 0 || o->depths > most)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP depths, wanted 0 to %d", o->depths, most);
    for (size_t i = 0; i < sizeof no_backward / sizeof *no_backward; i++) {
        const struct convention_row *row = convention_row(no_backward[i]);
        int value = o->conventions.value[no_backward[i]];
        if (value)
            return vb_fail(err, VB_BAD_ARGUMENT, "%s=%s has no backward pass, wanted %s", row->name, row->values[value], row->values[0]);
    }
    for (int i = 0; i < count && !rc; i++)
        rc = ref_check_tokens(r, sequences[i].tokens, sequences[i].count, err);
    return rc;
}

static int allocate(struct backward_step *p, int S, vb_error *err)
{
    const struct dims *c = &p->r->config.dims;
    size_t plane = (size_t)S * c->d, logits = (size_t)S * c->V, depths = (size_t)p->options->depths;
    struct {
        double **at;
        size_t count;
    } part[] = {
        {&p->x, (c->layers + 1) * plane},
        {&p->hidden, plane},
        {&p->taken, (depths + 1) * plane},
        {&p->g, plane},
        {&p->module_x, plane},
        {&p->z, logits},
        {&p->dz, logits},
        {&p->dhidden, plane},
        {&p->dg, depths * plane},
        {&p->dtaken, plane},
        {&p->dx, plane},
        {&p->denorm, plane},
        {&p->dhnorm, plane},
        {&p->dconcat, 2 * plane},
    };
    size_t total = 0, parts = sizeof part / sizeof *part;
    for (size_t i = 0; i < parts; i++)
        total += part[i].count;
    double *next = p->memory = vb_alloc(&p->r->allocator, total, sizeof *next);
    if (!next)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the values of %d tokens in a training step", S);
    for (size_t i = 0; i < parts; next += part[i++].count)
        *part[i].at = next;
    p->S = (size_t)S;
    return VB_OK;
}

int reference_backward(const struct reference *r, const struct reference_loss_options *options,
                       const struct reference_sequence *sequences, int count, struct reference_losses *losses,
                       struct reference_gradients *g, vb_error *err)
{
    struct backward_step p = {.r = r, .options = options, .losses = losses};
    struct reference_options run = {
        .x_as_is = 1, .perturb = options->perturb, .conventions = options->conventions, .hook_context = options->hook_context};
    *losses = (struct reference_losses){0};
    int rc = check(r, options, sequences, count, err);
    if (rc)
        return rc;
    int S = count_rows(losses, options->depths, sequences, count);
    if (!losses->rows)
        return vb_fail(err, VB_BAD_ARGUMENT, "no sequence of the %d has a token to predict, wanted at least two tokens in one", count);
    if ((rc = ref_back_open(&p.back, r, &run, g, S, err)))
        return rc;
    p.back.hook = options->gradient_hook;
    p.back.hook_context = options->hook_context;
    rc = allocate(&p, S, err);
    for (int i = 0; i < count && !rc; i++) {
        if (sequences[i].count < 2)
            continue;
        p.back.run.options.hook = options->hook;
        forward(&p, sequences[i].tokens, sequences[i].count);
        p.back.run.options.hook = NULL; /* not for values that the backward pass recomputes */
        losses->total = losses->main;
        for (int k = 0; k < options->depths; k++)
            losses->total += options->mtp_loss_scaling_factor / options->depths * losses->by_depth[k];
        if (!isfinite(losses->total))
            rc = vb_fail(err, VB_NOT_FINITE, "the loss of sequence %d is not finite", i);
        else if (g)
            backward(&p, sequences[i].tokens, sequences[i].count);
    }
    vb_free(&r->allocator, p.memory);
    ref_back_close(&p.back);
    return rc;
}
