/* engine/verbatim_train.h -- training steps; a part of the public interface.
 * verbatim.h includes this file. Programs include only verbatim.h.
 *
 * docs/TRAINING.md defines the losses, and docs/GRADIENTS.md the step. Losses, gradients and weights have the same bits
 * for every number of threads, every instruction set and every size of a micro-batch. The command `verbatim train` adds
 * texts, an order, a learning rate, files that a run continues from, and a checkpoint at the end. */
#ifndef VERBATIM_TRAIN_H
#define VERBATIM_TRAIN_H

typedef struct vb_trainer_options {
    size_t size;         /* sizeof(vb_trainer_options), or 0 */
    /* What changes. NULL or "modules": the MTP modules. "eagle", "eagle3" or "parallel-heads": a draft head, or heads.
     * The model itself stays as it is then. "model": every weight */
    const char *part;
    /* A name in docs/TRAINING.md. NULL: "eagle" and "eagle3" for these parts, "sum" with "parallel-heads", else
     * "megatron" */
    const char *loss;
    double loss_factor;  /* the factor of the loss, for "megatron" mtp_loss_scaling_factor; 0: the published one */
    double soft_targets; /* from 0 to 1: this share of a module's loss is that with the model's own distribution. Only
                            with losses that have no weights of their own for it */
    int32_t depths;      /* D: depth k drafts the token k+2 places after a row. 0: as many as the checkpoint has MTP
                            modules; if it has none, 1 with "modules", none with "model". -1, only with "model": none;
                            the modules do not change. Of an EAGLE head, 0 is 3 with the losses "eagle3" and "hass",
                            else 1; of parallel heads, their number in `head`, or 3 new ones */
    int32_t modules;     /* how many MTP modules the trained model has; depth k uses module k mod `modules`. 0: as many
                            as the checkpoint; if it has none, `depths`, or 1 if the loss runs one module at every
                            depth. If there are more than the checkpoint has, the others begin with random weights */
    int new_weights;     /* nonzero: all modules, or with "model" all weights, begin with random numbers. New EAGLE
                            heads always do; new parallel heads begin as copies of the model's last layer if it is 0 */
    const char *ends;    /* the embedding and the output head of the modules. NULL or "stored": their own if the
                            checkpoint has some, else those of the model. "shared": those of the model. "own": their
                            own, which begin as stored or as copies */
    uint64_t seed;       /* of random weights */
    double beta1, beta2, eps; /* of AdamW; 0: 0.9, 0.999 and 1e-8. A beta of -1: 0 */
    double weight_decay; /* of matrices; vectors have none. 0: 0.01. -1: none */
    double clip_norm;    /* gradients are scaled down to this norm. 0: 1. -1: never */
    double bias_update_rate; /* of e_score_correction_bias; 0: 0.001 with "model". -1: it does not change. It never
                                changes with other parts */
    size_t micro_tokens; /* how many tokens are computed together, which decides how much memory a step needs; 0: 2048.
                            A longer sequence is computed alone */
    int32_t threads;     /* at most so many; 0: the number of processors in the affinity mask */
    const char *isa;     /* NULL or "best", or the name of an instruction set (vb_isa) */
    const char *head;    /* only with "eagle", "eagle3" and "parallel-heads": the folder of the head or heads that are
                            trained further. NULL: new ones are trained, which have the default sizes of the command
                            `train` */
    const int32_t *draft_tokens; /* [draft_vocab_size]: the tokens that a new EAGLE-3 head knows, ascending. They are
                                    copied. NULL: all tokens */
    size_t draft_vocab_size;
} vb_trainer_options;

typedef struct vb_trainer vb_trainer;

/* Opens a trainer. Every weight that it trains takes 16 bytes: f32 copies of the weight, its gradient and two moments
 * of AdamW. The model does not change. It must have the precision f32 and the cache type f32, and must outlive the
 * trainer. `options` may be NULL. Only one thread at a time may use a trainer.
 *
 * Returns VB_BAD_ARGUMENT for wrong options, VB_UNSUPPORTED for models that cannot be trained, and VB_NO_MEMORY. On an
 * error *out is NULL. */
int vb_trainer_open(vb_trainer **out, const vb_model *model, const vb_trainer_options *options, vb_error *err);
/* `trainer` may be NULL. */
void vb_trainer_close(vb_trainer *trainer);

