/* reference/backward_layers.c -- the backward pass of linear layers, RMSNorm, RoPE, softmax, SwiGLU, embedding and
 * cross entropy. backward_layers.h has the formulas. */
#include "reference/backward_layers.h"

#include <math.h>
#include <string.h>

void ref_back_linear(double *dx, double *dw, const double *dy, const double *w, const double *x, int S, int I, int J)
{
    size_t rows = (size_t)I, cols = (size_t)J;
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++) {
                dx[s * cols + j] += dy[s * rows + i] * w[i * cols + j];
                dw[i * cols + j] += dy[s * rows + i] * x[s * cols + j];
            }
}

void ref_back_norm(double *dx, double *dw, const double *dy, const double *w, const double *x, int S, int D, double eps)
{
    for (int s = 0; s < S; s++, dx += D, dy += D, x += D) {
        double squares = 0, sum = 0;
        for (int d = 0; d < D; d++) {
            squares += x[d] * x[d];
            sum += dy[d] * w[d] * x[d];
        }
        double r = 1 / sqrt(squares / D + eps);
        for (int d = 0; d < D; d++) {
            dw[d] += dy[d] * x[d] * r;
            dx[d] += r * w[d] * dy[d] - r * r * r * x[d] / D * sum;
        }
    }
}

void ref_back_rope(double *dx, const double *cosine, const double *sine, int S, int vectors, int R, int interleave)
{
    int half = R / 2;
    for (int s = 0; s < S; s++, cosine += half, sine += half)
        for (int h = 0; h < vectors; h++, dx += R)
            for (int i = 0; i < half; i++) {
                double *d0 = dx + (interleave ? 2 * i : i), *d1 = dx + (interleave ? 2 * i + 1 : i + half);
                double dy0 = *d0, dy1 = *d1;
                *d0 = dy0 * cosine[i] + dy1 * sine[i];
                *d1 = dy1 * cosine[i] - dy0 * sine[i];
            }
}

void ref_back_softmax(double *dx, const double *dp, const double *p, int n)
{
    double mean = ref_dot(p, dp, n);
    for (int i = 0; i < n; i++)
        dx[i] += p[i] * (dp[i] - mean);
}

void ref_back_swiglu(double *dg, double *du, const double *da, const double *g, const double *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double sigma = 1 / (1 + exp(-g[i]));
        du[i] += da[i] * g[i] * sigma;
        dg[i] += da[i] * u[i] * sigma * (1 + g[i] * (1 - sigma));
    }
}

void ref_back_embed(double *demb, const double *dx, const int32_t *tok, int S, int D)
{
    for (int s = 0; s < S; s++)
        for (int d = 0; d < D; d++)
            demb[(size_t)tok[s] * (size_t)D + (size_t)d] += dx[(size_t)s * (size_t)D + (size_t)d];
}

double ref_cross_entropy(double *dz, const double *z, const int32_t *tok, int S, int V, double weight)
{
    double loss = 0;
    for (int s = 0; s < S; s++, z += V) {
        double max = z[0], sum = 0;
        if (tok[s] < 0)
            continue;
        for (int v = 1; v < V; v++)
            max = fmax(max, z[v]); /* log(sum exp(z)) = max + log(sum exp(z - max)), which cannot overflow */
        for (int v = 0; v < V; v++)
            sum += exp(z[v] - max);
        loss += max + log(sum) - z[tok[s]];
        for (int v = 0; dz && v < V; v++)
            dz[(size_t)s * (size_t)V + (size_t)v] += weight * (exp(z[v] - max) / sum - (v == tok[s]));
    }
    return loss;
}

/* -- with the weights of a checkpoint ------------------------------------------------------------------------------ */

void ref_back_show(struct reference_back *b, const char *name, int index, int rows, int cols, const double *d)
{
    struct reference_value gradient = {name, b->run.layer, index, rows, cols, d};
    if (b->hook)
        b->hook(b->hook_context, &gradient);
}

void ref_back_value(struct reference_back *b, const char *name, int index, int rows, int cols, double *d)
{
    for (size_t i = 0; b->run.options.perturb && i < (size_t)rows * (size_t)cols; i++)
        d[i] *= 1.0 + ref_uniform(&b->run) * 0x1p-24;
    ref_back_show(b, name, index, rows, cols, d);
}

