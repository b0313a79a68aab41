/* tools/diff/gradients.c -- compares gradients of a text: two files, or a file with a model, whose gradients the
 * reference computes.
 *
 * The bound of a tensor is found like that of a value (bound.c). The reference computes the gradients once exactly, and
 * `runs` times with every value and every gradient of a value multiplied by 1 + u 2^-24, |u| < 1. A number of the
 * tensor may differ by
 *
 *     8 times the largest change of a number of the tensor in these runs
 *     + sqrt(K) 2^-24 times the largest number of the tensor, for the order of sums, where K is the number of terms of
 *     the longest sum + one rounding to the type of the file
 *
 * The first term counts u / 2^-24 times if the other program computes with unit roundoff u (--arithmetic, or the type
 * of the file).
 *
 * The bound is relative to the whole tensor, not to a row. Row n of the gradient of a matrix is the sum of dy[t,n] x[t]
 * over the tokens t. dy[t,n] is itself a sum, which may nearly cancel. Its error is then relative to the largest
 * numbers of dy[t], and the perturbed runs do not show it, because they perturb the results of sums.
 *
 * A row that no token of the text has reached must be 0, as it is in the reference: that of an expert that no token
 * chose, and of the embedding of a token that does not occur. */
#include "tools/diff/gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/dump/gradients.h"

#define MEASURED_TIMES 8.0

enum { A,
       B };

struct gradient_side {
    const char *path;
    vb_tensors *file;    /* NULL: a model */
    struct gradients of; /* of a model */
    json_t *line;        /* of a file that Verbatim wrote */
};

struct gradient_verdict {
    vb_tensor a, b;
    double spread;        /* the largest change in a perturbed run */
    const double *exact;  /* [rows, cols] */
    size_t rows, cols, row; /* row: the one with the largest distance, or the first that must be 0 */
    double slope, cosine; /* A is about slope times B */
    double relative, of_bound; /* the largest distance, relative to the largest number of B's tensor; the share of the
                                  bound */
    int identical, shape_differs, not_finite, not_zero;
};

struct gradient_diff {
    struct cli *c;
    struct gradient_side side[2];
    struct cli model;     /* computes the bound */
    int32_t *ids;
    size_t count;
    int depths;
    struct gradients exact;
    double *spread;       /* [exact.count]: the largest change in a perturbed run */
    double unit, longest; /* unit: of --arithmetic; 0: that of the file's type */
    struct gradient_verdict *list;
    size_t listed;
    json_t *only[2];
};

static int is_model(const char *path)
{
    size_t n = strlen(path);
    char *inside = vb_path(NULL, path, "config.json");
    int is = (n > 5 && !strcmp(path + n - 5, ".gguf")) || (inside && vb_file_exists(inside));
    vb_free(NULL, inside);
    return is;
}

int diff_is_gradients(const struct cli *c)
{
    json_t *a = gradients_line(c->model_dir), *b = gradients_line(c->other);
    int is = c->gradients || a || b;
    json_decref(a);
    json_decref(b);
    return is;
}

/* ---- reading ---- */

static size_t rows_of(const vb_tensor *t) { return t->ndim == 2 ? (size_t)t->shape[0] : 1; }
static size_t cols_of(const vb_tensor *t) { return t->ndim ? (size_t)t->shape[t->ndim - 1] : 1; }

static size_t count_of(const struct gradient_side *s)
{
    vb_tensor t;
    size_t n = 0;
    while (s->file && vb_tensors_at(s->file, n, &t))
        n++;
    return s->file ? n : s->of.count;
}

static vb_tensor tensor_at(const struct gradient_side *s, size_t i)
{
    vb_tensor t = {0};
    if (s->file)
        vb_tensors_at(s->file, i, &t);
    else
        t = s->of.list[i];
    return t;
}

static int by_name(const void *name, const void *tensor) { return strcmp(name, ((const vb_tensor *)tensor)->name); }

