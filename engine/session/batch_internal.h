/* engine/session/batch_internal.h -- a batch and its requests. batch.c runs the requests, and batch_admit.c admits
 * them. */
#ifndef VB_BATCH_INTERNAL_H
#define VB_BATCH_INTERNAL_H

#include "numbers/numbers.h"
#include "engine/session/decode.h"
#include "engine/session/kept.h"

#define MOST_SEQUENCES 64

struct batch_request {
    struct batch_request *next;
    int64_t id;               /* requests are numbered in the order in which they were added */
    vb_session_options session;
    vb_request asked;         /* its pointers are the program's */
    vb_generate_options generate;
    int32_t *prompt;          /* [asked.count] */
    struct run run;           /* run.session is asked.session if the caller gave one. Otherwise run.session is NULL
                                 until the request is first admitted */
    vb_result result;
    int paused;
    int begun;                /* it was admitted before */
};

/* The automatic lengths of all sequences with this draft method and this largest K. */
struct batch_length {
    struct batch_length *next;
    const struct drafter_type *type;
    int most;
    struct draft_length length;
};

struct vb_batch {
    const struct vb_model *model;
    vb_batch_options options;
    vb_session_options session; /* for requests without options of their own */
    struct pass pass;
    struct kvpool pool;
    struct row *rows;         /* [pass.w.max_rows] */
    struct batch_request *waiting;  /* by id */
    struct batch_request *running[MOST_SEQUENCES]; /* by id */
    struct kept kept;
    struct batch_length *lengths;
    size_t num_running, most_running, context;
    size_t decoding_rows;     /* number of rows of a pass that are reserved for decoding sequences; the remaining rows
                                 are for prompts */
    size_t round_rows;        /* largest number of rows that one decoding sequence has in a round */
    int64_t next_id;
    vb_batch_state state;
};

/* batch_wait inserts a request into the queue b->waiting. batch_leave removes request i from b->running. Neither
 * function changes the state of the request itself. */
void batch_wait(vb_batch *b, struct batch_request *r);
void batch_leave(vb_batch *b, size_t i);
/* Calls the request's `done`, and frees the request. The caller must have removed the request from b->waiting or
 * b->running. */
void batch_end(vb_batch *b, struct batch_request *r);

/* If the session has automatic draft lengths, batch_share_length lets it share those of the batch, unless there is no
 * memory for them. batch_own_length gives the session lengths of its own again. */
void batch_share_length(vb_batch *b, struct vb_session *s);
void batch_own_length(struct vb_session *s);

/* Admits requests from the front of the queue as long as there is room for them. */
void batch_admit(vb_batch *b);
/* Preempts the running request i: frees its cache rows, and moves it from b->running to the queue b->waiting, which is
 * ordered by id. */
void batch_preempt(vb_batch *b, size_t i);
/* Frees slots until at least `slots` slots are free. For this it first closes kept sessions, and then preempts paused
 * requests. It does not close or preempt the session `but`, which may be NULL. It does not preempt a request whose
 * session the caller gave (vb_request.session). Returns whether `slots` slots are free. The indices of the remaining
 * requests in b->running may change. */
int batch_free_idle(vb_batch *b, size_t slots, const struct vb_session *but);

#endif
