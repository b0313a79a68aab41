/* tools/diff/print.c -- prints a comparison as a table or as JSON. */
#include "tools/diff/local.h"

#include <math.h>
#include <string.h>

/* without --all, the table has at most this many taps with the verdict rounding, and this many with each worse one */
#define MOST_LINES 24
#define MOST_NAMES 5  /* of the taps that one side lacks, this many names are printed */

static const char *const dtype_name[] = {"BF16", "F16", "F32", "F64", "integers"};

static void bucket_name(size_t i, char name[48])
{
    if (i < 3)
        snprintf(name, 48, "%zu", i);
    else
        snprintf(name, 48, "%llu-%llu", (1ull << (i - 2)) + 1, i == 65 ? ~0ull : 1ull << (i - 1));
}

static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Returns a number as JSON. JSON has no infinity and no NaN, so they are written as text. */
static json_t *number(const struct tap *t, double x)
{
    return t->dtype == DIFF_INTEGERS ? json_integer((json_int_t)x) : isfinite(x) ? json_real(x)
           : json_string(isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
}

static json_t *place_json(const struct tap *t, const struct diff_place *p, int set)
{
    char a[24], b[24];
    if (!set)
        return json_null();
    if (p->column == DIFF_NO_COLUMN)
        return json_pack("{s:s,s:i,s:i,s:o,s:n,s:f,s:f}", "tap", t->a->name, "sequence", p->sequence, "index", p->index,
                         "token", p->token < 0 ? json_null() : json_integer(p->token), "column", "a", p->a, "b", p->b);
    snprintf(a, sizeof a, "0x%llx", (unsigned long long)p->a_bits);
    snprintf(b, sizeof b, "0x%llx", (unsigned long long)p->b_bits);
    return json_pack("{s:s,s:i,s:i,s:o,s:I,s:o,s:o,s:s,s:s,s:I}", "tap", t->a->name, "sequence", p->sequence, "index",
                     p->index, "token", p->token < 0 ? json_null() : json_integer(p->token), "column",
                     (json_int_t)p->column, "a", number(t, p->a), "b", number(t, p->b), "a_bits", a, "b_bits", b,
                     "ulps", (json_int_t)p->ulps);
}

static json_t *tap_json(const struct tap *t)
{
    json_t *histogram = json_object();
    int measured = t->dtype != DIFF_INTEGERS && t->rows > 0, numbers = measured && !t->is_stats,
        choice = t->is_choice && t->rows > 0;
    char name[48];
    for (size_t i = 0; i < ULP_BUCKETS; i++)
        if (t->ulps[i]) {
            bucket_name(i, name);
            json_object_set_new(histogram, name, json_integer((json_int_t)t->ulps[i]));
        }
    json_t *j = json_pack("{s:s,s:o,s:o,s:s,s:o,s:s,s:I,s:I,s:I,s:I,s:I}", "name", t->a->name, "layer",
                          t->a->layer < 0 ? json_null() : json_integer(t->a->layer), "mtp_depth",
                          t->a->depth < 0 ? json_null() : json_integer(t->a->depth), "verdict",
                          verdict_name[t->verdict], "why", *t->why ? json_string(t->why) : json_null(), "dtype",
                          dtype_name[t->dtype], "rows", (json_int_t)t->rows, "rows_after_a_tie_flip",
                          (json_int_t)t->after, "rows_only_in_a", (json_int_t)t->only_a, "rows_only_in_b",
                          (json_int_t)t->only_b, "numbers", (json_int_t)t->numbers);
    json_t *more = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "bits_equal",
                             t->numbers ? json_real((double)t->equal / (double)t->numbers) : json_null(), "max_ulps",
                             numbers ? json_integer((json_int_t)t->most_ulps) : json_null(), "ulps", histogram,
                             "max_abs", measured ? real_or_null(t->max_abs) : json_null(), "relative",
                             measured ? real_or_null(t->relative) : json_null(), "bound",
                             t->bound > 0 ? json_real(t->bound) : json_null(), "nmse",
                             numbers ? real_or_null(t->nmse) : json_null(), "cosine",
                             numbers ? real_or_null(t->cosine) : json_null(), "first",
                             place_json(t, &t->first, t->differs));
    json_object_update(j, more);
    json_decref(more);
    if (t->bias.judged) {
        json_object_set_new(j, "slope", json_real(1 + t->bias.slope));
        json_object_set_new(j, "norm_ratio", json_real(1 + t->bias.norm));
        json_object_set_new(j, "slope_sigma", json_real(t->bias.sigma));
        json_object_set_new(j, "sigmas", json_real(t->bias.sigmas));
        json_object_set_new(j, "row_sigmas", json_real(t->bias.row_sigmas));
    }
    if (t->is_stats)
        json_object_set_new(j, "statistics", json_true());
    json_object_set_new(j, "out_of_bounds", place_json(t, &t->worst, t->breaks));
    if (t->is_logits && t->rows) {
        json_object_set_new(j, "kl_mean", real_or_null(t->kl_mean));
        json_object_set_new(j, "kl_max", real_or_null(t->kl_max));
        json_object_set_new(j, "rows_without_probabilities", json_integer((json_int_t)t->no_logits));
        json_object_set_new(j, "top1_agreement",
                            real_or_null((double)t->top1_equal / (double)(t->rows - t->no_logits)));
    }
    if ((t->is_logits && t->rows) || choice) {
        json_object_set_new(j, "smallest_margin_a", real_or_null(t->margin_a));
        json_object_set_new(j, "smallest_margin_b", real_or_null(t->margin_b));
        json_object_set_new(j, "flips", json_integer((json_int_t)t->flips));
    }
    return j;
}