static int find(const struct gradient_side *s, const char *name, vb_tensor *out)
{
    if (s->file)
        return vb_tensors_find(s->file, name, out);
    const vb_tensor *t = bsearch(name, s->of.list, s->of.count, sizeof *t, by_name);
    *out = t ? *t : *out;
    return t != NULL;
}

/* Reads row i as doubles. */
static int read_row(const struct cli *c, const vb_tensor *t, size_t i, double *x, float *f)
{
    size_t n = cols_of(t);
    vb_error err = {0};
    if (!strcmp(t->dtype, "F64")) {
        memcpy(x, (const char *)t->data + i * n * sizeof *x, n * sizeof *x);
        return EXIT_DONE;
    }
    if (vb_tensor_f32(t, i * n, n, f, &err))
        return cli_error(c, &err);
    for (size_t j = 0; j < n; j++)
        x[j] = f[j];
    return EXIT_DONE;
}

/* The text and the loss: from the options, else from the line beside a file. */
static int take_line(struct gradient_diff *d, const json_t *line)
{
    const json_t *tokens = json_object_get(line, "tokens");
    d->depths = (int)json_integer_value(json_object_get(line, "mtp_num_layers"));
    d->c->mtp_loss_scaling_factor = json_number_value(json_object_get(line, "mtp_loss_scaling_factor"));
    if (d->c->tokens)
        return EXIT_DONE;
    d->count = json_array_size(tokens);
    d->ids = cli_must(malloc((d->count + 1) * sizeof *d->ids));
    for (size_t i = 0; i < d->count; i++)
        d->ids[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    return EXIT_DONE;
}

static int open_sides(struct gradient_diff *d)
{
    vb_error err = {0};
    const json_t *line = NULL;
    const char *model = d->c->model_of_bound;
    for (int i = A; i <= B; i++) {
        struct gradient_side *s = &d->side[i];
        if (is_model(s->path)) {
            model = s->path;
            continue;
        }
        if (vb_tensors_open(&s->file, s->path, NULL, &err))
            return cli_error(d->c, &err);
        s->line = gradients_line(s->path);
        line = line ? line : s->line;
    }
    if (!model)
        return cli_fail(d->c, EXIT_USAGE,
                        "A and B are files of gradients, and the bound wants their model: --model DIR is missing");
    if (!d->side[A].file && !d->side[B].file)
        return cli_fail(d->c, EXIT_USAGE, "A and B are both models, wanted a file of gradients (dump --gradients)");
    d->depths = -1;
    int code = line ? take_line(d, line) : EXIT_DONE;
    if (code == EXIT_DONE && d->c->tokens)
        code = cli_ids(d->c, d->c->tokens, &d->ids, &d->count);
    if (code == EXIT_DONE && !d->count)
        return cli_fail(d->c, EXIT_USAGE,
                        "no file beside the gradients says which tokens they belong to: --tokens IDS is missing");
    d->model = *d->c;
    d->model.model_dir = model;
    d->model.model = NULL;
    d->model.tokenizer = NULL;
    d->model.n = -1;
    code = code == EXIT_DONE ? cli_open(&d->model) : code;
    if (d->c->mtp_num_layers >= 0 || d->depths < 0)
        d->depths = code == EXIT_DONE ? gradients_depths(&d->model) : 0;
    return code;
}

/* ---- the bound ---- */

static void widen(struct gradient_diff *d, const struct gradients *moved)
{
    for (size_t i = 0; i < d->exact.count; i++) {
        const double *a = d->exact.list[i].data, *b = moved->list[i].data;
        for (size_t j = 0; j < rows_of(&d->exact.list[i]) * cols_of(&d->exact.list[i]); j++)
            d->spread[i] = fmax(d->spread[i], fabs(a[j] - b[j]));
    }
}

static int measure(struct gradient_diff *d)
{
    int runs = d->c->runs >= 0 ? (int)d->c->runs : 8;
    int code = gradients_of_reference(&d->model, d->ids, d->count, d->depths, 0, &d->exact);
    if (code == EXIT_DONE)
        d->spread = cli_must(calloc(d->exact.count, sizeof *d->spread));
    for (size_t i = 0; i < d->exact.count; i++)
        d->longest = fmax(d->longest, fmax((double)rows_of(&d->exact.list[i]), (double)cols_of(&d->exact.list[i])));
    d->longest = fmax(d->longest, (double)d->count);
    for (int run = 1; run <= runs && code == EXIT_DONE; run++) {
        struct gradients moved;
        cli_progress("perturbed run", (size_t)run, (size_t)runs);
        code = gradients_of_reference(&d->model, d->ids, d->count, d->depths, (uint64_t)run, &moved);
        if (code == EXIT_DONE)
            widen(d, &moved);
        gradients_close(&moved);
    }
    return code;
}

/* The unit roundoff of a type. */
static double unit_of(const char *dtype)
{
    return !strcmp(dtype, "BF16") ? 0x1p-8 : !strcmp(dtype, "F16") ? 0x1p-11
                                         : !strcmp(dtype, "F64")   ? 0
                                                                   : 0x1p-24;
}

/* ---- comparing ---- */

static int is_zero(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0)
            return 0;
    return 1;
}

