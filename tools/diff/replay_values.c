/* tools/diff/replay_values.c -- computes operators of the engine or of the reference on the values of a file. */
#include "tools/diff/replay.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/operator.h"

#define MOST_ROWS ((size_t)1 << 24)

struct replay {
    struct cli *c;
    struct local_values v;
    struct tensors *results;
    int all; /* 1: compute every value of the file, except those that the engine cannot compute alone; 0: one
                operator */
};

struct one { /* one operator */
    const char *name;      /* of the result */
    struct reference_call k;
    int depth;
    size_t from, end, width; /* rows [from, end) have all inputs; numbers in a row of the result */
    int left_out;            /* the engine cannot compute it alone */
    size_t base;             /* the first row that is computed: in attention, the first row of the text */
};

static void release(struct one *x)
{
    for (int i = 0; i < REFERENCE_INPUTS; i++) {
        free((void *)(uintptr_t)x->k.in[i]);
        x->k.in[i] = NULL;
    }
    free(x->k.out);
}

/* --- the file --- */

/* Adds a series without rows for the result of an operator, if `name` is one. */
static void add_name(struct diff_side *model, const struct reference *r, const char *name)
{
    int layer, expert, L = reference_config(r)->num_hidden_layers;
    const struct reference_operator *op = reference_operator_of(r, name, &layer, &expert);
    if (!op || !op->row->width)
        return;
    struct diff_series *s = diff_series_of(model, name, layer >= L ? layer - L : -1);
    s->width = op->row->width(reference_config(r));
    s->known_rows = 1;
    s->layout = reference_config(r)->rope_interleave ? "interleaved" : "halves";
}

void replay_align(const struct cli *c, struct diff_side *side, const struct reference *r)
{
    static const char *const more[] = {"q_a_proj.output", "kv_a_proj_with_mqa.output", "q_proj.output",
                                       "q_b_proj.output", "q_rope", "k_rope"};
    struct diff_side model = {.layers = side->layers, .notes = json_array(), .places = json_object()};
    char name[NAMING_ROOM];
    for (size_t i = 0; i < side->count; i++) {
        add_name(&model, r, side->series[i].name);
        for (size_t k = 0; side->series[i].layer >= 0 && k < sizeof more / sizeof *more; k++) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", side->series[i].layer, more[k]);
            add_name(&model, r, name);
        }
    }
    diff_align_to_model(side, &model, c->layout_a);
    diff_close(&model);
}

/* --- the inputs --- */

/* Writes to `why` which input the file lacks, or which has another width. */
static void check_given(const struct replay *p, const struct one *x, char why[512])
{
    char name[128];
    int depth, layer, expert;
    for (int i = 0; i < REFERENCE_INPUTS && !*why; i++) {
        if (!reference_operator_input(p->v.r, x->k.op, i, x->k.layer, &p->v.conventions, name, &depth))
            continue;
        const struct reference_operator *op = reference_operator_of(p->v.r, name, &layer, &expert);
        const struct diff_series *s = diff_find(p->v.side, name, depth);
        if (x->k.op->row->inputs[i].from[0] == KEPT_TOKENS && !s &&
            p->v.rows - local_base(&p->v, x->depth) > (size_t)reference_config(p->v.r)->index_topk)
            snprintf(why, 512, "%s has no %s, which is an input of %s", p->c->input, name, x->name);
        if (!op || op->row == &value_table[EXPERT_OUTPUTS])
            continue; /* tokens, and the outputs of several experts, are no series of that name */
        size_t width = local_width(&p->v, op, layer);
        if (!s)
            snprintf(why, 512, "%s has no %s, which is an input of %s", p->c->input, name, x->name);
        else if (s->width != width && !naming_of_context(name)) /* rows of scores and of kept tokens grow with the
                                                                   context */
            snprintf(why, 512, "%s: rows of %s have %zu numbers, wanted %zu", p->c->input, name, s->width, width);
    }
}

/* Sets the range of rows that have all inputs. */
static void find_rows(const struct replay *p, struct one *x, const unsigned char *present, char why[512])
{
    size_t first = local_base(&p->v, x->depth);
    x->from = first;
    while (x->from < p->v.rows && !present[x->from])
        x->from++;
    for (x->end = x->from; x->end < p->v.rows && present[x->end];)
        x->end++;
    x->base = x->k.op->row->all_rows ? first : x->from;
    if (x->from == x->end)
        snprintf(why, 512, "%s: no row has all inputs of %s", p->c->input, x->name);
    for (size_t s = x->end; s < p->v.rows && !*why; s++)
        if (present[s])
            snprintf(why, 512, "%s: an input of %s has no row %zu", p->c->input, x->name, x->end - first);
}

