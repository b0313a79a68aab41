/* reference/backward_eagle_step.c -- the losses of a training step of an EAGLE head, and their gradients.
 * docs/TRAINING.md states the losses and their sources. */
#include "reference/eagle_layers.h"

#include <math.h>
#include <string.h>

/* One call of reference_eagle_backward. S is the number of rows of the longest sequence, R the largest number of rows
 * of a pass, T the width of the target's rows, U the target's vocabulary, and V that of the head. */
struct eagle_step {
    const struct reference_eagle *e;
    struct loss loss;
    struct reference_losses *losses;
    struct ref_eagle_run run;
    struct ref_depths depths;
    void *memory;                 /* holds all arrays below, and those of `depths` */
    double *hidden, *rows;        /* [S,T], [S,3T]: of the target, after model.norm; and the rows that an EAGLE-3
                                     reads */
    double *all_z, *target_z;     /* [S,U], [S,V]: the target's logits; and those of the head's vocabulary */
    double *dtaken, *dg;          /* [depths+1,S,d], [depths,S,d]: gradients of what depth k takes; of g of depth k,
                                     from its own logits */
    double *y, *g, *dy, *din, *dg_all; /* [R,d] */
    double *z, *dz;               /* [S,V] */
    double *drows;                /* [S,3T]: nobody uses it */
    int32_t *labels, *best;       /* [S+1], [S]: tokens to predict, or -1; the head's id of the target's best token, or
                                     -1 */
};

/* -- the target ---------------------------------------------------------------------------------------------------- */

/* Copies the residual stream before layer l to its place in `rows` if it is one of the three. */
static void keep_row(void *context, int l, const double *x, int S)
{
    struct eagle_step *p = context;
    size_t T = p->run.target.c->dims.d;
    for (size_t i = 0; i < 3 && p->e->version == 3; i++)
        for (size_t s = 0; p->e->three[i] == l && s < (size_t)S; s++)
            memcpy(p->rows + (3 * s + i) * T, x + s * T, T * sizeof *x);
}

/* The target's logits, narrowed to the head's vocabulary */
static void narrow(struct eagle_step *p, int S)
{
    size_t U = p->run.target.c->dims.V, V = (size_t)p->e->vocab;
    for (size_t s = 0; s < (size_t)S; s++) {
        int best = ref_argmax(p->all_z + s * U, (int)U);
        p->best[s] = best < 0 ? 0 : p->e->ids ? p->e->ids[best] : best; /* if a logit is NaN: any id, so that the row
                                                                           has a loss */
        for (size_t id = 0; id < V; id++)
            p->target_z[s * V + id] = p->all_z[s * U + (size_t)reference_eagle_token(p->e, (int)id)];
    }
}

static void target_forward(struct eagle_step *p, const int32_t *tok, int S)
{
    struct reference_run *run = &p->run.target;
    run->layer = -1;
    run->watch = keep_row;
    run->watch_context = p;
    ref_target(run, p->hidden, tok, S);
    ref_head(run, p->all_z, &run->r->head, p->hidden, S);
    narrow(p, S);
}

/* -- losses -------------------------------------------------------------------------------------------------------- */

/* The terms of row s, which predicts labels[s] and learns from row s of target_z and best; and its gradient */
static void learn_row(struct eagle_step *p, struct reference_terms *sums, double *dz, size_t s, size_t from,
                      int32_t label, double weight)
{
    const struct reference_eagle *e = p->e;
    struct reference_terms one = {0};
    struct loss_terms terms = p->loss.terms;
    int32_t id = e->ids ? e->ids[label] : label;
    int learns = p->best[from] >= 0;
    if (id < 0)
        terms.data = 0;
    if (!learns)
        terms.soft = terms.top = 0;
    int32_t any = id < 0 ? 0 : id; /* its data term has no weight */
    ref_soft_cross_entropy(&one, dz, p->z + s * (size_t)e->vocab, p->target_z + from * (size_t)e->vocab, &any, 1,
                           e->vocab, &terms, weight);
    sums->data += id < 0 ? 0 : one.data;
    sums->soft += learns ? one.soft : 0;
    sums->top += learns ? one.top : 0;
    sums->entropy += learns ? one.entropy : 0;
}

/* The terms of the rows of depth k, which predict tok[i+k+2], and their gradients. Row i learns from row i+k+1 of the
 * target. */
