/* tools/diff/local_tokens.c -- `diff --local`: whether the tokens that a dump chose have the largest logit of the
 * dump's own rows, and whether its drafts were rejected rightly. */
#include "tools/diff/local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGITS "lm_head.output"

/* Whether the row that a rejected draft follows was kept. Without a list `parent`, a draft follows the row before
 * it. */
static int follows_a_kept_row(const json_t *line, size_t i)
{
    const json_t *parent = json_array_get(json_object_get(line, "parent"), i);
    size_t at = json_is_integer(parent) ? (size_t)json_integer_value(parent) : i - 1;
    int is_first = json_integer_value(json_array_get(json_object_get(line, "draft"), i)) == 1;
    return is_first || (at < i && !json_is_false(json_array_get(json_object_get(line, "accepted"), at)));
}

void local_reject(struct diff_side *side, const struct diff_series *s, const json_t *line, size_t i,
                  const struct diff_row *row)
{
    if (s->depth >= 0 || strcmp(s->name, LOGITS) || !follows_a_kept_row(line, i))
        return;
    size_t n = side->rejected_count;
    if (!(n & (n - 1)))
        side->rejected = cli_must(realloc(side->rejected, (n ? 2 * n : 1) * sizeof *side->rejected));
    side->rejected[side->rejected_count++] = *row;
}

/* Judges the token of `row`, which was chosen from x. */
static void judge_token(struct local_result *r, const struct diff_row *row, const double *x, size_t width)
{
    size_t best = 0, token = (size_t)row->token;
    for (size_t i = 1; i < width; i++)
        best = x[i] > x[best] ? i : best;
    if (token == best)
        return;
    if (token < width && x[token] == x[best]) {
        if (!r->ties++ && !r->wrong_rows)
            snprintf(r->why, sizeof r->why,
                     "index %d: token %d has the same logit as token %zu, which has the lower number", row->index,
                     row->token, best);
    } else if (!r->wrong_rows++) {
        snprintf(r->why, sizeof r->why,
                 "index %d: token %d was chosen, but token %zu has the largest logit of the row before, by %.3g",
                 row->index, row->token, best, token < width ? x[best] - x[token] : INFINITY);
    }
}

/* A draft was rejected, but the next round chose the same token. */
static void judge_rejected(struct local_result *r, const struct diff_side *side, const struct diff_series *s)
{
    for (size_t i = 0; i < side->rejected_count; i++)
        for (size_t k = 0; k < s->count; k++) {
            const struct diff_row *row = &s->rows[k], *draft = &side->rejected[i];
            if (row->sequence != draft->sequence || row->index != draft->index || row->token != draft->token)
                continue;
            if (!r->wrong_rows++)
                snprintf(r->why, sizeof r->why, "index %d: draft %d was rejected, and then the same token was chosen",
                         row->index, row->token);
        }
}

int local_tokens(const struct diff_side *side, int greedy, struct local_result *r)
{
    const struct diff_series *s = diff_find(side, LOGITS, -1);
    if (!s || s->dtype == DIFF_INTEGERS)
        return 0;
    *r = (struct local_result){.series = s, .operator = "greedy-token"};
    double *x = cli_must(malloc((s->width + 1) * sizeof *x));
    for (size_t k = 1; k < s->count; k++) {
        const struct diff_row *row = &s->rows[k], *from = row - 1;
        int finite = 1;
        if (!row->chosen || row->token < 0 || from->sequence != row->sequence || from->index != row->index - 1)
            continue;
        diff_numbers(s, from, x);
        for (size_t i = 0; i < s->width; i++)
            finite &= !isnan(x[i]);
        r->rows += (size_t)finite;
        r->without_inputs += (size_t)!finite;
        if (finite)
            judge_token(r, row, x, s->width);
    }
    free(x);
    if (r->rows)
        judge_rejected(r, side, s);
    r->verdict = !r->wrong_rows ? IDENTICAL : greedy ? STRUCTURAL : NOT_COMPARED;
    if (r->wrong_rows && !greedy)
        snprintf(r->why + strlen(r->why), sizeof r->why - strlen(r->why), "; with --greedy, this is wrong");
    return r->rows > 0;
}
