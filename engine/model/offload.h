/* engine/model/offload.h -- which parts of a model a device computes, and the copies of their weights in its memory.
 *
 * The parts are the decoder layers, the MTP modules with their decoder layers, and the output head. The embedding and
 * the final norms are computed by the CPU. All results have the same bits as without a device. */
#ifndef VB_OFFLOAD_H
#define VB_OFFLOAD_H

#include "engine/model/model.h"
#include "ops/cuda/device.h"

#define OFFLOAD_AUTO (-1)

struct offload_options {
    struct device *device; /* NULL: the CPU computes everything */
    /* The last `layers` decoder layers are computed by the device. If it is more than the number of layers, the output
     * head and the MTP modules are, too. OFFLOAD_AUTO: the head, the MTP modules, and what fits: either as many whole
     * layers as possible, or attention before experts, whichever leaves fewer bytes that the CPU reads for a token. */
    int layers;
    int without_experts;   /* nonzero: the feed-forward parts of MoE layers stay on the CPU */
};

/* Whether the device is "auto" or "auto:N". */
int offload_is_auto(const vb_offload *o);
/* Opens the GPU that *o names. *out is NULL if none is asked for or if, with "auto", none can be used. Then `why_not`
 * [256] says why. */
int offload_open_device(struct device **out, const vb_offload *o, char *why_not, vb_error *err);
/* Chooses the parts. `c` is the configuration of the checkpoint, with its precision. */
struct offload_plan offload_choose(const struct offload_options *o, const struct config *c,
                                   const struct checkpoint *checkpoint);
/* Copies the weights of the parts to the device, and marks the parts in the model. They stay there until the device is
 * closed. Calls `progress` like model_options. */
int offload_model(struct vb_model *m, const struct offload_plan *plan, struct device *device,
                  void (*progress)(void *context, size_t done, size_t total), void *context, vb_error *err);
#endif
