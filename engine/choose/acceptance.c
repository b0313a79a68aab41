/* engine/choose/acceptance.c -- the acceptance modes strict, rejection and relaxed. */
#include "engine/choose/acceptance.h"

#include <math.h>
#include <string.h>

enum mode { STRICT, REJECTION, RELAXED };

struct acceptance {
    enum mode mode;
    struct sampler *sampler;
    size_t V;
    uint64_t seed;
    double *q;             /* [max_draft, V]: the weights from which each draft was drawn; NULL: drafts are not drawn at
                              random */
    double *rest;          /* [V] */
    double Q[VB_MAX_DRAFT];
    uint32_t drawn;        /* bit k is 1 if draft k + 1 was drawn at random */
    size_t topk;
    double delta;
    int32_t begin, end;    /* the tokens that begin and end the model's thinking */
};

static int check_relaxed(const vb_sampling *o, size_t V, vb_error *err)
{
    if (o->relaxed_topk < 0)
        return vb_fail(err, VB_BAD_ARGUMENT, "relaxed top-k is %d, wanted 1 or more", o->relaxed_topk);
    if (!(o->relaxed_delta >= 0.0f && o->relaxed_delta <= 1.0f))
        return vb_fail(err, VB_BAD_ARGUMENT, "relaxed delta is %g, wanted a number from 0 to 1",
                       (double)o->relaxed_delta);
    if (o->thinking_begin < 0 || (size_t)o->thinking_begin >= V || o->thinking_end < 0 ||
        (size_t)o->thinking_end >= V || o->thinking_begin == o->thinking_end)
        return vb_fail(err, VB_BAD_ARGUMENT, "relaxed acceptance wants two thinking tokens below %zu, found %d and %d",
                       V, o->thinking_begin, o->thinking_end);
    return VB_OK;
}

/* Sets *found to the index of `name` in `names`. If `name` is NULL, the index is 0. */
static int find(const char *what, const char *name, const char *const names[3], int *found, vb_error *err)
{
    for (*found = 0; name && names[*found] && strcmp(names[*found], name);)
        ++*found;
    if (names[*found])
        return VB_OK;
    return vb_fail(err, VB_BAD_ARGUMENT, "unknown %s %s; known are %s, %s%s%s", what, name, names[0], names[1],
                   names[2] ? ", " : "", names[2] ? names[2] : "");
}

int acceptance_open(struct acceptance **out, const vb_sampling *o, struct sampler *sampler, size_t V, int max_draft,
                    const vb_allocator *a, vb_error *err)
{
    static const char *const modes[] = {"strict", "rejection", "relaxed", NULL}, *const methods[] = {"probabilistic",
                                                                                                     "greedy", NULL};
    int mode, method, code = find("acceptance", o->acceptance, modes, &mode, err);
    *out = NULL;
    if (!code)
        code = find("draft sample method", o->draft_sample_method, methods, &method, err);
    if (!code && mode == RELAXED)
        code = check_relaxed(o, V, err);
    if (code)
        return code;
    struct acceptance *s = vb_alloc(a, 1, sizeof *s);
    if (!s)
        return vb_fail(err, VB_NO_MEMORY, "no memory for the acceptance of drafts");
    *s = (struct acceptance){.mode = (enum mode)mode, .sampler = sampler, .V = V, .seed = o->seed,
                             .begin = o->thinking_begin, .end = o->thinking_end,
                             .topk = o->relaxed_topk ? (size_t)o->relaxed_topk : 10,
                             .delta = o->relaxed_delta != 0.0f ? (double)o->relaxed_delta : 0.6};
    int draws = mode == REJECTION && method == 0 && o->temperature != 0.0f && max_draft > 0;
    if (mode == REJECTION)
        s->rest = vb_alloc(a, V, sizeof *s->rest);
    if (draws)
        s->q = vb_alloc(a, (size_t)max_draft * V, sizeof *s->q);
    if ((mode == REJECTION && !s->rest) || (draws && !s->q)) {
        acceptance_close(s, a);
        return vb_fail(err, VB_NO_MEMORY, "no memory for the distributions of %d drafts over %zu tokens", max_draft, V);
    }
    *out = s;
    return VB_OK;
}

void acceptance_close(struct acceptance *s, const vb_allocator *a)
{
    if (!s)
        return;
    vb_free(a, s->q);
    vb_free(a, s->rest);
    vb_free(a, s);
}

void acceptance_round(struct acceptance *s) { s->drawn = 0; }
int acceptance_draws(const struct acceptance *s) { return s->q != NULL; }

void acceptance_drew(struct acceptance *s, const double *weights, double Q, int number)
{
    size_t k = (size_t)number - 1;
    memcpy(s->q + k * s->V, weights, s->V * sizeof *weights);
    s->Q[k] = Q;
    s->drawn |= 1u << k;
}

