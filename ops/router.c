#include "ops/router.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/round.h"

#define SOFTMAX_BLOCK 256

size_t op_router_scratch(const struct router *r)
{
    return 3 * op_scratch_bytes(r->experts) + op_scratch_bytes(r->groups + r->experts / SOFTMAX_BLOCK + 1) +
           op_scratch_bytes(r->groups);
}

/* Returns 1 if value a at index i comes before value b at index j in the order of rule 7. */
static int before(float a, size_t i, float b, size_t j)
{
    if (isnan(a) || isnan(b))
        return isnan(a) == isnan(b) ? i < j : isnan(b);
    return a > b || (a == b && i < j);
}

static void sigmoid(const struct op_ctx *cx, float *s, const float *logits, size_t n)
{
    for (size_t e = 0; e < n; e++)
        s[e] = -logits[e];
    cx->k->exp(s, s, n);
    for (size_t e = 0; e < n; e++)
        s[e] = 1.0f / (1.0f + s[e]);
}

/* m [blocks] is scratch memory. */
static void softmax(const struct op_ctx *cx, float *s, const float *logits, size_t n, float *m)
{
    float M = logits[0], L = 0.0f, l, e;
    for (size_t j = 1; j < n; j++)
        M = logits[j] > M ? logits[j] : M;
    for (size_t j = 0, b = 0; j < n; j += SOFTMAX_BLOCK, b++) {
        m[b] = cx->k->softmax_block(s + j, logits + j, n - j < SOFTMAX_BLOCK ? n - j : SOFTMAX_BLOCK, &l);
        e = kernel_expf(m[b] - M);
        L = fmaf(e, l, L);
    }
    for (size_t j = 0; j < n; j++) {
        e = kernel_expf(m[j / SOFTMAX_BLOCK] - M);
        s[j] = s[j] * e / L;
    }
}

#define NONE ((size_t)-1)
/* States of an expert or a group: it cannot be chosen; it can be chosen; it can be chosen and counts as 0; it has been
 * chosen. */
enum { CLOSED, OPEN, OPEN_AS_ZERO, ELECTED };

/* Chooses the best open expert or group, in the order of `before`, and sets its state to ELECTED. */
static void elect(const float *scores, int32_t *state, size_t n)
{
    size_t best = NONE;
    float best_score = 0.0f;
    for (size_t e = 0; e < n; e++) {
        float score = state[e] == OPEN ? scores[e] : 0.0f;
        if ((state[e] == OPEN || state[e] == OPEN_AS_ZERO) && (best == NONE || before(score, e, best_score, best)))
            best = e, best_score = score;
    }
    state[best] = ELECTED;
}

static float group_score(const float *choice, size_t n, int sum_of_two)
{
    size_t best = 0, second = NONE;
    for (size_t e = 1; e < n; e++)
        if (before(choice[e], e, choice[best], best))
            second = best, best = e;
        else if (second == NONE || before(choice[e], e, choice[second], second))
            second = e;
    return sum_of_two ? choice[best] + choice[second] : choice[best];
}

void op_router_scores(const struct op_ctx *cx, float *s, const float *logits, const struct router *r, float *scratch)
{
    if (r->sigmoid)
        sigmoid(cx, s, logits, r->experts);
    else
        softmax(cx, s, logits, r->experts, scratch);
    if (r->sigmoid && r->bf16)
        op_round_bf16(s, s, r->experts);
}

void op_router_choice(float *choice, const float *s, const struct router *r)
{
    for (size_t e = 0; e < r->experts; e++)
        choice[e] = r->bias ? s[e] + r->bias[e] : s[e]; /* the bias elects experts; weights stay unbiased */
}

void op_router_group_scores(float *scores, const float *choice, const struct router *r)
{
    size_t size = r->experts / r->groups;
    for (size_t g = 0; g < r->groups; g++)
        scores[g] = group_score(choice + g * size, size, r->group_sum_of_two);
}

void op_router_groups(int32_t *kept, const float *scores, const struct router *r)
{
    for (size_t g = 0; g < r->groups; g++)
        kept[g] = OPEN;
    for (size_t i = 0; i < r->chosen_groups; i++)
        elect(scores, kept, r->groups);
    for (size_t g = 0; g < r->groups; g++)
        kept[g] = kept[g] == ELECTED;
}

