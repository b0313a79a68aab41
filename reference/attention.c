/* reference/attention.c -- multi-head latent attention (DeepSeek-V3 report, section 2.1.1, equations 1 to 11).
 *
 * The report's names are here: c^KV latent, c^Q q_a after its norm, q^C and q^R q_nope and q_rope, k^C and k^R k_nope
 * and k_rope, v^C v, o heads. Rows are s and t, heads h. In precisions that round, and with other caches than f32, the
 * functions of round.c and absorbed.c that are called here compute the same sums with rounded numbers. */
#include "reference/layers.h"

#include <math.h>

/* Whether row s attends to row t: to its own and to earlier rows; in sparse attention, to those that the indexer keeps;
 * in aligned depths of a training step, to those of its own draft. */
int ref_sees(const struct reference_run *run, size_t s, size_t t, size_t S)
{
    return t <= s && (!run->sparse || run->kept[s * S + t]) && (!run->mask || run->mask[s * S + t]);
}

/* Equations 2 and 5: [k^C ; v^C] = [W_UK[h] c^KV ; W_UV[h] c^KV] of each head, to run->kv */
static void keys_and_values(struct reference_run *run, const struct reference_attention *w, size_t S)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, V = run->c->dims.v, C = run->c->dims.c;
    const double *x = ref_x_of_values(run, w, (int)S); /* the latent */
    for (size_t h = 0; h < H; h++) {
        ref_keys(run, w, (int)h);
        ref_values(run, w, (int)h);
        for (size_t s = 0; s < S; s++) {
            double *kv = run->kv + (s * H + h) * (N + V);
            for (size_t n = 0; n < N; n++)
                kv[n] = ref_sum(run, run->w_uk + n * C, 1, run->latent + s * C, 1, C);
            for (size_t v = 0; v < V; v++)
                kv[N + v] = ref_sum(run, run->w_uv + v * C, 1, x + s * C, 1, C);
        }
    }
    ref_value(run, "kv", -1, (int)S, (int)(H * (N + V)), run->kv);
    ref_split(run->k_nope, (int)N, run->v, (int)V, run->kv, S * H);
}

/* q . k of head h, with q = [q^C ; q^R] (equation 9) and k = [k^C ; k^R] (equation 4); all heads share k^R */
double ref_q_dot_k(struct reference_run *run, size_t h, size_t s, size_t t)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, R = run->c->dims.r;
    return ref_two_dots(run, run->q_nope + (s * H + h) * N, run->k_nope + (t * H + h) * N, N,
                        run->q_rope + (s * H + h) * R, run->k_rope + t * R, R);
}

double ref_attention_scale(const struct reference_run *run)
{
    return ref_yarn_scale(run) / sqrt(run->c->qk_nope_head_dim + run->c->qk_rope_head_dim);
}

/* Equation 10:   o[s] = sum_t softmax_t(q[s] . k[t] scale) v[t],   for each head, over the rows t that row s sees */
static void equation_10(struct reference_run *run, size_t h, size_t S)
{
    size_t H = run->c->dims.H, V = run->c->dims.v;
    double *p = run->scores, scale = ref_attention_scale(run);
    for (size_t s = 0; s < S; s++)
        for (size_t t = 0; t < S; t++)
            p[s * S + t] = ref_sees(run, s, t, S) ? ref_q_dot_k(run, h, s, t) * scale : -INFINITY;
    ref_probabilities(run, p, (int)h, (int)S); /* p[s] = softmax(p[s]) */
    for (size_t s = 0; s < S; s++)
        for (size_t v = 0; v < V; v++)
            run->heads[(s * H + h) * V + v] = ref_sum(run, p + s * S, 1, run->v + h * V + v, H * V, s + 1);
}

void ref_attend(struct reference_run *run, const struct reference_attention *w, int S)
{
    keys_and_values(run, w, (size_t)S);
    for (int h = 0; h < run->c->num_attention_heads; h++)
        if (ref_rounds_attention(run, w))
            ref_attend_rounded(run, w, h, S); /* absorbed.c */
        else
            equation_10(run, (size_t)h, (size_t)S);
}

/* The published models put an RMSNorm on both latents, with an eps of its own. */
double ref_latent_eps(const struct reference_run *run)
{
    return ref_convention(run, LATENT_EPS) ? run->c->rms_norm_eps : 1e-6;
}

static void show_rows(struct reference_run *run, int S)
{
    const struct config *c = run->c;
    ref_value(run, "latent", -1, S, c->kv_lora_rank, run->latent);
    ref_value(run, "q_rope", -1, S * c->num_attention_heads, c->qk_rope_head_dim, run->q_rope);
    ref_value(run, "k_rope", -1, S, c->qk_rope_head_dim, run->k_rope);
}

/* Attention of the rows x [S,D]; out [S,D] */
void ref_attention(struct reference_run *run, double *out, const struct reference_attention *w, const double *x, int S)
{
    const struct config *c = run->c;
    int H = c->num_attention_heads, N = c->qk_nope_head_dim, R = c->qk_rope_head_dim, C = c->kv_lora_rank;
    double eps = ref_latent_eps(run);

    if (c->q_lora_rank) {
        ref_linear(run, "q_a", run->q_a, &w->q_a_proj, x, S); /* equation 6: c^Q */
        ref_norm(run, "q_a_norm", run->q_a, &w->q_a_norm, run->q_a, S, eps);
    }
    if (c->q_lora_rank)
        ref_linear(run, "q", run->q, &w->q_b_proj, run->q_a, S); /* equations 7 and 8: q^C, and q^R before RoPE */
    else
        ref_linear(run, "q", run->q, &w->q_proj, x, S);
    ref_scale_queries(run, run->q, S, (size_t)(H * (N + R)));
    ref_split(run->q_nope, N, run->q_rope, R, run->q, (size_t)S * (size_t)H);
    ref_rope(run, run->q_rope, S, H); /* equation 8 */
    ref_round_queries(run, w, S);

    ref_linear(run, "kv_a", run->kv_a, &w->kv_a_proj, x, S); /* equations 1 and 3: c^KV, and k^R before RoPE */
    ref_split(run->latent, C, run->k_rope, R, run->kv_a, (size_t)S);
    ref_norm(run, NULL, run->latent, &w->kv_a_norm, run->latent, S, eps);
    ref_rope(run, run->k_rope, S, 1); /* equation 3 */
    ref_round_cache(run, S);
    show_rows(run, S);

    ref_positions(run, &w->indexer, x, run->q_a, S); /* the rows that each row sees in sparse attention */
    ref_attend(run, w, S);                           /* equations 2, 4, 5, 9, 10 */
    ref_value(run, "heads", -1, S, H * c->v_head_dim, run->heads);
    ref_linear(run, "attention", out, &w->o_proj, run->heads, S); /* equation 11 */
}
