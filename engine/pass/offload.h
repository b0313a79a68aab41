/* engine/pass/offload.h -- passes of which a device computes parts (engine/model/offload.h).
 *
 * Every array of a workspace has a twin on the device. The residual stream x is either on the CPU or on the device: the
 * runner moves it to where the next half of a layer computes. The cache rows of a layer whose attention the device
 * computes are on the device. The rows that a pass does not change stay there from pass to pass. With sparse attention,
 * the same is true of the index cache. The tokens that an indexer chose stay there until the pass ends.
 *
 * The CPU computes a whole pass if its caller wants to see intermediate values (taps), if it forces or records experts
 * or chosen tokens, or if it has rows with the expanded form of attention. Before such a pass, the cache rows come back
 * to the CPU. The results have the same bits in both cases. */
#ifndef VB_PASS_OFFLOAD_H
#define VB_PASS_OFFLOAD_H

#include "engine/pass/pass.h"
#include "ops/cuda/device.h"

#define OFFLOAD_SHAPES 32
/* What a pass needs if a device computes parts of it. */
struct offload {
    struct device *device;   /* NULL: the CPU computes everything */
    struct row_place *rows; /* [rows]: as workspace.places, with addresses of the device */
    struct row_place *kept_rows; /* [rows], with an indexer: as `rows`, but a row that sees more than kept_most tokens
                                     has the slots of the chosen ones */
    int32_t *first_bad_layer; /* [rows]: as workspace.first_bad_layer, of the layers whose output the device has */
    int32_t *slots;          /* [rows, context]: the slots of all rows of a pass, one list behind the other */
    size_t longest;          /* at least the length of the longest list: 256 times a power of two */
    int cpu_layers;          /* the CPU computes the first cpu_layers layers in any case; more than there are:
                                everything */
    int parts, attention;    /* nonzero: the device computes parts of this pass, and attention too */
    enum { NOT_REFUSED, REFUSED_PASS, REFUSED_CACHE } refused; /* why the device's tensor cores could not compute this
                                                                  pass, as they should have */
    size_t from;             /* the device computes no layer before this one in this pass */
    int x_is_there;          /* nonzero: workspace.x is on the device */
    int kept_is_there;       /* nonzero: the device has workspace.kept of this pass */
    struct offload_shape {   /* of passes that were recorded (device_record) */
        const struct mtp_module *module;
        size_t S, longest;
        void *recording;
    } shapes[OFFLOAD_SHAPES];
    int records;             /* nonzero: a pass is being recorded */
    size_t recorded;         /* how many recordings were made; the newest OFFLOAD_SHAPES are kept */
};
#define OFFLOAD_MOST_ROWS 16 /* passes with more rows are not recorded: starting kernels takes little of their time */

/* Returns the number of tokens for which the device attends, if the longest list of slots has `longest`: passes over a
 * few more tokens then have equal kernels. */
static inline size_t offload_longest(size_t longest)
{
    size_t tokens = 256;
    while (tokens < longest)
        tokens *= 2;
    return tokens;
}

/* Allocates a twin on the device (ops/cuda/device.h) for each array of the workspace; from now on the device computes
 * parts of passes (struct runner). Call this when all arrays are allocated. Does nothing if the model has no device. If
 * the device has too little memory, this is an error. If the device is optional ("auto"), it is none: the CPU then
 * computes all passes. With precision tensor it always is one. */
int offload_open(struct pass *p, vb_error *err);

/* Returns the scratch memory that operators need on the device; 0 without one. */
size_t offload_scratch(const struct pass *p);

/* Returns a sentence if the device has failed, or if it should have computed the last pass by its tensor cores and
 * could not; else NULL. */
const char *offload_failed(const struct pass *p);

/* From now on, the CPU computes all passes. It does not get back the cache rows that the device has: the caller
 * computes them again. */
void offload_give_up(struct pass *p, struct kvpool *pool);
/* With tensor cores: gives a pool its place on the device, for passes of the target. Returns VB_NO_MEMORY if it does
 * not fit; without tensor cores the CPU would then compute its attention. */
int offload_reserve(struct pass *p, struct kvpool *pool, vb_error *err);

#endif
