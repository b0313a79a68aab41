/* tools/diff/align.c -- converts the numbers of a row from any dtype and layout, and makes two sides comparable if they
 * store the same values in different forms. */
#include "tools/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Decodes a small float format: sign, exponent, fraction. A subnormal has exponent 0 and no implicit 1. */
static double small_float(unsigned bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    unsigned fraction = bits & ((1u << fraction_bits) - 1), sign = bits >> (exponent_bits + fraction_bits) & 1;
    double x = exponent == (1 << exponent_bits) - 1 ? (fraction ? NAN : INFINITY)
               : exponent ? ldexp(1.0 + ldexp(fraction, -fraction_bits), exponent - bias)
                          : ldexp(fraction, 1 - bias - fraction_bits);
    return sign ? -x : x;
}

static double number_at(const struct diff_series *s, const char *data, size_t i)
{
    union { double f64; float f32; int64_t i64; int32_t i32; uint16_t u16; } u = {0};
    memcpy(&u, data + i * s->item, s->item);
    switch (s->dtype) {
    case DIFF_F64: return u.f64;
    case DIFF_F32: return (double)u.f32;
    case DIFF_F16: return small_float(u.u16, 5, 10);
    case DIFF_BF16: return small_float(u.u16, 8, 7);
    default: return s->item == 8 ? (double)u.i64 : u.i32;
    }
}

void diff_numbers(const struct diff_series *s, const struct diff_row *row, double *x)
{
    for (size_t i = 0; i < row->width && i < s->width; i++) {
        size_t from = i, within = s->block ? i % s->block : 0;
        if (s->rope && row->width == s->width && within >= s->block - s->rope) {
            /* in the layout "halves", number 2p + b is stored as number p of half b */
            size_t k = within - (s->block - s->rope);
            from = i - k + k / 2 + k % 2 * (s->rope / 2);
        }
        x[i] = number_at(s, row->data, from);
    }
}

static struct diff_series *find(struct diff_side *side, const char *name, int depth)
{
    return (struct diff_series *)(uintptr_t)diff_find(side, name, depth);
}

/* --- fused columns --- */

/* Splits each series "P+Q" into the series P and Q. Its first columns belong to P. The widths are those of P and Q on
 * the other side. */
static void split_fused(struct diff_side *side, const struct diff_side *other)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        char *plus = strchr(s->name, '+');
        if (!plus || s->is_stats)
            continue;
        *plus = '\0';
        const struct diff_series *p = diff_find(other, s->name, s->depth), *q = diff_find(other, plus + 1, s->depth);
        if (!p || !q || p->width + q->width != s->width) {
            *plus = '+';
            continue;
        }
        diff_series_of(side, plus + 1, side->series[i].depth); /* this call may move side->series */
        s = &side->series[i];
        struct diff_series *second = find(side, plus + 1, s->depth);
        char *name = second->name;
        int step = second->step;
        free(second->rows);
        *second = *s;
        second->name = name;
        second->step = step;
        second->rows = cli_must(malloc((s->count + 1) * sizeof *s->rows));
        memcpy(second->rows, s->rows, s->count * sizeof *s->rows);
        for (size_t k = 0; k < s->count; k++)
            second->rows[k].data += p->width * s->item;
        for (size_t k = 0; k < s->count; k++) {
            second->rows[k].width = q->width;
            s->rows[k].width = p->width;
        }
        s->width = p->width;
        second->width = q->width;
        second->room = s->count + 1;
    }
}

/* llama.cpp uses the name q for the output of q_b_proj and, in models without q_a_proj, for the output of q_proj. The
 * names of the other side decide which one it is. */
static void rename_q(struct diff_side *side, const struct diff_side *other)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        char *at = strstr(s->name, ".self_attn.q_b_proj.output"), name[NAMING_ROOM];
        if (side->has_manifest || !at || diff_find(other, s->name, s->depth))
            continue;
        snprintf(name, sizeof name, "%.*s.self_attn.q_proj.output", (int)(at - s->name), s->name);
        if (diff_find(other, name, s->depth) && !diff_find(side, name, s->depth)) {
            free(s->name);
            s->name = cli_must(strdup(name));
        }
    }
}

/* --- rows --- */

/* Without a manifest, [1,H,r] may be one row, or H rows in a batch of one. If the rows of the other side are known,
 * they decide. */
static void reshape(struct diff_side *side, const struct diff_side *other)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        const struct diff_series *o = diff_find(other, s->name, s->depth);
        if (s->known_rows || !o || !o->known_rows || s->width == o->width || o->count > s->count || !o->count ||
            s->width * s->count != o->width * o->count)
            continue;
        for (size_t k = 0; k < o->count; k++)
            s->rows[k] = (struct diff_row){.index = (int32_t)k, .token = -1, .width = o->width,
                                           .data = s->rows[0].data + k * o->width * s->item};
        s->width = o->width;
        s->count = o->count;
    }
}

