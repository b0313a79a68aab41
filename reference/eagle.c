/* reference/eagle.c -- EAGLE heads: attention with grouped queries, the layer, and drafts. reference/eagle.h has the
 * formulas and their sources. */
#include "reference/eagle_layers.h"

#include <math.h>
#include <string.h>

/* -- grouped-query attention --------------------------------------------------------------------------------------- */

void ref_grouped_scores(struct reference_run *run, double *p, const struct ref_grouped *x, double scale, int h, int S)
{
    size_t H = (size_t)x->H, G = (size_t)x->G, D = (size_t)x->D, rows = (size_t)S, head = (size_t)h,
           group = head / (H / G);
    for (size_t s = 0; s < rows; s++)
        for (size_t t = 0; t < rows; t++)
            p[s * rows + t] = ref_sees(run, s, t, S)
                                  ? ref_dot(x->q + (s * H + head) * D, x->k + (t * G + group) * D, x->D) * scale
                                  : -INFINITY;
}

void ref_grouped_mix(double *heads, const double *p, const struct ref_grouped *x, int h, int S)
{
    size_t H = (size_t)x->H, G = (size_t)x->G, D = (size_t)x->D, rows = (size_t)S, head = (size_t)h,
           group = head / (H / G);
    for (size_t s = 0; s < rows; s++)
        for (size_t i = 0; i < D; i++) {
            double sum = 0;
            for (size_t t = 0; t <= s; t++)
                sum += p[s * rows + t] * x->v[(t * G + group) * D + i];
            heads[(s * H + head) * D + i] = sum;
        }
}

/* delta = W_O heads, from r->input. Leaves q, k and v in r->rows, and run->heads. */
static void attention(struct ref_eagle_run *r, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    const struct ref_grouped *x = &r->rows;
    ref_linear(run, x->q, &e->q_proj, r->input, S);
    ref_value(run, "q", -1, S, x->H * x->D, x->q);
    ref_linear(run, x->k, &e->k_proj, r->input, S);
    ref_value(run, "k", -1, S, x->G * x->D, x->k);
    ref_linear(run, x->v, &e->v_proj, r->input, S);
    ref_value(run, "v", -1, S, x->G * x->D, x->v);
    ref_rotate(run, x->q, S, x->H, x->D, 0);
    ref_value(run, "q_rope", -1, S * x->H, x->D, x->q);
    ref_rotate(run, x->k, S, x->G, x->D, 0);
    ref_value(run, "k_rope", -1, S * x->G, x->D, x->k);
    for (int h = 0; h < x->H; h++) {
        ref_grouped_scores(run, run->scores, x, 1 / sqrt(x->D), h, S);
        ref_value(run, "scores", h, S, S, run->scores);
        ref_softmax(run->scores, S);
        ref_value(run, "probabilities", h, S, S, run->scores);
        ref_grouped_mix(run->heads, run->scores, x, h, S);
    }
    ref_value(run, "heads", -1, S, x->H * x->D, run->heads);
    ref_linear(run, run->delta, &e->o_proj, run->heads, S);
    ref_value(run, "attention", -1, S, run->c->hidden_size, run->delta);
}

/* -- the layer ----------------------------------------------------------------------------------------------------- */

/* y = W_fc x + bias */
static void fc(struct ref_eagle_run *r, double *y, const double *x, int S)
{
    struct reference_run *run = &r->back.run;
    const struct matrix *bias = &r->e->fc_bias;
    int d = run->c->hidden_size;
    ref_linear(run, y, &r->e->fc, x, S);
    if (bias->tensor)
        ref_row(bias, 0, run->row);
    for (int i = 0; bias->tensor && i < S * d; i++)
        y[i] += run->row[i % d];
    ref_value(run, "fc", -1, S, d, y);
}