static json_t *lacking(const struct cli *c, const struct diff_side *here, const struct diff_side *there)
{
    json_t *names = json_array();
    int is_dump = !strcmp(here->kind, "dump"); /* diff itself asks a model for the scores of its indexers */
    for (size_t i = 0; i < here->count; i++)
        if (!diff_find(there, here->series[i].name, here->series[i].depth) &&
            (is_dump || !strstr(here->series[i].name, ".indexer.scores")) &&
            cli_wants(c, here->series[i].name, here->series[i].layer))
            json_array_append_new(names, json_string(here->series[i].name));
    return names;
}

static json_t *notes(const struct diff_told *t)
{
    json_t *all = json_array();
    json_array_extend(all, t->a->notes);
    json_array_extend(all, t->b->notes);
    return all;
}

static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }

json_t *diff_json(const struct diff_told *t)
{
    const struct comparison *r = t->r;
    json_t *taps = json_array();
    for (size_t i = 0; i < r->count; i++)
        json_array_append_new(taps, tap_json(&r->taps[i]));
    return json_pack("{s:s,s:o,s:{s:s,s:s},s:{s:s,s:s},s:o,s:{s:s,s:i},s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "verdict",
                     verdict_name[t->verdict], "verdict_of_values",
                     t->chain ? json_string(verdict_name[r->verdict]) : json_null(), "a", "path", t->a->path, "kind",
                     t->a->kind, "b", "path", t->b->path, "kind", t->b->kind, "tokens",
                     t->tokens ? json_integer((json_int_t)t->tokens) : json_null(), "bound", "kind",
                     t->bounds->runs ? "measured" : "a priori", "runs", t->bounds->runs, "first",
                     r->first ? place_json(r->first, &r->first->first, r->first->differs) : json_null(),
                     "first_structural",
                     r->structural
                         ? json_pack("{s:s,s:s,s:o,s:o,s:o}", "tap", r->structural->a->name, "why", r->structural->why,
                                     "at", place_json(r->structural, &r->structural->worst, r->structural->breaks),
                                     "where", text_or_null(r->where), "looks_like", text_or_null(r->looks_like))
                         : json_null(),
                     "first_biased",
                     r->biased ? json_pack("{s:s,s:s,s:o}", "tap", r->biased->a->name, "why", r->biased->why, "where",
                                           text_or_null(r->biased_where))
                               : json_null(),
                     "taps", taps, "only_in_a", lacking(t->c, t->a, t->b), "only_in_b", lacking(t->c, t->b, t->a),
                     "notes", notes(t), "local_a", t->local[0] ? local_json(t->a, t->local[0]) : json_null(), "local_b",
                     t->local[1] ? local_json(t->b, t->local[1]) : json_null());
}

/* --- the table --- */

static void print_line(const struct tap *t, int width)
{
    printf("%-*s  %-16s", width, t->a->name, verdict_name[t->verdict]);
    if (!t->numbers)
        printf("\n");
    else if (t->is_stats)
        printf("  %6.2f  %8s  %8.2e  %8.2e  %8.2e  %8s  %s\n", 100.0 * (double)t->equal / (double)t->numbers, "-",
               t->max_abs, t->relative, t->bound, "-", "statistics");
    else if (t->dtype == DIFF_INTEGERS)
        printf("  %6.2f\n", 100.0 * (double)t->equal / (double)t->numbers);
    else
        printf("  %6.2f  %8llu  %8.2e  %8.2e  %8.2e  %8.2e  %.9f\n", 100.0 * (double)t->equal / (double)t->numbers,
               (unsigned long long)t->most_ulps, t->max_abs, t->relative, t->bound, t->nmse, t->cosine);
}

