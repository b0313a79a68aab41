/* tools/diff/local.c -- computes each value of a dump from the dump's own inputs, and judges the difference. local.h
 * derives the bound. */
#include "tools/diff/local.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct judge {
    struct local_values *v;
    const struct local_reader *reader;
    struct local_result *result;
    const struct diff_series *s;
    const struct reference_operator *op;
    struct reference_call call;
    int runs, noisy_x, groups;    /* groups: inputs are quantized in groups, so that bias is not judged */
    double noise, unit;           /* unit: the rounding of the result */
    double *dump, *squares;       /* [rows, stride]: the dump's numbers; [rows, width]: sums of squares of what noise
                                     moves */
    size_t stride;
    double *last;                 /* [width]: variances */
    double *moved;                /* of choices: [rows, candidates]: the largest change of each candidate by noise */
    unsigned char *there, *present, *tie;
    int32_t *tokens;
};

static void not_judged(struct local_result *r, const char *format, const char *name)
{
    snprintf(r->why, sizeof r->why, format, name);
}

/* --- noise --- */

/* Rows in which a merged router chooses otherwise, or nearly so, are another computation. */
static void find_ties(struct judge *j, int depth)
{
    static const char *const of[][2] = {{"mlp.gate.experts", "mlp.gate.choice"},
                                        {"mlp.gate.experts", "mlp.gate.scores"},
                                        {"mlp.gate.groups", "mlp.gate.group_scores"},
                                        {"self_attn.indexer.kept", "self_attn.indexer.scores"}};
    char name[NAMING_ROOM], by[NAMING_ROOM];
    for (size_t i = 0; i < 4; i++) {
        int layer = j->call.layer; /* shared layers use the tokens that an earlier layer keeps */
        while (i == 3 && layer > 0 && config_layer_is_shared(reference_config(j->v->r), layer))
            layer--;
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, of[i][0]);
        snprintf(by, sizeof by, "model.layers.%d.%s", layer, of[i][1]);
        const struct local_value *found[4] = {NULL, NULL, NULL, NULL}; /* choices and candidates, exact and noisy */
        for (int noisy = 0; noisy < 2; noisy++)
            for (size_t k = 0; k < j->v->count[noisy]; k++) {
                const struct local_value *n = &j->v->list[noisy][k];
                if (n->depth == depth && !n->given && !strcmp(n->name, name))
                    found[noisy] = n;
                if (n->depth == depth && !strcmp(n->name, by) && (!noisy || !n->given))
                    found[2 + noisy] = n;
            }
        if (!found[0] || !found[1] || !found[2])
            continue;
        size_t k = found[0]->width, E = found[2]->width;
        for (size_t s = 0; s < j->v->rows; s++) {
            const double *c = found[2]->x + s * E, *d = found[3] ? found[3]->x + s * E : c;
            double moved = 0, least = INFINITY, next = -INFINITY;
            for (size_t e = 0; e < E; e++) {
                int in = 0;
                for (size_t x = 0; x < k; x++)
                    in |= found[0]->x[s * k + x] == (double)e;
                moved = fmax(moved, isfinite(c[e]) ? fabs(c[e] - d[e]) : 0);
                least = in ? fmin(least, c[e]) : least;
                next = in || !isfinite(c[e]) ? next : fmax(next, c[e]);
            }
            j->tie[s] |= memcmp(found[0]->x + s * k, found[1]->x + s * k, k * sizeof(double)) != 0 ||
                         fabs(least - next) <= 3 * moved;
        }
    }
}

/* An operator of one expert computes only the rows that chose it. NULL: all rows. */
static const unsigned char *rows_of_expert(const struct judge *j)
{
    return j->call.expert >= 0 && j->op->row->width ? j->present : NULL;
}

