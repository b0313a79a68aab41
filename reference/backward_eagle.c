/* reference/backward_eagle.c -- the backward pass of an EAGLE head's parts. reference/eagle_layers.h has the formulas
 * of attention. */
#include "reference/eagle_layers.h"

#include <math.h>

void ref_back_grouped_mix(double *dp, const struct ref_grouped *d, const double *dheads, const struct ref_grouped *x,
                          const double *p, int h, int S)
{
    size_t H = (size_t)x->H, G = (size_t)x->G, D = (size_t)x->D, rows = (size_t)S, head = (size_t)h,
           group = head / (H / G);
    for (size_t s = 0; s < rows; s++)
        for (size_t t = 0; t <= s; t++) {
            const double *dhead = dheads + (s * H + head) * D;
            size_t at = (t * G + group) * D;
            dp[s * rows + t] += ref_dot(dhead, x->v + at, x->D);
            for (size_t i = 0; i < D; i++)
                d->v[at + i] += p[s * rows + t] * dhead[i];
        }
}

void ref_back_grouped_scores(const struct ref_grouped *d, const double *dscores, const struct ref_grouped *x,
                             double scale, int h, int S)
{
    size_t H = (size_t)x->H, G = (size_t)x->G, D = (size_t)x->D, rows = (size_t)S, head = (size_t)h,
           group = head / (H / G);
    for (size_t s = 0; s < rows; s++)
        for (size_t t = 0; t <= s; t++) {
            size_t q = (s * H + head) * D, k = (t * G + group) * D;
            double dproduct = scale * dscores[s * rows + t];
            for (size_t i = 0; i < D; i++) {
                d->q[q + i] += dproduct * x->k[k + i];
                d->k[k + i] += dproduct * x->q[q + i];
            }
        }
}

/* dinput from dout = the gradient of attention's output, in reverse order of the formulas:
 *     out = W_O heads                                                          dheads
 *     heads of q, k and v                                                      dq, dk, dv
 *     q = RoPE(W_Q input),   k = RoPE(W_K input),   v = W_V input */
static void attention_back(struct ref_eagle_run *r, const double *dout, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_back *b = &r->back;
    struct reference_run *run = &b->run;
    const struct ref_grouped *x = &r->rows, *d = &r->drows;
    size_t rows = (size_t)S, HD = (size_t)(x->H * x->D), GD = (size_t)(x->G * x->D);
    double scale = 1 / sqrt(x->D);
    ref_back_show(b, "attention", -1, S, run->c->hidden_size, dout);
    ref_back_clear(b->dheads, rows * HD);
    ref_back_matrix(b, b->dheads, &e->o_proj, dout, run->heads, S);
    ref_back_value(b, "heads", -1, S, (int)HD, b->dheads);
    ref_back_clear(d->q, rows * HD);
    ref_back_clear(d->k, rows * GD);
    ref_back_clear(d->v, rows * GD);
    for (int h = 0; h < x->H; h++) {
        ref_grouped_scores(run, run->scores, x, scale, h, S);
        ref_softmax(run->scores, S);
        ref_back_clear(b->dp, rows * rows);
        ref_back_clear(b->dscores_of_head, rows * rows);
        ref_back_grouped_mix(b->dp, d, b->dheads, x, run->scores, h, S);
        ref_back_value(b, "probabilities", h, S, S, b->dp);
        for (size_t s = 0; s < rows; s++)
            ref_back_softmax(b->dscores_of_head + s * rows, b->dp + s * rows, run->scores + s * rows, (int)s + 1);
        ref_back_value(b, "scores", h, S, S, b->dscores_of_head);
        ref_back_grouped_scores(d, b->dscores_of_head, x, scale, h, S);
    }
    ref_back_value(b, "k_rope", -1, S * x->G, x->D, d->k);
    ref_back_value(b, "q_rope", -1, S * x->H, x->D, d->q);
    ref_back_rope(d->k, run->cosine, run->sine, S, x->G, x->D, 0);
    ref_back_rope(d->q, run->cosine, run->sine, S, x->H, x->D, 0);
    ref_back_value(b, "v", -1, S, (int)GD, d->v);
    ref_back_matrix(b, r->dinput, &e->v_proj, d->v, r->input, S);
    ref_back_value(b, "k", -1, S, (int)GD, d->k);
    ref_back_matrix(b, r->dinput, &e->k_proj, d->k, r->input, S);
    ref_back_value(b, "q", -1, S, (int)HD, d->q);
    ref_back_matrix(b, r->dinput, &e->q_proj, d->q, r->input, S);
}

/* fc of rows x: dx, and the gradients of W_fc and its bias */
static void fc_back(struct ref_eagle_run *r, double *dx, double *dy, const double *x, int S)
{
    struct reference_back *b = &r->back;
    const struct matrix *bias = &r->e->fc_bias;
    int d = b->run.c->hidden_size;
    ref_back_value(b, "fc", -1, S, d, dy);
    ref_back_matrix(b, dx, &r->e->fc, dy, x, S);
    if (!bias->tensor)
        return;
    double *dbias = reference_gradient(b->gradients, bias->tensor->name)->data;
    for (int i = 0; i < S * d; i++)
        dbias[i % d] += dy[i];
}