/* r->features, from the target's rows */
static void features(struct ref_eagle_run *r, const double *rows, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    const struct matrix *w = e->feature_norms;
    size_t parts = e->norms.fc_norm ? 3 : 1, n = (size_t)S * parts, width = (size_t)w->cols;
    for (size_t i = 0; i < n; i++)
        ref_norm(run, r->features + i * width, &w[i % parts], rows + i * width, 1, run->c->rms_norm_eps);
    ref_value(run, e->norms.fc_norm ? "fc_norm" : "input_norm", -1, S, e->fc.cols, r->features);
}

void ref_eagle_first(struct ref_eagle_run *r, double *h, const double *rows, int S)
{
    int norms = r->e->feature_norms[0].tensor != NULL;
    if (norms)
        features(r, rows, S);
    if (r->e->version == 3)
        fc(r, h, norms ? r->features : rows, S);
    else
        memcpy(h, rows, (size_t)S * r->back.run.c->dims.d * sizeof *h);
}

/* concat[i] = [a[i] ; b[i]] */
static void join(double *concat, const double *a, const double *b, size_t d, int S)
{
    for (size_t i = 0; i < (size_t)S; i++) {
        memcpy(concat + 2 * i * d, a + i * d, d * sizeof *a);
        memcpy(concat + (2 * i + 1) * d, b + i * d, d * sizeof *b);
    }
}

/* out = a + b */
static void add(struct reference_run *run, double *out, const double *a, const double *b, int S)
{
    for (size_t i = 0; i < (size_t)S * run->c->dims.d; i++)
        out[i] = a[i] + b[i];
    ref_value(run, "residual", -1, S, run->c->hidden_size, out);
}

/* r->x and r->input, from the embeddings in run->embed and from h */
static void begin(struct ref_eagle_run *r, const double *h, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    int d = run->c->hidden_size;
    size_t bytes = (size_t)S * run->c->dims.d * sizeof *h;
    double eps = run->c->rms_norm_eps;
    if (e->version == 3) {
        ref_norm(run, run->normed, &e->input_norm, run->embed, S, eps);
        ref_value(run, "input_layernorm", -1, S, d, run->normed);
        ref_norm(run, run->delta, &e->hidden_norm, h, S, eps);
        ref_value(run, "hidden_norm", -1, S, d, run->delta);
        join(run->concat, run->normed, run->delta, (size_t)d, S);
        ref_show(run, "concat", -1, S, 2 * d, run->concat);
        memcpy(r->x, e->norms.norm_before_residual ? run->delta : h, bytes);
        memcpy(r->input, run->concat, 2 * bytes);
        return;
    }
    join(run->concat, run->embed, h, (size_t)d, S);
    ref_show(run, "concat", -1, S, 2 * d, run->concat);
    fc(r, r->x, run->concat, S);
    memcpy(r->input, r->x, bytes);
}

void ref_eagle_layer(struct ref_eagle_run *r, double *y, double *g, const int32_t *tok, const double *h, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    int d = run->c->hidden_size;
    double eps = run->c->rms_norm_eps;
    ref_rope_tables(run, 0, S);
    ref_embed(run, run->embed, &e->embed, tok, S);
    ref_show(run, "taken", -1, S, d, h);
    begin(r, h, S);
    attention(r, S);
    add(run, r->middle, r->x, run->delta, S);
    ref_norm(run, run->normed, &e->post_attention_norm, r->middle, S, eps);
    ref_value(run, "post_attention_layernorm", -1, S, d, run->normed);
    ref_mlp(run, run->delta, &e->mlp, -1, run->normed, S);
    add(run, y, r->middle, run->delta, S);
    if (e->version == 3) {
        ref_norm(run, g, &e->norm, y, S, eps);
        ref_value(run, "norm", -1, S, d, g);
    } else if (g != y) {
        memcpy(g, y, (size_t)S * run->c->dims.d * sizeof *g);
    }
}

