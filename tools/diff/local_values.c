/* tools/diff/local_values.c -- the values of a dump as matrices, and the values that are computed from them because the
 * dump lacks them. */
#include "tools/diff/local.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct config *config_of(const struct local_values *v) { return reference_config(v->r); }

/* The layer of a name; -1: not in a layer. */
static int layer_of(const char *name)
{
    int step, last;
    return naming_place(name, &step, &last);
}

size_t local_base(const struct local_values *v, int depth)
{
    return depth >= 0 && v->conventions.value[FIRST_ROW] ? 0 : 1;
}

size_t local_width(const struct local_values *v, const struct reference_operator *op, int layer)
{
    int L = config_of(v)->num_hidden_layers;
    return op->row->width ? op->row->width(config_of(v))
                          : v->rows - local_base(v, layer >= L ? layer - L : -1);
}

/* As in ref_mtp_rows in reference/model.c. */
int local_position(const struct local_values *v, int depth)
{
    int phantom = depth >= 0 && v->conventions.value[FIRST_ROW];
    return (depth >= 0 && v->conventions.value[DRAFT_POSITION] ? depth + 1 : 0) - phantom;
}

/* --- the dump --- */

double local_unit(const struct local_values *v, const struct diff_series *s)
{
    double unit = diff_unit(s->dtype), *x;
    int coarse = 1;
    if (s->dtype == DIFF_INTEGERS || unit >= v->arithmetic)
        return unit;
    if (v->arithmetic_given)
        return v->arithmetic;
    x = cli_must(malloc((s->width + 1) * sizeof *x));
    for (size_t k = 0; k < s->count && coarse; k++) {
        diff_numbers(s, &s->rows[k], x);
        for (size_t i = 0; i < s->rows[k].width && coarse; i++)
            coarse = isnan(x[i]) || diff_round(v->dtype, x[i]) == x[i];
    }
    free(x);
    return coarse ? v->arithmetic : unit;
}

/* diff_numbers returns pairs (2p, 2p+1) if the dump says that it has halves. The checkpoint has halves too, or it is
 * the engine that reordered the pairs. */
static void to_checkpoint(const struct local_values *v, const struct diff_series *s, double *x)
{
    double row[512];
    size_t r = s->rope;
    if (!r || config_of(v)->rope_interleave || r > 512)
        return;
    for (size_t at = s->block - r; at < s->width; at += s->block) {
        memcpy(row, x + at, r * sizeof *row);
        for (size_t p = 0; p < r; p++)
            x[at + p / 2 + p % 2 * (r / 2)] = row[p];
    }
}

void local_numbers(const struct local_values *v, const struct diff_series *s, double *x, unsigned char *present,
                   int32_t *tokens)
{
    for (size_t k = 0; k < s->count; k++) {
        const struct diff_row *row = &s->rows[k];
        size_t at = (size_t)(row->index + 1);
        if (row->sequence != v->sequence || row->index < -1 || at >= v->rows)
            continue;
        diff_numbers(s, row, x + at * s->width);
        to_checkpoint(v, s, x + at * s->width);
        present[at] = 1;
        if (tokens)
            tokens[at] = row->token;
    }
}

static struct local_value *add(struct local_values *v, int noisy, const char *name, int depth, size_t width)
{
    if (v->count[noisy] == v->room[noisy]) {
        v->room[noisy] = 2 * v->room[noisy] + 32;
        v->list[noisy] = cli_must(realloc(v->list[noisy], v->room[noisy] * sizeof *v->list[noisy]));
    }
    struct local_value *n = &v->list[noisy][v->count[noisy]++];
    *n = (struct local_value){.name = cli_must(strdup(name)), .depth = depth, .width = width,
                              .x = cli_must(calloc(v->rows * width + 1, sizeof(double))),
                              .present = cli_must(calloc(v->rows + 1, 1))};
    return n;
}

