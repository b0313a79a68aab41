/* tools/cli/sampling.c -- the sampling options whose values are more than one number, and checks of sampling
 * options. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static int check_ranges(const struct cli *c)
{
    const vb_sampling *s = &c->session.sampling;
    if (s->temperature != 0.0f && s->temperature < 1e-5f)
        return cli_fail(c, EXIT_USAGE, "--temperature is %g, wanted 0 or at least 1e-5", (double)s->temperature);
    if (s->top_p > 1.0f)
        return cli_fail(c, EXIT_USAGE, "--top-p is %g, wanted a number from 0 to 1", (double)s->top_p);
    if (s->min_p > 1.0f)
        return cli_fail(c, EXIT_USAGE, "--min-p is %g, wanted a number from 0 to 1", (double)s->min_p);
    return EXIT_DONE;
}

/* Reads one ID:VALUE and the comma after it, and moves *text behind them. Returns 0 if the format is wrong. */
static int read_bias(const char **text, int32_t *token, float *value)
{
    char *end;
    errno = 0;
    long id = strtol(*text, &end, 10);
    if (end == *text || errno || id < 0 || id > INT32_MAX || *end != ':')
        return 0;
    const char *number = end + 1;
    *value = strtof(number, &end);
    *token = (int32_t)id;
    if (end == number || isnan(*value) || *value == INFINITY || (*end && (*end != ',' || !end[1])))
        return 0;
    *text = *end ? end + 1 : end;
    return 1;
}

/* Reads --logit-bias ID:VALUE,ID:VALUE,... The value -inf forbids a token. */
static int read_logit_bias(struct cli *c)
{
    const char *text = c->sampling.logit_bias;
    vb_sampling *s = &c->session.sampling;
    size_t most = 1;
    for (const char *p = text; *p; p++)
        most += *p == ',';
    c->sampling.bias_tokens = malloc(most * sizeof *c->sampling.bias_tokens);
    c->sampling.bias_values = malloc(most * sizeof *c->sampling.bias_values);
    if (!c->sampling.bias_tokens || !c->sampling.bias_values)
        return cli_fail(c, EXIT_OTHER, "no memory for a logit bias of %zu tokens", most);
    s->bias_tokens = c->sampling.bias_tokens;
    s->bias_values = c->sampling.bias_values;
    do {
        int32_t i = s->bias_count;
        if (!read_bias(&text, &c->sampling.bias_tokens[i], &c->sampling.bias_values[i]))
            return cli_fail(c, EXIT_USAGE, "--logit-bias: \"%.64s\" is not ID:VALUE,..", text);
        s->bias_count++;
    } while (*text);
    return EXIT_DONE;
}

static int check_stops(const struct cli *c)
{
    for (int i = 0; i < c->sampling.num_stops; i++) {
        const char *text = c->sampling.stop[i];
        if (!*text || vb_utf8_valid(text, strlen(text)) < strlen(text))
            return cli_fail(c, EXIT_USAGE, "--stop is %s", *text ? "not UTF-8" : "empty");
    }
    return EXIT_DONE;
}

static int is(const char *name, const char *value) { return value && !strcmp(name, value); }

const char *cli_acceptance(const struct cli *c)
{
    return c->session.sampling.acceptance ? c->session.sampling.acceptance : "strict";
}
int cli_is_rejection(const struct cli *c) { return is("rejection", c->session.sampling.acceptance); }
int cli_is_relaxed(const struct cli *c) { return is("relaxed", c->session.sampling.acceptance); }

static int read_delta(struct cli *c)
{
    char *end;
    float delta = strtof(c->sampling.relaxed_delta, &end);
    if (end == c->sampling.relaxed_delta || *end || !(delta >= 0.0f && delta <= 1.0f))
        return cli_fail(c, EXIT_USAGE, "--relaxed-delta is %s, wanted a number from 0 to 1", c->sampling.relaxed_delta);
    c->session.sampling.relaxed_delta = delta > FLT_MIN ? delta : FLT_MIN; /* 0 would mean the default */
    return EXIT_DONE;
}

