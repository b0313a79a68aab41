/* engine/choose/acceptance.h -- accepts or rejects drafts. In mode rejection, it also draws drafts at random.
 *
 * There are three modes.
 *
 * Mode strict always chooses the target's own token. This token is sampled with a random number that depends only on
 * the seed and the index of the token. A draft is accepted if it equals the target's own token.
 *
 * Mode rejection is speculative sampling (Leviathan et al. 2023; Chen et al. 2023). Let p be the target's distribution
 * at an index, and let q be the distribution from which draft d was drawn. Both distributions are computed with the
 * bias, the penalties, the mask, the temperature, top-k, top-p and min-p. For the penalties, earlier drafts of the
 * round count as output. d is accepted with probability min(1, p(d)/q(d)). If d is rejected, another token is drawn
 * from the normalised max(p - q, 0). If d was not drawn at random, then q(d) = 1.
 *
 * Mode rejection uses the four streams of random numbers in enum random_stream. Stream 1 draws drafts. Stream 2 decides
 * whether a draft is accepted. Stream 3 draws the token that replaces a rejected draft. Stream 0 chooses the token at
 * an index without a draft. The output has the same distribution as plain decoding if one condition is met: apart from
 * the tokens before the round, q and the number of drafts depend on no random numbers except those that drew the
 * earlier drafts of the round.
 *
 * Mode relaxed works like mode strict, except while the model is thinking: one special token begins the thinking, and
 * another ends it. Between these tokens, a draft d that differs from the target's own token can also be accepted. It is
 * accepted if it is one of the relaxed_topk most probable tokens and p(d) >= p_best - relaxed_delta. These
 * probabilities are computed at temperature 1.
 *
 * In the code, p_t and q_t are weights that are not normalised. P is the sum of all p_t, and Q is the sum of all q_t.
 * Draft d is accepted if u * (q_d * P) < p_d * Q, where u is a random number in [0, 1). Otherwise token t is drawn with
 * probability proportional to max(p_t * Q - q_t * P, 0). These expressions are evaluated in double precision, in the
 * order in which they are written here. */
#ifndef VB_ACCEPTANCE_H
#define VB_ACCEPTANCE_H

#include "engine/choose/sampler.h"

struct acceptance;

/* Opens *out, which the caller closes with acceptance_close. max_draft is the length of the longest draft. Returns
 * VB_BAD_ARGUMENT if the value of an option is invalid, and the message names the option. Returns VB_NO_MEMORY if there
 * is no memory. The caller still owns the sampler, which must outlive *out. */
int acceptance_open(struct acceptance **out, const vb_sampling *o, struct sampler *sampler, size_t V, int max_draft,
                    const vb_allocator *a, vb_error *err);
void acceptance_close(struct acceptance *s, const vb_allocator *a);

/* Begins a round: forgets the distributions from which the drafts of the previous round were drawn. */
void acceptance_round(struct acceptance *s);
/* Returns whether drafts are drawn at random. If drafts are not drawn at random, the draft method proposes the tokens
 * that it considers best. */
int acceptance_draws(const struct acceptance *s);
/* Draws draft `number`, counted from 1, from its row of logits [V], which must be finite. tokens[0..count) are the
 * tokens before the round, and the earlier drafts of the round follow them in `tokens`. */
int32_t acceptance_draw(struct acceptance *s, const float *logits, const int32_t *tokens, size_t count, int number);
/* Says that draft `number` was drawn at random from `weights` [V], whose sum is Q > 0. acceptance_draw calls it; a
 * caller who draws drafts itself calls it instead. acceptance_draws must be nonzero. */
void acceptance_drew(struct acceptance *s, const double *weights, double Q, int number);

/* The draft that a row verifies. */
struct draft_at {
    int32_t token;
    int number;        /* number of the draft in its round, from 1; 0: the row has no draft */
    int never_relaxed; /* nonzero: the draft is accepted only if it equals the target's own token. The caller sets this
                          for end tokens */
};

struct verdict {
    int32_t token;      /* the chosen token; -1 if no token is allowed */
    int stands;         /* nonzero: the draft is accepted, so it is the chosen token */
    int relaxed;        /* nonzero: the draft was accepted although it is not the target's own token */
    double nats;        /* if `relaxed` is nonzero: log p_best - log p(token) */
    enum vb_reject why; /* why the draft was rejected; meaningless if there was no draft or if the draft was accepted */
};

/* Chooses the token with index `index`. logits [V] is the target's row for this index and must be finite.
 * tokens[0..index) are the earlier tokens. `d` is the draft for this index. */
struct verdict acceptance_choose(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                                 const struct draft_at *d);

/* Returns whether mode rejection accepts d, for weights p [V] and q [V] with sums P and Q. If q is NULL, d was not
 * drawn at random: its weight is 1, and Q must be 1. */
int rejection_accepts(const double *p, double P, const double *q, double Q, int32_t d, double u);
/* Sets rest [V] to the weights with which mode rejection draws the token that replaces the rejected draft d. Returns
 * the sum of these weights. `rest` must not be the same array as p or q. */
double rejection_rest(double *rest, const double *p, double P, const double *q, double Q, int32_t d, size_t V);

#endif
