/* engine/verbatim_batch.h -- computing many sequences together (continuous batching); a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_BATCH_H
#define VERBATIM_BATCH_H

/* A batch computes many requests together. Each request has a prompt, and the batch generates tokens after it. A
 * request waits in a queue until there is room for it. Then it runs: its rows share passes with the rows of other
 * running requests. It leaves the batch when it is finished.
 *
 * Each request gets the same bits that vb_generate computes for this request alone. The bits do not depend on the other
 * requests, on the time at which the request starts to run, or on preemption. Preemption frees the cache rows of a
 * running request, and the batch computes these rows again later. Only one thread at a time may use a batch. */
typedef struct vb_batch vb_batch;

typedef struct vb_batch_options {
    size_t size;           /* sizeof(vb_batch_options), or 0 */
    /* Options for all requests, which vb_batch_open copies; NULL: the defaults. `context` is the size of the longest
     * request in tokens, and `prefill_chunk` the number of prompt tokens in a pass. Options with taps or with `prefill`
     * "onednn" or "cublas" are refused. A trace reports the events of all requests, with the number of the request as
     * vb_trace.sequence. With `prefill` "expanded", requests share the rows of a common beginning only as far as it
     * belongs to both prompts. Requests with acceptance mode rejection or relaxed are refused if the draft method is
     * eagle-reroll or eagle-keep. */
    const vb_session_options *session;
    int32_t max_sequences; /* largest number of sequences in a pass, 1 to 64; 0: 8 */
    int64_t cache_tokens;  /* number of tokens for which the cache has room; all sequences share this cache. 0:
                              max_sequences * (context + 16). If drafts form trees, 0 means max_sequences * (context +
                              65). When the cache is full, the newest sequence is preempted: its cache rows are freed
                              and are computed again later */
    int32_t keep_finished; /* largest number of finished sequences, 0 to 64, whose cache rows are kept for later
                              requests that begin with the same tokens. When the cache has no free rows, the least
                              recently used of these sequences is dropped */
    int keep_apart;        /* 1: sequences that begin with the same tokens do not share cache rows */
} vb_batch_options;

/* Opens a batch without requests. Close the batch before the model. The objects at which pointers in `options` point
 * must stay valid until the batch is closed. `options` may be NULL. */
int vb_batch_open(vb_batch **out, const vb_model *model, const vb_batch_options *options, vb_error *err);
void vb_batch_close(vb_batch *batch); /* also closes requests that are not finished, without a call of their `done` */

/* How a request ended. The pointers are valid only during the call of `done`. */
typedef struct vb_request_end {
    int64_t id;
    int code;                /* VB_OK, or the code of the error that ended the request */
    const vb_error *error;   /* NULL if there was no error */
    const int32_t *tokens;   /* [count]: prompt and output */
    size_t prompt, count;    /* number of prompt tokens; number of all tokens */
    const vb_result *result;
    vb_routes routes;        /* with record_routes or record_kept: those of all tokens whose rows were computed; else
                                zeros */
} vb_request_end;

typedef struct vb_request {
    size_t size;           /* sizeof(vb_request), or 0 */
    const int32_t *tokens; /* the prompt; vb_batch_add copies it */
    size_t count;
    const vb_sampling *sampling; /* NULL: the batch's options are used. Must stay valid until the request ends */
    /* NULL: the batch's options are used. vb_batch_add copies the struct. The objects at which its pointers point must
     * stay valid until the request ends. `done` may close the draft model. */
    const vb_drafting *drafting;
    /* NULL, or a session of the same model. The request then continues this session and uses the session's own options
     * and cache. If `session` is not NULL, the fields tokens, count, sampling, drafting and prompt_row must be zero.
     * The caller must not use the session until `done` is called. `done` may close the session. The session's context
     * must not be larger than the batch's. The session must not have taps. If the session's option prefill is "onednn",
     * or if it is "expanded" and the batch's is not, the session's prompt must have been computed before the request is
     * added. */
    vb_session *session;
    const vb_routes *routes; /* forced routes of this request (vb_session_options.routes), which vb_batch_add copies;
                                NULL: the batch's. Requests share the rows of a common beginning only as far as their
                                routes are the same. Must be NULL if `session` is not NULL */
    /* Copied by vb_batch_add; NULL: the defaults. options->callback may add, pause and resume requests, but must not
     * cancel a request or call vb_batch_step */
    const vb_generate_options *options;
    /* NULL, or a callback that receives the logits of each prompt token except the last (see vb_row_callback; `depth`
     * is -1). The callback is called once per prompt token, in ascending order of index, before the first token is
     * chosen. A request with prompt_row does not share cache rows that other sequences have computed. If a logit of a
     * prompt token is not finite, the request ends with VB_NOT_FINITE. If the callback returns a value other than 0,
     * the request ends with VB_FINISH_STOPPED. If max_tokens is 0, the request ends after the last call of prompt_row.
     * prompt_row must be NULL if `session` is not NULL. */
    vb_row_callback prompt_row;
    /* Called once, by vb_batch_step or vb_batch_cancel, when the request ends. `done` may add requests. `done` may be
     * NULL. */
    void (*done)(void *context, const vb_request_end *end);
    void *context;               /* passed to prompt_row and done */
} vb_request;

