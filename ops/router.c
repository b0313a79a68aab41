#include "ops/router.h"

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
/* States of an expert or a group: it cannot be chosen; it can be chosen; it can be chosen and counts as 0; it has been chosen. */
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

/* Closes all experts outside the chosen_groups best groups. */
static void close_groups(const struct router *r, const float *choice, int32_t *state, float *scores, int32_t *group)
{
    size_t size = r->experts / r->groups;
    for (size_t g = 0; g < r->groups; g++) {
        scores[g] = group_score(choice + g * size, size, r->group_sum_of_two);
        group[g] = OPEN;
    }
    for (size_t i = 0; i < r->chosen_groups; i++)
        elect(scores, group, r->groups);
    for (size_t e = 0; e < r->experts; e++)
        state[e] = group[e / size] == ELECTED ? OPEN : r->mask_with_zero ? OPEN_AS_ZERO : CLOSED;
}

static float normaliser(const struct router *r, float sum)
{
    if (r->normaliser == 2)
        return sum > 0x1p-14f ? sum : 0x1p-14f;
    return r->normaliser ? sum + 1e-20f : sum;
}

static void weigh(float *weight, const int32_t *expert, const float *s, const struct router *r)
{
    float sum = 0.0f;
    int rounded = r->sigmoid && r->bf16;
    for (size_t i = 0; i < r->chosen; i++)
        sum = sum + s[expert[i]];
    if (rounded)
        op_round_bf16(&sum, &sum, 1);
    sum = normaliser(r, sum);
    for (size_t i = 0; i < r->chosen; i++) {
        float w = r->norm_topk_prob ? s[expert[i]] / sum : s[expert[i]];
        if (rounded)
            op_round_bf16(&w, &w, 1);
        weight[i] = r->sigmoid || !r->norm_topk_prob ? w * r->routed_scaling_factor : w;
    }
    if (r->bf16)
        op_round_bf16(weight, weight, r->chosen);
}

static void show(struct op_probe *p, size_t row, const struct router *r, const float *s, const float *choice,
                 const float *group_scores, const int32_t *group, const int32_t *expert, const float *weight)
{
    int32_t groups[256];
    size_t kept = 0;
    p->see(p, "scores", row, 1, s, 0, r->experts);
    if (r->bias)
        p->see(p, "choice", row, 1, choice, 0, r->experts);
    if (r->grouped && r->chosen_groups < r->groups && r->groups <= sizeof groups / sizeof *groups) {
        for (size_t g = 0; g < r->groups; g++)
            if (group[g] == ELECTED)
                groups[kept++] = (int32_t)g;
        p->see(p, "group_scores", row, 1, group_scores, 0, r->groups);
        p->see(p, "groups", row, 1, groups, 1, kept);
    }
    p->see(p, "experts", row, 1, expert, 1, r->chosen);
    p->see(p, "weights", row, 1, weight, 0, r->chosen);
}

void op_router(struct op_ctx *cx, int32_t *expert, float *weight, const float *logits, const struct router *r, size_t S)
{
    size_t mark = op_mark(cx), E = r->experts, blocks = E / SOFTMAX_BLOCK + 1;
    float *s = op_take(cx, E), *choice = op_take(cx, E), *few = op_take(cx, r->groups + blocks);
    int32_t *state = (int32_t *)op_take(cx, E), *group = (int32_t *)op_take(cx, r->groups);
    for (size_t row = 0; row < S; row++, logits += E, expert += r->chosen, weight += r->chosen) {
        if (r->sigmoid)
            sigmoid(cx, s, logits, E);
        else
            softmax(cx, s, logits, E, few);
        if (r->sigmoid && r->bf16)
            op_round_bf16(s, s, E);
        for (size_t e = 0; e < E; e++) {
            choice[e] = r->bias ? s[e] + r->bias[e] : s[e]; /* the bias elects experts; weights stay unbiased */
            state[e] = OPEN;
        }
        if (r->grouped && r->chosen_groups < r->groups)
            close_groups(r, choice, state, few, group);
        for (size_t i = 0; i < r->chosen; i++)
            elect(choice, state, E);
        for (size_t e = 0, i = 0; e < E; e++)
            if (state[e] == ELECTED)
                expert[i++] = (int32_t)e;
        if (r->forced && r->forced[row])
            memcpy(expert, r->forced[row], r->chosen * sizeof *expert);
        weigh(weight, expert, s, r);
        if (cx->probe)
            show(cx->probe, row, r, s, choice, few, group, expert, weight);
    }
    op_give(cx, mark);
}
