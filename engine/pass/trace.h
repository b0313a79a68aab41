/* engine/pass/trace.h -- reports the events of each decoding round to a callback: passes, choices of tokens, removed
 * cache rows.
 *
 * vb_trace in engine/verbatim.h describes the events. Each session has a tracer of its own, or NULL if no callback was
 * set. */
#ifndef VB_TRACE_H
#define VB_TRACE_H

#include "engine/base/support.h"

struct row;

struct tracer {
    vb_trace_callback callback;
    void *context;
    int32_t sequence;
    uint64_t round;
    vb_tap_row *told; /* [room]: the rows of a pass in the form in which the callback receives them */
    size_t room;      /* largest number of rows in a pass */
};

/* Returns NULL if there is no memory. */
struct tracer *tracer_open(vb_trace_callback callback, void *context, int32_t sequence, size_t room,
                           const vb_allocator *a);
void tracer_close(struct tracer *t, const vb_allocator *a);

/* Converts a row for callbacks. */
vb_tap_row row_told(const struct row *row);

/* Each of these functions reports one event to the callback. If t is NULL, these functions do nothing. depth is the MTP
 * depth, or -1 for the target. */
void trace_pass(struct tracer *t, int depth, const struct row *rows, size_t count);
/* Reports the rows of one sequence in a pass that it shares with other sequences. `first` is the place of rows[0] among
 * all rows of the pass. */
void trace_part_of_pass(struct tracer *t, int depth, size_t first, const struct row *rows, size_t count);
void trace_choose(struct tracer *t, int depth, size_t row, int32_t token, int draft);
void trace_hidden(struct tracer *t, size_t first, size_t count);
void trace_cut(struct tracer *t, int depth, size_t first, size_t count);
void trace_round_ends(struct tracer *t);

#endif
