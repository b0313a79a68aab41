/* tools/diff/explain_tap.c -- collects what explain.c needs for one tap of a comparison: its rows, its heads, the
 * vectors before RoPE, and the input and the matrix of a linear layer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"
#include "tools/diff/explain.h"

#define MOST_WEIGHTS (1u << 25) /* larger matrices are not read */
#define MOST_PRODUCTS 4e9       /* of trying the other experts */

struct tap_rows {
    const struct tap *t;
    const struct diff_side *a, *b;
    vb_tensors *weights; /* NULL: no model */
    struct explain_rows e;
    struct explain_matrix matrix;
    double *numbers[2], *before[2], *x, *w, *tolerance, *candidate; /* numbers, before: of A and of B */
    int32_t *index;
};

/* --- rows --- */

static const struct diff_row *row_of(const struct diff_series *s, int32_t sequence, int32_t index)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->rows[i].sequence == sequence && s->rows[i].index == index)
            return &s->rows[i];
    return NULL;
}

/* Copies the rows that the tap compared. Returns NULL if one is missing. The caller frees the result. */
static double *rows_of(const struct tap *t, const struct diff_series *s)
{
    double *x = cli_must(calloc(t->bias.count * s->width + 1, sizeof *x));
    for (size_t i = 0; i < t->bias.count; i++) {
        const struct diff_row *row = row_of(s, t->bias.rows[i].sequence, t->bias.rows[i].index);
        if (!row || row->width != s->width) {
            free(x);
            return NULL;
        }
        diff_numbers(s, row, x + i * s->width);
    }
    return x;
}

/* A value of the same layer or, if `name` has no leading dot, of the whole model. A's own rows are taken if it has
 * them. */
static double *input_rows(const struct tap_rows *r, const char *name, size_t *width)
{
    char full[NAMING_ROOM];
    snprintf(full, sizeof full, "model.layers.%d%s", r->t->a->layer, name);
    if (*name != '.')
        snprintf(full, sizeof full, "%s", name);
    const struct diff_side *sides[2] = {r->a, r->b};
    for (int i = 0; i < 2; i++) {
        const struct diff_series *s = diff_find(sides[i], full, r->t->a->depth);
        double *x = s && s->dtype != DIFF_INTEGERS ? rows_of(r->t, s) : NULL;
        if (x) {
            *width = s->width;
            return x;
        }
    }
    return NULL;
}

/* --- heads and RoPE --- */

static size_t width_of(const struct tap_rows *r, const char *name)
{
    char full[NAMING_ROOM];
    snprintf(full, sizeof full, "model.layers.%d%s", r->t->a->layer, name);
    const struct diff_series *s = diff_find(r->a, full, r->t->a->depth);
    s = s ? s : diff_find(r->b, full, r->t->a->depth);
    return s ? s->width : 0;
}

static void find_heads(struct tap_rows *r)
{
    static const char *const with_heads[] = {".q_b_proj.output", ".q_proj.output", ".o_proj.input"};
    const char *name = r->t->a->name;
    size_t n = width_of(r, ".self_attn.k_rope"), heads = n ? width_of(r, ".self_attn.q_rope") / n : 0;
    r->e.block_name = "head";
    for (size_t i = 0; i < 3; i++)
        if (cli_ends_with(name, with_heads[i]) && heads && r->e.width % heads == 0) {
            r->e.block = r->e.width / heads;
            r->e.rope = i < 2 && n < r->e.block ? n : 0;
        }
    if (cli_ends_with(name, ".q_rope") || cli_ends_with(name, ".k_rope"))
        r->e.block = r->e.rope = n;
    if (cli_ends_with(name, ".kv_a_proj_with_mqa.output") && n < r->e.width)
        r->e.rope = n;
    if (strstr(name, ".mlp.gate.") && !cli_ends_with(name, ".weights") && !cli_ends_with(name, ".group_scores")) {
        r->e.block = 1;
        r->e.block_name = "expert";
    }
}

