/* engine/choose/acceptance.h -- accepts or rejects drafts, and draws drafts at random where a mode needs it.
 *
 * There are three modes.
 *
 * Mode strict chooses the target's token. It is sampled with a random number that depends only on the seed and the
 * index of the token. A draft is accepted if it is this token.
 *
 * Mode rejection is speculative sampling (Leviathan et al. 2023; Chen et al. 2023). Let p be the target's distribution
 * at an index, and q the distribution that draft d was drawn from. p and q are taken after bias, penalties (which count
 * the drafts before as output), mask, temperature, top-k, top-p and min-p. d is accepted with probability min(1,
 * p(d)/q(d)). If it is rejected, the token is drawn from max(p - q, 0), normalised. If d was not drawn at random, then
 * q(d) = 1.
 *
 * Mode rejection uses four streams of random numbers (enum random_stream): 1 draws drafts, 2 decides about acceptance,
 * 3 draws the token in place of a rejected draft, and 0 chooses tokens where there is no draft. The output has the
 * distribution of plain decoding, on one condition: q and the number of drafts may depend on the drafts before, but on
 * no other random draw.
 *
 * Mode relaxed works as strict. But between the thinking tokens, a draft is also accepted if it is among the N best
 * tokens and p(d) >= p_best - delta, at temperature 1.
 *
 * The code uses weights p_t and q_t that are not normalised; P and Q are their sums. d is accepted if u * (q_d * P) <
 * p_d * Q, with u random in [0, 1). Otherwise a token t is drawn in proportion to max(p_t * Q - q_t * P, 0). All of
 * this is in double, in this order. */
#ifndef VB_ACCEPTANCE_H
#define VB_ACCEPTANCE_H

#include "engine/choose/sampler.h"

struct acceptance;

/* Opens *out, which the caller closes with acceptance_close. max_draft is the length of the longest draft. Returns
 * VB_BAD_ARGUMENT, naming the option, if a value makes no sense. The caller keeps the sampler, which must outlive *out. */
int acceptance_open(struct acceptance **out, const vb_sampling *o, struct sampler *sampler, size_t V, int max_draft,
                    const vb_allocator *a, vb_error *err);
void acceptance_close(struct acceptance *s, const vb_allocator *a);

/* Begins a round: forgets the distributions of the last round's drafts. */
void acceptance_round(struct acceptance *s);
/* Returns whether drafts are drawn at random. If they are not, the draft method proposes the tokens that it considers
 * best. */
int acceptance_draws(const struct acceptance *s);
/* Draws draft `number`, counted from 1, from its row of logits [V], which must be finite. tokens[0..count) are the
 * tokens before the round, and the earlier drafts of the round follow them in `tokens`. */
int32_t acceptance_draw(struct acceptance *s, const float *logits, const int32_t *tokens, size_t count, int number);

/* The draft that a row verifies. */
struct draft_at {
    int32_t token;
    int number;        /* number of the draft in its round, from 1; 0: the row has no draft */
    int never_relaxed; /* nonzero for an end token, which relaxed acceptance does not accept */
};

struct verdict {
    int32_t token;      /* the chosen token; -1 if no token is allowed */
    int stands;         /* nonzero: the draft is accepted, so it is the chosen token */
    int relaxed;        /* nonzero: it was accepted although it is not the target's token */
    double nats;        /* if `relaxed`: log p_best - log p(token) */
    enum vb_reject why; /* why the draft was rejected, if there was one and it was */
};

/* Chooses the token with index `index`, from the target's row of logits [V], which must be finite, and the tokens
 * before it. `d` is the draft for this index. */
struct verdict acceptance_choose(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                                 const struct draft_at *d);

/* Returns whether mode rejection accepts d, for weights p [V] and q [V] with sums P and Q. If q is NULL, d was not
 * drawn at random: its weight is 1, and Q must be 1. */
int rejection_accepts(const double *p, double P, const double *q, double Q, int32_t d, double u);
/* Sets rest [V] to the weights from which mode rejection draws in place of d, and returns their sum. rest is not p or
 * q. */
double rejection_rest(double *rest, const double *p, double P, const double *q, double Q, int32_t d, size_t V);

#endif
