/* engine/pass/offload.h -- passes of which a device computes parts (engine/model/offload.h).
 *
 * Every array of a workspace has a twin on the device. The residual stream w->x is either on the CPU or on the device:
 * offload_place moves it to where the next operators compute, and sets w->cx.device for them. The cache rows of a layer
 * whose attention the device computes are on the device. The rows that a pass does not change stay there from pass to
 * pass. With sparse attention, the same is true of the index cache. The tokens that an indexer chose stay there until
 * the pass ends.
 *
 * The CPU computes a whole pass if its caller wants to see intermediate values (taps), if it forces or records experts
 * or chosen tokens, or if it has rows with the expanded form of attention. Before such a pass, the cache rows come back
 * to the CPU. The results have the same bits in both cases. */
#ifndef VB_PASS_OFFLOAD_H
#define VB_PASS_OFFLOAD_H

#include "engine/pass/forward.h"
#include "ops/cuda/device.h"

/* Returns the number of tokens for which the device attends, if the longest list of slots has `longest`: passes over a
 * few more tokens then have equal kernels. */
static inline size_t offload_longest(size_t longest)
{
    size_t tokens = 256;
    while (tokens < longest)
        tokens *= 2;
    return tokens;
}

/* Allocates a twin on the device (ops/cuda/device.h) for each array of the workspace. Call this when all arrays are
 * allocated. Does nothing if the model has no device. If the device has too little memory, this is an error. If the
 * device is optional ("auto"), it is none: the CPU then computes all passes of this workspace. With precision tensor it
 * always is one. */
int offload_open(struct workspace *w, vb_error *err);
void offload_close(struct workspace *w);

/* Prepares a pass of these rows. The module is that of an MTP pass, or NULL for the target. */
void offload_begin(struct workspace *w, const struct mtp_module *module, const struct row *rows, size_t S);
/* From here on, operators compute on the device if `on_device` is nonzero and the pass may use it. */
void offload_place(struct workspace *w, int on_device, size_t S);
/* From here on, operators compute on the CPU, and w->x is there. */
static inline void offload_end(struct workspace *w, size_t S) { offload_place(w, 0, S); }

/* If the device computes all layers of the pass, the layers of a pass of this shape are recorded once. If there is such
 * a recording, offload_replay does it and returns 1. Else it returns 0; then the caller gives the layers to the
 * operators and calls offload_recorded. */
int offload_replay(struct workspace *w, const struct mtp_module *module, size_t S);
void offload_recorded(struct workspace *w, const struct mtp_module *module, size_t S);

/* At the end of a pass of the target: w->first_bad_layer also counts the layers whose output the device has. */
void offload_note_bad_layers(struct workspace *w, size_t S);

/* Copies w->x to the CPU, if it is on the device, and leaves it there, too. */
void offload_show_x(struct workspace *w, size_t S);
/* The next operator is eh_proj, which computes w->x from w->concat. It computes on the device if `on_device` is nonzero
 * and the pass may use it. */
void offload_concat(struct workspace *w, int on_device, size_t S);

/* Whether the operators that follow compute on the device. */
static inline int offload_is_on(const struct workspace *w) { return w->cx.device != NULL; }

/* Returns a sentence if the device has failed, or if it should have computed the last pass by its tensor cores and
 * could not; else NULL. */
const char *offload_failed(const struct workspace *w);

/* From now on, the CPU computes all passes of the workspace. It does not get back the cache rows that the device has:
 * the caller computes them again. */
void offload_give_up(struct workspace *w, struct kvpool *p);
/* With tensor cores: gives a pool its place on the device, for passes of the target. Returns VB_NO_MEMORY if it does
 * not fit; without tensor cores the CPU would then compute its attention. */
int offload_reserve(const struct workspace *w, struct kvpool *p, vb_error *err);

/* Brings all rows of a pool back to the CPU, because something else than a pass will read or write them. The next pass
 * takes them to the device again. */
void offload_fetch_pool(struct kvpool *p);
/* Frees what the pool has on the device. */
void offload_close_pool(struct kvpool *p);

/* Whether rows of this pass may see more tokens than an indexer keeps. It depends on the shape of the pass alone:
 * single rows may see fewer. */
static inline int offload_chooses(const struct workspace *w, const struct mla *a)
{
    return w->kept_most && !a->sees_all && w->offload.longest > w->kept_most;
}
/* workspace.kept has the tokens that an indexer chose. If the CPU computed this indexer, offload_send_kept copies them
 * to the device, once in a pass. offload_keep is called after a pass. If the device computed its attention, it copies
 * to row.keep the tokens to which the row attended. */
void offload_send_kept(struct workspace *w, size_t S);
void offload_keep(struct workspace *w, const struct row *rows, size_t S);

/* Multiplies `hidden` [S, d] by the head on the device, if its weights are there. Returns 0 if they are not: then
 * nothing was done. */
int offload_head(struct workspace *w, const struct weight_view *head, float *logits, const float *hidden, size_t S);
/* The same for the tokens with the largest logits (forward_head_best), which are all that comes back from the
 * device. */
int offload_head_best(struct workspace *w, const struct weight_view *head, int32_t *best, const float *hidden,
                      size_t S);

#endif