static void learn(struct eagle_step *p, const double *g, int rows, int k)
{
    const struct loss_terms *terms = &p->loss.terms;
    size_t d = p->depths.width, plane = p->depths.S * d, V = (size_t)p->e->vocab;
    double mean = p->losses->depth_rows[k] ? 1.0 / (double)p->losses->depth_rows[k] : 0,
           weight = p->loss.depth[k] * mean;
    double *dg = p->dg + (size_t)k * plane, *handed = p->depths.taken + (size_t)(k + 1) * plane,
           *dhanded = p->dtaken + (size_t)(k + 1) * plane;
    struct reference_terms sums = {0}, *means = &p->losses->terms[k];
    int gradients = p->run.back.gradients != NULL;
    const int32_t *labels = p->labels + k + 2;

    ref_eagle_logits(&p->run, p->z, g, rows);
    ref_back_clear(p->dz, (size_t)rows * V);
    for (size_t s = 0; s < (size_t)rows; s++)
        if (labels[s] >= 0)
            learn_row(p, &sums, gradients ? p->dz + s * V : NULL, s, s + (size_t)k + 1, labels[s], weight);
    ref_back_clear(dg, plane);
    if (gradients)
        ref_back_eagle_logits(&p->run, dg, p->dz, g, rows);
    ref_back_clear(dhanded, plane);
    if (terms->features != 0) /* EAGLE-1: the target's hidden states are what depth 0 takes */
        sums.features = ref_smooth_l1(gradients ? dhanded : NULL, handed, p->depths.taken + (size_t)(k + 1) * d, labels,
                                      rows, (int)d, weight * terms->features);

    means->data += mean * sums.data;
    means->soft += mean * sums.soft;
    means->top += mean * sums.top;
    means->features += mean * sums.features;
    means->entropy += mean * sums.entropy;
    p->losses->by_depth[k] = terms->data * means->data + terms->soft * means->soft + terms->top * means->top +
                             terms->features * means->features;
}

/* -- depths -------------------------------------------------------------------------------------------------------- */

static struct ref_depth_rows run_depth(struct eagle_step *p, const int32_t *tok, int T, int k)
{
    struct ref_depth_rows a = ref_depth_rows(&p->loss, T, k);
    p->run.back.run.layer = p->run.target.c->num_hidden_layers + k;
    ref_depth_begin(&p->depths, &p->run.back.run, &a, tok, T);
    ref_eagle_layer(&p->run, p->y, p->g, p->depths.tok, p->depths.in, a.rows);
    return a;
}

static void depth_forward(struct eagle_step *p, const int32_t *tok, int T, int k)
{
    struct ref_depth_rows a = run_depth(p, tok, T, k);
    size_t d = p->depths.width, rows = (size_t)(a.rows - a.first);
    const double *handed = ref_eagle_handed(p->e, p->y, p->g) + (size_t)a.first * d;
    memcpy(p->depths.taken + (size_t)(k + 1) * p->depths.S * d, handed, rows * d * sizeof *handed);
    learn(p, p->g + (size_t)a.first * d, (int)rows, k);
}

/* Adds the gradient of what the depths up to k take to p->dtaken, from those of what depth k hands on and of its
 * logits. */
static void depth_back(struct eagle_step *p, const int32_t *tok, int T, int k)
{
    struct ref_depth_rows a = run_depth(p, tok, T, k); /* again, because the depths share the run */
    size_t d = p->depths.width, plane = p->depths.S * d, n = (size_t)a.rows * d, first = (size_t)a.first * d;
    const double *din = p->din, *dhanded = p->dtaken + (size_t)(k + 1) * plane;
    double *dto = (p->e->norms.norm_output ? p->dg_all : p->dy) + first;
    ref_back_clear(p->dy, n);
    ref_back_clear(p->dg_all, n);
    ref_back_clear(p->din, n);
    memcpy(p->dg_all + first, p->dg + (size_t)k * plane, (n - first) * sizeof *p->dg);
    for (size_t i = 0; i < n - first; i++)
        dto[i] += dhanded[i];
    ref_back_eagle_layer(&p->run, p->din, p->dy, p->dg_all, p->depths.tok, p->depths.in, p->y, a.rows);
    for (int m = a.lowest; m <= k; m++)
        for (size_t i = 0; i < (size_t)(T - m - 2) * d; i++, din++)
            p->dtaken[(size_t)m * plane + i] += m && p->loss.detached ? 0 : *din;
}

/* -- a sequence ---------------------------------------------------------------------------------------------------- */

static void forward(struct eagle_step *p, const struct reference_sequence *q)
{
    int T = q->count, S = T - 1;
    ref_labels(p->labels, q);
    target_forward(p, q->tokens, S);
    p->run.back.run.random = p->run.target.random;
    p->run.back.run.layer = p->run.target.c->num_hidden_layers;
    ref_eagle_first(&p->run, p->depths.taken, p->e->version == 3 ? p->rows : p->hidden, S);
    ref_back_clear(p->dtaken, p->depths.S * p->depths.width);
    for (int k = 0; k < p->loss.depths && T - k - 2 > 0; k++)
        depth_forward(p, q->tokens, T, k);
    ref_depth_end(&p->run.back.run);
    p->run.target.random = p->run.back.run.random;
}