/* Adds a request to the queue, and sets *id to its number: 0, 1, 2 and so on. `id` may be NULL. Returns VB_BAD_ARGUMENT
 * if the prompt is empty, if a token is outside the vocabulary, if the request is too long for the context or the
 * cache, or if `session` does not fit (see vb_request.session). Returns VB_NO_MEMORY if there is no memory. After these
 * errors the request is not added. Errors that are found later are reported to `done`. */
int vb_batch_add(vb_batch *batch, const vb_request *request, int64_t *id, vb_error *err);
/* Ends a request at once with VB_FINISH_STOPPED. Returns 1, or 0 if no waiting or running request has this number. */
int vb_batch_cancel(vb_batch *batch, int64_t id);
/* vb_batch_pause pauses a request, and vb_batch_resume ends the pause. A paused request takes part in no pass. If
 * another request needs memory, the cache rows of a paused request may be freed. The bits of its output do not change.
 * Both functions return 1, or 0 if no waiting or running request has this number. */
int vb_batch_pause(vb_batch *batch, int64_t id);
int vb_batch_resume(vb_batch *batch, int64_t id);
/* Computes one pass for the running requests, and sets *left to the number of requests that wait or run and are not
 * paused.
 *
 * Returns VB_STOPPED if vb_session_options.stop has cancelled the pass. The function returns no other error. After
 * VB_STOPPED no request has ended or lost a token, and the next step computes the same rows again. An error of one
 * request ends only this request: its `done` receives the error, and the other requests continue. Examples are a mask
 * callback that fails, logits that are not finite, and too little memory. */
int vb_batch_step(vb_batch *batch, size_t *left, vb_error *err);
/* Calls vb_batch_step until a step fails, or until all requests that are not finished are paused. */
int vb_batch_run(vb_batch *batch, vb_error *err);

typedef struct vb_batch_state {
    size_t waiting, running, done; /* number of requests */
    size_t paused;        /* number of paused requests among those that wait or run */
    size_t kept;          /* number of finished sequences whose cache rows are kept */
    size_t passes;
    size_t preemptions;   /* how often a sequence was preempted */
    size_t shared_tokens; /* number of tokens that were not computed, because their cache rows were shared with another
                             sequence that begins with the same tokens */
    /* cache_tokens: number of rows in the cache, one for each token. cache_tokens_used: number of cache rows in use
     * now. most_cache_tokens_used: largest number of cache rows that were ever in use, including rows that were
     * reserved for passes. */
    size_t cache_tokens, cache_tokens_used, most_cache_tokens_used;
    size_t cache_bytes, pass_bytes; /* bytes of memory for the cache; bytes of working memory for passes */
    size_t draft_bytes;   /* bytes of memory that the draft methods of all running and kept sequences use */
} vb_batch_state;
void vb_batch_look_sized(const vb_batch *batch, vb_batch_state *out, size_t size);
static inline void vb_batch_look(const vb_batch *batch, vb_batch_state *out)
{
    vb_batch_look_sized(batch, out, sizeof *out);
}

#endif
