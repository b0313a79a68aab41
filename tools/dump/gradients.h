/* tools/dump/gradients.h -- gradients of the loss of a text: computed by the trainer or by the reference, as a file of
 * tensors under the checkpoint's names.
 *
 * Beside NAME.safetensors there is NAME.jsonl, which has one line: {"format": "verbatim-gradients", "version",
 * "tokens", "mtp_num_layers", "mtp_loss_scaling_factor", "loss", "main_loss", "mtp_loss_by_depth"}. */
#ifndef VB_DUMP_GRADIENTS_H
#define VB_DUMP_GRADIENTS_H

#include "tools/cli/cli.h"

struct gradients {
    vb_tensor *list; /* [count]: F32 from the trainer, F64 from the reference; in the order of names */
    size_t count;
    double loss, main_loss, by_depth[VB_MAX_DRAFT];
    int depths;
    void *owner, (*close)(void *owner);
};

/* How many MTP depths the loss has: --mtp-num-layers, or as many as the model has modules. */
int gradients_depths(const struct cli *c);
/* Compute the gradients of the total loss of one text (docs/TRAINING.md), with --mtp-loss-scaling-factor and the
 * conventions of the open model c->model. `perturb`: see reference_loss_options. Report errors. The caller closes *g,
 * also after an error. */
int gradients_of_trainer(const struct cli *c, const int32_t *ids, size_t count, int depths, struct gradients *g);
int gradients_of_reference(const struct cli *c, const int32_t *ids, size_t count, int depths, uint64_t perturb,
                           struct gradients *g);
void gradients_close(struct gradients *g);

/* `verbatim dump --gradients`. Returns an exit code. */
int gradients_dump(struct cli *c);
/* Reads the line beside a file of tensors. Returns NULL if it is no file of gradients. The caller releases the
 * object. */
json_t *gradients_line(const char *path);

#endif