static int judge(const struct gradient_diff *d, struct gradient_verdict *v)
{
    double *a = cli_must(malloc((v->cols + 1) * sizeof *a)), *b = cli_must(malloc((v->cols + 1) * sizeof *b)),
           largest = 0, far = 0;
    float *f = cli_must(malloc((v->cols + 1) * sizeof *f));
    double aa = 0, ab = 0, bb = 0;
    double type = fmax(unit_of(v->a.dtype), unit_of(v->b.dtype)), u = fmax(fmax(d->unit, type), 0x1p-24);
    int code = EXIT_DONE;
    v->identical = 1;
    for (size_t r = 0; r < v->rows && code == EXIT_DONE && !v->not_zero; r++) {
        double most = 0;
        code = read_row(d->c, &v->a, r, a, f);
        code = code == EXIT_DONE ? read_row(d->c, &v->b, r, b, f) : code;
        for (size_t j = 0; j < v->cols && code == EXIT_DONE; j++) {
            v->not_finite |= !isfinite(a[j]) || !isfinite(b[j]);
            v->identical &= a[j] == b[j];
            most = fmax(most, fabs(a[j] - b[j]));
            largest = fmax(largest, fabs(b[j]));
            aa += a[j] * a[j];
            ab += a[j] * b[j];
            bb += b[j] * b[j];
        }
        v->not_zero = most > 0 && is_zero(v->exact + r * v->cols, v->cols);
        if (most > far || v->not_zero)
            v->row = r;
        far = fmax(far, most);
    }
    v->slope = ab / bb;
    v->cosine = ab / sqrt(aa * bb);
    v->relative = far > 0 ? far / largest : 0;
    v->of_bound = far > 0
                      ? far / (MEASURED_TIMES * v->spread * u / 0x1p-24 + (sqrt(d->longest) * 0x1p-24 + type) * largest)
                      : 0;
    free(a);
    free(b);
    free(f);
    return code;
}

static const char *verdict_of(const struct gradient_verdict *v)
{
    if (v->shape_differs || v->not_finite || v->not_zero || !(v->of_bound <= 1))
        return "structural";
    return v->identical ? "identical" : "rounding";
}

/* The place in the backward pass: output heads come first, the embedding last. */
static long place_of(const char *name)
{
    static const char *const parts[] = {"shared_head.head", "shared_head.norm", "mlp.", "post_attention_layernorm",
                                        "self_attn.o_proj", "self_attn.kv_b", "self_attn.kv_a_layernorm",
                                        "self_attn.kv_a", "self_attn.q_b", "self_attn.q_proj",
                                        "self_attn.q_a_layernorm", "self_attn.q_a", "input_layernorm", "eh_proj",
                                        "hnorm", "enorm", "embed_tokens"};
    int layer, at = 0;
    size_t part = 0;
    if (sscanf(name, "model.layers.%d.%n", &layer, &at) != 1)
        return !strcmp(name, "lm_head.weight") ? -2000000 : !strcmp(name, "model.norm.weight") ? -1
                                                                                               : 2000000;
    while (part < sizeof parts / sizeof *parts && strncmp(name + at, parts[part], strlen(parts[part])))
        part++;
    return -100L * (layer + 1) + (long)part;
}

