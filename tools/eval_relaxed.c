/* tools/eval_relaxed.c -- measures the cost of relaxed acceptance, with teacher forcing. */
#include "tools/eval_relaxed.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/softmax.h"

int relaxed_open(struct relaxed *r, struct cli *c, size_t window)
{
    vb_sampling *s = &c->session.sampling;
    *r = (struct relaxed){.asked = cli_is_relaxed(c), .begin = -1, .end = -1};
    if (cli_is_rejection(c))
        return cli_fail(c, EXIT_USAGE, "eval measures what --acceptance relaxed costs; rejection costs nothing");
    if (!r->asked)
        return EXIT_DONE;
    if (c->sampling.thinking) {
        int code = cli_thinking(c);
        if (code != EXIT_DONE)
            return code;
        r->begin = s->thinking_begin;
        r->end = s->thinking_end;
    }
    s->acceptance = NULL; /* the sessions of eval choose no tokens */
    r->topk = s->relaxed_topk ? (size_t)s->relaxed_topk : 10;
    r->topk = r->topk < (size_t)vb_vocab_size(c->model) ? r->topk : (size_t)vb_vocab_size(c->model);
    r->delta = s->relaxed_delta != 0.0f ? (double)s->relaxed_delta : 0.6;
    r->open = cli_must(malloc(window));
    r->list = cli_must(malloc(window * r->topk * sizeof *r->list));
    return EXIT_DONE;
}

void relaxed_close(struct relaxed *r)
{
    free(r->open);
    free(r->list);
}

/* Returns the best token after (value, token) in descending order of value; among equals, the lower index comes first.
 * Returns -1 if none is left. */
static int32_t next_best(const float *z, size_t V, float value, int32_t token)
{
    int32_t best = -1;
    for (size_t t = 0; t < V; t++)
        if ((z[t] < value || (z[t] == value && (int32_t)t > token)) && (best < 0 || z[t] > z[best]))
            best = (int32_t)t;
    return best;
}

void relaxed_row(struct relaxed *r, size_t index, const float *logits, size_t V)
{
    struct near *list = r->list + index * r->topk;
    int32_t token = next_best(logits, V, INFINITY, -1);
    double best, total = sum_of_exp(logits, V, &best);
    for (size_t n = 0; n < r->topk; n++) {
        int near = token >= 0 && exp((double)logits[token] - best) >= 1.0 - r->delta * total;
        list[n] = (struct near){near ? token : -1, near ? best - (double)logits[token] : 0.0};
        if (!near)
            break; /* less probable tokens are not accepted either */
        token = next_best(logits, V, logits[token], token);
    }
}

static const struct near *find(const struct relaxed *r, size_t row, int32_t token)
{
    const struct near *list = r->list + row * r->topk;
    for (size_t n = 0; n < r->topk && list[n].token >= 0; n++)
        if (list[n].token == token)
            return &list[n];
    return NULL;
}

void relaxed_window(struct relaxed *r, const int32_t *ids, size_t count, int32_t *const *best, int depths)
{
    for (size_t i = 0; i < count; i++) {
        r->open[i] = (unsigned char)(r->begin < 0 || r->thinking);
        r->thinking = ids[i] == r->begin || (ids[i] != r->end && r->thinking);
    }
    for (size_t i = 0; i + 2 < count; i++) {
        int strict = 1, stands = 1;
        r->forwards++;
        for (int k = 0; k < depths && i + (size_t)k + 2 < count; k++) {
            size_t row = i + (size_t)k + 1;
            int32_t draft = best[k + 1][i];
            int is_best = draft == best[0][row], marker = r->begin >= 0 && (draft == r->begin || draft == r->end);
            const struct near *near = r->open[row + 1] && !marker ? find(r, row, draft) : NULL;
            r->drafts++;
            strict &= is_best;
            stands &= is_best || near;
            r->strict[k] += (size_t)strict;
            r->stands[k] += (size_t)stands;
            r->others += (size_t)(stands && !is_best);
            r->nats += stands && !is_best ? near->nats : 0.0;
        }
    }
}

static double tokens_per_forward(const struct relaxed *r, const size_t *stands, int depths)
{
    double tokens = (double)r->forwards;
    for (int k = 0; k < depths; k++)
        tokens += (double)stands[k];
    return tokens / (double)r->forwards;
}

static double per_token(const struct relaxed *r, double x, int depths)
{
    return x / ((double)r->forwards * tokens_per_forward(r, r->stands, depths));
}

json_t *relaxed_json(const struct relaxed *r, int depths)
{
    if (!r->asked || !r->forwards)
        return json_null();
    json_t *by_depth = json_array();
    for (int k = 0; k < depths; k++)
        json_array_append_new(by_depth, json_real((double)r->stands[k] / (double)r->forwards));
    return json_pack("{s:I,s:f,s:o,s:f,s:f,s:f,s:f,s:b}", "topk", (json_int_t)r->topk, "delta",
                     r->delta > FLT_MIN ? r->delta : 0.0, "acceptance_by_depth", by_depth, "tokens_per_forward",
                     tokens_per_forward(r, r->stands, depths), "strict_tokens_per_forward",
                     tokens_per_forward(r, r->strict, depths), "other_tokens", per_token(r, (double)r->others, depths),
                     "nats_per_token", per_token(r, r->nats, depths), "lossy", 1);
}

void relaxed_print(const struct relaxed *r, int depths)
{
    if (!r->asked || !r->forwards)
        return;
    printf("--acceptance relaxed (top %zu, delta %g), %s:\n", r->topk, r->delta > FLT_MIN ? r->delta : 0.0,
           r->begin < 0 ? "as if all of the text were thinking" : "between the thinking tokens");
    puts("depth  drafts stand that far    with strict");
    for (int k = 0; k < depths; k++)
        printf("%5d  %21.1f %%  %11.1f %%\n", k + 1, 100.0 * (double)r->stands[k] / (double)r->forwards,
               100.0 * (double)r->strict[k] / (double)r->forwards);
    printf("tokens per forward %.3f, with strict %.3f; lossy: %.1f %% of the tokens are not the best, %.4f nats per "
           "token less probable\n",
           tokens_per_forward(r, r->stands, depths), tokens_per_forward(r, r->strict, depths),
           100.0 * per_token(r, (double)r->others, depths), per_token(r, r->nats, depths));
}
