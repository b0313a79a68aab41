/* reference/backward_moe.c -- the backward pass of the router and of the mixture of experts. */
#include "reference/backward_layers.h"

#include <string.h>

void ref_back_expert_weights(const struct reference_run *run, double *ds, const double *dg, const double *experts,
                             const double *s)
{
    int X = run->c->num_experts_per_tok;
    double factor = ref_weight_factor(run->c), sum = 0, mean = 0;
    for (int j = 0; j < X; j++)
        sum += s[(int)experts[j]];
    double m = ref_normaliser(run, sum);
    int constant = ref_convention(run, NORMALISER_EPS) == 2 && m > sum;
    for (int j = 0; j < X && !constant; j++)
        mean += dg[j] * s[(int)experts[j]] / m;
    for (int j = 0; j < X; j++)
        ds[(int)experts[j]] += run->c->norm_topk_prob ? factor * (dg[j] - mean) / m : factor * dg[j];
}

void ref_back_scores(const struct reference_run *run, double *dx, const double *ds, const double *s)
{
    int E = run->c->n_routed_experts;
    if (run->c->scoring_func != SCORING_SIGMOID) {
        ref_back_softmax(dx, ds, s, E);
        return;
    }
    for (int e = 0; e < E; e++)
        dx[e] += ds[e] * s[e] * (1 - s[e]);
}

void ref_back_experts_sum(double *dg, double *dy, const double *dout, const double *g, const double *y, int S, int X,
                          int D)
{
    for (int s = 0; s < S; s++, dout += D)
        for (int j = 0; j < X; j++, dg++, g++, dy += D, y += D) {
            *dg += ref_dot(dout, y, D);
            for (int d = 0; d < D; d++)
                dy[d] += *g * dout[d];
        }
}

/* out[s] = sum_e g[s,e] expert_e(x[s]) + shared(x[s]); the weights g depend on x[s] through the router */
void ref_back_moe(struct reference_back *b, double *dx, const struct reference_layer *w, const double *dout,
                  const double *x, int S)
{
    struct reference_run *run = &b->run;
    const struct dims *dims = &run->c->dims;
    size_t D = dims->d, E = dims->E, X = dims->chosen, rows = (size_t)S;

    if (run->c->n_shared_experts)
        ref_back_show(b, "moe", -1, S, (int)D, dout);
    ref_back_show(b, "experts_sum", -1, S, (int)D, dout);
    ref_moe(run, run->delta, w, x, S); /* fills run->router (scores), experts, weights and routed */
    ref_back_clear(b->dweights, rows * X);
    ref_back_clear(b->drouted, rows * X * D);
    ref_back_experts_sum(b->dweights, b->drouted, dout, run->weights, run->routed, S, (int)X, (int)D);
    ref_back_value(b, "experts", -1, S * (int)X, (int)D, b->drouted);
    ref_back_value(b, "router_weights", -1, S, (int)X, b->dweights);

    ref_back_clear(b->dscores, rows * E);
    ref_back_clear(b->drouter, rows * E);
    for (size_t s = 0; s < rows; s++)
        ref_back_expert_weights(run, b->dscores + s * E, b->dweights + s * X, run->experts + s * X,
                                run->router + s * E);
    ref_back_value(b, "router_scores", -1, S, (int)E, b->dscores);
    for (size_t s = 0; s < rows; s++)
        ref_back_scores(run, b->drouter + s * E, b->dscores + s * E, run->router + s * E);
    ref_back_value(b, "router_logits", -1, S, (int)E, b->drouter);
    ref_back_matrix(b, dx, &w->router, b->drouter, x, S);

    for (size_t e = 0; e < E; e++) { /* each expert, on the tokens that chose it */
        size_t count = 0;
        for (size_t i = 0; i < rows * X; i++)
            if (run->experts[i] == (double)e) {
                memcpy(b->expert_in + count * D, x + i / X * D, D * sizeof *x);
                memcpy(b->dexpert_out + count++ * D, b->drouted + i * D, D * sizeof *x);
            }
        if (!count)
            continue;
        ref_back_clear(b->dexpert_in, count * D);
        ref_back_mlp(b, b->dexpert_in, &w->experts[e], (int)e, b->dexpert_out, b->expert_in, (int)count);
        count = 0;
        for (size_t i = 0; i < rows * X; i++)
            for (size_t d = 0; run->experts[i] == (double)e && d < D; d++)
                dx[i / X * D + d] += b->dexpert_in[count++];
    }
    if (run->c->n_shared_experts)
        ref_back_mlp(b, dx, &w->shared, -1, dout, x, S);
}
