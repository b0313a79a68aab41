/* ops/router.h -- chooses the experts of each token, and their weights.
 *
 * DeepSeek-V3 (report, 2.1.2): s = sigmoid(logit), and choice = s + bias. The score of a group of experts is the sum of
 * the two largest values of `choice` in it. The topk_group groups with the largest scores are kept. In these groups,
 * the experts with the largest values of `choice` are chosen. Their weights come from s *without* the bias.
 *
 * DeepSeek-V2: s = softmax(logits), and choice = s. If topk_method is group_limited_greedy, the score of a group is the
 * largest s in it. With topk_method greedy, there are no groups.
 *
 * docs/ARITHMETIC.md, rule 7, defines the order in which experts and groups are chosen. A larger value comes first. Of
 * equal values, the one with the lower index comes first. -0 equals +0, and NaN comes last. The softmax uses m_b, p_j,
 * l_b, e_b and L of rule 4, in blocks of 256, and s_j = (p_j e_b) / L. Sums over the chosen experts are in ascending
 * order of the experts' indices.
 *
 * If norm_topk_prob is 0, a weight is s * routed_scaling_factor. If norm_topk_prob is nonzero, s is divided by `sum`,
 * the sum of s over the chosen experts. With sigmoid, a weight is (s / sum) * routed_scaling_factor, and the division
 * and the product are each rounded. With softmax, a weight is s / sum, and routed_scaling_factor is not used (as in
 * Hugging Face's code of DeepSeek-V2), unless scale_softmax is nonzero: then a weight is as with sigmoid.
 *
 * Mistral 4: s = softmax(logits), choice = s, a group's score is the sum of its two largest values of `choice`, the
 * choice of experts in other groups is 0 (mask_with_zero), and weights are scaled (scale_softmax).
 *
 * The caller may force the experts of a row (`forced`). The scores s are computed as always, and the weights come from
 * the s of the forced experts. If these are the experts that the router chooses, all bits are the same. */
#ifndef VB_ROUTER_H
#define VB_ROUTER_H

#include "ops/op.h"

struct router {
    size_t experts, chosen;         /* number of experts E, and experts per token (num_experts_per_tok) */
    size_t groups, chosen_groups;   /* n_group and topk_group */
    int sigmoid;                    /* scoring_func: nonzero for sigmoid, 0 for softmax */
    int group_sum_of_two;           /* a group's score. 1 (noaux_tc): the sum of the two largest values of `choice` in
                                       the group; 0: the largest of these values */
    int grouped;                    /* nonzero unless topk_method is greedy */
    int norm_topk_prob;
    float routed_scaling_factor;
    const float *bias;              /* [E] or NULL; it affects which experts are chosen, but not their weights */
    /* The next three members make the router do what other implementations do (engine/model/conventions.h). If all
     * three are 0, the router works as described above. */
    int mask_with_zero;             /* 1: experts outside of the kept groups can be chosen too, and their `choice` is
                                       0 */
    int normaliser;                 /* the divisor for norm_topk_prob. 0: sum; 1: sum + 1e-20; 2: max(sum, 2^-14) */
    const int32_t *const *forced;   /* NULL, or [S]: forced[s] is NULL, or the experts that row s must take, [chosen],
                                       in ascending order */
    int bf16;                       /* 1: weights are rounded to BF16; with sigmoid, s, the sum and s / sum are rounded
                                       too */
    int scale_softmax;              /* 1: with softmax and norm_topk_prob, weights are multiplied by
                                       routed_scaling_factor too */
};

size_t op_router_scratch(const struct router *r);
/* Reads logits [S,E] for S tokens. Writes each token's experts to expert [S,chosen], in ascending order, and their
 * weights to weight [S,chosen], in the same order. */
void op_router(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r,
               size_t S);

/* The steps of op_router for one token, for callers who have the values between two steps. s [E] are the scores. The
 * groups matter only if r->grouped is set and chosen_groups is less than groups. kept [groups] says of each group
 * whether it is kept; op_router_experts keeps all groups if `kept` is NULL. `scratch` has room for E / 256 + 1 floats,
 * and `state` for E numbers. */
void op_router_scores(const struct op_ctx *cx, float *s, const float *logits, const struct router *r, float *scratch);
void op_router_choice(float *choice, const float *s, const struct router *r);
void op_router_group_scores(float *scores, const float *choice, const struct router *r);
void op_router_groups(int32_t *kept, const float *scores, const struct router *r);
void op_router_experts(int32_t *expert, const float *choice, const int32_t *kept, const struct router *r,
                       int32_t *state);
void op_router_weights(float *weight, const int32_t *expert, const float *s, const struct router *r);
/* Returns the divisor for norm_topk_prob from the sum of the chosen scores. */
float op_router_normaliser(const struct router *r, float sum);

#endif