/* With EAGLE-1 the head is the target's, which may be quantized. */
void ref_eagle_logits(struct ref_eagle_run *r, double *z, const double *g, int S)
{
    struct reference_run *run = &r->back.run;
    if (r->e->version == 3) {
        ref_linear(run, z, &r->e->head, g, S);
    } else {
        r->target.random = run->random;
        ref_linear(&r->target, z, &r->e->head, g, S);
        run->random = r->target.random;
    }
    ref_value(run, "logits", -1, S, r->e->vocab, z);
}

/* -- a run --------------------------------------------------------------------------------------------------------- */

struct eagle_part {
    double **at;
    size_t count;
};

static size_t carve(const struct eagle_part *part, size_t parts, double *next)
{
    size_t total = 0;
    for (size_t i = 0; i < parts; total += part[i++].count)
        if (next)
            *part[i].at = next + total;
    return total;
}

int ref_eagle_run_open(struct ref_eagle_run *r, const struct reference_eagle *e,
                       const struct reference_options *options, struct reference_gradients *gradients, int S,
                       vb_error *err)
{
    const struct config *c = &e->own->config;
    size_t s = (size_t)S, d = c->dims.d, H = c->dims.H, G = (size_t)e->groups, D = (size_t)e->dim, W = c->dims.dense,
           largest = 0, widest = 0;
    size_t in = e->version == 3 ? 2 * d : d, three = e->feature_norms[0].tensor ? (size_t)e->fc.cols : 0;
    const struct matrix *each[] = {&e->fc, &e->o_proj, &e->mlp.down_proj, &e->q_proj};
    *r = (struct ref_eagle_run){.e = e};
    struct reference_back *b = &r->back;
    struct reference_run *run = &b->run;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        widest = (size_t)each[i]->cols > widest ? (size_t)each[i]->cols : widest;
    for (size_t i = 0; gradients && i < gradients->count; i++) {
        size_t numbers = (size_t)gradients->of[i].rows * (size_t)gradients->of[i].cols;
        largest = numbers > largest ? numbers : largest;
    }
    struct eagle_part values[] = {
        {&run->row, widest}, {&run->cosine, s * D / 2},
        {&run->sine, s * D / 2}, {&run->query_scale, s},
        {&run->normed, s * d}, {&run->delta, s * d},
        {&run->embed, s * d}, {&run->concat, 2 * s * d},
        {&run->scores, s * s}, {&run->heads, s * H * D},
        {&run->gate, s * W}, {&run->up, s * W},
        {&r->features, three * s}, {&r->x, s * d},
        {&r->middle, s * d}, {&r->input, s * in},
        {&r->rows.q, s * H * D}, {&r->rows.k, s * G * D},
        {&r->rows.v, s * G * D},
    };
    struct eagle_part backward[] = {
        {&b->w, largest}, {&b->normed, s * d}, {&b->dnormed, s * d}, {&b->product, s * W},
        {&b->dgate, s * W}, {&b->dup, s * W}, {&b->dproduct, s * W},
        {&b->dheads, s * H * D}, {&b->dp, s * s}, {&b->dscores_of_head, s * s}, {&r->drows.q, s * H * D},
        {&r->drows.k, s * G * D},
        {&r->drows.v, s * G * D}, {&r->dx, s * d}, {&r->dinput, s * in}, {&r->dconcat, 2 * s * d},
        {&r->dembed, s * d}, {&r->dfeatures, three},
    };
    size_t n = sizeof values / sizeof *values, m = gradients ? sizeof backward / sizeof *backward : 0,
           total = carve(values, n, NULL);
    int rc = ref_run_open(&r->target, e->target, options, S, err);
    if (rc)
        return rc;
    *run = (struct reference_run){.r = e->own, .c = c, .options = r->target.options, .random = r->target.random,
                                  .stretched = c->rope_yarn, .last_row = -1,
                                  .layer = e->target->config.num_hidden_layers};
    run->options.precision = PRECISION_F32;
    run->options.conventions = (struct conventions){0}; /* they are about the target */
    b->gradients = gradients;
    r->rows.H = r->drows.H = (int)H;
    r->rows.G = r->drows.G = (int)G;
    r->rows.D = r->drows.D = (int)D;
    r->memory = vb_alloc(&e->own->allocator, total + carve(backward, m, NULL), sizeof(double));
    if (!r->memory) {
        ref_run_close(&r->target);
        return vb_fail(err, VB_NO_MEMORY, "no memory for the intermediate values of %d tokens", S);
    }
    carve(values, n, r->memory);
    carve(backward, m, (double *)r->memory + total);
    return VB_OK;
}

