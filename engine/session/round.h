/* engine/session/round.h -- a round: one pass of the target that many sequences share, and what belongs to it before and after. */
#ifndef VB_SESSION_ROUND_H
#define VB_SESSION_ROUND_H

#include "engine/session/decode.h"

struct round {
    struct workspace *w;
    struct row *rows;  /* [w->max_rows] */
    struct run **runs; /* their rows, and those that choose, fit: session_most_rows of run->chunk, and 1 + max_drafts */
    size_t count;
    int by_onednn;  /* a chunk of prefill onednn, of the only run */
    size_t S;       /* told afterwards: rows of the target's pass, */
    double seconds; /* and how long it took */
};

/* The drafts of each run, the target's pass over the rows of all, then run by run what is chosen. A run whose rows choose
 * nothing is finished and has its error; the pass's own failure is returned. Between fpenv_enter and fpenv_leave. */
int round_run(struct round *r, vb_error *err);

#endif
