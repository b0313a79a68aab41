/* tools/diff/follow.c -- `diff --follow-choices`: a model takes the experts that the other side chose, and attends to
 * the tokens that the other side kept. See diff.h. */
#include "tools/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the choices of the other side, as forced routes --- */

/* Copies the experts of one row in ascending order. Leaves -1 if they are no choice of `top_k` different experts of
 * E. */
static int take_row(int32_t *to, const struct diff_series *s, const struct diff_row *row, int32_t top_k, size_t E,
                    double *x)
{
    diff_numbers(s, row, x);
    qsort(x, (size_t)top_k, sizeof *x, diff_by_number);
    for (int32_t i = 0; i < top_k; i++)
        if (!(x[i] >= 0 && x[i] < (double)E) || (i && x[i] <= x[i - 1]))
            return 0;
    for (int32_t i = 0; i < top_k; i++)
        to[i] = (int32_t)x[i];
    return 1;
}

size_t diff_routes(const struct diff_side *side, const struct diff_side *computed, const vb_routes *model, int modules,
                   size_t tokens, vb_routes *out, int32_t **experts)
{
    size_t layers = (size_t)(model->layers + modules), top_k = (size_t)model->top_k, rows = 0, row = layers * top_k;
    char name[NAMING_ROOM];
    *experts = cli_must(malloc((tokens * row + 1) * sizeof **experts));
    memset(*experts, 0xff, tokens * row * sizeof **experts);
    *out = (vb_routes){.experts = *experts, .tokens = tokens, .layers = (int32_t)layers, .top_k = model->top_k};
    double *x = cli_must(malloc((top_k + 1) * sizeof *x));
    for (size_t l = 0; l < layers; l++) {
        snprintf(name, sizeof name, "model.layers.%zu.mlp.gate.experts", l);
        int depth = l < (size_t)model->layers ? -1 : (int)l - model->layers;
        const struct diff_series *s = diff_find(side, name, depth), *logits;
        snprintf(name, sizeof name, "model.layers.%zu.mlp.gate.output", l);
        logits = diff_find(computed, name, depth);
        for (size_t i = 0; s && logits && s->width == top_k && top_k && i < s->count; i++)
            if (s->rows[i].sequence == 0 && s->rows[i].index >= 0 && (size_t)s->rows[i].index < tokens)
                rows += (size_t)take_row(*experts + (size_t)s->rows[i].index * row + l * top_k, s, &s->rows[i],
                                         model->top_k, logits->width, x);
    }
    free(x);
    if (!rows)
        out->experts = NULL;
    return rows;
}

size_t diff_squeeze(double *set, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (set[i] >= 0)
            set[count++] = set[i];
    qsort(set, count, sizeof *set, diff_by_number);
    return count;
}

/* Copies the set of a row whose token can see `seen` tokens. Leaves -1 if it is no set that the model can keep. */
static int take_set(int32_t *to, double *set, size_t n, size_t topk, size_t seen)
{
    size_t count = diff_squeeze(set, n);
    if (count != (seen < topk ? seen : topk) || set[count - 1] >= (double)seen)
        return 0;
    for (size_t i = 1; i < count; i++)
        if (set[i] == set[i - 1])
            return 0;
    for (size_t i = 0; i < count; i++)
        to[i] = (int32_t)set[i];
    return 1;
}

size_t diff_kept(const struct diff_side *side, const vb_routes *model, int modules, int phantom, size_t tokens,
                 vb_routes *out, int32_t **kept)
{
    size_t layers = (size_t)(model->layers + modules), topk = (size_t)model->index_topk, rows = 0, row = layers * topk;
    char name[NAMING_ROOM];
    *kept = cli_must(malloc((tokens * row + 1) * sizeof **kept));
    memset(*kept, 0xff, tokens * row * sizeof **kept);
    for (size_t l = 0; l < layers && topk; l++) {
        int depth = l < (size_t)model->layers ? -1 : (int)l - model->layers;
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.indexer.kept", l);
        const struct diff_series *s = diff_find(side, name, depth);
        double *x = cli_must(malloc(((s ? s->width : 0) + 1) * sizeof *x));
        for (size_t i = 0; s && !s->is_stats && i < s->count; i++)
            if (s->rows[i].sequence == 0 && s->rows[i].index >= 0 && (size_t)s->rows[i].index < tokens) {
                size_t t = (size_t)s->rows[i].index, seen = t + 1 + (size_t)(phantom && depth >= 0);
                for (size_t k = 0; k < s->width; k++)
                    x[k] = -1;
                diff_numbers(s, &s->rows[i], x);
                rows += (size_t)take_set(*kept + t * row + l * topk, x, s->width, topk, seen);
            }
        free(x);
    }
    *out = (vb_routes){.experts = out->experts, .tokens = tokens, .layers = (int32_t)layers, .top_k = model->top_k,
                       .kept = rows ? *kept : NULL, .index_topk = model->index_topk};
    return rows;
}

/* --- the choice that the model would have made itself --- */

const struct diff_series *diff_router_values(const struct diff_side *side, const struct diff_series *s,
                                             const struct diff_row *row, const char *what, double **x)
{
    char name[NAMING_ROOM];
    size_t hint = 0;
    snprintf(name, sizeof name, "%.*s%s", (int)(strrchr(s->name, '.') - s->name), s->name, what);
    const struct diff_series *found = diff_find(side, name, s->depth);
    const struct diff_row *r = found && !found->is_stats ? diff_partner(found, row, &hint) : NULL;
    *x = r ? cli_must(malloc((found->width + 1) * sizeof **x)) : NULL;
    if (!r)
        return NULL;
    for (size_t i = 0; i < found->width; i++) /* an indexer's scores have only as many numbers as the row sees tokens */
        (*x)[i] = -INFINITY;
    diff_numbers(found, r, *x);
    return found;
}