int32_t acceptance_draw(struct acceptance *s, const float *logits, const int32_t *tokens, size_t count, int number)
{
    size_t k = (size_t)number - 1;
    const double *weights;
    for (size_t i = 0; i < k; i++)
        sampler_saw_output(s->sampler, tokens[count + i]);
    double Q = sampler_distribution(s->sampler, logits, tokens, count + k, &weights);
    for (size_t i = 0; i < k; i++)
        sampler_forget_output(s->sampler, tokens[count + i]);
    if (Q == 0.0) /* no token is allowed; the draft counts as not drawn at random */
        return argmax(logits, s->V);
    acceptance_drew(s, weights, Q, number);
    return weighted_choice(weights, s->V, Q, random_at(s->seed, count + k, RANDOM_DRAFT));
}

static double weight(const double *q, int32_t d, size_t t) { return q ? q[t] : t == (size_t)d ? 1.0 : 0.0; }

int rejection_accepts(const double *p, double P, const double *q, double Q, int32_t d, double u)
{
    return u * (weight(q, d, (size_t)d) * P) < p[d] * Q;
}

double rejection_rest(double *rest, const double *p, double P, const double *q, double Q, int32_t d, size_t V)
{
    double total = 0.0;
    for (size_t t = 0; t < V; t++) {
        double more = p[t] * Q - weight(q, d, t) * P;
        rest[t] = more > 0.0 ? more : 0.0;
        total += rest[t];
    }
    return total;
}

static struct verdict choose_by_rejection(struct acceptance *s, const float *logits, const int32_t *tokens,
                                          size_t index, const struct draft_at *d)
{
    size_t k = (size_t)d->number - 1;
    const double *p, *q = s->drawn >> k & 1 ? s->q + k * s->V : NULL;
    double Q = q ? s->Q[k] : 1.0, P = sampler_distribution(s->sampler, logits, tokens, index, &p);
    if (P == 0.0)
        return (struct verdict){.token = -1};
    if (rejection_accepts(p, P, q, Q, d->token, random_at(s->seed, index, RANDOM_ACCEPTANCE)))
        return (struct verdict){.token = d->token, .stands = 1};
    double total = rejection_rest(s->rest, p, P, q, Q, d->token, s->V);
    if (total == 0.0) /* p and q are equal, except for rounding */
        return (struct verdict){.token = d->token, .stands = 1};
    return (struct verdict){.token = weighted_choice(s->rest, s->V, total, random_at(s->seed, index, RANDOM_RESIDUAL)),
                            .why = sampler_excluded(s->sampler, d->token, VB_REJECT_CHANCE)};
}

/* Accepts the draft if it is the token that plain decoding would choose. */
static struct verdict choose_strictly(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                                      const struct draft_at *d)
{
    struct verdict v = {.token = sampler_choose(s->sampler, logits, tokens, index)};
    if (!d->number || v.token < 0)
        return v;
    v.stands = v.token == d->token;
    v.why = sampler_excluded(s->sampler, d->token, VB_REJECT_OTHER_TOKEN);
    return v;
}

/* Returns whether the newest token before `index` that is `begin` or `end` is `begin`. */
static int is_thinking(const struct acceptance *s, const int32_t *tokens, size_t index)
{
    while (index && tokens[index - 1] != s->begin && tokens[index - 1] != s->end)
        index--;
    return index && tokens[index - 1] == s->begin;
}

static struct verdict relax(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                            const struct draft_at *d, struct verdict strict)
{
    if (strict.token < 0 || strict.stands || strict.why == VB_REJECT_MASKED || d->never_relaxed ||
        d->token == s->begin || d->token == s->end || !is_thinking(s, tokens, index))
        return strict;
    struct closeness c = sampler_closeness(s->sampler, logits, tokens, index, d->token);
    if (c.rank >= s->topk)
        strict.why = VB_REJECT_RANK;
    else if (c.weight < 1.0 - s->delta * c.total) /* p < p_best - delta */
        strict.why = VB_REJECT_DELTA;
    else
        return (struct verdict){.token = d->token, .stands = 1, .relaxed = 1, .nats = c.nats};
    return strict;
}

struct verdict acceptance_choose(struct acceptance *s, const float *logits, const int32_t *tokens, size_t index,
                                 const struct draft_at *d)
{
    if (s->mode == REJECTION && d->number)
        return choose_by_rejection(s, logits, tokens, index, d);
    struct verdict v = choose_strictly(s, logits, tokens, index, d);
    return s->mode == RELAXED && d->number ? relax(s, logits, tokens, index, d, v) : v;
}