static void backward(struct eagle_step *p, const struct reference_sequence *q)
{
    int T = q->count;
    for (int k = (p->loss.depths < T - 2 ? p->loss.depths : T - 2) - 1; k >= 0; k--)
        depth_back(p, q->tokens, T, k);
    ref_depth_end(&p->run.back.run);
    ref_back_eagle_first(&p->run, p->dtaken, p->rows, p->drows, T - 1);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

static int check(const struct reference_eagle *e, const struct loss *loss, const struct reference_sequence *sequences,
                 int count, vb_error *err)
{
    int rc = VB_OK;
    if (loss->depths < 1 || loss->depths > VB_MAX_DRAFT)
        return vb_fail(err, VB_BAD_ARGUMENT, "%d depths of an EAGLE head, wanted 1 to %d", loss->depths, VB_MAX_DRAFT);
    if (loss->terms.top != 0 && (loss->terms.top_tokens < 1 || loss->terms.top_tokens > e->vocab))
        return vb_fail(err, VB_BAD_ARGUMENT, "a loss of the top %d tokens, wanted 1 to %d", loss->terms.top_tokens,
                       e->vocab);
    if (loss->terms.features != 0 && e->version == 3)
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "a loss of features, which the target has none of for the hidden states of an EAGLE-3 head");
    for (int i = 0; i < count && !rc; i++)
        rc = ref_check_tokens(e->target, sequences[i].tokens, sequences[i].count, err);
    return rc;
}

static int allocate(struct eagle_step *p, int S, int R, vb_error *err)
{
    const struct dims *target = &p->e->target->config.dims;
    size_t d = p->depths.width, s = (size_t)S, plane = s * d, r = (size_t)R, pass = r * d,
           depths = (size_t)p->loss.depths, V = (size_t)p->e->vocab;
    size_t three = p->e->version == 3 ? 3 * target->d : 0;
    size_t ints = (2 * r + 2 * s + 1) * sizeof(int) / sizeof(double) + 1, mask = r * r / sizeof(double) + 1;
    struct ref_part part[] = {
        {&p->hidden, s * target->d}, {&p->rows, s * three}, {&p->drows, s * three}, {&p->all_z, s * target->V},
        {&p->target_z, s * V}, {&p->depths.taken, (depths + 1) * plane}, {&p->dtaken, (depths + 1) * plane},
        {&p->dg, depths * plane}, {&p->depths.in, pass}, {&p->y, pass}, {&p->g, pass}, {&p->dy, pass},
        {&p->din, pass}, {&p->dg_all, pass}, {&p->z, s * V}, {&p->dz, s * V},
    };
    size_t parts = sizeof part / sizeof *part, total = ref_carve(part, parts, NULL);
    double *next = p->memory = vb_alloc(&p->e->own->allocator, total + ints + mask, sizeof *next);
    if (!next)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the values of %d tokens in a training step", S);
    next += ref_carve(part, parts, next);
    p->depths.places = (int *)(void *)next;
    p->depths.tok = p->depths.places + r;
    p->labels = p->depths.tok + r;
    p->best = p->labels + s + 1;
    p->depths.mask = (char *)(next + ints);
    return VB_OK;
}

int reference_eagle_backward(const struct reference_eagle *e, const struct reference_loss_options *options,
                             const struct reference_sequence *sequences, int count, struct reference_losses *losses,
                             struct reference_gradients *g, vb_error *err)
{
    struct eagle_step p = {.e = e, .loss = ref_loss_of(options), .losses = losses};
    struct reference_options run = {
                                    .x_as_is = 1, .perturb = options->perturb, .conventions = options->conventions,
                                    .hook_context = options->hook_context};
    *losses = (struct reference_losses){0};
    int rc = check(e, &p.loss, sequences, count, err);
    if (rc)
        return rc;
    int S = ref_count_rows(losses, p.loss.depths, sequences, count), R = ref_depth_most(&p.loss, S);
    losses->rows = 0; /* the main loss is not computed */
    if (!losses->depth_rows[0])
        return vb_fail(err, VB_BAD_ARGUMENT,
                       "no sequence of the %d has a token that a draft predicts, wanted at least three tokens in one, "
                       "and labels in its loss mask",
                       count);
    p.depths = (struct ref_depths){.loss = &p.loss, .S = (size_t)S, .width = e->own->config.dims.d};
    if ((rc = ref_eagle_run_open(&p.run, e, &run, g, R, err)))
        return rc;
    p.run.back.hook = options->gradient_hook;
    p.run.back.hook_context = options->hook_context;
    rc = allocate(&p, S, R, err);
    for (int i = 0; i < count && !rc; i++) {
        if (sequences[i].count < 3)
            continue;
        p.run.target.options.hook = p.run.back.run.options.hook = options->hook;
        forward(&p, &sequences[i]);
        p.run.back.run.options.hook = NULL; /* not for values that the backward pass recomputes */
        losses->total = 0;
        for (int k = 0; k < p.loss.depths; k++)
            losses->total += p.loss.depth[k] * losses->by_depth[k];
        if (!isfinite(losses->total))
            rc = vb_fail(err, VB_NOT_FINITE, "the loss of sequence %d is not finite", i);
        else if (g)
            backward(&p, &sequences[i]);
    }
    vb_free(&e->own->allocator, p.memory);
    ref_eagle_run_close(&p.run);
    return rc;
}
