/* reference/absorbed.c -- equation 10 in the absorbed form, and with the numbers that precisions and caches round.
 *
 * The absorbed form uses the latents themselves as keys and values, because W_UK and W_UV are linear:
 *     q^C[s] . k^C[t] = q^C[s] . W_UK latent[t] = q^abs[s] . latent[t],   q^abs[s] = transpose(W_UK) q^C[s]
 *     o[s] = sum_t p[s,t] W_UV latent[t]       = W_UV mixed[s],           mixed[s] = sum_t p[s,t] latent[t]
 * In real numbers it is the form of attention.c. If x of W_UV is rounded, or queries of a q8 cache are, it is not:
 * reference.h says which rows then have which form. run->mixed has both q^abs and the mixed latents. */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

/* -- the absorbed form --------------------------------------------------------------------------------------------- */

/* q^abs of head h */
static void absorb(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, C = run->c->dims.c;
    ref_keys(run, w, h);
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t i = 0; i < C; i++)
            run->mixed[s * C + i] = ref_sum(run, run->w_uk + i, C, run->q_nope + (s * H + (size_t)h) * N, 1, N);
    ref_noise(run, run->mixed, (size_t)S * C);
}

static double absorbed_q_dot_k(struct reference_run *run, size_t h, size_t s, size_t t)
{
    size_t H = run->c->dims.H, R = run->c->dims.r, C = run->c->dims.c;
    return ref_two_dots(run, run->mixed + s * C, run->latent + t * C, C, run->q_rope + (s * H + h) * R,
                        run->k_rope + t * R, R);
}

/* The scores of head h. Rows s >= first have the absorbed form. */
static void scores(struct reference_run *run, int h, int rows, int first)
{
    size_t S = (size_t)rows, head = (size_t)h;
    double scale = ref_attention_scale(run);
    for (size_t s = 0; s < S; s++)
        for (size_t t = 0; t < S; t++)
            run->scores[s * S + t] = !ref_sees(run, s, t, S)  ? -INFINITY
                                     : s >= (size_t)first ? absorbed_q_dot_k(run, head, s, t) * scale
                                                          : ref_q_dot_k(run, head, s, t) * scale;
}

/* o[s] = W_UV mixed[s], where mixed[s] is rounded as the x of W_UV */
static void mix_latents(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    size_t H = run->c->dims.H, V = run->c->dims.v, C = run->c->dims.c;
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t i = 0; i < C; i++)
            run->mixed[s * C + i] =
                ref_sum(run, run->scores + s * (size_t)S, 1, run->latent + i, C, s + 1);
    ref_value(run, "mixed", h, S, (int)C, run->mixed);
    ref_round_x(run, ref_values_form(run, w), run->mixed, run->mixed, (size_t)S * C);
    ref_values(run, w, h);
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t v = 0; v < V; v++)
            run->heads[(s * H + (size_t)h) * V + v] = ref_sum(run, run->w_uv + v * C, 1, run->mixed + s * C, 1, C);
}

void ref_attend_absorbed(struct reference_run *run, const struct reference_attention *w, int S)
{
    for (int h = 0; h < run->c->num_attention_heads; h++) {
        absorb(run, w, h, S);
        scores(run, h, S, 0);
        ref_probabilities(run, run->scores, h, S);
        mix_latents(run, w, h, S);
    }
}

/* -- with numbers that precisions and caches round ----------------------------------------------------------------- */

/* Returns how many of S rows are computed in the expanded form: rows of the target, but not of its MTP modules. */
static int expanded_rows(const struct reference_run *run, int S)
{
    int rows = run->layer < run->c->num_hidden_layers ? run->options.expanded : 0;
    return rows < S ? rows : S;
}

/* A q8 cache quantizes the queries that are multiplied by latents. */
static int quantizes_queries(const struct reference_run *run)
{
    return run->options.cache_type == CACHE_TYPE_Q8 && !run->options.x_as_is;
}

int ref_rounds_attention(const struct reference_run *run, const struct reference_attention *w)
{
    return ref_values_form(run, w) != AS_IS || quantizes_queries(run);
}

/* q^C is the x of W_UK. In expanded rows it is no x, and the latent is not rounded when keys are computed. */
void ref_round_queries(struct reference_run *run, const struct reference_attention *w, int S)
{
    size_t row = run->c->dims.H * run->c->dims.n, first = (size_t)expanded_rows(run, S) * row;
    ref_round_x(run, ref_keys_form(run, w), run->q_nope + first, run->q_nope + first, (size_t)S * row - first);
}

const double *ref_x_of_values(struct reference_run *run, const struct reference_attention *w, int S)
{
    size_t C = run->c->dims.c;
    memcpy(run->mixed, run->latent, (size_t)S * C * sizeof *run->mixed);
    ref_round_x(run, ref_values_form(run, w), run->mixed, run->mixed, (size_t)expanded_rows(run, S) * C);
    return run->mixed;
}

/* Returns the first row whose query is quantized; run->mixed then has the quantized q^abs of head h. */
static int quantize_queries(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    if (!quantizes_queries(run))
        return S;
    absorb(run, w, h, S);
    ref_round_x(run, TO_GROUPS, run->mixed, run->mixed, (size_t)S * run->c->dims.c);
    return expanded_rows(run, S);
}

/* o[s] = sum_t p[s,t] v[t] for the first `rows` rows s */
static void mix_values(struct reference_run *run, int h, int rows, int S)
{
    size_t H = run->c->dims.H, V = run->c->dims.v;
    for (size_t s = 0; s < (size_t)rows; s++)
        for (size_t v = 0; v < V; v++)
            run->heads[(s * H + (size_t)h) * V + v] =
                ref_sum(run, run->scores + s * (size_t)S, 1, run->v + (size_t)h * V + v, H * V, s + 1);
}

void ref_attend_rounded(struct reference_run *run, const struct reference_attention *w, int h, int S)
{
    int mixes = ref_values_form(run, w) != AS_IS;
    scores(run, h, S, quantize_queries(run, w, h, S));
    ref_probabilities(run, run->scores, h, S);
    if (mixes)
        mix_latents(run, w, h, S);
    mix_values(run, h, mixes ? expanded_rows(run, S) : S, S);
}

/* -- scores alone -------------------------------------------------------------------------------------------------- */

void ref_head_scores(struct reference_run *run, const struct reference_attention *w, int h, int S, int absorbed)
{
    size_t H = run->c->dims.H, N = run->c->dims.n, C = run->c->dims.c;
    int first = absorbed ? 0 : quantize_queries(run, w, h, S);
    if (absorbed)
        absorb(run, w, h, S);
    ref_keys(run, w, h);
    for (size_t s = 0; s < (size_t)S && first > 0; s++) {
        double *key = run->k_nope + (s * H + (size_t)h) * N;
        for (size_t n = 0; n < N; n++)
            key[n] = ref_sum(run, run->w_uk + n * C, 1, run->latent + s * C, 1, C);
        ref_noise(run, key, N);
    }
    scores(run, h, S, first);
    ref_noise(run, run->scores, (size_t)S * (size_t)S);
}
