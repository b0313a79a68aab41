/* engine/train/trainer.h -- training steps: the losses of some sequences, their gradients, and the change of the
 * weights.
 *
 * docs/TRAINING.md states the losses. A step consists of sequences in a given order. Gradients, weights and losses have
 * the same bits for every thread count, every instruction set and every size of a micro-batch (docs/ARITHMETIC.md, rule
 * 10).
 *
 * The trainer computes in f32. It has an f32 copy of each tensor that it trains, its gradient, and two moments of
 * AdamW: 16 bytes for each trained weight. The model that it was opened with does not change.
 *
 * The forward pass has the bits of the engine with --prefill expanded, and its logits those of `eval --prefill
 * expanded` on a checkpoint with the same F32 weights. */
#ifndef VB_TRAINER_H
#define VB_TRAINER_H

#include "engine/base/loss.h"
#include "engine/model/model.h"
#include "engine/pass/pass.h"
#include "ops/backward/adamw.h"

/* What is trained: every tensor, or for a model that stays as it is, its MTP modules, an EAGLE head
 * (engine/draft/eagle_net.h), or parallel heads. */
enum trained_part { TRAIN_MODULES,
                    TRAIN_MODEL,
                    TRAIN_EAGLE,
                    TRAIN_EAGLE3,
                    TRAIN_HEADS };

/* Parallel heads (docs/SEMANTICS.md): depth k of the loss is head k. Their layers have the sizes of the model's. */
struct trained_heads {
    const struct vb_model *stored; /* from model_open_heads; outlives the trainer. NULL: all heads are new */
    int after_last;             /* nonzero: heads read the residual stream after the last layer (trunk_layers = L), else
                                   before it */
    int dense;                  /* of new heads: nonzero: they have a dense MLP, also if the model's last layer has
                                   experts */
    int copied;                 /* of new heads: nonzero: each begins as a copy of the model's last layer, as far as
                                   shapes agree; 0: with trainer_initial, so that it first passes its input on */
};

/* The embedding and the output head that a module uses (in Megatron, a stage of its pipeline has either copies of them,
 * or those of the model). */
enum module_ends {
    ENDS_STORED, /* its own where the checkpoint stores them, else those of the model */
    ENDS_SHARED, /* those of the model, also where the checkpoint stores others */
    ENDS_OWN     /* its own: as stored, or initially copies of those of the model */
};

/* An EAGLE head to train. */
struct trainer_eagle {
    const char *dir; /* the folder of the head to begin with, whose version is that of the part. NULL: a new head, of
                        these sizes: */
    size_t heads, groups, dim, intermediate; /* H, G and D of its attention, and the width of its MLP. Its hidden size d
                                                is that of the model. 0 for D: the largest of 128, 64 and 32 that
                                                divides d, or else d divided by the number of the model's heads; for H:
                                                d / D; for G: H; for the MLP: the width of the model's dense layers, or
                                                4 d if it has none */
    const int32_t *tokens; /* EAGLE-3: [vocab_size], the tokens of its vocabulary, ascending; they are copied. NULL: all
                              tokens */
    size_t vocab_size;
    struct eagle_norms norms; /* EAGLE-3 */
};

struct trainer_options {
    enum trained_part part;
    enum module_ends ends;
    /* With TRAIN_HEADS; or with TRAIN_MODEL: heads are trained together with the model, instead of modules. Else
     * NULL */
    const struct trained_heads *heads;
    int depths;          /* D: how many MTP depths, parallel heads, or passes of an EAGLE head. Depth k uses module k
                            mod `modules`. 0, only with TRAIN_MODEL: no module is computed, and modules do not change */
    int modules;         /* 0: as many as the checkpoint stores. If more, the others are new; if fewer, the others are
                            not used */
    int new_modules;     /* nonzero: all modules are new */
    int new_model;       /* nonzero: everything is new, and no weight of the model is read: it may have none
                            (model_open_shapes). Only with TRAIN_MODEL */
    uint64_t seed;       /* of new weights (trainer_initial) */
    double mtp_loss_scaling_factor;
    /* NULL: Megatron's loss, with the numbers above. Else this loss (docs/TRAINING.md): its number of depths is D, and
     * mtp_loss_scaling_factor is not read */
    const struct loss *loss;
    const struct trainer_eagle *eagle; /* TRAIN_EAGLE, TRAIN_EAGLE3: the head; `depths` counts its passes. Not read
                                          after trainer_open */
    struct adamw adamw;  /* lr is not used: each step has its own. trainer_update wants an eps above 0 */
    double max_norm;     /* gradients are clipped to this norm; 0: they are not */
    double bias_update_speed; /* of e_score_correction_bias (op_balance_bias); 0: it does not change. That of the frozen
                                 model never does */
    size_t micro_tokens; /* sequences are computed together up to this number of tokens, and a longer sequence alone. It
                            decides how much memory a step needs. 0: 2048 */
    int threads;         /* 0: as many as the affinity mask allows */
    const char *isa;     /* of the kernels: "best" or NULL, or a name in INSTRUCTION_SETS */
};