void ref_back_clear(double *a, size_t n) { memset(a, 0, n * sizeof *a); }

/* Decodes W to b->w and returns where its gradient is summed. */
static double *take(struct reference_back *b, const struct matrix *w)
{
    for (int i = 0; i < w->rows; i++) {
        ref_weights(&b->run, w, i);
        memcpy(b->w + (size_t)i * (size_t)w->cols, b->run.row, (size_t)w->cols * sizeof *b->w);
    }
    return reference_gradient(b->gradients, w->tensor->name)->data;
}

void ref_back_matrix(struct reference_back *b, double *dx, const struct matrix *w, const double *dy, const double *x,
                     int S)
{
    double *dw = take(b, w);
    ref_back_linear(dx, dw, dy, b->w, x, S, w->rows, w->cols);
}

void ref_back_norm_of(struct reference_back *b, double *dx, const struct matrix *w, const double *dy, const double *x,
                      int S, double eps)
{
    double *dw = take(b, w);
    ref_back_norm(dx, dw, dy, b->w, x, S, w->cols, eps);
}

void ref_back_mlp(struct reference_back *b, double *dx, const struct reference_mlp *w, int index, const double *dout,
                  const double *x, int S)
{
    int W = w->gate_proj.rows;
    size_t n = (size_t)S * (size_t)W;
    double *gate = b->run.gate, *up = b->run.up;
    ref_linear(&b->run, NULL, gate, &w->gate_proj, x, S);
    ref_linear(&b->run, NULL, up, &w->up_proj, x, S);
    for (size_t i = 0; i < n; i++)
        b->product[i] = gate[i] / (1 + exp(-gate[i])) * up[i];

    ref_back_show(b, "down", index, S, b->run.c->hidden_size, dout);
    ref_back_clear(b->dproduct, n);
    ref_back_clear(b->dgate, n);
    ref_back_clear(b->dup, n);
    ref_back_matrix(b, b->dproduct, &w->down_proj, dout, b->product, S);
    ref_back_value(b, "product", index, S, W, b->dproduct);
    ref_back_swiglu(b->dgate, b->dup, b->dproduct, gate, up, n);
    ref_back_value(b, "up", index, S, W, b->dup);
    ref_back_value(b, "gate", index, S, W, b->dgate);
    ref_back_matrix(b, dx, &w->up_proj, b->dup, x, S);
    ref_back_matrix(b, dx, &w->gate_proj, b->dgate, x, S);
}

/* With n = RMSNorm(x), m = x + attention(n), n' = RMSNorm(m) and y = m + mlp(n'):
 *     dm = dy + the gradient of m through n',   dx = dm + the gradient of x through n */
void ref_back_layer(struct reference_back *b, double *dx, const struct reference_layer *w, const double *x, int S)
{
    struct reference_run *run = &b->run;
    int D = run->c->hidden_size;
    size_t n = (size_t)S * run->c->dims.d;
    double eps = run->c->rms_norm_eps;
    ref_norm(run, NULL, b->normed, &w->input_norm, x, S, eps);
    ref_attention(run, b->middle, &w->attention, b->normed, S);
    for (size_t i = 0; i < n; i++)
        b->middle[i] += x[i];
    ref_norm(run, NULL, b->normed, &w->post_attention_norm, b->middle, S, eps);

    ref_back_value(b, "residual", -1, S, D, dx);
    ref_back_clear(b->dnormed, n);
    if (w->is_moe)
        ref_back_moe(b, b->dnormed, w, dx, b->normed, S);
    else
        ref_back_mlp(b, b->dnormed, &w->mlp, -1, dx, b->normed, S);
    ref_back_value(b, "post_attention_layernorm", -1, S, D, b->dnormed);
    ref_back_norm_of(b, dx, &w->post_attention_norm, b->dnormed, b->middle, S, eps);

    ref_back_value(b, "residual", -1, S, D, dx);
    ref_norm(run, NULL, b->normed, &w->input_norm, x, S, eps);
    ref_back_clear(b->dnormed, n);
    ref_back_attention(b, b->dnormed, &w->attention, dx, b->normed, S);
    ref_back_value(b, "input_layernorm", -1, S, D, b->dnormed);
    ref_back_norm_of(b, dx, &w->input_norm, b->dnormed, x, S, eps);
}
