/* reference/moe.c -- the MLP, the router, the mixture of experts (DeepSeek-V3 report, section 2.1.2). */
#include "reference/layers.h"

#include <math.h>
#include <string.h>

/* out = W_down (SiLU(W_gate x) * (W_up x)), SiLU(g) = g / (1 + exp(-g)). The hook receives `index`. */
void ref_mlp(struct reference_run *run, double *out, const struct reference_mlp *w, int index, const double *x, int S)
{
    int W = w->gate_proj.rows;
    double *gate = run->gate, *up = run->up;
    ref_linear(run, gate, &w->gate_proj, x, S);
    ref_value(run, "gate", index, S, W, gate);
    ref_linear(run, up, &w->up_proj, x, S);
    ref_value(run, "up", index, S, W, up);
    for (size_t i = 0; i < (size_t)S * W; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i]));
    ref_value(run, "silu", index, S, W, gate);
    for (size_t i = 0; i < (size_t)S * W; i++)
        gate[i] *= up[i];
    ref_value(run, "product", index, S, W, gate);
    ref_linear(run, out, &w->down_proj, gate, S);
    ref_value(run, "down", index, S, run->c->hidden_size, out);
}

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

/* With convention gate=bf16, rounds x to BF16. */
static double round_gate(const struct reference_run *run, double x)
{
    return ref_convention(run, GATE) ? ref_to_bf16(x) : x;
}

/* Replaces the logits x of one token by its affinities to the experts: sigmoid(x[e]) in V3 (eq. 15), softmax over all
 * experts in V2. */
void ref_scores(const struct reference_run *run, double *x)
{
    const struct config *c = run->c;
    int E = c->n_routed_experts;
    double max = -INFINITY, sum = 0;
    if (c->scoring_func == SCORING_SIGMOID) {
        for (int e = 0; e < E; e++)
            x[e] = round_gate(run, 1 / (1 + exp(-x[e])));
        return;
    }
    for (int e = 0; e < E; e++)
        max = fmax(max, x[e]);
    for (int e = 0; e < E; e++)
        sum += exp(x[e] - max);
    for (int e = 0; e < E; e++)
        x[e] = exp(x[e] - max) / sum;
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
    sum = run->c->scoring_func == SCORING_SIGMOID ? round_gate(run, sum) : sum;
    switch (ref_convention(run, NORMALISER_EPS)) {
    case 1: return sum + 1e-20;
    case 2: return fmax(sum, 0x1p-14);
    default: return sum;
    }
}

/* Computes the weights g of the chosen experts from their scores s. The bias has influenced which experts were chosen,
 * but it does not influence the weights.
 *     sigmoid:  g = (s / sum s) * factor  with norm_topk_prob (eq. 13), else g = s * factor
 *     softmax:  g = s / sum s             with norm_topk_prob, else g = s * factor
 * Mistral 4 has softmax, but weights as with sigmoid. */
void ref_expert_weights(const struct reference_run *run, double *weights, const double *experts, const double *scores)
{
    const struct config *c = run->c;
    int X = c->num_experts_per_tok, sigmoid = c->scoring_func == SCORING_SIGMOID;
    double sum = 0;
    for (int j = 0; j < X; j++)
        sum += scores[(int)experts[j]];
    sum = ref_normaliser(run, sum);
    for (int j = 0; j < X; j++) {
        double s = scores[(int)experts[j]], g = c->norm_topk_prob ? s / sum : s;
        weights[j] = round_gate(run, (sigmoid ? round_gate(run, g) : g) * ref_weight_factor(c));
    }
}