/* If a side without manifest has one row and the other side has more, the one row is taken for the last row. Engines
 * that keep only the last row (of the logits) do not say so. */
static void last_rows(struct diff_side *side, const struct diff_side *other)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        const struct diff_series *o = diff_find(other, s->name, s->depth);
        if (s->known_rows || s->count != 1 || !o || o->count < 2)
            continue;
        for (size_t k = 0; k < o->count; k++)
            if (o->rows[k].index > s->rows[0].index)
                s->rows[0].index = o->rows[k].index;
        char text[256];
        snprintf(text, sizeof text, "%.120s has one row: it is taken for the last, index %d", s->name,
                 s->rows[0].index);
        json_array_append_new(side->notes, json_string(text));
    }
}

/* Sets the rows of one expert: the tokens for which the router chose it. Returns whether they are as many as the tensor
 * has. */
static int rows_of_expert(struct diff_series *s, const struct diff_series *chosen, double expert)
{
    double *x = cli_must(malloc((chosen->width + 1) * sizeof *x));
    size_t n = 0;
    for (int write = 0; write < 2 && (!write || n == s->count); write++) {
        n = 0;
        for (size_t k = 0; k < chosen->count; k++) {
            diff_numbers(chosen, &chosen->rows[k], x);
            for (size_t j = 0; j < chosen->width; j++)
                if (x[j] == expert && n++ < s->count && write) {
                    s->rows[n - 1].sequence = chosen->rows[k].sequence;
                    s->rows[n - 1].index = chosen->rows[k].index;
                }
        }
    }
    free(x);
    return n == s->count;
}

/* The rows of an expert in a dump without manifest belong to the tokens that chose it. If the choices are not known, or
 * are not as many as the rows, nothing says which tokens these are, and the rows are left out. */
void diff_expert_rows(struct diff_side *side)
{
    size_t lost = 0;
    char text[NAMING_ROOM], router[64];
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        const char *experts = strstr(s->name, ".mlp.experts.");
        if (!experts || experts[13] < '0' || experts[13] > '9' || s->known_rows || !s->count)
            continue;
        snprintf(router, sizeof router, "model.layers.%d.mlp.gate.experts", s->layer);
        const struct diff_series *chosen = diff_find(side, router, s->depth);
        chosen = chosen && chosen->dtype == DIFF_INTEGERS ? chosen : NULL;
        if (chosen && rows_of_expert(s, chosen, strtod(experts + 13, NULL)))
            continue;
        if (!lost++)
            snprintf(text, sizeof text, "%.100s has %zu rows, and %s: left out", s->name, s->count,
                     chosen ? "the router chose this expert another number of times"
                            : "no choices say which tokens they are");
        s->count = 0;
    }
    if (lost > 1)
        snprintf(text + strlen(text), sizeof text - strlen(text), "; the same of %zu other experts", lost - 1);
    if (lost)
        json_array_append_new(side->notes, json_string(text));
}

/* If a dump without manifest says which tokens it read, its rows get these tokens. */
static void token_rows(struct diff_side *side)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        for (size_t k = 0; k < s->count && !s->known_rows; k++) {
            size_t at = (size_t)(s->rows[k].index + s->depth + 1); /* depth -1: the target reads token `index` */
            s->rows[k].token = s->rows[k].index >= 0 && at < side->token_count ? side->tokens[at] : -1;
        }
    }
}

/* --- RoPE --- */

static int is_rope(const char *name)
{
    const char *last = strrchr(name, '.');
    return last && (!strcmp(last, ".q_rope") || !strcmp(last, ".k_rope"));
}

/* How many RoPE dimensions a head has: the width of k_rope, on either side; 0: not known. */
static size_t rope_width(const struct diff_side *side, const struct diff_side *other, const struct diff_series *s)
{
    char name[NAMING_ROOM];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.k_rope", s->layer);
    const struct diff_series *k = diff_find(side, name, s->depth);
    k = k ? k : diff_find(other, name, s->depth);
    return k ? k->width : 0;
}

static size_t heads_of(const struct diff_side *side, const struct diff_side *other, const struct diff_series *s,
                       size_t r)
{
    char name[NAMING_ROOM];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.q_rope", s->layer);
    const struct diff_series *q = diff_find(side, name, s->depth);
    q = q ? q : diff_find(other, name, s->depth);
    return r && q ? q->width / r : 0;
}

static int has_rope(const char *name) /* whether some columns are RoPE dimensions */
{
    return is_rope(name) || strstr(name, ".self_attn.q_proj.output") || strstr(name, ".self_attn.q_b_proj.output") ||
           strstr(name, ".self_attn.kv_a_proj_with_mqa.output");
}

/* Marks the series whose RoPE dimensions are stored in halves, so that diff_numbers returns the pairs (2p, 2p+1) of
 * each head. On a side without manifest, `layout` is the layout of q_rope and k_rope; NULL: that of the other side. The
 * outputs of linear layers have the order of the checkpoint's rows, so they have the layout of the other side. If
 * nothing gives a layout, the numbers are not reordered. */
