/* tools/diff/router.c -- computes the choices of a router from its logits, because the hooks of some engines see only
 * the logits. The routing rules (sigmoid or softmax, bias, groups, the score of a group) are derived from the numbers
 * of the other side, which has all of them. So if the sides choose different experts, diff reports the choice itself,
 * and not the differences that follow from it. */
#include "tools/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rules {
    /* E: the number of experts; k: how many are chosen; groups: the number of groups, 0: none; kept: how many are
     * chosen */
    size_t E, k, groups, kept;
    int softmax, biased;
    int two_best;              /* the score of a group: 1: the sum of its two best experts, 0: its best expert */
    double *bias;              /* [E] */
};

static const struct diff_series *at(const struct diff_side *side, const struct diff_series *logits, const char *what)
{
    char name[NAMING_ROOM];
    snprintf(name, sizeof name, "%.*s%s", (int)(strrchr(logits->name, '.') - logits->name), logits->name, what);
    return diff_find(side, name, logits->depth);
}

/* --- the router, as in reference/moe.c --- */

static void scores_of(const struct rules *u, double *x)
{
    double most = -INFINITY, sum = 0;
    for (size_t e = 0; e < u->E; e++)
        most = fmax(most, x[e]);
    for (size_t e = 0; e < u->E; e++)
        sum += exp(x[e] - most);
    for (size_t e = 0; e < u->E; e++)
        x[e] = u->softmax ? exp(x[e] - most) / sum : 1 / (1 + exp(-x[e]));
}

static double worth(const struct rules *u, const double *choice, size_t g)
{
    size_t size = u->E / u->groups;
    double best = -INFINITY, second = -INFINITY;
    for (size_t e = g * size; e < (g + 1) * size; e++)
        if (choice[e] > best) {
            second = best;
            best = choice[e];
        } else {
            second = fmax(second, choice[e]);
        }
    return u->two_best ? best + second : best;
}

/* Writes the indices of the k largest numbers of x [n] to `chosen`, in ascending order. Among equal numbers, the lower
 * index is chosen. */
static void choose(int32_t *chosen, size_t k, const double *x, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n && count < k; i++) {
        size_t before = 0;
        for (size_t j = 0; j < n; j++)
            before += x[j] > x[i] || (x[j] == x[i] && j < i);
        if (before < k)
            chosen[count++] = (int32_t)i;
    }
    while (count < k) /* only if x contains NaN */
        chosen[count++] = 0;
}

/* --- the routing rules, from the numbers of the other side --- */

static int learn(struct rules *u, const struct diff_side *side, const struct diff_series *logits)
{
    const struct diff_series *scores = at(side, logits, ".scores"), *choice = at(side, logits, ".choice");
    const struct diff_series *experts = at(side, logits, ".experts"), *groups = at(side, logits, ".groups");
    const struct diff_series *worths = at(side, logits, ".group_scores");
    size_t E = logits->width;
    double *x, *s, far = 0;
    if (!scores || !experts || !logits->count || !scores->count || !experts->count || scores->width != E || !E ||
        (choice && (choice->width != E || !choice->count)) || experts->width > E)
        return 0;
    *u = (struct rules){.E = E, .k = experts->width, .bias = cli_must(calloc(E, sizeof(double)))};
    x = cli_must(calloc(2 * E, sizeof *x));
    s = x + E;
    diff_numbers(logits, &logits->rows[0], x);
    diff_numbers(scores, &scores->rows[0], s);
    scores_of(u, x);
    for (size_t e = 0; e < E; e++)
        far = fmax(far, fabs(x[e] - s[e]));
    u->softmax = !(far < 1e-2);
    u->biased = choice != NULL;
    if (choice) {
        diff_numbers(choice, &choice->rows[0], x);
        for (size_t e = 0; e < E; e++)
            u->bias[e] = x[e] - s[e];
        memcpy(s, x, E * sizeof *s);
    }
    if (groups && worths && worths->count && worths->width && E % worths->width == 0 &&
        groups->width <= worths->width) {
        double *w = cli_must(calloc(worths->width, sizeof *w)), best[2] = {0, 0};
        diff_numbers(worths, &worths->rows[0], w);
        u->groups = worths->width;
        u->kept = groups->width;
        for (u->two_best = 0; u->two_best < 2; u->two_best++)
            for (size_t g = 0; g < u->groups; g++)
                best[u->two_best] += fabs(worth(u, s, g) - w[g]);
        u->two_best = best[1] < best[0];
        free(w);
    }
    free(x);
    return 1;
}

