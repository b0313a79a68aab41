/* reference/layers.c -- embedding, RMSNorm, linear layer, softmax, and the decoder layer. attention.c has the attention
 * of a layer, moe.c its feed-forward part. */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

/* x[s] = Emb(tok[s]) */
void ref_embed(struct reference_run *run, double *x, const struct matrix *embed, const int32_t *tokens, int S)
{
    for (int s = 0; s < S; s++)
        ref_row(embed, tokens[s], x + (size_t)s * embed->cols);
    ref_show(run, "embed", -1, S, embed->cols, x);
}

/* y[s,d] = x[s,d] / sqrt(mean_d(x[s,d]^2) + eps) * w[d];  y may be x */
void ref_norm(struct reference_run *run, const char *name, double *y, const struct matrix *w, const double *x, int S,
              double eps)
{
    size_t D = (size_t)w->cols;
    ref_row(w, 0, run->row);
    ref_coarsen(run, run->row, w->cols);
    for (size_t s = 0; s < (size_t)S; s++) {
        double r = 1 / sqrt(ref_dot(x + s * D, x + s * D, w->cols) / (double)D + eps);
        for (size_t d = 0; d < D; d++)
            y[s * D + d] = x[s * D + d] * r * run->row[d];
    }
    ref_value(run, name, -1, S, w->cols, y);
}

/* y[s,i] = sum_j w[i,j] x[s,j]. The function `row` writes row i of W to run->row. */
static void product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S,
                    void (*row)(struct reference_run *run, const struct matrix *w, int i))
{
    size_t rows = (size_t)w->rows, cols = (size_t)w->cols;
    for (size_t i = 0; i < rows; i++) {
        row(run, w, (int)i);
        for (size_t s = 0; s < (size_t)S; s++)
            y[s * rows + i] = ref_sum(run, run->row, 1, x + s * cols, 1, cols);
    }
}

static void row_as_stored(struct reference_run *run, const struct matrix *w, int i) { ref_row(w, i, run->row); }

void ref_product(struct reference_run *run, double *y, const struct matrix *w, const double *x, int S)
{
    product(run, y, w, x, S, row_as_stored);
}

void ref_linear(struct reference_run *run, const char *name, double *y, const struct matrix *w, const double *x, int S)
{
    product(run, y, w, ref_x(run, w, x, S), S, ref_weights);
    ref_value(run, name, run->expert, S, w->rows, y);
}

void ref_softmax(double *p, int S)
{
    for (size_t s = 0; s < (size_t)S; s++) {
        double max = -INFINITY, sum = 0;
        for (size_t t = 0; t <= s; t++)
            max = fmax(max, p[s * S + t]); /* exp(x - max) cannot overflow, and gives the same quotients */
        for (size_t t = 0; t <= s; t++)
            sum += exp(p[s * S + t] - max);
        for (size_t t = 0; t < (size_t)S; t++)
            p[s * S + t] = t > s ? 0 : exp(p[s * S + t] - max) / sum;
    }
}

void ref_probabilities(struct reference_run *run, double *p, int h, int S)
{
    ref_value(run, "scores", h, S, S, p);
    ref_noise(run, p, (size_t)S * (size_t)S); /* the product with the scale may be rounded too */
    ref_softmax(p, S);
    ref_value(run, "probabilities", h, S, S, p);
}

/* a[i] = x[i, 0..A),  b[i] = x[i, A..A+B) */
void ref_split(double *a, int A, double *b, int B, const double *x, size_t rows)
{
    for (size_t i = 0; i < rows; i++, x += A + B) {
        memcpy(a + i * A, x, sizeof *a * A);
        memcpy(b + i * B, x + A, sizeof *b * B);
    }
}

/* out[i] = [a[i] ; b[i]] */
void ref_join(double *out, const double *a, size_t A, const double *b, size_t B, size_t rows)
{
    for (size_t i = 0; i < rows; i++, out += A + B) {
        memcpy(out, a + i * A, A * sizeof *out);
        memcpy(out + A, b + i * B, B * sizeof *out);
    }
}

void ref_add(struct reference_run *run, double *out, const double *a, const double *b, int S)
{
    for (size_t i = 0; i < (size_t)S * run->c->dims.d; i++)
        out[i] = a[i] + b[i];
    ref_value(run, "residual", -1, S, run->c->hidden_size, out);
}

/* x = x + attention(RMSNorm(x));   x = x + feed_forward(RMSNorm(x)) */
void ref_decoder_layer(struct reference_run *run, const struct reference_layer *w, double *x, int S)
{
    double eps = run->c->rms_norm_eps;
    ref_norm(run, "input_layernorm", run->normed, &w->input_norm, x, S, eps);
    ref_attention(run, run->delta, &w->attention, run->normed, S);
    ref_add(run, x, x, run->delta, S);

    ref_norm(run, "post_attention_layernorm", run->normed, &w->post_attention_norm, x, S, eps);
    if (w->is_moe)
        ref_moe(run, run->delta, w, run->normed, S);
    else
        ref_mlp(run, run->delta, &w->mlp, -1, run->normed, S);
    ref_add(run, x, x, run->delta, S);
}