static void unify_rope(struct diff_side *side, const struct diff_side *other, const char *layout, const char *option)
{
    size_t told = 0;
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        const struct diff_series *o = diff_find(other, s->name, s->depth);
        told += is_rope(s->name);
        if (!s->layout && has_rope(s->name))
            s->layout = layout && is_rope(s->name) ? layout : o && o->known_rows ? o->layout : NULL;
        if (!s->layout || strcmp(s->layout, "halves"))
            continue;
        size_t r = rope_width(side, other, s), heads = heads_of(side, other, s, r);
        s->rope = r;
        s->block = is_rope(s->name) ? r : strstr(s->name, "kv_a_proj") ? s->width : heads ? s->width / heads : 0;
        if (!r || r % 2 || !s->block || s->width % s->block || s->rope > s->block)
            s->rope = s->block = 0;
    }
    if (layout && !told) {
        char text[256];
        snprintf(text, sizeof text,
                 "%s has no effect: %.100s has no q_rope or k_rope, and the outputs of linear layers have the order "
                 "of the checkpoint",
                 option, side->path);
        json_array_append_new(side->notes, json_string(text));
    }
}

/* --- layers --- */

static const char *below_layer(const char *name) /* the name without model.layers.L. */
{
    return name + 13 + strspn(name + 13, "0123456789");
}

/* Whether the other side has a value of this layer, and this side has the same value of another layer, but none of this
 * one. */
static int lacks_layer(const struct diff_side *side, const struct diff_side *other, int layer)
{
    int found = 0;
    for (size_t i = 0; i < side->count; i++)
        if (side->series[i].layer == layer)
            return 0;
    for (size_t i = 0; i < other->count && !found; i++)
        for (size_t k = 0; k < side->count && !found && other->series[i].layer == layer; k++)
            found = side->series[k].layer >= 0 &&
                    !strcmp(below_layer(side->series[k].name), below_layer(other->series[i].name));
    return found;
}

/* Adds a note for each layer of the other side of which this side has no value, although it has values of layers. */
static void missing_layers(struct diff_side *side, const struct diff_side *other)
{
    int last = -1, lacks = 0;
    char text[NAMING_ROOM], list[160] = "";
    for (size_t i = 0; i < side->count; i++)
        last = side->series[i].layer > last ? side->series[i].layer : last;
    for (int layer = 0; last >= 0 && layer < last; layer++)
        if (lacks_layer(side, other, layer)) {
            if (strlen(list) < 100)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", lacks ? ", " : "", layer);
            lacks++;
        }
    if (lacks) {
        snprintf(text, sizeof text, "%.100s has values of layer %d, but none of layer %s: did the engine compute %s?",
                 side->path, last, list, lacks > 1 ? "them" : "it");
        json_array_append_new(side->notes, json_string(text));
    }
}

void diff_align(struct diff_side *a, struct diff_side *b, const char *layout_a, const char *layout_b)
{
    split_fused(a, b);
    split_fused(b, a);
    rename_q(a, b);
    rename_q(b, a);
    diff_sort(a);
    diff_sort(b);
    reshape(a, b);
    reshape(b, a);
    last_rows(a, b);
    last_rows(b, a);
    unify_rope(a, b, layout_a, "--layout-a");
    unify_rope(b, a, layout_b, "--layout-b");
    diff_choose(a, b);
    diff_choose(b, a);
    diff_sort(a);
    diff_sort(b);
    diff_expert_rows(a);
    diff_expert_rows(b);
    token_rows(a);
    token_rows(b);
    missing_layers(a, b);
    missing_layers(b, a);
}

/* Without a manifest, [1,H,r] may be one row, or H rows in a batch of one. The width in the model decides. */
static void reshape_to(struct diff_series *s, size_t width)
{
    size_t numbers = s->count * s->width;
    if (s->known_rows || !width || s->width == width || numbers % width)
        return;
    const char *data = s->rows[0].data;
    s->rows = cli_must(realloc(s->rows, (s->room = numbers / width) * sizeof *s->rows));
    s->count = s->room;
    s->width = width;
    for (size_t k = 0; k < s->count; k++)
        s->rows[k] = (struct diff_row){.index = (int32_t)k, .token = -1, .width = width,
                                       .data = data + k * width * s->item};
}

void diff_align_to_model(struct diff_side *side, const struct diff_side *model, const char *layout)
{
    split_fused(side, model);
    rename_q(side, model);
    diff_sort(side);
    for (size_t i = 0; i < side->count; i++) {
        const struct diff_series *m = diff_find(model, side->series[i].name, side->series[i].depth);
        if (m && side->series[i].count)
            reshape_to(&side->series[i], m->width);
    }
    unify_rope(side, model, layout, "--layout-a");
    diff_expert_rows(side);
    token_rows(side);
}
