/* reference/moe.c -- the MLP, the router, the mixture of experts (DeepSeek-V3 report, section 2.1.2). */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

static void silu(struct reference_run *run, double *g, int S, int W)
{
    for (size_t i = 0; i < (size_t)S * (size_t)W; i++)
        g[i] = g[i] / (1 + exp(-g[i]));
    ref_value(run, "silu", run->expert, S, W, g);
}

static void multiply(struct reference_run *run, double *a, const double *b, int S, int W)
{
    for (size_t i = 0; i < (size_t)S * (size_t)W; i++)
        a[i] *= b[i];
    ref_value(run, "product", run->expert, S, W, a);
}

/* out = W_down (SiLU(W_gate x) * (W_up x)),   SiLU(g) = g / (1 + exp(-g)) */
void ref_mlp(struct reference_run *run, double *out, const struct reference_mlp *w, int index, const double *x, int S)
{
    run->expert = index;
    ref_linear(run, "gate", run->gate, &w->gate_proj, x, S);
    ref_linear(run, "up", run->up, &w->up_proj, x, S);
    silu(run, run->gate, S, w->gate_proj.rows);
    multiply(run, run->gate, run->up, S, w->gate_proj.rows);
    ref_linear(run, "down", out, &w->down_proj, run->gate, S);
    run->expert = -1;
}

/* -- the router ---------------------------------------------------------------------------------------------------- */

void ref_choose(char *chosen, const double *x, int n, int k)
{
    for (int i = 0; i < n; i++)
        chosen[i] = 0;
    for (; k > 0; k--) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!chosen[i] && (best < 0 || x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))))
                best = i;
        if (best >= 0)
            chosen[best] = 1;
    }
}

static void softmax(double *x, int n)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - max);
    for (int i = 0; i < n; i++)
        x[i] = exp(x[i] - max) / sum;
}

/* Equation 15: replaces the logits x of one token by its affinities to the experts, sigmoid(x[e]) in V3, softmax over
 * all experts in V2. */
void ref_scores(const struct reference_run *run, double *x)
{
    int E = run->c->n_routed_experts;
    if (run->c->scoring_func != SCORING_SIGMOID) {
        softmax(x, E);
        return;
    }
    for (int e = 0; e < E; e++)
        x[e] = 1 / (1 + exp(-x[e]));
    ref_round_gate(run, x, E);
}

/* Returns the score of a group of experts: the sum of the two largest choices in V3 (noaux_tc) and Mistral 4, the
 * largest choice in V2 (group_limited_greedy). */
double ref_group_score(const struct config *c, const double *choice, int size)
{
    double best = -INFINITY, second = -INFINITY;
    for (int e = 0; e < size; e++)
        if (choice[e] > best) {
            second = best;
            best = choice[e];
        } else if (choice[e] > second) {
            second = choice[e];
        }
    return c->topk_method == TOPK_GROUP_LIMITED_GREEDY ? best : best + second;
}

double ref_weight_factor(const struct config *c)
{
    int scaled = c->scoring_func == SCORING_SIGMOID || !c->norm_topk_prob || c->topk_method == TOPK_GROUP_LIMITED_TOP2;
    return scaled ? c->routed_scaling_factor : 1;
}

double ref_normaliser(const struct reference_run *run, double sum)
{
    if (run->c->scoring_func == SCORING_SIGMOID)
        ref_round_gate(run, &sum, 1);
    switch (ref_convention(run, NORMALISER_EPS)) {
    case 1: return sum + 1e-20;
    case 2: return fmax(sum, 0x1p-14);
    default: return sum;
    }
}

/* Equation 13: the weights g of the chosen experts from their scores s. The bias has influenced which experts were
 * chosen, but it does not influence the weights.
 *     sigmoid:  g = (s / sum s) * factor  with norm_topk_prob, else g = s * factor
 *     softmax:  g = s / sum s             with norm_topk_prob, else g = s * factor
 * Mistral 4 has softmax, but weights as with sigmoid. */
void ref_expert_weights(const struct reference_run *run, double *weights, const double *experts, const double *scores)
{
    const struct config *c = run->c;
    int X = c->num_experts_per_tok;
    double sum = 0;
    for (int j = 0; j < X; j++)
        sum += scores[(int)experts[j]];
    double m = c->norm_topk_prob ? ref_normaliser(run, sum) : 1;
    for (int j = 0; j < X; j++)
        weights[j] = scores[(int)experts[j]] / m;
    if (c->scoring_func == SCORING_SIGMOID)
        ref_round_gate(run, weights, X);
    for (int j = 0; j < X; j++)
        weights[j] *= ref_weight_factor(c);
    ref_round_gate(run, weights, X);
}

/* run->router [S,E] = W x */
void ref_gate_logits(struct reference_run *run, const struct matrix *w, const double *x, int S)
{
    if (ref_convention(run, GATE))
        ref_product_exact(run, run->router, w, x, S, 1);
    else
        ref_product(run, run->router, w, x, S);
}

/* The scores of all experts, in run->router [S,E] */
static void score(struct reference_run *run, const struct reference_layer *w, const double *x, int S)
{
    int E = run->c->n_routed_experts;
    ref_gate_logits(run, &w->router, x, S);
    ref_value(run, "router_logits", -1, S, E, run->router);
    for (int s = 0; s < S; s++)
        ref_scores(run, run->router + (size_t)s * E);
    ref_value(run, "router_scores", -1, S, E, run->router);
}

