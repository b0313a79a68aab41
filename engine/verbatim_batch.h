/* engine/verbatim_batch.h -- computing many sequences together (continuous batching); a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h. */
#ifndef VERBATIM_BATCH_H
#define VERBATIM_BATCH_H

/* A batch computes many requests together. Each request has a prompt that it continues. A request is admitted when there is
 * room, shares passes with the other running requests, and leaves when it is finished.
 *
 * Each request gets the same bits as vb_generate computes for it alone. The bits do not depend on the other requests, on
 * the time of admission, or on preemption, which frees the cache rows of a request for a while. Only one thread at a time
 * may use a batch. */
typedef struct vb_batch vb_batch;

typedef struct vb_batch_options {
    /* Options for all requests. `context` is the number of tokens of the longest request, and `prefill_chunk` the number of
     * prompt tokens in a pass. Taps, traces, and prefill other than "contract" are refused. The acceptance modes rejection
     * and relaxed do not work with the draft methods eagle-reroll and eagle-keep. */
    vb_session_options session;
    int32_t max_sequences; /* largest number of sequences in a pass, 1 to 64; 0: 8 */
    int64_t cache_tokens;  /* total size of the cache in tokens, shared by all sequences; 0: max_sequences * (context + 16); with
                              trees of drafts, 65 in place of 16. When it is full, the newest sequence is preempted: its cache
                              rows are freed and are computed again later */
    int32_t keep_finished; /* number of finished sequences, 0 to 64, whose cache rows stay for later requests that begin with the same
                              tokens. As soon as rows are needed, the least recently used sequence is dropped. 0: none */
    int keep_apart;        /* 1: sequences that begin with the same tokens do not share cache rows */
} vb_batch_options;

/* Opens a batch without requests. The model, and what `options` point to, must outlive the batch. `options` may be NULL. */
int vb_batch_open(vb_batch **out, const vb_model *model, const vb_batch_options *options, vb_error *err);
void vb_batch_close(vb_batch *batch); /* drops requests that are not finished, without calling `done` for them */

/* How a request ended. The pointers are valid only during the call of `done`. */
typedef struct vb_request_end {
    int64_t id;
    int code;                /* VB_OK, or the error code */
    const vb_error *error;   /* NULL if there was no error */
    const int32_t *tokens;   /* [count]: prompt and output */
    size_t prompt, count;    /* number of prompt tokens; number of all tokens */
    const vb_result *result;
} vb_request_end;

typedef struct vb_request {
    const int32_t *tokens; /* the prompt; vb_batch_add copies it */
    size_t count;
    const vb_sampling *sampling; /* NULL: as in the options of the batch. Must stay valid until the request ends */
    /* NULL: as in the options of the batch. vb_batch_add copies the struct. What the struct points to must stay valid until the
     * request ends; `done` may close the draft model. */
    const vb_drafting *drafting;
    /* NULL, or a session of the same model that the request continues, with the session's own options and cache. With a
     * session, all fields above must be zero. The session must not be used otherwise until `done` is called, which may
     * close it. The session's context may not be larger than the batch's, it may not have taps, and none of its prompt may
     * be left to compute with prefill "onednn". */
    vb_session *session;
    vb_generate_options options; /* its callback may add, pause and resume requests, but must not cancel a request or call vb_batch_step */
    /* NULL, or called for the logits of each prompt token but the last, once per token, in ascending index and before the first
     * token is chosen; `depth` is -1 (see vb_row_callback). Such a request takes over no cache rows from other sequences. Logits
     * that are not finite end the request with VB_NOT_FINITE. A result other than 0 ends it with VB_FINISH_STOPPED. With
     * max_tokens 0 the request ends after the last of these calls. May not be combined with `session`. */
    vb_row_callback prompt_row;
    /* Called once when the request ends, by vb_batch_step or vb_batch_cancel. It may add requests. May be NULL. */
    void (*done)(void *context, const vb_request_end *end);
    void *context;               /* of prompt_row and done */
} vb_request;

/* Adds a request to the queue, and sets *id to its number: 0, 1, 2 and so on. `id` may be NULL. A token outside the
 * vocabulary, or a request that is too long for the context or the cache, is VB_BAD_ARGUMENT and is not added. Other
 * mistakes are found later, and `done` reports them. */
int vb_batch_add(vb_batch *batch, const vb_request *request, int64_t *id, vb_error *err);
/* Ends a request at once with VB_FINISH_STOPPED. Returns 1, or 0 if no waiting or running request has this number. */
int vb_batch_cancel(vb_batch *batch, int64_t id);
/* A paused request takes part in no pass until it is resumed. Meanwhile it may lose its cache rows to other requests, older or
 * newer. The bits of its output do not change. Both functions return 1, or 0 if no waiting or running request has this number. */
int vb_batch_pause(vb_batch *batch, int64_t id);
int vb_batch_resume(vb_batch *batch, int64_t id);
/* Computes one pass for the running requests, and sets *left to the number of requests that wait or run and are not paused.
 *
 * The result is an error only if the pass itself was given up, by vb_session_options.stop (VB_STOPPED). No request ends then or
 * loses a token, and the next step computes the same rows again. An error of a single request (a mask that failed, logits that
 * are not finite, no memory) ends this request, and `done` reports it; the other requests go on. */
int vb_batch_step(vb_batch *batch, size_t *left, vb_error *err);
/* Calls vb_batch_step until a step fails or no request is left, except paused ones. */
int vb_batch_run(vb_batch *batch, vb_error *err);

typedef struct vb_batch_state {
    size_t waiting, running, done; /* number of requests */
    size_t paused;        /* number of paused requests among those that wait or run */
    size_t kept;          /* number of finished sequences whose cache rows are kept */
    size_t passes;
    size_t preemptions;   /* how often a sequence had to free its cache rows */
    size_t shared_tokens; /* tokens that were not computed, because another sequence with the same beginning had their cache rows */
    /* The size of the cache in tokens; how much is in use now; the most that was in use, including rows reserved for
     * passes. */
    size_t cache_tokens, cache_tokens_used, most_cache_tokens_used;
    size_t cache_bytes, pass_bytes; /* memory of the cache; working memory of passes */
    size_t draft_bytes;   /* memory of the draft methods of all running and kept sequences */
} vb_batch_state;
void vb_batch_look(const vb_batch *batch, vb_batch_state *out);

#endif
