#include "ops/mlp.h"

#include <string.h>

#include "ops/linear.h"

/* A group of rows that go through the same three matrices: all rows of a dense layer or of the shared expert, or the
 * rows of one expert. */
struct bundle {
    struct mlp_weights w;
    size_t count;        /* rows */
    struct op_packed x;  /* [count, d] */
    float *h, *u, *gate; /* [count, i]: silu(gate x) * (up x), up x, and gate x, which may be the array h */
    struct op_packed h_packed; /* [count, i] */
    float *y;            /* [count, d] */
    size_t after;        /* rows of gate_proj in all bundles after this one (down_proj has as many rows in each
                            bundle) */
};

/* The h of several bundles, whose rows follow each other. */
struct hidden {
    struct op_packed packed;
    size_t rows;
};

struct mlp_pass {
    const struct op_ctx *cx;
    struct bundle *bundles;
    size_t *first; /* [count + 1]: in the present parallel region, bundle b has tasks first[b] .. first[b + 1] - 1 */
    size_t count, d;
    struct op_share own; /* the rows of down_proj that this process has */
};

static size_t intermediate_of(const struct bundle *b) { return b->w.down->cols; }

/* Returns the rows of gate_proj and up_proj that this process has. */
static struct op_share own_of(const struct op_ctx *cx, const struct bundle *b)
{
    return op_own(cx, intermediate_of(b), OP_ROW_GROUP);
}
static size_t rows_of(const struct op_ctx *cx, const struct bundle *b)
{
    return own_of(cx, b).end - own_of(cx, b).begin;
}

/* Returns the bundle of a task. *task becomes the number of the task within this bundle. */
static const struct bundle *bundle_of(const struct mlp_pass *p, size_t *task)
{
    size_t low = 0, high = p->count; /* finds the last bundle that begins at this task or before it */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (p->first[middle] <= *task)
            low = middle;
        else
            high = middle;
    }
    *task -= p->first[low];
    return &p->bundles[low];
}

static size_t down_after(const struct mlp_pass *p, const struct bundle *b)
{
    return (size_t)(p->bundles + p->count - 1 - b) * (p->own.end - p->own.begin);
}

/* Computes h = silu(gate x) * (up x) for a range of the matrices' rows, for one bundle, and packs it for down_proj. */
static void gate_and_up(void *arg, size_t task, int thread)
{
    struct mlp_pass *p = arg;
    const struct bundle *b = bundle_of(p, &task);
    size_t n0, n1, i = intermediate_of(b), begin = own_of(p->cx, b).begin;
    op_linear_range(p->cx, p->cx->arithmetic, rows_of(p->cx, b), b->after, task, &n0, &n1);
    op_multiply_packed(p->cx, thread, b->gate + begin, i, b->w.gate, n0, n1, &b->x, b->count);
    op_multiply_packed(p->cx, thread, b->u + begin, i, b->w.up, n0, n1, &b->x, b->count);
    for (size_t s = 0; s < b->count; s++) {
        size_t at = s * i + begin + n0;
        p->cx->k->silu_mul(b->h + at, b->gate + at, b->u + at, n1 - n0);
        op_pack_part(p->cx, &b->h_packed, s, b->h + at, begin + n0, n1 - n0);
    }
}

static void down(void *arg, size_t task, int thread)
{
    struct mlp_pass *p = arg;
    const struct bundle *b = bundle_of(p, &task);
    size_t n0, n1;
    op_linear_range(p->cx, p->cx->arithmetic, p->own.end - p->own.begin, down_after(p, b), task, &n0, &n1);
    op_multiply_packed(p->cx, thread, b->y + p->own.begin, p->d, b->w.down, n0, n1, &b->h_packed, b->count);
}

static size_t first_floats(size_t bundles) { return (bundles + 1) * sizeof(size_t) / sizeof(float); }

/* `rows` is the number of rows of all bundles. */
static size_t bundle_scratch(size_t rows, size_t intermediate)
{
    return 2 * op_scratch_bytes(rows * intermediate) + op_packed_scratch(rows, intermediate);
}

