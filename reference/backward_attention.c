/* reference/backward_attention.c -- the backward pass of multi-head latent attention, in the naive form, with keys and
 * values of each head. The absorbed form is the same function of x and the weights, and so has the same gradient. */
#include "reference/backward_layers.h"

#include <string.h>

void ref_back_mix(double *dp, const struct ref_heads *d, const double *dheads, const struct ref_heads *x,
                  const double *p, int h, int S, const struct dims *dims)
{
    size_t H = dims->H, V = dims->v, rows = (size_t)S;
    for (size_t s = 0; s < rows; s++)
        for (size_t t = 0; t <= s; t++) {
            const double *dhead = dheads + (s * H + (size_t)h) * V;
            size_t at = (t * H + (size_t)h) * V;
            dp[s * rows + t] += ref_dot(dhead, x->v + at, (int)V);
            for (size_t v = 0; v < V; v++)
                d->v[at + v] += p[s * rows + t] * dhead[v];
        }
}

void ref_back_scores_of_head(const struct ref_heads *d, const double *dscores, const struct ref_heads *x, double scale,
                             int h, int S, const struct dims *dims)
{
    size_t H = dims->H, N = dims->n, R = dims->r, rows = (size_t)S;
    for (size_t s = 0; s < rows; s++)
        for (size_t t = 0; t <= s; t++) {
            size_t q = s * H + (size_t)h, k = t * H + (size_t)h;
            double dproduct = scale * dscores[s * rows + t];
            for (size_t n = 0; n < N; n++) {
                d->q_nope[q * N + n] += dproduct * x->k_nope[k * N + n];
                d->k_nope[k * N + n] += dproduct * x->q_nope[q * N + n];
            }
            for (size_t r = 0; r < R; r++) {
                d->q_rope[q * R + r] += dproduct * x->k_rope[t * R + r];
                d->k_rope[t * R + r] += dproduct * x->q_rope[q * R + r];
            }
        }
}

/* In reverse order of the formulas at ref_attention in attention.c:
 *     out = W_O heads                    dheads, and then dq_nope, dq_rope, dk_nope, dk_rope, dv of each head
 *     [k_nope ; v] = W_UKV latent        dlatent
 *     latent = RMSNorm(c_kv), k_rope = RoPE(k), [c_kv ; k] = W_DKV x
 *     q_nope, q_rope = RoPE(...) of W_UQ q_latent (times Mistral 4's factor of the position), q_latent = RMSNorm(W_DQ
 *     x) */
void ref_back_attention(struct reference_back *b, double *dx, const struct reference_attention *w, const double *dout,
                        const double *x, int S)
{
    struct reference_run *run = &b->run;
    const struct dims *dims = &run->c->dims;
    size_t rows = (size_t)S, H = dims->H, N = dims->n, R = dims->r, V = dims->v, C = dims->c, Q = dims->q;
    int interleave = run->c->rope_interleave;
    struct ref_heads *d = &b->dheads_of, values = {run->q_nope, run->q_rope, run->k_nope, run->k_rope, run->v};
    double eps = ref_latent_eps(run), scale = ref_attention_scale(run);

    ref_back_show(b, "attention", -1, S, (int)dims->d, dout);
    ref_attention(run, run->delta, w, x, S); /* fills the fields of `values`, run->heads, run->latent and run->q_a, the
                                                last two after their norms */

    ref_back_clear(b->dheads, rows * H * V);
    ref_back_matrix(b, b->dheads, &w->o_proj, dout, run->heads, S);
    ref_back_value(b, "heads", -1, S, (int)(H * V), b->dheads);
    ref_back_clear(d->q_nope, rows * H * N);
    ref_back_clear(d->q_rope, rows * H * R);
    ref_back_clear(d->k_nope, rows * H * N);
    ref_back_clear(d->k_rope, rows * R);
    ref_back_clear(d->v, rows * H * V);
    for (int h = 0; h < (int)H; h++) {
        ref_head_scores(run, w, h, S, 0);
        ref_softmax(run->scores, S);
        ref_back_clear(b->dp, rows * rows);
        ref_back_clear(b->dscores_of_head, rows * rows);
        ref_back_mix(b->dp, d, b->dheads, &values, run->scores, h, S, dims);
        ref_back_value(b, "probabilities", h, S, S, b->dp);
        for (size_t s = 0; s < rows; s++)
            ref_back_softmax(b->dscores_of_head + s * rows, b->dp + s * rows, run->scores + s * rows, (int)s + 1);
        ref_back_value(b, "scores", h, S, S, b->dscores_of_head);
        ref_back_scores_of_head(d, b->dscores_of_head, &values, scale, h, S, dims);
    }

    ref_back_value(b, "k_rope", -1, S, (int)R, d->k_rope);
    ref_back_value(b, "q_rope", -1, S * (int)H, (int)R, d->q_rope);

    ref_join(b->dkv, d->k_nope, N, d->v, V, rows * H);
    ref_back_value(b, "kv", -1, S, (int)(H * (N + V)), b->dkv);
    ref_back_clear(b->dlatent, rows * C);
    ref_back_matrix(b, b->dlatent, &w->kv_b_proj, b->dkv, run->latent, S);
    ref_back_value(b, "latent", -1, S, (int)C, b->dlatent);
    for (size_t s = 0; s < rows; s++)
        memcpy(b->c_kv + s * C, run->kv_a + s * (C + R), C * sizeof *b->c_kv);
    ref_back_clear(b->dc_kv, rows * C);
    ref_back_norm_of(b, b->dc_kv, &w->kv_a_norm, b->dlatent, b->c_kv, S, eps);
    ref_back_rope(d->k_rope, run->cosine, run->sine, S, 1, (int)R, interleave);
    ref_join(b->dkv_a, b->dc_kv, C, d->k_rope, R, rows);
    ref_back_value(b, "kv_a", -1, S, (int)(C + R), b->dkv_a);
    ref_back_matrix(b, dx, &w->kv_a_proj, b->dkv_a, x, S);

    ref_back_rope(d->q_rope, run->cosine, run->sine, S, (int)H, (int)R, interleave);
    ref_join(b->dq, d->q_nope, N, d->q_rope, R, rows * H);
    ref_scale_queries(run, b->dq, S, H * (N + R));
    ref_back_value(b, "q", -1, S, (int)(H * (N + R)), b->dq);
    if (!Q) {
        ref_back_matrix(b, dx, &w->q_proj, b->dq, x, S);
        return;
    }
    ref_back_clear(b->dq_a_norm, rows * Q);
    ref_back_matrix(b, b->dq_a_norm, &w->q_b_proj, b->dq, run->q_a, S);
    ref_back_value(b, "q_a_norm", -1, S, (int)Q, b->dq_a_norm);
    ref_linear(run, NULL, b->q_a, &w->q_a_proj, x, S);
    ref_back_clear(b->dq_a, rows * Q);
    ref_back_norm_of(b, b->dq_a, &w->q_a_norm, b->dq_a_norm, b->q_a, S, eps);
    ref_back_value(b, "q_a", -1, S, (int)Q, b->dq_a);
    ref_back_matrix(b, dx, &w->q_a_proj, b->dq_a, x, S);
}