static int by_place(const void *a, const void *b)
{
    const struct gradient_verdict *x = a, *y = b;
    long p = place_of(x->a.name), q = place_of(y->a.name);
    return p != q ? (p < q ? -1 : 1) : strcmp(x->a.name, y->a.name);
}

static int wanted(const struct cli *c, const char *name)
{
    int layer = -1;
    sscanf(name, "model.layers.%d.", &layer);
    return cli_wants(c, name, layer);
}

static int compare_all(struct gradient_diff *d)
{
    size_t n = count_of(&d->side[A]);
    int code = EXIT_DONE;
    d->list = cli_must(calloc(n + 1, sizeof *d->list));
    for (size_t i = 0; i < n && code == EXIT_DONE; i++) {
        struct gradient_verdict v = {.a = tensor_at(&d->side[A], i)};
        const vb_tensor *exact = bsearch(v.a.name, d->exact.list, d->exact.count, sizeof *exact, by_name);
        if (!wanted(d->c, v.a.name))
            continue;
        if (!exact || !find(&d->side[B], v.a.name, &v.b)) {
            json_array_append_new(d->only[A], json_string(v.a.name));
            continue;
        }
        v.rows = rows_of(exact);
        v.cols = cols_of(exact);
        v.spread = d->spread[exact - d->exact.list];
        v.exact = exact->data;
        v.shape_differs = rows_of(&v.a) != v.rows || cols_of(&v.a) != v.cols || rows_of(&v.b) != v.rows ||
                          cols_of(&v.b) != v.cols;
        code = v.shape_differs ? EXIT_DONE : judge(d, &v);
        d->list[d->listed++] = v;
    }
    for (size_t i = 0; i < count_of(&d->side[B]); i++) {
        vb_tensor b = tensor_at(&d->side[B], i), a;
        if (wanted(d->c, b.name) && !find(&d->side[A], b.name, &a))
            json_array_append_new(d->only[B], json_string(b.name));
    }
    qsort(d->list, d->listed, sizeof *d->list, by_place);
    if (code == EXIT_DONE && !d->listed)
        code = cli_fail(d->c, EXIT_OTHER,
                        "A and B have no tensor in common that the model has a gradient of: A has %.100s",
                        n ? tensor_at(&d->side[A], 0).name : "nothing");
    return code;
}

/* ---- the result ---- */

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *json_of(const struct gradient_diff *d, const char *verdict, const struct gradient_verdict *first)
{
    json_t *list = cli_must(json_array());
    for (size_t i = 0; i < d->listed; i++) {
        const struct gradient_verdict *v = &d->list[i];
        json_t *one = json_pack("{s:s,s:s,s:[I,I],s:o,s:o,s:o,s:o,s:I}", "name", v->a.name, "verdict", verdict_of(v),
                                "shape", (json_int_t)v->rows, (json_int_t)v->cols, "relative", number(v->relative),
                                "of_bound", number(v->of_bound), "slope", number(v->slope), "cosine", number(v->cosine),
                                "row", (json_int_t)v->row);
        json_array_append_new(list, cli_must(one));
    }
    return cli_must(json_pack("{s:s,s:o,s:o,s:O,s:O,s:f}", "verdict", verdict, "first_structural",
                              first ? json_string(first->a.name) : json_null(), "gradients", list, "only_in_a",
                              d->only[A], "only_in_b", d->only[B], "loss", d->exact.loss));
}

static void print_only(const struct gradient_diff *d)
{
    for (int i = A; i <= B; i++)
        if (json_array_size(d->only[i]))
            printf("only in %c: %zu tensors, such as %s\n", 'A' + i, json_array_size(d->only[i]),
                   json_string_value(json_array_get(d->only[i], 0)));
}

