/* engine/pass/trace.c -- converts the events of a round and passes them to the trace callback. */
#include "engine/pass/trace.h"

#include <assert.h>

#include "engine/pass/forward.h"

struct tracer *tracer_open(vb_trace_callback callback, void *context, int32_t sequence, size_t room,
                           const vb_allocator *a)
{
    struct tracer *t = vb_alloc(a, 1, sizeof *t);
    vb_tap_row *told = vb_alloc(a, room, sizeof *told);
    if (!t || !told) {
        vb_free(a, t);
        vb_free(a, told);
        return NULL;
    }
    *t = (struct tracer){.callback = callback, .context = context, .sequence = sequence, .told = told, .room = room};
    return t;
}

void tracer_close(struct tracer *t, const vb_allocator *a)
{
    if (t)
        vb_free(a, t->told);
    vb_free(a, t);
}

vb_tap_row row_told(const struct row *row)
{
    return (vb_tap_row){.sequence = row->cache->sequence, .token = row->token,
                        .index = row->index + (int32_t)row->cache->base + row->cache->first_row,
                        .position = row->position, .slot = row->slot, .draft = row->draft, .hidden_of = row->hidden_of,
                        .hidden_depth = row->hidden_depth, .parent = row->parent};
}

static void tell(struct tracer *t, vb_trace event)
{
    event.sequence = t->sequence;
    event.round = t->round;
    t->callback(t->context, &event);
}

void trace_part_of_pass(struct tracer *t, int depth, size_t first, const struct row *rows, size_t count)
{
    if (!t)
        return;
    assert(count <= t->room);
    for (size_t i = 0; i < count; i++)
        t->told[i] = row_told(&rows[i]);
    tell(t, (vb_trace){.kind = VB_TRACE_PASS, .depth = depth, .first = first, .count = count, .row = t->told});
}

void trace_pass(struct tracer *t, int depth, const struct row *rows, size_t count)
{
    trace_part_of_pass(t, depth, 0, rows, count);
}

void trace_choose(struct tracer *t, int depth, size_t row, int32_t token, int draft)
{
    if (t)
        tell(t, (vb_trace){.kind = VB_TRACE_CHOOSE, .depth = depth, .first = row, .count = 1, .token = token,
                           .draft = draft});
}

void trace_hidden(struct tracer *t, size_t first, size_t count)
{
    if (t && count)
        tell(t, (vb_trace){.kind = VB_TRACE_HIDDEN, .depth = -1, .first = first, .count = count});
}

void trace_cut(struct tracer *t, int depth, size_t first, size_t count)
{
    if (t)
        tell(t, (vb_trace){.kind = VB_TRACE_CUT, .depth = depth, .first = first, .count = count});
}

void trace_round_ends(struct tracer *t)
{
    if (t)
        t->round++;
}
