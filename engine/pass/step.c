#include "engine/pass/step.h"

#include "engine/pass/tap.h"
#include "ops/linear.h"
#include "ops/operators.h"

#include <string.h>

/* ---- from the table ---- */

float *step_array(const struct pass *p, enum pass_value v)
{
    static const size_t array[PASS_ARRAYS] = {
        [ARRAY_X] = offsetof(struct pass, w.x), [ARRAY_NORMED] = offsetof(struct pass, w.normed),
        [ARRAY_DELTA] = offsetof(struct pass, w.delta), [ARRAY_Q_A] = offsetof(struct pass, w.q_a),
        [ARRAY_Q] = offsetof(struct pass, w.q), [ARRAY_KV_A] = offsetof(struct pass, w.kv_a),
        [ARRAY_HEADS] = offsetof(struct pass, w.heads), [ARRAY_CONCAT] = offsetof(struct pass, w.concat),
        [ARRAY_INDEX_K] = offsetof(struct pass, w.index_k), [ARRAY_INDEX_Q] = offsetof(struct pass, w.index_q),
        [ARRAY_INDEX_W] = offsetof(struct pass, w.index_w), [ARRAY_SCORES] = offsetof(struct pass, w.scores),
        [ARRAY_HIDDEN] = offsetof(struct pass, w.hidden), [ARRAY_TAKEN] = offsetof(struct pass, taken),
        [ARRAY_GIVEN] = offsetof(struct pass, given)};
    const struct value_row *row = &value_table[v];
    float *first = *(float *const *)(const void *)((const char *)p + array[row->array]);
    return first + (row->at ? row->at(&p->model->config) : 0);
}

static const void *in_place(const struct pass *p, enum pass_value v, size_t offset)
{
    const void *of[] = {[OF_PASS] = p->model, [OF_LAYER] = p->l, [OF_MODULE] = p->module};
    return (const char *)of[value_table[v].place] + offset;
}

static const struct weight_view *matrix(const struct pass *p, enum pass_value v)
{
    return in_place(p, v, value_table[v].weight);
}

static const float *vector(const struct pass *p, enum pass_value v, size_t offset)
{
    return *(const float *const *)in_place(p, v, offset);
}

static void copy_rows(float *to, size_t to_pitch, const float *from, size_t from_pitch, size_t width, size_t S)
{
    for (size_t s = 0; s < S; s++)
        memcpy(to + s * to_pitch, from + s * from_pitch, width * sizeof *to);
}

/* ---- what all steps have in common ---- */

int step_is_computed(const struct pass *p, enum pass_value v)
{
    return (p->only == NO_VALUE || p->only == v) && value_exists(v, &p->model->config, p->layer);
}

int step_begins(struct pass *p, enum pass_value v)
{
    if (!step_is_computed(p, v))
        return 0;
    op_enter(&p->cx, (int)value_table[v].part);
    return 1;
}

/* Returns the first entry for value v of the present layer, from k on; NULL: there is none. */
static const struct keep *kept_from(const struct pass *p, const struct keep *k, enum pass_value v)
{
    for (; k < p->keep + p->keeps; k++)
        if (k->value == v && k->layer == p->layer)
            return k;
    return NULL;
}

static void keep(struct pass *p, enum pass_value v)
{
    for (const struct keep *k = p->keep; (k = kept_from(p, k, v)); k++) {
        struct value_shape shape = value_shape(v, &p->model->config);
        float *from = step_array(p, v) - shape.at;
        p->side.show(p, from, p->S * shape.pitch);
        copy_rows(k->to, k->pitch, from, shape.pitch, shape.pitch, p->S);
    }
}

float *step_kept(const struct pass *p, enum pass_value v)
{
    const struct keep *k = kept_from(p, p->keep, v);
    return k ? k->to : NULL;
}

/* Each rank gets the values of the other ranks' attention heads. */
static void share_heads(struct pass *p, enum pass_value v)
{
    const struct dims *dims = &p->model->config.dims;
    size_t width = value_table[v].width(&p->model->config);
    op_gather_floats(&p->cx, step_array(p, v), p->S, width, attention_head_unit(dims->v) * (width / dims->H));
}

void step_ends(struct pass *p, enum pass_value v)
{
    if (value_table[v].division == BY_HEADS && p->cx.ranks && p->cx.ranks->taps_all) /* somebody wants to see them */
        share_heads(p, v);
    if (p->keeps)
        keep(p, v);
    if (p->tapper)
        tapper_value(p->tapper, p, v, step_array(p, v));
}

/* The input of a step. If it only passes on the numbers of an earlier value, it was not reported yet. */
static enum pass_value read_input(struct pass *p, enum pass_value v)
{
    enum pass_value from = value_input(v, 0, &p->model->config, p->layer);
    if (value_table[from].is_copy && p->only == NO_VALUE && value_table[from].count == 1)
        step_ends(p, from);
    return from;
}