/* --- the choices --- */

static char *add_series(struct diff_side *side, const struct diff_series *logits, const char *what,
                        enum diff_dtype dtype, size_t width)
{
    size_t stem = (size_t)(strrchr(logits->name, '.') - logits->name), item = dtype == DIFF_INTEGERS ? 4 : 8;
    char name[NAMING_ROOM], *data = cli_must(calloc(logits->count * width + 1, item));
    snprintf(name, sizeof name, "%.*s%s", (int)stem, logits->name, what);
    struct diff_series *to = diff_series_of(side, name, logits->depth), s = *logits;
    s.name = to->name;
    s.step = to->step;
    s.dtype = dtype;
    s.item = item;
    s.width = width;
    s.room = s.count + 1;
    s.rows = cli_must(malloc(s.room * sizeof *s.rows));
    snprintf(s.shape, sizeof s.shape, "[%zu,%zu]", s.count, width);
    for (size_t i = 0; i < s.count; i++) {
        s.rows[i] = logits->rows[i];
        s.rows[i].width = width;
        s.rows[i].data = data + i * width * item;
    }
    *to = s;
    return diff_own(side, data);
}

static void choose_rows(struct diff_side *side, size_t series, const struct rules *u)
{
    struct diff_series logits = side->series[series]; /* a copy, because add_series may move side->series */
    const char *by = u->biased ? ".choice" : ".scores";
    double *choices = (double *)(void *)add_series(side, &logits, by, DIFF_F64, u->E), *worths = NULL;
    int32_t *groups = NULL, *experts;
    if (u->groups) {
        worths = (double *)(void *)add_series(side, &logits, ".group_scores", DIFF_F64, u->groups);
        groups = (int32_t *)(void *)add_series(side, &logits, ".groups", DIFF_INTEGERS, u->kept);
    }
    experts = (int32_t *)(void *)add_series(side, &logits, ".experts", DIFF_INTEGERS, u->k);
    double *x = cli_must(malloc((u->E + 1) * sizeof *x));
    for (size_t i = 0; i < logits.count; i++) {
        double *choice = choices + i * u->E;
        diff_numbers(&logits, &logits.rows[i], choice);
        scores_of(u, choice);
        for (size_t e = 0; e < u->E; e++)
            x[e] = choice[e] += u->bias[e];
        for (size_t g = 0; g < u->groups; g++)
            worths[i * u->groups + g] = worth(u, choice, g);
        if (u->groups)
            choose(groups + i * u->kept, u->kept, worths + i * u->groups, u->groups);
        for (size_t e = 0; e < u->E && u->groups; e++) {
            int kept = 0;
            for (size_t g = 0; g < u->kept; g++)
                kept |= groups[i * u->kept + g] == (int32_t)(e / (u->E / u->groups));
            x[e] = kept ? x[e] : -INFINITY;
        }
        choose(experts + i * u->k, u->k, x, u->E);
    }
    free(x);
}

void diff_choose(struct diff_side *side, const struct diff_side *other)
{
    size_t count = side->count, layers = 0;
    for (size_t i = 0; i < count; i++) {
        const struct diff_series *logits = &side->series[i], *theirs;
        size_t n = strlen(logits->name);
        struct rules u;
        if (n < 16 || strcmp(logits->name + n - 16, ".mlp.gate.output") || logits->dtype == DIFF_INTEGERS)
            continue;
        theirs = diff_find(other, logits->name, logits->depth);
        if (at(side, logits, ".experts") || at(side, logits, ".choice") || at(side, logits, ".scores") ||
            at(side, logits, ".groups") || at(side, logits, ".group_scores") || !theirs ||
            theirs->width != logits->width || logits->is_stats || theirs->is_stats || !learn(&u, other, theirs))
            continue;
        choose_rows(side, i, &u);
        free(u.bias);
        layers++;
    }
    char text[160];
    snprintf(text, sizeof text, "%.60s has router logits only: its choices in %zu layers are what follows from them",
             side->path, layers);
    if (layers)
        json_array_append_new(side->notes, json_string(text));
}
