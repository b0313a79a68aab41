/* tools/bench/forced.h -- decoding with drafts that are right as often as asked, and the bytes that it reads. */
#ifndef VB_BENCH_FORCED_H
#define VB_BENCH_FORCED_H

#include "engine/verbatim.h"

/* Bytes that a run reads at least, and floating-point operations; of a machine's line what it did, in bytes. */
struct bench_work {
    double bytes, flops;
};

/* What all passes of a run behind its prompt read and do, the target's and the modules', counted from taps (work.c). */
struct bench_counter;
struct bench_counter *bench_counter_open(const vb_model *m, size_t prompt);
void bench_count(void *counter, const vb_tap *tap); /* a vb_tap_callback */
struct bench_work bench_counter_close(struct bench_counter *counter);

/* Replaces the session's drafter by one that drafts with it and then says what `plain` has, with probability `force` for
 * each token, else another token. plain stays the caller's. */
void bench_force(vb_session *s, const int32_t *plain, size_t count, double force);

#endif
