/* tools/diff/compare.c -- compares one tap after the other, in the order of computation. Computes distances and
 * verdicts, and finds the rows that depend on a choice that the two sides made differently. */
#include "tools/diff/diff.h"
#include "tools/dump/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const verdict_name[] = {"not compared", "identical", "after a tie-flip", "rounding", "tie-flip", "biased",
                                    "structural"};

/* a choice that the sides made differently within the bound; or the first row with different tokens (layer is then
 * -1) */
struct flip {
    int32_t sequence, index;
    int depth, layer;
};

struct diff_work {
    const struct diff_side *a, *b;
    const struct bounds *bounds;
    struct comparison *r;
    struct flip *flips;
    size_t flip_count;
    int last_layer; /* the last layer of the target */
    struct tap *tokens; /* the first tap in which the sides have different tokens */
    int explained;      /* whether a tie of the logits before the different tokens explains them */
    double *x, *y, *p, *q; /* x, y: a row of A and of B; p, q: the values from which choices were made */
    size_t room;
};

/* --- numbers --- */

static size_t bucket_of(uint64_t ulps)
{
    size_t bucket = 0;
    if (ulps < 3)
        return (size_t)ulps;
    for (ulps--; ulps; ulps >>= 1)
        bucket++;
    return bucket + 1; /* 3-4 are in bucket 3, 5-8 in bucket 4, ... */
}

/* --- the rows that depend on a different choice --- */

static int reads_tokens_only(const char *name) /* whether this value of an MTP module depends only on tokens */
{
    const char *rest = strstr(name, ".embed_tokens.output");
    return rest || strstr(name, ".enorm.output");
}

static int is_after(const struct diff_work *w, const struct diff_series *s, const struct diff_row *row)
{
    int final = s->depth < 0 && s->rank == 1 << 20, target = s->depth < 0;
    for (size_t i = 0; i < w->flip_count; i++) {
        const struct flip *f = &w->flips[i];
        int layer = final ? w->last_layer + (w->last_layer > f->layer) : s->layer;
        if (f->sequence != row->sequence || (s->depth >= 0 && reads_tokens_only(s->name)))
            continue;
        if (f->depth < s->depth || layer > f->layer ? row->index >= f->index
            : (layer == f->layer || (target && final)) && row->index == f->index)
            return 1;
    }
    return 0;
}

static void add_flip(struct diff_work *w, const struct diff_series *s, const struct diff_row *row, int layer)
{
    w->flips = cli_must(realloc(w->flips, (w->flip_count + 1) * sizeof *w->flips));
    w->flips[w->flip_count++] = (struct flip){row->sequence, row->index, s->depth, layer};
}

void diff_structural(struct tap *t, const char *format, ...)
{
    va_list args;
    if (t->verdict != STRUCTURAL) {
        va_start(args, format);
        vsnprintf(t->why, sizeof t->why, format, args);
        va_end(args);
    }
    t->verdict = STRUCTURAL;
}

static void mark(struct tap *t, struct diff_place *p, int *set, const struct diff_row *row, size_t column, double a,
                 double b)
{
    if (*set)
        return;
    *set = 1;
    *p = (struct diff_place){row->sequence, row->index, row->token, column, a, b, diff_bits(t->dtype, a),
                             diff_bits(t->dtype, b), t->dtype == DIFF_INTEGERS ? 0 : diff_ulps(t->dtype, a, b)};
}

/* --- rows of numbers --- */

struct sums { double dd, aa, bb, ab; };

static int same_bits(enum diff_dtype dtype, double a, double b)
{
    return (isnan(a) && isnan(b)) || diff_bits(dtype, a) == diff_bits(dtype, b);
}

