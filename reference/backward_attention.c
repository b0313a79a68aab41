/* reference/backward_attention.c -- the backward pass of multi-head latent attention, in the naive form, with keys and values of each
 * head. The absorbed form is the same function of x and the weights, and so has the same gradient. */
#include "reference/backward_layers.h"

#include <string.h>

void ref_back_head(const struct ref_heads *d, const double *dheads, const struct ref_heads *x, const double *p, double scale, double *row,
                   int h, int S, const struct dims *dims)
{
    size_t H = dims->H, N = dims->n, R = dims->r, V = dims->v;
    double *dp = row, *dscores = row + S;
    for (size_t s = 0; s < (size_t)S; s++, p += S) {
        size_t own = s * H + (size_t)h; /* row of q and of heads */
        for (size_t t = 0; t <= s; t++) {
            size_t at = t * H + (size_t)h; /* row of k_nope and v */
            dp[t] = ref_dot(dheads + own * V, x->v + at * V, (int)V);
            for (size_t v = 0; v < V; v++)
                d->v[at * V + v] += p[t] * dheads[own * V + v];
        }
        ref_back_clear(dscores, s + 1);
        ref_back_softmax(dscores, dp, p, (int)s + 1);
        for (size_t t = 0; t <= s; t++) {
            size_t at = t * H + (size_t)h;
            for (size_t n = 0; n < N; n++) {
                d->q_nope[own * N + n] += scale * dscores[t] * x->k_nope[at * N + n];
                d->k_nope[at * N + n] += scale * dscores[t] * x->q_nope[own * N + n];
            }
            for (size_t r = 0; r < R; r++) {
                d->q_rope[own * R + r] += scale * dscores[t] * x->k_rope[t * R + r];
                d->k_rope[t * R + r] += scale * dscores[t] * x->q_rope[own * R + r];
            }
        }
    }
}

/* out[i] = [a[i] ; b[i]], the reverse of ref_split */
static void join(double *out, const double *a, size_t A, const double *b, size_t B, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        memcpy(out + i * (A + B), a + i * A, A * sizeof *out);
        memcpy(out + i * (A + B) + A, b + i * B, B * sizeof *out);
    }
}

/* In reverse order of the formulas at ref_attention in layers.c:
 *     out = W_O heads                    dheads, and then dq_nope, dq_rope, dk_nope, dk_rope, dv of each head
 *     [k_nope ; v] = W_UKV latent        dlatent
 *     latent = RMSNorm(c_kv), k_rope = RoPE(k), [c_kv ; k] = W_DKV x
 *     q_nope, q_rope = RoPE(...) of W_UQ q_latent (times Mistral 4's factor of the position), q_latent = RMSNorm(W_DQ x) */
void ref_back_attention(struct reference_back *b, double *dx, const struct reference_attention *w, const double *dout, const double *x, int S)
{
    struct reference_run *run = &b->run;
    const struct dims *dims = &run->c->dims;
    size_t rows = (size_t)S, H = dims->H, N = dims->n, R = dims->r, V = dims->v, C = dims->c, Q = dims->q;
    int interleave = run->c->rope_interleave;
    struct ref_heads *d = &b->dheads_of, values = {run->q_nope, run->q_rope, run->k_nope, run->k_rope, run->v};
    double eps = ref_latent_eps(run), scale = ref_attention_scale(run);

    ref_attention(run, run->delta, w, x, S); /* fills the fields of `values`, run->heads, run->latent and run->q_a, the last two after their norms */

    ref_back_clear(b->dheads, rows * H * V);
    ref_back_matrix(b, b->dheads, &w->o_proj, dout, run->heads, S);
    ref_back_clear(d->q_nope, rows * H * N);
    ref_back_clear(d->q_rope, rows * H * R);
    ref_back_clear(d->k_nope, rows * H * N);
    ref_back_clear(d->k_rope, rows * R);
    ref_back_clear(d->v, rows * H * V);
    for (int h = 0; h < (int)H; h++) {
        ref_head_scores(run, w, h, S, 0);
        ref_softmax(run->scores, S);
        ref_back_head(d, b->dheads, &values, run->scores, scale, b->row, h, S, dims);
    }

    join(b->dkv, d->k_nope, N, d->v, V, rows * H);
    ref_back_clear(b->dlatent, rows * C);
    ref_back_matrix(b, b->dlatent, &w->kv_b_proj, b->dkv, run->latent, S);
    for (size_t s = 0; s < rows; s++)
        memcpy(b->c_kv + s * C, run->kv_a + s * (C + R), C * sizeof *b->c_kv);
    ref_back_clear(b->dc_kv, rows * C);
    ref_back_norm_of(b, b->dc_kv, &w->kv_a_norm, b->dlatent, b->c_kv, S, eps);
    ref_back_rope(d->k_rope, run->cosine, run->sine, S, 1, (int)R, interleave);
    join(b->dkv_a, b->dc_kv, C, d->k_rope, R, rows);
    ref_back_matrix(b, dx, &w->kv_a_proj, b->dkv_a, x, S);

    ref_back_rope(d->q_rope, run->cosine, run->sine, S, (int)H, (int)R, interleave);
    join(b->dq, d->q_nope, N, d->q_rope, R, rows * H);
    ref_scale_queries(run, b->dq, S, H * (N + R));
    if (!Q) {
        ref_back_matrix(b, dx, &w->q_proj, b->dq, x, S);
        return;
    }
    ref_back_clear(b->dq_a_norm, rows * Q);
    ref_back_matrix(b, b->dq_a_norm, &w->q_b_proj, b->dq, run->q_a, S);
    ref_linear(run, b->q_a, &w->q_a_proj, x, S);
    ref_back_clear(b->dq_a, rows * Q);
    ref_back_norm_of(b, b->dq_a, &w->q_a_norm, b->dq_a_norm, b->q_a, S, eps);
    ref_back_matrix(b, dx, &w->q_a_proj, b->dq_a, x, S);
}
