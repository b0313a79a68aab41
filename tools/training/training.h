/* tools/training/training.h -- `verbatim train`: its run folder, and what the files of this folder share.
 *
 *   DIR/state.safetensors  everything that the next step depends on; replaced by rename after every --save-interval
 *                          steps
 *   DIR/data.safetensors   the tokens of all documents
 *   DIR/hidden_states.safetensors  with --keep-hidden-states: rows of the frozen model (tools/training/hidden.h)
 *   DIR/lock               locked while a process trains
 *   DIR/curves.csv, .svg   the losses of the steps so far
 *   DIR/initial            with --from-scratch: the model before the first step, a checkpoint
 *   DIR/model              the result: a checkpoint
 *   DIR/head               the result, if it is parallel heads or an EAGLE head: config.json and model.safetensors
 *   DIR/megatron.safetensors  with --save-megatron: the trained modules under Megatron's names
 *   DIR/result.json        what drafting with it was measured to bring
 *
 * A run that is killed loses the steps after its newest state. `train --resume DIR` computes them again, with the same
 * bits. */
#ifndef VB_TRAINING_H
#define VB_TRAINING_H

#include <string.h>

#include "engine/train/trainer.h"
#include "tools/cli/cli.h"
#include "tools/training/documents.h"
#include "tools/training/hidden.h"
#include "tools/training/order.h"

#define TRAINING_SEED 1234 /* the default of --seed, that of Megatron */
#define CURVE_COLUMNS (4 + 2 * (2 + VB_MAX_DRAFT)) /* see tools/training/curves.c */

/* How many rows all depths have, and how many of them have no loss because their label is outside of the draft
 * vocabulary. */
struct coverage {
    int64_t rows, outside;
};

/* The learning curves: a row for each logged step. */
struct curves {
    double *row; /* [rows, CURVE_COLUMNS]; NAN: nothing was measured */
    size_t rows, room;
    /* sums over the steps since the newest row */
    double sum[2 + VB_MAX_DRAFT], norm; /* total, main, by depth */
    double steps;
    struct coverage covered; /* of these steps in this process; not saved */
    int warned;              /* whether it was said that no row has a loss */
};

struct training {
    struct cli *c;
    const char *dir;             /* the run folder */
    int lock, made;              /* a descriptor, -1: none; whether this process made the folder */
    struct documents data, held; /* what is trained on; what is held out */
    uint64_t data_hash, model_hash;
    struct order order, held_order;
    struct order_place place;
    struct loss loss;
    struct trained_heads heads;  /* if has_heads; heads_close closes what it points to */
    struct vb_trainer *trainer;
    struct trainer_eagle eagle;  /* with --part eagle and eagle3: the head to open; eagle_free frees what it points
                                    to */
    struct kept_states *kept;    /* NULL without --keep-hidden-states */
    int64_t step;                /* how many steps were taken */
    uint64_t tokens;             /* of these steps */
    struct curves curves;
    json_t *options;             /* of the run, by name */
    char *model_dir;             /* the absolute path of MODEL */
    char *hidden_dir;            /* the absolute path of --hidden-states; NULL if it was not given */
    char *initial_dir;           /* DIR/initial; NULL without --from-scratch */
};

/* ---- options (tools/training/settings.c) ---- */

/* Gives every option that was not given its default, and checks all. The model is open. Reports errors. */
int settings_check(struct training *r);
/* Before the model is open: lets options that were not given have the values of the run that is resumed. Refuses
 * options that differ from these values and cannot change. Reports errors. */
int settings_resume(struct cli *c, const char *dir, const json_t *options);
/* All options of the run with their values, by name. */
json_t *settings_json(const struct cli *c);
/* How many modules the depths use, if all are new: 1 if the loss runs one module at every depth. The number of depths
 * is known. */
long long settings_new_modules(const struct cli_training *t);
/* The loss of the options. Reports errors. */
int settings_loss(const struct cli *c, struct loss *out);
struct trainer_options settings_trainer(const struct training *r);
/* The learning rate of step `step`, which counts from 1. The same bits on every machine. */
double settings_lr(const struct cli_training *t, int64_t step);