/* Returns the forms of x that gate_proj and up_proj need. */
static unsigned forms_of_x(const struct op_ctx *cx, const struct bundle *b)
{
    return 1u << op_form(cx, b->w.gate) | 1u << op_form(cx, b->w.up);
}

static struct hidden take_hidden(struct op_ctx *cx, struct bundle *bundles, size_t count, size_t rows)
{
    size_t i = intermediate_of(bundles), first = 0;
    float *h = op_take(cx, rows * i), *u = op_take(cx, rows * i);
    unsigned forms = 0;
    for (size_t b = 0; b < count; b++)
        forms |= 1u << op_form(cx, bundles[b].w.down);
    struct op_packed h_packed = op_take_packed(cx, forms, rows, i);
    for (size_t b = 0; b < count; first += bundles[b++].count) {
        bundles[b].h = h + first * i;
        bundles[b].u = bundles[b].w.kept_up ? bundles[b].w.kept_up : u + first * i;
        bundles[b].gate = bundles[b].w.kept_gate ? bundles[b].w.kept_gate : bundles[b].h;
        bundles[b].h_packed = op_packed_from(&h_packed, first);
    }
    return (struct hidden){h_packed, rows};
}

static void gather_hidden(const struct op_ctx *cx, const struct hidden *hidden, size_t count)
{
    struct op_packed packed[2];
    size_t rows[2];
    for (size_t i = 0; i < count; i++) {
        packed[i] = hidden[i].packed;
        rows[i] = hidden[i].rows;
    }
    op_gather_packed(cx, packed, rows, count, OP_ROW_GROUP);
}

/* Computes all bundles in two parallel regions. hidden [hiddens] has the h of all of them. Of y, only the columns for
 * which this process has rows of down_proj are computed. */
static void run_bundles(struct op_ctx *cx, struct bundle *bundles, size_t count, size_t d, const struct hidden *hidden,
                        size_t hiddens)
{
    size_t mark = op_mark(cx);
    struct mlp_pass p = {cx, bundles, (size_t *)(void *)op_take(cx, first_floats(count)), count, d,
                         op_own(cx, d, OP_ROW_GROUP)};
    double cost = 0;
    p.first[0] = 0;
    for (size_t b = count, after = 0; b--; after += rows_of(cx, &bundles[b]))
        bundles[b].after = after;
    for (size_t b = 0; b < count; b++) {
        p.first[b + 1] = p.first[b] + op_linear_tasks(cx, cx->arithmetic, rows_of(cx, &bundles[b]), bundles[b].after);
        cost += (double)bundles[b].count * (double)d * (double)rows_of(cx, &bundles[b]);
    }
    op_parallel_matrices(cx, p.first, count, 2.0 * cost, gate_and_up, &p);
    gather_hidden(cx, hidden, hiddens);
    for (size_t b = 0; b < count; b++)
        p.first[b + 1] = p.first[b] + op_linear_tasks(cx, cx->arithmetic, p.own.end - p.own.begin,
                                                      down_after(&p, &bundles[b]));
    op_parallel_matrices(cx, p.first, count, cost, down, &p);
    op_give(cx, mark);
    for (size_t b = 0; b < count; b++) {
        op_all_multiplied(cx, cx->arithmetic, bundles[b].w.gate);
        op_all_multiplied(cx, cx->arithmetic, bundles[b].w.up);
        op_all_multiplied(cx, cx->arithmetic, bundles[b].w.down);
    }
}

size_t op_mlp_scratch(size_t S, size_t d, size_t intermediate)
{
    return op_packed_scratch(S, d) + bundle_scratch(S, intermediate) + op_scratch_bytes(first_floats(1));
}

void op_mlp(struct op_ctx *cx, float *y, const float *x, const struct mlp_weights *w, size_t S)
{
    size_t mark = op_mark(cx), d = w->gate->cols;
    struct bundle all = {.w = *w, .count = S, .y = y};
    all.x = op_take_packed(cx, forms_of_x(cx, &all), S, d);
    op_pack(cx, &all.x, x, d, S);
    struct hidden hidden = take_hidden(cx, &all, 1, S);
    run_bundles(cx, &all, 1, d, &hidden, 1);
    op_gather_floats(cx, y, S, d, OP_ROW_GROUP);
    op_give(cx, mark);
}

