/* ops/router.h -- which experts a token goes to, and with what weight.
 *
 * V3 (DeepSeek-V3 report, 2.1.2): s = sigmoid(logit); choice = s + bias; a group scores the sum of its two best choices;
 *     the topk_group best groups stay; the best choices in them are taken; weights are the *unbiased* s.
 * V2: s = softmax(logits); a group scores its best s (group_limited_greedy), or there are no groups (greedy).
 *
 * Order (docs/ARITHMETIC.md, rule 7): every comparison is value descending, then index ascending; -0 equals +0; NaN ranks lowest. softmax
 * is rule 4's m, p, l in blocks of 256, then (p e_b) / L. Sums over chosen experts go in ascending expert index.
 * Weights: sigmoid with norm_topk_prob (s / sum) * factor, two roundings; without, s * factor; softmax with
 * norm_topk_prob s / sum (not scaled, as Hugging Face does); without, s * factor. */
#ifndef VB_ROUTER_H
#define VB_ROUTER_H

#include "ops/op.h"

struct router {
    size_t experts, chosen;         /* E, num_experts_per_tok */
    size_t groups, chosen_groups;   /* n_group, topk_group */
    int sigmoid;                    /* scoring_func: sigmoid, else softmax */
    int group_sum_of_two;           /* noaux_tc: two best, biased; else the best one */
    int grouped;                    /* topk_method is not greedy */
    int norm_topk_prob;
    float routed_scaling_factor;
    const float *bias;              /* [E] or NULL: elects experts, never weighs them */
    /* how others do it; all 0: as above (engine/model/conventions.h) */
    int mask_with_zero;             /* experts outside the kept groups stay in, with a choice of 0 */
    int normaliser;                 /* norm_topk_prob divides by 0: the sum; 1: sum + 1e-20; 2: max(sum, 2^-14) */
    int bf16;                       /* the weights are rounded to bf16; with sigmoid s, their sum and the quotients too */
};

size_t op_router_scratch(const struct router *r);

/* logits [S,E] -> expert [S,chosen] ascending, weight [S,chosen] in the same order. */
void op_router(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r, size_t S);

#endif