static void print_place(const char *what, const struct tap *t, const struct diff_place *p)
{
    if (p->column == DIFF_NO_COLUMN) {
        printf("%s: %s, index %d: A = %.9g, B = %.9g, a root mean square or a projection of the row\n", what,
               t->a->name, p->index, p->a, p->b);
        return;
    }
    printf("%s: %s, index %d, column %zu: ", what, t->a->name, p->index, p->column);
    if (t->dtype == DIFF_INTEGERS)
        printf("A = %.0f, B = %.0f\n", p->a, p->b);
    else
        printf("A = %.9g (0x%llx), B = %.9g (0x%llx), %llu ulp of %s\n", p->a, (unsigned long long)p->a_bits, p->b,
               (unsigned long long)p->b_bits, (unsigned long long)p->ulps, dtype_name[t->dtype]);
}

static void print_histogram(const struct tap *t)
{
    char name[48];
    printf("  ULPs there:");
    for (size_t i = 0; i < ULP_BUCKETS; i++)
        if (t->ulps[i]) {
            bucket_name(i, name);
            printf("  %s: %llu", name, (unsigned long long)t->ulps[i]);
        }
    printf("\n");
}

static void print_lacking(const struct cli *c, const char *which, const struct diff_side *here,
                          const struct diff_side *there)
{
    json_t *names = lacking(c, here, there);
    size_t n = json_array_size(names);
    if (n)
        printf("only in %s: %zu name%s:", which, n, n == 1 ? "" : "s");
    for (size_t i = 0; i < n && i < MOST_NAMES; i++)
        printf("%s %s", i ? "," : "", json_string_value(json_array_get(names, i)));
    if (n)
        printf("%s\n", n > MOST_NAMES ? ", ..." : "");
    json_decref(names);
}

static void print_flips(const struct tap *t)
{
    const double margin[2] = {t->margin_a, t->margin_b};
    const char *before = "; the last chosen is at least";
    printf("%s: another choice in %zu of %zu rows", t->a->name, t->flips, t->rows);
    for (int i = 0; i < 2; i++)
        if (!isnan(margin[i])) {
            printf("%s %.3g%s in %c", before, margin[i], *before == ';' ? " before the next" : "", 'A' + i);
            before = ",";
        }
    printf("\n");
}

static void print_margins(const struct tap *t)
{
    if (!t->rows || (!t->is_logits && !t->flips))
        return;
    if (t->no_logits)
        printf("%s: %zu of %zu rows have no probabilities, because a logit is NaN or infinite\n", t->a->name,
               t->no_logits, t->rows);
    if (t->is_logits && t->no_logits == t->rows)
        return;
    if (t->is_logits && t->is_stats)
        printf("%s: the same best token in %zu of %zu rows; best two logits at least %.3g apart in A, %.3g in B\n",
               t->a->name, t->top1_equal, t->rows - t->no_logits, t->margin_a, t->margin_b);
    else if (t->is_logits)
        printf("%s: KL(A || B) %.3g on average, %.3g at most; the same best token in %zu of %zu rows; best two logits "
               "at least %.3g "
               "apart in A, %.3g in B\n",
               t->a->name, t->kl_mean, t->kl_max, t->top1_equal, t->rows - t->no_logits, t->margin_a, t->margin_b);
    else
        print_flips(t);
}

/* Prints the smallest margin of any choice, over all routers. */
static void print_nearest_choice(const struct comparison *r)
{
    const struct tap *nearest = NULL;
    for (const struct tap *t = r->taps; t < r->taps + r->count; t++)
        if (t->is_choice && isfinite(t->margin_a) && (!nearest || t->margin_a < nearest->margin_a))
            nearest = t;
    if (nearest)
        printf("nearest choice: %s, the last chosen %.3g before the next in A, %.3g in B\n", nearest->a->name,
               nearest->margin_a, nearest->margin_b);
}