static const struct local_value *find(const struct local_values *v, int noisy, const char *name, int depth)
{
    for (size_t i = v->count[noisy]; i-- > 0;)
        if (v->list[noisy][i].depth == depth && !strcmp(v->list[noisy][i].name, name))
            return &v->list[noisy][i];
    return NULL;
}

/* The tokens of a pass: those of the rows of any series, else those that the caller knows. */
static const struct local_value *tokens_of(struct local_values *v, int depth)
{
    struct local_value *n = add(v, 0, "tokens", depth, 1);
    int32_t *tokens = cli_must(malloc((v->rows + 1) * sizeof *tokens));
    for (size_t i = 0; i < v->rows; i++) {
        size_t at = i + (size_t)(depth + 1);
        tokens[i] = at >= 1 && at - 1 < v->id_count && v->sequence == 0 ? v->ids[at - 1] : -1;
    }
    for (size_t i = 0; i < v->side->count; i++)
        for (size_t k = 0; k < v->side->series[i].count && v->side->series[i].depth == depth; k++) {
            const struct diff_row *row = &v->side->series[i].rows[k];
            if (row->sequence == v->sequence && row->token >= 0 && row->index >= -1 &&
                (size_t)(row->index + 1) < v->rows)
                tokens[row->index + 1] = row->token;
        }
    for (size_t i = 0; i < v->rows; i++) {
        n->x[i] = tokens[i];
        n->present[i] = tokens[i] >= 0;
    }
    n->given = 1;
    free(tokens);
    return n;
}

/* The outputs of the chosen experts: a row is complete if the dump has all of them. */
static const struct local_value *experts_of(struct local_values *v, const char *name, int depth)
{
    char full[NAMING_ROOM];
    size_t X = (size_t)config_of(v)->num_experts_per_tok, D = (size_t)config_of(v)->hidden_size, complete = 0;
    snprintf(full, sizeof full, "model.layers.%d.mlp.gate.experts", layer_of(name));
    const struct diff_series *chosen = diff_find(v->side, full, depth);
    if (!chosen || chosen->dtype != DIFF_INTEGERS || chosen->width != X)
        return NULL;
    double *e = cli_must(calloc(v->rows * X + 1, sizeof *e)), *x = cli_must(calloc(v->rows * D + 1, sizeof *x));
    unsigned char *rows = cli_must(calloc(v->rows + 1, 1)), *there = cli_must(calloc(v->rows + 1, 1));
    size_t *found = cli_must(calloc(v->rows + 1, sizeof *found));
    double unit = 0;
    local_numbers(v, chosen, e, rows, NULL);
    struct local_value *n = add(v, 0, name, depth, X * D);
    for (int one = 0; one < config_of(v)->n_routed_experts; one++) {
        snprintf(full, sizeof full, "model.layers.%d.mlp.experts.%d.output", layer_of(name), one);
        const struct diff_series *s = diff_find(v->side, full, depth);
        if (!s || s->width != D || s->dtype == DIFF_INTEGERS)
            continue;
        memset(there, 0, v->rows);
        unit = diff_unit(s->dtype);
        local_numbers(v, s, x, there, NULL);
        for (size_t i = 0; i < v->rows * X; i++)
            if (rows[i / X] && there[i / X] && e[i] == one) {
                memcpy(n->x + i * D, x + i / X * D, D * sizeof *x);
                found[i / X]++;
            }
    }
    for (size_t i = 0; i < v->rows; i++)
        complete += n->present[i] = found[i] == X;
    n->given = complete > 0;
    n->unit = unit;
    free(e);
    free(x);
    free(rows);
    free(there);
    free(found);
    return n->given ? n : NULL;
}