static void one_number(struct tap *t, struct sums *sums, const struct diff_row *row, size_t i, double a, double b)
{
    uint64_t ulps = isnan(a) || isnan(b) ? 0 : diff_ulps(t->dtype, a, b);
    int same = same_bits(t->dtype, a, b);
    t->equal += (size_t)same;
    if (!same)
        mark(t, &t->first, &t->differs, row, i, a, b);
    if (isfinite(a) != isfinite(b) || (!isfinite(a) && (isnan(a) != isnan(b) || (isinf(a) && a != b)))) {
        diff_structural(t, "a number that is not finite on one side only: index %d, column %zu: A = %g, B = %g",
                        row->index, i, a, b);
        mark(t, &t->worst, &t->breaks, row, i, a, b);
        t->relative = INFINITY;
    } else if (isfinite(a)) {
        t->ulps[bucket_of(ulps)]++;
        t->most_ulps = ulps > t->most_ulps ? ulps : t->most_ulps;
        t->max_abs = fmax(t->max_abs, fabs(a - b));
        sums->dd += (a - b) * (a - b);
        sums->aa += a * a;
        sums->bb += b * b;
        sums->ab += a * b;
    }
}

/* A number beyond the range of the dtype stays as it is: an infinity of the other side is not the same. */
static double round_finite(enum diff_dtype dtype, double x)
{
    double y = diff_round(dtype, x);
    return isinf(y) && !isinf(x) ? x : y;
}

static void row_of_numbers(struct diff_work *w, struct tap *t, struct sums *sums, const struct diff_row *row, size_t n)
{
    double most = 0, largest = t->typical;
    for (size_t i = 0; i < n; i++) {
        w->x[i] = round_finite(t->dtype, w->x[i]);
        w->y[i] = round_finite(t->dtype, w->y[i]);
        one_number(t, sums, row, i, w->x[i], w->y[i]);
        if (isfinite(w->x[i]) && isfinite(w->y[i])) {
            most = fmax(most, fabs(w->x[i] - w->y[i]));
            largest = fmax(largest, fmax(fabs(w->y[i]), fabs(w->x[i])));
        }
    }
    t->numbers += n;
    bias_add(&t->bias, row->sequence, row->index, w->x, w->y, n);
    t->relative = fmax(t->relative, most > 0 ? most / largest : 0);
    for (size_t i = 0; i < n && w->bounds; i++)
        if (fabs(w->x[i] - w->y[i]) > t->bound * largest && isfinite(w->x[i]) && isfinite(w->y[i])) {
            diff_structural(t, "index %d, column %zu is %.3g away, rounding explains %.3g", row->index, i,
                            fabs(w->x[i] - w->y[i]), t->bound * largest);
            mark(t, &t->worst, &t->breaks, row, i, w->x[i], w->y[i]);
        }
}

/* --- logits --- */

static size_t best_of(const double *x, size_t n, double *margin)
{
    size_t best = 0;
    double second = -INFINITY;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) {
            second = x[best];
            best = i;
        } else if (x[i] > second) {
            second = x[i];
        }
    *margin = x[best] - second;
    return best;
}

/* Returns the logarithm of the sum of exp(x). The result is NaN if some x is NaN, and not finite if x has no
 * softmax. */
