/* engine/session/decode.h -- chooses tokens from the logits of a pass, accepts or rejects drafts, and ends runs. */
#ifndef VB_DECODE_LOOP_H
#define VB_DECODE_LOOP_H

#include "engine/session/session.h"
#include "engine/choose/stop.h"

/* One call of vb_generate for one session; in a batch, one request. */
struct run {
    struct vb_session *session;
    const vb_generate_options *options;
    vb_result *result;
    size_t chunk;      /* the most rows of the run's prompt that a pass may have */
    vb_error error;    /* the error of the newest round; its code is VB_OK if there was none */
    struct plan plan;
    int proposed;    /* nonzero: the round's drafts have been proposed, or the plan wants none */
    double drafting; /* seconds that the drafter has worked in this round */
    int finished;
    struct stop *stop; /* NULL if there are no stop strings */
    size_t text;       /* bytes of text that the run has generated */
    vb_row_callback prompt_row; /* called for the logits of the prompt (vb_request.prompt_row); may be NULL */
    void *prompt_context;
    size_t prompt;     /* number of prompt tokens */
    size_t told;       /* number of prompt tokens for which prompt_row has been called */
};

/* run_open allocates the run's stop strings, and run_close frees them. The session may be closed before run_close. */
int run_open(struct run *run, vb_error *err);
void run_close(struct run *run, const vb_allocator *a);

/* Returns nonzero if prompt_row has not yet been called for all prompt tokens except the last. */
static inline int run_tells(const struct run *run) { return run->prompt_row && run->told + 1 < run->prompt; }
/* Calls prompt_row for each prompt token that the newest pass in w has computed and for which prompt_row has not been
 * called before. This may finish the run. If logits are not finite, it finishes the run with an error in run->error. */
void run_tell_prompt(struct run *run, struct workspace *w);

/* Verifies the drafts of run->plan. Row 0 of the plan's logits follows the last committed token, and row i follows
 * draft i. Row i is used only if drafts 1..i were accepted. For one row after the other, the function chooses a token
 * with acceptance_choose. It stops when a draft is rejected, when the run ends, or when a needed row is not finite. If
 * a needed row is not finite, it returns VB_NOT_FINITE, and the message names the index of the token and the first
 * layer whose output was not finite. The callback receives each token when it is chosen. `chosen` has room for 1 +
 * run->plan.drafts tokens. The function sets *n to the number of chosen tokens, even if it returns an error. */
int decode_choose(struct run *run, const struct workspace *w, int32_t *chosen, size_t *n, vb_error *err);

#endif