/* The vectors of one side before RoPE: the last columns of each head of q, or of kv_a. */
static double *before_rope(const struct tap_rows *r, const struct diff_side *side)
{
    static const char *const of_q[] = {".self_attn.q_b_proj.output", ".self_attn.q_proj.output"},
                             *kv = ".self_attn.kv_a_proj_with_mqa.output";
    int is_k = cli_ends_with(r->t->a->name, ".k_rope");
    const struct diff_series *s = NULL;
    char full[NAMING_ROOM];
    for (int i = 0; i < 2 && !s; i++) {
        snprintf(full, sizeof full, "model.layers.%d%s", r->t->a->layer, is_k ? kv : of_q[i]);
        s = diff_find(side, full, r->t->a->depth);
    }
    size_t n = r->e.rope, heads = n ? r->e.width / n : 0;
    double *all = s && heads && s->width % heads == 0 && s->width / heads >= n ? rows_of(r->t, s) : NULL;
    if (!all)
        return NULL;
    double *x = cli_must(malloc((r->e.rows * r->e.width + 1) * sizeof *x));
    for (size_t k = 0; k < r->e.rows * heads; k++)
        memcpy(x + k * n, all + (k + 1) * (s->width / heads) - n, n * sizeof *x);
    free(all);
    return x;
}

/* --- matrices --- */

static double *weights_of(const struct tap_rows *r, const char *name, size_t rows, size_t columns)
{
    vb_tensor w;
    vb_error err;
    if (!r->weights || !vb_tensors_find(r->weights, name, &w) || w.ndim != 2 || !strcmp(w.dtype, "F8_E4M3") ||
        (size_t)w.shape[0] != rows || (size_t)w.shape[1] != columns || rows * columns > MOST_WEIGHTS)
        return NULL;
    float *f = cli_must(malloc((rows * columns + 1) * sizeof *f));
    double *x = cli_must(malloc((rows * columns + 1) * sizeof *x));
    if (vb_tensor_f32(&w, 0, rows * columns, f, &err)) {
        free(f);
        free(x);
        return NULL;
    }
    for (size_t i = 0; i < rows * columns; i++)
        x[i] = (double)f[i];
    free(f);
    return x;
}

static void find_matrix(struct tap_rows *r)
{
    static const char *const inputs[][2] = {{".q_a_proj.output", ".input_layernorm.output"},
        {".q_proj.output", ".input_layernorm.output"}, {".kv_a_proj_with_mqa.output", ".input_layernorm.output"},
        {".q_b_proj.output", ".self_attn.q_a_layernorm.output"}, {".o_proj.output", ".self_attn.o_proj.input"},
        {".mlp.gate.output", ".post_attention_layernorm.output"}, {".eh_proj.output", ".eh_proj.input"},
        {".shared_head.head.output", ".shared_head.norm.output"}, {"lm_head.output", "model.norm.output"}};
    const char *name = r->t->a->name;
    char weight[NAMING_ROOM];
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (!cli_ends_with(name, inputs[i][0]))
            continue;
        r->x = input_rows(r, inputs[i][1], &r->matrix.inputs);
        snprintf(weight, sizeof weight, "%.*s.weight", (int)(strlen(name) - strlen(".output")), name);
        r->w = r->x ? weights_of(r, weight, r->e.width, r->matrix.inputs) : NULL;
        r->matrix.x = r->x;
        r->matrix.weights = r->w;
        r->e.matrix = r->w ? &r->matrix : NULL;
        return;
    }
}

/* --- other experts --- */

static void multiply(const double *w, const double *x, double *y, size_t rows, size_t inputs, size_t outputs)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < outputs; i++) {
            y[r * outputs + i] = 0;
            for (size_t k = 0; k < inputs; k++)
                y[r * outputs + i] += w[i * inputs + k] * x[r * inputs + k];
        }
}