static double log_sum(const double *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        most = isnan(x[i]) ? NAN : x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* Compares the best tokens of a row. `explained`: the largest margin that rounding explains. */
static void best_tokens(struct diff_work *w, struct tap *t, const struct diff_row *row, size_t best_a, size_t best_b,
                        double margin_a, double margin_b, double explained)
{
    t->margin_a = fmin(isnan(t->margin_a) ? INFINITY : t->margin_a, margin_a);
    t->margin_b = fmin(isnan(t->margin_b) ? INFINITY : t->margin_b, margin_b);
    t->top1_equal += best_a == best_b;
    if (best_a == best_b)
        return;
    t->flips++;
    w->explained |= t->a->depth < 0 && row->index + 1 == w->r->other_token && fmax(margin_a, margin_b) <= explained;
    if (t->verdict < TIE_FLIP) {
        snprintf(t->why, sizeof t->why,
                 "index %d: the best is %zu in A (by %.3g), %zu in B (by %.3g); rounding explains %.3g", row->index,
                 best_a, margin_a, best_b, margin_b, explained);
        t->verdict = TIE_FLIP;
    }
}

static void row_of_logits(struct diff_work *w, struct tap *t, const struct diff_row *row, size_t n)
{
    double margin_a, margin_b, kl = 0, za = log_sum(w->x, n), zb = log_sum(w->y, n);
    if (!isfinite(za) || !isfinite(zb)) { /* NaN or +inf among them, or all are -inf */
        t->no_logits++;
        return;
    }
    size_t best_a = best_of(w->x, n, &margin_a), best_b = best_of(w->y, n, &margin_b);
    for (size_t i = 0; i < n; i++)
        if (w->x[i] > -INFINITY)
            kl += exp(w->x[i] - za) * ((w->x[i] - za) - (w->y[i] - zb));
    t->kl_mean += kl;
    t->kl_max = fmax(t->kl_max, kl);
    best_tokens(w, t, row, best_a, best_b, margin_a, margin_b,
                2 * t->bound * fmax(fabs(w->x[best_a]), fabs(w->y[best_b])));
}

/* Of two rows of statistics, the divergence is not known. */
static void best_of_stats(struct diff_work *w, struct tap *t, const struct diff_row *row, const struct stats_row *x,
                          const struct stats_row *y)
{
    double bound = w->bounds ? bounds_of(w->bounds, t->a, t->dtype) : 0;
    if (x->has_top && y->has_top)
        best_tokens(w, t, row, (size_t)x->top[0], (size_t)y->top[0], x->top[1] - x->top[3], y->top[1] - y->top[3],
                    2 * bound * fmax(fabs(x->top[1]), fabs(y->top[1])));
    else
        t->no_logits++;
}

/* --- choices --- */

static int is_kept(const char *name) { return cli_ends_with(name, ".indexer.kept"); }

int diff_by_number(const void *p, const void *q)
{
    const double *a = p, *b = q;
    return (*a > *b) - (*a < *b);
}

int diff_holds(const double *set, size_t k, double e)
{
    for (size_t i = 0; i < k; i++)
        if (set[i] == e)
            return 1;
    return 0;
}

/* Sets the values of experts outside of the chosen groups to -infinity. A dump may lack group scores; the other side
 * has as many. */
static void mask_groups(const struct diff_work *w, const struct diff_side *side, const struct diff_series *s,
                        const struct diff_row *row, double *c, size_t E)
{
    char name[NAMING_ROOM];
    size_t stem = (size_t)(strrchr(s->name, '.') - s->name), n;
    double *kept;
    snprintf(name, sizeof name, "%.*s.group_scores", (int)stem, s->name);
    const struct diff_series *of_a = diff_find(w->a, name, s->depth),
                             *scores = of_a ? of_a : diff_find(w->b, name, s->depth);
    if (!scores || !(n = scores->width) || E % n || !strcmp(s->name + stem, ".groups"))
        return;
    const struct diff_series *groups = diff_router_values(side, s, row, ".groups", &kept);
    if (groups)
        diff_keep_groups(c, E, n, kept, groups->width);
    free(kept);
}

/* Finds the lowest and the highest value that only the sorted set `here` contains. Returns 0 if it contains an index
 * without a value. */
static int only_one_chose(const double *c, size_t count, const double *here, const double *there, size_t k,
                          double *lowest, double *highest)
{
    int fits = 1;
    *lowest = INFINITY;
    *highest = -INFINITY;
    for (size_t i = 0, j = 0; i < k; i++) {
        while (j < k && there[j] < here[i])
            j++;
        int has_value = here[i] >= 0 && here[i] < (double)count && c[(size_t)here[i]] != -INFINITY;
        fits &= has_value;
        if (has_value && (j == k || there[j] != here[i])) {
            *lowest = fmin(*lowest, c[(size_t)here[i]]);
            *highest = fmax(*highest, c[(size_t)here[i]]);
        }
    }
    return fits;
}

/* Computes three numbers about a choice of k values on one side. *margin: the difference between the smallest chosen
 * value and the largest value that was not chosen. *gap: the largest difference between a value that only this side
 * chose and a value that only the other side chose. *bound: how much rounding can change the difference of two values.
 * Returns 0 if the side does not have the values. */
static int margin_of(struct diff_work *w, const struct diff_side *side, const struct diff_series *s,
                     const struct diff_row *row, const double *here, const double *there, size_t k, double *margin,
                     double *gap, double *bound)
{
    double *c, least = INFINITY, next = -INFINITY, largest = 0;
    const struct diff_series *by = diff_candidates(side, s, row, &c);
    if (!by)
        return 0;
    double lowest[2], highest[2];
    for (size_t e = 0; e < by->width; e++)
        largest = fmax(largest, isfinite(c[e]) ? fabs(c[e]) : 0);
    int fits = only_one_chose(c, by->width, here, there, k, &lowest[0], &highest[0]);
    int fits_too = only_one_chose(c, by->width, there, here, k, &lowest[1], &highest[1]);
    *gap = !fits || (!fits_too && is_kept(s->name)) ? INFINITY
                                                    : fmax(0, fmax(highest[0] - lowest[1], highest[1] - lowest[0]));
    mask_groups(w, side, s, row, c, by->width);
    for (size_t e = 0, i = 0; e < by->width; e++) {
        while (i < k && here[i] < (double)e)
            i++;
        if (i < k && here[i] == (double)e)
            least = fmin(least, c[e]);
        else
            next = fmax(next, c[e]);
    }
    *margin = least - next;
    *bound = w->bounds ? 2 * bounds_of(w->bounds, by, by->dtype) * largest : INFINITY;
    free(c);
    return 1;
}

/* Returns the first number that the sorted `set` contains twice, or -1. */
static double repeated(const double *set, size_t k)
{
    size_t i = 1;
    while (i < k && set[i] != set[i - 1])
        i++;
    return i < k ? set[i] : -1;
}

static void row_of_choices(struct diff_work *w, struct tap *t, const struct diff_row *row, const struct diff_row *other,
                           size_t k)
{
    double margin[2] = {NAN, NAN}, gap[2] = {0, 0}, bound[2] = {0, 0}, *set[2] = {w->x, w->y};
    const struct diff_side *side[2] = {w->a, w->b};
    const struct diff_row *rows[2] = {row, other};
    int told[2], same = 1;
    for (int i = 0; i < 2; i++)
        if (w->bounds && side[i]->followed & diff_kind(t->a))
            diff_own_choice(side[i], w->bounds, i ? t->b : t->a, rows[i], set[i], k);
    qsort(w->x, k, sizeof *w->x, diff_by_number);
    qsort(w->y, k, sizeof *w->y, diff_by_number);
    for (size_t i = 0; i < k; i++) {
        t->equal += w->x[i] == w->y[i];
        if (w->x[i] != w->y[i])
            mark(t, &t->first, &t->differs, row, i, w->x[i], w->y[i]);
        same &= w->x[i] == w->y[i];
    }
    t->numbers += k;
    for (int i = 0; i < 2; i++) {
        const struct diff_series *s = i ? t->b : t->a;
        told[i] = t->is_choice && margin_of(w, side[i], s, rows[i], set[i], set[!i], k, &margin[i], &gap[i], &bound[i]);
    }
    if (told[0])
        t->margin_a = fmin(isnan(t->margin_a) ? INFINITY : t->margin_a, margin[0]);
    if (told[1])
        t->margin_b = fmin(isnan(t->margin_b) ? INFINITY : t->margin_b, margin[1]);
    if (same)
        return;
    t->flips++;
    double widest = fmax(gap[0], gap[1]), allowed = fmax(told[0] ? bound[0] : 0, told[1] ? bound[1] : 0);
    if (w->bounds && !t->is_choice) {
        diff_structural(t, "index %d: other integers", row->index);
    } else if (w->bounds && (repeated(w->x, k) >= 0 || repeated(w->y, k) >= 0)) {
        int in_b = repeated(w->x, k) < 0;
        diff_structural(t, "index %d: %c chose %.0f twice", row->index, in_b ? 'B' : 'A', repeated(set[in_b], k));
    } else if (w->bounds && !told[0] && !told[1]) {
        diff_structural(t, "index %d: another choice, and neither side has the values it was made by", row->index);
    } else if (w->bounds && !(widest <= allowed)) {
        diff_structural(t, "index %d: another choice, by a margin of %.3g; rounding explains %.3g", row->index, widest,
                        allowed);
    } else {
        if (t->verdict != STRUCTURAL && t->verdict != TIE_FLIP)
            snprintf(t->why, sizeof t->why, "index %d: another choice, by a margin of %.3g; rounding explains %.3g",
                     row->index, widest, allowed);
        t->verdict = t->verdict == STRUCTURAL ? STRUCTURAL : TIE_FLIP;
        if (!((w->a->followed | w->b->followed) & diff_kind(t->a)))
            add_flip(w, t->a, row, t->a->layer);
        return;
    }
    mark(t, &t->worst, &t->breaks, row, 0, w->x[0], w->y[0]);
}

/* Compares the tokens that an indexer keeps. Places that are not used contain -1. */
static void row_of_sets(struct diff_work *w, struct tap *t, const struct diff_row *row, const struct diff_row *other,
                        size_t n)
{
    size_t a = diff_squeeze(w->x, n), b = diff_squeeze(w->y, n);
    if (a == b) {
        row_of_choices(w, t, row, other, a);
        return;
    }
    t->numbers += n;
    t->flips++;
    diff_structural(t, "index %d: A keeps %zu tokens, B %zu", row->index, a, b);
    mark(t, &t->first, &t->differs, row, 0, (double)a, (double)b);
    mark(t, &t->worst, &t->breaks, row, 0, (double)a, (double)b);
}

/* Sorts the weights of a row by expert. A row has its weights in the order of its experts, which is not ascending in
 * all engines. */
static void order_weights(const struct diff_side *side, const struct diff_series *s, const struct diff_row *row,
                          double *x, double *room)
{
    char name[NAMING_ROOM];
    size_t hint = 0, stem = (size_t)(strrchr(s->name, '.') - s->name);
    snprintf(name, sizeof name, "%.*s.experts", (int)stem, s->name);
    const struct diff_series *experts = diff_find(side, name, s->depth);
    const struct diff_row *r = experts && experts->width == s->width ? diff_partner(experts, row, &hint) : NULL;
    if (!r)
        return;
    diff_numbers(experts, r, room);
    for (size_t i = 1; i < s->width; i++) /* insertion sort of both arrays */
        for (size_t j = i; j > 0 && room[j] < room[j - 1]; j--) {
            double e = room[j], v = x[j];
            room[j] = room[j - 1];
            x[j] = x[j - 1];
            room[j - 1] = e;
            x[j - 1] = v;
        }
}

/* --- a tap --- */

static void make_room(struct diff_work *w, size_t n)
{
    double **rows[] = {&w->x, &w->y, &w->p, &w->q};
    for (size_t i = 0; i < 4 && n > w->room; i++)
        *rows[i] = cli_must(realloc(*rows[i], n * sizeof **rows[i]));
    w->room = n > w->room ? n : w->room;
}

/* Compares a row of which a side has statistics. */
static void row_of_stats(struct diff_work *w, struct tap *t, const struct diff_row *row, const struct diff_row *other)
{
    struct stats_row x, y;
    if (diff_stats_row(t, row, other, w->bounds != NULL, &x, &y) && t->is_logits)
        best_of_stats(w, t, row, &x, &y);
}

static void one_row(struct diff_work *w, struct tap *t, struct sums *sums, const struct diff_row *row,
                    const struct diff_row *other)
{
    size_t n = t->a->width > t->b->width ? t->a->width : t->b->width;
    if (t->is_stats) {
        row_of_stats(w, t, row, other);
        return;
    }
    const struct diff_series *like = w->b->like ? diff_find(w->b->like, t->a->name, t->a->depth) : NULL;
    if (like && like->is_stats)
        diff_stats_move(t, row, other);
    for (size_t i = 0; i < n; i++) /* if one side stores fewer scores, the others are scores of masked tokens */
        w->x[i] = w->y[i] = strstr(t->a->name, ".self_attn.probabilities.") ? 0
                            : t->dtype == DIFF_INTEGERS ? -1
                            : -INFINITY;
    diff_numbers(t->a, row, w->x);
    diff_numbers(t->b, other, w->y);
    if (cli_ends_with(t->a->name, ".mlp.gate.weights")) {
        order_weights(w->a, t->a, row, w->x, w->p);
        order_weights(w->b, t->b, other, w->y, w->p);
    }
    if (cli_ends_with(t->a->name, ".indexer.weights") && t->dtype != DIFF_INTEGERS)
        diff_scale_flips(t, w->a, w->b, w->bounds, row, w->x, w->y, n);
    t->rows++;
    if (is_kept(t->a->name) && t->dtype == DIFF_INTEGERS)
        row_of_sets(w, t, row, other, n);
    else if (t->dtype == DIFF_INTEGERS)
        row_of_choices(w, t, row, other, n);
    else
        row_of_numbers(w, t, sums, row, n);
    if (t->is_logits)
        row_of_logits(w, t, row, n);
}

/* Compares a row that --steps leaves out, if later rows depend on it. */
static void outside_row(struct diff_work *w, const struct tap *t, const struct diff_row *row,
                        const struct diff_row *other)
{
    struct tap unseen = {.a = t->a, .b = t->b, .dtype = t->dtype, .bound = t->bound, .typical = t->typical,
                         .is_choice = t->is_choice, .is_logits = t->is_logits};
    struct sums sums = {0, 0, 0, 0};
    if ((t->is_choice || t->is_logits) && !is_after(w, t->a, row))
        one_row(w, &unseen, &sums, row, other);
    bias_close(&unseen, 1);
}

static void all_rows(struct diff_work *w, struct tap *t, struct sums *sums)
{
    size_t hint = 0, met = 0;
    for (size_t i = 0; i < t->a->count; i++) {
        const struct diff_row *row = &t->a->rows[i], *other = diff_partner(t->b, row, &hint);
        if (!other || (row->token >= 0 && other->token >= 0 && row->token != other->token && t->a->depth >= 0)) {
            t->only_a++;
            continue;
        }
        met++;
        if (row->token >= 0 && other->token >= 0 && row->token != other->token && !is_after(w, t->a, row)) {
            if (w->r->other_token < 0) {
                w->r->other_token = row->index;
                w->tokens = t->verdict == STRUCTURAL ? NULL : t;
                diff_structural(t,
                                "from index %d on the two read other tokens (%d and %d): compare a dump with MODEL, at "
                                "its tokens",
                                row->index, row->token, other->token);
                mark(t, &t->worst, &t->breaks, row, 0, row->token, other->token);
                mark(t, &t->first, &t->differs, row, 0, row->token, other->token);
            }
            add_flip(w, t->a, row, -1);
        }
        w->r->unselected |= row->outside || other->outside;
        if (row->outside || other->outside)
            outside_row(w, t, row, other);
        else if (is_after(w, t->a, row))
            t->after++;
        else
            one_row(w, t, sums, row, other);
    }
    t->only_b = t->b->count - met;
}

/* Returns the median of the largest numbers of the rows. */
static double typical_row(struct diff_work *w, const struct diff_series *s)
{
    double *largest = cli_must(calloc(s->count + 1, sizeof *largest));
    for (size_t k = 0; k < s->count; k++) {
        diff_numbers(s, &s->rows[k], w->x);
        for (size_t i = 0; i < s->rows[k].width; i++)
            largest[k] = isfinite(w->x[i]) ? fmax(largest[k], fabs(w->x[i])) : largest[k];
    }
    qsort(largest, s->count, sizeof *largest, diff_by_number);
    double median = s->count ? largest[s->count / 2] : 0;
    free(largest);
    return median;
}

static void judge(struct tap *t)
{
    if (t->rows && t->verdict == NOT_COMPARED)
        t->verdict = t->equal == t->numbers ? IDENTICAL : ROUNDING;
    else if (t->after && t->verdict == NOT_COMPARED)
        t->verdict = AFTER_TIE_FLIP;
}

static void compare(struct diff_work *w, struct tap *t)
{
    struct sums s = {0, 0, 0, 0};
    const struct diff_series *a = t->a, *b = t->b;
    int scores = naming_of_context(a->name);
    t->dtype = a->dtype < b->dtype ? a->dtype : b->dtype;
    t->margin_a = t->margin_b = NAN;
    if ((a->dtype == DIFF_INTEGERS) != (b->dtype == DIFF_INTEGERS)) {
        diff_structural(t, "integers on one side only");
        return;
    }
    if (a->width != b->width && (!scores || a->is_stats || b->is_stats)) {
        diff_structural(t, "another shape: %s and %s", a->shape, b->shape);
        return;
    }
    t->is_choice = cli_ends_with(a->name, ".mlp.gate.experts") || cli_ends_with(a->name, ".mlp.gate.groups") ||
                   is_kept(a->name);
    t->is_logits = (cli_ends_with(a->name, "lm_head.output") || cli_ends_with(a->name, "shared_head.head.output")) &&
                   a->width && t->dtype != DIFF_INTEGERS;
    t->is_stats = a->is_stats || b->is_stats;
    t->bound = !w->bounds || t->dtype == DIFF_INTEGERS ? 0
               : t->is_stats ? bounds_of_stats(w->bounds, a, t->dtype)
               : bounds_of(w->bounds, a, t->dtype);
    make_room(w, a->width > b->width ? a->width : b->width);
    if (w->bounds && !w->bounds->runs && t->dtype != DIFF_INTEGERS) /* of the estimate: bound.c */
        t->typical = t->is_stats ? fmin(diff_stats_typical(a), diff_stats_typical(b))
                                 : fmin(typical_row(w, a), typical_row(w, b));
    all_rows(w, t, &s);
    t->nmse = s.dd > 0 ? s.dd / s.bb : 0;
    t->cosine = s.aa > 0 && s.bb > 0 ? s.ab / sqrt(s.aa) / sqrt(s.bb) : s.aa == s.bb;
    t->kl_mean = t->rows > t->no_logits && !t->is_stats ? t->kl_mean / (double)(t->rows - t->no_logits) : NAN;
    t->kl_max = t->rows > t->no_logits && !t->is_stats ? t->kl_max : NAN;
    judge(t);
}

void diff_compare(struct comparison *r, const struct diff_side *a, const struct diff_side *b,
                  const struct bounds *bounds)
{
    struct diff_work w = {.a = a, .b = b, .bounds = bounds, .r = r};
    *r = (struct comparison){.verdict = NOT_COMPARED, .other_token = -1,
                             .taps = cli_must(calloc(a->count + 1, sizeof *r->taps))};
    for (size_t i = 0; i < a->count; i++)
        if (a->series[i].depth < 0 && a->series[i].layer > w.last_layer)
            w.last_layer = a->series[i].layer;
    for (size_t i = 0; i < a->count; i++) {
        const struct diff_series *other = diff_find(b, a->series[i].name, a->series[i].depth);
        if (!other || cli_ends_with(a->series[i].name, ".indexer.margin")) /* the difference of two scores, often 0: its
                                                                              distance says nothing */
            continue;
        struct tap *t = &r->taps[r->count++];
        t->a = &a->series[i];
        t->b = other;
        compare(&w, t);
    }
    if (w.tokens && w.explained) {
        w.tokens->verdict = TIE_FLIP;
        w.tokens->breaks = 0;
    }
    diff_sum_up(r);
    free(w.flips);
    free(w.x);
    free(w.y);
    free(w.p);
    free(w.q);
}

void comparison_close(struct comparison *r)
{
    bias_close(r->taps, r->count);
    free(r->taps);
    *r = (struct comparison){0};
}