/* Equation 16: choice = score + bias. Only noaux_tc has a bias. */
static void add_bias(struct reference_run *run, const struct reference_layer *w, int S)
{
    int E = run->c->n_routed_experts;
    memcpy(run->choice, run->router, sizeof *run->choice * (size_t)S * E);
    if (run->c->topk_method != TOPK_NOAUX_TC)
        return;
    ref_row(&w->bias, 0, run->row);
    for (int s = 0; s < S; s++)
        for (int e = 0; e < E; e++)
            run->choice[(size_t)s * E + e] += run->row[e];
    ref_value(run, "router_choice", -1, S, E, run->choice);
}

/* Node-limited routing: the topk_group groups with the best scores are kept. The choices of all other groups become
 * -inf, or 0 for Mistral 4. */
static void keep_groups(struct reference_run *run, int S)
{
    const struct config *c = run->c;
    int E = c->n_routed_experts, G = c->n_group, size = E / G;
    for (int s = 0; s < S; s++)
        for (int g = 0; g < G; g++)
            run->groups[s * G + g] = ref_group_score(c, run->choice + (size_t)s * E + g * size, size);
    ref_value(run, "router_groups", -1, S, G, run->groups);
    for (int s = 0; s < S; s++) {
        double *kept = run->groups + (size_t)s * c->topk_group; /* overwrites scores that are not needed again */
        ref_choose(run->chosen, run->groups + (size_t)s * G, G, c->topk_group);
        for (int g = 0; g < G; g++)
            if (run->chosen[g])
                *kept++ = g;
        for (int e = 0; e < E; e++)
            if (!run->chosen[e / size])
                run->choice[(size_t)s * E + e] = ref_masks_with_zero(run) ? 0 : -INFINITY;
    }
    ref_show(run, "router_kept", -1, S, c->topk_group, run->groups);
}

/* Replaces the chosen experts of row s by options.routes, if it has some for this row and layer. */
static void force(const struct reference_run *run, double *experts, int s)
{
    const struct reference_options *o = &run->options;
    int X = run->c->num_experts_per_tok, depth = run->layer - run->c->num_hidden_layers;
    int token = s - (depth >= 0 ? ref_convention(run, FIRST_ROW) : 0); /* with first-row=phantom, row 0 belongs to no
                                                                          token */
    if (!o->routes || token < 0 || token >= o->route_tokens || run->layer >= o->route_layers)
        return;
    const int32_t *forced = o->routes + ((size_t)token * (size_t)o->route_layers + (size_t)run->layer) * (size_t)X;
    for (int i = 0; i < X && forced[0] >= 0; i++)
        experts[i] = forced[i];
}

/* Equations 14 and 16: run->experts [S,X], the experts with the largest choices, ascending */
static void choose_experts(struct reference_run *run, int S)
{
    int E = run->c->n_routed_experts, X = run->c->num_experts_per_tok;
    for (int s = 0; s < S; s++) {
        double *experts = run->experts + (size_t)s * X;
        ref_choose(run->chosen, run->choice + (size_t)s * E, E, X);
        for (int e = 0; e < E; e++)
            if (run->chosen[e])
                *experts++ = e;
        force(run, experts - X, s);
    }
    ref_show(run, "router_experts", -1, S, X, run->experts);
}

/* Chooses the experts of each token, and computes their weights, run->weights [S,X], from x [S,D]. */
static void route(struct reference_run *run, const struct reference_layer *w, const double *x, int S)
{
    size_t E = (size_t)run->c->n_routed_experts, X = (size_t)run->c->num_experts_per_tok;
    score(run, w, x, S);
    add_bias(run, w, S);
    if (run->c->topk_method != TOPK_GREEDY)
        keep_groups(run, S);
    choose_experts(run, S);
    for (size_t s = 0; s < (size_t)S; s++)
        ref_expert_weights(run, run->weights + s * X, run->experts + s * X, run->router + s * E);
    ref_value(run, "router_weights", -1, S, (int)X, run->weights);
}

/* -- the experts --------------------------------------------------------------------------------------------------- */

/* run->routed [S,X,D]: the outputs of the chosen experts. Each expert runs on the tokens that chose it. */
static void run_experts(struct reference_run *run, const struct reference_layer *w, const double *x, int S)
{
    size_t D = run->c->dims.d, row = sizeof(double) * D;
    int X = run->c->num_experts_per_tok;
    for (int e = 0; e < run->c->n_routed_experts; e++) {
        int rows = 0;
        for (int i = 0; i < S * X; i++)
            if (run->experts[i] == e)
                memcpy(run->expert_in + rows++ * D, x + i / X * D, row);
        if (!rows)
            continue;
        ref_mlp(run, run->expert_out, &w->experts[e], e, run->expert_in, rows);
        rows = 0;
        for (int i = 0; i < S * X; i++)
            if (run->experts[i] == e)
                memcpy(run->routed + i * D, run->expert_out + rows++ * D, row);
    }
    ref_show(run, "experts", -1, S * X, (int)D, run->routed);
}

/* Equation 12 without its residual term:   out[s] = sum_e g[s,e] expert_e(x[s]) + shared(x[s]) */
void ref_moe(struct reference_run *run, double *out, const struct reference_layer *w, const double *x, int S)
{
    size_t D = run->c->dims.d, X = (size_t)run->c->num_experts_per_tok;
    route(run, w, x, S);
    run_experts(run, w, x, S);
    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t d = 0; d < D; d++) {
            double sum = 0;
            for (size_t j = 0; j < X; j++) /* in ascending order of the expert's index */
                sum += run->weights[s * X + j] * run->routed[(s * X + j) * D + d];
            out[s * D + d] = sum;
        }
    ref_value(run, "experts_sum", -1, S, (int)D, out);
    if (!run->c->n_shared_experts)
        return;
    ref_mlp(run, run->expert_out, &w->shared, -1, x, S);
    for (size_t i = 0; i < (size_t)S * D; i++)
        out[i] += run->expert_out[i];
    ref_value(run, "moe", -1, S, (int)D, out);
}
