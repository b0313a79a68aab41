/* tools/conventions_scores.c -- `verbatim conventions MODEL --against FILE.jsonl`: finds out whether a file of
 * log-probabilities has those of the logits (raw), or those after the logits were divided by the temperature.
 *
 * For each token there are three numbers: x of the file, y raw and z at the temperature, both of the model. The search
 * for the conventions of a dump uses the same projection t of x - y on z - y (conventions_against.c): t near 0 means
 * raw, t near 1 means at the temperature. sigma, the error of t, follows from what is left of x - y, because rounding
 * moves each token in a direction of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/conventions.h"
#include "tools/score/compare.h"
#include "tools/score/score.h"

#define SHARP 12.0
#define NEAR 0.25
#define LEAST 1e-6 /* nats: smaller differences are those of printed numbers */

struct told_scores {
    const struct scored *text;
    int32_t V;
    float temperature;                         /* of the text */
    double *x, *y, *z;                         /* [room] */
    size_t count, room, temperatures;          /* temperatures: texts whose temperature is neither 0 nor 1 */
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    struct told_scores *s = context;
    size_t i = index + 1;
    (void)depth, (void)hidden;
    if (i >= s->text->count || isnan(s->text->logprobs[i]))
        return 0;
    struct token_score t = score_token(logits, s->V, s->text->tokens[i], s->temperature);
    s->x[s->count] = s->text->logprobs[i];
    s->y[s->count] = t.logprob;
    s->z[s->count] = t.at_temperature;
    s->count += isfinite(s->x[s->count]) && isfinite(t.logprob) && isfinite(t.at_temperature);
    return 0;
}

static int compute_text(struct cli *c, struct told_scores *s, const struct scored *text)
{
    vb_routes routes = {0};
    float T = text->temperature > 0 ? (float)text->temperature : c->session.sampling.temperature;
    for (size_t i = 0; i < text->count; i++)
        if (text->tokens[i] >= s->V)
            return cli_fail(c, EXIT_OTHER, "%.256s: text %zu: token %zu is %d, outside the vocabulary of %d",
                            c->against, text->line + 1, i, (int)text->tokens[i], (int)s->V);
    s->temperatures += T > 0 && fabsf(T - 1) > 0;
    s->temperature = T > 0 ? T : 1;
    s->text = text;
    s->room += text->count;
    s->x = cli_must(realloc(s->x, (s->room + 1) * sizeof *s->x));
    s->y = cli_must(realloc(s->y, (s->room + 1) * sizeof *s->y));
    s->z = cli_must(realloc(s->z, (s->room + 1) * sizeof *s->z));
    int code = scored_compute(c, text, take_row, s, &routes);
    free((void *)(uintptr_t)routes.experts);
    return code;
}

static double rms(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return n ? sqrt(sum / (double)n) : 0;
}

/* -1: raw; 1: at the temperature; 0: the two cannot be told apart; 2: neither is near. */
static int told(const struct told_scores *s)
{
    double dd = 0, ed = 0, single = 0;
    for (size_t i = 0; i < s->count; i++) {
        dd += (s->z[i] - s->y[i]) * (s->z[i] - s->y[i]);
        ed += (s->x[i] - s->y[i]) * (s->z[i] - s->y[i]);
    }
    if (!(dd > LEAST * LEAST * (double)s->count))
        return 0;
    double t = ed / dd;
    for (size_t i = 0; i < s->count; i++) {
        double d = s->z[i] - s->y[i], left = s->x[i] - s->y[i] - t * d;
        single += left * left * d * d;
    }
    if (sqrt(single) / dd > 1 / SHARP)
        return 0;
    return fabs(t) < NEAR ? -1 : fabs(t - 1) < NEAR ? 1 : 2;
}

static int report(const struct cli *c, const struct told_scores *s)
{
    static const char *const values[] = {"raw", NULL, "temperature", NULL};
    int which = told(s), known = which == -1 || which == 1;
    double raw = rms(s->x, s->y, s->count), scaled = rms(s->x, s->z, s->count);
    const char *value = values[which + 1];
    int code = which == 2 ? EXIT_DIFFERENCE : EXIT_DONE;
    if (c->json) {
        int printed = cli_print_json(json_pack("{s:s,s:s?,s:b,s:I,s:f,s:f}", "name", "logprobs", "value", value, "told",
                                               known, "tokens", (json_int_t)s->count, "rms_raw", raw, "rms_temperature",
                                               scaled));
        return printed == EXIT_DONE ? code : printed;
    }
    printf("%-16s %-17s told by\n%-16s %-17s ", "convention", "value", "logprobs", value ? value : "not known");
    if (known)
        printf("%zu tokens: RMS %.3g nats away, otherwise %.3g\n", s->count, which < 0 ? raw : scaled,
               which < 0 ? scaled : raw);
    else if (which == 2)
        printf("%zu tokens: neither is near, RMS %.3g nats from raw, %.3g from those at the temperature\n", s->count,
               raw, scaled);
    else if (!s->temperatures)
        puts("no text: the temperature of all texts is 1 or not known; --temperature T says it");
    else
        printf("no text: RMS %.3g nats from raw, %.3g from those at the temperature\n", raw, scaled);
    return code;
}

int conventions_against_scores(struct cli *c)
{
    struct told_scores s = {.V = vb_vocab_size(c->model)};
    struct scored_file f;
    int code = scored_read(c, &f, c->against);
    for (size_t i = 0; i < f.count && code == EXIT_DONE; i++) {
        code = compute_text(c, &s, &f.texts[i]);
        cli_progress("conventions", i + 1, f.count);
    }
    if (code == EXIT_DONE && !s.count)
        code = cli_fail(c, EXIT_OTHER, "%.256s has no log-probability of a token after the first", c->against);
    if (code == EXIT_DONE)
        code = report(c, &s);
    free(s.x);
    free(s.y);
    free(s.z);
    scored_close(&f);
    return code;
}
