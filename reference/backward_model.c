/* reference/backward_model.c -- the losses of a training step and their gradients: the target, its MTP modules, the
 * output heads. docs/TRAINING.md states the losses and their sources. */
#include "reference/backward_layers.h"

#include <math.h>
#include <string.h>

/* One call of reference_backward. With parallel heads, `heads` is the memory of their layers, depths.taken[0] what all
 * heads read, and dtaken[0] the sum of the gradients of this. S is the number of rows of the longest sequence, L the
 * number of the target's layers, and R the largest number of rows that a module computes at once: S, or those of all
 * depths if they are aligned. */
struct backward_step {
    const struct reference *r;
    const struct reference_loss_options *options;
    struct loss loss;
    struct reference_losses *losses;
    struct reference_back back, heads;
    void *memory;                    /* holds all arrays below */
    double *x;                       /* [L+1, S, D]: the input of each layer, and the output of the last */
    double *hidden;                  /* [S, D]: after model.norm */
    struct ref_depths depths;        /* what the depths take and read */
    double *dtaken;                  /* [depths+1, S, D]: gradients of what depth k takes */
    double *z, *dz, *target_z;       /* [S, V]; target_z: the logits of the target */
    double *dhidden;                 /* [S, D] */
    double *dg;                      /* [depths, S, D]: after shared_head.norm, from the logits of depth k alone */
    double *din;                     /* [R, D]: of the rows that a pass of a module reads */
    double *g, *next, *module_x;     /* [R, D]: after shared_head.norm; what the pass hands on; the input of the
                                        module's layer */
    double *dx, *dout, *denorm, *dhnorm, *dconcat; /* [R, D] four times, [R, 2D] */
    int32_t *labels;                 /* [S+1]: the tokens of the sequence; -1: no row that predicts the token has a
                                        loss */
    size_t S, R;
};

/* -- heads --------------------------------------------------------------------------------------------------------- */

static void logits(struct backward_step *p, const struct matrix *w, const double *h, int S)
{
    ref_head(&p->back.run, p->z, w, h, S);
    ref_back_clear(p->dz, (size_t)S * p->r->config.dims.V);
}

/* Adds the gradient of z = W_head h to dW_head and dh. */
static void logits_back(struct backward_step *p, double *dh, const struct matrix *w, const double *h, int S)
{
    ref_back_value(&p->back, "logits", -1, S, w->rows, p->dz);
    ref_back_matrix(&p->back, dh, w, p->dz, h, S);
}

/* -- depths of MTP modules ----------------------------------------------------------------------------------------- */

static const struct reference_mtp_module *module_of(const struct backward_step *p, int k)
{
    return &p->r->mtp[p->loss.chain == CHAIN_MODULES ? k % p->r->config.num_nextn_predict_layers : 0];
}

/* Row i of depth m reads tok[i+m+1] and row i of the depth before. */
static void run_module(struct backward_step *p, const struct ref_depth_rows *a)
{
    ref_mtp(&p->back.run, p->g, p->next, module_of(p, a->k), a->k, p->loss.chain == CHAIN_ALIGNED ? 1 : a->k + 1,
            p->depths.tok, p->depths.in, a->rows);
}

/* The terms of the rows of depth k, which predict tok[i+k+2], and their gradients. Row i learns from row i+k+1 of the
 * target. */
static void learn(struct backward_step *p, const struct matrix *head, const double *g, int rows, int k)
{
    const struct loss_terms *terms = &p->loss.terms;
    const struct dims *c = &p->r->config.dims;
    size_t plane = p->S * c->d;
    double mean = p->losses->depth_rows[k] ? 1.0 / (double)p->losses->depth_rows[k] : 0,
           weight = p->loss.depth[k] * mean;
    double *dg = p->dg + (size_t)k * plane, *handed = p->depths.taken + (size_t)(k + 1) * plane,
           *dhanded = p->dtaken + (size_t)(k + 1) * plane;
    struct reference_terms sums = {0}, *means = &p->losses->terms[k];
    int gradients = p->back.gradients != NULL;
    const int32_t *labels = p->labels + k + 2;

    logits(p, head, g, rows);
    ref_soft_cross_entropy(&sums, gradients ? p->dz : NULL, p->z, p->target_z + (size_t)(k + 1) * c->V, labels, rows,
                           (int)c->V, terms, weight);
    ref_back_clear(dg, plane);
    if (gradients)
        logits_back(p, dg, head, g, rows);
    ref_back_clear(dhanded, plane);
    if (terms->features != 0)
        sums.features = ref_smooth_l1(gradients ? dhanded : NULL, handed, p->depths.taken + (size_t)(k + 1) * c->d,
                                      labels, rows, (int)c->d, weight * terms->features);

    means->data += mean * sums.data;
    means->soft += mean * sums.soft;
    means->top += mean * sums.top;
    means->features += mean * sums.features;
    means->entropy += mean * sums.entropy;
    p->losses->by_depth[k] = terms->data * means->data + terms->soft * means->soft + terms->top * means->top +
                             terms->features * means->features;
}

