/* tools/conventions_against.c -- `verbatim conventions MODEL --against DUMP`: finds the conventions that reproduce a
 * dump.
 *
 * The search begins with the conventions of the command line, and tries the other values of each convention in turn.
 * For each tensor there are three vectors: x, the numbers of the dump; y, those of the model with the current value; z,
 * those of the model with the other value. The projection
 *     t = (x - y)(z - y) / |z - y|^2
 * is 0 if the dump was computed with the current value, and 1 if it was computed with the other one. Roundings and
 * mistakes in the dump change x in directions that have nothing to do with z - y, so they move t by little. How little
 * is estimated by sigma, from what is left of x - y without its projection, once for independent numbers and once for
 * independent rows; the larger one counts. A tensor decides if sigma is at most 1 / SHARP and t is nearer than NEAR to
 * 0 or 1. The first such tensor in the order of computation counts. So a dump in BF16 can be judged, and a mistake
 * elsewhere does not matter.
 *
 * In BF16, the errors of all earlier operators hide a small change, such as that of an eps. So if no tensor decides,
 * the same is tried with norms, RoPE and the router's steps alone: y and z are what the reference computes from the
 * dump's own inputs.
 *
 * If y consists of BF16 numbers and z does not (a router in BF16), and the dump stores F32, then the dump's numbers
 * themselves decide. If no tensor decides (for example, if all positions are moved by one, or if an eps changes less
 * than the rounding), the current value is kept, and the output says so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/conventions.h"
#include "tools/diff/local.h"
#include "tools/diff/rank_count.h"

#define MOST_SWEEPS 4
#define ALIKE 1e-7 /* smaller distances are one rounding of f32 */
#define LEAST 16e-7 /* smaller changes, relative to the tensor, may be those of another library's pow, sin and cos */
#define SHARP 12.0
#define NEAR 0.25
#define FAR 2.0    /* of rows that point elsewhere, and of choices that fell the other way */

#define RUNS 8     /* perturbed runs of the reference that measure the bound of the verdict */

#define MOST_CONVENTIONS 32

/* Of each convention the number of its value; 0 is the default. */
struct choices {
    unsigned char value[MOST_CONVENTIONS];
};

struct values { /* of one tensor of the dump, in the order of its rows */
    size_t rows, width;
    double *x, *y;    /* [rows, width]: of the dump and of the model; y is NaN in rows that the model lacks */
    int stored_f32, x_bf16, y_bf16; /* whether the dump stores F32; whether all numbers are numbers of BF16 */
};

struct trial {
    size_t count, common; /* the dump's tensors; those that the model has too */
    char **name;      /* [count] */
    double *distance; /* [count] largest distance of a row, relative to its largest number */
    struct values *values; /* [count] */
    struct values *alone;  /* [count]: y is what the operator computes from the dump's own inputs */
};

struct told { /* by which tensor, and how far the dump is from both values of the convention */
    size_t at;
    double here, there;
    int alone;
};

struct search {
    struct cli *c;
    int32_t *ids;
    size_t count;
    struct choices current;
    struct trial best;
    size_t done;      /* trials, for progress */
};

static void trial_close(struct trial *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->name[i]);
        free(t->values[i].x);
        free(t->values[i].y);
        free(t->alone[i].x);
        free(t->alone[i].y);
    }
    free(t->values);
    free(t->alone);
    free(t->name);
    free(t->distance);
    *t = (struct trial){0};
}

static int layers_of(const vb_model *m)
{
    vb_model_facts facts;
    vb_model_look(m, &facts);
    return facts.layers;
}

/* Reads the dump again, because alignment changes it. layers: the number of layers of the target; -1: not known. */
static int read_dump(struct cli *c, struct diff_side *side, int layers)
{
    return diff_read(c, side, c->against, c->names ? naming_find(c->names) : NULL, layers);
}

/* The distance of the rows that both sides have. If there are none, or if the sides made different choices, it is the
 * largest possible one. A dump with drafts lacks rows of modules: it has those that were computed from final tokens
 * alone. */
static double distance_of(const struct tap *tap)
{
    int apart = tap->flips || tap->after || tap->verdict == NOT_COMPARED;
    if (apart || !(tap->relative < FAR)) /* or not a number */
        return FAR;
    return tap->relative > ALIKE ? tap->relative : ALIKE;
}

static int all_bf16(const double *x, size_t n)
{
    size_t i = 0;
    while (i < n && (!isfinite(x[i]) || diff_round(DIFF_BF16, x[i]) == x[i]))
        i++;
    return n && i == n;
}