/* Finds the inputs of an operator. If the file lacks one, writes this to `why`. */
static void find_inputs(struct replay *p, struct one *x, char why[512])
{
    const struct config *config = reference_config(p->v.r);
    unsigned char *present = cli_must(calloc(p->v.rows + 1, 1));
    x->k.op = reference_operator_of(p->v.r, x->name, &x->k.layer, &x->k.expert);
    x->depth = x->k.layer >= config->num_hidden_layers ? x->k.layer - config->num_hidden_layers : -1;
    x->width = local_width(&p->v, x->k.op, x->k.layer);
    *why = '\0';
    check_given(p, x, why);
    if (!*why && !local_inputs(&p->v, 0, x->k.op, x->k.layer, &x->k, present, NULL)) {
        for (int i = 0; i < REFERENCE_INPUTS; i++)
            x->k.in[i] = NULL; /* local_inputs has freed them */
        const char *end = strrchr(p->v.missing, '.');
        snprintf(why, 512,
                 end && !strcmp(end, ".experts")
                     ? "%s lacks the numbers or the outputs of the chosen experts (%s), which %s needs"
                     : "%s has no %s, which is an input of %s",
                 p->c->input, p->v.missing, x->name);
    }
    if (!*why)
        find_rows(p, x, present, why);
    free(present);
}

/* How many tokens, experts or groups there are, if the input has them; else 0. */
static int integers_below(const struct config *config, const char *name)
{
    const char *end = strstr(name, ".mlp.gate.");
    if (!strcmp(name, "tokens"))
        return config->vocab_size;
    return !end ? 0
           : !strcmp(end, ".mlp.gate.experts") ? config->n_routed_experts
           : !strcmp(end, ".mlp.gate.groups") ? config->n_group
           : 0;
}

/* Checks the positions that the rows after the first index_topk keep. */
static int check_kept(const struct replay *p, const struct one *x, const double *kept, size_t width)
{
    size_t first = local_base(&p->v, x->depth);
    for (size_t s = first + (size_t)reference_config(p->v.r)->index_topk; s < x->end; s++)
        for (size_t i = 0; s >= x->from && i < width; i++) {
            double t = kept[s * width + i];
            if (t == -1 && i)
                continue;
            if (!(t >= 0 && t <= (double)(s - first) && t == floor(t)) || diff_holds(kept + s * width, i, t))
                return cli_fail(p->c, EXIT_OTHER,
                                "%s: the kept positions of row %zu have %g, wanted different integers from 0 to %zu",
                                p->c->input, s - first, t, s - first);
        }
    return EXIT_DONE;
}

/* Checks that tokens, experts and groups are in range, and that a row has none of them twice. */
static int check_integers(const struct replay *p, const struct one *x)
{
    char name[128];
    int depth;
    for (int i = 0; i < REFERENCE_INPUTS; i++) {
        if (!x->k.in[i] || !reference_operator_input(p->v.r, x->k.op, i, x->k.layer, &p->v.conventions, name, &depth))
            continue;
        int most = integers_below(reference_config(p->v.r), name);
        for (size_t s = x->from; s < x->end && most; s++)
            for (size_t k = 0; k < x->k.in_width[i]; k++) {
                const double *row = x->k.in[i] + s * x->k.in_width[i];
                if (!(row[k] >= 0 && row[k] < most && row[k] == (int)row[k]))
                    return cli_fail(p->c, EXIT_OTHER, "%s: %s has %g in row %zu, wanted integers below %d", p->c->input,
                                    name, row[k], s - x->from, most);
                if (diff_holds(row, k, row[k]))
                    return cli_fail(p->c, EXIT_OTHER, "%s: %s has %g twice in row %zu", p->c->input, name, row[k],
                                    s - x->from);
            }
    }
    if (x->k.op->row->all_rows && x->k.in[4])
        return check_kept(p, x, x->k.in[4], x->k.in_width[4]);
    return EXIT_DONE;
}

/* --- one operator --- */

/* Computes rows [base, end) of k.out with the engine, whose inputs and results are f32. The engine's rows of scores
 * have as many numbers as there are rows, and the reference's at least as many; the others are masked. */