/* A text of at least one token. Tokens never attend to those of another sequence. */
struct training_sequence {
    const int32_t *tokens;
    size_t count;
    /* Rows of the frozen model, which trainer_takes names; not with TRAIN_MODEL. The last two rows are not read, or the
     * last one if rows learn from the target. NULL: the trainer computes them, with the bits of the engine with
     * --prefill expanded */
    const float *hidden; /* [count, width]: what the trained part reads; for modules [count, d], as the convention
                            main-hidden says */
    const float *final;  /* [count, d]: after model.norm. Read only if trainer_takes says so */
    const unsigned char *loss_mask; /* [count]: a row that predicts a token whose entry is 0 has no loss. NULL: all rows
                                       have one */
};

/* The terms of the rows of a depth (struct loss_terms), without their weights. soft and entropy are 0 if no row learns
 * from the target's distribution; top and features are 0 if they have no weight. With an EAGLE-3 head that has a
 * vocabulary of its own and learns from the target's distribution, data is of the target's best token, and not of the
 * text's; it has no weight then. */
struct training_terms {
    double data, soft, top, features;
    double entropy; /* of the target's distribution: soft - entropy is the Kullback-Leibler divergence */
};

/* Means, in nats; 0 if there is nothing to predict. */
struct training_losses {
    double total; /* the sum of main and by_depth with the weights of the loss; for Megatron's, main + factor * mean of
                     by_depth */
    double main;  /* of tok[i+1]; 0 with TRAIN_MODULES, which does not compute it */
    double by_depth[VB_MAX_DRAFT]; /* of the rows that predict tok[i+k+2]: the sum of the terms with their weights */
    struct training_terms terms[VB_MAX_DRAFT];
    int64_t rows, depth_rows[VB_MAX_DRAFT]; /* how many rows with a loss these are means of */
    int64_t outside[VB_MAX_DRAFT]; /* of depth_rows: the label is outside of the draft vocabulary of an EAGLE-3 head, so
                                      that the loss of tokens is 0 */
};

/* A tensor that a step changes. */
struct trained_tensor {
    const char *name; /* the checkpoint's */
    size_t rows, cols; /* a vector has one row */
    int dimensions;    /* 1 or 2 */
    int decays;        /* nonzero: AdamW's weight_decay applies; initially for matrices. The caller may change it */
    int is_new;        /* nonzero: it began with trainer_initial, or as a copy of another tensor (ENDS_OWN) */
    float *w, *g, *m, *v; /* [rows, cols]; g, m and v are NULL if it has no gradient (e_score_correction_bias) */
};

struct vb_trainer;

/* The defaults of a part: its loss, and D. stored: how many MTP modules the model has, or with TRAIN_HEADS, the heads
 * to begin with; 0: none */
const char *trainer_usual_loss(enum trained_part part);
int trainer_usual_depths(enum trained_part part, const char *loss, int stored);

/* The model must have precision f32 and outlive the trainer. Returns VB_BAD_ARGUMENT or VB_UNSUPPORTED, with one
 * sentence, for options or models that cannot be trained, and VB_NO_MEMORY. */
int trainer_open(struct vb_trainer **out, const struct vb_model *m, const struct trainer_options *options,
                 vb_error *err);
void trainer_close(struct vb_trainer *t);

/* Clears all g, and sets them to the gradients of losses->total. Counts how many tokens chose each expert.
 *
 * Returns VB_BAD_ARGUMENT if no sequence has a token to predict, or if a token is outside of the vocabulary. Returns
 * VB_NOT_FINITE if a loss is not finite; the message names the first layer whose output is not finite, and, if it has
 * one, the tensor with a weight that is not. */
