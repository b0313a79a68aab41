/* tools/diff/series.c -- the rows of a side: collected by name, found, and sorted into the order of computation. */
#include <stdlib.h>
#include <string.h>

#include "tools/diff/diff.h"

/* --- rows --- */

const struct diff_row *diff_partner(const struct diff_series *s, const struct diff_row *row, size_t *hint)
{
    for (size_t i = 0; i < s->count; i++) {
        const struct diff_row *r = &s->rows[(*hint + i) % s->count];
        if (r->sequence == row->sequence && r->index == row->index) {
            *hint = (size_t)(r - s->rows) + 1;
            return r;
        }
    }
    return NULL;
}

void diff_add_row(struct diff_series *s, struct diff_row row)
{
    const struct diff_row *newest = s->count ? &s->rows[s->count - 1] : NULL;
    s->disordered |= newest && (newest->sequence != row.sequence || newest->index >= row.index);
    if (s->count == s->room) {
        s->room = 2 * s->room + 16;
        s->rows = cli_must(realloc(s->rows, s->room * sizeof *s->rows));
    }
    s->rows[s->count++] = row;
}

/* Compares two rows by sequence and index, and then by their order in the file. */
static int by_token(const void *a, const void *b)
{
    const struct diff_row *x = *(const struct diff_row *const *)a, *y = *(const struct diff_row *const *)b;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return x->index != y->index ? (x->index < y->index ? -1 : 1) : (x > y) - (x < y);
}

void diff_keep_last_rows(struct diff_series *s)
{
    struct diff_row **sorted = cli_must(malloc((s->count + 1) * sizeof *sorted)), *first = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++)
        sorted[i] = &s->rows[i];
    qsort(sorted, s->count, sizeof *sorted, by_token);
    for (size_t i = 0; i < s->count; i++) {
        if (!first || first->sequence != sorted[i]->sequence || first->index != sorted[i]->index) {
            first = sorted[i];
        } else {
            *first = *sorted[i];
            sorted[i]->data = NULL;
        }
    }
    for (size_t i = 0; i < s->count; i++)
        if (s->rows[i].data)
            s->rows[kept++] = s->rows[i];
    s->count = kept;
    free(sorted);
}

void *diff_own(struct diff_side *side, void *block)
{
    side->owned = cli_must(realloc(side->owned, (side->owned_count + 1) * sizeof *side->owned));
    return side->owned[side->owned_count++] = block;
}

void diff_copy_series(struct diff_series *to, const struct diff_series *from)
{
    struct diff_series s = *from;
    s.name = to->name;
    s.layer = to->layer;
    s.depth = to->depth;
    s.rank = to->rank;
    s.step = to->step;
    s.room = s.count + 1;
    s.rows = cli_must(malloc(s.room * sizeof *s.rows));
    memcpy(s.rows, from->rows, s.count * sizeof *s.rows);
    free(to->rows);
    *to = s;
}

static const char *place_key(char key[NAMING_ROOM + 16], const char *name, int depth)
{
    snprintf(key, NAMING_ROOM + 16, "%d %.300s", depth, name);
    return key;
}

const struct diff_series *diff_find(const struct diff_side *side, const char *name, int depth)
{
    char key[NAMING_ROOM + 16];
    const json_t *place = json_object_get(side->places, place_key(key, name, depth));
    return place ? &side->series[json_integer_value(place)] : NULL;
}

struct diff_series *diff_series_of(struct diff_side *side, const char *name, int depth)
{
    char key[NAMING_ROOM + 16];
    const struct diff_series *found = diff_find(side, name, depth);
    if (found)
        return &side->series[found - side->series];
    if (side->count == side->room)
        side->series = cli_must(realloc(side->series, (side->room = 2 * side->room + 64) * sizeof *side->series));
    struct diff_series *s = &side->series[side->count];
    int last, step, layer = naming_place(name, &step, &last);
    *s = (struct diff_series){.name = cli_must(strdup(name)), .layer = layer, .depth = depth, .step = step,
                              .rank = last ? 1 << 20 : layer};
    json_object_set_new(side->places, place_key(key, name, depth), json_integer((json_int_t)side->count++));
    return s;
}

static int by_place(const void *p, const void *q)
{
    const struct diff_series *a = p, *b = q;
    long x[] = {a->depth, a->rank, a->step}, y[] = {b->depth, b->rank, b->step};
    for (size_t i = 0; i < 3; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    size_t n = strlen(a->name), m = strlen(b->name);
    /* shorter names first, so that expert 9 comes before expert 10 */
    return n != m ? (n < m ? -1 : 1) : strcmp(a->name, b->name);
}

void diff_sort(struct diff_side *side)
{
    char key[NAMING_ROOM + 16];
    if (side->count)
        qsort(side->series, side->count, sizeof *side->series, by_place);
    json_object_clear(side->places);
    for (size_t i = 0; i < side->count; i++)
        json_object_set_new(side->places, place_key(key, side->series[i].name, side->series[i].depth),
                            json_integer((json_int_t)i));
}

void diff_close(struct diff_side *side)
{
    for (size_t i = 0; i < side->count; i++) {
        free(side->series[i].name);
        free(side->series[i].rows);
    }
    for (size_t i = 0; i < side->rank_count; i++)
        diff_close(&side->ranks[i]);
    free(side->ranks);
    for (size_t i = 0; i < side->owned_count; i++)
        free(side->owned[i]);
    free(side->owned);
    free(side->series);
    free(side->tokens);
    free(side->rejected);
    json_decref(side->notes);
    json_decref(side->places);
    vb_tensors_close(side->file);
    *side = (struct diff_side){0};
}