/* The positions of a row, and -1 after them. */
static const struct local_value *kept_of(struct local_values *v, const char *name, int depth)
{
    const struct diff_series *s = diff_find(v->side, name, depth);
    if (!s || s->dtype != DIFF_INTEGERS || !s->count)
        return NULL;
    struct local_value *n = add(v, 0, name, depth, s->width);
    for (size_t i = 0; i < v->rows * s->width; i++)
        n->x[i] = -1;
    local_numbers(v, s, n->x, n->present, NULL);
    n->given = 1;
    return n;
}

/* Scores of an indexer: one number for each token; a number that a row lacks is masked. */
static const struct local_value *index_scores_of(struct local_values *v, const char *name, int depth, size_t width)
{
    const struct diff_series *s = diff_find(v->side, name, depth);
    if (!s || s->dtype == DIFF_INTEGERS || !s->count)
        return NULL;
    struct local_value *n = add(v, 0, name, depth, width);
    double *x = cli_must(malloc((v->rows * s->width + 1) * sizeof *x));
    for (size_t i = 0; i < v->rows * s->width; i++)
        x[i] = -INFINITY;
    local_numbers(v, s, x, n->present, NULL);
    for (size_t i = 0; i < v->rows * width; i++)
        n->x[i] = i % width < s->width ? x[i / width * s->width + i % width] : -INFINITY;
    free(x);
    n->given = 1;
    n->unit = local_unit(v, s);
    return n;
}

static const struct local_value *given(struct local_values *v, const char *name, int depth, size_t width)
{
    char experts[NAMING_ROOM];
    const char *end = strrchr(name, '.');
    if (!strcmp(name, "tokens"))
        return tokens_of(v, depth);
    if (end && !strcmp(end, ".kept"))
        return kept_of(v, name, depth);
    if (strstr(name, ".indexer.scores"))
        return index_scores_of(v, name, depth, width);
    if (end && !strcmp(end, ".experts") && strlen(name) > 12 && !strcmp(end - 4, ".mlp.experts"))
        return experts_of(v, name, depth);
    snprintf(experts, sizeof experts, "%.*s.experts", end ? (int)(end - name) : 0, name);
    if (strstr(name, ".mlp.gate.weights") && !diff_find(v->side, experts, depth))
        return NULL; /* whose weights they are is not known */
    const struct diff_series *s = diff_find(v->side, name, depth);
    if (!s || s->width != width || !s->count)
        return NULL;
    struct local_value *n = add(v, 0, name, depth, width);
    local_numbers(v, s, n->x, n->present, NULL);
    n->given = 1;
    n->unit = local_unit(v, s);
    return n;
}

/* --- values that the dump lacks --- */

/* Adds the names of a list, "a, b", that `merged` does not contain yet. */
static void join(char merged[200], const char *more)
{
    for (const char *at = more; at && *at; at += strcspn(at, ", "), at += strspn(at, ", ")) {
        int length = (int)strcspn(at, ", "), known = 0;
        for (const char *m = merged; *m; m += strcspn(m, ", "), m += strspn(m, ", "))
            known |= (int)strcspn(m, ", ") == length && !strncmp(m, at, (size_t)length);
        size_t n = strlen(merged);
        if (!known && n + (size_t)length + 3 < 200)
            snprintf(merged + n, 200 - n, "%s%.*s", n ? ", " : "", length, at);
    }
}