int trainer_gradients(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                      struct training_losses *losses, vb_error *err);

/* Changes the weights by the gradients of the newest trainer_gradients: clipping, AdamW, then e_score_correction_bias.
 * `step` counts from 1: AdamW needs it. *norm (may be NULL) becomes the norm of all gradients, in the order of tensors,
 * before clipping. Returns VB_NOT_FINITE, and changes nothing, if a gradient is not finite; the message names its
 * tensor. */
int trainer_update(struct vb_trainer *t, int64_t step, double lr, double *norm, vb_error *err);

/* The losses alone, for held-out texts. */
int trainer_losses(struct vb_trainer *t, const struct training_sequence *sequences, size_t count,
                   struct training_losses *losses, vb_error *err);

/* Returns tensor i in the order of names (strcmp), or NULL if i is trainer_count or more. To resume a run exactly, the
 * caller saves w, m and v of all tensors, and puts them back into those of a trainer that was opened in the same
 * way. */
struct trained_tensor *trainer_tensor(struct vb_trainer *t, size_t i);
size_t trainer_count(const struct vb_trainer *t);
int trainer_modules(const struct vb_trainer *t); /* how many MTP modules the trained model has: its
                                                    num_nextn_predict_layers; 0 with parallel heads */
/* Returns which rows of the frozen model the trained part reads, the same that a session computes for its draft method
 * (drafter_type.takes), and sets *width to the length of one. Sets *final to nonzero if the trainer also wants the rows
 * after model.norm: if the part learns from the model's distribution, and this cannot be computed from the rows that it
 * reads. */
enum target_rows trainer_takes(const struct vb_trainer *t, size_t *width, int *final);

/* The EAGLE head that is trained, for its config.json. */
struct trained_eagle {
    int version;                      /* 1 or 3; 0: none is trained */
    size_t hidden_size, heads, groups, dim, intermediate;
    size_t vocab_size, target_vocab, target_hidden, positions; /* its own vocabulary, and what it has in common with the
                                                                  model */
    double rms_norm_eps, rope_theta;
    int layer[3];                     /* EAGLE-3: it reads the residual stream before these layers */
    struct eagle_norms norms;
    const int32_t *tokens;            /* [vocab_size]: the model's token for each of its own; NULL: the ids are the
                                         same */
};
void trainer_eagle_look(const struct vb_trainer *t, struct trained_eagle *out);

/* Computes these rows for sequences of at least three tokens, as steps do: hidden[q] [count, width] and, if
 * trainer_takes says so, final[q] [count, d]; else final is NULL. Whoever keeps them gives them to steps, which have
 * the same bits then. Rows that no step reads become 0. */
int trainer_rows(struct vb_trainer *t, const struct training_sequence *sequences, size_t count, float *const *hidden,
                 float *const *final, vb_error *err);

/* The rows from the residual stream of another program. trainer_streams returns how many points of the stream they
 * need, and which: `layers` receives the number of the layer that reads the stream there, or the number of all layers
 * for the stream after the last, before model.norm. trainer_rows_of_streams computes n rows from the streams [n, d] at
 * these points, in this order; `final` may be NULL as above. */
size_t trainer_streams(const struct vb_trainer *t, int layers[4]);
void trainer_rows_of_streams(struct vb_trainer *t, float *hidden, float *final, const float *const *streams, size_t n);

/* New weights. Number i of a tensor is
 *
 *     a * (2 u - 1),  u = r / 2^24    r: the upper 24 bits of word i mod 4 of Philox4x32-10, with the counter i / 4
 *                     (two words) and the
 *                                     hash of the tensor's name (two words), and the seed as the key
 *
 * in f32, so it depends on the seed, the name and i alone. a is sqrt(3) for embeddings, 0.02 sqrt(3) for output heads,
 * 0 for o_proj and down_proj, which write into the residual stream, and else 1 / sqrt(cols). Norms are 1, and
 * e_score_correction_bias is 0. The output head of a new EAGLE-3 head begins with the rows of the model's, and the norm
 * before it with that of the model. */
void trainer_initial(float *w, const char *name, size_t rows, size_t cols, int dimensions, uint64_t seed);

#endif