static void keep_values(struct values *v, const struct diff_series *s, const struct diff_series *ours)
{
    size_t n = s->count * s->width;
    if (s->dtype == DIFF_INTEGERS || ours->dtype == DIFF_INTEGERS || s->width != ours->width)
        return;
    *v = (struct values){.rows = s->count, .width = s->width, .stored_f32 = s->dtype == DIFF_F32};
    v->x = cli_must(malloc((n + 1) * sizeof *v->x));
    v->y = cli_must(malloc((n + 1) * sizeof *v->y));
    for (size_t i = 0; i < n; i++)
        v->x[i] = v->y[i] = NAN;
    for (size_t r = 0, hint = 0; r < s->count; r++) {
        diff_numbers(s, &s->rows[r], v->x + r * s->width);
        for (size_t k = 0; k < ours->count; k++) {
            const struct diff_row *row = &ours->rows[(hint + k) % ours->count];
            if (row->sequence != s->rows[r].sequence || row->index != s->rows[r].index)
                continue;
            hint = (hint + k + 1) % ours->count;
            diff_numbers(ours, row, v->y + r * s->width);
            break;
        }
    }
    v->x_bf16 = all_bf16(v->x, n);
    v->y_bf16 = all_bf16(v->y, n);
}

static void measure(struct trial *t, const struct comparison *r, const struct diff_side *dump)
{
    t->count = dump->count;
    t->name = cli_must(calloc(t->count + 1, sizeof *t->name));
    t->distance = cli_must(calloc(t->count + 1, sizeof *t->distance));
    t->values = cli_must(calloc(t->count + 1, sizeof *t->values));
    t->alone = cli_must(calloc(t->count + 1, sizeof *t->alone));
    for (size_t i = 0; i < t->count; i++) {
        const struct diff_series *s = &dump->series[i];
        t->name[i] = strdup(s->name);
        cli_must(t->name[i]);
        t->distance[i] = FAR; /* an expert that nobody chose has no rows */
        for (size_t k = 0; k < r->count; k++)
            if (r->taps[k].a == s) {
                t->distance[i] = distance_of(&r->taps[k]);
                t->common += r->taps[k].verdict != NOT_COMPARED;
                keep_values(&t->values[i], s, r->taps[k].b);
            }
    }
}

/* --- operators alone --- */

struct seen_rows {
    struct trial *t;
    const struct diff_side *dump;
};

/* Norms, RoPE and the router's steps. Other conventions move values further than rounding does, and matrices take
 * long. */
static int is_small(const char *operator)
{
    return strstr(operator, "norm") || !strncmp(operator, "rope-", 5) || !strncmp(operator, "router-", 7);
}

static void keep_row(void *context, const struct diff_series *s, int32_t sequence, int32_t index, const double *dump,
                     const double *expected, size_t width)
{
    struct seen_rows *r = context;
    struct values *v = &r->t->alone[s - r->dump->series];
    size_t n = s->count * width, at = 0;
    if (!v->x) {
        *v = (struct values){.rows = s->count, .width = width};
        v->x = cli_must(malloc((n + 1) * sizeof *v->x));
        v->y = cli_must(malloc((n + 1) * sizeof *v->y));
        for (size_t i = 0; i < n; i++)
            v->x[i] = v->y[i] = NAN;
    }
    while (at < s->count && (s->rows[at].sequence != sequence || s->rows[at].index != index))
        at++;
    if (at < s->count && width == v->width) {
        memcpy(v->x + at * width, dump, width * sizeof *dump);
        memcpy(v->y + at * width, expected, width * sizeof *expected);
    }
}

/* Computes small operators from the inputs that the dump has. Errors of other operators do not hide them. */
static int measure_alone(struct search *s, struct cli *model, const struct diff_side *dump, const struct bounds *bounds,
                         struct trial *t)
{
    struct seen_rows seen = {t, dump};
    struct local_reader reader = {is_small, keep_row, &seen};
    struct local local = {.reader = &reader};
    int code = diff_local(model, dump, bounds, s->ids, s->count, 0, 1, &local);
    local_close(&local);
    return code;
}

/* Writes the conventions that differ from the defaults, in the form of --convention. */
static void list_of(const struct choices *choices, char *list, size_t room)
{
    vb_convention c;
    size_t used = 0;
    *list = '\0';
    for (size_t k = 0; vb_convention_at(k, &c) && used < room; k++)
        if (choices->value[k])
            used += (size_t)snprintf(list + used, room - used, "%s%s=%s", used ? "," : "", c.name,
                                     c.values[choices->value[k]]);
}