static void depth_forward(struct backward_step *p, const int32_t *tok, int T, int k)
{
    struct ref_depth_rows a = ref_depth_rows(&p->loss, T, k);
    int rows = a.rows - a.first;
    size_t d = p->r->config.dims.d, plane = p->S * d;
    ref_depth_begin(&p->depths, &p->back.run, &a, tok, T);
    run_module(p, &a);
    memcpy(p->depths.taken + (size_t)(k + 1) * plane, p->next + (size_t)a.first * d,
           (size_t)rows * d * sizeof *p->depths.taken);
    learn(p, &module_of(p, k)->head, p->g + (size_t)a.first * d, rows, k);
}

/* Adds the gradient of what the depths up to k take to p->dtaken, from that of what depth k hands on. In reverse order
 * of the formulas at ref_mtp in model.c:
 *     g = RMSNorm_shared_head(y),  y = decoder_layer(x)             dy, dx
 *     x = eh_proj [e ; t]                                           [de ; dt] = transpose(eh_proj) dx
 *     e = RMSNorm_e(Emb(tok)),  t = RMSNorm_h(taken)                dEmb[tok], dtaken */
static void depth_back(struct backward_step *p, const int32_t *tok, int T, int k)
{
    const struct reference_mtp_module *w = module_of(p, k);
    struct reference_back *b = &p->back;
    struct ref_depth_rows a = ref_depth_rows(&p->loss, T, k);
    int rows = a.rows, D = p->r->config.hidden_size, swapped = ref_convention(&b->run, CONCAT);
    size_t d = (size_t)D, n = (size_t)rows * d, first = (size_t)a.first * d, plane = p->S * d;
    double eps = p->r->config.rms_norm_eps, *dhanded = p->dtaken + (size_t)(k + 1) * plane,
           *dg = p->dg + (size_t)k * plane;
    double *before = ref_convention(&b->run, DRAFT_HIDDEN) ? p->dx : p->dout; /* the next depth takes y, or g */

    ref_depth_begin(&p->depths, &p->back.run, &a, tok, T);
    run_module(p, &a); /* again, because the depths share b->run */
    ref_back_clear(p->dx, n);
    ref_back_clear(p->dout, n);
    memcpy(p->dout + first, dg, (n - first) * sizeof *dg);
    for (size_t i = first; i < n; i++)
        before[i] += dhanded[i - first];
    ref_back_value(b, "shared_head_norm", -1, rows, D, p->dout);
    ref_back_norm_of(b, p->dx, &w->norm, p->dout, b->run.stream, rows, eps);
    ref_linear(&b->run, NULL, p->module_x, &w->eh_proj, b->run.concat, rows);
    ref_back_layer(b, p->dx, &w->layer, p->module_x, rows);
    ref_back_value(b, "eh_proj", -1, rows, D, p->dx);

    ref_back_clear(p->dconcat, 2 * n);
    ref_back_matrix(b, p->dconcat, &w->eh_proj, p->dx, b->run.concat, rows);
    ref_back_value(b, "concat", -1, rows, 2 * D, p->dconcat);
    ref_split(swapped ? p->dhnorm : p->denorm, D, swapped ? p->denorm : p->dhnorm, D, p->dconcat, (size_t)rows);
    ref_back_show(b, "hnorm", -1, rows, D, p->dhnorm);
    ref_back_show(b, "enorm", -1, rows, D, p->denorm);
    ref_back_clear(p->din, n);
    ref_back_norm_of(b, p->din, &w->hnorm, p->dhnorm, p->depths.in, rows, eps);
    ref_back_value(b, "taken", -1, rows, D, p->din);
    const double *din = p->din;
    for (int m = a.lowest; m <= k && !p->loss.detached; m++)
        for (size_t i = 0; i < (size_t)(T - m - 2) * d; i++)
            p->dtaken[(size_t)m * plane + i] += *din++;
    ref_back_clear(p->dx, n);
    for (int s = 0; s < rows; s++)
        ref_row(&w->embed, p->depths.tok[s], p->module_x + (size_t)s * d);
    ref_back_norm_of(b, p->dx, &w->enorm, p->denorm, p->module_x, rows, eps);
    ref_back_value(b, "embed", -1, rows, D, p->dx);
    ref_back_embed(reference_gradient(b->gradients, w->embed.tensor->name)->data, p->dx, p->depths.tok, rows, D);
}

