/* engine/pass/tap.h -- reports named intermediate values to a callback when they are computed (vb_tap in
 * engine/verbatim.h).
 *
 * Without a callback, each value costs one branch. */
#ifndef VB_TAP_H
#define VB_TAP_H

#include "engine/pass/pass.h"

struct tapper {
    struct op_probe probe; /* receives intermediate values from operators. It is the first member, so it has the same
                              address as the tapper */
    vb_tap_callback callback;
    void *context;
    vb_tap_row *told;       /* [max_rows]: the rows in the form in which the callback receives them */
    uint64_t pass;
    int32_t module;         /* in a pass of an MTP module: its layer number; else -1 */
    int32_t depth;          /* as in vb_tap */
    const struct pass *running; /* the present pass: what operators report is of its present layer */
};

/* Returns NULL if there is no memory. */
struct tapper *tapper_open(vb_tap_callback callback, void *context, int scores, size_t max_rows, const vb_allocator *a);
void tapper_close(struct tapper *t, const vb_allocator *a);

/* Begins a pass. */
void tapper_pass(struct tapper *t, const struct pass *p);

/* Reports a value of all rows of the pass. `array` is the value's array (step_array). */
void tapper_value(struct tapper *t, const struct pass *p, enum pass_value v, const float *array);
/* Reports logits [count, vocab_size] of rows [first, first + count) of the newest pass. */
void tapper_logits(struct tapper *t, const float *logits, size_t vocab_size, size_t first, size_t count);

#endif
