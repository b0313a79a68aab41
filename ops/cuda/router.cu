/* ops/cuda/router.cu -- experts are chosen (rule 7, ops/router.h), and rows that are not finite are found. */
#include "ops/cuda/round.h"
#include "ops/cuda/softmax.h"

#define SOFTMAX_BLOCK 256
#define NONE 0xffffffffu
enum { CLOSED, OPEN, OPEN_AS_ZERO, ELECTED };

/* Returns a number that is larger the earlier value x at index i comes in the order of rule 7. It is never 0. */
DEVICE uint64_t rank_of(float x, unsigned i)
{
    return (uint64_t)order_of(x) << 32 | (NONE - i);
}

/* Chooses the best open expert or group, and sets its state to ELECTED. Returns its index. The threads of one warp call
 * this together. */
DEVICE unsigned elect(const float *scores, unsigned char *state, unsigned n)
{
    uint64_t best = 0;
    for (unsigned e = lane_of_warp(); e < n; e += 32)
        if (state[e] == OPEN || state[e] == OPEN_AS_ZERO) {
            uint64_t rank = rank_of(state[e] == OPEN ? scores[e] : 0.0f, e);
            best = rank > best ? rank : best;
        }
    for (int h = 16; h; h /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, best, h);
        best = other > best ? other : best;
    }
    unsigned e = NONE - (unsigned)best;
    if (lane_of_warp() == e % 32) /* no other lane reads it before the next barrier */
        state[e] = ELECTED;
    return e;
}

/* s = (p e_b) / L. The half warps compute blocks of 256 experts; m and l have one number for each. */
DEVICE void softmax(float *s, const float *logits, unsigned n, float *m, float *l)
{
    unsigned blocks = (n + SOFTMAX_BLOCK - 1) / SOFTMAX_BLOCK;
    float M = logits[0], L = 0.0f;
    for (unsigned b = threadIdx.x / 32 * 2; b < blocks; b += THREADS_router / 16) { /* the two halves of a warp stay
                                                                                       together */
        unsigned mine = b + threadIdx.x / 16 % 2, first = mine * SOFTMAX_BLOCK;
        unsigned count = first >= n ? 0 : n - first < SOFTMAX_BLOCK ? n - first : SOFTMAX_BLOCK;
        float sum, most = softmax_block(s + first, 1, logits + first, 1, count, &sum);
        if (count && lane_of_sum() == 0)
            m[mine] = most, l[mine] = sum;
    }
    __syncthreads();
    for (unsigned e = 1; e < n; e++)
        M = logits[e] > M ? logits[e] : M;
    for (unsigned b = 0; b < blocks; b++)
        L = fmaf(device_expf(m[b] - M), l[b], L);
    for (unsigned e = threadIdx.x; e < n; e += THREADS_router)
        s[e] = s[e] * device_expf(m[e / SOFTMAX_BLOCK] - M) / L;
}

DEVICE float group_score(const float *choice, unsigned n, int sum_of_two)
{
    unsigned best = 0, second = NONE;
    for (unsigned e = 1; e < n; e++)
        if (rank_of(choice[e], e) > rank_of(choice[best], best))
            second = best, best = e;
        else if (second == NONE || rank_of(choice[e], e) > rank_of(choice[second], second))
            second = e;
    return sum_of_two ? choice[best] + choice[second] : choice[best];
}