/* ---- steps ---- */

void norm(struct pass *p, enum pass_value v)
{
    const struct config *c = &p->model->config;
    if (!step_begins(p, v))
        return;
    enum pass_value from = read_input(p, v);
    double eps = v == Q_A_NORM || v == LATENT ? c->latent_eps : c->rms_norm_eps;
    p->cx.op->rmsnorm(&p->cx, step_array(p, v), value_pitch(v, c), step_array(p, from), value_pitch(from, c),
                      vector(p, v, value_table[v].weight), p->S, value_table[v].width(c), (float)eps);
    step_ends(p, v);
}

/* The numbers of a divided value that this process computes begin here. */
static float *own_part(const struct pass *p, enum pass_value v)
{
    size_t head = value_table[v].division == BY_HEADS
                      ? value_table[v].width(&p->model->config) / p->model->config.dims.H
                      : 0;
    return step_array(p, v) + pass_heads(p).begin * head;
}

static void add_bias(struct pass *p, enum pass_value v)
{
    const struct value_row *row = &value_table[v];
    const float *bias = row->bias ? vector(p, v, row->bias) : NULL;
    struct value_shape shape = value_shape(v, &p->model->config);
    for (size_t s = 0; s < p->S && bias; s++)
        p->cx.k->axpy(step_array(p, v) + s * shape.pitch, 1.0f, bias, shape.inner);
}

void step_linears(struct pass *p, const enum pass_value *list)
{
    struct linear layers[OP_LINEAR_MOST];
    enum pass_value computed[OP_LINEAR_MOST];
    size_t count = 0;
    for (; *list != VALUES; list++)
        if (step_is_computed(p, *list)) {
            layers[count] = (struct linear){own_part(p, *list), matrix(p, *list),
                                            value_shape(*list, &p->model->config).pitch};
            computed[count++] = *list;
        }
    if (!count)
        return;
    op_enter(&p->cx, (int)value_table[computed[0]].part);
    const float *x = step_array(p, value_input(computed[0], 0, &p->model->config, p->layer));
    (p->cx.op->linears)(&p->cx, layers, count, x, p->S); /* not the macro of step.h */
    for (size_t i = 0; i < count; i++) {
        add_bias(p, computed[i]);
        step_ends(p, computed[i]);
    }
}

void linear(struct pass *p, enum pass_value v)
{
    const struct config *c = &p->model->config;
    if (value_table[v].division != BY_ROWS) {
        linears(p, v);
        return;
    }
    if (!step_begins(p, v))
        return;
    enum pass_value from = read_input(p, v);
    size_t head = c->dims.v, unit = value_table[from].division == BY_HEADS ? attention_head_unit(head) * head : 0;
    p->cx.op->linear_divided(&p->cx, step_array(p, v), value_table[v].width(c), step_array(p, from), unit,
                             matrix(p, v), p->S);
    add_bias(p, v);
    step_ends(p, v);
}

void residual(struct pass *p, enum pass_value v)
{
    if (!step_begins(p, v))
        return;
    p->cx.op->add(&p->cx, p->w.x, p->w.delta, p->S * p->model->config.dims.d);
    step_ends(p, v);
}

void embed_tokens(struct pass *p, enum pass_value v)
{
    size_t d = p->model->config.dims.d;
    if (!step_begins(p, v))
        return;
    p->cx.op->embed(&p->cx, step_array(p, v), d, matrix(p, v), p->w.ids, p->S);
    for (size_t s = 0; s < p->S && p->module && p->model->config.conventions.value[FIRST_EMBEDDING]; s++)
        if (p->rows[s].position == 0)
            memset(p->w.x + s * d, 0, d * sizeof *p->w.x);
    step_ends(p, v);
}

void join(struct pass *p, enum pass_value v)
{
    const struct config *c = &p->model->config;
    float *to = step_array(p, v);
    if (!step_begins(p, v))
        return;
    for (size_t i = 0; i < value_table[v].count; i++) {
        enum pass_value from = value_input(v, i, c, p->layer);
        struct value_shape in = value_shape(from, c);
        if (value_table[from].array != value_table[v].array)
            copy_rows(to, value_shape(v, c).pitch, step_array(p, from), in.pitch, in.inner, p->S);
        to += in.inner;
    }
    step_ends(p, v);
}

void begin_stream(struct pass *p, enum pass_value from)
{
    struct value_shape in = value_shape(from, &p->model->config);
    copy_rows(p->w.x, in.inner, step_array(p, from), in.pitch, in.inner, p->S);
}

void give_stream(struct pass *p)
{
    size_t d = p->model->config.dims.d;
    copy_rows(p->given, d, p->w.x, d, d, p->S);
}