const struct diff_series *diff_candidates(const struct diff_side *side, const struct diff_series *s,
                                          const struct diff_row *row, double **x)
{
    static const char *const by[][2] = {{".experts", ".choice"}, {".experts", ".scores"}, {".experts", ".output"},
                                        {".groups", ".group_scores"}, {".kept", ".scores"}};
    const struct diff_series *found = NULL;
    for (size_t i = 0; i < sizeof by / sizeof *by && !found; i++)
        if (!strcmp(strrchr(s->name, '.'), by[i][0]))
            found = diff_router_values(side, s, row, by[i][1], x);
    return found;
}

void diff_keep_groups(double *x, size_t E, size_t groups, const double *kept, size_t count)
{
    for (size_t e = 0; e < E; e++)
        if (!diff_holds(kept, count, (double)(e / (E / groups))))
            x[e] = -INFINITY;
}

/* Forced experts may be in groups that the model did not keep. If rounding explains that, exchanges the worst kept
 * groups for them. */
static void exchange_groups(double *kept, size_t n, const double *scores, size_t count, size_t size,
                            const double *forced, size_t k, double allowed)
{
    for (size_t i = 0; i < k; i++) {
        double g = floor(forced[i] / (double)size);
        size_t worst = n;
        if (!(g >= 0 && g < (double)count) || diff_holds(kept, n, g))
            continue;
        for (size_t j = 0; j < n; j++) {
            int wanted = 0;
            for (size_t f = 0; f < k; f++)
                wanted |= floor(forced[f] / (double)size) == kept[j];
            if (!wanted && (worst == n || scores[(size_t)kept[j]] < scores[(size_t)kept[worst]]))
                worst = j;
        }
        if (worst < n && fabs(scores[(size_t)kept[worst]] - scores[(size_t)g]) <= allowed)
            kept[worst] = g;
    }
}

/* Sets the values of experts outside of the kept groups to -infinity. */
static void mask(const struct diff_side *side, const struct bounds *bounds, const struct diff_series *experts,
                 const struct diff_row *row, double *x, size_t E, const double *forced, size_t k)
{
    double *kept, *scores, largest = 0;
    const struct diff_series *groups = diff_router_values(side, experts, row, ".groups", &kept);
    const struct diff_series *by = diff_router_values(side, experts, row, ".group_scores", &scores);
    if (groups && by && by->width && E % by->width == 0) {
        for (size_t g = 0; g < by->width; g++)
            largest = fmax(largest, fabs(scores[g]));
        exchange_groups(kept, groups->width, scores, by->width, E / by->width, forced, k,
                        2 * bounds_of(bounds, by, by->dtype) * largest);
        diff_keep_groups(x, E, by->width, kept, groups->width);
    }
    free(kept);
    free(scores);
}

enum diff_choice diff_kind(const struct diff_series *s)
{
    return strstr(s->name, ".indexer.") ? CHOICE_KEPT : CHOICE_EXPERTS;
}

struct ranked_token {
    double score, token, sign; /* sign: -1 if of equal scores the later token comes first */
};

static int by_score(const void *p, const void *q)
{
    const struct ranked_token *a = p, *b = q;
    int an = isnan(a->score), bn = isnan(b->score);
    if (an != bn)
        return an - bn;
    if (!an && a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->sign * a->token < b->sign * b->token ? -1 : 1;
}

/* The k tokens that the indexer would have kept, by the conventions of the side. */
static void own_set(const struct diff_side *side, const struct diff_series *kept, const struct diff_row *row,
                    double *set, size_t k)
{
    double *x = NULL;
    const struct diff_series *s = diff_candidates(side, kept, row, &x);
    if (s && s->width >= k) {
        struct ranked_token *all = cli_must(malloc((s->width + 1) * sizeof *all));
        for (size_t t = 0; t < s->width; t++)
            all[t] = (struct ranked_token){side->bf16_scores ? diff_round(DIFF_BF16, x[t]) : x[t], (double)t,
                                           side->latest_first ? -1 : 1};
        qsort(all, s->width, sizeof *all, by_score);
        for (size_t i = 0; i < k; i++)
            set[i] = all[i].token;
        free(all);
    }
    free(x);
}

void diff_own_choice(const struct diff_side *side, const struct bounds *bounds, const struct diff_series *experts,
                     const struct diff_row *row, double *set, size_t k)
{
    size_t n = strlen(experts->name);
    double *x = NULL;
    if (diff_kind(experts) == CHOICE_KEPT) {
        own_set(side, experts, row, set, k);
        return;
    }
    if (n < 8 || strcmp(experts->name + n - 8, ".experts"))
        return;
    const struct diff_series *s = diff_candidates(side, experts, row, &x);
    if (s && s->width >= k) {
        mask(side, bounds, experts, row, x, s->width, set, k);
        for (size_t i = 0; i < k; i++) {
            size_t best = 0;
            for (size_t e = 1; e < s->width; e++)
                if (x[e] > x[best] || (isnan(x[best]) && !isnan(x[e])))
                    best = e;
            set[i] = (double)best;
            x[best] = NAN; /* NaN comes last */
        }
    }
    free(x);
}

/* --- ties --- */

const char *diff_ties(const struct cli *c) { return c->ties ? c->ties : c->follow_choices ? "report" : "fail"; }

void diff_settle_ties(struct comparison *r, const char *ties)
{
    if (!strcmp(ties, "fail"))
        return;
    for (size_t i = 0; i < r->count && !strcmp(ties, "ok"); i++)
        if (r->taps[i].verdict == TIE_FLIP)
            r->taps[i].verdict = ROUNDING;
    r->verdict = r->verdict == TIE_FLIP ? ROUNDING : r->verdict;
}