static int one_run(struct judge *j, uint64_t seed, int depth, size_t width)
{
    struct reference_call k = j->call;
    size_t n = j->v->rows * width;
    unsigned char *present = cli_must(malloc(j->v->rows + 1));
    reference_bench_noise(j->v->bench, j->noise, j->noisy_x, seed * 0x9e3779b97f4a7c15);
    int found = local_inputs(j->v, 1, j->op, k.layer, &k, present, NULL);
    k.slack = NULL;
    k.absorbed = seed % 2 == 0;
    if (found && j->op->row->integers) {
        for (size_t i = 0; i < j->v->rows * k.in_width[0]; i++) {
            double moved = fabs(k.in[0][i] - j->call.in[0][i]);
            j->moved[i] = moved > j->moved[i] ? moved : j->moved[i]; /* NaN, of masked scores, is not */
        }
    } else if (found) {
        k.out = cli_must(calloc(n + 1, sizeof *k.out));
        local_compute(j->v, &k, depth, rows_of_expert(j));
        for (size_t i = 0; i < n; i++)
            j->squares[i] += (k.out[i] - j->call.out[i]) * (k.out[i] - j->call.out[i]) / j->runs;
        if (j->result->bias)
            local_bias_noise(j->result->bias, (int)seed - 1, k.out, j->call.out);
        free(k.out);
        find_ties(j, depth);
    }
    for (int i = 0; i < REFERENCE_INPUTS && found; i++)
        free((void *)(uintptr_t)k.in[i]);
    free(present);
    local_forget(j->v, 1, INT_MAX);
    reference_bench_noise(j->v->bench, 0, 0, 0);
    return found;
}

/* --- verdicts --- */

static void place(struct judge *j, size_t row, size_t column, double dump, double expected, double bound)
{
    struct local_result *r = j->result;
    r->sequence = j->v->sequence;
    r->index = (int32_t)row - 1;
    r->token = j->tokens[row];
    r->column = column;
    r->dump = dump;
    r->expected = expected;
    r->bound = bound;
}

/* Half the distance of two neighbours in the result's arithmetic, near x. */
static double half_ulp(const struct judge *j, double x)
{
    int exponent;
    if (!(x > 0 && isfinite(x)))
        return 0;
    frexp(x, &exponent);
    return fmax(j->unit * ldexp(1, exponent - 1), j->s->dtype == DIFF_F16 ? 0x1p-25 : 0);
}

/* Returns whether the score or the probability of token t is masked. `why` says what is wrong with that token. */
static int is_masked(struct judge *j, size_t row, size_t t, size_t first, const char *why)
{
    double x = j->dump[row * j->stride + t];
    if (x <= LOCAL_MASKED || (x == 0 && strstr(j->s->name, ".probabilities.")))
        return 1;
    if (!*j->result->why)
        snprintf(j->result->why, sizeof j->result->why, "index %d: the token of index %d %s and is not masked: %.9g",
                 (int)row - 1, (int)(t + first) - 1, why, x);
    return 0;
}

/* A norm may have read the residual stream before it was rounded. The rounding of x moves the root mean square, which
 * all numbers of the row share: relative, its variance is sum(h^2 x^2 / 3) / (sum x^2)^2. */
static double shared_error(const struct judge *j, size_t row)
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "norm", "hnorm",
                                        "shared_head-norm"};
    const double *x = j->call.in[0] + row * j->call.in_width[0];
    double squares = 0, variance = 0;
    int is_norm = 0;
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        is_norm |= !strcmp(j->op->name, norms[i]);
    for (size_t i = 0; i < j->call.in_width[0] && is_norm; i++) {
        double h = half_ulp(j, fabs(x[i]));
        squares += x[i] * x[i];
        variance += h * h * x[i] * x[i] / 3;
    }
    return squares > 0 ? variance / squares / squares : 0;
}