/* Whether A is B times a factor, as if another program divided the loss by another number. */
static const char *like(const struct gradient_verdict *v, char text[48])
{
    text[0] = 0;
    if (verdict_of(v)[0] == 's' && v->cosine > 0.999999)
        snprintf(text, 48, "; A is B times %.6g", v->slope);
    return text;
}

static void print(const struct gradient_diff *d, const char *verdict, const struct gradient_verdict *first)
{
    size_t rounding = 0, identical = 0;
    char text[48];
    printf("gradients of %zu tokens with %d MTP depths; the loss is %.6f\n", d->count, d->depths, d->exact.loss);
    for (size_t i = 0; i < d->listed; i++) {
        const struct gradient_verdict *v = &d->list[i];
        const char *is = verdict_of(v);
        identical += is[0] == 'i';
        rounding += is[0] == 'r';
        if (!d->c->all && is[0] != 's')
            continue;
        printf("%-10s  %-60s [%zu,%zu]", is, v->a.name, v->rows, v->cols);
        if (v->shape_differs)
            printf("  A has [%zu,%zu], B has [%zu,%zu]\n", rows_of(&v->a), cols_of(&v->a), rows_of(&v->b),
                   cols_of(&v->b));
        else if (v->not_finite)
            printf("  a number is not finite\n");
        else if (v->not_zero)
            printf("  row %zu must be 0: no token has reached it\n", v->row);
        else
            printf("  relative distance %.2g, %.2g of the bound, largest in row %zu%s\n", v->relative, v->of_bound,
                   v->row, like(v, text));
    }
    print_only(d);
    printf("%zu identical, %zu rounding, %zu structural: %s\n", identical, rounding, d->listed - identical - rounding,
           verdict);
    if (first)
        printf("the first one in the backward pass is %s\n", first->a.name);
}

static int tell(const struct gradient_diff *d)
{
    const struct gradient_verdict *first = NULL;
    int identical = 1;
    for (size_t i = d->listed; i-- > 0;) {
        identical &= verdict_of(&d->list[i])[0] == 'i';
        first = verdict_of(&d->list[i])[0] == 's' ? &d->list[i] : first;
    }
    const char *verdict = first ? "structural" : identical ? "identical"
                                                           : "rounding";
    int code = EXIT_DONE;
    if (d->c->json)
        code = cli_print_json(json_of(d, verdict, first));
    else
        print(d, verdict, first);
    return code == EXIT_DONE && (first || (d->c->bits && !identical)) ? EXIT_DIFFERENCE : code;
}

int diff_gradients(struct cli *c)
{
    struct gradient_diff d = {.c = c, .side = {{.path = c->model_dir}, {.path = c->other}},
                              .only = {cli_must(json_array()), cli_must(json_array())}};
    d.unit = !c->arithmetic ? 0 : !strcmp(c->arithmetic, "f16") ? 0x1p-11
                              : !strcmp(c->arithmetic, "bf16")  ? 0x1p-8
                                                                : 0x1p-24;
    int code = c->local || c->follow_choices || c->html || c->junit
                   ? cli_fail(c, EXIT_USAGE,
                              "--local, --follow-choices, --html and --junit are for values, and these are gradients")
                   : open_sides(&d);
    code = code == EXIT_DONE ? measure(&d) : code;
    for (int i = A; i <= B; i++)
        if (!d.side[i].file)
            d.side[i].of = d.exact;
    code = code == EXIT_DONE ? compare_all(&d) : code;
    code = code == EXIT_DONE ? tell(&d) : code;
    free(d.spread);
    free(d.list);
    free(d.ids);
    gradients_close(&d.exact);
    for (int i = A; i <= B; i++) {
        vb_tensors_close(d.side[i].file);
        json_decref(d.side[i].line);
        json_decref(d.only[i]);
    }
    cli_close(&d.model);
    return code;
}