static void print_verdict(const struct diff_told *t, const size_t counts[STRUCTURAL + 1], const json_t *missing)
{
    const struct comparison *r = t->r;
    int wrong = 0;
    for (size_t i = 0; i < json_array_size(missing); i++)
        printf("required, and not compared: %s\n", json_string_value(json_array_get(missing, i)));
    for (int i = 0; i < 2; i++)
        if (t->local[i] && t->local[i]->first) {
            const struct local *l = t->local[i];
            printf("%s: %c: %zu of %zu operators are %s, first %s (%s)\n", verdict_name[l->wrong ? STRUCTURAL : BIASED],
                   "AB"[i], l -> wrong + l -> biased, l -> judged,
                   !l -> biased ? "wrong"
                         : l->wrong ? "wrong or biased"
                         : "biased",
                   l->first->series->name, l->first->operator);
            wrong = 1;
        }
    if (!t->chain && !wrong)
        printf("%s: every operator alone\n", t->verdict == NOT_COMPARED ? "not judged" : verdict_name[t->verdict]);
    if (!t->chain)
        return;
    printf("%s%s", wrong ? "values: " : "", verdict_name[r->verdict]);
    if (r->structural)
        printf(": %zu of %zu taps, first %s: %s", counts[STRUCTURAL], r->count, r->structural->a->name,
               r->structural->why);
    else if (r->verdict > IDENTICAL)
        printf(": %zu of %zu taps", counts[r->verdict], r->count);
    printf("\n");
    if (r->structural && r->structural->breaks)
        print_place("  there", r->structural, &r->structural->worst);
    if (*r->where)
        printf("  differs in %s\n", r->where);
    if (*r->looks_like)
        printf("  looks like this mistake: %s\n", r->looks_like);
    if (r->biased)
        printf("first biased: %s: %s\n", r->biased->a->name, r->biased->why);
    if (*r->biased_where)
        printf("  deviates in %s\n", r->biased_where);
    for (size_t i = 0; i < r->count; i++)
        if (r->taps[i].verdict == TIE_FLIP) {
            printf("first tie-flip: %s: %s\n", r->taps[i].a->name, r->taps[i].why);
            break;
        }
}

static void print_sides(const struct diff_told *t, int all)
{
    printf("A: %s (%s)   B: %s (%s)\n", t->a->path, t->a->kind, t->b->path, t->b->kind);
    for (int i = 0; i < 2; i++)
        if (t->local[i])
            local_print(i ? t->b : t->a, t->local[i], all);
    if (!t->chain)
        return;
    if (t->bounds->runs)
        printf("bound of rounding: 8 times what %d perturbed runs of the reference move%s\n\n", t->bounds->runs,
               t->bounds->turned ? ", and twice what a number does that is rounded the other way" : "");
    else
        printf("bound of rounding: a priori, by dtype and depth\n\n");
}

static void print_table(const struct comparison *r, int all)
{
    size_t told[STRUCTURAL + 1] = {0}, lines = 0, hidden = 0;
    int width = 3;
    for (size_t i = 0; i < r->count; i++) {
        int n = (int)strlen(r->taps[i].a->name);
        width = n > width && (all || r->taps[i].verdict != IDENTICAL) ? n : width;
    }
    for (size_t i = 0; i < r->count; i++) {
        if (!all && (r->taps[i].verdict == IDENTICAL || told[r->taps[i].verdict]++ >= MOST_LINES)) {
            hidden += r->taps[i].verdict != IDENTICAL;
            continue;
        }
        if (!lines++)
            printf("%-*s  %-16s  %6s  %8s  %8s  %8s  %8s  %8s  %s\n", width, "tap", "verdict", "bits %", "max ulp",
                   "max abs", "relative", "bound", "NMSE", "cosine");
        if (hidden)
            printf("... %zu more\n", hidden);
        print_line(&r->taps[i], width);
        hidden = 0;
    }
    if (hidden)
        printf("... %zu more; --all shows every tap\n", hidden);
    if (lines)
        printf("\n");
}

static void print_counts(const struct comparison *r, const size_t counts[STRUCTURAL + 1])
{
    printf("%zu taps:", r->count);
    for (int v = NOT_COMPARED, first = 1; v <= STRUCTURAL; v++)
        if (counts[v]) {
            printf("%s %zu %s", first ? "" : ",", counts[v], verdict_name[v]);
            first = 0;
        }
    printf("\n");
}

void diff_print(const struct diff_told *t, int all, const json_t *missing)
{
    const struct comparison *r = t->r;
    size_t counts[STRUCTURAL + 1] = {0}, k;
    json_t *said = notes(t), *one;
    for (size_t i = 0; i < r->count; i++)
        counts[r->taps[i].verdict]++;
    print_verdict(t, counts, missing);
    print_sides(t, all);
    print_table(r, all);
    for (size_t i = 0; i < r->count; i++)
        print_margins(&r->taps[i]);
    print_nearest_choice(r);
    if (t->chain)
        print_lacking(t->c, "A", t->a, t->b);
    if (t->chain)
        print_lacking(t->c, "B", t->b, t->a);
    json_array_foreach(said, k, one)
        printf("note: %s\n", json_string_value(one));
    json_decref(said);
    if (t->chain)
        print_counts(r, counts);
    if (r->first && r->first->differs) {
        print_place("first difference", r->first, &r->first->first);
        if (r->first->dtype != DIFF_INTEGERS && !r->first->is_stats)
            print_histogram(r->first);
    }
}