static void judge_numbers(struct judge *j, size_t row, size_t width)
{
    struct local_result *r = j->result;
    double *x = j->dump + row * j->stride, *y = j->call.out + row * width, largest = 0, rms = 0, errors = 0;
    /* tokens up to the row's own */
    size_t first = local_base(j->v, j->s->depth), count = j->op->row->width ? width : row - first + 1;
    int wrong = 0;
    for (size_t t = count; t < j->stride && !j->op->row->width && !wrong; t++)
        wrong = !is_masked(j, row, t, first, "comes later");
    for (size_t i = 0; i < count; i++) {
        int is_kept = y[i] != -INFINITY; /* an indexer does not keep the other tokens */
        largest = is_kept ? fmax(largest, fabs(y[i])) : largest;
        rms += is_kept ? j->squares[row * width + i] / (double)count : 0;
    }
    if (strstr(j->s->name, ".mlp.gate.weights") && *r->merged && strstr(r->merged, "router-experts")) {
        qsort(x, width, sizeof *x, diff_by_number); /* the order of the dump's experts is not known */
        qsort(y, width, sizeof *y, diff_by_number);
    }
    for (size_t i = 0; i < count; i++) {
        if (!j->op->row->width && y[i] == -INFINITY) {
            wrong |= !is_masked(j, row, i, first, "is not kept by the indexer");
            continue;
        }
        double variance = fmax(rms, j->squares[row * width + i]), far = fabs(x[i] - y[i]),
               slack = j->call.slack[row * width + i];
        double last = half_ulp(j, fmax(fabs(x[i]), fabs(y[i]))),
               order = sqrt((double)j->call.terms) * 0x1p-24 * largest;
        double bound = last + slack + LOCAL_TIMES * sqrt(variance) + order;
        double ratio = !isfinite(y[i]) ? 0 : !isfinite(x[i]) ? INFINITY : far > 0 ? far / bound : 0;
        wrong |= ratio > 1;
        j->last[i] = last * last / 3;
        if (isfinite(far) && far > 0)
            errors += far * far / ((last * last + slack * slack) / 3 + variance + order * order) / (double)count;
        if (ratio > r->ratio) {
            r->ratio = ratio;
            place(j, row, i, x[i], y[i], bound);
        }
        if (far > 0 && r->verdict < ROUNDING)
            r->verdict = diff_round(j->s->dtype, y[i]) == x[i] ? r->verdict : ROUNDING;
    }
    if (!j->op->row->width && count < LOCAL_NUMBERS) /* a few runs measure sigma of a few numbers too roughly for a mean
                                                   square */
        errors = 0;
    if (errors > LOCAL_ROW * LOCAL_ROW && !wrong) {
        wrong = 1;
        if (!*r->why)
            snprintf(r->why, sizeof r->why,
                     "index %d: the errors are %.3g times as large as roundings make them, in the root mean square",
                     (int)row - 1, sqrt(errors));
    }
    r->errors += errors;
    r->wrong_rows += (size_t)wrong;
    if (j->reader)
        j->reader->see(j->reader->context, j->s, j->v->sequence, (int32_t)row - 1, x, y, count);
    if (r->bias)
        local_bias_row(r->bias, j->v->sequence, row, x, y, j->last, j->squares + row * width, shared_error(j, row));
}

/* The dump chose other experts. The candidates are the dump's own: each may have been moved by its rounding, and by
 * noise if it was computed from values before it. */
static void judge_choice(struct judge *j, size_t row, size_t k)
{
    struct local_result *r = j->result;
    size_t E = j->call.in_width[0];
    const double *x = j->dump + row * k, *y = j->call.out + row * k, *c = j->call.in[0] + row * E;
    double gap = 0, largest = 0, moved = 0, bound;
    for (size_t e = 0; e < E; e++) {
        largest = fmax(largest, isfinite(c[e]) ? fabs(c[e]) : 0);
        moved = fmax(moved, j->moved[row * E + e]);
    }
    for (size_t i = 0; i < k; i++) {
        int outside = !(x[i] >= 0 && x[i] < (double)E), twice = diff_holds(x, i, x[i]);
        for (size_t n = 0; n < k && !outside && !diff_holds(y, k, x[i]); n++)
            if (!diff_holds(x, k, y[n]))
                gap = fmax(gap, c[(size_t)y[n]] - c[(size_t)x[i]]);
        gap = outside || twice ? INFINITY : gap;
    }
    bound = 2 * (j->unit * largest + LOCAL_TIMES * moved);
    for (size_t i = 0; i < k; i++)
        if (!diff_holds(y, k, x[i])) {
            r->verdict = r->verdict < ROUNDING ? ROUNDING : r->verdict;
            if (gap / bound > r->ratio)
                place(j, row, i, x[i], y[i], bound);
        }
    if (gap > bound) {
        snprintf(r->why, sizeof r->why, "index %d: another choice, by a margin of %.3g; rounding explains %.3g",
                 (int)row - 1, gap, bound);
        r->wrong_rows++;
    }
    r->ratio = fmax(r->ratio, gap > 0 ? gap / bound : 0);
}