/* run->router [S,E] = W x. With gate=bf16, x, W and the result are rounded to BF16. */
void ref_gate_logits(struct reference_run *run, const struct matrix *w, const double *x, int S)
{
    size_t E = (size_t)w->rows, D = (size_t)w->cols;
    if (!ref_convention(run, GATE)) {
        ref_product(run, run->router, w, x, S);
        return;
    }
    for (size_t e = 0; e < E; e++) {
        ref_row(w, (int)e, run->row);
        for (size_t s = 0; s < (size_t)S; s++) {
            double sum = 0;
            for (size_t d = 0; d < D; d++)
                sum += round_gate(run, run->row[d]) * round_gate(run, x[s * D + d]);
            run->router[s * E + e] = round_gate(run, sum);
        }
    }
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

/* Chooses the experts of each token, run->experts [S,X], and computes their weights, run->weights [S,X], from x [S,D].
 *     scores = sigmoid or softmax of W x;  choice = scores + bias (eq. 16; only noaux_tc has a bias)
 * The topk_group groups with the best scores are kept. The choices of all other groups become -inf, or 0 for
 * Mistral 4. Then the X experts with the largest choices are chosen. */
static void route(struct reference_run *run, const struct reference_layer *w, const double *x, int S)
{
    const struct config *c = run->c;
    int E = c->n_routed_experts, X = c->num_experts_per_tok, grouped = c->topk_method != TOPK_GREEDY;
    int G = c->n_group, size = grouped ? E / G : E;

    ref_gate_logits(run, &w->router, x, S);
    ref_value(run, "router_logits", -1, S, E, run->router);
    for (int s = 0; s < S; s++)
        ref_scores(run, run->router + (size_t)s * E);
    ref_value(run, "router_scores", -1, S, E, run->router);

    memcpy(run->choice, run->router, sizeof *run->choice * (size_t)S * E);
    if (c->topk_method == TOPK_NOAUX_TC) {
        ref_row(&w->bias, 0, run->row);
        for (int s = 0; s < S; s++)
            for (int e = 0; e < E; e++)
                run->choice[(size_t)s * E + e] += run->row[e];
        ref_value(run, "router_choice", -1, S, E, run->choice);
    }
    if (grouped) {
        for (int s = 0; s < S; s++)
            for (int g = 0; g < G; g++)
                run->groups[s * G + g] = ref_group_score(c, run->choice + (size_t)s * E + g * size, size);
        ref_value(run, "router_groups", -1, S, G, run->groups);
    }

    for (int s = 0; s < S; s++) {
        double *choice = run->choice + (size_t)s * E, *experts = run->experts + (size_t)s * X;
        if (grouped) {
            double *kept = run->groups + (size_t)s * c->topk_group; /* overwrites scores of groups that are not needed
                                                                       again */
            ref_choose(run->chosen, run->groups + (size_t)s * G, G, c->topk_group);
            for (int g = 0; g < G; g++)
                if (run->chosen[g])
                    *kept++ = g;
            for (int e = 0; e < E; e++)
                if (!run->chosen[e / size])
                    choice[e] = ref_masks_with_zero(run) ? 0 : -INFINITY;
        }
        ref_choose(run->chosen, choice, E, X);
        for (int e = 0; e < E; e++)
            if (run->chosen[e])
                *experts++ = e;
        force(run, experts - X, s);
        ref_expert_weights(run, run->weights + (size_t)s * X, experts - X, run->router + (size_t)s * E);
    }
    if (grouped)
        ref_show(run, "router_kept", -1, S, c->topk_group, run->groups);
    ref_show(run, "router_experts", -1, S, X, run->experts);
    ref_value(run, "router_weights", -1, S, X, run->weights);
}

/* out[s] = sum_e g[s,e] expert_e(x[s]) + shared(x[s])     (eq. 12 without its residual term) */
void ref_moe(struct reference_run *run, double *out, const struct reference_layer *w, const double *x, int S)
{
    const struct config *c = run->c;
    size_t D = c->dims.d, row = sizeof(double) * D;
    int X = c->num_experts_per_tok;

    route(run, w, x, S);
    for (int e = 0; e < c->n_routed_experts; e++) { /* run each expert on the tokens that chose it */
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

    for (size_t s = 0; s < (size_t)S; s++)
        for (size_t d = 0; d < D; d++) {
            double sum = 0;
            for (size_t j = 0; j < (size_t)X; j++) /* in ascending order of the expert's index */
                sum += run->weights[s * X + j] * run->routed[(s * X + j) * D + d];
            out[s * D + d] = sum;
        }
    ref_value(run, "experts_sum", -1, S, (int)D, out);
    if (!c->n_shared_experts)
        return;
    ref_mlp(run, run->expert_out, &w->shared, -1, x, S);
    for (size_t i = 0; i < (size_t)S * D; i++)
        out[i] += run->expert_out[i];
    ref_value(run, "moe", -1, S, (int)D, out);
}
