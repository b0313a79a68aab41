/* reference/eagle.c -- EAGLE heads: attention with grouped queries, and the layer. reference/eagle.h has the formulas
 * and their sources, eagle_run.c the memory and the drafts. */
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
            p[s * rows + t] = ref_sees(run, s, t, rows)
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
    ref_linear(run, "q", x->q, &e->q_proj, r->input, S);
    ref_linear(run, "k", x->k, &e->k_proj, r->input, S);
    ref_linear(run, "v", x->v, &e->v_proj, r->input, S);
    ref_rotate(run, x->q, S, x->H, x->D, 0);
    ref_value(run, "q_rope", -1, S * x->H, x->D, x->q);
    ref_rotate(run, x->k, S, x->G, x->D, 0);
    ref_value(run, "k_rope", -1, S * x->G, x->D, x->k);
    for (int h = 0; h < x->H; h++) {
        ref_grouped_scores(run, run->scores, x, 1 / sqrt(x->D), h, S);
        ref_probabilities(run, run->scores, h, S);
        ref_grouped_mix(run->heads, run->scores, x, h, S);
    }
    ref_value(run, "heads", -1, S, x->H * x->D, run->heads);
    ref_linear(run, "attention", run->delta, &e->o_proj, run->heads, S);
}

/* -- the layer ----------------------------------------------------------------------------------------------------- */

/* y = W_fc x + bias */
static void fc(struct ref_eagle_run *r, double *y, const double *x, int S)
{
    struct reference_run *run = &r->back.run;
    const struct matrix *bias = &r->e->fc_bias;
    int d = run->c->hidden_size;
    ref_linear(run, NULL, y, &r->e->fc, x, S);
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
        ref_norm(run, NULL, r->features + i * width, &w[i % parts], rows + i * width, 1, run->c->rms_norm_eps);
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

/* r->x and r->input, from the embeddings in run->embed and from h */
static void begin(struct ref_eagle_run *r, const double *h, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    size_t bytes = (size_t)S * run->c->dims.d * sizeof *h;
    double eps = run->c->rms_norm_eps;
    if (e->version == 3) {
        ref_norm(run, "input_layernorm", run->normed, &e->input_norm, run->embed, S, eps);
        ref_norm(run, "hidden_norm", run->delta, &e->hidden_norm, h, S, eps);
        ref_concat(run, run->normed, run->delta, S);
        memcpy(r->x, e->norms.norm_before_residual ? run->delta : h, bytes);
        memcpy(r->input, run->concat, 2 * bytes);
        return;
    }
    ref_concat(run, run->embed, h, S);
    fc(r, r->x, run->concat, S);
    memcpy(r->input, r->x, bytes);
}

void ref_eagle_layer(struct ref_eagle_run *r, double *y, double *g, const int32_t *tok, const double *h, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_run *run = &r->back.run;
    double eps = run->c->rms_norm_eps;
    ref_rope_tables(run, 0, S);
    ref_embed(run, run->embed, &e->embed, tok, S);
    ref_show(run, "taken", -1, S, run->c->hidden_size, h);
    begin(r, h, S);
    attention(r, S);
    ref_add(run, r->middle, r->x, run->delta, S);
    ref_norm(run, "post_attention_layernorm", run->normed, &e->post_attention_norm, r->middle, S, eps);
    ref_mlp(run, run->delta, &e->mlp, -1, run->normed, S);
    ref_add(run, y, r->middle, run->delta, S);
    if (e->version == 3)
        ref_norm(run, "norm", g, &e->norm, y, S, eps);
    else if (g != y)
        memcpy(g, y, (size_t)S * run->c->dims.d * sizeof *g);
}

/* With EAGLE-1 the head is the target's, which may be quantized. */
void ref_eagle_logits(struct ref_eagle_run *r, double *z, const double *g, int S)
{
    struct reference_run *run = &r->back.run;
    if (r->e->version == 3) {
        ref_linear(run, NULL, z, &r->e->head, g, S);
    } else {
        r->target.random = run->random;
        ref_linear(&r->target, NULL, z, &r->e->head, g, S);
        run->random = r->target.random;
    }
    ref_value(run, "logits", -1, S, r->e->vocab, z);
}