/* -- parallel heads ------------------------------------------------------------------------------------------------ */

/* g = RMSNorm_model(y),  y = decoder_layer_k(z):   y [rows, D] becomes p->next. */
static void run_head(struct backward_step *p, int k, int rows)
{
    struct reference_run *run = &p->heads.run, *target = &p->back.run;
    run->layer = target->layer = p->r->config.num_hidden_layers + k;
    run->random = target->random;
    ref_rope_tables(run, 0, rows);
    memcpy(p->next, p->depths.taken, (size_t)rows * p->r->config.dims.d * sizeof *p->next);
    ref_show(run, "trunk", -1, rows, p->r->config.hidden_size, p->next);
    ref_decoder_layer(run, &p->options->heads->mtp[k].layer, p->next, rows);
    target->random = run->random;
    ref_norm(target, "shared_head_norm", p->g, &p->r->norm, p->next, rows, p->r->config.rms_norm_eps);
}

static void head_forward(struct backward_step *p, int T, int k)
{
    run_head(p, k, T - k - 2);
    learn(p, &p->r->head, p->g, T - k - 2, k);
}

static void head_back(struct backward_step *p, int T, int k)
{
    struct reference_back *target = &p->back, *b = &p->heads;
    int rows = T - k - 2, D = p->r->config.hidden_size;
    size_t n = (size_t)rows * (size_t)D;
    double *dg = p->dg + (size_t)k * p->S * (size_t)D;
    run_head(p, k, rows); /* again, because the heads share b->run */
    ref_back_value(target, "shared_head_norm", -1, rows, D, dg);
    ref_back_clear(p->dx, n);
    ref_back_norm_of(target, p->dx, &p->r->norm, dg, p->next, rows, p->r->config.rms_norm_eps);
    ref_back_layer(b, p->dx, &p->options->heads->mtp[k].layer, p->depths.taken, rows);
    ref_back_value(b, "trunk", -1, rows, D, p->dx);
    for (size_t i = 0; i < n && !p->loss.detached; i++)
        p->dtaken[i] += p->dx[i];
}

/* -- a sequence ---------------------------------------------------------------------------------------------------- */

/* The rows that parallel heads read */
static const double *trunk(const struct backward_step *p)
{
    return p->x + (size_t)p->options->heads->trunk_layers * p->S * p->r->config.dims.d;
}

static void keep_layer(void *context, int layer, const double *x, int S)
{
    struct backward_step *p = context;
    size_t d = p->r->config.dims.d;
    memcpy(p->x + (size_t)layer * p->S * d, x, (size_t)S * d * sizeof *x);
}

static void forward(struct backward_step *p, const struct reference_sequence *q)
{
    const struct config *c = &p->r->config;
    struct reference_run *run = &p->back.run;
    const int32_t *tok = q->tokens;
    int T = q->count, S = T - 1, L = c->num_hidden_layers;
    size_t plane = p->S * c->dims.d, bytes = (size_t)S * c->dims.d * sizeof(double);
    ref_labels(p->labels, q);
    run->layer = -1;
    run->watch = keep_layer;
    run->watch_context = p;
    ref_target(run, p->hidden, tok, S);
    run->watch = NULL;
    const double *last = p->x + (size_t)L * plane;
    memcpy(p->depths.taken, p->options->heads ? trunk(p) : ref_convention(run, MAIN_HIDDEN) ? last : p->hidden, bytes);

    double mean = 1.0 / (double)p->losses->rows;
    logits(p, &p->r->head, p->hidden, S);
    p->losses->main += mean * ref_cross_entropy(p->dz, p->z, p->labels + 1, S, c->vocab_size, p->loss.main * mean);
    ref_back_clear(p->dhidden, plane);
    if (p->back.gradients)
        logits_back(p, p->dhidden, &p->r->head, p->hidden, S);
    memcpy(p->target_z, p->z, (size_t)S * c->dims.V * sizeof *p->z);
    ref_back_clear(p->dtaken, plane);
    for (int k = 0; k < p->loss.depths && T - k - 2 > 0; k++)
        p->options->heads ? head_forward(p, T, k) : depth_forward(p, tok, T, k);
    ref_depth_end(&p->back.run);
}