/* Whether the model, which is open under some choices, computes the same values as under the current ones: whether
 * these choices differ only in conventions that say which drafts are made, or that have no effect in this model. */
static int is_current(const struct search *s, const vb_model *model)
{
    static const char *const of_rounds[] = {"prefill-draft", "missing-hidden", "chain-module"};
    vb_convention c;
    for (size_t k = 0; vb_convention_at(k, &c); k++) {
        int rounds = 0;
        for (size_t i = 0; i < sizeof of_rounds / sizeof *of_rounds; i++)
            rounds |= !strcmp(c.name, of_rounds[i]);
        if (!rounds && vb_model_convention(model, k) != s->current.value[k])
            return 0;
    }
    return 1;
}

/* The model under `choices`, at the dump's tokens. verdict: as `verbatim diff` would have it, or NULL. */
static int try(struct search *s, const struct choices *choices, struct trial *t, enum diff_verdict *verdict,
               char *first, size_t room)
{
    struct cli model = *s->c;
    struct diff_side dump = {0}, ours = {0};
    struct comparison r = {0};
    char list[sizeof model.conventions];
    *t = (struct trial){0};
    list_of(choices, list, sizeof list);
    model.model = NULL;
    model.tokenizer = NULL;
    model.as = model.names = model.taps = NULL;
    model.convention = list;
    model.n = model.draft_tokens = model.context = -1;
    model.tokens = NULL;
    int code = cli_open(&model);
    if (code == EXIT_DONE && s->best.count && !verdict && is_current(s, model.model)) {
        cli_close(&model);
        return EXIT_DONE;
    }
    if (code == EXIT_DONE)
        code = read_dump(s->c, &dump, layers_of(model.model));
    if (code == EXIT_DONE)
        code = diff_dump(&model, s->ids, s->count, 0, 0, &ours);
    if (code == EXIT_DONE) {
        struct bounds bounds = {.arithmetic = DIFF_F32, .layers = layers_of(model.model)};
        diff_align(&dump, &ours, s->c->layout_a, NULL);
        for (size_t i = 0; i < dump.count; i++) /* the least precise dtype of the dump is that of its arithmetic */
            bounds.arithmetic = dump.series[i].dtype < bounds.arithmetic ? dump.series[i].dtype : bounds.arithmetic;
        if (verdict)
            code = bounds_measure(&model, &bounds, RUNS, s->ids, s->count, 0);
        diff_compare(&r, &dump, &ours, verdict ? &bounds : NULL);
        measure(t, &r, &dump);
        if (code == EXIT_DONE && !verdict)
            code = measure_alone(s, &model, &dump, &bounds, t);
        bounds_close(&bounds);
        if (verdict) {
            *verdict = r.verdict;
            snprintf(first, room, "%s", r.structural ? r.structural->a->name : r.first ? r.first->a->name : "");
        }
        comparison_close(&r);
    }
    diff_close(&dump);
    diff_close(&ours);
    cli_close(&model);
    cli_progress("conventions", s->done++ % 100, 100);
    return code;
}

/* Computes t and sigma of a tensor for two models. Returns 0 if they compute the same values there. */
static int project(const struct values *y, const struct values *z, double *t, double *sigma)
{
    double dd = 0, yy = 0, ed = 0, single = 0, whole = 0, row = 0;
    size_t n = y->rows * y->width;
    if (!y->x || !z->x || y->rows != z->rows || y->width != z->width)
        return 0;
    for (size_t i = 0; i < n; i++) {
        double d = z->y[i] - y->y[i], e = y->x[i] - y->y[i];
        if (!isfinite(d) || !isfinite(e))
            continue;
        dd += d * d;
        ed += e * d;
        yy += y->y[i] * y->y[i];
    }
    if (!(dd > LEAST * LEAST * yy))
        return 0;
    *t = ed / dd;
    for (size_t i = 0; i < n; i++) {
        double d = z->y[i] - y->y[i], r = y->x[i] - y->y[i] - *t * d;
        row = i % y->width ? row : 0;
        if (isfinite(d) && isfinite(r)) {
            single += r * r * d * d;
            row += r * d;
        }
        whole += i % y->width == y->width - 1 ? row * row : 0;
    }
    *sigma = sqrt(fmax(single, whole)) / dd;
    return 1;
}

static int decide(double t, double sigma)
{
    return sigma > 1 / SHARP ? 0 : fabs(t) < NEAR ? -1 : fabs(t - 1) < NEAR ? 1 : 0;
}

