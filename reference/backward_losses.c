/* reference/backward_losses.c -- the losses of draft rows that learn from the target: its distribution, and its hidden
 * states. backward_layers.h has the formulas. */
#include "reference/backward_layers.h"

#include <math.h>

/* log(sum exp(z)) */
static double log_sum(const double *z, int V)
{
    double max = z[0], sum = 0;
    for (int v = 1; v < V; v++)
        max = fmax(max, z[v]);
    for (int v = 0; v < V; v++)
        sum += exp(z[v] - max);
    return max + log(sum);
}

/* Returns the index of the K-th largest of x [V], K >= 1. Of equal numbers, the lowest index is the best. */
static int last_of_top(const double *x, int K, int V)
{
    int last = -1;
    for (int k = 0; k < K && k < V; k++) {
        int best = -1; /* of those that come after `last` */
        for (int v = 0; v < V; v++)
            if ((last < 0 || x[v] < x[last] || (x[v] == x[last] && v > last)) && (best < 0 || x[v] > x[best]))
                best = v;
        last = best;
    }
    return last;
}

void ref_soft_cross_entropy(struct reference_terms *sums, double *dz, const double *z, const double *target,
                            const int32_t *tok, int S, int V, const struct loss_terms *terms, double weight)
{
    for (int s = 0; s < S; s++, z += V, target += V) {
        if (tok[s] < 0)
            continue;
        double log_q = log_sum(z, V), log_p = log_sum(target, V), mass = terms->data + terms->soft;
        int last = terms->top != 0 ? last_of_top(target, terms->top_tokens, V) : -1;
        for (int v = 0; v < V; v++) {
            double p = exp(target[v] - log_p), nats = log_q - z[v];
            int top = last >= 0 && (target[v] > target[last] || (target[v] == target[last] && v <= last));
            sums->data += v == tok[s] ? nats : 0;
            sums->soft += p * nats;
            sums->top += top ? p * nats : 0;
            sums->entropy += p * (log_p - target[v]);
            mass += top ? terms->top * p : 0;
            if (dz)
                dz[(size_t)s * (size_t)V + (size_t)v] -= weight * (terms->data * (v == tok[s]) +
                                                                   (terms->soft + top * terms->top) * p);
        }
        for (int v = 0; dz && v < V; v++)
            dz[(size_t)s * (size_t)V + (size_t)v] += weight * mass * exp(z[v] - log_q);
    }
}

double ref_smooth_l1(double *dx, const double *x, const double *target, const int32_t *tok, int S, int D, double weight)
{
    double loss = 0;
    for (size_t i = 0; i < (size_t)S * (size_t)D; i++) {
        if (tok[i / (size_t)D] < 0)
            continue;
        double e = x[i] - target[i];
        loss += (fabs(e) < 1 ? e * e / 2 : fabs(e) - 0.5) / D;
        if (dx)
            dx[i] += weight / D * fmax(-1, fmin(1, e));
    }
    return loss;
}
