/* tools/diff/rank_count.c -- how many tensor-parallel ranks added up the results of o_proj in a dump, and how.
 *
 * N ranks multiply an N-th part of the heads each with their columns of o_proj, and round these parts. Then the parts
 * are added:
 *     once    in F32, with one rounding at the end
 *     chain   one rank after the other, each sum rounded
 *     tree    ranks in pairs, then pairs of pairs, each sum rounded
 * The dump has the input of o_proj. So the reference computes all parts in double, and each candidate predicts the bits
 * of the result. With the right candidate nearly all numbers are equal, except those near a tie; with another one, many
 * are not. A dump in F32 tells nothing: the last bit of its sums depends on the order in which each rank adds its
 * products. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"
#include "tools/diff/rank_count.h"

#define MOST_RANKS 8
#define MOST_TENSORS 4  /* layers that are looked at */
#define MOST_ROWS 8     /* rows of each */
#define LEAST_NUMBERS 64
#define EQUAL 0.9       /* of the right candidate's numbers */
#define APART 0.05      /* between the right candidate and the next one */

enum adding { ONCE, CHAIN, TREE };
static const struct rank_candidate { int ranks; enum adding how; const char *name; } candidates[] = {
    {1, ONCE, "1"}, {2, ONCE, "2"}, {4, ONCE, "4, once"}, {4, CHAIN, "4, chain"}, {4, TREE, "4, tree"},
    {8, ONCE, "8, once"}, {8, CHAIN, "8, chain"}, {8, TREE, "8, tree"}};
#define CANDIDATES (sizeof candidates / sizeof *candidates)

struct rank_count {
    size_t numbers, equal[CANDIDATES]; /* numbers of the dump; those that a candidate predicts */
    int most;                          /* ranks that the heads can be divided among */
    char first[128];                   /* the first tensor that counts */
    const char *why;                   /* why no tensor counts */
};

/* The dtype of the numbers. A dump may store BF16 numbers as F32. */
static enum diff_dtype dtype_of(const struct diff_series *s, double *x)
{
    for (size_t r = 0; r < s->count; r++) {
        diff_numbers(s, &s->rows[r], x);
        for (size_t i = 0; i < s->width; i++)
            if (isfinite(x[i]) && diff_round(DIFF_BF16, x[i]) != x[i])
                return s->dtype;
    }
    return DIFF_BF16;
}

/* What a candidate predicts from the parts [most] of the finest division. */
static double predict(const struct rank_candidate *c, const double *part, int most, enum diff_dtype dtype)
{
    double p[MOST_RANKS] = {0};
    for (int i = 0; i < most; i++)
        p[i * c->ranks / most] += part[i];
    for (int i = 0; i < c->ranks && c->ranks > 1; i++)
        p[i] = diff_round(dtype, p[i]);
    for (int step = 1; step < c->ranks && c->how == TREE; step *= 2)
        for (int i = 0; i < c->ranks; i += 2 * step)
            p[i] = diff_round(dtype, p[i] + p[i + step]);
    for (int i = 1; i < c->ranks && c->how != TREE; i++)
        p[0] = c->how == CHAIN ? diff_round(dtype, p[0] + p[i]) : p[0] + p[i];
    return diff_round(dtype, p[0]);
}

static void count_numbers(struct rank_count *n, const double *y, const double *parts, size_t numbers,
                          enum diff_dtype dtype)
{
    for (size_t i = 0; i < numbers; i++) {
        double part[MOST_RANKS] = {0};
        for (int r = 0; r < n->most; r++)
            part[r] = parts[(size_t)r * numbers + i];
        for (size_t c = 0; c < CANDIDATES; c++)
            n->equal[c] += candidates[c].ranks <= n->most && predict(&candidates[c], part, n->most, dtype) == y[i];
        n->numbers++;
    }
}

/* The rows of o_proj that have an input, at most MOST_ROWS. Returns how many. */
static size_t rows_of(const struct diff_series *in, const struct diff_series *out, double *x, double *y)
{
    size_t n = 0;
    for (size_t a = 0; a < out->count && n < MOST_ROWS; a++)
        for (size_t b = 0; b < in->count; b++)
            if (in->rows[b].sequence == out->rows[a].sequence && in->rows[b].index == out->rows[a].index) {
                diff_numbers(in, &in->rows[b], x + n * in->width);
                diff_numbers(out, &out->rows[a], y + n++ * out->width);
                break;
            }
    return n;
}

