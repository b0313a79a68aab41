/* tools/bench/forced.h -- decoding with forced acceptance (each draft is replaced by the correct token with a given
 * probability), and counting the bytes that a run reads. */
#ifndef VB_BENCH_FORCED_H
#define VB_BENCH_FORCED_H

#include "engine/verbatim.h"

/* The instructions that add products. Each has a peak speed, which `bench` measures. */
enum bench_loop { LOOP_FMA, LOOP_BF16, LOOP_INT8, LOOP_INT4, BENCH_LOOPS };

/* `bytes`: the least number of bytes that a run must read. `flops`: its number of operations. A product and its
 * addition are two operations. `of_loop`: the same operations, divided among the instructions that do them. If an item
 * measures the machine itself, `bytes` is the number of bytes that it reads or, for arithmetic, the number of
 * operations. `gpu_bytes`: those of the bytes that are read from a GPU's memory. */
struct bench_work {
    double bytes, gpu_bytes, flops, of_loop[BENCH_LOOPS];
};

/* Counts the work of all passes after the prompt, both in the target and in MTP modules. work.c receives the
 * passes with taps. `vocab` is the list of tokens from which MTP modules draft, or NULL. */
struct bench_counter;
struct bench_counter *bench_counter_open(const vb_model *m, const vb_draft_vocab *vocab, size_t prompt);
void bench_count(void *counter, const vb_tap *tap); /* a vb_tap_callback */
struct bench_work bench_counter_close(struct bench_counter *counter);

/* Replaces the session's drafter. The new drafter runs the old one, and then replaces each token of the draft. With
 * probability `force` it writes the right token, which is in `plain`; otherwise it writes a wrong one. plain must stay
 * valid while the session is open. */
void bench_force(vb_session *s, const int32_t *plain, size_t count, double force);

#endif
