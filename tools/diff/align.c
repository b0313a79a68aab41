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
        if (!plus)
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
            s->rows[k] = (struct diff_row){0, (int32_t)k, -1, o->width, s->rows[0].data + k * o->width * s->item};
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
        snprintf(text, sizeof text, "%.120s has one row: it is taken for the last, index %d", s->name, s->rows[0].index);
        json_array_append_new(side->notes, json_string(text));
    }
}

/* --- RoPE --- */

static int is_rope(const char *name)
{
    const char *last = strrchr(name, '.');
    return last && (!strcmp(last, ".q_rope") || !strcmp(last, ".k_rope"));
}

/* Marks the series whose RoPE dimensions are stored in halves, so that diff_numbers returns the pairs (2p, 2p+1) of
 * each head. If nothing gives the layout of a side, the numbers are not reordered. */
static void unify_rope(struct diff_side *side, const char *layout)
{
    for (size_t i = 0; i < side->count; i++) {
        struct diff_series *s = &side->series[i];
        char name[NAMING_ROOM];
        if (!s->layout && layout && is_rope(s->name))
            s->layout = layout;
        if (!s->layout || strcmp(s->layout, "halves"))
            continue;
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_rope", s->layer);
        const struct diff_series *k = find(side, name, s->depth);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_rope", s->layer);
        const struct diff_series *q = find(side, name, s->depth);
        size_t r = k ? k->width : 0, heads = r && q ? q->width / r : 0;
        s->rope = r;
        s->block = is_rope(s->name) ? r : strstr(s->name, "kv_a_proj") ? s->width : heads ? s->width / heads : 0;
        if (!r || r % 2 || !s->block || s->width % s->block || s->rope > s->block)
            s->rope = s->block = 0;
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
    unify_rope(a, layout_a);
    unify_rope(b, layout_b);
    diff_choose(a, b);
    diff_choose(b, a);
    diff_sort(a);
    diff_sort(b);
}