static void backward(struct backward_step *p, const int32_t *tok, int T)
{
    const struct config *c = &p->r->config;
    struct reference_back *b = &p->back;
    int S = T - 1, L = c->num_hidden_layers;
    size_t plane = p->S * c->dims.d, n = (size_t)S * c->dims.d;
    int depths = p->loss.depths < T - 2 ? p->loss.depths : T - 2;
    for (int k = depths - 1; k >= 0; k--)
        p->options->heads ? head_back(p, T, k) : depth_back(p, tok, T, k);
    ref_depth_end(&p->back.run);

    /* depth 0 takes the last layer's output, or hidden; parallel heads take the output of the trunk */
    int after = p->options->heads ? p->options->heads->trunk_layers == L : ref_convention(&b->run, MAIN_HIDDEN);
    double *before = after ? p->dx : p->dhidden;
    ref_back_clear(p->dx, n);
    for (size_t i = 0; i < n && (after || !p->options->heads); i++)
        before[i] += p->dtaken[i];
    b->run.layer = -1;
    ref_back_value(b, "norm", -1, S, c->hidden_size, p->dhidden);
    ref_back_norm_of(b, p->dx, &p->r->norm, p->dhidden, p->x + (size_t)L * plane, S, c->rms_norm_eps);
    ref_rope_tables(&b->run, 0, S);
    for (b->run.layer = L - 1; b->run.layer >= 0; b->run.layer--) {
        ref_back_layer(b, p->dx, &p->r->layers[b->run.layer], p->x + (size_t)b->run.layer * plane, S);
        for (size_t i = 0; i < n && p->options->heads && b->run.layer == p->options->heads->trunk_layers; i++)
            p->dx[i] += p->dtaken[i];
    }
    ref_back_value(b, "embed", -1, S, c->hidden_size, p->dx);
    ref_back_embed(reference_gradient(b->gradients, p->r->embed.tensor->name)->data, p->dx, tok, S, c->hidden_size);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

static int check(const struct reference *r, const struct reference_loss_options *o, const struct loss *loss,
                 const struct reference_sequence *sequences, int count, vb_error *err)
{
    static const enum convention no_backward[] = {FIRST_EMBEDDING, FIRST_ROW, MODULE_HIDDEN, GATE, LATENT_CACHE};
    int rc = VB_OK, most = o->heads ? o->heads->config.num_nextn_predict_layers
                           : r->config.num_nextn_predict_layers ? VB_MAX_DRAFT
                           : 0;
    if (o->heads && (loss->chain != CHAIN_MODULES || loss->terms.features != 0))
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss wants %s, which parallel heads do not have",
                       loss->chain != CHAIN_MODULES ? "module 0 at every depth" : "features");
    if (loss->depths < 0 || loss->depths > most)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d MTP depths, wanted 0 to %d", loss->depths, most);
    if (loss->terms.top != 0 && (loss->terms.top_tokens < 1 || loss->terms.top_tokens > r->config.vocab_size))
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss of the top %d tokens, wanted 1 to %d", loss->terms.top_tokens,
                       r->config.vocab_size);
    if (loss->chain == CHAIN_ALIGNED && o->conventions.value[CHAIN_MODULE])
        return vb_fail(err, VB_BAD_ARGUMENT, "chain-module=step is not computed with aligned depths, wanted first");
    for (size_t i = 0; i < sizeof no_backward / sizeof *no_backward; i++) {
        const struct convention_row *row = convention_row(no_backward[i]);
        int value = o->conventions.value[no_backward[i]];
        if (value)
            return vb_fail(err, VB_BAD_ARGUMENT, "%s=%s has no backward pass, wanted %s", row->name, row->values[value],
                           row->values[0]);
    }
    for (int i = 0; i < count && !rc; i++)
        rc = ref_check_tokens(r, sequences[i].tokens, sequences[i].count, err);
    return rc;
}