/* Checks that the options for acceptance can be used together. */
static int check_acceptance(struct cli *c)
{
    const vb_sampling *s = &c->session.sampling;
    const char *name = s->acceptance, *method = s->draft_sample_method;
    if (name && !is("strict", name) && !cli_is_rejection(c) && !cli_is_relaxed(c))
        return cli_fail(c, EXIT_USAGE, "unknown --acceptance %s; known are strict, rejection, relaxed", name);
    if (method && !is("probabilistic", method) && !is("greedy", method))
        return cli_fail(c, EXIT_USAGE, "unknown --draft-sample-method %s; known are probabilistic, greedy", method);
    if (method && !cli_is_rejection(c))
        return cli_fail(c, EXIT_USAGE, "--draft-sample-method wants --acceptance rejection");
    if ((s->relaxed_topk || c->sampling.relaxed_delta || c->sampling.thinking) && !cli_is_relaxed(c))
        return cli_fail(c, EXIT_USAGE, "%s wants --acceptance relaxed",
                        s->relaxed_topk ? "--relaxed-topk"
                        : c->sampling.relaxed_delta ? "--relaxed-delta"
                        : "--thinking-tokens");
    return c->sampling.relaxed_delta ? read_delta(c) : EXIT_DONE;
}

int cli_sampling(struct cli *c)
{
    int code = check_ranges(c);
    if (code == EXIT_DONE)
        code = check_stops(c);
    if (code == EXIT_DONE)
        code = check_acceptance(c);
    if (code == EXIT_DONE && c->sampling.logit_bias)
        code = read_logit_bias(c);
    return code;
}

/* Reads a token: its id, or its text. */
static int read_token(struct cli *c, const char *text, size_t size, int32_t *token)
{
    char *end;
    long id = strtol(text, &end, 10);
    if (size && end == text + size && id >= 0 && id < vb_vocab_size(c->model)) {
        *token = (int32_t)id;
        return EXIT_DONE;
    }
    int32_t *ids = NULL;
    size_t count = 0;
    if (!c->tokenizer)
        return cli_fail(c, EXIT_USAGE, "--thinking-tokens: %.*s is no id below %d, and text wants a tokenizer (%s)",
                        (int)size, text, vb_vocab_size(c->model), c->tokenizer_error.message);
    int code = cli_encode(c, "--thinking-tokens", text, size, 1, &ids, &count);
    *token = code == EXIT_DONE && count == 1 ? ids[0] : -1;
    free(ids);
    if (code == EXIT_DONE && *token >= vb_vocab_size(c->model))
        return cli_fail(c, EXIT_USAGE, "--thinking-tokens: \"%.*s\" is %d, outside the vocabulary of %d", (int)size,
                        text, *token, vb_vocab_size(c->model));
    if (code == EXIT_DONE && *token < 0)
        return cli_fail(c, EXIT_USAGE,
                        "--thinking-tokens: \"%.*s\" is %zu tokens here, wanted one; BEGIN,END may be ids", (int)size,
                        text, count);
    return code;
}

int cli_thinking(struct cli *c)
{
    vb_sampling *s = &c->session.sampling;
    const char *text = c->sampling.thinking ? c->sampling.thinking : "<think>,</think>", *comma = strchr(text, ',');
    if (!cli_is_relaxed(c))
        return EXIT_DONE;
    if (!comma || strchr(comma + 1, ','))
        return cli_fail(c, EXIT_USAGE, "--thinking-tokens is %s, wanted BEGIN,END", text);
    int code = read_token(c, text, (size_t)(comma - text), &s->thinking_begin);
    if (code == EXIT_DONE)
        code = read_token(c, comma + 1, strlen(comma + 1), &s->thinking_end);
    if (code == EXIT_DONE && s->thinking_begin == s->thinking_end)
        code = cli_fail(c, EXIT_USAGE, "--thinking-tokens is %s, wanted two tokens", text);
    return code;
}

int cli_stops(const struct cli *c, vb_generate_options *o)
{
    o->tokenizer = c->tokenizer;
    o->stop = c->sampling.stop;
    o->stop_count = (size_t)c->sampling.num_stops;
    return o->stop_count && !c->tokenizer ? cli_error(c, &c->tokenizer_error) : EXIT_DONE;
}

void cli_sampling_close(struct cli *c)
{
    free(c->sampling.bias_tokens);
    free(c->sampling.bias_values);
}