void ref_back_eagle_first(struct ref_eagle_run *r, double *dh, const double *rows, double *scratch, int S)
{
    const struct matrix *w = r->e->feature_norms;
    struct reference_back *b = &r->back;
    int cols = r->e->fc.cols, norms = w->tensor != NULL;
    size_t parts = r->e->norms.fc_norm ? 3 : 1, n = (size_t)S * parts, width = (size_t)w->cols;
    if (r->e->version != 3)
        return;
    ref_back_clear(scratch, (size_t)S * (size_t)cols);
    fc_back(r, scratch, dh, norms ? r->features : rows, S);
    if (!norms)
        return; /* the rows are constant */
    ref_back_value(b, parts == 3 ? "fc_norm" : "input_norm", -1, S, cols, scratch);
    for (size_t i = 0; i < n; i++)
        ref_back_norm_of(b, r->dfeatures, &w[i % parts], scratch + i * width, rows + i * width, 1,
                         b->run.c->rms_norm_eps);
}

static void embed_back(struct ref_eagle_run *r, const int32_t *tok, int S)
{
    struct reference_back *b = &r->back;
    ref_back_show(b, "embed", -1, S, b->run.c->hidden_size, r->dembed);
    if (r->e->embeds)
        ref_back_embed(reference_gradient(b->gradients, r->e->embed.tensor->name)->data, r->dembed, tok, S,
                       b->run.c->hidden_size);
}

/* With m = x + attention(input), n = RMSNorm(m), y = m + mlp(n), and g = RMSNorm(y) or y:
 *     EAGLE-1   x = W_fc [e ; h] + bias,   input = x
 *     EAGLE-3   x = h or RMSNorm_h(h),     input = [RMSNorm_e(e) ; RMSNorm_h(h)] */
void ref_back_eagle_layer(struct ref_eagle_run *r, double *dh, double *dy, double *dg, const int32_t *tok,
                          const double *h, const double *y, int S)
{
    const struct reference_eagle *e = r->e;
    struct reference_back *b = &r->back;
    struct reference_run *run = &b->run;
    int d = run->c->hidden_size, in = e->q_proj.cols;
    size_t n = (size_t)S * run->c->dims.d;
    double eps = run->c->rms_norm_eps, *de = r->dembed;
    if (e->version == 3) {
        ref_back_value(b, "norm", -1, S, d, dg);
        ref_back_norm_of(b, dy, &e->norm, dg, y, S, eps);
    } else {
        for (size_t i = 0; i < n; i++)
            dy[i] += dg[i];
    }
    ref_back_value(b, "residual", -1, S, d, dy);
    ref_norm(run, NULL, b->normed, &e->post_attention_norm, r->middle, S, eps);
    ref_back_clear(b->dnormed, n);
    ref_back_mlp(b, b->dnormed, &e->mlp, -1, dy, b->normed, S);
    ref_back_value(b, "post_attention_layernorm", -1, S, d, b->dnormed);
    ref_back_norm_of(b, dy, &e->post_attention_norm, b->dnormed, r->middle, S, eps); /* dy becomes the gradient of m */
    ref_back_value(b, "residual", -1, S, d, dy);

    ref_back_clear(r->dinput, (size_t)S * (size_t)in);
    attention_back(r, dy, S);
    if (e->version == 3) {
        ref_back_show(b, "concat", -1, S, 2 * d, r->dinput);
        ref_split(r->dx, d, b->dnormed, d, r->dinput, (size_t)S);
        double *dx = e->norms.norm_before_residual ? b->dnormed : dh;
        for (size_t i = 0; i < n; i++)
            dx[i] += dy[i];
        ref_back_value(b, "hidden_norm", -1, S, d, b->dnormed);
        ref_back_norm_of(b, dh, &e->hidden_norm, b->dnormed, h, S, eps);
        ref_back_value(b, "input_layernorm", -1, S, d, r->dx);
        ref_back_clear(de, n);
        ref_back_norm_of(b, de, &e->input_norm, r->dx, run->embed, S, eps);
    } else {
        for (size_t i = 0; i < n; i++)
            r->dx[i] = dy[i] + r->dinput[i];
        ref_back_clear(r->dconcat, 2 * n);
        fc_back(r, r->dconcat, r->dx, run->concat, S);
        ref_back_value(b, "concat", -1, S, 2 * d, r->dconcat);
        ref_split(de, d, b->dnormed, d, r->dconcat, (size_t)S);
        for (size_t i = 0; i < n; i++)
            dh[i] += b->dnormed[i];
    }
    ref_back_value(b, "taken", -1, S, d, dh);
    embed_back(r, tok, S);
}

void ref_back_eagle_logits(struct ref_eagle_run *r, double *dg, double *dz, const double *g, int S)
{
    const struct matrix *w = &r->e->head;
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    ref_back_value(&r->back, "logits", -1, S, w->rows, dz);
    if (r->e->version == 3) {
        ref_back_matrix(&r->back, dg, w, dz, g, S);
        return;
    }
    for (size_t v = 0; v < rows; v++) {
        ref_weights(&r->target, w, (int)v);
        for (size_t s = 0; s < (size_t)S; s++)
            for (size_t i = 0; i < cols; i++)
                dg[s * cols + i] += dz[s * rows + v] * r->target.row[i];
    }
}
