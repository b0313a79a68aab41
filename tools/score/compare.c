/* tools/score/compare.c -- compares the log-probabilities of two files, token by token. */
#include "tools/score/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum score_verdict { SCORE_IDENTICAL, SCORE_ROUNDING, SCORE_TIE, SCORE_OTHER_ROUTE, SCORE_STRUCTURAL, SCORE_VERDICTS };
static const char *const names[SCORE_VERDICTS] = {"identical", "rounding", "tie", "other route", "structural"};

struct pair {
    const struct scored *a, *b; /* both end with the same tokens */
    size_t count;               /* how many tokens they have in common */
    size_t other_row;           /* index in a of the first row that took other experts; SIZE_MAX: none is known */
};

/* Which log-probabilities of a side are compared: those of the logits (raw), or those at the text's temperature. */
enum score_convention { RAW, AT_TEMPERATURE };

struct token_at { /* a token, and its log-probabilities */
    const struct pair *pair;
    size_t index; /* in a */
    double a, b;
    enum score_verdict verdict;
};

struct score_comparison {
    struct scored_file file[2];
    struct pair *pairs;
    size_t num_pairs, alone[2]; /* alone: texts without a partner */
    enum score_convention convention[2];
    double rms[2][2];           /* [convention of A][of B]; NAN: one side does not have it */
    struct token_at *tokens;    /* all tokens that both sides have */
    size_t count, verdicts[SCORE_VERDICTS], not_finite;
    int measured;               /* whether the bound comes from --model */
    double bound, mean, largest, kl[2];
    enum score_verdict verdict;
};

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static int ends_alike(const struct scored *a, const struct scored *b)
{
    size_t n = a->count < b->count ? a->count : b->count;
    return !memcmp(a->tokens + a->count - n, b->tokens + b->count - n, n * sizeof *a->tokens);
}

static size_t first_other_row(const struct scored *a, const struct scored *b)
{
    if (!a->routes || !b->routes || a->width != b->width || a->count != b->count)
        return SIZE_MAX;
    for (size_t i = 0; i < a->rows && i < b->rows; i++)
        if (memcmp(a->routes + i * a->width, b->routes + i * b->width, a->width * sizeof *a->routes))
            return i;
    return SIZE_MAX;
}

/* A text of A belongs to the text of B with the same id and tokens, else to the one at the same place, else to the
 * first one that ends with the same tokens. */
static const struct scored *partner(const struct scored *a, const struct scored_file *f, const char *taken)
{
    for (size_t i = 0; i < f->count && a->id; i++)
        if (!taken[i] && f->texts[i].id && !strcmp(a->id, f->texts[i].id) && ends_alike(a, &f->texts[i]))
            return &f->texts[i];
    if (a->line < f->count && !taken[a->line] && ends_alike(a, &f->texts[a->line]))
        return &f->texts[a->line];
    for (size_t i = 0; i < f->count; i++)
        if (!taken[i] && f->texts[i].count == a->count && ends_alike(a, &f->texts[i]))
            return &f->texts[i];
    return NULL;
}