/* Whether a tensor tells which of two models the dump follows: -1: y, 1: z, 0: it does not tell. */
static int told_by(const struct values *y, const struct values *z)
{
    double t, sigma;
    if (y->x && z->x && y->stored_f32 && y->y_bf16 != z->y_bf16)
        return y->x_bf16 == z->y_bf16 ? 1 : -1;
    return project(y, z, &t, &sigma) ? decide(t, sigma) : 0;
}

/* The same for all operators alone. Their errors are independent, so their t are averaged, with the weights 1 /
 * sigma^2. *at: the one with the smallest sigma. */
static int told_alone(const struct trial *one, const struct trial *other, size_t *at)
{
    double sum = 0, weights = 0, most = 0;
    for (size_t i = 0; i < one->count && i < other->count; i++) {
        double t, sigma;
        if (!project(&one->alone[i], &other->alone[i], &t, &sigma))
            continue;
        double weight = 1 / fmax(sigma * sigma, 1e-12);
        sum += weight * t;
        weights += weight;
        *at = weight > most ? i : *at;
        most = fmax(most, weight);
    }
    return weights > 0 ? decide(sum / weights, 1 / sqrt(weights)) : 0;
}

/* The largest distance of a row, relative to its largest number. */
static double distance_alone(const struct values *v)
{
    double most = 0;
    for (size_t r = 0; r < v->rows; r++) {
        double far = 0, largest = 0;
        for (size_t i = r * v->width; i < (r + 1) * v->width; i++) {
            far = fmax(far, fabs(v->x[i] - v->y[i]));
            largest = fmax(largest, fabs(v->y[i]));
        }
        most = largest > 0 ? fmax(most, far / largest) : most;
    }
    return most;
}

/* The same for two trials: the first tensor of the whole computation that tells, else the operators alone. */
static int tells(const struct trial *one, const struct trial *other, struct told *told)
{
    int which = 0;
    for (size_t i = 0; i < one->count && i < other->count; i++)
        if ((which = told_by(&one->values[i], &other->values[i]))) {
            *told = (struct told){i, one->distance[i], other->distance[i], 0};
            return which;
        }
    size_t at = 0;
    which = told_alone(one, other, &at);
    if (which)
        *told = (struct told){at, distance_alone(&one->alone[at]), distance_alone(&other->alone[at]), 1};
    return which;
}

/* Tries the current conventions with value v for convention k. */
static int try_value(struct search *s, size_t k, unsigned char v, struct trial *t)
{
    struct choices other = s->current;
    other.value[k] = v;
    return try(s, &other, t, NULL, NULL, 0);
}

static int sweep(struct search *s, int *changed)
{
    *changed = 0;
    vb_convention c;
    for (size_t k = 0; vb_convention_at(k, &c); k++)
        for (unsigned char v = 0; vb_model_convention(s->c->model, k) >= 0 && v < VB_CONVENTION_VALUES && c.values[v];
             v++) {
            struct trial t;
            struct told told;
            if (v == s->current.value[k])
                continue;
            int code = try_value(s, k, v, &t);
            if (code != EXIT_DONE)
                return code;
            if (tells(&s->best, &t, &told) > 0) {
                struct trial was = s->best;
                s->current.value[k] = v;
                s->best = t;
                t = was;
                *changed = 1;
            }
            trial_close(&t);
        }
    return EXIT_DONE;
}

/* What tells each convention: the first tensor that tells its value from some other value. */
static int tell(struct search *s, json_t *rows)
{
    vb_convention c;
    for (size_t k = 0; vb_convention_at(k, &c); k++) {
        if (vb_model_convention(s->c->model, k) < 0)
            continue;
        struct told by = {0};
        int told = 0;
        for (unsigned char v = 0; v < VB_CONVENTION_VALUES && c.values[v] && !told; v++) {
            struct trial t;
            if (v == s->current.value[k])
                continue;
            int code = try_value(s, k, v, &t);
            if (code != EXIT_DONE)
                return code;
            told = tells(&s->best, &t, &by) != 0;
            trial_close(&t);
        }
        json_array_append_new(rows, json_pack("{s:s,s:s,s:b,s:o,s:o,s:o,s:o}", "name", c.name, "value",
                                              c.values[s->current.value[k]], "told", told, "by",
                                              told ? json_string(s->best.name[by.at]) : json_null(), "alone",
                                              told ? json_boolean(by.alone) : json_null(), "distance",
                                              told ? json_real(by.here) : json_null(), "distance_otherwise",
                                              told ? json_real(by.there) : json_null()));
    }
    return EXIT_DONE;
}

