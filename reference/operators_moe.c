/* reference/operators_moe.c -- the operators of the feed-forward part: experts, dense layers, and the steps of the
 * router. The arithmetic is that of moe.c. */
#include "reference/operators_internal.h"

#include <math.h>
#include <string.h>

static void feed_forward(struct reference_call *k, const struct reference_mlp *w, int index)
{
    ref_mlp(k->run, k->out, w, index, k->in[0], k->S);
    ref_op_slack_of_ranks(k, &w->down_proj, k->run->gate, (size_t)k->S, k->slack); /* ref_mlp leaves there what
                                                                                      down_proj reads */
    k->inner = 1;
}

void ref_op_dense(struct reference_call *k) { feed_forward(k, &k->w->mlp, -1); }
void ref_op_expert(struct reference_call *k) { feed_forward(k, &k->w->experts[k->expert], k->expert); }
void ref_op_shared_expert(struct reference_call *k) { feed_forward(k, &k->w->shared, -1); }

void ref_op_gate(struct reference_call *k)
{
    const struct matrix *w = &k->w->router;
    const double *x = k->in[0];
    if (k->run->noisy_x) {
        memcpy(k->run->rounded, x, (size_t)k->S * (size_t)w->cols * sizeof *x);
        ref_noise(k->run, k->run->rounded, (size_t)k->S * (size_t)w->cols);
        x = k->run->rounded;
    }
    ref_gate_logits(k->run, w, x, k->S);
    memcpy(k->out, k->run->router, (size_t)k->S * (size_t)w->rows * sizeof *k->out);
    ref_op_slack_of_sums(k, w);
}

void ref_op_scores(struct reference_call *k)
{
    size_t E = (size_t)k->run->c->n_routed_experts;
    memcpy(k->out, k->in[0], (size_t)k->S * E * sizeof *k->out);
    for (size_t s = 0; s < (size_t)k->S; s++)
        ref_scores(k->run, k->out + s * E);
    ref_op_roundings(k, 3, (size_t)k->S * E);
    k->terms = E;
}

void ref_op_choice(struct reference_call *k)
{
    size_t E = (size_t)k->run->c->n_routed_experts;
    ref_row(&k->w->bias, 0, k->run->row);
    for (size_t i = 0; i < (size_t)k->S * E; i++) {
        k->out[i] = k->in[0][i] + k->run->row[i % E];
        if (k->slack)
            k->slack[i] = k->unit * (fabs(k->in[0][i]) + fabs(k->run->row[i % E]));
    }
}

void ref_op_group_scores(struct reference_call *k)
{
    const struct config *c = k->run->c;
    size_t G = (size_t)c->n_group, size = (size_t)c->n_routed_experts / G;
    for (size_t i = 0; i < (size_t)k->S * G; i++)
        k->out[i] = ref_group_score(c, k->in[0] + i * size, (int)size);
    ref_op_roundings(k, 2, (size_t)k->S * G);
}

static void choose(struct reference_call *k, const double *x, size_t n, size_t chosen, double *out)
{
    ref_choose(k->run->chosen, x, (int)n, (int)chosen);
    for (size_t i = 0; i < n; i++)
        if (k->run->chosen[i])
            *out++ = (double)i;
}

void ref_op_groups(struct reference_call *k)
{
    size_t G = k->in_width[0], kept = (size_t)k->run->c->topk_group;
    for (size_t s = 0; s < (size_t)k->S; s++)
        choose(k, k->in[0] + s * G, G, kept, k->out + s * kept);
}

void ref_op_experts(struct reference_call *k)
{
    const struct config *c = k->run->c;
    size_t E = (size_t)c->n_routed_experts, X = (size_t)c->num_experts_per_tok, kept = (size_t)c->topk_group;
    for (size_t s = 0; s < (size_t)k->S; s++) {
        double *x = k->run->choice + s * E;
        memcpy(x, k->in[0] + s * E, E * sizeof *x);
        for (size_t e = 0; e < E && k->in[1]; e++) {
            int is_kept = 0;
            for (size_t g = 0; g < kept; g++)
                is_kept |= k->in[1][s * kept + g] == (double)(e / (E / (size_t)c->n_group));
            if (!is_kept)
                x[e] = ref_masks_with_zero(k->run) ? 0 : -INFINITY;
        }
        choose(k, x, E, X, k->out + s * X);
    }
}

void ref_op_weights(struct reference_call *k)
{
    const struct config *c = k->run->c;
    size_t E = (size_t)c->n_routed_experts, X = (size_t)c->num_experts_per_tok;
    for (size_t s = 0; s < (size_t)k->S; s++)
        ref_expert_weights(k->run, k->out + s * X, k->in[1] + s * X, k->in[0] + s * E);
    ref_op_roundings(k, 4, (size_t)k->S * X);
}

/* The outputs of the chosen experts, [X, D] per row, in the order of the row's experts. Ranks may round their sums
 * before and after they are multiplied by the expert's weight. */
void ref_op_chosen_experts(struct reference_call *k)
{
    const struct config *c = k->run->c;
    size_t X = (size_t)c->num_experts_per_tok, D = c->dims.d;
    for (int e = 0; e < c->n_routed_experts; e++) {
        int rows = 0;
        for (size_t i = 0; i < (size_t)k->S * X; i++)
            if (k->in[1][i] == e)
                memcpy(k->run->expert_in + (size_t)rows++ * D, k->in[0] + i / X * D, D * sizeof *k->out);
        if (!rows)
            continue;
        ref_mlp(k->run, k->run->expert_out, &k->w->experts[e], e, k->run->expert_in, rows);
        memset(k->run->normed, 0, (size_t)rows * D * sizeof *k->out);
        ref_op_slack_of_ranks(k, &k->w->experts[e].down_proj, k->run->gate, (size_t)rows, k->run->normed);
        rows = 0;
        for (size_t i = 0; i < (size_t)k->S * X; i++)
            if (k->in[1][i] == e) {
                for (size_t d = 0; d < D && k->slack; d++)
                    k->slack[i * D + d] = 2 * k->run->normed[(size_t)rows * D + d];
                memcpy(k->out + i * D, k->run->expert_out + (size_t)rows++ * D, D * sizeof *k->out);
            }
    }
    k->inner = 1;
}

/* A weight, an expert's output that is not rounded yet, their product and every partial sum may be rounded. The squares
 * of these errors are added, because they are independent: 8 times the standard deviation of all, and at most their
 * sum. */
void ref_op_sum_of_experts(struct reference_call *k)
{
    size_t X = (size_t)k->run->c->num_experts_per_tok, D = k->run->c->dims.d;
    for (size_t s = 0; s < (size_t)k->S; s++)
        for (size_t d = 0; d < D; d++) {
            double sum = 0, size = 0, squares = 0, largest = 0;
            for (size_t j = 0; j <= X; j++) {
                double term = j < X ? k->in[1][s * X + j] * k->in[0][(s * X + j) * D + d]
                              : k->in[2] ? k->in[2][s * D + d]
                              : 0;
                sum += term;
                size += fabs(term);
                squares += 3 * term * term;
                largest = fmax(largest, fabs(sum));
            }
            k->out[s * D + d] = sum;
            squares += (double)(X + 1) * fmax(largest * largest, size * size / 4);
            if (k->slack)
                k->slack[s * D + d] = k->unit * fmin(8 * sqrt(squares / 3), (double)(X + 4) * size);
        }
}