static int is_kept(const struct judge *j) { return !strcmp(j->op->name, "indexer-kept"); }

/* The dump kept other tokens. Each score has a range, which half an ulp and the noise make, and which is rounded if the
 * convention wants BF16. The choice is wrong if the range of a token that is missing lies above that of one that is
 * kept instead. */
static void judge_kept(struct judge *j, size_t row, size_t k)
{
    struct local_result *r = j->result;
    size_t E = j->call.in_width[0], count = row - local_base(j->v, j->s->depth) + 1, here = 0, missing = count,
           extra = count;
    const double *x = j->dump + row * j->stride, *y = j->call.out + row * k, *c = j->call.in[0] + row * E;
    unsigned char *kept = cli_must(calloc(count + 1, 1)); /* 1: by the dump; 2: by the reference */
    double above = -INFINITY, below = INFINITY, *moved = j->moved + row * E;
    for (size_t i = 0; i < j->stride; i++)
        if (x[i] >= 0 && x[i] < (double)count && x[i] == floor(x[i]) && !kept[(size_t)x[i]])
            kept[(size_t)x[i]] = 1, here++;
    for (size_t i = 0; i < k && y[i] >= 0; i++)
        kept[(size_t)y[i]] |= 2;
    for (size_t t = 0; t < count; t++) {
        double range = half_ulp(j, fabs(c[t])) + LOCAL_TIMES * moved[t], low = c[t] - range, high = c[t] + range;
        if (j->v->conventions.value[INDEXER_SCORES]) {
            low = diff_round(DIFF_BF16, low);
            high = diff_round(DIFF_BF16, high);
        }
        if (kept[t] == 2 && low > above) {
            above = low;
            missing = t;
        }
        if (kept[t] == 1 && high < below) {
            below = high;
            extra = t;
        }
    }
    if (missing < count || extra < count)
        r->verdict = r->verdict < ROUNDING ? ROUNDING : r->verdict;
    size_t wanted = count < k ? count : k;
    if (here != wanted || above > below)
        r->wrong_rows++;
    if (here != wanted && !*r->why)
        snprintf(r->why, sizeof r->why, "index %d: %zu different tokens up to its own are kept, wanted %zu",
                 (int)row - 1, here, wanted);
    else if (above > below && !*r->why)
        snprintf(r->why, sizeof r->why,
                 "index %d: token %zu with score %.6g is kept, but not token %zu with score %.6g; rounding explains "
                 "%.3g",
                 (int)row - 1, extra, c[extra], missing, c[missing], c[missing] - c[extra] - (above - below));
    free(kept);
}

static int row_is_finite(const struct judge *j, size_t row)
{
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        for (size_t n = 0; j->call.in[i] && n < j->call.in_width[i]; n++)
            if (!isfinite(j->call.in[i][row * j->call.in_width[i] + n]) &&
                (!is_kept(j) || isnan(j->call.in[i][row * j->call.in_width[i] + n])))
                return 0;
    return 1;
}

static void judge_rows(struct judge *j, size_t width)
{
    struct local_result *r = j->result;
    for (size_t row = 0; row < j->v->rows; row++) {
        if (!j->there[row])
            continue;
        if (!j->present[row] || !row_is_finite(j, row)) {
            r->without_inputs++;
        } else if (j->tie[row]) {
            r->ties++;
        } else {
            r->verdict = r->verdict == NOT_COMPARED ? IDENTICAL : r->verdict;
            r->rows++;
            if (is_kept(j))
                judge_kept(j, row, width);
            else if (j->op->row->integers)
                judge_choice(j, row, width);
            else
                judge_numbers(j, row, width);
        }
    }
    double errors = r->rows ? sqrt(r->errors / (double)r->rows) : 0;
    if (errors > LOCAL_TAP && r->rows >= LOCAL_ROWS && !r->wrong_rows)
        snprintf(r->why, sizeof r->why,
                 "the errors are %.3g times as large as roundings make them, in the root mean square of all rows",
                 errors);
    if (r->wrong_rows || (errors > LOCAL_TAP && r->rows >= LOCAL_ROWS))
        r->verdict = STRUCTURAL;
}