static int allocate(struct backward_step *p, int S, int R, vb_error *err)
{
    const struct dims *c = &p->r->config.dims;
    size_t plane = (size_t)S * c->d, logits = (size_t)S * c->V, depths = (size_t)p->loss.depths, r = (size_t)R,
           pass = r * c->d;
    size_t ints = ((2 * r + (size_t)S + 1) * sizeof(int) + sizeof(double) - 1) / sizeof(double),
           mask = p->loss.chain == CHAIN_ALIGNED ? r * r / sizeof(double) + 1 : 0;
    struct ref_part part[] = {
        {&p->x, (c->layers + 1) * plane}, {&p->hidden, plane}, {&p->depths.taken, (depths + 1) * plane},
        {&p->dtaken, (depths + 1) * plane}, {&p->z, logits}, {&p->dz, logits}, {&p->target_z, logits},
        {&p->dhidden, plane}, {&p->dg, depths * plane}, {&p->depths.in, pass}, {&p->din, pass}, {&p->g, pass},
        {&p->next, pass}, {&p->module_x, pass}, {&p->dx, pass}, {&p->dout, pass}, {&p->denorm, pass},
        {&p->dhnorm, pass}, {&p->dconcat, 2 * pass},
    };
    size_t parts = sizeof part / sizeof *part, total = ref_carve(part, parts, NULL);
    double *next = p->memory = vb_alloc(&p->r->allocator, total + ints + mask, sizeof *next);
    if (!next)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the values of %d tokens in a training step", S);
    next += ref_carve(part, parts, next);
    p->depths.places = (int *)(void *)next;
    p->depths.tok = p->depths.places + R;
    p->labels = p->depths.tok + R;
    p->depths.mask = (char *)(next + ints);
    p->S = p->depths.S = (size_t)S;
    p->depths.width = c->d;
    p->depths.loss = &p->loss;
    return VB_OK;
}

int reference_backward(const struct reference *r, const struct reference_loss_options *options,
                       const struct reference_sequence *sequences, int count, struct reference_losses *losses,
                       struct reference_gradients *g, vb_error *err)
{
    struct backward_step p = {.r = r, .options = options, .loss = ref_loss_of(options), .losses = losses};
    struct reference_options run = {
                                    .x_as_is = 1, .perturb = options->perturb, .conventions = options->conventions,
                                    .hook_context = options->hook_context};
    *losses = (struct reference_losses){0};
    int rc = check(r, options, &p.loss, sequences, count, err);
    if (rc)
        return rc;
    int S = ref_count_rows(losses, p.loss.depths, sequences, count), R = ref_depth_most(&p.loss, S);
    if (!losses->rows)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "no sequence of the %d has a token to predict, wanted at least two tokens in one, and labels in "
                       "its loss mask",
                       count);
    if ((rc = ref_back_open(&p.back, r, &run, g, R, err)))
        return rc;
    if (options->heads && (rc = ref_back_open(&p.heads, options->heads, &run, g, R, err))) {
        ref_back_close(&p.back);
        return rc;
    }
    p.back.hook = p.heads.hook = options->gradient_hook;
    p.back.hook_context = p.heads.hook_context = options->hook_context;
    rc = allocate(&p, S, R, err);
    for (int i = 0; i < count && !rc; i++) {
        if (sequences[i].count < 2)
            continue;
        p.back.run.options.hook = p.heads.run.options.hook = options->hook;
        forward(&p, &sequences[i]);
        p.back.run.options.hook = p.heads.run.options.hook = NULL; /* not for values that the backward pass
                                                                      recomputes */
        losses->total = p.loss.main * losses->main;
        for (int k = 0; k < p.loss.depths; k++)
            losses->total += p.loss.depth[k] * losses->by_depth[k];
        if (!isfinite(losses->total))
            rc = vb_fail(err, VB_NOT_FINITE, "the loss of sequence %d is not finite", i);
        else if (g)
            backward(&p, sequences[i].tokens, sequences[i].count);
    }
    vb_free(&r->allocator, p.memory);
    if (options->heads)
        ref_back_close(&p.heads);
    ref_back_close(&p.back);
    return rc;
}