int local_inputs(struct local_values *v, int noisy, const struct reference_operator *op, int layer,
                 struct reference_call *call, unsigned char *present, char *merged)
{
    char name[128];
    int L = config_of(v)->num_hidden_layers, own = layer >= L ? layer - L : -1, all_rows = op->row->all_rows, depth;
    unsigned char *earlier = cli_must(malloc(v->rows + 1)); /* the rows of which all earlier rows have the inputs that
                                                               `all_rows` names */
    memset(earlier, 1, v->rows);
    /* the hidden state of the phantom row is zeros; with module-hidden=target, that of row i of depth `own` is token i
     * + own's */
    size_t hidden = !strcmp(op->name, "hidden"),
           shift = hidden && own > 0 && v->conventions.value[MODULE_HIDDEN] ? (size_t)own : 0;
    memset(present, 1, v->rows);
    memset(present, 0, local_base(v, own));
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        call->in[i] = NULL;
    for (int i = 0; i < REFERENCE_INPUTS; i++) {
        if (!reference_operator_input(v->r, op, i, layer, &v->conventions, name, &depth))
            continue;
        const struct local_value *in = local_value(v, noisy, name, depth, layer);
        int is_kept = op->row->inputs[i].from[0] == KEPT_TOKENS;
        size_t all = is_kept ? local_base(v, own) + (size_t)config_of(v)->index_topk : 0; /* rows before it attend to
                                                                                             all rows */
        for (size_t s = all; s < v->rows && is_kept && !in; s++)
            present[s] = 0;
        if (is_kept && !in)
            continue;
        if (!in) {
            for (int k = 0; k < i; k++)
                free((void *)(uintptr_t)call->in[k]);
            free(earlier);
            return 0;
        }
        double *x = cli_must(calloc(v->rows * in->width + 1, sizeof *x)); /* a copy, because the list may move */
        for (size_t s = hidden; s + shift < v->rows; s++)
            memcpy(x + s * in->width, in->x + (s + shift) * in->width, in->width * sizeof *x);
        call->in[i] = x;
        call->in_width[i] = in->width;
        for (size_t s = 0; s < v->rows; s++)
            present[s] &= (s + shift < v->rows && in->present[s + shift]) || s < hidden;
        for (size_t s = local_base(v, own); s < v->rows && all_rows && i >= all_rows && !is_kept; s++)
            earlier[s] &= in->present[s] && (s == local_base(v, own) || earlier[s - 1]);
        if (merged && in->merged)
            join(merged, in->merged);
    }
    for (size_t s = local_base(v, own); s < v->rows; s++)
        present[s] &= earlier[s];
    free(earlier);
    return 1;
}

/* An expert computes only the rows that chose it. */
static void compute_some(struct local_values *v, struct reference_call *call, const unsigned char *only)
{
    struct reference_call k = *call;
    size_t in = call->in_width[0], out = local_width(v, call->op, call->layer), n = 0;
    double *x = cli_must(malloc((v->rows * in + 1) * sizeof *x)),
           *y = cli_must(malloc((v->rows * out + 1) * sizeof *y)),
           *slack = cli_must(malloc((v->rows * out + 1) * sizeof *slack));
    for (size_t s = 0; s < v->rows; s++)
        if (only[s])
            memcpy(x + n++ * in, call->in[0] + s * in, in * sizeof *x);
    k.in[0] = x;
    k.out = y;
    k.slack = call->slack ? slack : NULL;
    k.S = (int)n;
    if (n)
        reference_compute(v->bench, &k);
    n = 0;
    for (size_t s = 0; s < v->rows; s++)
        if (only[s]) {
            memcpy(call->out + s * out, y + n * out, out * sizeof *y);
            if (call->slack)
                memcpy(call->slack + s * out, slack + n * out, out * sizeof *slack);
            n++;
        }
    call->inner = k.inner;
    call->terms = k.terms;
    free(x);
    free(y);
    free(slack);
}

void local_compute(struct local_values *v, struct reference_call *call, int depth, const unsigned char *only)
{
    struct reference_call k = *call;
    if (only) {
        compute_some(v, call, only);
        return;
    }
    size_t base = local_base(v, depth), width = local_width(v, call->op, call->layer);
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        k.in[i] = call->in[i] ? call->in[i] + base * call->in_width[i] : NULL;
    k.out = call->out + base * width;
    k.slack = call->slack ? call->slack + base * width : NULL;
    k.S = (int)(v->rows - base);
    k.first = local_position(v, depth);
    reference_compute(v->bench, &k);
    call->inner = k.inner;
    call->terms = k.terms;
}

