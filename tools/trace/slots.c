/* tools/trace/slots.c -- compares cache slots of another engine with those of a trace. */
#include "tools/trace/slots.h"

#include <stdio.h>

#include "engine/verbatim.h"

#define NAME 48

void slots_open(struct slots *s) { *s = (struct slots){json_object(), json_object(), json_object()}; }

void slots_close(struct slots *s)
{
    json_decref(s->theirs_of);
    json_decref(s->ours_of);
    json_decref(s->live);
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* 0 for the target, else 1 + the depth. */
static long long cache_of(const json_t *pass)
{
    const json_t *depth = json_object_get(pass, "depth");
    return json_is_integer(depth) ? json_integer_value(depth) + 1 : 0;
}

/* ---- one sequence ---- */

/* Notes that slot `from` stands for slot `to`. Returns 0 if it stands for another one. */
static int same_slot(json_t *map, long long from, long long to)
{
    char key[NAME];
    snprintf(key, sizeof key, "%lld", from);
    const json_t *known = json_object_get(map, key);
    if (!known)
        json_object_set_new(map, key, json_integer(to));
    return !known || json_integer_value(known) == to;
}

static int same_slots(struct slots *s, const json_t *pass, const json_t *theirs)
{
    const json_t *ours = json_object_get(pass, "slots");
    long long caches = VB_MAX_DRAFT + 1, cache = cache_of(pass);
    int same = 1;
    for (size_t i = 0; same && i < json_array_size(ours); i++) {
        long long a = json_integer_value(json_array_get(theirs, i)), b = json_integer_value(json_array_get(ours, i));
        if (a >= 0)
            same = same_slot(s->ours_of, a * caches + cache, b) && same_slot(s->theirs_of, b * caches + cache, a);
    }
    return same;
}

/* ---- batches ---- */

/* The rows in a cache, by slot. Each rank has caches of its own, and there each sequence has caches of its own for
 * modules. */
static json_t *rows_of(struct slots *s, const json_t *pass, long long cache, long long sequence)
{
    char name[3 * NAME];
    snprintf(name, sizeof name, "%lld %lld %lld", number(pass, "rank"), cache, cache ? sequence : -1);
    json_t *rows = json_object_get(s->live, name);
    if (!rows)
        json_object_set_new(s->live, name, rows = json_object());
    return rows;
}

/* Forgets the rows of a sequence in this cache from place `first` on. */
static void forget(json_t *rows, long long sequence, long long first)
{
    const char *slot;
    void *next;
    json_t *row;
    json_object_foreach_safe(rows, next, slot, row)
        if (json_integer_value(json_array_get(row, 0)) == sequence &&
            json_integer_value(json_array_get(row, 1)) >= first)
            json_object_del(rows, slot);
}

static void forget_cut(struct slots *s, const json_t *pass, const json_t *part, const char *key)
{
    const json_t *cut;
    long long sequence = number(part, "sequence");
    size_t i;
    json_array_foreach(json_object_get(part, key), i, cut)
        forget(rows_of(s, pass, cache_of(cut), sequence), sequence, number(cut, "first"));
}

/* Forgets all rows of the sequences in list `key`, in all caches of the rank. */
static void forget_sequences(struct slots *s, const json_t *pass, const char *key)
{
    const json_t *sequence;
    size_t i;
    json_array_foreach(json_object_get(pass, key), i, sequence)
        for (long long cache = 0; cache <= VB_MAX_DRAFT; cache++)
            forget(rows_of(s, pass, cache, json_integer_value(sequence)), json_integer_value(sequence), 0);
}

void slots_begin(struct slots *s, const json_t *pass, const json_t *target)
{
    const json_t *part;
    size_t i;
    if (target)
        forget_sequences(s, target, "preempted");
    json_array_foreach(json_object_get(pass, "parts"), i, part)
        forget_cut(s, pass, part, "cut_before");
}

void slots_end(struct slots *s, const json_t *pass)
{
    const json_t *part;
    size_t i;
    json_array_foreach(json_object_get(pass, "parts"), i, part)
        forget_cut(s, pass, part, "cut");
    forget_sequences(s, pass, "finished");
}

/* The part's row j gets slot `theirs`. Returns 0 if this slot holds another row. */
static int take(json_t *rows, const json_t *part, size_t j, long long theirs)
{
    char slot[NAME];
    json_t *row = json_pack("[I,I]", (json_int_t)number(part, "sequence"),
                            (json_int_t)(number(part, "context_length") -
                                         (long long)json_array_size(json_object_get(part, "slots")) + (long long)j));
    snprintf(slot, sizeof slot, "%lld", theirs);
    const json_t *known = json_object_get(rows, slot);
    int free = !known || json_equal(known, row);
    json_object_set_new(rows, slot, row);
    return free;
}

static int free_slots(struct slots *s, const json_t *pass, const json_t *theirs)
{
    const json_t *part;
    size_t i, at = 0;
    int agree = 1;
    json_array_foreach(json_object_get(pass, "parts"), i, part) {
        json_t *rows = rows_of(s, pass, cache_of(pass), number(part, "sequence"));
        for (size_t j = 0; j < json_array_size(json_object_get(part, "slots")); j++, at++)
            if (json_integer_value(json_array_get(theirs, at)) >= 0)
                agree &= take(rows, part, j, json_integer_value(json_array_get(theirs, at)));
    }
    return agree;
}

int slots_agree(struct slots *s, const json_t *pass, const json_t *theirs)
{
    if (json_array_size(theirs) != json_array_size(json_object_get(pass, "slots")))
        return 0;
    return json_object_get(pass, "parts") ? free_slots(s, pass, theirs) : same_slots(s, pass, theirs);
}
