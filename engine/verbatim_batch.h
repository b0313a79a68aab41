/* engine/verbatim_batch.h -- many sequences: continuous batching; a part of the public interface.
 * verbatim.h includes this file; it cannot be used without it. */
#ifndef VERBATIM_BATCH_H
#define VERBATIM_BATCH_H

/* Requests are admitted as there is room, share passes with those that run, and leave when they are done. Which requests a
 * request shares its passes with, when it is admitted, and whether it has to give its cache back for a while reaches none of
 * its bits: they are those of vb_generate. One thread at a time may use a batch. */
typedef struct vb_batch vb_batch;

typedef struct vb_batch_options {
    vb_session_options session; /* of every request; context: tokens of the longest one; prefill_chunk: rows of prompts in a pass.
                                   No taps, traces, progress; prefill contract alone. Acceptance rejection and relaxed want a
                                   draft method other than eagle-reroll and eagle-keep. */
    int32_t max_sequences; /* computed side by side, 1 to 64; 0: 8 */
    int64_t cache_tokens;  /* tokens whose rows the cache holds for all together; 0: max_sequences * (context + 16). When it is full the
                              youngest sequence gives its rows back, and has them computed again later */
    int keep_apart;        /* prompts that begin like another one's do not share its rows */
} vb_batch_options;

/* The model outlives the batch, and so do what options point to. */
int vb_batch_open(vb_batch **out, const vb_model *model, const vb_batch_options *options, vb_error *err);
void vb_batch_close(vb_batch *batch); /* requests that are left are forgotten: `done` is not called */

/* How a request ended: code VB_OK, and result; or an error. tokens [count], the first `prompt` of which were given, is valid during
 * the call. */
typedef struct vb_request_end {
    int64_t id;
    int code;
    const vb_error *error; /* NULL: none */
    const int32_t *tokens;
    size_t prompt, count;
    const vb_result *result;
} vb_request_end;

typedef struct vb_request {
    const int32_t *tokens; /* the prompt; copied */
    size_t count;
    const vb_sampling *sampling; /* NULL: the batch's. What it and options point to lives until the request ends */
    const vb_drafting *drafting; /* NULL: the batch's; copied */
    vb_session *session;         /* NULL; or a session of the batch's model, which the request continues, with its own options and cache:
                                    the fields above are zero then. Nobody else uses it until `done` is called, which may
                                    close it. Its context is at most the batch's; it has no taps, and no rows due by prefill onednn */
    vb_generate_options options; /* the callback may add requests, and neither cancel one nor step */
    void (*done)(void *context, const vb_request_end *end); /* once, from vb_batch_step or vb_batch_cancel; may add requests; may be NULL */
    void *context;
} vb_request;

/* Puts a request in the line. Refused are tokens outside the vocabulary, and what no cache_tokens or context could ever hold; other
 * mistakes end the request with their error. id (may be NULL): 0, 1, .. */
int vb_batch_add(vb_batch *batch, const vb_request *request, int64_t *id, vb_error *err);
/* Ends it now, VB_FINISH_STOPPED. Returns whether there was such a one. */
int vb_batch_cancel(vb_batch *batch, int64_t id);
/* One pass. *left: requests that wait or run. An error is the pass's, not a request's. */
int vb_batch_step(vb_batch *batch, size_t *left, vb_error *err);
/* Steps until none is left. */
int vb_batch_run(vb_batch *batch, vb_error *err);

typedef struct vb_batch_state {
    size_t waiting, running, done; /* requests */
    size_t passes;
    size_t preemptions;   /* sequences that gave their rows back */
    size_t shared_tokens; /* whose rows were another sequence's, and not computed again */
    size_t cache_tokens, cache_tokens_used, most_cache_tokens_used; /* the last with what passes set aside */
    size_t cache_bytes, pass_bytes; /* of the cache; of what a pass computes with */
    size_t draft_bytes;   /* of the draft methods of the sequences that run */
} vb_batch_state;
void vb_batch_look(const vb_batch *batch, vb_batch_state *out);

#endif