static int by_engine(const struct replay *p, struct one *x)
{
    const struct cli *c = p->c;
    float *in[REFERENCE_INPUTS] = {NULL};
    struct operator_call k = {.result = x->k.op->row->name, .layer = x->k.layer, .expert = x->k.expert,
                              .S = x->end - x->base,
                              .first = local_position(&p->v, x->depth) +
                                       (int32_t)(x->base - local_base(&p->v, x->depth)),
                              .expanded = c->expanded && x->depth < 0};
    size_t width = x->k.op->row->width ? x->width : k.S;
    vb_session_options o = c->session;
    vb_error err = {0};
    size_t most = (size_t)vb_max_positions(c->model);
    o.context = (int32_t)(c->context > 0 ? (size_t)c->context : k.S < most ? k.S : most);
    for (int i = 0; i < REFERENCE_INPUTS; i++) {
        size_t n = k.S * x->k.in_width[i], from = x->base * x->k.in_width[i];
        k.width[i] = x->k.in_width[i];
        k.in[i] = in[i] = x->k.in[i] ? cli_must(malloc((n + 1) * sizeof *in[i])) : NULL;
        for (size_t j = 0; j < n && in[i]; j++)
            in[i][j] = (float)x->k.in[i][from + j];
    }
    k.out = cli_must(calloc(k.S * width + 1, sizeof *k.out));
    int failed = session_operator(c->model, &o, &k, &err), code = EXIT_DONE;
    x->left_out = p->all && failed == VB_UNSUPPORTED;
    if (failed && !x->left_out)
        code = cli_error(c, &err);
    for (size_t j = 0; j < k.S * x->width; j++)
        x->k.out[x->base * x->width + j] = j % x->width < width ? (double)k.out[j / x->width * width + j % x->width]
                                                                : -INFINITY;
    for (int i = 0; i < REFERENCE_INPUTS; i++)
        free(in[i]);
    free(k.out);
    return code;
}

/* Adds the rows of the result to the file: F64 of the reference, F32 of the engine, or I32 if the operator chooses. of:
 * NULL, or the rows that are wanted. */
static void add_result(const struct replay *p, const struct one *x, const struct diff_series *of)
{
    int chooses = x->k.op->row->integers, f64 = p->c->reference && !chooses;
    size_t count = 0, size = f64 ? 8 : 4;
    char *data = cli_must(malloc((x->end - x->from) * x->width * size + 1)), *at = data;
    for (size_t s = x->from; s < x->end; s++) {
        int wanted = !of;
        for (size_t i = 0; of && i < of->count && !wanted; i++)
            wanted = of->rows[i].sequence == 0 && (size_t)(of->rows[i].index + 1) == s;
        const double *row = x->k.out + s * x->width;
        for (size_t j = 0; wanted && j < x->width; j++, at += size) {
            int32_t integer = chooses ? (int32_t)row[j] : 0;
            float single = (float)row[j];
            memcpy(at, chooses ? (const void *)&integer : f64 ? (const void *)&row[j] : &single, size);
        }
        count += (size_t)wanted;
    }
    size_t shape[2] = {count, x->width};
    tensors_add(p->results, x->name, chooses ? "I32" : f64 ? "F64" : "F32", shape, 2, data, count * x->width * size);
    free(data);
}

static int compute(struct replay *p, struct one *x, const struct diff_series *of)
{
    int code = check_integers(p, x);
    x->k.absorbed = p->c->absorbed;
    x->k.out = cli_must(calloc(p->v.rows * x->width + 1, sizeof *x->k.out));
    if (code == EXIT_DONE && p->c->reference)
        local_compute(&p->v, &x->k, x->depth, NULL);
    else if (code == EXIT_DONE)
        code = by_engine(p, x);
    if (code == EXIT_DONE && !x->left_out)
        add_result(p, x, of);
    return code;
}

/* --- all operators of the file --- */