size_t op_moe_scratch(size_t S, size_t d, size_t intermediate, size_t shared_intermediate, size_t experts,
                      size_t chosen)
{
    return op_scratch_bytes(S * d) + op_scratch_bytes(S * chosen * d) + op_scratch_bytes(S * chosen) +
           op_scratch_bytes(experts) + op_scratch_bytes((experts + 1) * sizeof(struct bundle) / sizeof(float)) +
           op_packed_scratch(S, d) + op_packed_scratch(S * chosen, d) + bundle_scratch(S, shared_intermediate) +
           bundle_scratch(S * chosen, intermediate) + op_scratch_bytes(first_floats(experts + 1));
}

struct moe_pass {
    const struct op_ctx *cx;
    const struct moe_weights *w;
    const float *weight;  /* [S, chosen] */
    const int32_t *place; /* [S, chosen]: the index of a (token, expert) pair in the list of all pairs, sorted by
                             expert, then token; NULL: the list has the order of the tokens */
    size_t d;
    struct op_share own;  /* the columns of y that this process computes */
    struct op_packed x_packed, pairs_packed; /* [S, d], [S*chosen, d] */
    const float *shared, *out;     /* [S, d], or NULL; [S*chosen, d] */
    float *y;                      /* [S, d] */
};

/* Sorts the (token, expert) pairs, fills in a bundle for each expert that has rows, and returns the number of these
 * bundles. next [experts] is scratch memory: the number of each expert's pairs, then the place of its next pair. */
static size_t group_by_expert(struct bundle *bundles, int32_t *place, int32_t *next, const int32_t *expert,
                              const struct moe_weights *w, size_t S)
{
    size_t count = 0, pairs = S * w->chosen;
    int32_t first = 0;
    memset(next, 0, w->experts * sizeof *next);
    for (size_t i = 0; i < pairs; i++)
        next[expert[i]]++;
    for (size_t e = 0; e < w->experts; e++) {
        int32_t n = next[e];
        if (n)
            bundles[count++] = (struct bundle){.w = w->weights_of(w->arg, e), .count = (size_t)n};
        next[e] = first;
        first += n;
    }
    for (size_t i = 0; i < pairs; i++)
        place[i] = next[expert[i]]++;
    return count;
}

/* Copies packed rows of x to the rows of the bundles. */
static void gather(void *arg, size_t first, size_t count)
{
    struct moe_pass *p = arg;
    for (int form = 0; form < OP_FORMS; form++)
        for (size_t i = first * p->w->chosen; p->pairs_packed.rows[form] && i < (first + count) * p->w->chosen; i++)
            memcpy(op_packed_row(&p->pairs_packed, form, (size_t)p->place[i]),
                   op_packed_row(&p->x_packed, form, i / p->w->chosen), op_packed_bytes(form, p->d));
}

/* y = sum of weight * output over the chosen experts, in ascending order, then + shared */
static void combine(void *arg, size_t first, size_t count)
{
    struct moe_pass *p = arg;
    size_t d = p->d, chosen = p->w->chosen, begin = p->own.begin, columns = p->own.end - begin;
    for (size_t s = first; s < first + count; s++) {
        float *y = p->y + s * d + begin;
        const float *shared = p->shared ? p->shared + s * d + begin : NULL;
        for (size_t j = 0; j < columns; j++)
            y[j] = 0.0f;
        for (size_t i = s * chosen; i < (s + 1) * chosen; i++)
            p->cx->k->axpy(y, p->weight[i], p->out + (p->place ? (size_t)p->place[i] : i) * d + begin, columns);
        if (shared)
            p->cx->k->axpy(y, 1.0f, shared, columns); /* rounded once, like an addition */
    }
}

