/* engine/session/round.h -- a decoding round: makes drafts, runs one pass of the target, and chooses tokens.
 *
 * Several sequences can share the pass. */
#ifndef VB_SESSION_ROUND_H
#define VB_SESSION_ROUND_H

#include "engine/session/decode.h"

struct round {
    struct pass *pass;
    struct row *rows;  /* [pass->w.max_rows] */
    struct run **runs; /* [count]. The caller makes sure that pass has room for the rows of all runs together
                          (session_most_rows), and for all rows of logits that the runs need */
    size_t count;
    int by_library; /* nonzero: the pass is a chunk of prefill onednn or cublas, and there is only one run */
    size_t S;       /* result: number of rows of the target's pass */
    double seconds; /* result: duration of the target's pass */
};

/* Chooses the automatic draft lengths of the next round, in which these runs decode. There is room for `rows` rows of
 * logits. `mixed` is nonzero if the pass will also have rows of prompts. */
void round_choose_lengths(struct run **runs, size_t count, size_t rows, int mixed);

/* Runs a round. First makes the drafts of each run, then computes one pass of the target over the rows of all runs, and
 * then chooses tokens for one run after the other. If a row of logits that a run needs is not finite, this run is
 * finished, and its run->error contains the error. The function returns an error only if the whole pass has failed.
 * Call round_run between fpenv_enter and fpenv_leave (simd/fpenv.h). */
int round_run(struct round *r, vb_error *err);

#endif