/* Computes expert E on r->x into r->candidate. Returns 0 if its matrices are not known. */
static int expert(struct tap_rows *r, size_t E, size_t D)
{
    static const char *const names[] = {"gate", "up", "down"};
    double *w[3] = {NULL, NULL, NULL}, *product, *up;
    char name[NAMING_ROOM];
    vb_tensor gate;
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.gate_proj.weight", r->t->a->layer, E);
    if (!r->weights || !vb_tensors_find(r->weights, name, &gate) || gate.ndim != 2)
        return 0;
    size_t W = (size_t)gate.shape[0], rows = r->e.rows;
    int found = (double)rows * (double)W * (double)D * 3 * 64 < MOST_PRODUCTS;
    for (int i = 0; i < 3 && found; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.%s_proj.weight", r->t->a->layer, E, names[i]);
        w[i] = weights_of(r, name, i == 2 ? D : W, i == 2 ? W : D);
        found &= w[i] != NULL;
    }
    if (found) {
        product = cli_must(malloc(2 * (rows * W + 1) * sizeof *product));
        up = product + rows * W;
        multiply(w[0], r->x, product, rows, D, W);
        multiply(w[1], r->x, up, rows, D, W);
        for (size_t i = 0; i < rows * W; i++)
            product[i] *= up[i] / (1 + exp(-product[i]));
        multiply(w[2], product, r->candidate, rows, W, D);
        free(product);
    }
    for (int i = 0; i < 3; i++)
        free(w[i]);
    return found;
}

static const double *other_expert(void *context, size_t i, char name[EXPLAIN_NAME])
{
    struct tap_rows *r = context;
    if (strtoul(strstr(r->t->a->name, ".mlp.experts.") + 13, NULL, 10) == i)
        *name = '\0';
    else
        snprintf(name, EXPLAIN_NAME, "A is computed with the weights of expert %zu", i);
    return expert(r, i, r->e.width) ? r->candidate : NULL;
}

static void find_experts(struct tap_rows *r)
{
    size_t width = 0;
    if (!strstr(r->t->a->name, ".mlp.experts.") ||
        !(r->x = input_rows(r, ".post_attention_layernorm.output", &width)) || width != r->e.width)
        return;
    r->candidate = cli_must(malloc((r->e.rows * r->e.width + 1) * sizeof *r->candidate));
    r->e.candidate = other_expert;
    r->e.context = r;
}

/* --- a tap --- */

static void find_tolerance(struct tap_rows *r)
{
    r->index = cli_must(malloc((r->e.rows + 1) * sizeof *r->index));
    r->tolerance = cli_must(malloc((r->e.rows + 1) * sizeof *r->tolerance));
    for (size_t k = 0; k < r->e.rows; k++) {
        double largest = r->t->typical;
        for (size_t i = 0; i < r->e.width; i++)
            for (int side = 0; side < 2; side++)
                largest = fmax(largest, fabs(r->numbers[side][k * r->e.width + i]));
        r->index[k] = r->t->bias.rows[k].index;
        r->tolerance[k] = r->t->bound * largest;
    }
    r->e.index = r->index;
    r->e.tolerance = r->tolerance;
}