void op_router_experts(int32_t *expert, const float *choice, const int32_t *kept, const struct router *r,
                       int32_t *state)
{
    size_t E = r->experts, size = kept ? E / r->groups : E;
    for (size_t e = 0; e < E; e++)
        state[e] = !kept || kept[e / size] ? OPEN : r->mask_with_zero ? OPEN_AS_ZERO : CLOSED;
    for (size_t i = 0; i < r->chosen; i++)
        elect(choice, state, E);
    for (size_t e = 0, i = 0; e < E; e++)
        if (state[e] == ELECTED)
            expert[i++] = (int32_t)e;
}

float op_router_normaliser(const struct router *r, float sum)
{
    if (r->normaliser == 2)
        return sum > 0x1p-14f ? sum : 0x1p-14f;
    return r->normaliser ? sum + 1e-20f : sum;
}

void op_router_weights(float *weight, const int32_t *expert, const float *s, const struct router *r)
{
    float sum = 0.0f;
    int rounded = r->sigmoid && r->bf16;
    for (size_t i = 0; i < r->chosen; i++)
        sum = sum + s[expert[i]];
    if (rounded)
        op_round_bf16(&sum, &sum, 1);
    sum = op_router_normaliser(r, sum);
    for (size_t i = 0; i < r->chosen; i++) {
        float w = r->norm_topk_prob ? s[expert[i]] / sum : s[expert[i]];
        if (rounded)
            op_round_bf16(&w, &w, 1);
        weight[i] = r->sigmoid || r->scale_softmax || !r->norm_topk_prob ? w * r->routed_scaling_factor : w;
    }
    if (r->bf16)
        op_round_bf16(weight, weight, r->chosen);
}

static void show(struct op_probe *p, size_t row, const struct router *r, const float *s, const float *choice,
                 const float *group_scores, const int32_t *kept, const int32_t *expert, const float *weight)
{
    int32_t groups[256];
    size_t count = 0;
    p->see(p, PROBE_ROUTER_SCORES, -1, row, 1, s, r->experts);
    if (r->bias)
        p->see(p, PROBE_ROUTER_CHOICE, -1, row, 1, choice, r->experts);
    if (kept && r->groups <= sizeof groups / sizeof *groups) {
        for (size_t g = 0; g < r->groups; g++)
            if (kept[g])
                groups[count++] = (int32_t)g;
        p->see(p, PROBE_ROUTER_GROUP_SCORES, -1, row, 1, group_scores, r->groups);
        p->see(p, PROBE_ROUTER_GROUPS, -1, row, 1, groups, count);
    }
    p->see(p, PROBE_ROUTER_EXPERTS, -1, row, 1, expert, r->chosen);
    p->see(p, PROBE_ROUTER_WEIGHTS, -1, row, 1, weight, r->chosen);
}

void op_router(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r, size_t S)
{
    size_t mark = op_mark(cx), E = r->experts, blocks = E / SOFTMAX_BLOCK + 1;
    float *s = op_take(cx, E), *choice = op_take(cx, E), *few = op_take(cx, r->groups + blocks);
    int32_t *state = (int32_t *)op_take(cx, E), *kept = (int32_t *)op_take(cx, r->groups);
    if (!r->grouped || r->chosen_groups == r->groups)
        kept = NULL;
    for (size_t row = 0; row < S; row++, logits += E, expert += r->chosen, weight += r->chosen) {
        op_router_scores(cx, s, logits, r, few);
        op_router_choice(choice, s, r);
        if (kept) {
            op_router_group_scores(few, choice, r);
            op_router_groups(kept, few, r);
        }
        op_router_experts(expert, choice, kept, r, state);
        if (r->forced && r->forced[row])
            memcpy(expert, r->forced[row], r->chosen * sizeof *expert);
        op_router_weights(weight, expert, s, r);
        if (cx->probe)
            show(cx->probe, row, r, s, choice, few, kept, expert, weight);
    }
    op_give(cx, mark);
}