/* --- one operator --- */

/* The errors that the numbers of a row share, as local_bias.h says. */
static void open_bias(struct judge *j, size_t width)
{
    static const char *const with_heads[] = {"q_proj", "q_b_proj", "rope-q", "attention", "indexer-wq_b",
                                             "indexer-rope-q"};
    struct local_bias_shape shape = {.rows = j->v->rows, .width = width, .parts = 1, .runs = j->runs};
    int heads = 0;
    for (size_t i = 0; i < sizeof with_heads / sizeof *with_heads; i++)
        heads |= !strcmp(j->op->name, with_heads[i]);
    if (j->result->bias)
        local_bias_sequence(j->result->bias);
    if (j->op->row->integers || !j->op->row->width || j->groups || j->result->bias || j->reader)
        return;
    if (heads)
        shape.parts = (size_t)(strncmp(j->op->name, "indexer-", 8) ? reference_config(j->v->r)->num_attention_heads
                                                                   : reference_config(j->v->r)->index_n_heads);
    shape.turns = strstr(j->op->name, "rope-") != NULL;
    shape.of_row = (double)j->call.terms / 16 * 0x1p-48;
    if (j->op->row->of_router || !strcmp(j->op->name, "sum-of-experts"))
        shape.of_row += j->call.unit * j->call.unit / 3;
    shape.of_all = 0x1p-48;
    j->result->bias = local_bias_open(&shape);
}

/* Computes the operator with rounded weights. */
static void round_weights(struct judge *j, int depth, size_t width)
{
    struct reference_call k = j->call;
    k.slack = NULL;
    k.out = cli_must(calloc(j->v->rows * width + 1, sizeof *k.out));
    reference_bench_weights(j->v->bench, j->v->arithmetic);
    local_compute(j->v, &k, depth, rows_of_expert(j));
    reference_bench_weights(j->v->bench, 0);
    local_bias_noise(j->result->bias, j->runs, k.out, j->call.out);
    free(k.out);
}

static void judge_operator(struct judge *j, int depth, size_t width)
{
    struct local_values *v = j->v;
    struct local_result *r = j->result;
    char merged[200] = "";
    if (!local_inputs(v, 0, j->op, j->call.layer, &j->call, j->present, merged)) {
        not_judged(r, "the dump has no %.120s, and nothing near before it", v->missing);
        return;
    }
    snprintf(r->merged, sizeof r->merged, "%s", merged);
    j->moved = cli_must(calloc(v->rows * j->call.in_width[0] + 1, sizeof *j->moved));
    for (size_t s = 0; s < v->rows && rows_of_expert(j); s++)
        j->present[s] &= j->there[s];
    local_compute(v, &j->call, depth, rows_of_expert(j));
    open_bias(j, width);
    if (r->bias && v->arithmetic > 0x1p-24)
        round_weights(j, depth, width);
    int runs = j->call.inner || *merged || v->is_cast || j->noisy_x ? j->runs : 0, found = 1;
    for (int run = 1; run <= runs && found; run++)
        found = one_run(j, (uint64_t)run, depth, width);
    for (size_t i = 0; i < v->rows * width && j->noisy_x && r->bias; i++) /* products of TF32 may be cut instead of
                                                                             rounded */
        r->bias->shape.of_all = fmax(r->bias->shape.of_all, j->squares[i] > 0 ? v->arithmetic * v->arithmetic : 0);
    if (found)
        judge_rows(j, width);
    else
        not_judged(r, "the dump has no %.120s, and nothing near before it", v->missing);
    if (found && !r->rows)
        not_judged(r, r->ties ? "%sa merged router has a tie in every row" : "%sthe dump lacks inputs of every row",
                   "");
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        free((void *)(uintptr_t)j->call.in[i]);
    free(j->moved);
}

