/* engine/session/decode.h -- choosing tokens from the rows of a pass: which drafts stand, and where a run ends. */
#ifndef VB_DECODE_LOOP_H
#define VB_DECODE_LOOP_H

#include "engine/session/session.h"
#include "engine/choose/stop.h"

/* One session's run of vb_generate. */
struct run {
    struct vb_session *session;
    const vb_generate_options *options;
    vb_result *result;
    size_t chunk;      /* rows of a prompt that it may bring to a pass */
    vb_error error;    /* code VB_OK: none; of the newest round */
    struct plan plan;
    double drafting; /* seconds of the round that the drafter took */
    int finished;
    struct stop *stop; /* NULL: no stop strings */
    size_t text;       /* bytes of the run's text */
};

/* Opens and closes what a run needs of its own; when it is closed the session may be gone. */
int run_open(struct run *run, vb_error *err);
void run_close(struct run *run, const vb_allocator *a);

/* Verification. Row i of the plan (the last committed token, then the drafts) holds the logits after draft i; it counts only
 * if drafts 1..i are the tokens chosen before it. Chooses from row to row, as engine/choose/acceptance.h says, until a draft does not
 * stand, the run ends, or a row that would choose is not finite (VB_NOT_FINITE, naming the token's index and the first layer). Tokens
 * go to the callback as they are chosen. chosen has room for 1 + drafts tokens; *n are chosen, also on an error. */
int decode_choose(struct run *run, const struct workspace *w, int32_t *chosen, size_t *n, vb_error *err);

#endif