/* Whether every weight of the model is trained; whether parallel heads are trained. */
static inline int is_whole(const struct cli_training *t) { return !strncmp(t->part, "model", 5); }
static inline int is_eagle(const struct cli_training *t) { return t->part && !strncmp(t->part, "eagle", 5); }
static inline int has_heads(const struct cli_training *t) { return t->part && cli_ends_with(t->part, "heads"); }

/* ---- the state of a run (tools/training/state.c) ---- */

/* Makes the folder, or opens that of --resume, and locks it. Reports errors. */
int state_folder(struct training *r);
void state_close(struct training *r);
/* Reads the JSON object of the state: its options and the path of its model. *out is released by the caller. Reports
 * errors. */
int state_head(const struct training *r, json_t **out);
/* Puts everything into the run and its trainer. Reports errors. */
int state_load(struct training *r);
/* Saves the state. Reports errors. */
int state_save(struct training *r);
/* Saves and loads the tokens of the documents. Report errors. */
int state_save_data(struct training *r);
int state_load_data(struct training *r);

/* ---- curves (tools/training/curves.c) ---- */

/* Adds the losses of a step to the sums. */
void curves_step(struct curves *k, const struct training_losses *l, double norm);
/* Appends a row with the means since the newest row, and prints it. Without a step since then, with `held` alone.
 * `held`: of held-out sequences; NULL: not measured. `rate`: tokens per second. */
void curves_row(struct training *r, double lr, const struct training_losses *held, double rate);
/* The total loss of held-out sequences before the first step, and the newest one. Returns 0 if there is none. */
int curves_held_out(const struct curves *k, double *first, double *newest);
/* Writes curves.csv and curves.svg. Reports errors. */
int curves_write(const struct training *r);
void curves_close(struct curves *k);

/* ---- the result (tools/training/output.c, tools/training/measure.c) ---- */

/* Checks, before a run begins, that output_write will know the model's files. Reports errors. */
int output_check(const struct cli *c, const char *model_dir);
/* Writes the folder DIR/model. Reports errors. */
int output_write(struct training *r);
/* A trained tensor as a file stores it, in F32 or BF16. The caller frees *memory. */
vb_tensor output_stored(const struct trained_tensor *t, int f32, void **memory);
/* Writes the folder DIR/initial: all tensors of r->trainer, and the files of the folder `from` other than weights.
 * Reports errors. */
int output_write_initial(struct training *r, const char *from);
/* Removes a folder that has no folders in it, if it is there. */
void output_remove(const char *path);
/* Writes DIR/initial with random weights (tools/training/initial.c). c->model_dir is a model whose weights are not
 * read, or a folder with a config.json; it becomes DIR/initial. Reports errors. */
int initial_make(struct training *r);
/* The trained modules under Megatron's names (tools/training/megatron.c). Report errors.
 *
 * megatron_read puts the weights of a safetensors file into the trainer: every tensor that Megatron has, too, must be
 * there, under the checkpoint's name or Megatron's. megatron_write writes such a file in F32, with Megatron's names. */
int megatron_read(struct training *r, const char *path);
int megatron_write(const struct training *r, const char *path);
/* Parallel heads (tools/training/heads.c). heads_options fills r->heads, and gives the options of heads their defaults;
 * the model is open. heads_describe adds the keys of heads to a config.json. heads_write writes the folder DIR/head.
 * Report errors. */
int heads_options(struct training *r);
void heads_close(struct training *r);
void heads_describe(const struct training *r, json_t *config);
int heads_write(struct training *r);
/* EAGLE heads (tools/training/eagle.c). eagle_options fills r->eagle; with a draft vocabulary, the data are there.
 * eagle_write writes the folder DIR/head. Report errors. */
int eagle_options(struct training *r);
void eagle_free(struct training *r);
int eagle_write(struct training *r);

/* Measures drafting with the old and the new model, prints it, and writes DIR/result.json. Reports errors. */
int measure_result(struct training *r);

#endif