static void match(struct score_comparison *s)
{
    struct scored_file *a = &s->file[0], *b = &s->file[1];
    char *taken = cli_must(calloc(b->count + 1, 1));
    s->pairs = cli_must(calloc(a->count + 1, sizeof *s->pairs));
    for (size_t i = 0; i < a->count; i++) {
        const struct scored *other = partner(&a->texts[i], b, taken);
        if (!other)
            continue;
        taken[other - b->texts] = 1;
        s->pairs[s->num_pairs++] = (struct pair){&a->texts[i], other,
                                                 a->texts[i].count < other->count ? a->texts[i].count : other->count,
                                                 first_other_row(&a->texts[i], other)};
    }
    s->alone[0] = a->count - s->num_pairs;
    s->alone[1] = b->count - s->num_pairs;
    free(taken);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The log-probability of token `i` from the end; NAN: there is none. Log-probabilities that are compared at a
 * temperature are the raw ones if the text has no temperature. */
static double logprob(const struct scored *t, enum score_convention convention, size_t from_end)
{
    const double *x = convention == AT_TEMPERATURE && t->at_temperature ? t->at_temperature : t->logprobs;
    return x[t->count - from_end];
}

static int has(const struct scored_file *f, enum score_convention convention)
{
    for (size_t i = 0; i < f->count; i++)
        if (convention == RAW || f->texts[i].at_temperature)
            return 1;
    return 0;
}

/* Collects all tokens with both log-probabilities. Returns the RMS of their difference. */
static double collect(struct score_comparison *s, enum score_convention of_a, enum score_convention of_b)
{
    double sum = 0;
    size_t room = 0;
    s->count = s->not_finite = 0;
    for (size_t p = 0; p < s->num_pairs; p++)
        room += s->pairs[p].count;
    s->tokens = cli_must(realloc(s->tokens, (room + 1) * sizeof *s->tokens));
    for (size_t p = 0; p < s->num_pairs; p++)
        for (size_t n = s->pairs[p].count; n > 0; n--) {
            double a = logprob(s->pairs[p].a, of_a, n), b = logprob(s->pairs[p].b, of_b, n);
            if (isnan(a) || isnan(b))
                continue;
            s->tokens[s->count++] = (struct token_at){&s->pairs[p], s->pairs[p].a->count - n, a, b, SCORE_IDENTICAL};
            if (isfinite(a - b))
                sum += (a - b) * (a - b);
            else
                s->not_finite += !(a == b);
        }
    return s->count ? sqrt(sum / (double)s->count) : NAN;
}

/* Chooses the convention that both sides agree on best. */
static void choose_convention(struct score_comparison *s)
{
    double best = INFINITY;
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++) {
            int there = has(&s->file[0], (enum score_convention)a) && has(&s->file[1], (enum score_convention)b);
            s->rms[a][b] = there ? collect(s, (enum score_convention)a, (enum score_convention)b) : NAN;
            if (s->rms[a][b] < best)
                best = s->rms[a][b], s->convention[0] = (enum score_convention)a,
                s->convention[1] = (enum score_convention)b;
        }
    collect(s, s->convention[0], s->convention[1]);
}

