/* tools/training/hidden.h -- rows of the frozen model that a run does not compute in every step: those that it keeps on
 * disk, and those that come from dumps. */
#ifndef VB_TRAINING_HIDDEN_H
#define VB_TRAINING_HIDDEN_H

#include "engine/train/trainer.h"

struct training;

/* ---- --keep-hidden-states (tools/training/kept.c) ----
 *
 * DIR/hidden_states.safetensors has, for all tokens of the documents, the rows that the trainer computes for them:
 *
 *   hidden_states  F32  [tokens, width]   what the trained part reads (trainer_takes)
 *   final          F32  [tokens, d]       after model.norm; only if the trainer wants them
 *   hashes         I64  [sequences]       of the rows of each sequence, with the model and the data; 0: they are not
 *                  there yet
 *
 * and held_out.hidden_states, held_out.final and held_out.hashes. A sequence is computed when it is first needed. A
 * process compares its hash before it uses the rows for the first time, and computes rows again that are damaged. A
 * file of another run is replaced. */
struct kept_states;

/* Opens or makes the file, and says how large it becomes. Reports errors. */
int kept_open(struct training *r);
/* Sets list[i].hidden and list[i].final, which point into the file. numbers[i]: the number of the piece, in r->order,
 * or r->held_order if held is nonzero. Reports errors. */
int kept_give(struct training *r, int held, const size_t *numbers, struct training_sequence *list, size_t count);
void kept_close(struct training *r);

/* ---- --hidden-states (tools/training/dumps.c) ----
 *
 * Each *.safetensors file of the folder is a document, in the order of their names. Either vLLM's
 * ExampleHiddenStatesConnector wrote it:
 *
 *   hidden_states  F32, BF16 or F16  [tokens, layers, d]   the residual stream before some layers, or after the last
 *                  one and before model.norm
 *   token_ids      I64               [tokens]
 *
 * or `dump` did, with the taps that the trained part needs (trainer_streams) in one pass:
 * model.layers.L.input_layernorm.input, and model.norm.input for the stream after the last layer. Its tokens are in the
 * manifest beside the file. */

/* Reads the tokens of all files into r->data, and if the trainer is open, checks the numbers of all rows. Reports
 * errors. */
int dumps_read(struct training *r);
/* Of a run that is resumed, or if the trainer was opened after dumps_read: refuses files that have changed, and checks
 * the numbers of all rows. Reports errors. */
int dumps_check(const struct training *r);
/* Sets list[i].hidden and list[i].final of the documents that came from files. numbers and held as for kept_give.
 * Reports errors. The caller releases them with dumps_release, also after an error. */
int dumps_give(const struct training *r, int held, const size_t *numbers, struct training_sequence *list, size_t count);
void dumps_release(struct training_sequence *list, size_t count);

#endif
