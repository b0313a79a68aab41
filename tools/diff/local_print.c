/* tools/diff/local_print.c -- prints the operators that were judged alone, as text or as JSON. */
#include "tools/diff/local.h"

#include <math.h>
#include <string.h>

#define MOST_LINES 24

static const char *verdict_of(const struct local_result *r)
{
    return r->verdict == NOT_COMPARED ? "not judged" : verdict_name[r->verdict];
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
}

static json_t *result_json(const struct local_result *r)
{
    json_t *j = json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o}", "tap", r->series->name, "operator",
                          r->operator, "verdict", verdict_of(r), "rows", (json_int_t)r->rows, "wrong_rows",
                          (json_int_t)r->wrong_rows, "rows_without_inputs", (json_int_t)r->without_inputs,
                          "rows_at_a_tie", (json_int_t)r->ties, "of_bound", number(r->ratio), "of_deviation",
                          number(r->errors), "merged", *r->merged ? json_string(r->merged) : json_null(), "why",
                          *r->why ? json_string(r->why) : json_null());
    if (r->bias && r->bias->bias.judged) {
        const struct bias *b = &r->bias->bias;
        json_t *bias = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "slope", 1 + b->slope, "norm_ratio", 1 + b->norm,
                                 "slope_sigma", b->sigma, "sigmas", b->sigmas, "row_sigmas", b->row_sigmas,
                                 "column_sigmas", r->bias->column_sigmas);
        if (r->verdict == BIASED)
            json_object_update_new(bias, json_pack("{s:s,s:i,s:i}", "where", r->where, "sequence", r->bias->sequence,
                                                   "index", r->bias->index));
        json_object_set_new(j, "bias", bias);
    }
    if (r->ratio > 0)
        json_object_set_new(j, "at",
                            json_pack("{s:i,s:i,s:o,s:I,s:o,s:o,s:o}", "sequence", r->sequence, "index", r->index,
                                      "token", r->token < 0 ? json_null() : json_integer(r->token), "column",
                                      (json_int_t)r->column, "dump", number(r->dump), "expected", number(r->expected),
                                      "bound", number(r->bound)));
    return j;
}

static const char *local_verdict(const struct local *l)
{
    return l->wrong ? "structural" : l->biased ? "biased" : l->judged ? "rounding" : "not judged";
}

json_t *local_json(const struct diff_side *side, const struct local *l)
{
    json_t *operators = json_array();
    for (size_t i = 0; i < l->count; i++)
        if (l->results[i].operator)
            json_array_append_new(operators, result_json(&l->results[i]));
    return json_pack("{s:s,s:s,s:o,s:i,s:I,s:I,s:I,s:o}", "path", side->path, "verdict", local_verdict(l), "first",
                     l->first ? json_string(l->first->series->name) : json_null(), "runs", l->runs, "judged",
                     (json_int_t)l->judged, "wrong", (json_int_t)l->wrong, "biased", (json_int_t)l->biased, "operators",
                     operators);
}

static void print_wrong(const struct local_result *r)
{
    printf("  %s: %s (%s): ", r->verdict == BIASED ? "biased" : "wrong", r->series->name, r->operator);
    if (r->verdict == BIASED)
        printf("%s; %s; most in index %d", r->why, r->where, r->bias->index);
    else if (*r->why && (!(r->ratio > 1) || r->series->dtype == DIFF_INTEGERS))
        printf("%s", r->why);
    else
        printf("%zu of %zu rows; at index %d, column %zu it is %.9g, expected %.9g +- %.2g (%.3g times the bound)",
               r->wrong_rows, r->rows, r->index, r->column, r->dump, r->expected, r->bound, r->ratio);
    printf(*r->merged ? "; judged together with %s\n" : "\n", r->merged);
}

static void print_all(const struct local_result *r)
{
    printf("  %-12s %s (%s)", verdict_of(r), r->series->name, r->operator);
    if (r->verdict == NOT_COMPARED)
        printf(": %s\n", r->why);
    else
        printf(": %zu rows, at most %.2g of the bound, %.2g of the deviation%s%s\n", r->rows, r->ratio, r->errors,
               *r->merged ? "; with " : "", r->merged);
}

static int is_of_tokens(const struct local_result *r) { return r->operator && !strcmp(r->operator, "greedy-token"); }

static void print_tokens(const struct local *l)
{
    for (const struct local_result *r = l->results; r < l->results + l->count; r++)
        if (is_of_tokens(r))
            printf("  %zu tokens were chosen from the dump's logits; %zu of them share the largest logit with a token "
                   "of a lower number%s%s\n",
                   r->rows, r->ties, r->ties && !r->wrong_rows ? ": " : "", r->ties && !r->wrong_rows ? r->why : "");
}

void local_print(const struct diff_side *side, const struct local *l, int all)
{
    size_t lines = 0, operators = 0, rows = 0, ties = 0, not_judged = 0;
    const struct local_result *unjudged = NULL;
    printf("each operator alone, on the inputs that %s has:\n", side->path);
    for (const struct local_result *r = l->results; r < l->results + l->count; r++) {
        if (!r->operator)
            continue;
        operators++;
        rows += r->without_inputs;
        ties += is_of_tokens(r) ? 0 : r->ties;
        not_judged += r->verdict == NOT_COMPARED;
        unjudged = !unjudged && r->verdict == NOT_COMPARED && *r->why ? r : unjudged;
        if (r->verdict >= BIASED && (all || lines++ < MOST_LINES))
            print_wrong(r);
        else if (all)
            print_all(r);
    }
    if (lines > MOST_LINES)
        printf("  ... %zu more; --all shows every operator\n", lines - MOST_LINES);
    printf("  %zu operators: %zu wrong, %zu biased, %zu within rounding, %zu not judged\n", operators, l->wrong,
           l->biased, l->judged - l->wrong - l->biased, not_judged);
    if (unjudged)
        printf("  not judged: %s: %s\n", unjudged->series->name, unjudged->why);
    if (rows + ties > 0)
        printf("  %zu rows lack an input, in %zu rows a router that the dump does not show has a tie\n", rows, ties);
    print_tokens(l);
    if (l->first)
        printf("first %s operator: %s (%s)\n", l->first->verdict == BIASED ? "biased" : "wrong", l->first->series->name,
               l->first->operator);
    printf("\n");
}