/* The rounding of the candidates of a choice, if they are the dump's. */
static double unit_of_candidates(const struct judge *j, int layer, int depth)
{
    char name[128];
    int unused;
    reference_operator_input(j->v->r, j->op, 0, layer, &j->v->conventions, name, &unused);
    const struct diff_series *s = diff_find(j->v->side, name, depth);
    return s ? local_unit(j->v, s) : 0x1p-24;
}

/* Copies the numbers of the dump to j->dump. Rows of scores may be shorter or longer than the context: a missing number
 * is masked. */
static void take_numbers(struct judge *j, const struct diff_series *s, size_t width)
{
    size_t rows = j->v->rows;
    j->stride = s->width > width ? s->width : width;
    j->dump = cli_must(malloc((rows * j->stride + 1) * sizeof *j->dump));
    double *x = cli_must(malloc((rows * s->width + 1) * sizeof *x));
    for (size_t i = 0; i < rows * s->width; i++)
        x[i] = -INFINITY;
    local_numbers(j->v, s, x, j->there, j->tokens);
    for (size_t i = 0; i < rows * j->stride; i++)
        j->dump[i] = i % j->stride < s->width ? x[i / j->stride * s->width + i % j->stride] : -INFINITY;
    free(x);
}

static void judge_series(struct judge *j, const struct diff_series *s)
{
    struct local_result *r = j->result;
    int layer, expert;
    j->s = s;
    j->op = reference_operator_of(j->v->r, s->name, &layer, &expert);
    r->operator = j->op ? j->op->name : NULL;
    if (!j->op || !s->count || (j->reader && !j->reader->wants(j->op->name)))
        return;
    size_t width = local_width(j->v, j->op, layer), n = j->v->rows * width;
    if ((s->width != width && j->op->row->width && !is_kept(j)) ||
        (s->dtype == DIFF_INTEGERS) != j->op->row->integers) {
        not_judged(r, "it is %s, which is no shape of this model", s->shape);
        r->verdict = STRUCTURAL;
        return;
    }
    j->unit = j->op->row->integers ? unit_of_candidates(j, layer, s->depth) : local_unit(j->v, s);
    j->call = (struct reference_call){.op = j->op, .layer = layer, .expert = expert, .ranks = j->v->ranks,
                                      .unit = j->op->row->of_router ? j->unit : j->v->arithmetic};
    j->last = cli_must(calloc(width + 1, sizeof *j->last));
    j->squares = cli_must(calloc(n + 1, sizeof *j->squares));
    j->call.out = cli_must(calloc(n + 1, sizeof *j->call.out));
    j->call.slack = cli_must(calloc(n + 1, sizeof *j->call.slack));
    j->there = cli_must(calloc(j->v->rows + 1, 1));
    j->present = cli_must(calloc(j->v->rows + 1, 1));
    j->tie = cli_must(calloc(j->v->rows + 1, 1));
    j->tokens = cli_must(calloc(j->v->rows + 1, sizeof *j->tokens));
    take_numbers(j, s, width);
    judge_operator(j, s->depth, width);
    free(j->dump);
    free(j->last);
    free(j->squares);
    free(j->call.out);
    free(j->call.slack);
    free(j->there);
    free(j->present);
    free(j->tie);
    free(j->tokens);
}

/* --- a dump --- */

static int judge_sequence(struct cli *c, struct local *l, struct local_values *v, double noise, int noisy_x, int groups)
{
    struct reference_options o = {.conventions = v->conventions};
    vb_error err = {0};
    int done = -1;
    if (precision_parse(&o.precision, NULL, cli_facts(c).precision, &err) ||
        cache_type_parse(&o.cache_type, cli_facts(c).cache_type, &err) ||
        reference_bench_open(&v->bench, v->r, &o, (int)v->rows, &err))
        return cli_error(c, &err);
    for (size_t i = 0; i < v->side->count; i++) {
        struct judge j = {.v = v, .reader = l->reader, .result = &l->results[i], .runs = l->runs, .noise = noise,
                          .noisy_x = noisy_x, .groups = groups};
        l->results[i].series = &v->side->series[i];
        if (v->side->series[i].layer > done + 1)
            local_forget(v, 0, done = v->side->series[i].layer - 1);
        judge_series(&j, &v->side->series[i]);
        cli_progress("operators", i + 1, v->side->count);
    }
    local_forget(v, 0, INT_MAX);
    free(v->list[0]);
    free(v->list[1]);
    v->list[0] = v->list[1] = NULL;
    v->room[0] = v->room[1] = 0;
    reference_bench_close(v->bench);
    return EXIT_DONE;
}