/* Computes the parts of the rows, and counts. */
static void count_layer(struct rank_count *n, struct reference_bench *bench, const struct reference_operator *op,
                        int layer, const struct diff_series *in, const struct diff_series *out)
{
    size_t K = in->width, M = out->width;
    double *x = cli_must(calloc(MOST_ROWS * K + 1, sizeof *x)), *y = cli_must(calloc(MOST_ROWS * M + 1, sizeof *y));
    double *masked = cli_must(calloc(MOST_ROWS * K + 1, sizeof *masked)),
           *parts = cli_must(calloc((size_t)n->most * MOST_ROWS * M + 1, sizeof *parts));
    size_t rows = rows_of(in, out, x, y);
    enum diff_dtype dtype = dtype_of(out, masked);
    if (dtype > DIFF_F16) {
        n->why = "sums in F32 depend on the order of all their terms";
        rows = 0;
    }
    for (int r = 0; r < n->most && rows; r++) {
        size_t from = K * (size_t)r / (size_t)n->most, to = K * ((size_t)r + 1) / (size_t)n->most;
        struct reference_call call = {.op = op, .layer = layer, .S = (int)rows, .out = parts + (size_t)r * rows * M};
        for (size_t i = 0; i < rows * K; i++)
            masked[i] = i % K >= from && i % K < to ? x[i] : 0;
        call.in[0] = masked;
        call.in_width[0] = K;
        reference_compute(bench, &call);
    }
    if (rows && !*n->first)
        snprintf(n->first, sizeof n->first, "%s", out->name);
    count_numbers(n, y, parts, rows * M, dtype);
    free(x);
    free(y);
    free(masked);
    free(parts);
}

static void count_dump(struct rank_count *n, const struct reference *r, struct reference_bench *bench,
                       const struct diff_side *dump)
{
    const struct config *c = reference_config(r);
    int tensors = 0;
    n->why = "the dump has no inputs and outputs of o_proj";
    for (n->most = MOST_RANKS; c->num_attention_heads % n->most; n->most /= 2)
        continue;
    for (int layer = 0; layer < c->num_hidden_layers && tensors < MOST_TENSORS; layer++) {
        char name[128];
        int its_layer, expert;
        snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.output", layer);
        const struct reference_operator *op = reference_operator_of(r, name, &its_layer, &expert);
        const struct diff_series *out = diff_find(dump, name, -1);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.o_proj.input", layer);
        const struct diff_series *in = diff_find(dump, name, -1);
        if (!op || !in || !out || in->width != (size_t)c->num_attention_heads * (size_t)c->v_head_dim ||
            out->width != c->dims.d)
            continue;
        count_layer(n, bench, op, layer, in, out);
        tensors++;
    }
}

/* The row of the table. */
static json_t *row_of(const struct rank_count *n)
{
    size_t best = 0, next = 0;
    for (size_t c = 1; c < CANDIDATES; c++)
        if (n->equal[c] > n->equal[best])
            best = c;
    for (size_t c = 0; c < CANDIDATES; c++)
        next = c != best && n->equal[c] > next ? n->equal[c] : next;
    double all = n->numbers ? (double)n->numbers : 1, equal = (double)n->equal[best] / all,
           otherwise = (double)next / all;
    int told = n->numbers >= LEAST_NUMBERS && equal >= EQUAL && equal - otherwise >= APART;
    const char *why = !n->numbers                 ? n->why
                      : n->numbers < LEAST_NUMBERS ? "there are too few numbers"
                      : equal < EQUAL              ? "no number of ranks predicts the bits"
                      : n->most == 1               ? "the heads cannot be divided among ranks"
                                                   : "several numbers of ranks predict the same bits";
    return json_pack("{s:s,s:s?,s:b,s:o,s:f,s:f,s:o}", "name", "ranks", "value", told ? candidates[best].name : NULL,
                     "told", told, "by", told ? json_string(n->first) : json_null(), "equal", equal, "equal_otherwise",
                     otherwise, "why", told ? json_null() : json_string(why));
}

json_t *diff_rank_count(struct cli *c, const struct diff_side *dump, int *code)
{
    struct reference_options o = {0};
    struct reference_bench *bench;
    struct reference *r;
    struct rank_count n = {0};
    vb_error err = {0};
    if (reference_open(&r, c->model_dir, NULL, &err)) {
        *code = cli_error(c, &err);
        return json_null();
    }
    if (reference_bench_open(&bench, r, &o, MOST_ROWS, &err)) {
        reference_close(r);
        *code = cli_error(c, &err);
        return json_null();
    }
    count_dump(&n, r, bench, dump);
    reference_bench_close(bench);
    reference_close(r);
    return row_of(&n);
}
