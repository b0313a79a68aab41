/* tools/diff/replay.h -- `verbatim replay`: the parts of the command. */
#ifndef VB_DIFF_REPLAY_H
#define VB_DIFF_REPLAY_H

#include "tools/cli/tensors.h"
#include "tools/diff/local.h"

/* Brings the values of a file into the forms of the model: splits fused columns, and puts RoPE dimensions into the
 * order of the checkpoint (replay_values.c). */
void replay_align(const struct cli *c, struct diff_side *side, const struct reference *r);
/* Computes the result `name` of an operator, or all values of the file if `name` is NULL, on the values of `side`, and
 * adds the results to *t (replay_values.c). `name` is a complete name, such as model.layers.3.mlp.output. *left_out:
 * how many values of the file have an operator whose inputs the file lacks. Reports errors. */
int replay_values(struct cli *c, const struct diff_side *side, const struct reference *r, const char *name,
                  struct tensors *t, size_t *left_out);

/* --- sampling and acceptance: replay_choose.c --- */

struct replay_choice {
    const char *operator, *output, *inputs[8];
};
/* The list of the results of sampling and acceptance; NULL: there is no result i. */
const struct replay_choice *replay_choice_at(size_t i);
/* Finds the result whose operator, or whose own name, is `name`; NULL: sampling and acceptance have none. */
const struct replay_choice *replay_choice_of(const char *name);
/* Chooses tokens from the logits of `side` by the rules of the engine (engine/choose/), and adds all results of
 * k->operator to *t. Reports errors. */
int replay_choose(struct cli *c, const struct diff_side *side, const struct replay_choice *k, struct tensors *t);

#endif
