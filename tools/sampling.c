/* tools/sampling.c -- the sampling options of the command line: what goes beyond one number each. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

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

/* One ID:VALUE at *text, and the comma behind it; *text goes on. */
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

/* ID:VALUE,ID:VALUE,.. -> pairs; -inf forbids a token */
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
        if (!*text || utf8_valid(text, strlen(text)) < strlen(text))
            return cli_fail(c, EXIT_USAGE, "--stop is %s", *text ? "not UTF-8" : "empty");
    }
    return EXIT_DONE;
}

int cli_sampling(struct cli *c)
{
    int code = check_ranges(c);
    if (code == EXIT_DONE)
        code = check_stops(c);
    if (code == EXIT_DONE && c->sampling.logit_bias)
        code = read_logit_bias(c);
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