static int compare_doubles(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

double scored_weight(double a, double b) { return 1.01 - exp(fmin(0, fmax(a, b))); }

static double median_difference(const struct score_comparison *s)
{
    double *all = cli_must(malloc((s->count + 1) * sizeof *all)), median;
    for (size_t i = 0; i < s->count; i++)
        all[i] = fabs(s->tokens[i].a - s->tokens[i].b) / scored_weight(s->tokens[i].a, s->tokens[i].b);
    qsort(all, s->count, sizeof *all, compare_doubles);
    median = s->count ? all[s->count / 2] : 0.0;
    free(all);
    return median;
}

/* A printed log-probability may have been rounded to F32, whatever the computation was. */
static double bound_of(const struct score_comparison *s, const struct token_at *t)
{
    return s->bound * scored_weight(t->a, t->b) + 0x1p-22 * (1.0 + fabs(t->a));
}

/* How much more likely the best token of a side is than the token that the other side finds best; 0: not known. */
static double margin_of(const struct scored *t, size_t i)
{
    double margin = t->best[i] - t->logprobs[i];
    return margin > 0 ? margin : 0;
}

static enum score_verdict judge(const struct score_comparison *s, const struct token_at *t)
{
    size_t from_end = t->pair->a->count - t->index;
    size_t in_b = t->pair->b->count - from_end;
    int32_t a = t->pair->a->ranks[t->index], b = t->pair->b->ranks[in_b];
    if (!(fabs(t->a - t->b) <= bound_of(s, t)) && !(t->a == t->b))
        return t->pair->other_row < t->index ? SCORE_OTHER_ROUTE : SCORE_STRUCTURAL;
    if (a && b && (a == 1) != (b == 1))
        return margin_of(t->pair->a, t->index) + margin_of(t->pair->b, in_b) <= 2 * bound_of(s, t) ? SCORE_TIE
                                                                                                   : SCORE_STRUCTURAL;
    return t->a == t->b ? SCORE_IDENTICAL : SCORE_ROUNDING;
}

/* KL is estimated from the tokens: KL(A || B) is the mean of exp(-r) - 1 + r, if the tokens were drawn from A. Each
 * term is 0 or more, so that the estimate is, too. */
static void judge_all(struct score_comparison *s)
{
    if (!s->measured)
        s->bound = BOUND_TIMES * 1.4826 * median_difference(s);
    for (size_t i = 0; i < s->count; i++) {
        struct token_at *t = &s->tokens[i];
        double r = t->a - t->b;
        t->verdict = judge(s, t);
        s->verdicts[t->verdict]++;
        s->verdict = t->verdict > s->verdict ? t->verdict : s->verdict;
        if (!isfinite(r))
            continue;
        s->mean += r / (double)s->count;
        s->largest = fabs(r) > s->largest ? fabs(r) : s->largest;
        s->kl[0] += (exp(-r) - 1 + r) / (double)s->count;
        s->kl[1] += (exp(r) - 1 - r) / (double)s->count;
    }
}

/* ---- what is printed --------------------------------------------------------------------------------------------- */

static double rms_of(const struct score_comparison *s) { return s->rms[s->convention[0]][s->convention[1]]; }

static const char *name_of(enum score_convention convention)
{
    return convention == RAW ? "raw" : "at the temperature";
}

static void describe(const struct token_at *t, char *to, size_t room)
{
    const struct scored *a = t->pair->a;
    int used = snprintf(to, room, "text %zu%s%.40s%s, token %zu (id %d): A = %.6g, B = %.6g", a->line + 1,
                        a->id ? " (" : "", a->id ? a->id : "", a->id ? ")" : "", t->index, a->tokens[t->index], t->a,
                        t->b);
    if (t->verdict == SCORE_OTHER_ROUTE)
        snprintf(to + used, room - (size_t)used, "; row %zu took other experts", t->pair->other_row);
}

static void print_convention(const struct score_comparison *s)
{
    int several = !isnan(s->rms[0][1]) || !isnan(s->rms[1][0]);
    if (!several) {
        puts("convention: both sides have one kind of log-probabilities; whether they are raw or at a temperature is "
             "not known");
        return;
    }
    printf("convention: A %s, B %s", name_of(s->convention[0]), name_of(s->convention[1]));
    const char *separator = " (RMS ";
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++)
            if (!isnan(s->rms[a][b]))
                printf("%s%s against %s: %.3g", separator, name_of((enum score_convention)a),
                       name_of((enum score_convention)b), s->rms[a][b]),
                    separator = "; ";
    puts(")");
}

static void print(const struct cli *c, const struct score_comparison *s)
{
    char text[256];
    size_t shown = 0;
    printf("A: %s (%zu texts)   B: %s (%zu texts)\n", s->file[0].path, s->file[0].count, s->file[1].path,
           s->file[1].count);
    if (s->alone[0] || s->alone[1])
        printf("without a partner: %zu texts of A, %zu of B\n", s->alone[0], s->alone[1]);
    print_convention(s);
    printf("%zu texts, %zu tokens: RMS log-ratio %.3g nats, mean %.3g, largest %.3g; KL(A || B) %.3g, KL(B || A) %.3g, "
           "estimated from these tokens\n",
           s->num_pairs, s->count, rms_of(s), s->mean, s->largest, s->kl[0], s->kl[1]);
    puts("for comparison, no limits: RMS 0.0022 nats in F32 and 0.031 in BF16 were published for one model of 0.5 B");
    printf("bound of rounding: %.3g nats (less for likely tokens), %d times %s\n", s->bound, BOUND_TIMES,
           s->measured ? "the RMS difference that rounding makes in the model"
                       : "a robust standard deviation of these differences");
    for (size_t i = 0; i < s->count; i++)
        if (s->tokens[i].verdict > SCORE_ROUNDING || (c->all && s->tokens[i].verdict)) {
            describe(&s->tokens[i], text, sizeof text);
            if (c->all || shown++ < 20)
                printf("  %-11s  %s\n", names[s->tokens[i].verdict], text);
        }
    if (shown > 20)
        printf("  and %zu more; --all lists them\n", shown - 20);
    const char *separator = "";
    for (int v = 0; v < SCORE_VERDICTS; v++)
        if (s->verdicts[v])
            printf("%s%zu %s", separator, s->verdicts[v], names[v]), separator = ", ";
    printf("\n%s\n", names[s->verdict]);
}

