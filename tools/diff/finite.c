/* tools/diff/finite.c -- says where the first NaN or infinity of a side is, and its first number that is too large for
 * the dtype in which a side computes or stores it. All values behind it are usually wrong too. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"
#include "tools/dump/stats.h"

struct finding {
    const struct diff_series *series; /* of the first number; NULL: there is none */
    int32_t index;
    size_t column, taps; /* taps: how many have such numbers */
    double x;
    enum diff_dtype dtype; /* whose range counts */
};

static const char *const dtype_name[] = {"BF16", "F16", "F32"};
static const double largest[] = {0x1.fep127, 65504, FLT_MAX}; /* of the dtypes */

/* Values in which -infinity stands for what cannot be chosen, or is not attended to. */
static int has_masks(const char *name)
{
    return strstr(name, ".mlp.gate.choice") || strstr(name, ".mlp.gate.group_scores") ||
           strstr(name, ".self_attn.scores.") || strstr(name, ".indexer.scores");
}

/* The dtype with the smallest range in which a side computes or stores the value. DIFF_F64: none has a smaller range
 * than the numbers. */
static enum diff_dtype narrowest(const struct diff_series *s, const struct diff_side *other, enum diff_dtype arithmetic)
{
    const struct diff_series *o = diff_find(other, s->name, s->depth);
    enum diff_dtype dtypes[] = {s->dtype, o ? o->dtype : s->dtype, arithmetic}, found = DIFF_F64;
    for (size_t i = 0; i < 3; i++)
        if (dtypes[i] <= DIFF_F32 && (found == DIFF_F64 || largest[dtypes[i]] < largest[found]))
            found = dtypes[i];
    return found;
}

/* The numbers of a row; of statistics, the smallest and the largest, and what they have of other numbers. Returns how
 * many there are. */
static size_t numbers(const struct diff_series *s, const struct diff_row *row, double *x)
{
    diff_numbers(s, row, x);
    if (!s->is_stats)
        return row->width;
    const struct stats_row *stats = (const struct stats_row *)(const void *)row->data;
    size_t n = 0;
    x[n++] = stats->min;
    x[n++] = stats->max;
    if (stats->nans)
        x[n++] = NAN;
    if (stats->infinities)
        x[n++] = INFINITY;
    return n;
}

static void look(struct finding *bad, struct finding *large, const struct diff_series *s, enum diff_dtype dtype,
                 double *x)
{
    int found = 0, exceeds = 0, masks = has_masks(s->name);
    for (size_t k = 0; k < s->count && (!found || !exceeds); k++) {
        size_t n = numbers(s, &s->rows[k], x);
        for (size_t i = 0; i < n; i++) {
            struct finding here = {s, s->rows[k].index, s->is_stats ? DIFF_NO_COLUMN : i, 0, x[i], dtype};
            int wrong = !isfinite(x[i]) && !(masks && (s->is_stats || x[i] < 0));
            int over = isfinite(x[i]) && dtype != DIFF_F64 && fabs(x[i]) >= largest[dtype];
            if (wrong && !bad->series)
                *bad = here;
            if (over && !large->series)
                *large = here;
            found |= wrong;
            exceeds |= over;
        }
    }
    bad->taps += (size_t)found;
    large->taps += (size_t)exceeds;
}

static void add_note(struct diff_side *side, const char *what, const struct finding *f, const char *why)
{
    char column[32] = "";
    if (f->column != DIFF_NO_COLUMN)
        snprintf(column, sizeof column, ", column %zu", f->column);
    json_array_append_new(side->notes, json_sprintf("%s: the first number that is %s in %s, index %d%s%s; %zu taps "
                                                    "have such numbers",
                                                    side->path, what, f->series->name, f->index, column, why, f->taps));
}

void diff_note_finite(struct diff_side *side, const struct diff_side *other, enum diff_dtype arithmetic)
{
    struct finding bad = {0}, large = {0};
    char what[160];
    for (size_t i = 0; i < side->count; i++) {
        const struct diff_series *s = &side->series[i];
        double *x = s->dtype == DIFF_INTEGERS ? NULL : cli_must(calloc(s->width + 4, sizeof *x));
        if (x)
            look(&bad, &large, s, narrowest(s, other, arithmetic), x);
        free(x);
    }
    if (bad.series) {
        snprintf(what, sizeof what, "not finite is %s",
                 isnan(bad.x) ? "NaN"
                 : bad.series->is_stats || bad.x > 0 ? "infinity"
                 : "-infinity");
        add_note(side, what, &bad,
                 isinf(bad.x) && bad.series->dtype == DIFF_F16 ? " (the largest number of F16 is 65504)" : "");
    }
    if (large.series) {
        snprintf(what, sizeof what, "an overflow of %s (at least %.6g) is %.9g", dtype_name[large.dtype],
                 largest[large.dtype], large.x);
        add_note(side, what, &large, "");
    }
}