static int every_value(struct replay *p, size_t *left_out)
{
    const struct diff_side *side = p->v.side;
    char why[512];
    int code = EXIT_DONE, L = reference_config(p->v.r)->num_hidden_layers;
    for (size_t i = 0; i < side->count && code == EXIT_DONE; i++) {
        struct one x = {.name = side->series[i].name};
        const struct reference_operator *op = reference_operator_of(p->v.r, x.name, &x.k.layer, &x.k.expert);
        if (!op || side->series[i].depth != (x.k.layer >= L ? x.k.layer - L : -1) ||
            (p->c->layer >= 0 && p->c->layer != x.k.layer))
            continue;
        find_inputs(p, &x, why);
        x.from += x.from == 0; /* row i of a result is row i of the text: not the phantom row, and none is missing
                                  before it */
        x.left_out = *why || x.from != 1 || x.from >= x.end;
        if (!x.left_out)
            code = compute(p, &x, x.k.expert >= 0 ? &side->series[i] : NULL);
        *left_out += (size_t)x.left_out;
        release(&x);
        local_forget(&p->v, 0, x.k.layer < 0 ? 0 : x.k.layer);
    }
    if (code == EXIT_DONE && !p->results->count)
        code = cli_fail(p->c, EXIT_OTHER, "%s has no value with all inputs of its operator", p->c->input);
    return code;
}

/* In a file without manifest, queries that are fewer than the rows of the cache are those of the last tokens. */
static void move_queries(const struct replay *p, const char *name)
{
    char input[128];
    int layer, expert, depth;
    const struct diff_series *s[REFERENCE_INPUTS] = {NULL};
    const struct reference_operator *op = reference_operator_of(p->v.r, name, &layer, &expert);
    int keys = op->row->all_rows;
    for (int i = 0; i < REFERENCE_INPUTS && keys; i++)
        if (reference_operator_input(p->v.r, op, i, layer, &p->v.conventions, input, &depth))
            s[i] = diff_find(p->v.side, input, depth);
    for (int i = 0; i < keys && s[keys]; i++)
        for (size_t k = 0; s[i] && !s[i]->known_rows && k < s[i]->count && s[i]->count < s[keys]->count; k++)
            s[i]->rows[k].index = (int32_t)(s[keys]->count - s[i]->count + k);
}

static int one_value(struct replay *p, const char *name)
{
    struct one x = {.name = name};
    char why[512];
    move_queries(p, name);
    find_inputs(p, &x, why);
    int code = *why ? cli_fail(p->c, EXIT_OTHER, "%s", why) : compute(p, &x, NULL);
    release(&x);
    return code;
}

/* As many rows as the longest value has, and one more for the phantom row; without values, as many as there are
 * tokens. */
static size_t count_rows(const struct diff_side *side, size_t ahead)
{
    size_t rows = 0;
    for (size_t i = 0; i < side->count; i++)
        for (size_t k = 0; k < side->series[i].count; k++)
            if ((size_t)side->series[i].rows[k].index + 2 > rows)
                rows = (size_t)side->series[i].rows[k].index + 2;
    return !rows && side->token_count > ahead ? side->token_count - ahead + 1 : rows;
}

int replay_values(struct cli *c, const struct diff_side *side, const struct reference *r, const char *name,
                  struct tensors *t, size_t *left_out)
{
    struct replay p = {.c = c, .results = t, .all = !name,
                       .v = {.side = side, .r = r, .ids = side->tokens, .id_count = side->token_count,
                             .arithmetic = 0x1p-24, .dtype = DIFF_F32, .only_given = 1}};
    vb_model_facts facts = cli_facts(c);
    struct reference_options o = {0};
    vb_error err = {0};
    int layer = -1, expert, L = reference_config(r)->num_hidden_layers; /* MTP depth k reads the tokens that are k + 1
                                                                           places later */
    if (name)
        reference_operator_of(r, name, &layer, &expert);
    p.v.rows = count_rows(side, layer >= L ? (size_t)(layer - L + 1) : 0);
    if (p.v.rows < 2 || p.v.rows > MOST_ROWS)
        return cli_fail(c, EXIT_OTHER, "%s has %s rows", c->input, p.v.rows < 2 ? "no" : "too many");
    if (conventions_parse(&o.conventions, facts.conventions, &err) ||
        precision_parse(&o.precision, NULL, facts.precision, &err) ||
        cache_type_parse(&o.cache_type, facts.cache_type, &err))
        return cli_error(c, &err);
    o.context = (int)(c->context > 0 ? c->context : 0);
    p.v.conventions = o.conventions;
    if (c->reference && reference_bench_open(&p.v.bench, r, &o, (int)p.v.rows, &err))
        return cli_error(c, &err);
    int code = name ? one_value(&p, name) : every_value(&p, left_out);
    local_forget(&p.v, 0, INT_MAX);
    free(p.v.list[0]);
    reference_bench_close(p.v.bench);
    return code;
}
