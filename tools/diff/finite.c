/* tools/diff/finite.c -- says where the first NaN or infinity of a side is. All values behind it are usually wrong too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"

struct finding {
    const struct diff_series *series; /* of the first number that is not finite; NULL: all are finite */
    int32_t index;
    size_t column, taps;
    double x;
};

/* Values in which -infinity stands for what cannot be chosen, or is not attended to. */
static int has_masks(const char *name)
{
    return strstr(name, ".mlp.gate.choice") || strstr(name, ".mlp.gate.group_scores") || strstr(name, ".self_attn.scores.") ||
           strstr(name, ".indexer.scores");
}

static void look(struct finding *f, const struct diff_series *s, double *x)
{
    int found = 0, masks = has_masks(s->name);
    for (size_t k = 0; k < s->count && !found; k++) {
        diff_numbers(s, &s->rows[k], x);
        for (size_t i = 0; i < s->rows[k].width && !found; i++) {
            found = !isfinite(x[i]) && !(masks && x[i] < 0);
            if (found && !f->series)
                *f = (struct finding){s, s->rows[k].index, i, 0, x[i]};
        }
    }
    f->taps += (size_t)found;
}

void diff_note_finite(struct diff_side *side)
{
    struct finding f = {0};
    for (size_t i = 0; i < side->count; i++) {
        const struct diff_series *s = &side->series[i];
        double *x = s->dtype == DIFF_INTEGERS ? NULL : cli_must(malloc((s->width + 1) * sizeof *x));
        if (x)
            look(&f, s, x);
        free(x);
    }
    if (!f.series)
        return;
    const char *what = isnan(f.x) ? "NaN" : f.x > 0 ? "infinity" : "-infinity", *why = "";
    if (isinf(f.x) && f.series->dtype == DIFF_F16)
        why = " (the largest number of F16 is 65504)";
    json_array_append_new(side->notes, json_sprintf("%s: the first number that is not finite is %s in %s, index %d, column %zu%s; %zu taps have "
                                                    "such numbers", side->path, what, f.series->name, f.index, f.column, why, f.taps));
}
