/* tools/score/bound.c -- `diff --model` of two files of log-probabilities: measures how far rounding moves a
 * log-probability. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/softmax.h"
#include "tools/score/compare.h"

struct score_run {
    const struct scored *text;
    size_t V;
    double *logprobs; /* [count] */
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct score_run *r = context;
    double max;
    (void)depth, (void)hidden;
    if (index + 1 >= r->text->count)
        return 0;
    double sum = sum_of_exp(logits, r->V, &max);
    r->logprobs[index + 1] = (double)logits[r->text->tokens[index + 1]] - max - log(sum);
    return 0;
}

int scored_compute(const struct cli *c, const struct scored *text, vb_row_callback row, void *context,
                   vb_routes *routes)
{
    vb_session_options o = c->session;
    vb_session *session = NULL;
    vb_routes taken;
    vb_error err;
    o.context = (int32_t)text->count;
    o.routes = *routes;
    vb_model_routes(c->model, &taken);
    o.record_routes = !routes->experts && taken.top_k;
    int failed = vb_session_open(&session, c->model, &o, &err) || vb_append(session, text->tokens, text->count, &err) ||
                 vb_evaluate(session, 0, row, context, &err);
    if (!failed && vb_session_routes(session, &taken)) {
        size_t bytes = taken.tokens * (size_t)taken.layers * (size_t)taken.top_k * sizeof *taken.experts;
        *routes = taken;
        routes->experts = memcpy(cli_must(malloc(bytes + 1)), taken.experts, bytes);
    }
    vb_session_close(session);
    return failed ? cli_error(c, &err) : EXIT_DONE;
}

static int measure_text(const struct cli *exact, const struct cli *rounded, const struct scored *text, double *sum,
                        size_t *count)
{
    double *logprobs = cli_must(calloc(2 * text->count + 1, sizeof *logprobs));
    size_t V = (size_t)vb_vocab_size(exact->model);
    struct score_run a = {text, V, logprobs}, b = {text, V, logprobs + text->count};
    vb_routes routes = {0};
    int code = scored_compute(exact, text, take_row, &a, &routes);
    void *copy = (void *)(uintptr_t)routes.experts;
    if (code == EXIT_DONE)
        code = scored_compute(rounded, text, take_row, &b, &routes);
    for (size_t i = 1; i < text->count && code == EXIT_DONE; i++)
        if (!isnan(text->logprobs[i]) && isfinite(a.logprobs[i] - b.logprobs[i])) {
            double r = (a.logprobs[i] - b.logprobs[i]) / scored_weight(a.logprobs[i], b.logprobs[i]);
            *sum += r * r;
            ++*count;
        }
    free(copy);
    free(logprobs);
    return code;
}

int scores_measure(const struct cli *c, const struct scored_file *f, double *rms)
{
    struct cli exact = *c, rounded;
    double sum = 0;
    size_t count = 0;
    exact.model_dir = c->model_of_bound;
    exact.model = NULL;
    exact.tokenizer = NULL;
    rounded = exact;
    rounded.precision = "bf16";
    int code = cli_open(&exact);
    if (code == EXIT_DONE)
        code = cli_open(&rounded);
    for (size_t i = 0; i < f->count && code == EXIT_DONE; i++) {
        code = measure_text(&exact, &rounded, &f->texts[i], &sum, &count);
        cli_progress("measuring the bound", i + 1, f->count);
    }
    double scale = !c->arithmetic || !strcmp(c->arithmetic, "bf16") ? 1
                   : !strcmp(c->arithmetic, "f16") ? 0x1p-3
                   : 0x1p-16;
    *rms = count ? sqrt(sum / (double)count) * scale : 0;
    cli_close(&exact);
    cli_close(&rounded);
    return code;
}
