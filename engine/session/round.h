/* engine/session/round.h -- a decoding round: makes drafts, runs one pass of the target, and chooses tokens.
 *
 * Several sequences can share the pass. */
#ifndef VB_SESSION_ROUND_H
#define VB_SESSION_ROUND_H

#include "engine/session/decode.h"

struct round {
    struct workspace *w;
    struct row *rows;  /* [w->max_rows] */
    struct run **runs; /* the caller makes sure that all their rows (session_most_rows) and rows of logits fit into w */
    size_t count;
    int by_onednn;  /* nonzero: the pass is a chunk of prefill onednn, and there is only one run */
    size_t S;       /* result: rows of the target's pass */
    double seconds; /* result: seconds of the target's pass */
};

/* Runs a round. It makes the drafts of each run, then the target's pass over the rows of all runs, and then chooses
 * tokens run by run. If a row of logits that a run needs is not finite, the run becomes finished, and run->error has
 * the error. An error of the whole pass is returned. Call it between fpenv_enter and fpenv_leave (simd/fpenv.h). */
int round_run(struct round *r, vb_error *err);

#endif