void ref_eagle_run_close(struct ref_eagle_run *r)
{
    vb_free(&r->e->own->allocator, r->memory);
    ref_run_close(&r->target);
}

/* -- drafts -------------------------------------------------------------------------------------------------------- */

/* Row N-1+j, which has been computed last, proposes draft j, and hands on to the next row, whose hidden state h is. */
static int propose(const struct reference_eagle *e, int32_t *tok, double *h, const double *handed, const double *z,
                   int N, int j, vb_error *err)
{
    size_t d = e->own->config.dims.d, row = (size_t)(N + j);
    int id = ref_argmax(z, e->vocab);
    if (id < 0)
        return vb_fail(err, VB_NOT_FINITE, "the logits of draft %d have a value that is not finite", j + 1);
    tok[row] = reference_eagle_token(e, id);
    memcpy(h + row * d, handed + (row - 1) * d, d * sizeof *h);
    return VB_OK;
}

int reference_eagle_draft(const struct reference_eagle *e, const struct reference_options *options, const double *rows,
                          const int32_t *tokens, int N, int K, int32_t *drafts, double *hidden, double *logits,
                          vb_error *err)
{
    struct ref_eagle_run r;
    const vb_allocator *a = &e->own->allocator;
    int rc = ref_check_tokens(e->target, tokens, N, err), S = N + K;
    if (rc || (rc = ref_eagle_run_open(&r, e, options, NULL, S, err)))
        return rc;
    size_t d = e->own->config.dims.d, V = (size_t)e->vocab, all = (size_t)S;
    double *h = vb_alloc(a, all * d, sizeof *h), *y = vb_alloc(a, all * d, sizeof *y),
           *g = vb_alloc(a, all * d, sizeof *g);
    double *z = vb_alloc(a, all * V, sizeof *z);
    int32_t *tok = vb_alloc(a, all, sizeof *tok);
    if (h && y && g && z && tok) {
        memcpy(tok, tokens, (size_t)N * sizeof *tok);
        ref_eagle_first(&r, h, rows, N);
        for (int j = 0; j <= K && !rc; j++) { /* computes all rows again */
            size_t first = j ? (size_t)(N + j - 1) : 0, last = (size_t)(N + j - 1);
            ref_eagle_layer(&r, y, g, tok, h, N + j);
            ref_eagle_logits(&r, z + first * V, g + first * d, j ? 1 : N);
            rc = j < K ? propose(e, tok, h, ref_eagle_handed(e, y, g), z + last * V, N, j, err) : VB_OK;
        }
        if (!rc && drafts)
            memcpy(drafts, tok + N, (size_t)K * sizeof *drafts);
        if (!rc && hidden)
            memcpy(hidden, ref_eagle_handed(e, y, g), all * d * sizeof *hidden);
        if (!rc && logits)
            memcpy(logits, z, all * V * sizeof *logits);
    } else {
        rc = vb_fail(err, VB_NO_MEMORY, "no memory for drafts after %d tokens", N);
    }
    vb_free(a, h);
    vb_free(a, y);
    vb_free(a, g);
    vb_free(a, z);
    vb_free(a, tok);
    ref_eagle_run_close(&r);
    return rc;
}
