/* engine/choose/acceptance.h -- which token a row chooses when a draft stands beside it, and how drafts are drawn.
 *
 *   strict     the target's token, sampled with a number that depends on (seed, index) alone; the draft stands if it is that
 *   rejection  p: the target's distribution at this index, q: the one that the draft was drawn from, both after bias, penalties
 *              (counting the drafts before), mask, temperature, top-k, top-p and min-p. The draft d stands with probability
 *              min(1, p(d)/q(d)); else the token is drawn from max(p - q, 0). A draft that was not drawn is a point mass:
 *              q(d) = 1. (Leviathan et al. 2023; Chen et al. 2023.) Streams of random numbers: 1 draws a draft, 2 accepts, 3
 *              draws in its place, 0 chooses where there is no draft. The output has the distribution of plain decoding as long
 *              as neither q nor the number of drafts depends on a draft that is not yet verified but through the drafts before.
 *   relaxed    strict; but between the thinking tokens a draft stands also if it is one of the N best and p(d) >= p_best - delta,
 *              at temperature 1
 *
 * Weights need no normalising: p(d)/q(d) >= u is u * (q_d * P) < p_d * Q with P and Q the sums, and max(p - q, 0) is in the
 * proportions of max(p_t * Q - q_t * P, 0). All in double, in this order. */
#ifndef VB_ACCEPTANCE_H
#define VB_ACCEPTANCE_H

#include "engine/choose/sampler.h"

struct acceptance;

/* max_draft: the longest draft. Refuses values that make no sense, naming them. The sampler stays the caller's. */
int acceptance_open(struct acceptance **out, const vb_sampling *o, struct sampler *sampler, size_t V, int max_draft,
                    const vb_allocator *a, vb_error *err);
void acceptance_close(struct acceptance *s, const vb_allocator *a);

/* Before the drafts of a round: none is drawn yet. */
void acceptance_round(struct acceptance *s);
/* Whether drafts are drawn; else they are what their method takes for the best. */
int acceptance_draws(const struct acceptance *s);
/* Draft `number`, from 1, drawn from its row of logits [V], which must be finite. tokens[0..count) are the timeline, which
 * the drafts before it follow. */
int32_t acceptance_draw(struct acceptance *s, const float *logits, const int32_t *tokens, size_t count, int number);

/* A draft beside a row. */
struct draft_at {
    int32_t token;
    int number;        /* of the round, from 1; 0: there is none */
    int never_relaxed; /* an end token */
};

struct verdict {
    int32_t token;      /* -1: no candidate is left */
    int stands;         /* it is the draft */
    int relaxed;        /* and not the target's own token: */
    double nats;        /* log p_best - log p */
    enum vb_reject why; /* when there was a draft and it does not stand */
};

/* The token of index `index`, given the target's row of logits [V], finite, and the tokens before it. */
struct verdict acceptance_choose(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                                 const struct draft_at *d);

/* The rules of rejection on weights p and q [V] with sums P and Q; q NULL: a point mass on d, Q = 1. */
int rejection_accepts(const double *p, double P, const double *q, double Q, int32_t d, double u);
/* -> rest [V], which may not be p or q; its sum */
double rejection_rest(double *rest, const double *p, double P, const double *q, double Q, int32_t d, size_t V);

#endif
