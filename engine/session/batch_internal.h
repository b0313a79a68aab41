/* engine/session/batch_internal.h -- a batch and its requests, which batch.c runs and batch_admit.c admits. */
#ifndef VB_BATCH_INTERNAL_H
#define VB_BATCH_INTERNAL_H

#include "engine/base/numbers.h"
#include "engine/session/decode.h"
#include "engine/session/kept.h"

#define MOST_SEQUENCES 64

struct batch_request {
    struct batch_request *next;
    int64_t id;               /* ascending: who is older */
    vb_session_options session;
    vb_request asked;
    int32_t *prompt;          /* [asked.count] */
    struct run run;           /* run.session is NULL before it is admitted for the first time; asked.session from the start */
    vb_result result;
    int paused;
    int begun;                /* it was admitted before */
};

struct vb_batch {
    const struct model *model;
    vb_batch_options options;
    struct workspace work;
    struct kvpool pool;
    struct row *rows;         /* [work.max_rows] */
    struct batch_request *waiting;  /* by id */
    struct batch_request *running[MOST_SEQUENCES]; /* by id */
    struct kept kept;
    size_t num_running, most_running, context;
    size_t decoding_rows;     /* of a pass: the rest is for prompts */
    size_t round_rows;        /* of a sequence, at most */
    int64_t next_id;
    vb_batch_state state;
};

/* A request joins those that wait, or leaves those that run; nothing else happens to it. */
void batch_wait(vb_batch *b, struct batch_request *r);
void batch_leave(vb_batch *b, size_t i);
/* Calls the request's `done`, and frees it. It is neither waiting nor running any more. */
void batch_end(vb_batch *b, struct batch_request *r);

/* Admits requests from the front of the line as long as there is room for them. */
void batch_admit(vb_batch *b);
/* The running sequence i gives its rows back and waits, in the order of ids. */
void batch_preempt(vb_batch *b, size_t i);
/* Frees slots until `slots` are free: kept sequences are closed, paused ones preempted, all but `but` (may be NULL). Returns whether as
 * many are free. The places of the others in b->running may change. */
int batch_free_idle(vb_batch *b, size_t slots, const struct vb_session *but);

#endif