static void print(const json_t *rows, const char *list, enum diff_verdict verdict, const char *first)
{
    size_t i;
    json_t *row;
    printf("%-16s %-17s %s\n", "convention", "value", "told by");
    json_array_foreach((json_t *)rows, i, row) {
        const char *value = json_string_value(json_object_get(row, "value")),
                   *why = json_string_value(json_object_get(row, "why"));
        printf("%-16s %-17s ", json_string_value(json_object_get(row, "name")), value ? value : "not known");
        if (why)
            puts(why);
        else if (json_object_get(row, "equal"))
            printf("%s: %.1f %% of the numbers have these bits, otherwise %.1f %%\n",
                   json_string_value(json_object_get(row, "by")), 100 * json_real_value(json_object_get(row, "equal")),
                   100 * json_real_value(json_object_get(row, "equal_otherwise")));
        else if (json_is_true(json_object_get(row, "told")))
            printf("%s%s: %.1e away, otherwise %.1e\n", json_string_value(json_object_get(row, "by")),
                   json_is_true(json_object_get(row, "alone")) ? " (alone)" : "",
                   json_real_value(json_object_get(row, "distance")),
                   json_real_value(json_object_get(row, "distance_otherwise")));
        else
            puts("no tensor of the dump");
    }
    printf("\n%s: %s", *list ? list : "the defaults", verdict_name[verdict]);
    printf(verdict == IDENTICAL ? "\n"
           : verdict == STRUCTURAL ? "; the first that no convention explains is %s\n"
           : "; the first that differs is %s\n",
           first);
}

int conventions_against(struct cli *c)
{
    struct search s = {.c = c};
    struct diff_side dump = {0};
    enum diff_verdict verdict = NOT_COMPARED;
    char first[160] = "", list[sizeof c->conventions];
    json_t *rows = json_array();
    vb_convention convention;
    for (size_t k = 0; vb_convention_at(k, &convention) && k < MOST_CONVENTIONS; k++)
        s.current.value[k] = (unsigned char)(vb_model_convention(c->model, k) > 0 ? vb_model_convention(c->model, k)
                                                                                  : 0);
    int changed = 1, code = read_dump(c, &dump, layers_of(c->model));
    if (code == EXIT_DONE && c->tokens) {
        code = cli_prompt(c, &s.ids, &s.count);
    } else if (code == EXIT_DONE && dump.token_count) {
        s.count = dump.token_count;
        s.ids = malloc(s.count * sizeof *s.ids);
        cli_must(s.ids);
        memcpy(s.ids, dump.tokens, s.count * sizeof *s.ids);
    } else if (code == EXIT_DONE) {
        code = cli_fail(c, EXIT_USAGE, "%s does not say which tokens it read: --tokens IDS is missing", c->against);
    }
    diff_close(&dump);
    for (size_t i = 0; i < s.count && code == EXIT_DONE; i++)
        if (s.ids[i] < 0 || s.ids[i] >= vb_vocab_size(c->model))
            code = cli_fail(c, EXIT_OTHER, "token %zu of %s is %d, outside the vocabulary of %d", i, c->against,
                            (int)s.ids[i], vb_vocab_size(c->model));
    if (code == EXIT_DONE)
        code = try(&s, &s.current, &s.best, NULL, NULL, 0);
    if (code == EXIT_DONE && !s.best.common)
        code = cli_fail(c, EXIT_OTHER, "%s has no tensor in common with the model; --names says whose names it has",
                        c->against);
    for (int i = 0; i < MOST_SWEEPS && changed && code == EXIT_DONE; i++)
        code = sweep(&s, &changed);
    if (code == EXIT_DONE)
        code = tell(&s, rows);
    if (code == EXIT_DONE && (code = read_dump(c, &dump, layers_of(c->model))) == EXIT_DONE)
        json_array_append_new(rows, diff_rank_count(c, &dump, &code));
    diff_close(&dump);
    if (code == EXIT_DONE) {
        struct trial last;
        code = try(&s, &s.current, &last, &verdict, first, sizeof first);
        trial_close(&last);
    }
    cli_progress("conventions", 1, 1);
    list_of(&s.current, list, sizeof list);
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:s,s:s,s:s,s:O}", "conventions", list, "verdict", verdict_name[verdict],
                                        "first", first, "rows", rows));
    else if (code == EXIT_DONE)
        print(rows, list, verdict, first);
    trial_close(&s.best);
    json_decref(rows);
    free(s.ids);
    return code != EXIT_DONE ? code : verdict > ROUNDING ? EXIT_DIFFERENCE : EXIT_DONE;
}