/* Sets the states of all experts from the groups that are kept. Warp 0 elects the groups. */
DEVICE void open_experts(const struct router_args &a, unsigned char *state, const float *choice, float *scores,
                         unsigned char *group)
{
    unsigned size = a.experts / a.groups;
    for (unsigned g = threadIdx.x; a.kept_groups && g < a.groups; g += THREADS_router) {
        scores[g] = group_score(choice + g * size, size, a.group_sum_of_two);
        group[g] = OPEN;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        for (unsigned i = 0; i < a.kept_groups; i++)
            elect(scores, group, a.groups);
    __syncthreads();
    for (unsigned e = threadIdx.x; e < a.experts; e += THREADS_router)
        state[e] = !a.kept_groups || group[e / size] == ELECTED ? OPEN : a.mask_with_zero ? OPEN_AS_ZERO : CLOSED;
}

/* Writes the elected experts in ascending order. */
DEVICE void sort_experts(int32_t *expert, const unsigned *elected, unsigned n)
{
    for (unsigned i = lane_of_warp(); i < n; i += 32) {
        unsigned place = 0;
        for (unsigned j = 0; j < n; j++)
            place += elected[j] < elected[i];
        expert[place] = (int32_t)elected[i];
    }
    __syncwarp();
}

DEVICE void weigh(const struct router_args &a, float *weight, const int32_t *expert, const float *s)
{
    int rounded = a.sigmoid && a.bf16;
    float sum = 0.0f;
    for (unsigned i = 0; i < a.chosen; i++)
        sum = sum + s[expert[i]];
    sum = rounded ? round_to_bf16(sum) : sum;
    if (a.normaliser == 2)
        sum = sum > 0.00006103515625f ? sum : 0.00006103515625f; /* 2^-14 */
    else if (a.normaliser)
        sum = sum + 1e-20f;
    for (unsigned i = lane_of_warp(); i < a.chosen; i += 32) {
        float w = a.norm_topk_prob ? s[expert[i]] / sum : s[expert[i]];
        w = rounded ? round_to_bf16(w) : w;
        w = a.scaled ? w * a.factor : w;
        weight[i] = a.bf16 ? round_to_bf16(w) : w;
    }
}

KERNEL(router)
{
    SHARED(float, s, ROUTER_MOST_EXPERTS);
    SHARED(float, choice, ROUTER_MOST_EXPERTS);
    SHARED(float, scores, ROUTER_MOST_EXPERTS); /* of groups; before, m_b and l_b of a softmax */
    SHARED(unsigned char, state, ROUTER_MOST_EXPERTS);
    SHARED(unsigned char, group, ROUTER_MOST_EXPERTS);
    SHARED(unsigned, elected, ROUTER_MOST_CHOSEN);
    const float *logits = a.logits + (size_t)blockIdx.x * a.experts;
    int32_t *expert = a.expert + (size_t)blockIdx.x * a.chosen;
    if (!a.sigmoid)
        softmax(s, logits, a.experts, scores, scores + ROUTER_MOST_EXPERTS / 2); /* a thread then reads the s that it
                                                                                    wrote */
    for (unsigned e = threadIdx.x; e < a.experts; e += THREADS_router) {
        float x = a.sigmoid ? 1.0f / (1.0f + device_expf(-logits[e])) : s[e];
        s[e] = a.sigmoid && a.bf16 ? round_to_bf16(x) : x;
        choice[e] = a.bias ? s[e] + a.bias[e] : s[e];
    }
    __syncthreads();
    open_experts(a, state, choice, scores, group);
    __syncthreads();
    if (threadIdx.x >= 32) /* one warp does the rest */
        return;
    for (unsigned i = 0; i < a.chosen; i++) {
        unsigned e = elect(choice, state, a.experts);
        if (lane_of_warp() == 0)
            elected[i] = e;
    }
    __syncwarp();
    sort_experts(expert, elected, a.chosen);
    weigh(a, a.weight + (size_t)blockIdx.x * a.chosen, expert, s);
}

KERNEL(first_not_finite)
{
    SHARED(int, found, THREADS_first_not_finite / 32);
    const float *x = a.x + blockIdx.x * a.D;
    int mine = 0;
    for (size_t i = threadIdx.x; i < a.D; i += THREADS_first_not_finite)
        mine |= magnitude(x[i]) >= NOT_FINITE;
    for (int h = 16; h; h /= 2)
        mine |= __shfl_xor_sync(ALL_LANES, mine, h);
    if (lane_of_warp() == 0)
        found[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (unsigned warp = 1; warp < THREADS_first_not_finite / 32; warp++)
        mine |= found[warp];
    if (mine && a.first[blockIdx.x] < 0)
        a.first[blockIdx.x] = a.layer;
}
