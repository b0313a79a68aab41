#include "ops/backward/router.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define SOFTMAX_BLOCK 256

/* ds [chosen] */
static void back_weights(float *ds, const float *dc, const int32_t *expert, const float *s, const struct router *r)
{
    float f = r->sigmoid || r->scale_softmax || !r->norm_topk_prob ? r->routed_scaling_factor : 1.0f, sum = 0.0f,
          mean = 0.0f;
    for (size_t j = 0; j < r->chosen; j++)
        sum = sum + s[expert[j]];
    float m = op_router_normaliser(r, sum);
    int constant = r->normaliser == 2 && m > sum;
    for (size_t j = 0; j < r->chosen && !constant; j++)
        mean = fmaf(dc[j], s[expert[j]] / m, mean);
    for (size_t j = 0; j < r->chosen; j++)
        ds[j] = r->norm_topk_prob ? f * (dc[j] - mean) / m : f * dc[j];
}

static void back_sigmoid(float *dx, const float *ds, const int32_t *expert, const float *s, const struct router *r)
{
    memset(dx, 0, r->experts * sizeof *dx);
    for (size_t j = 0; j < r->chosen; j++) {
        float score = s[expert[j]];
        dx[expert[j]] = ds[j] * score * (1.0f - score);
    }
}

static void back_softmax(float *dx, const float *ds, const int32_t *expert, const float *s, const struct router *r)
{
    float t = 0.0f;
    for (size_t j = 0; j < r->chosen; j++)
        t = fmaf(s[expert[j]], ds[j], t);
    for (size_t e = 0; e < r->experts; e++)
        dx[e] = s[e] * (0.0f - t);
    for (size_t j = 0; j < r->chosen; j++)
        dx[expert[j]] = s[expert[j]] * (ds[j] - t);
}

size_t op_back_router_scratch(const struct router *r)
{
    return op_scratch_bytes(r->experts) + op_scratch_bytes(r->experts / SOFTMAX_BLOCK + 1) +
           op_scratch_bytes(r->chosen);
}

void op_back_router(struct op_ctx *cx, float *dlogits, const float *dweight, const float *logits, const int32_t *expert,
                    const struct router *r, size_t S)
{
    size_t mark = op_mark(cx), E = r->experts;
    float *s = op_take(cx, E), *few = op_take(cx, E / SOFTMAX_BLOCK + 1), *ds = op_take(cx, r->chosen);
    assert(!r->bf16);
    for (size_t row = 0; row < S; row++, dlogits += E, dweight += r->chosen, logits += E, expert += r->chosen) {
        op_router_scores(cx, s, logits, r, few);
        back_weights(ds, dweight, expert, s, r);
        if (r->sigmoid)
            back_sigmoid(dlogits, ds, expert, s, r);
        else
            back_softmax(dlogits, ds, expert, s, r);
    }
    op_give(cx, mark);
}

void op_balance_bias(float *bias, const int64_t *load, size_t E, float speed)
{
    int64_t total = 0;
    for (size_t e = 0; e < E; e++)
        total += load[e];
    for (size_t e = 0; e < E; e++) {
        int64_t excess = load[e] * (int64_t)E - total; /* E times what it has beyond the mean */
        if (excess != 0)
            bias[e] = excess < 0 ? bias[e] + speed : bias[e] - speed;
    }
}