/* Merged operators round their results, and make the roundings that `slack` bounds, at random. */
static void round_at_random(struct local_values *v, const struct reference_call *call, size_t width)
{
    for (size_t i = 0; i < v->rows * width; i++)
        call->out[i] += reference_bench_random(v->bench) * (call->slack[i] + v->arithmetic * fabs(call->out[i]));
}

static int is_near(const struct local_values *v, const struct reference_operator *op, int layer, int asking)
{
    int L = config_of(v)->num_hidden_layers;
    if (op->row->is_copy || !strcmp(op->name, "residual") || !strcmp(op->name, "embedding") || layer < 0)
        return 1;
    return layer >= (asking < 0 ? L : asking) - 1;
}

/* The value that the dump has a rounded copy of: at random, one of those that are rounded to it. */
static const struct local_value *rounded_copy(struct local_values *v, const struct local_value *exact)
{
    const struct local_value *known = find(v, 1, exact->name, exact->depth);
    if (known || exact->unit == 0)
        return known ? known : exact;
    struct local_value from = *exact, *n = add(v, 1, from.name, from.depth, from.width);
    for (size_t i = 0; i < v->rows * from.width; i++)
        n->x[i] = from.x[i] * (1 + from.unit * reference_bench_random(v->bench));
    memcpy(n->present, from.present, v->rows);
    n->given = 1;
    return n;
}

const struct local_value *local_value(struct local_values *v, int noisy, const char *name, int depth, int asking)
{
    struct reference_call call = {.unit = v->arithmetic, .ranks = v->ranks};
    unsigned char *present;
    char merged[200] = "";
    int layer, expert;
    const struct local_value *known = find(v, 0, name, depth);
    if (known && noisy && !known->given)
        known = find(v, 1, name, depth);
    if (known && noisy && known->given && v->is_cast)
        return rounded_copy(v, known);
    const struct reference_operator *op = reference_operator_of(v->r, name, &layer, &expert);
    size_t width = op ? local_width(v, op, layer) : 0;
    if (known || (known = given(v, name, depth, width)))
        return known;
    snprintf(v->missing, sizeof v->missing, "%s", name);
    if (v->only_given || !op || expert >= 0 || !is_near(v, op, layer, asking))
        return NULL;
    present = cli_must(malloc(v->rows + 1));
    if (!local_inputs(v, noisy, op, layer, &call, present, merged)) {
        free(present);
        return NULL;
    }
    call.op = op;
    call.layer = layer;
    call.out = cli_must(calloc(v->rows * width + 1, sizeof *call.out));
    call.slack = cli_must(calloc(v->rows * width + 1, sizeof *call.slack));
    local_compute(v, &call, depth, NULL);
    if (noisy && !op->row->is_copy && !op->row->integers)
        round_at_random(v, &call, width);
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        free((void *)(uintptr_t)call.in[i]);
    free(call.slack);
    struct local_value *n = add(v, noisy, name, depth, width);
    free(n->x);
    free(n->present);
    n->x = call.out;
    n->present = present;
    if (!op->row->is_copy)
        join(merged, op->name);
    n->merged = cli_must(strdup(merged));
    return n;
}

void local_forget(struct local_values *v, int noisy, int before_layer)
{
    size_t kept = 0;
    for (size_t i = 0; i < v->count[noisy]; i++) {
        struct local_value *n = &v->list[noisy][i];
        int layer = layer_of(n->name), is_stream = strstr(n->name, "layernorm.input") != NULL;
        const char *end = strrchr(n->name, '.');
        is_stream |= layer >= 0 && end && !strcmp(end, ".output") && end - n->name < 20; /* model.layers.L.output */
        if (before_layer < INT_MAX && (layer < 0 || layer >= before_layer || is_stream)) {
            v->list[noisy][kept++] = *n;
            continue;
        }
        free(n->name);
        free(n->x);
        free(n->present);
        free(n->merged);
    }
    v->count[noisy] = kept;
}