static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *to_json(const struct score_comparison *s)
{
    json_t *verdicts = json_object(), *tokens = json_array(), *rms = json_object();
    static const char *const keys[2][2] = {{"raw_raw", "raw_at_temperature"},
                                           {"at_temperature_raw", "at_temperature_at_temperature"}};
    for (int v = 0; v < SCORE_VERDICTS; v++)
        json_object_set_new(verdicts, names[v], json_integer((json_int_t)s->verdicts[v]));
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++)
            json_object_set_new(rms, keys[a][b], real_or_null(s->rms[a][b]));
    for (size_t i = 0; i < s->count; i++) {
        const struct token_at *t = &s->tokens[i];
        if (t->verdict > SCORE_ROUNDING)
            json_array_append_new(tokens,
                                  json_pack("{s:I,s:s?,s:I,s:i,s:o,s:o,s:s}", "text", (json_int_t)t->pair->a->line,
                                            "id", t->pair->a->id, "index", (json_int_t)t->index, "token",
                                            t->pair->a->tokens[t->index], "a", real_or_null(t->a), "b",
                                            real_or_null(t->b), "verdict", names[t->verdict]));
    }
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s,s:o,s:o}", "verdict",
                     names[s->verdict], "texts", (json_int_t)s->num_pairs, "tokens", (json_int_t)s->count, "only_in_a",
                     (json_int_t)s->alone[0], "only_in_b", (json_int_t)s->alone[1], "convention_a",
                     name_of(s->convention[0]), "convention_b", name_of(s->convention[1]), "rms_by_convention", rms,
                     "rms", real_or_null(rms_of(s)), "mean", real_or_null(s->mean), "largest", real_or_null(s->largest),
                     "kl_a_b", real_or_null(s->kl[0]), "kl_b_a", real_or_null(s->kl[1]), "bound",
                     real_or_null(s->bound), "bound_kind", s->measured ? "measured" : "estimated", "verdicts", verdicts,
                     "differences", tokens);
}

int scores_compare(struct cli *c)
{
    struct score_comparison s = {.count = 0};
    int code = scored_read(c, &s.file[0], c->model_dir);
    if (code == EXIT_DONE)
        code = scored_read(c, &s.file[1], c->other);
    if (code == EXIT_DONE && c->model_of_bound) {
        code = scores_measure(c, &s.file[0], &s.bound);
        s.bound *= BOUND_TIMES;
        s.measured = 1;
    }
    if (code == EXIT_DONE) {
        match(&s);
        choose_convention(&s);
        judge_all(&s);
        if (!s.count)
            code = cli_fail(c, EXIT_OTHER, "A and B have no text with the same tokens and log-probabilities");
    }
    if (code == EXIT_DONE) {
        code = s.verdict >= SCORE_OTHER_ROUTE || s.alone[0] || s.alone[1] || (c->bits && s.verdict) ? EXIT_DIFFERENCE
                                                                                                    : EXIT_DONE;
        if (c->json) {
            int printed = cli_print_json(to_json(&s));
            code = printed == EXIT_DONE ? code : printed;
        } else {
            print(c, &s);
        }
    }
    scored_close(&s.file[0]);
    scored_close(&s.file[1]);
    free(s.pairs);
    free(s.tokens);
    return code;
}