static void judge_bias(struct local_result *r)
{
    char why[sizeof r->why] = "";
    int biased = r->bias && local_bias_judge(r->bias, why, sizeof why);
    if (!biased || r->verdict == STRUCTURAL)
        return;
    snprintf(r->why, sizeof r->why, "%s", why);
    local_bias_where(r->bias,
                     r->bias->shape.parts > 1 ? "head"
                     : strstr(r->series->name, ".mlp.gate.") ? "expert"
                     : "",
                     r->where);
    r->verdict = BIASED;
}

void local_sum_up(struct local *l)
{
    l->judged = l->wrong = l->biased = 0;
    l->first = NULL;
    for (const struct local_result *r = l->results; r < l->results + l->count; r++) {
        l->judged += r->verdict != NOT_COMPARED;
        l->wrong += r->verdict == STRUCTURAL;
        l->biased += r->verdict == BIASED;
        l->first = !l->first && r->verdict >= BIASED ? r : l->first;
    }
}

int diff_local(struct cli *c, const struct diff_side *side, const struct bounds *b, const int32_t *ids, size_t count,
               int runs, int ranks, struct local *l)
{
    struct local_values v = {.side = side, .ids = ids, .id_count = count, .ranks = ranks,
                             .arithmetic = diff_unit(b->arithmetic), .arithmetic_given = b->arithmetic_given,
                             .dtype = b->arithmetic};
    vb_model_facts facts = cli_facts(c);
    struct reference *r;
    vb_error err = {0};
    int32_t sequences = 0;
    *l = (struct local){.reader = l->reader, .results = cli_must(calloc(side->count + 2, sizeof *l->results)),
                        .count = side->count, .runs = runs};
    if (conventions_parse(&v.conventions, facts.conventions, &err) || reference_open(&r, c->model_dir, NULL, &err))
        return cli_error(c, &err);
    v.r = r;
    for (size_t i = 0; i < side->count; i++)
        v.is_cast |= b->arithmetic_given && diff_unit(side->series[i].dtype) > diff_unit(b->arithmetic);
    for (size_t i = 0; i < side->count; i++)
        for (size_t k = 0; k < side->series[i].count; k++) {
            const struct diff_row *row = &side->series[i].rows[k];
            v.rows = (size_t)row->index + 2 > v.rows ? (size_t)row->index + 2 : v.rows;
            sequences = row->sequence >= sequences ? row->sequence + 1 : sequences;
        }
    /* the precisions of Verbatim that round inside of attention and of experts; a cache of q8 quantizes q_abs */
    int rounds = strcmp(facts.precision, "f32") || !strcmp(facts.cache_type, "q8");
    double inner = rounds ? fmax(v.arithmetic, 0x1p-8) : v.arithmetic;
    int groups, code = bounds_groups(c, &groups);
    for (v.sequence = 0; v.sequence < sequences && code == EXIT_DONE; v.sequence++)
        code = judge_sequence(c, l, &v, inner, b->arithmetic_given && b->arithmetic != DIFF_F32 && !v.is_cast, groups);
    for (size_t i = 0; i < l->count; i++) {
        l->results[i].errors = l->results[i].rows ? sqrt(l->results[i].errors / (double)l->results[i].rows) : 0;
        judge_bias(&l->results[i]);
    }
    if (code == EXIT_DONE)
        l->count += (size_t)local_tokens(side, c->greedy, &l->results[l->count]);
    local_sum_up(l);
    reference_close(r);
    return code;
}

void local_close(struct local *l)
{
    for (size_t i = 0; i < l->count; i++)
        local_bias_close(l->results[i].bias);
    free(l->results);
    *l = (struct local){0};
}