void op_moe_sum(const struct op_ctx *cx, float *y, const float *out, const float *weight, const float *shared,
                size_t chosen, size_t S, size_t d)
{
    struct moe_weights w = {.chosen = chosen};
    struct moe_pass p = {.cx = cx, .w = &w, .weight = weight, .d = d, .own = {0, d}, .shared = shared, .out = out,
                         .y = y};
    combine(&p, 0, S);
}

/* Reports the output of each expert for each row separately. On several ranks they are whole only if op_ranks.taps_all
 * is set. */
static void show_outputs(const struct moe_pass *p, float *out, float *shared, const int32_t *expert, size_t S)
{
    const struct op_ctx *cx = p->cx;
    size_t pairs = S * p->w->chosen, bytes = p->d * sizeof *out, unit = OP_ROW_GROUP * sizeof *out;
    size_t units = (p->d + OP_ROW_GROUP - 1) / OP_ROW_GROUP;
    struct op_piece pieces[] = {{out, pairs, bytes, units, unit, OP_AS_STORED, NULL},
                                {shared, S, bytes, units, unit, OP_AS_STORED, NULL}};
    if (cx->ranks && cx->ranks->taps_all)
        op_gather(cx, pieces, p->shared ? 2 : 1);
    for (size_t i = 0; cx->probe && i < pairs; i++)
        cx->probe->see(cx->probe, PROBE_EXPERT_OUTPUT, expert[i], i / p->w->chosen, 1,
                       out + (size_t)p->place[i] * p->d, p->d);
    if (cx->probe && p->shared)
        cx->probe->see(cx->probe, PROBE_SHARED_OUTPUT, -1, 0, S, shared, p->d);
}

void op_moe(struct op_ctx *cx, float *y, const float *x, const int32_t *expert, const float *weight,
            const struct moe_weights *w, size_t S)
{
    size_t mark = op_mark(cx), pairs = S * w->chosen;
    struct bundle *bundles = (struct bundle *)(void *)op_take(cx,
                                                              (w->experts + 1) * sizeof(struct bundle) / sizeof(float));
    int32_t *place = (int32_t *)(void *)op_take(cx, pairs), *next = (int32_t *)(void *)op_take(cx, w->experts);
    size_t count = group_by_expert(bundles, place, next, expert, w, S), d = bundles[0].w.gate->cols, first = 0;
    struct moe_pass p = {.cx = cx, .w = w, .weight = weight, .place = place, .d = d, .own = op_own(cx, d, OP_ROW_GROUP),
                         .y = y};
    float *of_shared_expert = op_take(cx, S * d), *out = op_take(cx, pairs * d);
    p.out = out;
    p.shared = w->shared ? of_shared_expert : NULL;
    unsigned of_pairs = 0, of_shared = 0;
    for (size_t b = 0; b < count; b++)
        of_pairs |= forms_of_x(cx, &bundles[b]);
    if (w->shared) {
        bundles[count] = (struct bundle){.w = *w->shared, .count = S, .y = of_shared_expert};
        of_shared = forms_of_x(cx, &bundles[count]);
    }
    p.x_packed = op_take_packed(cx, of_pairs | of_shared, S, d);
    p.pairs_packed = op_take_packed(cx, of_pairs, pairs, d);

    op_pack(cx, &p.x_packed, x, d, S);
    op_each_row(cx, S, (double)(w->chosen * d), gather, &p);
    struct hidden hidden[2] = {take_hidden(cx, bundles, count, pairs)};
    for (size_t b = 0; b < count; first += bundles[b++].count) {
        bundles[b].x = op_packed_from(&p.pairs_packed, first);
        bundles[b].y = out + first * d;
    }
    if (w->shared) {
        bundles[count].x = p.x_packed;
        hidden[1] = take_hidden(cx, &bundles[count], 1, S);
    }
    run_bundles(cx, bundles, count + (w->shared != NULL), d, hidden, w->shared ? 2 : 1);

    show_outputs(&p, out, of_shared_expert, expert, S);
    op_each_row(cx, S, (double)(w->chosen * d), combine, &p);
    op_gather_floats(cx, y, S, d, OP_ROW_GROUP);
    op_give(cx, mark);
}