/* A text. Its tokens never attend to tokens of another sequence. */
typedef struct vb_train_sequence {
    const int32_t *tokens;
    size_t count;                   /* at least 1 */
    const unsigned char *loss_mask; /* [count]: a row that predicts a token whose entry is 0 has no loss. NULL: all rows
                                       have one */
    uint64_t reserved[2];
} vb_train_sequence;

/* Means in nats over the rows of all sequences together; 0 if there are no such rows. */
typedef struct vb_train_losses {
    double total;                       /* what is minimised: main and by_depth, with the weights of the loss */
    double main;                        /* of the next token; 0 unless the part is "model" */
    double by_depth[VB_MAX_DRAFT];      /* [k]: of MTP depth k, of parallel head k, or of pass k of an EAGLE head, for k
                                           < depths */
    int32_t depths;
    int64_t rows;                       /* how many rows `main` is a mean of */
    int64_t depth_rows[VB_MAX_DRAFT];   /* how many rows by_depth[k] is a mean of */
} vb_train_losses;

/* Computes the losses of `count` sequences, which together are one step, and the gradients of losses->total. They
 * replace the gradients of the call before. Returns VB_BAD_ARGUMENT if there is nothing to predict or if a token id is
 * wrong. Returns VB_NOT_FINITE if a loss is not finite; the message names the first layer whose output is not. */
int vb_trainer_gradients_sized(vb_trainer *trainer, const vb_train_sequence *sequences, size_t count,
                                  vb_train_losses *losses, size_t size, vb_error *err);
static inline int vb_trainer_gradients(vb_trainer *trainer, const vb_train_sequence *sequences, size_t count,
                                    vb_train_losses *losses, vb_error *err)
{
    return vb_trainer_gradients_sized(trainer, sequences, count, losses, sizeof *losses, err);
}
/* The same losses without gradients, for texts that are held out. */
int vb_trainer_losses_sized(vb_trainer *trainer, const vb_train_sequence *sequences, size_t count,
                               vb_train_losses *losses, size_t size, vb_error *err);
static inline int vb_trainer_losses(vb_trainer *trainer, const vb_train_sequence *sequences, size_t count,
                                 vb_train_losses *losses, vb_error *err)
{
    return vb_trainer_losses_sized(trainer, sequences, count, losses, sizeof *losses, err);
}

/* Changes the weights by the newest gradients: clipping, AdamW with the learning rate `lr`, then the bias of the
 * routers. `step` is the number of this update, counted from 1. *norm (may be NULL) becomes the norm of all gradients
 * before clipping. Returns VB_BAD_ARGUMENT if there are no gradients, if the newest call of vb_trainer_gradients
 * failed, or if `step` or `lr` is wrong. Returns VB_NOT_FINITE if a gradient is not finite; the message names its
 * tensor. After an error, the weights are as before. */
int vb_trainer_update(vb_trainer *trainer, int64_t step, double lr, double *norm, vb_error *err);

/* A tensor that a step changes. Its memory belongs to the trainer. */
typedef struct vb_train_tensor {
    const char *name;   /* the name in the checkpoint */
    int32_t ndim;       /* 1 or 2 */
    int64_t shape[2];   /* of a vector, shape[1] is 1 */
    size_t count;       /* of numbers */
    int decays;         /* nonzero: it has weight decay */
    int is_new;         /* nonzero: it is not a tensor of the checkpoint */
    float *w;           /* the weights, row-major */
    float *g;           /* the gradient of the newest step; NULL: e_score_correction_bias, which has none */
    float *m, *v;       /* AdamW's moments; NULL if g is */
} vb_train_tensor;

/* Fills *out with the tensor of this number and returns 1; returns 0 if there is none. Tensors are numbered from 0 in
 * the order of their names. The addresses stay valid until the trainer is closed. A program may change the numbers
 * between two calls: with w, m and v of all tensors put back into a trainer that was opened in the same way, training
 * continues with the same bits. */
int vb_trainer_tensor_sized(vb_trainer *trainer, size_t number, vb_train_tensor *out, size_t size);
static inline int vb_trainer_tensor(vb_trainer *trainer, size_t number, vb_train_tensor *out)
{
    return vb_trainer_tensor_sized(trainer, number, out, sizeof *out);
}

#endif
