/* engine/pass/trace.h -- the bookkeeping of a round, told to the caller as it happens (vb_trace in verbatim.h). A tracer is one
 * session's; NULL where nobody listens. */
#ifndef VB_TRACE_H
#define VB_TRACE_H

#include "engine/base/support.h"

struct row;

struct tracer {
    vb_trace_callback callback;
    void *context;
    int32_t sequence;
    uint64_t round;
    vb_tap_row *told; /* [room] */
    size_t room;      /* rows of the largest pass */
};

/* NULL when memory ran out. */
struct tracer *tracer_open(vb_trace_callback callback, void *context, int32_t sequence, size_t room, const vb_allocator *a);
void tracer_close(struct tracer *t, const vb_allocator *a);

/* A row as the caller sees it. */
vb_tap_row row_told(const struct row *row);

/* t may be NULL. depth: of MTP, or -1 for the target. */
void trace_pass(struct tracer *t, int depth, const struct row *rows, size_t count);
void trace_choose(struct tracer *t, int depth, size_t row, int32_t token, int draft);
void trace_hidden(struct tracer *t, size_t first, size_t count);
void trace_cut(struct tracer *t, int depth, size_t first, size_t count);
void trace_round_ends(struct tracer *t);

#endif