void diff_explain(const struct tap *t, const struct diff_side *a, const struct diff_side *b, const char *model,
                  char where[EXPLAIN_ROOM], char why[EXPLAIN_ROOM])
{
    struct tap_rows r = {.t = t, .a = a, .b = b};
    vb_error err;
    *where = *why = '\0';
    if (t->dtype == DIFF_INTEGERS || !t->bias.count || t->a->width != t->b->width)
        return;
    if (model && vb_tensors_open(&r.weights, model, NULL, &err))
        r.weights = NULL;
    r.e.rows = t->bias.count;
    r.e.width = t->a->width;
    r.numbers[0] = rows_of(t, t->a);
    r.numbers[1] = rows_of(t, t->b);
    if (r.numbers[0] && r.numbers[1]) {
        r.e.a = r.numbers[0];
        r.e.b = r.numbers[1];
        find_tolerance(&r);
        find_heads(&r);
        find_matrix(&r);
        find_experts(&r);
        for (int i = 0; i < 2 && (cli_ends_with(t->a->name, ".q_rope") || cli_ends_with(t->a->name, ".k_rope")); i++)
            r.before[i] = before_rope(&r, i ? b : a);
        r.e.before_a = r.before[0];
        r.e.before_b = r.before[1];
        if (explain_where(&r.e, where))
            explain_why(&r.e, why);
    }
    vb_tensors_close(r.weights);
    double *owned[] = {r.numbers[0], r.numbers[1], r.before[0], r.before[1], r.x, r.w, r.tolerance, r.candidate};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(r.index);
}

/* --- bias --- */

static void add_number(struct bias_sum *s, double x, double y)
{
    double e = x - y, square = y * y;
    s->along += e * y;
    s->square += square;
    s->own += e * e * square;
    s->third += e * y * square;
    s->fourth += square * square;
}

/* The part of the tap's variance that its own differences do not show: errors that it inherits. */
static double inherited_by(const struct bias *b)
{
    double own = 0, yy = 0;
    for (size_t i = 0; i < b->count; i++) {
        own += b->rows[i].own;
        yy += b->rows[i].yy;
    }
    return fmax(b->sigma * b->sigma - own / yy / yy, 0);
}

static void list_biased(const struct tap_rows *r, char where[EXPLAIN_ROOM])
{
    size_t rows = r->e.rows, width = r->e.width, block = r->e.block ? r->e.block : 1, parts = width / block;
    double inherited = inherited_by(&r->t->bias);
    struct bias_sum *row = cli_must(calloc(rows + 1, sizeof *row)), *part = cli_must(calloc(parts + 1, sizeof *part));
    unsigned char *row_off = cli_must(calloc(rows + 1, 1)), *part_off = cli_must(calloc(parts + 1, 1));
    for (size_t i = 0; i < rows * width; i++) {
        double x = diff_round(r->t->dtype, r->e.a[i]), y = diff_round(r->t->dtype, r->e.b[i]);
        if (!isfinite(x) || !isfinite(y))
            continue;
        add_number(&row[i / width], x, y);
        add_number(&part[i % width / block], x, y);
    }
    for (size_t i = 0; i < rows; i++)
        row[i].known = bias_variance(&row[i]) + inherited * (double)rows * row[i].square * row[i].square;
    for (size_t i = 0; i < parts; i++)
        part[i].known = bias_variance(&part[i]) + inherited * part[i].square * part[i].square;
    bias_mark(row, rows, row_off);
    bias_mark(part, parts, part_off);
    explain_parts(where, row_off, r->e.index, rows, part_off, parts, r->e.block ? 1 : 0, r->e.block_name);
    free(row);
    free(part);
    free(row_off);
    free(part_off);
}

void diff_explain_bias(const struct tap *t, const struct diff_side *a, const struct diff_side *b,
                       char where[EXPLAIN_ROOM])
{
    struct tap_rows r = {.t = t, .a = a, .b = b, .e = {.rows = t->bias.count, .width = t->a->width}};
    *where = '\0';
    if (t->a->width != t->b->width)
        return;
    r.numbers[0] = rows_of(t, t->a);
    r.numbers[1] = rows_of(t, t->b);
    if (r.numbers[0] && r.numbers[1]) {
        r.e.a = r.numbers[0];
        r.e.b = r.numbers[1];
        find_tolerance(&r); /* it also sets r.e.index */
        find_heads(&r);
        list_biased(&r, where);
    }
    free(r.numbers[0]);
    free(r.numbers[1]);
    free(r.tolerance);
    free(r.index);
}
