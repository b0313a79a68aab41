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
    size_t chunk;      /* largest number of prompt rows of this run in one pass */
    vb_error error;    /* the error of the newest round; its code is VB_OK if there was none */
    struct plan plan;
    int proposed;    /* nonzero: the round's drafts have been proposed, or the plan has no drafts */
    double drafting; /* seconds that the drafter has worked in this round */
    size_t chose;    /* number of tokens that the newest round chose */
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

/* If prompt_row is not NULL, it is called for every prompt token except the last one. Returns nonzero until all these
 * calls have been made. */
static inline int run_tells(const struct run *run) { return run->prompt_row && run->told + 1 < run->prompt; }
/* Calls prompt_row for each prompt token that the newest pass in pass has computed and for which prompt_row has not
 * been called before. If prompt_row returns a value other than 0, the run is finished. After the last call, the run is
 * also finished if it may generate no token, because max_tokens is 0 or the context is full. A row of logits that is
 * not finite also finishes the run, and run->error contains the error. */
void run_tell_prompt(struct run *run, struct pass *pass);

/* Verifies the drafts of run->plan. Row 0 of the plan's logits follows the last committed token, and row i follows
 * draft i. Row i is used only if drafts 1..i were accepted. In the order of the rows, the function chooses one token
 * per row with acceptance_choose. It stops when a draft is rejected or the run ends. It also stops before a row that is
 * not finite. In this case it returns VB_NOT_FINITE, and the message names the index of the token and the first layer
 * whose output was not finite. The run's callback is called after each chosen token. `chosen` has room for 1 +
 * run->plan.drafts tokens. The function sets *n to the number of chosen tokens, even if it returns an error. */
int decode_choose(struct run *run, const struct pass *pass, int32_t *chosen, size_t *n, vb_error *err);

#endif
